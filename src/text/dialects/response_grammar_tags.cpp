// Calls between tags as grammars.
#include <algorithm>

#include "base/json.h"
#include "text/dialects/response_grammar.h"
#include "text/dialects/section_parser.h"
#include "text/grammar/grammar_regex.h"
#include "text/json/json_schema.h"
#include "text/json/tool_arguments.h"
#include "text/structured/grammar_lark.h"
#include "text/structured/grammar_without.h"

namespace riptide {

namespace {

using Expr = Grammar::Expr;
using Type = ToolSchemas::Type;

CharSet without(char c) { return complement({{static_cast<char32_t>(c), static_cast<char32_t>(c)}}); }

class TagCallWriter {
  public:
    TagCallWriter(Grammar& grammar, const TagMarkup& markup, RawTexts& texts, bool strict)
        : g_(grammar), markup_(markup), texts_(texts), options_{.lenient = !strict} {}

    Expr write(const OfferedTool& tool) {
        const Expr arguments = tool.lark.empty() ? all_arguments(tool.schema) : input(tool.lark);
        return g_.sequence({g_.text(markup_.before_name + tool.name + markup_.behind_name), arguments,
                            g_.text(markup_.behind_arguments)});
    }

  private:
    Expr all_arguments(const json::value& schema) {
        const json::object* object = schema.if_object();
        const auto field = [&](const char* key) { return object == nullptr ? nullptr : object->if_contains(key); };
        const json::value *properties = field("properties"), *additional = field("additionalProperties");
        const json::value *required = field("required"), *type = field("type");
        if (!options_.lenient) check(object, type, properties);
        const SchemaDocument document(schema);
        std::vector<Expr> parts;
        std::vector<std::string> names = {""};
        if (properties != nullptr && properties->is_object())
            for (const auto& [key, value] : properties->get_object()) {
                const std::string place = fmt::format("#/properties/{}", std::string_view(key).substr(0, 80));
                if (key.empty() || std::string_view(key).find_first_of(markup_.not_in_keys) != std::string_view::npos ||
                    kCallSpace.find(key.front()) != std::string_view::npos ||
                    kCallSpace.find(key.back()) != std::string_view::npos)
                    throw GrammarError(place + ": not a name that can be written between tags");
                const Expr one =
                    argument(g_.text(std::string(key) + markup_.behind_key), value_of(document, value, place));
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
            g_.text(markup_.behind_key));
        parts.push_back(g_.repeat(argument(key, value), 0, Grammar::kUnbounded));
        return g_.sequence(std::move(parts));
    }

    /// The one argument that is a text of a grammar: as it is, up to the closing tag, which cannot stand in it.
    Expr input(std::string_view lark) {
        const Expr text = without_word(g_, add_lark(g_, lark), markup_.value_end);
        return argument(g_.text("input" + markup_.behind_key), closed_value(text));
    }

    static bool is_boolean(const json::value& schema) {
        const json::object* object = schema.if_object();
        const json::value* type = object != nullptr ? object->if_contains("type") : nullptr;
        return type != nullptr && *type == "boolean" && !object->contains("enum") && !object->contains("const");
    }

    static void check(const json::object* object, const json::value* type, const json::value* properties) {
        if (object == nullptr || (type != nullptr && *type != "object") ||
            (properties != nullptr && !properties->is_object()))
            throw GrammarError("#: the parameters are not the schema of an object");
        for (const char* word : {"$ref", "anyOf", "oneOf", "allOf", "enum", "const", "not", "if", "patternProperties",
                                 "minProperties", "maxProperties", "propertyNames", "dependentRequired",
                                 "dependentSchemas", "dependencies", "unevaluatedProperties"})
            if (object->contains(word)) throw GrammarError(fmt::format("#: '{}' is not supported here", word));
    }

    static bool is_required(const json::value* required, std::string_view key) {
        return required != nullptr && required->is_array() &&
               std::any_of(required->get_array().begin(), required->get_array().end(),
                           [&](const json::value& name) { return name.is_string() && name.get_string() == key; });
    }

    /// `key` and `value` with what stands behind them.
    Expr argument(Expr key, Expr value) {
        return g_.sequence({g_.text(markup_.before_key), key, value, g_.text(markup_.behind_value)});
    }
    Expr end_of_value() { return g_.text(markup_.before_value_end + markup_.value_end); }
    Expr closed_value(Expr value) { return g_.sequence({value, end_of_value()}); }

    Expr value_of(const SchemaDocument& document, const json::value& schema, const std::string& place) {
        const Type type = ToolSchemas::type_of_schema(document, schema);
        if (type == Type::any) {
            Expr value = add_json_schema(g_, document.root(), schema, place, options_);
            if (markup_.python_words && is_boolean(schema)) value = g_.words({"True", "False"});
            return closed_value(value);
        }
        std::vector<Expr> ways;
        try {
            for (const StringRules& rules : string_rules(document.root(), schema, place, options_))
                ways.push_back(raw_string(rules));
        } catch (const GrammarError& error) {
            if (!options_.lenient) {
                const std::string_view what = error.what();
                throw GrammarError(what.starts_with('#') ? std::string(what) : fmt::format("{}: {}", place, what));
            }
            ways = {raw_text(false)};
        }
        if (type == Type::nullable_string) ways.push_back(closed_value(g_.text("null")));
        return g_.choice(std::move(ways));
    }

    /// A string as it is, and the closing tag.
    Expr raw_string(const StringRules& rules) {
        StringRules bare = rules;
        bare.least = 0;
        if (rules.least <= 1 && bare.free()) return raw_text(rules.least == 1);
        if (rules.words) {
            std::erase_if(*bare.words,
                          [&](const std::string& word) { return word.find(markup_.value_end) != std::string::npos; });
            return closed_value(g_.words(std::move(*bare.words)));
        }
        const CharWriter no_tags = [](Grammar& g, const CharSet& set) {
            return g.chars(intersection(set, without('<')));
        };
        return closed_value(add_string_inside(g_, rules, no_tags));
    }

    /// Any text up to the first closing tag, and this. What begins like the tag and is none: either another character
    /// comes than the tag's next, or a new < does.
    Expr raw_text(bool some) {
        Expr& known = some ? texts_.some : texts_.any;
        if (known >= 0) return known;
        const std::string_view tag = markup_.value_end;
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
        const Expr end = end_of_value(), pieces = g_.repeat(piece, 0, Grammar::kUnbounded);
        Expr all = g_.sequence({pieces, cuts, end});
        if (some) all = g_.choice({g_.sequence({piece, pieces, cuts, end}), g_.sequence({open, cut, cuts, end})});
        return known = g_.named(all);
    }

    Grammar& g_;
    const TagMarkup& markup_;
    RawTexts& texts_;
    const SchemaOptions options_;
};

}  // namespace

Expr add_tag_call(Grammar& grammar, const TagMarkup& markup, RawTexts& texts, const OfferedTool& tool) {
    return TagCallWriter(grammar, markup, texts, tool.strict).write(tool);
}

}  // namespace riptide
