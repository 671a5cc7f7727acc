// The methods of str that look at letters: case, classes, padding.
#include <algorithm>

#include "text/jinja/interpreter.h"

namespace riptide::jinja {
namespace {

// ---- case

Value s_upper(Interpreter& in, const Value& self, Arguments& arguments) {
    Bound args(arguments, "upper", {});
    return text_like(in, self, map_case(in.heap(), self.text(), Case::upper));
}
Value s_lower(Interpreter& in, const Value& self, Arguments& arguments) {
    Bound args(arguments, "lower", {});
    return text_like(in, self, map_case(in.heap(), self.text(), Case::lower));
}

/// Each character in a case that depends on it and on the one before.
template <class Choose>
Value by_character(Interpreter& in, const Value& self, Choose choose) {
    char32_t before = 0;
    return text_like(in, self, map_case(in.heap(), self.text(), [&](char32_t code) {
                         return choose(std::exchange(before, code), code);
                     }));
}

bool is_cased(char32_t code) { return is_upper(code) || is_lower(code); }

Value s_title(Interpreter& in, const Value& self, Arguments& arguments) {
    Bound args(arguments, "title", {});
    return by_character(in, self,
                        [](char32_t before, char32_t) { return is_cased(before) ? Case::lower : Case::title; });
}
Value s_capitalize(Interpreter& in, const Value& self, Arguments& arguments) {
    Bound args(arguments, "capitalize", {});
    bool first = true;
    return by_character(in, self,
                        [&](char32_t, char32_t) { return std::exchange(first, false) ? Case::title : Case::lower; });
}
Value s_swapcase(Interpreter& in, const Value& self, Arguments& arguments) {
    Bound args(arguments, "swapcase", {});
    return by_character(in, self, [](char32_t, char32_t code) { return is_upper(code) ? Case::lower : Case::upper; });
}

// ---- classes

template <class Holds>
Value all_are(Interpreter& in, const Value& self, Arguments& arguments, std::string_view name, bool if_empty,
              Holds holds) {
    Bound args(arguments, name, {});
    const std::string& bytes = self.bytes();
    in.heap().step_chars(self.text().size());
    if (bytes.empty()) return Value::boolean(if_empty);
    for (int64_t at = 0; at < self.text().size();) {
        const Char c = char_at(bytes, at);
        if (!holds(c.code)) return Value::boolean(false);
        at += c.bytes;
    }
    return Value::boolean(true);
}
Value s_isspace(Interpreter& in, const Value& self, Arguments& arguments) {
    return all_are(in, self, arguments, "isspace", false, is_space);
}
Value s_isalpha(Interpreter& in, const Value& self, Arguments& arguments) {
    return all_are(in, self, arguments, "isalpha", false, is_alpha);
}
Value s_isdigit(Interpreter& in, const Value& self, Arguments& arguments) {
    return all_are(in, self, arguments, "isdigit", false, is_digit);
}
Value s_isalnum(Interpreter& in, const Value& self, Arguments& arguments) {
    return all_are(in, self, arguments, "isalnum", false,
                   [](char32_t code) { return is_alpha(code) || is_digit(code); });
}
Value s_isascii(Interpreter& in, const Value& self, Arguments& arguments) {
    return all_are(in, self, arguments, "isascii", true, [](char32_t code) { return code < 0x80; });
}
Value s_isprintable(Interpreter& in, const Value& self, Arguments& arguments) {
    return all_are(in, self, arguments, "isprintable", true, is_printable);
}
Value s_isidentifier(Interpreter& in, const Value& self, Arguments& arguments) {
    const bool starts = !self.text().empty() && !is_digit(char_at(self.bytes(), 0).code);
    const Value rest = all_are(in, self, arguments, "isidentifier", false,
                               [](char32_t code) { return is_alpha(code) || is_digit(code) || code == '_'; });
    return Value::boolean(starts && rest.as_bool());
}
Value s_islower(Interpreter& in, const Value& self, Arguments& arguments) {
    return Value::boolean(find_test("lower")(in, self, arguments));
}
Value s_isupper(Interpreter& in, const Value& self, Arguments& arguments) {
    return Value::boolean(find_test("upper")(in, self, arguments));
}

Value s_istitle(Interpreter& in, const Value& self, Arguments& arguments) {
    Bound args(arguments, "istitle", {});
    in.heap().step_chars(self.text().size());
    bool any = false, inside = false;
    for (int64_t at = 0; at < self.text().size();) {
        const Char c = char_at(self.bytes(), at);
        if (is_upper(c.code) ? inside : is_lower(c.code) && !inside) return Value::boolean(false);
        inside = is_cased(c.code);
        any |= inside;
        at += c.bytes;
    }
    return Value::boolean(any);
}

// ---- padding

Value pad(Interpreter& in, const Value& self, Arguments& arguments, std::string_view name, int where) {
    Bound args(arguments, name, {"width", "fillchar"});
    args[0];  // must be given
    const int64_t width = args.number(0, 0), missing = width - self.string().chars;
    if (args.has(1) && args.text(1).size() != char_at(args.text(1).bytes() + " ", 0).bytes)
        fault("{}(): the fill must be one character", name);
    const Text fill = args.has(1) ? args.text(1) : Text(" ", true);
    if (missing <= 0) return self;
    in.heap().check_text(missing);
    // str.center puts the odd one on the left if the width is odd
    const int64_t left = where < 0 ? 0 : where > 0 ? missing : missing / 2 + (missing & width & 1);
    TextBuilder out(in.heap());
    for (int64_t i = 0; i < left; ++i) out.append(fill);
    out.append(self.text());
    for (int64_t i = left; i < missing; ++i) out.append(fill);
    return text_like(in, self, out.take());
}
Value s_ljust(Interpreter& in, const Value& self, Arguments& arguments) {
    return pad(in, self, arguments, "ljust", -1);
}
Value s_rjust(Interpreter& in, const Value& self, Arguments& arguments) { return pad(in, self, arguments, "rjust", 1); }
Value s_center(Interpreter& in, const Value& self, Arguments& arguments) {
    return pad(in, self, arguments, "center", 0);
}

Value s_zfill(Interpreter& in, const Value& self, Arguments& arguments) {
    Bound args(arguments, "zfill", {"width"});
    args[0];  // must be given
    const int64_t missing = args.number(0, 0) - self.string().chars;
    if (missing <= 0) return self;
    in.heap().check_text(missing);
    const bool sign = self.bytes().starts_with('+') || self.bytes().starts_with('-');
    Text out = self.text().part(0, sign ? 1 : 0);
    out.append(std::string(static_cast<std::size_t>(missing), '0'), false);
    out.append(self.text(), sign ? 1 : 0, self.text().size());
    return text_like(in, self, std::move(out));
}

Value s_expandtabs(Interpreter& in, const Value& self, Arguments& arguments) {
    Bound args(arguments, "expandtabs", {"tabsize"});
    const int64_t size = args.number(0, 8);
    in.heap().check_text(size);
    TextBuilder out(in.heap());
    int64_t column = 0;
    in.heap().step_chars(self.text().size());
    for (int64_t at = 0; at < self.text().size();) {
        const Char c = char_at(self.bytes(), at);
        if (c.code == '\t') {
            const int64_t blanks = size > 0 ? size - column % size : 0;
            out.append(std::string(static_cast<std::size_t>(blanks), ' '), self.text().trusted_at(at));
            column += blanks;
        } else {
            out.append(self.text(), at, at + c.bytes);
            column = c.code == '\n' || c.code == '\r' ? 0 : column + 1;
        }
        at += c.bytes;
    }
    return text_like(in, self, out.take());
}

struct LetterMethod {
    std::string_view name;
    Method method;
};
constexpr LetterMethod kLetterMethods[] = {
    {"capitalize", s_capitalize},
    {"casefold", s_lower},
    {"center", s_center},
    {"expandtabs", s_expandtabs},
    {"isalnum", s_isalnum},
    {"isalpha", s_isalpha},
    {"isascii", s_isascii},
    {"isdecimal", s_isdigit},
    {"isdigit", s_isdigit},
    {"isidentifier", s_isidentifier},
    {"islower", s_islower},
    {"isnumeric", s_isdigit},
    {"isprintable", s_isprintable},
    {"isspace", s_isspace},
    {"istitle", s_istitle},
    {"isupper", s_isupper},
    {"ljust", s_ljust},
    {"lower", s_lower},
    {"rjust", s_rjust},
    {"swapcase", s_swapcase},
    {"title", s_title},
    {"upper", s_upper},
    {"zfill", s_zfill},
};

}  // namespace

Method find_letter_method(std::string_view name) {
    for (const LetterMethod& entry : kLetterMethods) {
        if (entry.name == name) return entry.method;
    }
    return nullptr;
}

}  // namespace riptide::jinja
