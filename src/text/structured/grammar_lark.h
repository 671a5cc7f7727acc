// Grammars in Lark's notation.
#pragma once

#include <string_view>

#include "text/grammar/grammar_regex.h"

namespace riptide {

/// Rules (lower case) and terminals (upper case) as Lark has them, at most 256 KiB; the answer is `start`:
///
///     start: sum "\n"?            // a comment, # another
///     ?sum: term (("+" | "-") term)*
///         | "sum" "(" _list{sum, ","} ")"  -> call
///     term: NUMBER | "(" sum ")"
///     _list{x, sep}: x (sep x)*
///     %import common (NUMBER, WS_INLINE)
///     %ignore WS_INLINE
///
/// Strings ("..." and "..."i), ranges ("a".."z"), regular expressions (/.../imsux: see PatternStyle::wide; no anchors,
/// \b or look-around), groups, [ ] for what may be left out, | * + ? ~n ~n..m {n,m}, templates of rules, %ignore,
/// %import from Lark's own library `common`, %override, %extend. What only builds trees (? ! _ and -> alias) and
/// priorities change nothing. Refused by name: %declare, other libraries, templates of terminals, and what other
/// engines add (special tokens, %json, attributes).
///
/// The texts are those that some way of cutting them into terminals makes a sentence of the rules, with ignored
/// terminals between, before and behind any others: all that Lark takes with any of its lexers. A lexer that takes the
/// longest terminal, or one of higher priority, takes less.
///
/// Rules may be recursive in any way, terminals may not. `write`: empty for UTF-8. Throws GrammarError with line and
/// column, also for a name that stands for nothing, and where no text is a `start`.
Grammar::Expr add_lark(Grammar& grammar, std::string_view text, const CharWriter& write = {});

/// Whether a grammar is written in this notation rather than in that of grammar_ebnf.h: by how its first definition
/// begins, with NAME: and not with NAME ::=, or by a directive (%import) in its place.
bool looks_like_lark(std::string_view text);

}  // namespace riptide
