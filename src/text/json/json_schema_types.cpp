// JSON Schema: strings and numbers.
#include <algorithm>

#include "base/json.h"
#include "text/json/json_schema_builder.h"

namespace riptide {

namespace {

using Expr = Grammar::Expr;

/// Numbers without exponents that are none of these; `one_way`: without zeros at the end of a fraction.
Expr other_number(Grammar& g, const std::vector<std::string>& excluded, bool whole, bool one_way) {
    const std::string digits = "-?(0|[1-9][0-9]{0,17})";
    TextSet all = TextSet::of_regex(whole ? digits : digits + "(\\.[0-9]{1,16})?", false, g.work());
    if (one_way) all = all & TextSet::of_regex(one_way_number(whole), false, g.work());
    for (const std::string& text : excluded) {
        const std::size_t point = std::min(text.find('.'), text.size());
        const std::string sign = text == "0" ? "-?" : "";
        const std::string fraction = point == text.size() ? "(\\.0*)?" : "\\" + text.substr(point) + "0*";
        all = all - TextSet::of_regex(sign + text.substr(0, point) + fraction, false, g.work());
    }
    return g.named(all.add_to(g, {[](Grammar& to, const CharSet& set) { return to.chars(set); }}));
}

}  // namespace

const json::object* number_format(const json::object& schema) {
    static const json::value known = json::parse(R"({
        "int8": {"type": "integer", "minimum": -128, "maximum": 127},
        "int16": {"type": "integer", "minimum": -32768, "maximum": 32767},
        "int32": {"type": "integer", "minimum": -2147483648, "maximum": 2147483647},
        "int64": {"type": "integer", "minimum": -9223372036854775808, "maximum": 9223372036854775807},
        "uint8": {"type": "integer", "minimum": 0, "maximum": 255},
        "uint16": {"type": "integer", "minimum": 0, "maximum": 65535},
        "uint32": {"type": "integer", "minimum": 0, "maximum": 4294967295},
        "uint64": {"type": "integer", "minimum": 0, "maximum": 18446744073709551615},
        "double-int": {"type": "integer", "minimum": -9007199254740991, "maximum": 9007199254740991},
        "float": {"minimum": -3.4028234663852886e38, "maximum": 3.4028234663852886e38},
        "double": {}})");
    const json::value* format = schema.if_contains("format");
    const json::value* found =
        format != nullptr && format->is_string() ? known.get_object().if_contains(format->get_string()) : nullptr;
    return found == nullptr ? nullptr : &found->get_object();
}

StringRules SchemaBuilder::rules_of(const SchemaCase& one) const {
    StringRules rules;
    std::tie(rules.least, rules.most) = counts(one, "minLength", "maxLength");
    rules.not_patterns = one.not_patterns;
    for (const json::value* value : one.excluded)
        if (value->is_string()) rules.excluded.emplace_back(value->get_string());
    for (const json::value* part : one.parts) {
        const json::object& schema = part->get_object();
        for (const char* word : {"pattern", "format"}) {
            const json::value* value = schema.if_contains(word);
            if (value == nullptr) continue;
            if (!value->is_string()) cases_.wrong(part, fmt::format("'{}' is not a string", word));
            std::string text(value->get_string());
            const bool is_pattern = std::string_view(word) == "pattern";
            if (!is_pattern && !is_known_format(text)) continue;
            std::vector<std::string>& list = is_pattern ? rules.patterns : rules.formats;
            if (std::find(list.begin(), list.end(), text) == list.end()) list.push_back(std::move(text));
        }
    }
    if (!rules.patterns.empty()) std::erase_if(rules.formats, is_said_by_pattern);
    return rules;
}

/// The one place where what is said of a string becomes a grammar.
Expr SchemaBuilder::string(const SchemaCase& one) {
    const StringRules rules = rules_of(one);
    if (rules.free()) return json().string();
    try {
        if (rules.only_lengths() && (rules.most == Grammar::kUnbounded || rules.least <= rules.most))
            return json().string_of_length(rules.least, rules.most);
        const Expr inside = add_string_inside(g_, rules, json().writer());
        return g_.named(g_.sequence({g_.text("\""), inside, g_.text("\"")}));
    } catch (const GrammarError& error) {
        const char* word = !rules.patterns.empty() ? "pattern" : "format";
        const std::string place = cases_.place(where(one, word));
        throw GrammarError(fmt::format("{}{}: {}", place, rules.patterns.empty() ? "" : "/pattern", error.what()));
    }
}

/// The one place where what is said of a number becomes a grammar.
Expr SchemaBuilder::number(const SchemaCase& one) {
    bool whole = (one.types & SchemaTypes::kFraction) == 0, bounded = false;
    std::vector<const json::object*> schemas;
    for (const json::value* part : one.parts) {
        const json::object& schema = part->get_object();
        schemas.push_back(&schema);
        for (const char* word : {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})
            bounded = bounded || schema.contains(word);
        const json::object* format = number_format(schema);
        if (format == nullptr) continue;
        whole = whole || format->contains("type");
        bounded = true;
        schemas.push_back(format);
    }
    if (whole && (one.types & SchemaTypes::kInteger) == 0) return g_.choice({});
    std::vector<std::string> excluded;
    for (const json::value* value : one.excluded)
        if (value->is_number() && (one.types & SchemaTypes::of(*value)) != 0) excluded.push_back(json_text(*value));
    if (!excluded.empty() && !bounded && (one.types & SchemaTypes::kInteger) != 0)
        return other_number(g_, excluded, whole, items_differ_);
    const json::value* place = where(one, "minimum");
    if (!excluded.empty()) cases_.unsupported(place, "numbers within bounds, but for some ('not'), are not supported");
    if ((one.types & SchemaTypes::kInteger) == 0) {
        if (bounded) cases_.unsupported(place, "numbers that are not whole, with bounds, are not supported");
        return json().fraction();
    }
    try {
        return json().number_of(schemas, whole);
    } catch (const GrammarError& error) {
        cases_.wrong(place, error.what());
    }
}

}  // namespace riptide
