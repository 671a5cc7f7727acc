// Lark's notation, read. Private to grammar_lark*.cpp.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "text/grammar/pattern.h"

namespace riptide {

/// A grammar as it is written: what its names stand for.
struct LarkFile {
    enum class Kind : uint8_t { text, range, regex, name, sequence, choice, repeat };
    struct Node {
        Kind kind = Kind::sequence;
        std::size_t at = 0;           // where it is written
        std::string text;             // text; regex: the expression; name
        PatternStyle style;           // text, regex
        char32_t low = 0, high = 0;   // range
        int64_t least = 0, most = 0;  // repeat; most may be Grammar::kUnbounded
        std::vector<int32_t> parts;   // sequence, choice, repeat; name: what a template is used with
    };
    struct Definition {
        std::size_t at = 0;
        std::vector<std::string> parameters;  // of a template
        int32_t body = -1;                    // a node
    };
    std::vector<Node> nodes;
    std::map<std::string, Definition, std::less<>> definitions;  // imported ones too
    std::vector<int32_t> ignored;                                // nodes

    const Node& at(int32_t node) const { return nodes[static_cast<std::size_t>(node)]; }
};

/// Terminals have names in upper case (behind underscores), rules in lower case.
bool is_lark_terminal(std::string_view name);

/// Throws GrammarError with line and column.
LarkFile parse_lark(std::string_view text);

/// A terminal of Lark's library `common` as a regular expression; empty: there is none of that name.
std::string_view lark_common_terminal(std::string_view name);

/// Throws GrammarError about what is written at a byte.
[[noreturn]] void wrong_in_lark(std::string_view text, std::size_t at, std::string_view what);

}  // namespace riptide
