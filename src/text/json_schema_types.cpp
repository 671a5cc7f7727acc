// JSON Schema: objects, arrays, strings, numbers.
#include <algorithm>
#include <cmath>

#include "text/json_schema_builder.h"
#include "base/json.h"
#include "text/tool_arguments.h"

namespace riptide {

namespace {

using Expr = Grammar::Expr;

std::string escaped_pointer(std::string_view key) {
    std::string out;
    for (const char c : key) {
        if (c == '~') out += "~0";
        else if (c == '/') out += "~1";
        else out += c;
    }
    return out;
}

std::string key_text(std::string_view name) {
    std::string out;
    append_json_escaped(name, out);
    return out;
}

/// Of numbers that are whole, or have at most nine decimals. Throws std::out_of_range otherwise.
NumberBound bound_of(const json::value& value, bool strict) {
    NumberBound out{.strict = strict};
    std::string text;
    if (value.is_double()) {
        const double number = value.get_double(), scaled = number * 1e9;
        if (!(std::abs(number) < 1e15) ||
            std::abs(scaled - std::round(scaled)) > 1e-3 * std::max(1.0, std::abs(number)))
            throw std::out_of_range("number");
        text = fmt::format("{:.9f}", number);
    } else {
        text = json::serialize(value);
    }
    if (text.starts_with('-')) {
        out.negative = true;
        text.erase(0, 1);
    }
    const std::size_t point = std::min(text.find('.'), text.size());
    out.whole = text.substr(0, point);
    if (point < text.size()) out.fraction = text.substr(point + 1);
    while (out.fraction.ends_with('0')) out.fraction.pop_back();
    if (out.whole.size() > 18) throw std::out_of_range("number");
    if (out.whole == "0" && out.fraction.empty()) out.negative = false;
    return out;
}

/// The tighter of two lower (or upper) bounds.
bool above(const NumberBound& a, const NumberBound& b) {
    const auto value = [](const NumberBound& x) {
        const double size = std::stod(x.whole + "." + (x.fraction.empty() ? "0" : x.fraction));
        return x.negative ? -size : size;
    };
    return value(a) > value(b);
}

}  // namespace

std::string regex_of_format(std::string_view format) {
    const std::string date =
        "\\d{4}-((0[13578]|1[02])-(0[1-9]|[12]\\d|3[01])|(0[469]|11)-(0[1-9]|[12]\\d|30)|02-(0[1-9]|1\\d|2[0-8]))";
    const std::string time = "([01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(\\.\\d{1,9})?(Z|[+-]([01]\\d|2[0-3]):[0-5]\\d)";
    const std::string label = "[A-Za-z0-9]([A-Za-z0-9-]{0,30}[A-Za-z0-9])?";
    const std::string byte = "(25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)";
    if (format == "date") return date;
    if (format == "time") return time;
    if (format == "date-time") return date + "T" + time;
    if (format == "duration")
        return "P((\\d{1,9}Y(\\d{1,9}M(\\d{1,9}D)?)?|\\d{1,9}M(\\d{1,9}D)?|\\d{1,9}D)(T(\\d{1,9}H(\\d{1,9}M(\\d{1,9}S)?"
               ")?|"
               "\\d{1,9}M(\\d{1,9}S)?|\\d{1,9}S))?|T(\\d{1,9}H(\\d{1,9}M(\\d{1,9}S)?)?|\\d{1,9}M(\\d{1,9}S)?|\\d{1,9}S)"
               "|"
               "\\d{1,9}W)";
    if (format == "hostname") return label + "(\\." + label + "){0,6}";
    if (format == "email") {
        const std::string atom = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]{1,20}";
        return atom + "(\\." + atom + "){0,2}@" + label + "(\\." + label + "){1,4}";
    }
    if (format == "ipv4") return byte + "(\\." + byte + "){3}";
    if (format == "ipv6") return "[0-9A-Fa-f]{1,4}(:[0-9A-Fa-f]{1,4}){7}";
    if (format == "uuid") return "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}";
    throw GrammarError(fmt::format("format '{}' is not supported", format.substr(0, 80)));
}

Expr SchemaBuilder::object(const json::object& schema, const std::string& path) {
    const json::value* properties = schema.if_contains("properties");
    const json::value* required = schema.if_contains("required");
    const json::value* additional = schema.if_contains("additionalProperties");
    if (properties != nullptr && !properties->is_object()) wrong(path, "'properties' is not an object");
    if (required != nullptr && !required->is_array()) wrong(path, "'required' is not an array");
    std::vector<std::string> needed;
    if (required != nullptr)
        for (const json::value& name : required->get_array()) {
            if (!name.is_string()) wrong(path, "'required' holds what is not a string");
            needed.emplace_back(name.get_string());
        }
    const auto is_needed = [&](std::string_view name) {
        return std::find(needed.begin(), needed.end(), name) != needed.end();
    };
    std::vector<std::pair<Expr, bool>> members;
    std::vector<std::string> names;
    const auto add = [&](std::string_view name, Expr value, bool must) {
        const std::string key = key_text(name);
        members.emplace_back(json_.member(g_.text("\"" + key + "\""), value), must);
        names.emplace_back(name);
    };
    if (properties != nullptr)
        for (const auto& [name, value] : properties->get_object()) {
            // A member that can have no value is left out; where it must be there, nothing can match.
            const Expr inner = this->schema(value, fmt::format("{}/properties/{}", path, escaped_pointer(name)));
            add(name, inner, is_needed(name));
        }
    const bool closed = additional != nullptr ? additional->is_bool() && !additional->get_bool() : !names.empty();
    const bool stated = additional != nullptr && !closed;
    std::optional<Expr> other;
    if (stated || !closed)
        other = additional == nullptr ? json_.any() : this->schema(*additional, path + "/additionalProperties");
    for (const std::string& name : needed) {
        if (std::find(names.begin(), names.end(), name) != names.end()) continue;
        if (closed && additional != nullptr)
            wrong(path, fmt::format("'{}' is required, but it is no property, and there may be no others",
                                    name.substr(0, 80)));
        add(name, other ? *other : json_.any(), true);
    }
    std::optional<Expr> more;
    if (other) more = json_.member(names.empty() ? json_.string() : json_.other_string(names), g_.named(*other));
    return json_.object_of(members, more);
}

