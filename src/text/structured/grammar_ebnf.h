// Grammars written as text.
#pragma once

#include <string_view>

#include "text/grammar/grammar.h"

namespace riptide {

/// Rules in the notation that llama.cpp calls GBNF, at most 256 KiB:
///
///     # a comment
///     root   ::= greeting ("," ws name){1,3} "\n"
///     greeting ::= "Hello" | "Good " [a-z]+
///     name   ::= [^,\n]* | .
///     ws     ::= " "?
///
/// Literals in double quotes; [...] and [^...] one character; . any character; groups; | alternatives; * + ? {n} {n,}
/// {n,m} behind a part. Escapes in literals and classes: \n \r \t \\ \" \[ \] \^ \- \xHH \uHHHH \UHHHHHHHH. A rule ends
/// where the next begins. The answer is `root`. Rules may be recursive in any way. Throws GrammarError naming line and
/// column for what is wrong, a rule that is called and not defined, or defined twice.
Grammar::Expr add_ebnf(Grammar& grammar, std::string_view text);

}  // namespace riptide
