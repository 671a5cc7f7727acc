#include "text/dialect_laguna_grammar.h"

#include <algorithm>

#include "text/dialect_laguna_parser.h"
#include "text/grammar_regex.h"
#include "text/json_schema.h"

namespace riptide {

namespace {

using Expr = Grammar::Expr;
using laguna::Marker;
using Type = ToolSchemas::Type;

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

CharSet without(char c) { return complement({{static_cast<char32_t>(c), static_cast<char32_t>(c)}}); }

class LagunaWriter {
  public:
    LagunaWriter(Grammar& grammar, const LagunaAnswer& answer)
        : g_(grammar), answer_(answer), schemas_(answer.tools), newline_(g_.text(answer.newline_framing ? "\n" : "")) {}

    Expr write() {
        Expr reasoning = g_.empty();
        if (answer_.thinking) reasoning = g_.sequence({text(), marker(Marker::end_think)});
        // Where </assistant> is a stop id, the engine asks only whether the answer may end; here is where it is none.
        return g_.sequence({reasoning, visible(), g_.optional(marker(Marker::end_assistant))});
    }

  private:
    Expr marker(Marker which) { return g_.token(laguna::spelling_of(which)); }
    Expr text() { return g_.repeat(g_.chars(all_characters()), 0, Grammar::kUnbounded); }

    Expr visible() {
        const ToolChoice& choice = answer_.choice;
        const bool formatted = answer_.format.kind != AnswerFormat::Kind::any;
        if (choice.kind == ToolChoice::Kind::automatic && !formatted) {
            const Expr one = any_call();
            if (choice.single) return g_.sequence({text(), g_.optional(g_.sequence({one, text()}))});
            return g_.repeat(g_.choice({g_.chars(all_characters()), one}), 0, Grammar::kUnbounded);
        }
        std::vector<Expr> ways;
        if (formatted && choice.kind == ToolChoice::Kind::automatic)
            ways.push_back(g_.sequence({newline_, add_format(g_, answer_.format), newline_}));
        if (!answer_.tools.empty() || choice.kind != ToolChoice::Kind::automatic) {
            const Expr one = any_call();
            const bool several = choice.kind != ToolChoice::Kind::named && !choice.single;
            const Expr more = several ? g_.repeat(g_.sequence({newline_, one}), 0, Grammar::kUnbounded) : g_.empty();
            ways.push_back(g_.sequence({newline_, one, more, newline_}));
        }
        return g_.choice(std::move(ways));
    }

    Expr any_call() {
        const bool named = answer_.choice.kind == ToolChoice::Kind::named;
        std::vector<Expr> ways;
        for (const json::value& tool : answer_.tools)
            if (tool.is_object() && (!named || name_of(tool) == answer_.choice.name)) ways.push_back(call(tool));
        if (ways.empty() && named)
            throw GrammarError(fmt::format("tool_choice: there is no tool '{}'", answer_.choice.name.substr(0, 80)));
        if (ways.empty()) throw GrammarError("tool_choice: a call is required, and no tools are offered");
        return g_.named(g_.choice(std::move(ways)));
    }

    Expr call(const json::value& tool) {
        name_ = name_of(tool);
        if (name_.empty() || name_.size() > 256 || name_.find_first_of("<>{}[]\" \t\r\n") != std::string::npos)
            throw GrammarError(fmt::format("tools: '{}' is not a name that can be called", name_.substr(0, 80)));
        options_.lenient = !is_strict(tool);
        const json::object& function = function_of(tool);
        const json::value* schema = function.if_contains("parameters");
        if (schema == nullptr) schema = function.if_contains("input_schema");
        static const json::value kNothing = json::object();
        Expr arguments = g_.empty();
        try {
            arguments = all_arguments(schema != nullptr ? *schema : kNothing);
        } catch (const GrammarError& error) {
            throw GrammarError(fmt::format("tools: '{}': {}", name_, error.what()));
        }
        return g_.sequence(
            {marker(Marker::tool_call), g_.text(name_), newline_, arguments, marker(Marker::end_tool_call)});
    }

