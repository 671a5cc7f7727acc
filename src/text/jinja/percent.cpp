// "%5.2f" % x
#include <cmath>

#include "text/jinja/spec.h"
#include "text/utf8.h"

namespace riptide::jinja {
namespace {

/// One conversion of a % format, with the arguments that it takes.
class Percent {
  public:
    Percent(Heap& heap, const Text& format, const Value& value)
        : heap_(heap), format_(format), value_(value), out_(heap) {
        tuple_ = value.is(Kind::sequence) &&
                 (value.sequence().shape == Shape::tuple || value.sequence().shape == Shape::group);
        if (tuple_) arguments_ = value.sequence().items;
        else arguments_ = {value};
    }

    Text run() {
        const std::string& bytes = format_.bytes();
        std::size_t at = 0;
        while (true) {
            const std::size_t next = bytes.find('%', at);
            out_.append(format_, static_cast<int64_t>(at),
                        next == std::string::npos ? format_.size() : static_cast<int64_t>(next));
            if (next == std::string::npos) break;
            heap_.step();
            at = next + 1;
            conversion(at);
        }
        if (used_ < arguments_.size() && !has_items()) fault("not all arguments converted during string formatting");
        return out_.take();
    }

  private:
    /// Python takes these for mappings, whose items need not all be used.
    bool has_items() const {
        const bool sequence = value_.is(Kind::sequence) && value_.sequence().indexable();
        return value_.is(Kind::dict) || value_.is_undefined() || (sequence && !tuple_);
    }
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
    bool tuple_ = false;
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
                (value.as_int() >= 0xD800 && value.as_int() < 0xE000))
                fault("%c requires int or char");
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
        default:
            fault("unsupported format character '{}'", spec.type);
    }
}

}  // namespace

Value format_percent(Heap& heap, const Value& format, const Value& value) {
    return heap.text(Percent(heap, format.text(), value).run(), format.string().markup);
}

}  // namespace riptide::jinja
