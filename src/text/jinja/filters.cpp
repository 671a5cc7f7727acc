// The filters that work on texts and numbers, and the table of all. Those on sequences are in filters_seq.cpp.
#include "text/jinja/filters.h"

#include <algorithm>
#include <charconv>
#include <cmath>

namespace riptide::jinja {
namespace {

/// soft_str(input)
Value text_of(Interpreter& in, const Value& input) { return to_string(in.heap(), input); }

Value call_string_method(Interpreter& in, std::string_view name, const Value& input, Arguments& arguments) {
    return find_string_method(name)(in, text_of(in, input), arguments);
}

Value f_upper(Interpreter& in, const Value& input, Arguments& arguments) {
    return call_string_method(in, "upper", input, arguments);
}
Value f_lower(Interpreter& in, const Value& input, Arguments& arguments) {
    return call_string_method(in, "lower", input, arguments);
}
Value f_capitalize(Interpreter& in, const Value& input, Arguments& arguments) {
    return call_string_method(in, "capitalize", input, arguments);
}
Value f_trim(Interpreter& in, const Value& input, Arguments& arguments) {
    return call_string_method(in, "strip", input, arguments);
}

Value f_center(Interpreter& in, const Value& input, Arguments& arguments) {
    Bound args(arguments, "center", {"width"});
    Arguments width;
    width.positional = {Value::integer(args.number(0, 80))};
    return call_string_method(in, "center", input, width);
}

/// Words begin behind white space and - ( { [ <, unlike in str.title.
Value f_title(Interpreter& in, const Value& input, Arguments& arguments) {
    Bound args(arguments, "title", {});
    const Value value = text_of(in, input);
    bool first = true;
    Text out = map_case(in.heap(), value.text(), [&](char32_t code) {
        const bool begins = is_space(code) || code == '-' || code == '(' || code == '{' || code == '[' || code == '<';
        return std::exchange(first, begins) ? Case::upper : Case::lower;
    });
    return in.heap().text(std::move(out), value.string().markup);
}

Value f_replace(Interpreter& in, const Value& input, Arguments& arguments) {
    Bound args(arguments, "replace", {"old", "new", "count"});
    const Value from = text_of(in, args[0]), to = text_of(in, args[1]);
    const Value text = text_of(in, input);
    return in.heap().text(replace_all(in.heap(), text.text(), from.text(), to.text(), args.number(2, -1)));
}

Value f_string(Interpreter& in, const Value& input, Arguments& arguments) {
    Bound args(arguments, "string", {});
    return text_of(in, input);
}

Value f_safe(Interpreter& in, const Value& input, Arguments& arguments) {
    Bound args(arguments, "safe", {});
    return in.heap().text(to_text(in.heap(), input), true);
}

Value f_escape(Interpreter& in, const Value& input, Arguments& arguments) {
    Bound args(arguments, "escape", {});
    if (input.is_string() && input.string().markup) return input;
    return in.heap().text(escape_html(in.heap(), to_text(in.heap(), input)), true);
}

Value f_forceescape(Interpreter& in, const Value& input, Arguments& arguments) {
    Bound args(arguments, "forceescape", {});
    return in.heap().text(escape_html(in.heap(), to_text(in.heap(), input)), true);
}

/// Where the characters that end a line begin.
int64_t line_end(const Text& text, TextSpan line) {
    while (line.end > line.begin) {
        const int64_t at = char_before(text.bytes(), line.end);
        if (!is_line_end(char_at(text.bytes(), at).code)) break;
        line.end = at;
    }
    return line.end;
}

Value f_indent(Interpreter& in, const Value& input, Arguments& arguments) {
    Bound args(arguments, "indent", {"width", "first", "blank"});
    if (!input.is_string()) fault("can only indent a str, not {}", type_name(input));
    Text indention(std::string(), true);
    if (args.has(0) && args[0].is_string()) {
        indention = args[0].text();
    } else {
        const int64_t width = std::max<int64_t>(args.number(0, 4), 0);
        in.heap().check_text(width);
        indention.append(std::string(static_cast<std::size_t>(width), ' '), true);
    }
    const bool blank = args.flag(2, false);
    Text text = input.text();
    text.append("\n", true);  // so that a last empty line counts, as in Jinja
    const std::vector<TextSpan> lines = split_lines(in.heap(), text, true);
    TextBuilder out(in.heap());
    if (args.flag(1, false)) out.append(indention);
    for (std::size_t i = 0; i < lines.size(); ++i) {
        const int64_t begin = lines[i].begin, end = line_end(text, lines[i]);
        if (i > 0 && (blank || end > begin)) out.append(indention);
        out.append(text, begin, end);
        if (i + 1 < lines.size()) out.append("\n", text.trusted_at(end));
    }
    return in.heap().text(out.take(), input.string().markup);
}

Value f_wordcount(Interpreter& in, const Value& input, Arguments& arguments) {
    Bound args(arguments, "wordcount", {});
    const Value text = text_of(in, input);
    in.heap().step_chars(text.text().size());
    int64_t words = 0;
    bool inside = false;
    for (int64_t at = 0; at < text.text().size();) {
        const Char c = char_at(text.bytes(), at);
        const bool word = is_alpha(c.code) || is_digit(c.code) || c.code == '_';
        words += word && !inside;
        inside = word;
        at += c.bytes;
    }
    return Value::integer(words);
}

Value f_format(Interpreter& in, const Value& input, Arguments& arguments) {
    if (!arguments.positional.empty() && !arguments.named.empty()) {
        fault("format() cannot take positional and keyword arguments at the same time");
    }
    const Value format = text_of(in, input);
    if (arguments.named.empty()) {
        return format_percent(in.heap(), format, in.heap().sequence(arguments.positional, Shape::tuple));
    }
    std::vector<std::pair<Value, Value>> items;
    for (const auto& [name, value] : arguments.named) items.emplace_back(in.heap().text(name, true), value);
    return format_percent(in.heap(), format, in.heap().dict(std::move(items)));
}

Value f_tojson(Interpreter& in, const Value& input, Arguments& arguments) {
    Bound args(arguments, "tojson", {"ensure_ascii", "indent", "separators", "sort_keys"});
    JsonStyle style;
    style.ensure_ascii = args.flag(0, false);
    style.sort_keys = args.flag(3, false);
    if (args.has(1) && !args[1].is(Kind::none)) {
        style.item_separator = Text(",", false);
        if (args[1].is_string()) {
            style.indent = args[1].text();
        } else {
            const int64_t width = std::max<int64_t>(args.number(1, 0), 0);
            in.heap().check_text(width);
            style.indent = Text(std::string(static_cast<std::size_t>(width), ' '), false);
        }
    }
    if (args.has(2) && !args[2].is(Kind::none)) {
        const std::vector<Value> separators = iterate(in.heap(), args[2]);
        if (separators.size() != 2 || !separators[0].is_string() || !separators[1].is_string()) {
            fault("tojson(): 'separators' must be two strings");
        }
        style.item_separator = separators[0].text();
        style.key_separator = separators[1].text();
    }
    TextBuilder out(in.heap());
    append_json(out, input, style);
    return in.heap().text(out.take());
}

// ---- numbers

/// Digits of a str as Python's int() reads them: white space round them, a sign, single underscores.
std::optional<int64_t> parse_whole(std::string_view text, int base) {
    const Kept kept = strip_range(text, nullptr, true, true);
    text = text.substr(static_cast<std::size_t>(kept.begin), static_cast<std::size_t>(kept.end - kept.begin));
    std::string digits;
    if (!text.empty() && (text[0] == '+' || text[0] == '-')) {
        if (text[0] == '-') digits += '-';
        text.remove_prefix(1);
    }
    const char kind = text.size() > 2 && text[0] == '0' ? static_cast<char>(text[1] | 0x20) : '\0';
    const int prefix = kind == 'x' ? 16 : kind == 'o' ? 8 : kind == 'b' ? 2 : 0;
    if (prefix != 0 && (base == prefix || base == 0)) {
        base = prefix;
        text.remove_prefix(2);
    }
    if (base == 0) base = 10;
    for (std::size_t i = 0; i < text.size(); ++i) {
        if (text[i] != '_') digits += text[i];
        else if (i == 0 || i + 1 == text.size() || text[i - 1] == '_') return std::nullopt;
    }
    if (text.empty() || text[0] == '-') return std::nullopt;
    int64_t value = 0;
    const auto result = std::from_chars(digits.data(), digits.data() + digits.size(), value, base);
    if (result.ptr != digits.data() + digits.size()) return std::nullopt;
    if (result.ec == std::errc::result_out_of_range) fault("int(): the number is beyond 64 bits");
    return result.ec == std::errc() ? std::optional(value) : std::nullopt;
}

std::optional<double> parse_real(std::string_view text) {
    const Kept kept = strip_range(text, nullptr, true, true);
    text = text.substr(static_cast<std::size_t>(kept.begin), static_cast<std::size_t>(kept.end - kept.begin));
    if (text.starts_with('+')) text.remove_prefix(1);
    std::string digits;
    for (const char c : text) {
        if (c != '_') digits += c;
    }
    if (digits.starts_with('+')) return std::nullopt;
    double value = 0;
    const auto result = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (digits.empty() || result.ptr != digits.data() + digits.size() || result.ec == std::errc::invalid_argument)
        return std::nullopt;
    if (result.ec == std::errc::result_out_of_range) value = digits.find("e-") != std::string::npos ? 0 : HUGE_VAL;
    return value;
}

std::optional<int64_t> truncate(double value) {
    if (!std::isfinite(value)) return std::nullopt;
    if (std::fabs(value) >= 9.2e18) fault("int(): the number is beyond 64 bits");
    return static_cast<int64_t>(value);
}

Value f_int(Interpreter& in, const Value& input, Arguments& arguments) {
    Bound args(arguments, "int", {"default", "base"});
    if (input.is_undefined()) throw Fault(input.undefined_message());
    const int64_t base = args.number(1, 10);
    if (base < 0 || base == 1 || base > 36) fault("int(): base must be 0 or 2 to 36");
    std::optional<int64_t> value;
    if (input.is_whole()) {
        if (input.is_big()) return input;
        value = input.as_int();
    } else if (input.is(Kind::floating)) {
        value = truncate(input.as_double());
    } else if (input.is_string()) {
        in.heap().step_chars(input.text().size());
        value = parse_whole(input.bytes(), static_cast<int>(base));
        if (!value) {
            if (const auto real = parse_real(input.bytes())) value = truncate(*real);
        }
    }
    return value ? Value::integer(*value) : args.get(0, Value::integer(0));
}

Value f_float(Interpreter& in, const Value& input, Arguments& arguments) {
    Bound args(arguments, "float", {"default"});
    if (input.is_undefined()) throw Fault(input.undefined_message());
    if (input.is_number()) return Value::floating(input.as_double());
    if (input.is_string()) {
        in.heap().step_chars(input.text().size());
        if (const auto value = parse_real(input.bytes())) return Value::floating(*value);
    }
    return args.get(0, Value::floating(0));
}

Value f_abs(Interpreter&, const Value& input, Arguments& arguments) {
    Bound args(arguments, "abs", {});
    if (input.is_undefined()) throw Fault(input.undefined_message());
    if (!input.is_number()) fault("bad operand type for abs(): '{}'", type_name(input));
    if (input.is(Kind::floating)) return Value::floating(std::fabs(input.as_double()));
    if (input.is_big()) return input;
    if (input.as_int() == INT64_MIN) fault("the result of a calculation is beyond 64 bits");
    return Value::integer(std::abs(input.as_int()));
}

/// To `precision` places, halves to even, on the exact decimal value.
double round_places(double value, int64_t precision) {
    if (!std::isfinite(value) || precision > 300) return value;
    if (precision >= 0) return std::strtod(fmt::format("{:.{}f}", value, static_cast<int>(precision)).c_str(), nullptr);
    if (precision < -300) return std::copysign(0.0, value);
    const double scale = std::pow(10.0, static_cast<double>(-precision));
    return std::nearbyint(value / scale) * scale;
}

Value f_round(Interpreter&, const Value& input, Arguments& arguments) {
    Bound args(arguments, "round", {"precision", "method"});
    if (input.is_undefined()) throw Fault(input.undefined_message());
    if (!input.is_number()) fault("type {} doesn't define __round__ method", type_name(input));
    const int64_t precision = args.number(0, 0);
    const std::string method = args.has(1) ? args.text(1).bytes() : "common";
    if (method != "common" && method != "ceil" && method != "floor")
        fault("round(): method must be common, ceil or floor");
    if (method == "common") {
        if (input.is(Kind::floating)) return Value::floating(round_places(input.as_double(), precision));
        if (precision >= 0) return Value::integer(input.as_int());
        return Value::integer(static_cast<int64_t>(round_places(input.as_double(), precision)));
    }
    if (precision < -300 || precision > 300) fault("round(): the precision is too large");
    const double scale = std::pow(10.0, static_cast<double>(precision));
    const double scaled = input.as_double() * scale;
    return Value::floating((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale);
}

Value f_default(Interpreter& in, const Value& input, Arguments& arguments) {
    Bound args(arguments, "default", {"default_value", "boolean"});
    if (!input.is_undefined() && !(args.flag(1, false) && !truth(input))) return input;
    return args.has(0) ? args[0] : in.heap().text("", true);
}

Value f_attr(Interpreter& in, const Value& input, Arguments& arguments) {
    Bound args(arguments, "attr", {"name"});
    if (input.is(Kind::dict) && find_container_method(input, args.text(0).bytes()) == nullptr) {
        return in.heap().undefined(fmt::format("'dict object' has no attribute '{}'", args.text(0).bytes()));
    }
    return in.attribute(input, args.text(0).bytes());
}

struct FilterEntry {
    std::string_view name;
    Filter filter;
};
constexpr FilterEntry kTextFilters[] = {
    {"abs", f_abs},
    {"attr", f_attr},
    {"capitalize", f_capitalize},
    {"center", f_center},
    {"d", f_default},
    {"default", f_default},
    {"e", f_escape},
    {"escape", f_escape},
    {"float", f_float},
    {"format", f_format},
    {"forceescape", f_forceescape},
    {"indent", f_indent},
    {"int", f_int},
    {"lower", f_lower},
    {"replace", f_replace},
    {"round", f_round},
    {"safe", f_safe},
    {"string", f_string},
    {"title", f_title},
    {"tojson", f_tojson},
    {"trim", f_trim},
    {"upper", f_upper},
    {"wordcount", f_wordcount},
};

}  // namespace

Filter find_filter(std::string_view name) {
    for (const FilterEntry& entry : kTextFilters) {
        if (entry.name == name) return entry.filter;
    }
    return find_sequence_filter(name);
}

}  // namespace riptide::jinja
