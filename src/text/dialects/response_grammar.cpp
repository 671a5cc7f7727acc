#include "text/dialects/response_grammar.h"

#include <algorithm>
#include <optional>

#include "base/json.h"
#include "text/json/json_grammar.h"
#include "text/json/json_schema.h"
#include "text/structured/grammar_lark.h"

namespace riptide {

namespace {

using Expr = Grammar::Expr;

const json::object& function_of(const json::value& tool) {
    const json::object& outer = tool.get_object();
    const json::value* inner = outer.if_contains("function");
    return inner != nullptr && inner->is_object() ? inner->get_object() : outer;
}

bool is_strict(const json::value& tool) {
    if (!tool.is_object()) return false;
    const json::value* strict = function_of(tool).if_contains("strict");
    return strict != nullptr && strict->is_bool() && strict->get_bool();
}

std::string name_of(const json::value& tool) {
    const json::value* name = tool.is_object() ? function_of(tool).if_contains("name") : nullptr;
    return name != nullptr && name->is_string() ? std::string(name->get_string()) : "";
}

/// The Lark grammar of a function's text; "" if it has none.
std::string lark_of(const json::object& function) {
    const json::value* grammar = function.if_contains(kInputGrammar);
    const json::object* object = grammar != nullptr ? grammar->if_object() : nullptr;
    const json::value* syntax = object != nullptr ? object->if_contains("syntax") : nullptr;
    const json::value* definition = object != nullptr ? object->if_contains("definition") : nullptr;
    const bool is_lark = syntax != nullptr && *syntax == "lark" && definition != nullptr && definition->is_string();
    return is_lark ? std::string(definition->get_string()) : std::string();
}

class AnswerWriter {
  public:
    AnswerWriter(Grammar& grammar, const AnswerForm& form, const AnswerMarkup& markup)
        : g_(grammar), form_(form), markup_(markup) {}

    Expr write() {
        const auto thought = [&](Expr begin) {
            return g_.sequence({begin, text(), g_.token("</think>"), visible(markup_.behind_reasoning)});
        };
        Expr all = form_.thinking == Thinking::inside ? thought(g_.empty()) : visible(markup_.at_start);
        if (form_.thinking == Thinking::not_begun) all = g_.choice({all, thought(g_.token("<think>"))});
        // Where the end of the turn is a stop id, the engine asks only whether the answer may end; here is where it is
        // none.
        return g_.sequence({all, g_.optional(g_.token(markup_.end_turn))});
    }

  private:
    Expr text() { return g_.repeat(g_.chars(all_characters()), 0, Grammar::kUnbounded); }

    Expr visible(std::string_view lead) {
        const ToolChoice& choice = form_.choice;
        const bool formatted = form_.format.kind != AnswerFormat::Kind::any;
        if (choice.kind == ToolChoice::Kind::automatic && !formatted) {
            const Expr one = any_call();
            if (choice.single)  // behind the call there is nothing to say
                return g_.sequence({text(), g_.optional(g_.sequence({one, g_.optional(g_.text(markup_.at_end))}))});
            return g_.repeat(g_.choice({g_.chars(all_characters()), one}), 0, Grammar::kUnbounded);
        }
        const Expr begin = g_.text(lead), end = g_.text(markup_.at_end);
        std::vector<Expr> ways;
        if (formatted && choice.kind == ToolChoice::Kind::automatic)
            ways.push_back(g_.sequence({begin, add_format(g_, form_.format), end}));
        if (!form_.tools.empty() || choice.kind != ToolChoice::Kind::automatic) {
            const Expr one = any_call();
            const bool several = choice.kind != ToolChoice::Kind::named && !choice.single;
            const Expr next = g_.sequence({g_.text(markup_.between_calls), one});
            const Expr more = several ? g_.repeat(next, 0, Grammar::kUnbounded) : g_.empty();
            ways.push_back(g_.sequence({begin, one, more, end}));
        }
        return g_.choice(std::move(ways));
    }

