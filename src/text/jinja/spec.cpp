#include "text/jinja/spec.h"

#include <cmath>

namespace riptide::jinja {

namespace {

constexpr int64_t kMaxPrecision = 300;

void append_padding(TextBuilder& out, const std::string& fill, int64_t count) {
    if (count <= 0) return;
    out.heap().check_text(count);
    std::string text;
    for (int64_t i = 0; i < count; ++i) text += fill;
    out.append(text, false);
}

std::string group_digits(std::string digits, char separator, std::size_t group) {
    const std::size_t whole = std::min(digits.find_first_not_of("0123456789abcdefABCDEF"), digits.size());
    for (std::size_t at = whole; at > group; at -= group) digits.insert(at - group, 1, separator);
    return digits;
}

std::string sign_prefix(bool negative, char sign) {
    return negative ? "-" : sign == '+' ? "+" : sign == ' ' ? " " : "";
}

std::string whole_digits(uint64_t value, char type) {
    if (type == 'x') return fmt::format("{:x}", value);
    if (type == 'X') return fmt::format("{:X}", value);
    if (type == 'o') return fmt::format("{:o}", value);
    if (type == 'b') return fmt::format("{:b}", value);
    return fmt::format("{}", value);
}

}  // namespace

int64_t read_number(std::string_view text, std::size_t& at) {
    int64_t number = 0;
    for (; at < text.size() && text[at] >= '0' && text[at] <= '9'; ++at) {
        number = number * 10 + (text[at] - '0');
        if (number > INT32_MAX) fault("a width or precision in a format is too large");
    }
    return number;
}

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
            case '%':
                digits = fmt::format("{:.{}f}", magnitude, precision);
                break;
            case 'e':
                digits = fmt::format("{:.{}e}", magnitude, precision);
                break;
            case 'E':
                digits = fmt::format("{:.{}E}", magnitude, precision);
                break;
            case 'g':
                digits = fmt::format("{:.{}g}", magnitude, std::max(precision, 1));
                break;
            case 'G':
                digits = fmt::format("{:.{}G}", magnitude, std::max(precision, 1));
                break;
            default:
                fault("unknown format code '{}' for a number", type);
        }
    }
    if (spec.grouping != 0) digits = group_digits(digits, spec.grouping, 3);
    if (type == '%') digits += '%';
    append_field(out, spec, sign_prefix(std::signbit(value) && !std::isnan(value), spec.sign), Text(digits, false),
                 '>');
}

Text cut(const Text& text, int64_t chars) {
    if (chars < 0) return text;
    return text.part(0, byte_of_char(text.bytes(), chars));
}

}  // namespace riptide::jinja
