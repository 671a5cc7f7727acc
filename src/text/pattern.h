// Regular expressions as trees.
#pragma once

#include <string_view>
#include <vector>

#include "text/grammar.h"

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

/// In the syntax of ECMAScript with its flag u, and what of older syntax is plain ({ and } that repeat nothing): see
/// add_regex. Throws GrammarError with the place. `work` counts looks at every character; or null.
Pattern parse_pattern(std::string_view text, WorkBudget* work = nullptr);

/// What \w is, and \b tells from the rest: ASCII letters, digits and _.
const CharSet& word_characters();

/// The characters with a property, as \p{...} names it: a general category (L, Lu, Letter, ...), a script (Greek,
/// Script=Greek, sc=Greek) or a property of yes and no (Alphabetic, Emoji, Extended_Pictographic, ...); by the tables
/// of PCRE2. Empty for a name that is not known.
CharSet unicode_property(std::string_view name);

}  // namespace riptide