    Expr any_call() {
        if (any_call_) return *any_call_;
        const bool named = form_.choice.kind == ToolChoice::Kind::named;
        std::vector<Expr> ways;
        for (const json::value& tool : form_.tools)
            if (tool.is_object() && (!named || name_of(tool) == form_.choice.name)) ways.push_back(call(tool));
        if (ways.empty() && named)
            throw GrammarError(fmt::format("tool_choice: there is no tool '{}'", form_.choice.name.substr(0, 80)));
        if (ways.empty()) throw GrammarError("tool_choice: a call is required, and no tools are offered");
        any_call_ = g_.named(g_.choice(std::move(ways)));
        return *any_call_;
    }

    Expr call(const json::value& tool) {
        const std::string name = name_of(tool);
        if (name.empty() || name.size() > 256 || name.find_first_of("<>{}[]\" \t\r\n") != std::string::npos)
            throw GrammarError(fmt::format("tools: '{}' is not a name that can be called", name.substr(0, 80)));
        const json::object& function = function_of(tool);
        const json::value* schema = function.if_contains("parameters");
        if (schema == nullptr) schema = function.if_contains("input_schema");
        static const json::value kNothing = json::object();
        lark_bytes_ += lark_of(function).size();
        if (lark_bytes_ > kMostInputGrammars)
            throw ToolError(name, fmt::format("grammars of tools have {} bytes up to here, expected at most {} in all",
                                              lark_bytes_, kMostInputGrammars));
        const OfferedTool offered{name, schema != nullptr ? *schema : kNothing, is_strict(tool), lark_of(function)};
        try {
            return g_.sequence({g_.token("<tool_call>"), markup_.add_call(offered), g_.token("</tool_call>")});
        } catch (const GrammarError& error) {
            throw ToolError(name, error.what());
        }
    }

    Grammar& g_;
    const AnswerForm& form_;
    const AnswerMarkup& markup_;
    std::optional<Expr> any_call_;
    std::size_t lark_bytes_ = 0;
};

/// Arguments are those that are listed, where the schema says nothing of others.
void close_object(json::object& schema) {
    const json::value *properties = schema.if_contains("properties"), *required = schema.if_contains("required");
    if (properties == nullptr || !properties->is_object() || properties->get_object().empty()) return;
    for (const char* word : {"additionalProperties", "patternProperties", "propertyNames", "allOf", "anyOf", "oneOf",
                             "$ref", "if", "dependentSchemas", "dependencies"})
        if (schema.contains(word)) return;
    if (required != nullptr && required->is_array())
        for (const json::value& name : required->get_array())
            if (name.is_string() && !properties->get_object().contains(name.get_string())) return;
    schema["additionalProperties"] = false;
}

/// {"input": TEXT}
Expr input_object(Grammar& grammar, std::string_view lark) {
    JsonGrammar json(grammar);
    const Expr quote = grammar.text("\""), text = add_lark(grammar, lark, json.writer());
    const Expr member = json.member(grammar.text("\"input\""), grammar.sequence({quote, text, quote}));
    return grammar.sequence({grammar.text("{"), json.space(), member, json.space(), grammar.text("}")});
}

}  // namespace

bool is_constrained(const AnswerForm& form) {
    return form.format.kind != AnswerFormat::Kind::any || form.choice.kind != ToolChoice::Kind::automatic ||
           std::any_of(form.tools.begin(), form.tools.end(), is_strict);
}

Expr add_answer(Grammar& grammar, const AnswerForm& form, const AnswerMarkup& markup) {
    return AnswerWriter(grammar, form, markup).write();
}

Expr add_json_call(Grammar& grammar, const OfferedTool& tool) {
    json::object schema;
    if (const json::object* given = tool.schema.if_object()) schema = *given;
    const json::value* type = schema.if_contains("type");
    const bool usable = tool.schema.is_object() && (type == nullptr || *type == "object");
    if (!usable && tool.strict) throw GrammarError("#: the parameters are not the schema of an object");
    if (!usable) schema.clear();
    schema["type"] = "object";
    close_object(schema);
    const Expr arguments = tool.lark.empty() ? add_json_schema(grammar, schema, {.lenient = !tool.strict})
                                             : input_object(grammar, tool.lark);
    const std::string name = json_text(json::value(tool.name));
    return grammar.sequence({grammar.text("{\"name\": " + name + ", \"arguments\": "), arguments, grammar.text("}")});
}

}  // namespace riptide