    Expr all_arguments(const json::value& schema) {
        const json::object* object = schema.if_object();
        const auto field = [&](const char* key) { return object == nullptr ? nullptr : object->if_contains(key); };
        const json::value *properties = field("properties"), *additional = field("additionalProperties");
        const json::value *required = field("required"), *type = field("type");
        if (!options_.lenient) check(object, type, properties);
        std::vector<Expr> parts;
        std::vector<std::string> names = {""};
        if (properties != nullptr && properties->is_object())
            for (const auto& [key, value] : properties->get_object()) {
                const std::string place = fmt::format("#/properties/{}", std::string_view(key).substr(0, 80));
                if (key.empty() || std::string_view(key).find_first_of("<\n") != std::string_view::npos ||
                    laguna::kSpace.find(key.front()) != std::string_view::npos ||
                    laguna::kSpace.find(key.back()) != std::string_view::npos)
                    throw GrammarError(place + ": not a name that can be written between tags");
                const Expr one = argument(g_.text(std::string(key) + std::string(laguna::kEndArgKey)),
                                          value_of(schema, key, value, place));
                parts.push_back(is_required(required, key) ? one : g_.optional(one));
                names.emplace_back(key);
            }
        const bool closed = additional != nullptr && additional->is_bool() && !additional->get_bool();
        if (closed || (additional == nullptr && names.size() > 1)) return g_.sequence(std::move(parts));
        const bool typed = additional != nullptr && additional->is_object() && !additional->get_object().empty();
        const Expr value =
            typed ? closed_value(add_json_schema(g_, schema, *additional, "#/additionalProperties", options_))
                  : raw_text(false);
        const CharSet letters = normalized({{'0', '9'}, {'A', 'Z'}, {'a', 'z'}, {'_', '_'}, {'-', '-'}, {'.', '.'}});
        const Expr key = other_text(
            g_, names, letters, [](Grammar& g, const CharSet& set) { return g.chars(set); },
            g_.text(laguna::kEndArgKey));
        parts.push_back(g_.repeat(argument(key, value), 0, Grammar::kUnbounded));
        return g_.sequence(std::move(parts));
    }

    static void check(const json::object* object, const json::value* type, const json::value* properties) {
        if (object == nullptr || (type != nullptr && *type != "object") ||
            (properties != nullptr && !properties->is_object()))
            throw GrammarError("#: the parameters are not the schema of an object");
        for (const char* word : {"$ref", "anyOf", "oneOf", "allOf", "enum", "const", "not", "if", "patternProperties",
                                 "minProperties", "maxProperties", "propertyNames", "dependentRequired"})
            if (object->contains(word)) throw GrammarError(fmt::format("#: '{}' is not supported here", word));
    }

    static bool is_required(const json::value* required, std::string_view key) {
        return required != nullptr && required->is_array() &&
               std::any_of(required->get_array().begin(), required->get_array().end(),
                           [&](const json::value& name) { return name.is_string() && name.get_string() == key; });
    }

    /// `key` and `value` with their closing tags.
    Expr argument(Expr key, Expr value) {
        return g_.sequence({g_.text(laguna::kArgKey), key, newline_, g_.text(laguna::kArgValue), value, newline_});
    }
    Expr closed_value(Expr value) { return g_.sequence({value, g_.text(laguna::kEndArgValue)}); }

    Expr value_of(const json::value& root, std::string_view key, const json::value& schema, const std::string& place) {
        const Type type = schemas_.type_of(name_, key);
        if (type == Type::any) return closed_value(add_json_schema(g_, root, schema, place, options_));
        if (!options_.lenient) {  // for its errors: what a string's schema may say is the same in JSON
            Grammar scratch;
            add_json_schema(scratch, root, schema, place, options_);
        }
        Expr text = g_.empty();
        try {
            text = raw_string(schema.get_object(), place);
        } catch (const GrammarError& error) {
            if (!options_.lenient) throw GrammarError(fmt::format("{}: {}", place, error.what()));
            text = raw_text(false);
        }
        return type == Type::string ? text : g_.choice({text, closed_value(g_.text("null"))});
    }

