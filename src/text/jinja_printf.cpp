// Python's two ways to format: "%5.2f" % x and "{:>5}".format(x).
#include <cmath>

#include "text/jinja_interpreter.h"
#include "text/utf8.h"

namespace riptide::jinja {
namespace {

constexpr int64_t kMaxPrecision = 300;

/// What a conversion asks for, in both languages.
struct Spec {
    std::string fill = " ";
    char align = 0;  // < > ^ =
    char sign = '-';
    bool alternate = false;
    bool zero = false;
    char grouping = 0;  // , or _
    int64_t width = 0;
    int64_t precision = -1;
    char type = 0;
};

int64_t read_number(std::string_view text, std::size_t& at) {
    int64_t number = 0;
    for (; at < text.size() && text[at] >= '0' && text[at] <= '9'; ++at) {
        number = number * 10 + (text[at] - '0');
        if (number > INT32_MAX) fault("a width or precision in a format is too large");
    }
    return number;
}

void append_padding(TextBuilder& out, const std::string& fill, int64_t count) {
    if (count <= 0) return;
    out.heap().check_text(count);
    std::string text;
    for (int64_t i = 0; i < count; ++i) text += fill;
    out.append(text, false);
}

/// `body` in a field of the asked width. `prefix` (sign, 0x) stays in front of zeros.
void append_field(TextBuilder& out, const Spec& spec, std::string_view prefix, const Text& body, char default_align) {
    const int64_t missing = spec.width - count_chars(prefix) - count_chars(body.bytes());
    const char align = spec.align != 0 ? spec.align : spec.zero ? '=' : default_align;
    const int64_t left = align == '>' ? missing : align == '^' ? missing / 2 : 0;
    append_padding(out, spec.fill, left);
    out.append(prefix, false);
    if (align == '=') append_padding(out, spec.align == 0 && spec.zero ? "0" : spec.fill, missing);
    out.append(body);
    if (align == '<' || align == '^') append_padding(out, spec.fill, missing - std::max<int64_t>(left, 0));
}

std::string group_digits(std::string digits, char separator, std::size_t group) {
    const std::size_t whole = std::min(digits.find_first_not_of("0123456789abcdefABCDEF"), digits.size());
    for (std::size_t at = whole; at > group; at -= group) digits.insert(at - group, 1, separator);
    return digits;
}

std::string sign_prefix(bool negative, char sign) { return negative ? "-" : sign == '+' ? "+" : sign == ' ' ? " " : ""; }

std::string whole_digits(uint64_t value, char type) {
    if (type == 'x') return fmt::format("{:x}", value);
    if (type == 'X') return fmt::format("{:X}", value);
    if (type == 'o') return fmt::format("{:o}", value);
    if (type == 'b') return fmt::format("{:b}", value);
    return fmt::format("{}", value);
}

void append_whole(TextBuilder& out, const Spec& spec, int64_t value) {
    const uint64_t magnitude = value < 0 ? 0 - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
    std::string prefix = sign_prefix(value < 0, spec.sign);
    if (spec.alternate && (spec.type == 'x' || spec.type == 'X' || spec.type == 'o' || spec.type == 'b')) {
        prefix += '0';
        prefix += spec.type;
    }
    std::string digits = whole_digits(magnitude, spec.type);
    if (spec.precision > static_cast<int64_t>(digits.size())) {
        digits.insert(0, static_cast<std::size_t>(std::min(spec.precision, kMaxPrecision)) - digits.size(), '0');
    }
    if (spec.grouping != 0) digits = group_digits(digits, spec.grouping, spec.type == 0 || spec.type == 'd' ? 3 : 4);
    append_field(out, spec, prefix, Text(digits, false), '>');
}

void append_real(TextBuilder& out, const Spec& spec, double value) {
    const char type = spec.type == 0 ? 'g' : spec.type;
    if (spec.precision > kMaxPrecision) fault("a precision in a format is beyond {}", kMaxPrecision);
    const int precision = spec.precision < 0 ? 6 : static_cast<int>(spec.precision);
    const double magnitude = std::fabs(type == '%' ? value * 100 : value);
    std::string digits;
    if (std::isinf(magnitude) || std::isnan(magnitude)) {
        digits = std::isnan(magnitude) ? "nan" : "inf";
    } else if (spec.type == 0 && spec.precision < 0) {
        digits = repr_of(magnitude);
    } else {
        switch (type) {
            case 'f':
            case 'F':
            case '%': digits = fmt::format("{:.{}f}", magnitude, precision); break;
            case 'e': digits = fmt::format("{:.{}e}", magnitude, precision); break;
            case 'E': digits = fmt::format("{:.{}E}", magnitude, precision); break;
            case 'g': digits = fmt::format("{:.{}g}", magnitude, std::max(precision, 1)); break;
            case 'G': digits = fmt::format("{:.{}G}", magnitude, std::max(precision, 1)); break;
            default: fault("unknown format code '{}' for a number", type);
        }
    }
    if (spec.grouping != 0) digits = group_digits(digits, spec.grouping, 3);
    if (type == '%') digits += '%';
    append_field(out, spec, sign_prefix(std::signbit(value) && !std::isnan(value), spec.sign), Text(digits, false), '>');
}

Text cut(const Text& text, int64_t chars) {
    if (chars < 0) return text;
    return text.part(0, byte_of_char(text.bytes(), chars));
}

// ---- %

/// One conversion of a % format, with the arguments that it takes.
class Percent {
  public:
    Percent(Heap& heap, const Text& format, const Value& value) : heap_(heap), format_(format), value_(value), out_(heap) {
        const bool tuple = value.is(Kind::sequence) && (value.sequence().shape == Shape::tuple || value.sequence().shape == Shape::group);
        if (tuple) arguments_ = value.sequence().items;
        else arguments_ = {value};
    }

