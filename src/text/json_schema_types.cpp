// JSON Schema: strings and numbers.
#include <algorithm>
#include <array>
#include <cmath>

#include "base/json.h"
#include "text/json_schema_builder.h"

namespace riptide {

namespace {

using Expr = Grammar::Expr;

/// Numbers that a format lets through; those that it does not name have no such bounds within 18 digits.
struct NumberFormat {
    std::string_view name;
    bool whole;
    const char *low, *high;  // "": none
};
constexpr std::array kNumberFormats = {
    NumberFormat{"int8", true, "-128", "127"},
    NumberFormat{"int16", true, "-32768", "32767"},
    NumberFormat{"int32", true, "-2147483648", "2147483647"},
    NumberFormat{"int64", true, "", ""},
    NumberFormat{"uint8", true, "0", "255"},
    NumberFormat{"uint16", true, "0", "65535"},
    NumberFormat{"uint32", true, "0", "4294967295"},
    NumberFormat{"uint64", true, "0", ""},
    NumberFormat{"double-int", true, "-9007199254740991", "9007199254740991"},
    NumberFormat{"float", false, "-999999999999999999", "999999999999999999"},
    NumberFormat{"double", false, "", ""},
};
constexpr std::array kStringFormats = {"date-time", "date", "time", "duration", "email", "idn-email", "hostname", "iri",
                                       "idn-hostname", "ipv4", "ipv6", "uri", "uuid", "uri-reference", "regex",
                                       "iri-reference", "json-pointer", "uri-template", "relative-json-pointer",
                                       // ajv-formats and OpenAPI
                                       "url", "byte", "iso-time", "iso-date-time", "json-pointer-uri-fragment"};

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

/// The tighter of both.
void tighten(std::optional<NumberBound>& known, const NumberBound& bound, bool low) {
    const bool same = known && !above(bound, *known) && !above(*known, bound);
    if (!known || (low ? above(bound, *known) : above(*known, bound)) || (same && bound.strict)) known = bound;
}

/// Numbers without exponents that are none of these.
Expr other_number(Grammar& g, const std::vector<std::string>& excluded, bool whole) {
    const std::string digits = "-?(0|[1-9][0-9]{0,17})";
    TextSet all = TextSet::of_regex(whole ? digits : digits + "(\\.[0-9]{1,16})?", false);
    for (const std::string& text : excluded) {
        const std::size_t point = std::min(text.find('.'), text.size());
        const std::string sign = text == "0" ? "-?" : "";
        const std::string fraction = point == text.size() ? "(\\.0*)?" : "\\" + text.substr(point) + "0*";
        all = all - TextSet::of_regex(sign + text.substr(0, point) + fraction, false);
    }
    return g.named(all.add_to(g, {[](Grammar& to, const CharSet& set) { return to.chars(set); }}));
}

/// The whole number next to a bound, on its inner side.
int64_t inner_number(const NumberBound& bound, bool low) {
    const int64_t size = std::stoll(bound.whole), number = bound.negative ? -size : size;
    if (bound.fraction.empty()) return number + (!bound.strict ? 0 : low ? 1 : -1);
    if (bound.negative) return low ? number : number - 1;
    return low ? number + 1 : number;
}

}  // namespace

bool is_known_format(std::string_view format) {
    return std::find(kStringFormats.begin(), kStringFormats.end(), format) != kStringFormats.end();
}

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
    const std::string unreserved = "[A-Za-z0-9._~!$&'()*+,;=:@-]", percent = "%[0-9A-Fa-f]{2}";
    const std::string path = "(" + unreserved + "|/|" + percent + ")*";
    const std::string authority = "([A-Za-z0-9._~!$&'()*+,;=-]|" + percent + ")*(:\\d{1,5})?";
    const std::string tail =
        "(\\?(" + unreserved + "|[/?]|" + percent + ")*)?(#(" + unreserved + "|[/?]|" + percent + ")*)?";
    const std::string address = "//" + authority + "(/" + path + ")?";
    if (format == "uri" || format == "iri")
        return "[A-Za-z][A-Za-z0-9+.-]*:(" + address + "|/?(" + unreserved + "|" + percent + ")" + path + ")" + tail;
    if (format == "uri-reference" || format == "iri-reference")
        return "([A-Za-z][A-Za-z0-9+.-]*:)?(" + address + "|/)" + tail +
               "|([A-Za-z][A-Za-z0-9+.-]*:)?/?([A-Za-z0-9._~!$&'()*+,;=@-]|" + percent + ")" + path + tail + "|" + tail;
    if (format == "url")
        return "(https?|ftp)://" + label + "(\\." + label + "){1,6}(:\\d{1,4})?(/" + path + ")?" + tail;
    if (format == "json-pointer") return "(/([^~/]|~[01])*)*";
    if (format == "uuid") return "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}";
    throw GrammarError(fmt::format("format '{}' is not supported", format.substr(0, 80)));
}

bool StringRules::free() const {
    return !words && patterns.empty() && formats.empty() && not_patterns.empty() && excluded.empty() && least == 0 &&
           most == Grammar::kUnbounded;
}

TextSet string_set(const StringRules& rules) {
    if (rules.words) return TextSet::of_words(*rules.words);
    TextSet all = TextSet::of_length(rules.least, rules.most);
    for (const std::string& pattern : rules.patterns) all = all & TextSet::of_regex(pattern, true);
    for (const std::string& format : rules.formats) all = all & TextSet::of_regex(regex_of_format(format), false);
    for (const std::string& pattern : rules.not_patterns) all = all - TextSet::of_regex(pattern, true);
    return rules.excluded.empty() ? all : all - TextSet::of_words(rules.excluded);
}