Expr SchemaBuilder::array(const json::object& schema, const std::string& path) {
    const json::value* items = schema.if_contains("items");
    const int64_t least = schema_count(schema, "minItems", path).value_or(0);
    const int64_t most = schema_count(schema, "maxItems", path).value_or(Grammar::kUnbounded);
    if (least > Grammar::kMostRepeats || most > Grammar::kMostRepeats)
        wrong(path, fmt::format("'minItems' and 'maxItems' of more than {} are not supported", Grammar::kMostRepeats));
    if (most != Grammar::kUnbounded && least > most) wrong(path, "'minItems' is more than 'maxItems'");
    const Expr item = items != nullptr ? this->schema(*items, path + "/items") : json_.any();
    return json_.array_of(item, least, most);
}

Expr SchemaBuilder::string(const json::object& schema, const std::string& path) {
    const json::value *pattern = schema.if_contains("pattern"), *format = schema.if_contains("format");
    const std::optional<int64_t> least = schema_count(schema, "minLength", path),
                                 most = schema_count(schema, "maxLength", path);
    const bool lengths = least.value_or(0) > 0 || most;
    if ((pattern != nullptr) + (format != nullptr) + lengths > 1)
        wrong(path, "'pattern', 'format' and lengths of one string together are not supported");
    for (const json::value* word : {pattern, format})
        if (word != nullptr && !word->is_string()) wrong(path, "'pattern' or 'format' is not a string");
    if (pattern == nullptr && format == nullptr) {
        if (!lengths) return json_.string();
        const int64_t from = least.value_or(0), to = most.value_or(Grammar::kUnbounded);
        if (from > Grammar::kMostRepeats || to > Grammar::kMostRepeats)
            wrong(path,
                  fmt::format("'minLength' and 'maxLength' of more than {} are not supported", Grammar::kMostRepeats));
        if (most && from > to) wrong(path, "'minLength' is more than 'maxLength'");
        return json_.string_of_length(from, to);
    }
    try {
        const std::string regex =
            pattern != nullptr ? std::string(pattern->get_string()) : regex_of_format(format->get_string());
        const Expr inside = add_regex(g_, regex, pattern != nullptr, JsonGrammar::write_character);
        return g_.named(g_.sequence({g_.text("\""), inside, g_.text("\"")}));
    } catch (const GrammarError& error) {
        wrong(pattern != nullptr ? path + "/pattern" : path, error.what());
    }
}

Expr SchemaBuilder::number(const json::object& schema, const std::string& path, bool whole) {
    std::optional<NumberBound> low, high;
    for (const char* word : {"minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"}) {
        const json::value* value = schema.if_contains(word);
        if (value == nullptr) continue;
        const std::string_view name = word;
        const bool strict = name.starts_with("exclusive"), is_low = name.ends_with("inimum");
        if (!value->is_number()) wrong(path, fmt::format("'{}' is not a number", word));
        NumberBound bound;
        try {
            bound = bound_of(*value, strict);
        } catch (const std::out_of_range&) {
            wrong(path, fmt::format("'{}' has more than 18 digits before the point or 9 behind it", word));
        }
        std::optional<NumberBound>& known = is_low ? low : high;
        const bool same = known && !above(bound, *known) && !above(*known, bound);
        if (!known || (is_low ? above(bound, *known) : above(*known, bound)) || (same && strict)) known = bound;
    }
    if (low && high && above(*low, *high)) wrong(path, "the lowest number allowed is above the highest");
    if (!low && !high) return whole ? json_.integer() : json_.number();
    if (!whole) {
        try {
            return g_.named(json_.number_between(low, high));
        } catch (const GrammarError& error) {
            wrong(path, error.what());
        }
    }
    // The whole number next to a bound, on its inner side.
    const auto inner = [](const NumberBound& bound, bool is_low) {
        const int64_t size = std::stoll(bound.whole), number = bound.negative ? -size : size;
        if (bound.fraction.empty()) return number + (!bound.strict ? 0 : is_low ? 1 : -1);
        if (bound.negative) return is_low ? number : number - 1;
        return is_low ? number + 1 : number;
    };
    std::optional<int64_t> first, last;
    if (low) first = inner(*low, true);
    if (high) last = inner(*high, false);
    return g_.named(json_.integer_between(first, last));
}

}  // namespace riptide