    Text run() {
        const std::string& bytes = format_.bytes();
        std::size_t at = 0;
        while (true) {
            const std::size_t next = bytes.find('%', at);
            out_.append(format_, static_cast<int64_t>(at), next == std::string::npos ? format_.size() : static_cast<int64_t>(next));
            if (next == std::string::npos) break;
            heap_.step();
            at = next + 1;
            conversion(at);
        }
        if (used_ < arguments_.size() && !value_.is(Kind::dict) && !named_) fault("not all arguments converted during string formatting");
        return out_.take();
    }

  private:
    Value next() {
        if (used_ >= arguments_.size()) fault("not enough arguments for format string");
        return arguments_[used_++];
    }
    Value named(std::size_t& at) {
        const std::string& bytes = format_.bytes();
        const std::size_t close = bytes.find(')', at);
        if (close == std::string::npos) fault("incomplete format key");
        const std::string key = bytes.substr(at + 1, close - at - 1);
        at = close + 1;
        named_ = true;
        if (!value_.is(Kind::dict)) fault("format requires a mapping");
        const Value* found = value_.dict().find(key);
        if (found == nullptr) fault("the format's key '{}' is missing", key);
        return *found;
    }
    int64_t star_or_number(std::size_t& at) {
        if (at >= format_.bytes().size() || format_.bytes()[at] != '*') return read_number(format_.bytes(), at);
        ++at;
        const Value given = next();
        if (!given.is_whole()) fault("* wants int");
        return given.as_int();
    }
    void conversion(std::size_t& at);
    void convert(const Spec& spec, const Value& value);

