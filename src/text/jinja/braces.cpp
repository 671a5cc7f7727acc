// "{:5.2f}".format(x)
#include "text/jinja/spec.h"

namespace riptide::jinja {
namespace {

Spec read_spec(std::string_view text) {
    Spec spec;
    std::size_t at = 0;
    if (!text.empty()) {
        const auto first = static_cast<std::size_t>(char_at(text, 0).bytes);
        const auto is_align = [&](std::size_t i) {
            return i < text.size() && std::string_view("<>^=").find(text[i]) != std::string_view::npos;
        };
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
    if (!value.is_string() && !value.is(Kind::boolean))
        fault("unsupported format string passed to {}.__format__", type_name(value));
    if ((spec.type != 0 && spec.type != 's') || spec.align == '=')
        fault("invalid format specifier '{}' for a string", spec_text.substr(0, 60));
    if (spec.zero) {  // as Python: '0' fills on the right of text
        spec.zero = false;
        spec.fill.assign(1, '0');
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
            const std::size_t stop =
                std::min(bracket ? name.find(']', at) : name.find_first_of(".[", at + 1), name.size());
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
            if (place >= arguments_.positional.size())
                fault("replacement index {} out of range for positional args", place);
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

Value format_braces(Interpreter& interpreter, const Value& format, Arguments& arguments) {
    return interpreter.heap().text(Braces(interpreter, format.text(), arguments).run(), format.string().markup);
}

}  // namespace riptide::jinja
