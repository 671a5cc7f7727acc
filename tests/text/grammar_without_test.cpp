// Grammars without a word: against the grammar with it.
#include "text/structured/grammar_without.h"

#include "tests/text/constraint_world.h"

namespace riptide::testing {
namespace {

constexpr const char* kWithAndWithout[] = {
    "root ::= [ab]*",
    "root ::= \"a\" root \"b\" | \"ab\" | \"\"",
    "root ::= x y x? \"b\"\nx ::= \"a\" | \"aa\" | x \"b\"\ny ::= (x \"a\"){0,3}",
    "root ::= [a-c]{2,6}",
    "root ::= (\"aa\" | \"ba\"){1,} [bc]?",
    "root ::= \"c\" [c-z]{0,1000000} (root | \"aab\" | \"\")",
    "root ::= root root | \"a\" | \"b\"",
};

TEST(GrammarWithout, just_the_texts_that_hold_the_word_are_gone) {
    for (const std::string word : {"aab", "aba", "a", "abab"})
        for (const char* ebnf : kWithAndWithout) {
            Grammar grammar;
            grammar.set_root(without_word(grammar, add_ebnf(grammar, ebnf), word));
            std::shared_ptr<Constraint> without;
            try {
                without = Constraint::compile(grammar, crossing_trie(), kNoShortWalks);
            } catch (const GrammarError&) {  // nothing is left
            }
            const auto with = ebnf_constraint(ebnf);
            std::mt19937 random(5);
            for (int i = 0; i < 1500; ++i) {
                std::string text;
                for (size_t n = random() % 9; n > 0; --n) text += "aabbc"[random() % 5];
                const bool expected = takes(with, text) && text.find(word) == std::string::npos;
                ASSERT_EQ(without && takes(without, text), expected) << ebnf << " without " << word << ": " << text;
            }
        }
}

TEST(GrammarWithout, what_cannot_spell_it_stays_as_it_is) {
    Grammar grammar;
    const Grammar::Expr expr = add_ebnf(grammar, "root ::= \"b\" root | [^a]{0,1000000}");
    EXPECT_EQ(without_word(grammar, expr, "ab"), expr);
}

TEST(GrammarWithout, what_would_be_too_large_is_an_error) {
    Grammar grammar;
    const Grammar::Expr expr = add_ebnf(grammar, "root ::= (\"a\" | \"b\"){0,1000000}");
    EXPECT_THROW(without_word(grammar, expr, "ab"), GrammarError);
}

}  // namespace
}  // namespace riptide::testing