    Heap& heap_;
    const Text& format_;
    const Value& value_;
    TextBuilder out_;
    std::vector<Value> arguments_;
    std::size_t used_ = 0;
    bool named_ = false;
};

void Percent::conversion(std::size_t& at) {
    const std::string& bytes = format_.bytes();
    std::optional<Value> value;
    if (at < bytes.size() && bytes[at] == '(') value = named(at);
    Spec spec;
    for (; at < bytes.size(); ++at) {
        const char flag = bytes[at];
        if (flag == '-') spec.align = '<';
        else if (flag == '0') spec.zero = true;
        else if (flag == '+') spec.sign = '+';
        else if (flag == ' ') spec.sign = spec.sign == '+' ? '+' : ' ';
        else if (flag == '#') spec.alternate = true;
        else break;
    }
    spec.width = star_or_number(at);
    if (spec.width < 0) spec.align = '<', spec.width = -spec.width;
    if (at < bytes.size() && bytes[at] == '.') spec.precision = std::max<int64_t>(star_or_number(++at), 0);
    while (at < bytes.size() && (bytes[at] == 'l' || bytes[at] == 'h' || bytes[at] == 'L')) ++at;
    if (at >= bytes.size()) fault("incomplete format");
    spec.type = bytes[at++];
    if (spec.align == '<') spec.zero = false;
    if (spec.type == '%') return out_.append("%", format_.trusted_at(static_cast<int64_t>(at) - 1));
    if (!value) value = next();
    convert(spec, *value);
}

void Percent::convert(const Spec& asked, const Value& value) {
    Spec spec = asked;
    switch (spec.type) {
        case 's':
        case 'r':
        case 'a': {
            spec.zero = false;
            TextBuilder body(heap_);
            if (spec.type == 's') body.append(to_text(heap_, value));
            else append_repr(body, value);
            append_field(out_, spec, "", cut(body.text(), spec.precision), '>');
            return;
        }
        case 'c': {
            spec.zero = false;
            if (value.is_string() && value.string().chars == 1) return append_field(out_, spec, "", value.text(), '>');
            if (!value.is_whole() || value.as_int() < 0 || value.as_int() > 0x10FFFF ||
                (value.as_int() >= 0xD800 && value.as_int() < 0xE000)) fault("%c requires int or char");
            std::string body;
            append_utf8(body, static_cast<char32_t>(value.as_int()));
            return append_field(out_, spec, "", Text(body, false), '>');
        }
        case 'd':
        case 'i':
        case 'u':
            spec.type = 'd';
            if (value.is_whole()) return append_whole(out_, spec, value.as_int());
            if (!value.is(Kind::floating)) fault("%d format: a real number is required, not {}", type_name(value));
            if (!(std::fabs(value.as_double()) < 9.2e18)) fault("cannot convert float to a 64-bit integer");
            return append_whole(out_, spec, static_cast<int64_t>(value.as_double()));
        case 'x':
        case 'X':
        case 'o':
            if (!value.is_whole()) fault("%{} format: an integer is required, not {}", spec.type, type_name(value));
            return append_whole(out_, spec, value.as_int());
        case 'e':
        case 'E':
        case 'f':
        case 'F':
        case 'g':
        case 'G':
            if (!value.is_number()) fault("must be real number, not {}", type_name(value));
            return append_real(out_, spec, value.as_double());
        default: fault("unsupported format character '{}'", spec.type);
    }
}

// ---- {}

Spec read_spec(std::string_view text) {
    Spec spec;
    std::size_t at = 0;
    if (!text.empty()) {
        const auto first = static_cast<std::size_t>(char_at(text, 0).bytes);
        const auto is_align = [&](std::size_t i) { return i < text.size() && std::string_view("<>^=").find(text[i]) != std::string_view::npos; };
        if (is_align(first)) {
            spec.fill = std::string(text.substr(0, first));
            spec.align = text[first];
            at = first + 1;
        } else if (is_align(0)) {
            spec.align = text[at++];
        }
    }
    const auto take = [&](char wanted) { return at < text.size() && text[at] == wanted ? ++at, true : false; };
    for (const char sign : {'+', '-', ' '}) {
        if (take(sign)) spec.sign = sign;
    }
    spec.alternate = take('#');
    if (take('0') && spec.align == 0) spec.zero = true;
    spec.width = read_number(text, at);
    if (take(',')) spec.grouping = ',';
    else if (take('_')) spec.grouping = '_';
    if (take('.')) {
        const std::size_t digits = at;
        spec.precision = read_number(text, at);
        if (at == digits) fault("format specifier missing precision");
    }
    if (at < text.size()) spec.type = text[at++];
    if (at < text.size()) fault("invalid format specifier '{}'", text.substr(0, 60));
    return spec;
}

void append_formatted(TextBuilder& out, const Value& value, std::string_view spec_text) {
    if (spec_text.empty()) return out.append(to_text(out.heap(), value));
    Spec spec = read_spec(spec_text);
    const bool real_type = spec.type != 0 && std::string_view("eEfFgG%").find(spec.type) != std::string_view::npos;
    if (value.is(Kind::floating) || (value.is_whole() && real_type)) return append_real(out, spec, value.as_double());
    if (value.is(Kind::integer) || (value.is(Kind::boolean) && spec.type != 0)) {
        if (spec.type != 0 && std::string_view("dxXobn").find(spec.type) == std::string_view::npos) {
            fault("unknown format code '{}' for object of type 'int'", spec.type);
        }
        return append_whole(out, spec, value.as_int());
    }
    if (!value.is_string() && !value.is(Kind::boolean)) fault("unsupported format string passed to {}.__format__", type_name(value));
    if ((spec.type != 0 && spec.type != 's') || spec.align == '=') fault("invalid format specifier '{}' for a string", spec_text.substr(0, 60));
    if (spec.zero) {  // as Python: '0' fills on the right of text
        spec.zero = false;
        spec.fill = "0";
    }
    append_field(out, spec, "", cut(to_text(out.heap(), value), spec.precision), '<');
}

/// The fields of one "{...}" string.
class Braces {
  public:
    Braces(Interpreter& interpreter, const Text& format, Arguments& arguments)
        : interpreter_(interpreter), format_(format), arguments_(arguments), out_(interpreter.heap()) {}

