// Regular expressions as trees.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "text/grammar/grammar.h"

namespace riptide {

/// A regular expression, read.
struct Pattern {
    enum class Kind : uint8_t {
        chars,     // one character of a set
        sequence,  // of none: the empty text
        choice,    // of none: nothing
        repeat,
        start,      // ^
        end,        // $
        border,     // \b
        no_border,  // \B
        ahead,      // (?=...)
        not_ahead   // (?!...)
    };
    struct Node {
        Kind kind = Kind::sequence;
        CharSet chars;                // chars, normalized
        int64_t least = 0, most = 0;  // repeat; most may be Grammar::kUnbounded
        std::vector<int32_t> parts;   // nodes before this one
    };
    std::vector<Node> nodes;
    int32_t root = 0;

    const Node& at(int32_t node) const { return nodes[static_cast<std::size_t>(node)]; }
};

/// Characters with a property, by its name: each is looked up once.
using PropertySets = std::map<std::string, CharSet, std::less<>>;

/// How a regular expression is read.
struct PatternStyle {
    /// As Rust's regex and Python's re have it, where these go beyond ECMAScript: `.` is all but a line feed; \d, \w
    /// and \s are Unicode's; \a, \x{H...}, \UHHHHHHHH; [[:alpha:]]; flags in groups, (?i) and (?i:...). What they read
    /// differently inside a class ([ && -- ~~) is refused.
    bool wide = false;
    bool any_case = false;               // the flag i
    bool dot_all = false;                // the flag s: `.` is every character
    bool spaced = false;                 // the flag x: white space and comments are passed over
    PropertySets* properties = nullptr;  // of several expressions; null: of this one
    WorkBudget* work = nullptr;          // counts looks at every character; or null
};

/// In the syntax of ECMAScript with its flag u, and what of older syntax is plain ({ and } that repeat nothing): see
/// add_regex; or as `style` says. Throws GrammarError with the place.
Pattern parse_pattern(std::string_view text, const PatternStyle& style = {});

/// What \w is, and \b tells from the rest: ASCII letters, digits and _.
const CharSet& word_characters();

inline bool is_ascii_letter(char32_t c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

/// The characters of a set and what differs from one of them by case only. REQUIRES: normalized.
CharSet with_both_cases(const CharSet& set);

/// The characters with a property, as \p{...} names it: a general category (L, Lu, Letter, ...), a script (Greek,
/// Script=Greek, sc=Greek) or a property of yes and no (Alphabetic, Emoji, Extended_Pictographic, ...); by the tables
/// of PCRE2. Empty for a name that is not known.
CharSet unicode_property(std::string_view name);

}  // namespace riptide
