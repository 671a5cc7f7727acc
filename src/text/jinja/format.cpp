// How values look: str and repr.
#include <cmath>

#include "text/jinja/interpreter.h"
#include "text/jinja/search.h"
#include "text/utf8.h"

namespace riptide::jinja {
namespace {

/// Python's repr of a string: 'quoted', with what cannot be shown escaped.
void append_quoted(TextBuilder& out, const Text& text) {
    const std::string& bytes = text.bytes();
    out.heap().step_chars(text.size());
    const bool doubled = bytes.find('\'') != std::string::npos && bytes.find('"') == std::string::npos;
    const char quote = doubled ? '"' : '\'';
    out.append({&quote, 1}, false);
    int64_t plain = 0;  // the piece from here to `at` needs no escapes
    for (int64_t at = 0; at < text.size();) {
        const Char c = char_at(bytes, at);
        std::string escaped;
        if (c.code == static_cast<char32_t>(quote) || c.code == '\\') escaped = {'\\', static_cast<char>(c.code)};
        else if (c.code == '\n') escaped = "\\n";
        else if (c.code == '\r') escaped = "\\r";
        else if (c.code == '\t') escaped = "\\t";
        else if (!is_printable(c.code)) {
            const auto code = static_cast<uint32_t>(c.code);
            escaped = code < 0x100     ? fmt::format("\\x{:02x}", code)
                      : code < 0x10000 ? fmt::format("\\u{:04x}", code)
                                       : fmt::format("\\U{:08x}", code);
        }
        if (!escaped.empty()) {
            out.append(text, plain, at);
            out.append(escaped, false);
            plain = at + c.bytes;
        }
        at += c.bytes;
    }
    out.append(text, plain, text.size());
    out.append({&quote, 1}, false);
}

void append_items(TextBuilder& out, const std::vector<Value>& items) {
    for (std::size_t i = 0; i < items.size(); ++i) {
        if (i > 0) out.append(", ", false);
        append_repr(out, items[i]);
    }
}

void append_sequence(TextBuilder& out, const SequenceObject& sequence) {
    switch (sequence.shape) {
        case Shape::list:
            out.append("[", false);
            append_items(out, sequence.items);
            out.append("]", false);
            return;
        case Shape::tuple:
        case Shape::group:
            out.append("(", false);
            append_items(out, sequence.items);
            out.append(sequence.items.size() == 1 ? ",)" : ")", false);
            return;
        case Shape::keys:
        case Shape::values:
        case Shape::items:
            out.append(sequence.shape == Shape::keys     ? "dict_keys(["
                       : sequence.shape == Shape::values ? "dict_values(["
                                                         : "dict_items([",
                       false);
            append_items(out, sequence.items);
            out.append("])", false);
            return;
        case Shape::range: {
            const std::vector<Value>& items = sequence.items;
            const int64_t start = items.empty() ? 0 : items.front().as_int();
            const int64_t step = items.size() < 2 ? 1 : items[1].as_int() - start;
            const int64_t stop = items.empty() ? 0 : items.back().as_int() + (step > 0 ? 1 : -1);
            out.append(step == 1 ? fmt::format("range({}, {})", start, stop)
                                 : fmt::format("range({}, {}, {})", start, stop, step),
                       false);
            return;
        }
        case Shape::iterator:
            fault("a generator cannot be printed; use the filter 'list' first");
    }
}

void append_dict(TextBuilder& out, const DictObject& dict) {
    out.append("{", false);
    bool first = true;
    for (const auto& [key, value] : dict.items) {
        if (!first) out.append(", ", false);
        first = false;
        append_repr(out, key);
        out.append(": ", false);
        append_repr(out, value);
    }
    out.append("}", false);
}

}  // namespace

std::string repr_of(double value) {
    if (std::isnan(value)) return "nan";
    if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
    std::string out = fmt::format("{}", value);
    if (out.find_first_of(".e") == std::string::npos) out += ".0";
    return out;
}

void append_repr(TextBuilder& out, const Value& value) {
    out.heap().step();
    switch (value.kind()) {
        case Kind::undefined:
            out.append("Undefined", false);
            return;
        case Kind::none:
            out.append("None", false);
            return;
        case Kind::boolean:
            out.append(value.as_bool() ? "True" : "False", false);
            return;
        case Kind::integer:
            out.append(value.is_big() ? std::to_string(value.as_big()) : std::to_string(value.as_int()), false);
            return;
        case Kind::floating:
            out.append(repr_of(value.as_double()), false);
            return;
        case Kind::string:
            if (value.string().markup) out.append("Markup(", false);
            append_quoted(out, value.text());
            if (value.string().markup) out.append(")", false);
            return;
        case Kind::sequence:
            append_sequence(out, value.sequence());
            return;
        case Kind::dict:
            append_dict(out, value.dict());
            return;
        case Kind::loop:
            out.append(fmt::format("<LoopContext {}/{}>", value.loop().index + 1, value.loop().count), false);
            return;
        case Kind::callable:
        case Kind::space:
            fault("a {} cannot be printed", type_name(value));
    }
}

Text to_text(Heap& heap, const Value& value) {
    if (value.is_string()) return value.text();
    if (value.is_undefined()) return {};
    TextBuilder out(heap);
    append_repr(out, value);
    return out.take();
}

Value to_string(Heap& heap, const Value& value) { return value.is_string() ? value : heap.text(to_text(heap, value)); }

Text map_case(Heap& heap, const Text& text, const std::function<Case(char32_t)>& choose) {
    TextBuilder out(heap);
    std::string piece;
    for (int64_t at = 0; at < text.size();) {  // run by run of equal provenance
        const int64_t end = text.run_end(at);
        const bool trusted = text.trusted_at(at);
        piece.clear();
        while (at < end) {
            const Char c = char_at(text.bytes(), at);
            heap.step_chars(4 * c.bytes);
            const Case to = choose(c.code);
            if (c.code == 0xFFFD)
                piece.append(text.bytes(), static_cast<std::size_t>(at), static_cast<std::size_t>(c.bytes));
            else append_case(piece, c.code, to);
            at += c.bytes;
        }
        out.append(piece, trusted);
    }
    return out.take();
}

Text map_case(Heap& heap, const Text& text, Case to) {
    return map_case(heap, text, [to](char32_t) { return to; });
}

Text escape_html(Heap& heap, const Text& text) {
    TextBuilder out(heap);
    heap.step_chars(text.size());
    static constexpr std::string_view kChars = "&<>'\"";
    static constexpr std::string_view kNames[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
    std::size_t plain = 0;
    for (std::size_t at = 0; (at = text.bytes().find_first_of(kChars, at)) != std::string::npos; ++at) {
        out.append(text, static_cast<int64_t>(plain), static_cast<int64_t>(at));
        out.append(kNames[kChars.find(text.bytes()[at])], text.trusted_at(static_cast<int64_t>(at)));
        plain = at + 1;
    }
    out.append(text, static_cast<int64_t>(plain), text.size());
    return out.take();
}

Text replace_all(Heap& heap, const Text& text, const Text& from, const Text& to, int64_t count) {
    TextBuilder out(heap);
    const std::string_view bytes = text.bytes();
    int64_t plain = 0;
    if (from.empty()) {  // between all characters, and at both ends
        for (int64_t at = 0; count != 0; --count) {
            heap.step();
            out.append(to);
            if (at >= text.size()) break;
            const int64_t next = at + char_at(bytes, at).bytes;
            out.append(text, at, next);
            plain = at = next;
        }
    }
    for (TextFinder finder(heap, from.bytes()); count != 0 && !from.empty(); --count) {
        const std::size_t found = finder.find(bytes.substr(static_cast<std::size_t>(plain)));
        if (found == std::string_view::npos) break;
        heap.step();
        const int64_t at = plain + static_cast<int64_t>(found);
        out.append(text, plain, at);
        out.append(to);
        plain = at + from.size();
    }
    out.append(text, plain, text.size());
    return out.take();
}

std::vector<TextSpan> split_lines(Heap& heap, const Text& text, bool keep_ends) {
    std::vector<TextSpan> out;
    heap.step_chars(text.size());
    int64_t begin = 0;
    for (int64_t at = 0; at < text.size();) {
        const Char c = char_at(text.bytes(), at);
        int64_t next = at + c.bytes;
        if (is_line_end(c.code)) {
            if (c.code == '\r' && next < text.size() && text.bytes()[static_cast<std::size_t>(next)] == '\n') ++next;
            heap.step();
            out.push_back({begin, keep_ends ? next : at});
            begin = next;
        }
        at = next;
    }
    if (begin < text.size()) out.push_back({begin, text.size()});
    return out;
}

}  // namespace riptide::jinja