    Text run() {
        const std::string& bytes = format_.bytes();
        std::size_t at = 0;
        while (at < bytes.size()) {
            const std::size_t next = std::min(bytes.find_first_of("{}", at), bytes.size());
            out_.append(format_, static_cast<int64_t>(at), static_cast<int64_t>(next));
            if (next == bytes.size()) break;
            interpreter_.heap().step();
            if (next + 1 < bytes.size() && bytes[next + 1] == bytes[next]) {
                out_.append(format_, static_cast<int64_t>(next), static_cast<int64_t>(next) + 1);
                at = next + 2;
                continue;
            }
            if (bytes[next] == '}') fault("single '}}' encountered in format string");
            at = field(next + 1);
        }
        return out_.take();
    }

  private:
    /// The field that begins at `at` (behind the brace); returns the place behind its closing brace.
    std::size_t field(std::size_t at) {
        const std::string& bytes = format_.bytes();
        std::size_t end = at;
        int depth = 1;
        for (; end < bytes.size(); ++end) {
            if (bytes[end] == '{') ++depth;
            else if (bytes[end] == '}' && --depth == 0) break;
        }
        if (depth != 0) fault("expected '}}' before end of string");
        const std::string_view inside = std::string_view(bytes).substr(at, end - at);
        const std::size_t name_end = std::min(inside.find_first_of("!:"), inside.size());
        Value value = resolve(inside.substr(0, name_end));
        std::string_view rest = inside.substr(name_end);
        if (rest.starts_with('!')) {
            const char kind = rest.size() > 1 ? rest[1] : '\0';
            if (kind != 's' && kind != 'r' && kind != 'a') fault("unknown conversion in a format string");
            TextBuilder shown(interpreter_.heap());
            if (kind == 's') shown.append(to_text(interpreter_.heap(), value));
            else append_repr(shown, value);
            value = interpreter_.heap().text(shown.take());
            rest = rest.substr(2);
        }
        if (!rest.empty() && rest[0] != ':') fault("expected ':' after conversion specifier");
        std::string spec(rest.empty() ? rest : rest.substr(1));
        if (spec.find('{') != std::string::npos) spec = nested(spec);
        append_formatted(out_, value, spec);
        return end + 1;
    }

    /// Fields inside a format specification: names only.
    std::string nested(const std::string& spec) {
        std::string out;
        for (std::size_t at = 0; at < spec.size();) {
            if (spec[at] != '{') {
                out += spec[at++];
                continue;
            }
            const std::size_t close = spec.find('}', at);
            if (close == std::string::npos) fault("expected '}}' before end of string");
            out += to_text(interpreter_.heap(), resolve(std::string_view(spec).substr(at + 1, close - at - 1))).bytes();
            at = close + 1;
        }
        return out;
    }

    Value resolve(std::string_view name) {
        const std::size_t end = std::min(name.find_first_of(".["), name.size());
        Value value = first(name.substr(0, end));
        std::size_t at = end;
        while (at < name.size()) {
            const bool bracket = name[at] == '[';
            const std::size_t stop = std::min(bracket ? name.find(']', at) : name.find_first_of(".[", at + 1), name.size());
            const std::string_view part = name.substr(at + 1, stop - at - 1);
            if (part.empty() || (bracket && stop == name.size())) fault("empty attribute in format string");
            std::size_t digits = 0;
            const bool number = bracket && part.size() < 10 && (read_number(part, digits), digits == part.size());
            std::size_t zero = 0;
            if (!bracket) value = interpreter_.attribute(value, part);
            else if (number) value = interpreter_.item(value, Value::integer(read_number(part, zero)));
            else value = interpreter_.item(value, interpreter_.heap().text(part, true));
            at = stop + (bracket ? 1 : 0);
        }
        return value;
    }

    Value first(std::string_view name) {
        std::size_t at = 0;
        const int64_t given = read_number(name, at);
        if (at == name.size()) {
            const auto place = static_cast<std::size_t>(name.empty() ? automatic_++ : given);
            if (place >= arguments_.positional.size()) fault("replacement index {} out of range for positional args", place);
            return arguments_.positional[place];
        }
        for (const auto& [key, value] : arguments_.named) {
            if (key == name) return value;
        }
        fault("the format's key '{}' is missing", name.substr(0, 60));
    }

    Interpreter& interpreter_;
    const Text& format_;
    Arguments& arguments_;
    TextBuilder out_;
    int64_t automatic_ = 0;
};

}  // namespace

Value format_percent(Heap& heap, const Value& format, const Value& value) {
    return heap.text(Percent(heap, format.text(), value).run(), format.string().markup);
}

Value format_braces(Interpreter& interpreter, const Value& format, Arguments& arguments) {
    return interpreter.heap().text(Braces(interpreter, format.text(), arguments).run(), format.string().markup);
}

}  // namespace riptide::jinja
