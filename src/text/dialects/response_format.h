// What a request may ask of the form of an answer.
#pragma once

#include <string>
#include <utility>

#include "base/json.h"
#include "text/grammar/grammar.h"

namespace riptide {

/// The form of the visible text.
struct AnswerFormat {
    enum class Kind {
        any,
        json_object,  // any JSON object
        json_schema,  // `schema`: see add_json_schema
        regex,        // `text` matches the whole answer: see add_regex
        grammar,      // `text`: see add_ebnf and add_lark
        choice,       // one of the strings in `schema`, an array
    };
    Kind kind = Kind::any;
    SharedJson schema = {};
    bool lenient = false;  // how the schema is read: SchemaOptions
    std::string text = {};
    /// For errors: the request's field, and where in it the form stands ("response_format.json_schema.schema").
    std::string field = "response_format", where = {};

    void place_in(const std::string& path) {
        where = path;
        field = path.substr(0, path.find('.'));
    }
};

/// What is wrong with the form of the visible text.
class FormError : public GrammarError {
  public:
    FormError(std::string field_, const std::string& message) : GrammarError(message), field(std::move(field_)) {}
    std::string field;  // AnswerFormat's
};

/// What is wrong with a tool, or with what holds its arguments.
class ToolError : public GrammarError {
  public:
    ToolError(std::string tool_, const std::string& why_)
        : GrammarError(fmt::format("tools: '{}': {}", tool_, why_)), tool(std::move(tool_)), why(why_) {}
    std::string tool, why;  // its name; and "" or the place in its schema ("#/properties/x: "), and what is wrong
};

/// Whether tools are called.
struct ToolChoice {
    enum class Kind {
        automatic,  // the model decides
        required,   // at least one call, and nothing else
        named,      // one call of `name`, and nothing else
    };
    Kind kind = Kind::automatic;
    std::string name = {};
    bool single =
        false;  // at most one call; with `automatic` this holds only where something else constrains the answer
};

/// REQUIRES: kind is not any. Throws GrammarError.
Grammar::Expr add_format(Grammar& grammar, const AnswerFormat& format);

}  // namespace riptide
