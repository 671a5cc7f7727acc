#include "text/json/json_grammar.h"

#include <algorithm>
#include <cmath>

#include "base/json.h"
#include "text/json/tool_arguments.h"

namespace riptide {

namespace {

using Expr = Grammar::Expr;

const CharSet kHex = {{'0', '9'}, {'A', 'F'}, {'a', 'f'}};
const CharSet kDigit = {{'0', '9'}};

CharSet plain_characters() { return complement(normalized({{0, 0x1F}, {'"', '"'}, {'\\', '\\'}})); }

}  // namespace

Expr JsonGrammar::once(std::optional<Expr>& known, Expr (JsonGrammar::*make)()) {
    if (known) return *known;
    const Grammar::Rule rule = g_.declare();
    known = g_.call(rule);  // before the body, which may be recursive
    g_.define(rule, (this->*make)());
    return *known;
}

Expr JsonGrammar::space() { return one_way_ ? g_.empty() : once(space_, &JsonGrammar::make_space); }
Expr JsonGrammar::string() { return once(string_, &JsonGrammar::make_string); }
Expr JsonGrammar::number() { return once(number_, &JsonGrammar::make_number); }
Expr JsonGrammar::fraction() { return once(fraction_, &JsonGrammar::make_fraction); }
Expr JsonGrammar::integer() { return once(integer_, &JsonGrammar::make_integer); }
Expr JsonGrammar::any() { return once(any_, &JsonGrammar::make_any); }
Expr JsonGrammar::object() { return once(object_, &JsonGrammar::make_object); }
Expr JsonGrammar::array() { return once(array_, &JsonGrammar::make_array); }
Expr JsonGrammar::character() { return once(character_, &JsonGrammar::make_character); }
Expr JsonGrammar::boolean() { return g_.words({"true", "false"}); }

Expr JsonGrammar::make_space() {
    const Expr indent = g_.repeat(g_.chars({{' ', ' '}, {'\t', '\t'}}), 0, 64);
    return g_.optional(g_.choice({g_.text(" "), g_.sequence({g_.text("\n"), indent})}));
}

/// Surrogates only as a high and a low one.
Expr JsonGrammar::make_character() {
    if (one_way_) return write_character(all_characters());
    const Expr hex = g_.chars(kHex), u = g_.text("\\u");
    const Expr high =
        g_.sequence({u, g_.chars({{'D', 'D'}, {'d', 'd'}}), g_.chars({{'8', '9'}, {'A', 'B'}, {'a', 'b'}}), hex, hex});
    const Expr low = g_.sequence({u, g_.chars({{'D', 'D'}, {'d', 'd'}}), g_.chars({{'C', 'F'}, {'c', 'f'}}), hex, hex});
    const Expr not_d =
        g_.sequence({g_.chars({{'0', '9'}, {'A', 'C'}, {'E', 'F'}, {'a', 'c'}, {'e', 'f'}}), hex, hex, hex});
    const Expr d = g_.sequence({g_.chars({{'D', 'D'}, {'d', 'd'}}), g_.chars({{'0', '7'}}), hex, hex});
    CharSet simple;
    for (const char c : std::string_view("\"\\/bfnrt")) simple.emplace_back(c, c);
    return g_.choice({g_.chars(plain_characters()), g_.sequence({g_.text("\\"), g_.chars(simple)}),
                      g_.sequence({u, g_.choice({not_d, d})}), g_.sequence({high, low})});
}

Expr JsonGrammar::make_string() {
    // The body of the rule, not a call for each character: most tokens then stay inside one rule.
    const Expr characters = g_.repeat(make_character(), 0, Grammar::kUnbounded);
    return g_.sequence({g_.text("\""), characters, g_.text("\"")});
}

Expr JsonGrammar::string_of_length(int64_t least, int64_t most) {
    return g_.named(g_.sequence({g_.text("\""), g_.repeat(character(), least, most), g_.text("\"")}));
}

Expr JsonGrammar::write_character(const CharSet& set) {
    const CharSet plain = intersection(set, plain_characters());
    const CharSet escaped = intersection(set, complement(plain_characters()));
    if (escaped.empty()) return g_.chars(plain);
    const Expr others = escapes(escaped);
    return plain.empty() ? others : g_.choice({g_.chars(plain), others});
}

/// Characters that are not written as themselves. Many are a rule: a string takes them at each of its states.
Expr JsonGrammar::escapes(const CharSet& set) {
    const auto [known, is_new] = escapes_.try_emplace(set, 0);
    if (!is_new) return known->second;
    std::vector<std::string> words;
    for (const auto& [low, high] : set)
        for (char32_t c = low; c <= high; ++c) words.push_back(json_escape(static_cast<char>(c)));
    const bool many = words.size() > 2;
    const Expr all = g_.words(std::move(words));
    return known->second = many ? g_.named(all) : all;
}

Expr JsonGrammar::other_string(const std::vector<std::string>& texts) {
    return g_.sequence({g_.text("\""), other_text(g_, texts, all_characters(), writer(), g_.text("\""))});
}

Expr JsonGrammar::make_integer() { return add_regex(g_, "0|-?[1-9]\\d{0,17}", false); }

Expr JsonGrammar::make_number() {
    if (one_way_) return add_regex(g_, one_way_number(false), false);
    const Expr digit = g_.chars(kDigit);
    const Expr whole = g_.choice({g_.text("0"), g_.sequence({g_.chars({{'1', '9'}}), g_.repeat(digit, 0, 17)})});
    const Expr fraction = g_.sequence({g_.text("."), g_.repeat(digit, 1, 16)});
    const Expr exponent = g_.sequence(
        {g_.chars({{'E', 'E'}, {'e', 'e'}}), g_.optional(g_.chars({{'+', '+'}, {'-', '-'}})), g_.repeat(digit, 1, 2)});
    return g_.sequence({g_.optional(g_.text("-")), whole, g_.optional(fraction), g_.optional(exponent)});
}

Expr JsonGrammar::make_fraction() {
    if (one_way_) return add_regex(g_, "-?(0|[1-9]\\d{0,5})\\.\\d{0,8}[1-9]", false);
    const Expr digit = g_.chars(kDigit);
    const Expr whole = g_.choice({g_.text("0"), g_.sequence({g_.chars({{'1', '9'}}), g_.repeat(digit, 0, 5)})});
    const Expr zeros = g_.repeat(g_.text("0"), 0, 4);
    const Expr decimals = g_.sequence({zeros, g_.chars({{'1', '9'}}), g_.repeat(digit, 0, 4)});
    return g_.sequence({g_.optional(g_.text("-")), whole, g_.text("."), decimals});
}

Expr JsonGrammar::make_any() { return g_.choice({object(), array(), string(), number(), boolean(), g_.text("null")}); }

Expr JsonGrammar::make_object() {
    const Expr one = g_.named(member(string(), any()));
    const Expr more = g_.repeat(g_.sequence({g_.text(","), space(), one}), 0, Grammar::kUnbounded);
    return g_.sequence({g_.text("{"), space(), g_.optional(g_.sequence({one, more})), space(), g_.text("}")});
}
Expr JsonGrammar::make_array() { return array_of(any(), 0, Grammar::kUnbounded); }

Expr JsonGrammar::array_of(Expr item, int64_t least, int64_t most) {
    Expr inside = g_.empty();
    if (most != 0) {
        item = g_.named(item);
        const Expr next = g_.sequence({g_.text(","), space(), item});
        const int64_t rest = most == Grammar::kUnbounded ? most : most - 1;
        inside = g_.sequence({item, g_.repeat(next, std::max<int64_t>(0, least - 1), rest)});
        if (least == 0) inside = g_.optional(inside);
    }
    return g_.sequence({g_.text("["), space(), inside, space(), g_.text("]")});
}

Expr JsonGrammar::literal(const json::value& value) { return g_.text(json_text(value)); }

std::string one_way_number(bool whole) {
    std::string out = "0|-?[1-9]\\d{0,17}";
    if (whole) return out;
    constexpr int kDigits = 15;
    out += fmt::format("|-?(0|[1-9])\\.\\d{{0,{}}}[1-9]", kDigits - 2);
    for (int more = 1; more < kDigits - 1; ++more)  // digits before the point
        out += fmt::format("|-?[1-9]\\d{{{}}}\\.\\d{{0,{}}}[1-9]", more, kDigits - 2 - more);
    return out;
}

std::string json_text(const json::value& value) {
    std::string out;
    const auto write = [&](const auto& self, const json::value& v) -> void {
        if (const json::object* object = v.if_object()) {
            out += '{';
            for (const auto& [key, inner] : *object) {
                if (out.back() != '{') out += ',';
                out += '"';
                append_json_escaped(key, out);
                out += "\":";
                self(self, inner);
            }
            out += '}';
        } else if (const json::array* array = v.if_array()) {
            out += '[';
            for (std::size_t i = 0; i < array->size(); ++i) {
                if (i > 0) out += ',';
                self(self, (*array)[i]);
            }
            out += ']';
        } else if (v.is_string()) {
            out += '"';
            append_json_escaped(v.get_string(), out);
            out += '"';
        } else if (v.is_double()) {
            const double number = v.get_double();  // one that is too large for a double is infinite
            out += std::isinf(number) ? (number < 0 ? "-1e400" : "1e400") : fmt::format("{}", number);
        } else {
            out += json::serialize(v);
        }
    };
    write(write, value);
    return out;
}

}  // namespace riptide