Expr add_string_inside(Grammar& grammar, const StringRules& rules, const CharWriter& write) {
    if (rules.most != Grammar::kUnbounded && rules.least > rules.most) return grammar.choice({});
    const bool lengths = rules.least > 0 || rules.most != Grammar::kUnbounded;
    const bool alone = rules.patterns.size() + rules.formats.size() + lengths == 1 && !rules.words &&
                       rules.not_patterns.empty() && rules.excluded.empty();
    if (!alone) return string_set(rules).add_to(grammar, write);
    if (lengths) return add_counted(grammar, write(grammar, all_characters()), rules.least, rules.most);
    if (!rules.patterns.empty()) return add_regex(grammar, rules.patterns[0], true, write);
    return add_regex(grammar, regex_of_format(rules.formats[0]), false, write);
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
    return rules;
}

/// The one place where what is said of a string becomes a grammar.
Expr SchemaBuilder::string(const SchemaCase& one) {
    const StringRules rules = rules_of(one);
    if (rules.free()) return json_.string();
    const bool only_lengths = rules.patterns.empty() && rules.formats.empty() && rules.not_patterns.empty() &&
                              rules.excluded.empty() &&
                              (rules.most == Grammar::kUnbounded || rules.least <= rules.most);
    if (only_lengths) return json_.string_of_length(rules.least, rules.most);
    try {
        const Expr inside = add_string_inside(g_, rules, JsonGrammar::write_character);
        return g_.named(g_.sequence({g_.text("\""), inside, g_.text("\"")}));
    } catch (const GrammarError& error) {
        const char* word = !rules.patterns.empty() ? "pattern" : "format";
        const std::string place = cases_.place(where(one, word));
        throw GrammarError(fmt::format("{}{}: {}", place, rules.patterns.empty() ? "" : "/pattern", error.what()));
    }
}

/// The one place where what is said of a number becomes a grammar.
Expr SchemaBuilder::number(const SchemaCase& one) {
    std::optional<NumberBound> low, high;
    bool whole = (one.types & SchemaTypes::kFraction) == 0;
    for (const json::value* part : one.parts) {
        const json::object& schema = part->get_object();
        for (const char* word : {"minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"}) {
            const json::value* value = schema.if_contains(word);
            const std::string_view name = word;
            const bool exclusive = name.starts_with("exclusive"), is_low = name.ends_with("inimum");
            if (value == nullptr || (exclusive && value->is_bool())) continue;
            if (!value->is_number()) cases_.wrong(part, fmt::format("'{}' is not a number", word));
            // Draft 4: a boolean beside the bound.
            const json::value* open = schema.if_contains(is_low ? "exclusiveMinimum" : "exclusiveMaximum");
            const bool strict = exclusive || (open != nullptr && open->is_bool() && open->get_bool());
            if (const double size = value->to_number<double>(); is_low ? size <= -1e18 : size >= 1e18) {
                tighten(is_low ? low : high, {.whole = std::string(18, '9'), .negative = is_low}, is_low);
                continue;
            }
            try {
                tighten(is_low ? low : high, bound_of(*value, strict), is_low);
            } catch (const std::out_of_range&) {
                cases_.wrong(part, fmt::format("'{}' has more than 18 digits before the point or 9 behind it", word));
            }
        }
        if (const json::value* unit = schema.if_contains("multipleOf")) {
            if (!unit->is_number()) cases_.wrong(part, "'multipleOf' is not a number");
            if (unit->to_number<double>() == 1) whole = true;
            else cases_.unsupported(part, "'multipleOf' of other numbers than 1 is not supported");
        }
        const json::value* format = schema.if_contains("format");
        for (const NumberFormat& known : kNumberFormats) {
            if (format == nullptr || !format->is_string() || known.name != std::string_view(format->get_string()))
                continue;
            whole = whole || known.whole;
            if (*known.low != '\0') tighten(low, bound_of(json::parse(known.low), false), true);
            if (*known.high != '\0') tighten(high, bound_of(json::parse(known.high), false), false);
        }
    }
    std::vector<std::string> excluded;
    for (const json::value* value : one.excluded)
        if (value->is_number() && (one.types & SchemaTypes::of(*value)) != 0) excluded.push_back(json_text(*value));
    if (!excluded.empty() && !low && !high && (one.types & SchemaTypes::kInteger) != 0)
        return other_number(g_, excluded, whole);
    if (!excluded.empty())
        cases_.unsupported(where(one, "minimum"), "numbers within bounds, but for some ('not'), are not supported");
    return number_between(one, low, high, whole);
}

Expr SchemaBuilder::number_between(const SchemaCase& one, const std::optional<NumberBound>& low,
                                   const std::optional<NumberBound>& high, bool whole) {
    const json::value* part = where(one, low ? "minimum" : "maximum");
    if (whole && (one.types & SchemaTypes::kInteger) == 0) return g_.choice({});
    if (low && high && above(*low, *high)) {
        if (one.parts.size() == 1) cases_.wrong(part, "the lowest number allowed is above the highest");
        return g_.choice({});
    }
    if ((one.types & SchemaTypes::kInteger) == 0) {
        if (low || high) cases_.unsupported(part, "numbers that are not whole, with bounds, are not supported");
        return json_.fraction();
    }
    if (!low && !high) return whole ? json_.integer() : json_.number();
    if (!whole) {
        try {
            return g_.named(json_.number_between(low, high));
        } catch (const GrammarError& error) {
            cases_.wrong(part, error.what());
        }
    }
    std::optional<int64_t> first, last;
    if (low) first = inner_number(*low, true);
    if (high) last = inner_number(*high, false);
    return g_.named(json_.integer_between(first, last));
}

}  // namespace riptide
