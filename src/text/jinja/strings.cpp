// The methods of str.
#include <algorithm>

#include "text/jinja/interpreter.h"
#include "text/jinja/search.h"

namespace riptide::jinja {

Value text_like(Interpreter& in, const Value& self, Text text) {
    return in.heap().text(std::move(text), self.string().markup);
}
namespace {

// ---- strip

Value strip(Interpreter& in, const Value& self, Arguments& arguments, std::string_view name, bool left, bool right) {
    Bound args(arguments, name, {"chars"});
    const bool given = args.has(0) && !args[0].is(Kind::none);
    const std::string_view chars = given ? std::string_view(args.text(0).bytes()) : std::string_view();
    const auto count = [&](int64_t bytes) { in.heap().step_chars(bytes); };
    const Kept kept = strip_range(self.bytes(), given ? &chars : nullptr, left, right, count);
    if (kept.begin == 0 && kept.end == self.text().size()) return self;
    return text_like(in, self, self.text().part(kept.begin, kept.end));
}
Value s_strip(Interpreter& in, const Value& self, Arguments& arguments) {
    return strip(in, self, arguments, "strip", true, true);
}
Value s_lstrip(Interpreter& in, const Value& self, Arguments& arguments) {
    return strip(in, self, arguments, "lstrip", true, false);
}
Value s_rstrip(Interpreter& in, const Value& self, Arguments& arguments) {
    return strip(in, self, arguments, "rstrip", false, true);
}

Value s_removeprefix(Interpreter& in, const Value& self, Arguments& arguments) {
    Bound args(arguments, "removeprefix", {"prefix"});
    in.heap().step_bytes(args.text(0).size());
    if (!self.bytes().starts_with(args.text(0).bytes())) return self;
    return text_like(in, self, self.text().part(args.text(0).size(), self.text().size()));
}
Value s_removesuffix(Interpreter& in, const Value& self, Arguments& arguments) {
    Bound args(arguments, "removesuffix", {"suffix"});
    in.heap().step_bytes(args.text(0).size());
    if (!self.bytes().ends_with(args.text(0).bytes())) return self;
    return text_like(in, self, self.text().part(0, self.text().size() - args.text(0).size()));
}

// ---- split and join

/// At runs of white space. After `limit` cuts the rest is one piece, white space at its far end included.
Value split_space(Interpreter& in, const Value& self, int64_t limit) {
    const Text& text = self.text();
    const auto skip = [&](int64_t at, bool space) {
        while (at < text.size() && is_space(char_at(text.bytes(), at).code) == space)
            at += char_at(text.bytes(), at).bytes;
        return at;
    };
    std::vector<Value> out;
    for (int64_t at = skip(0, true); at < text.size();) {
        const int64_t end = limit-- == 0 ? text.size() : skip(at, false);
        out.push_back(text_like(in, self, text.part(at, end)));
        at = skip(end, true);
    }
    return in.heap().sequence(std::move(out));
}

/// The same, from the right.
Value rsplit_space(Interpreter& in, const Value& self, int64_t limit) {
    const Text& text = self.text();
    const auto skip = [&](int64_t end, bool space) {
        while (end > 0) {
            const int64_t at = char_before(text.bytes(), end);
            if (is_space(char_at(text.bytes(), at).code) != space) break;
            end = at;
        }
        return end;
    };
    std::vector<Value> out;
    for (int64_t end = skip(text.size(), true); end > 0;) {
        const int64_t begin = limit-- == 0 ? 0 : skip(end, false);
        out.push_back(text_like(in, self, text.part(begin, end)));
        end = skip(begin, true);
    }
    std::reverse(out.begin(), out.end());
    return in.heap().sequence(std::move(out));
}

Value split(Interpreter& in, const Value& self, Arguments& arguments, bool right) {
    Bound args(arguments, right ? "rsplit" : "split", {"sep", "maxsplit"});
    int64_t limit = args.number(1, -1);
    const Text& text = self.text();
    if (!args.has(0) || args[0].is(Kind::none)) {
        in.heap().step_chars(text.size());
        return right ? rsplit_space(in, self, limit) : split_space(in, self, limit);
    }
    const std::string& separator = args.text(0).bytes();
    const auto size = static_cast<int64_t>(separator.size());
    if (size == 0) fault("empty separator");
    std::vector<Value> out;
    TextFinder finder(in.heap(), separator, right ? TextFinder::From::back : TextFinder::From::front);
    int64_t begin = 0, end = text.size();
    while (limit-- != 0) {
        const std::size_t found =
            finder.find(std::string_view(text.bytes())
                            .substr(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin)));
        if (found == std::string_view::npos) break;
        const auto at = begin + static_cast<int64_t>(found);
        out.push_back(text_like(in, self, right ? text.part(at + size, end) : text.part(begin, at)));
        (right ? end : begin) = right ? at : at + size;
    }
    out.push_back(text_like(in, self, text.part(begin, end)));
    if (right) std::reverse(out.begin(), out.end());
    return in.heap().sequence(std::move(out));
}
Value s_split(Interpreter& in, const Value& self, Arguments& arguments) { return split(in, self, arguments, false); }
Value s_rsplit(Interpreter& in, const Value& self, Arguments& arguments) { return split(in, self, arguments, true); }

Value partition(Interpreter& in, const Value& self, Arguments& arguments, bool right) {
    Bound args(arguments, right ? "rpartition" : "partition", {"sep"});
    const std::string& separator = args.text(0).bytes();
    if (separator.empty()) fault("empty separator");
    const Text& text = self.text();
    const std::size_t found =
        TextFinder(in.heap(), separator, right ? TextFinder::From::back : TextFinder::From::front).find(text.bytes());
    const Value empty = text_like(in, self, Text());
    if (found == std::string::npos) {
        return in.heap().sequence(
            right ? std::vector<Value>{empty, empty, self} : std::vector<Value>{self, empty, empty}, Shape::tuple);
    }
    const auto at = static_cast<int64_t>(found);
    const int64_t end = at + static_cast<int64_t>(separator.size());
    return in.heap().sequence({text_like(in, self, text.part(0, at)), text_like(in, self, text.part(at, end)),
                               text_like(in, self, text.part(end, text.size()))},
                              Shape::tuple);
}
Value s_partition(Interpreter& in, const Value& self, Arguments& arguments) {
    return partition(in, self, arguments, false);
}
Value s_rpartition(Interpreter& in, const Value& self, Arguments& arguments) {
    return partition(in, self, arguments, true);
}

Value s_splitlines(Interpreter& in, const Value& self, Arguments& arguments) {
    Bound args(arguments, "splitlines", {"keepends"});
    std::vector<Value> out;
    for (const TextSpan& line : split_lines(in.heap(), self.text(), args.flag(0, false)))
        out.push_back(text_like(in, self, self.text().part(line.begin, line.end)));
    return in.heap().sequence(std::move(out));
}

Value s_join(Interpreter& in, const Value& self, Arguments& arguments) {
    Bound args(arguments, "join", {"iterable"});
    if (args[0].is_undefined()) throw Fault(args[0].undefined_message());
    TextBuilder out(in.heap());
    int64_t place = 0;
    for (const Value& item : iterate(in.heap(), args[0])) {
        if (!item.is_string()) fault("sequence item {}: expected str instance, {} found", place, type_name(item));
        if (place++ > 0) out.append(self.text());
        out.append(item.text());
    }
    return text_like(in, self, out.take());
}

// ---- search

/// The bytes of self[start:end], as find, count and startswith look at them.
struct Window {
    Window(Interpreter& in, const Value& self, const Bound& args) {
        const int64_t count = self.string().chars;
        const auto place = [&](std::size_t i, int64_t fallback) {
            const int64_t at = args.number(i, fallback);
            return at < 0 ? std::max<int64_t>(at + count, 0) : at;
        };
        first_char = place(1, 0);
        const int64_t last = std::min(place(2, count), count);
        in.heap().step_bytes(2 * self.text().size());
        valid = first_char <= last;
        if (!valid) return;
        const bool ascii = self.string().ascii();
        begin = ascii ? first_char : byte_of_char(self.bytes(), first_char);
        const int64_t end = ascii ? last : byte_of_char(self.bytes(), last);
        text = std::string_view(self.bytes())
                   .substr(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
    }
    bool valid = false;
    int64_t first_char = 0;
    int64_t begin = 0;
    std::string_view text;
};

Value find(Interpreter& in, const Value& self, Arguments& arguments, std::string_view name, bool right, bool must) {
    Bound args(arguments, name, {"sub", "start", "end"});
    const std::string& wanted = args.text(0).bytes();
    const Window window(in, self, args);
    std::size_t at = std::string_view::npos;
    if (window.valid)
        at = TextFinder(in.heap(), wanted, right ? TextFinder::From::back : TextFinder::From::front).find(window.text);
    if (at != std::string_view::npos) return Value::integer(window.first_char + count_chars(window.text.substr(0, at)));
    if (must) fault("substring not found");
    return Value::integer(-1);
}
Value s_find(Interpreter& in, const Value& self, Arguments& arguments) {
    return find(in, self, arguments, "find", false, false);
}
Value s_rfind(Interpreter& in, const Value& self, Arguments& arguments) {
    return find(in, self, arguments, "rfind", true, false);
}
Value s_index(Interpreter& in, const Value& self, Arguments& arguments) {
    return find(in, self, arguments, "index", false, true);
}
Value s_rindex(Interpreter& in, const Value& self, Arguments& arguments) {
    return find(in, self, arguments, "rindex", true, true);
}

Value s_count(Interpreter& in, const Value& self, Arguments& arguments) {
    Bound args(arguments, "count", {"sub", "start", "end"});
    const std::string& wanted = args.text(0).bytes();
    const Window window(in, self, args);
    if (!window.valid) return Value::integer(0);
    if (wanted.empty()) return Value::integer(count_chars(window.text) + 1);
    int64_t count = 0;
    TextFinder finder(in.heap(), wanted);
    std::string_view rest = window.text;
    for (std::size_t at = 0; (at = finder.find(rest)) != std::string_view::npos; ++count)
        rest.remove_prefix(at + wanted.size());
    return Value::integer(count);
}

Value affix(Interpreter& in, const Value& self, Arguments& arguments, bool end) {
    Bound args(arguments, end ? "endswith" : "startswith", {"prefix", "start", "end"});
    std::vector<Value> wanted = {args[0]};
    if (args[0].is(Kind::sequence) && args[0].sequence().shape == Shape::tuple) wanted = args[0].sequence().items;
    const Window window(in, self, args);
    for (const Value& text : wanted) {
        if (!text.is_string())
            fault("{} must be a str or a tuple of str, not {}", end ? "endswith()" : "startswith()", type_name(text));
        in.heap().step_bytes(std::min<int64_t>(text.text().size(), self.text().size()));
        if (window.valid && (end ? window.text.ends_with(text.bytes()) : window.text.starts_with(text.bytes())))
            return Value::boolean(true);
    }
    return Value::boolean(false);
}
Value s_startswith(Interpreter& in, const Value& self, Arguments& arguments) {
    return affix(in, self, arguments, false);
}
Value s_endswith(Interpreter& in, const Value& self, Arguments& arguments) { return affix(in, self, arguments, true); }

Value s_replace(Interpreter& in, const Value& self, Arguments& arguments) {
    Bound args(arguments, "replace", {"old", "new", "count"});
    return text_like(in, self, replace_all(in.heap(), self.text(), args.text(0), args.text(1), args.number(2, -1)));
}

Value s_format(Interpreter& in, const Value& self, Arguments& arguments) { return format_braces(in, self, arguments); }

Value s_format_map(Interpreter& in, const Value& self, Arguments& arguments) {
    Bound args(arguments, "format_map", {"mapping"});
    if (!args[0].is(Kind::dict)) fault("format_map() needs a mapping, not {}", type_name(args[0]));
    Arguments named;
    for (const auto& [key, value] : args[0].dict().items) {
        if (key.is_string()) named.named.emplace_back(key.bytes(), value);
    }
    return format_braces(in, self, named);
}

struct StringMethod {
    std::string_view name;
    Method method;
};
constexpr StringMethod kStringMethods[] = {
    {"count", s_count},
    {"endswith", s_endswith},
    {"find", s_find},
    {"format", s_format},
    {"format_map", s_format_map},
    {"index", s_index},
    {"join", s_join},
    {"lstrip", s_lstrip},
    {"partition", s_partition},
    {"removeprefix", s_removeprefix},
    {"removesuffix", s_removesuffix},
    {"replace", s_replace},
    {"rfind", s_rfind},
    {"rindex", s_rindex},
    {"rpartition", s_rpartition},
    {"rsplit", s_rsplit},
    {"rstrip", s_rstrip},
    {"split", s_split},
    {"splitlines", s_splitlines},
    {"startswith", s_startswith},
    {"strip", s_strip},
};

}  // namespace

Method find_string_method(std::string_view name) {
    for (const StringMethod& entry : kStringMethods) {
        if (entry.name == name) return entry.method;
    }
    return find_letter_method(name);
}

}  // namespace riptide::jinja