    /// A string as it is, and the closing tag.
    Expr raw_string(const json::object& schema, const std::string& place) {
        const json::value *list = schema.if_contains("enum"), *constant = schema.if_contains("const");
        if (list != nullptr || constant != nullptr) {
            std::vector<std::string> words;
            const auto add = [&](const json::value& value) {
                const bool allowed = constant == nullptr || value == *constant;
                if (value.is_string() && allowed && value.get_string().find(laguna::kEndArgValue) == json::string::npos)
                    words.emplace_back(value.get_string());
            };
            if (list != nullptr && list->is_array())
                std::for_each(list->get_array().begin(), list->get_array().end(), add);
            else if (constant != nullptr) add(*constant);
            return closed_value(g_.words(std::move(words)));
        }
        const CharWriter no_tags = [](Grammar& g, const CharSet& set) {
            return g.chars(intersection(set, without('<')));
        };
        const json::value *pattern = schema.if_contains("pattern"), *format = schema.if_contains("format");
        if (pattern != nullptr && pattern->is_string())
            return closed_value(add_regex(g_, pattern->get_string(), true, no_tags));
        if (format != nullptr && format->is_string())
            return closed_value(add_regex(g_, regex_of_format(format->get_string()), false, no_tags));
        const auto least = schema_count(schema, "minLength", place), most = schema_count(schema, "maxLength", place);
        if (!most && least.value_or(0) <= 1) return raw_text(least.value_or(0) == 1);
        return closed_value(g_.repeat(g_.chars(without('<')), least.value_or(0), most ? *most : Grammar::kUnbounded));
    }

    /// Any text up to the first </arg_value>, and this. What begins like the tag and is none: either another character
    /// comes than the tag's next, or a new < does.
    Expr raw_text(bool some) {
        Expr& known = some ? some_text_ : any_text_;
        if (known >= 0) return known;
        const std::string_view tag = laguna::kEndArgValue;
        Expr broken = g_.choice({}), cut = g_.empty();  // behind the first i characters: a wrong one; a new <
        for (std::size_t i = tag.size(); i-- > 1;) {
            const char c = tag[i];
            const Expr wrong = g_.chars(intersection(without(c), without('<')));
            const Expr next = g_.text(tag.substr(i, 1));
            broken = i + 1 == tag.size() ? wrong : g_.choice({wrong, g_.sequence({next, broken})});
            cut = i + 1 == tag.size() ? g_.empty() : g_.optional(g_.sequence({next, cut}));
        }
        const Expr open = g_.text("<"), cuts = g_.repeat(g_.sequence({open, cut}), 0, Grammar::kUnbounded);
        const Expr piece = g_.choice({g_.chars(without('<')), g_.sequence({cuts, open, broken})});
        const Expr end = g_.text(tag), pieces = g_.repeat(piece, 0, Grammar::kUnbounded);
        Expr all = g_.sequence({pieces, cuts, end});
        if (some) all = g_.choice({g_.sequence({piece, pieces, cuts, end}), g_.sequence({open, cut, cuts, end})});
        return known = g_.named(all);
    }

    Grammar& g_;
    const LagunaAnswer& answer_;
    const ToolSchemas schemas_;
    const Expr newline_;
    std::string name_;  // of the tool at hand
    SchemaOptions options_;
    Expr any_text_ = -1, some_text_ = -1;
};

}  // namespace

bool is_constrained(const LagunaAnswer& answer) {
    return answer.format.kind != AnswerFormat::Kind::any || answer.choice.kind != ToolChoice::Kind::automatic ||
           std::any_of(answer.tools.begin(), answer.tools.end(), is_strict);
}

Grammar laguna_grammar(const LagunaAnswer& answer) {
    Grammar grammar;
    grammar.set_root(LagunaWriter(grammar, answer).write());
    return grammar;
}

}  // namespace riptide
