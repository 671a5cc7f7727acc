// Regular expressions and grammars: judged by PCRE2, by tables, and by hand.
#include <filesystem>

#include "io/checkpoint.h"
#include "tests/source_dir.h"
#include "tests/text/constraint_world.h"
#include "text/tokenizer/regex.h"
#include "text/utf8.h"

namespace riptide::testing {
namespace {

bool pcre_matches(std::string pattern, const std::string& text) {
    for (size_t at = 0; (at = pattern.find("\\u", at)) != std::string::npos;)  // \uHHHH is \x{HHHH} there
        pattern.replace(at, 6, "\\x{" + pattern.substr(at + 2, 4) + "}");
    Regex::Scratch scratch;
    Regex::Match match;
    return Regex("\\A(?:" + pattern + ")\\z", "pattern").find(text, 0, scratch, match);
}

// Without ^ and $, and without what the two dialects read differently (. \s).
const char* const kPatterns[] = {
    "abc",           "a*b+c?",       "(a|b)*abb",          "[a-c]{2,4}", "\\d{3}-\\d{4}", "(ab|a)(bc|c)?",
    "x(y(z)?)?",     "[^a]b",        "a{0,3}b{2}",         "\\w+@\\w+",  "(a*)*b",        "(|a)b",
    "[\\]\\-\\\\]+", "\\x41\\u00e4", "[\\u20ac-\\u20af]+", "a+?b",       "(?:ab)+",       "a|",
    "[\\d.]+",       "\\/",          "[^\\x00-\\x7f]{1,2}"};

TEST(GrammarRegex, every_random_walk_matches_by_pcre) {
    for (const char* pattern : kPatterns)
        for (unsigned seed = 0; seed < 60; ++seed) {
            std::mt19937 random(seed);
            const std::string text = random_answer(regex_constraint(pattern), random, static_cast<int>(seed / 4));
            ASSERT_EQ(utf8_valid_prefix(text), text.size()) << pattern << " seed " << seed;
            ASSERT_TRUE(pcre_matches(pattern, text)) << pattern << " seed " << seed << ": " << text;
        }
}

TEST(GrammarRegex, short_texts_are_taken_just_when_pcre_matches) {
    const std::string letters = "abcxyz12-.@A";
    for (const char* pattern : kPatterns) {
        const auto constraint = regex_constraint(pattern);
        std::mt19937 random(7);
        for (int i = 0; i < 3000; ++i) {
            std::string text;
            for (size_t n = random() % 6; n > 0; --n) text += letters[random() % (i % 2 != 0 ? 3 : letters.size())];
            ASSERT_EQ(takes(constraint, text), pcre_matches(pattern, text)) << pattern << " on " << text;
        }
    }
}

TEST(GrammarRegex, what_is_not_regular_is_refused_with_its_place) {
    for (const char* pattern : {"a(?=b)", "(?<!a)b", "(a)\\1", "\\p{Lx}", "a**", "+a", "(a", "a)", "[a", "a{2,1}",
                                "a{1000001}", "a^b", "\\", "[b-a]", "(?i)a", "\\ud800", "\xff", "\\u{110000}"})
        EXPECT_THROW(regex_constraint(pattern), GrammarError) << pattern;
    EXPECT_THROW(regex_constraint(std::string(20'000, 'a')), GrammarError);
    EXPECT_THROW(regex_constraint(std::string(5000, '(') + "a" + std::string(5000, ')')), GrammarError);
    EXPECT_THROW(regex_constraint("((((((a{1000}){1000}){1000}){1000}){1000}b){0}[]"), GrammarError)
        << "nothing matches []";
    EXPECT_TRUE(takes(regex_constraint("(((a{0,1000}){0,1000}){0,1000}){0,1000}"), "aaa")) << "small as a grammar";
}

TEST(GrammarEbnf, texts_are_taken_or_not_as_written_here) {
    struct Case {
        const char* grammar;
        std::vector<const char*> yes, no;
    };
    const Case cases[] = {
        {"root ::= \"a\" b* # comment\nb ::= [x-z] | \"-\" root \"-\"",
         {"a", "axyz", "a-a-", "a-ax-z"},
         {"", "b", "a-a", "a-"}},
        {"root ::= e\ne ::= e \"+\" e | \"(\" e \")\" | [0-9]+",
         {"1", "1+2", "(1+2)+3", "((4))"},
         {"+", "1+", "(1", "()"}},
        {"root ::= list\nlist ::= list \",\" item | item\nitem ::= \"a\"", {"a", "a,a,a"}, {"", ",a", "a,"}},
        {"root ::= x x x\nx ::= \"a\"?", {"", "a", "aa", "aaa"}, {"aaaa", "b"}},
        {"root ::= \"a\"{2,3} (\"b\" | \"c\"){2} .", {"aabbx", "aaacb\xE2\x82\xAC"}, {"abbx", "aaaabbx", "aabb"}},
        {"root ::= \"\\x41\\u00e4\\\"\\\\\" [^\\n\\]]", {"A\xC3\xA4\"\\z"}, {"A\xC3\xA4\"\\]", "A\xC3\xA4\"\\\n"}},
        {"root ::= (\n  \"a\" |\n  \"b\"\n)+\n", {"ab", "b"}, {""}},
        {"root ::= s\ns ::= \"a\" s \"a\" | \"b\" s \"b\" | \"\"", {"", "aa", "abba", "baab"}, {"ab", "aba"}},
        {"root ::= a\na ::= b\nb ::= a | \"x\"", {"x"}, {"xx", ""}},
    };
    for (const Case& c : cases) {
        const auto constraint = ebnf_constraint(c.grammar);
        for (const char* text : c.yes) EXPECT_TRUE(takes(constraint, text)) << c.grammar << "\n" << text;
        for (const char* text : c.no) EXPECT_FALSE(takes(constraint, text)) << c.grammar << "\n" << text;
        for (unsigned seed = 0; seed < 20; ++seed) {
            std::mt19937 random(seed);
            const std::string text = random_answer(constraint, random, 10);
            EXPECT_TRUE(takes(constraint, text)) << c.grammar << "\n" << text;
        }
    }
}

TEST(GrammarEbnf, mistakes_are_named_with_line_and_column) {
    const std::pair<const char*, const char*> cases[] = {
        {"", "there is no rule 'root'"},
        {"root ::= x", "line 1 column 10: there is no rule 'x'"},
        {"root ::= \"a\"\nroot ::= \"b\"", "line 2 column 1: rule 'root' is defined twice"},
        {"root ::= \"a", "the line ends too early"},
        {"root ::= (\"a\"", "a ( without its )"},
        {"root ::= \"a\" )", "expected the name of a rule"},
        {"root = \"a\"", "expected ::="},
        {"root ::= \"\\q\"", "this escape is not supported"},
        {"root ::= [b-a]", "a range that is none"},
        {"root ::= \"a\"{5000000}", "more than 1000000"},
        {"root ::= \"a\" root", "nothing can match"},
        {"root ::= [^\\x00-\\U0010FFFF]", "nothing can match"},
    };
    for (const auto& [grammar, message] : cases) {
        try {
            ebnf_constraint(grammar);
            ADD_FAILURE() << grammar << " is taken";
        } catch (const GrammarError& error) {
            EXPECT_NE(std::string(error.what()).find(message), std::string::npos) << grammar << "\n" << error.what();
        }
    }
}

TEST(Constraint, a_token_may_come_just_if_its_bytes_may) {
    for (const char* grammar : {"root ::= [a-c]* \"\\\"\" x\nx ::= (\":\" \" \"?)* \"{\" root \"}\" | \"\"",
                                "root ::= .*", "root ::= e\ne ::= e e | \"[\" e \"]\" | \"1\" | \"12\""}) {
        const auto constraint = ebnf_constraint(grammar);
        const Tokenizer& tokenizer = crossing_tokenizer();
        for (unsigned seed = 0; seed < 8; ++seed) {
            std::mt19937 random(seed);
            std::vector<int32_t> tokens;
            random_answer(constraint, random, 25, &tokens);
            ConstraintState state = constraint->start();
            for (size_t i = 0; i <= std::min<size_t>(tokens.size(), 40); ++i) {
                const auto mask = state.mask();
                for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
                    ConstraintState by_bytes = state;
                    bool fits = !tokenizer.is_added(id);
                    for (const char c : tokenizer.piece(id))
                        fits = fits && by_bytes.accept(tokenizer.id_of(std::string_view(&c, 1)));
                    ASSERT_EQ(mask->has(id), fits) << grammar << " token " << id << " step " << i;
                }
                ASSERT_TRUE(i == tokens.size() || state.accept(tokens[i]));
            }
        }
    }
}

TEST(Constraint, a_refused_token_changes_nothing_and_copies_go_their_own_ways) {
    const auto constraint = ebnf_constraint("root ::= \"a\" (\"b\" | \"c\")");
    const auto id = [](std::string_view text) { return crossing_tokenizer().id_of(text); };
    ConstraintState state = constraint->start();
    EXPECT_FALSE(state.accept(id("b")));
    EXPECT_FALSE(state.accept(-1));
    EXPECT_FALSE(state.accept(1 << 20));
    EXPECT_FALSE(state.accept(id("<think>")));
    EXPECT_TRUE(state.accept(id("a")));
    ConstraintState other = state;
    EXPECT_TRUE(other.accept(id("c")));
    EXPECT_TRUE(other.can_end() && other.exhausted());
    EXPECT_FALSE(state.can_end());
    EXPECT_TRUE(state.accept(id("b")));
    EXPECT_FALSE(state.accept(id("b")));
    EXPECT_TRUE(state.can_end());
}

TEST(Constraint, memory_stays_bounded_and_what_was_forgotten_is_found_again) {
    // Every text is another state: the stack remembers all of it.
    const auto constraint = ebnf_constraint("root ::= s\ns ::= \"a\" s \"b\" | \"c\" s \"d\" | \"e\" s \"f\" | \"\"");
    ConstraintState kept = constraint->start();
    for (const char* text : {"a", "c", "e"}) ASSERT_TRUE(kept.accept(crossing_tokenizer().id_of(text)));
    std::mt19937 random(3);
    for (int walk = 0; walk < 1000; ++walk) {
        ConstraintState state = constraint->start();
        for (int i = 0; i < 100; ++i) {
            const char c = "ace"[random() % 3];
            ASSERT_TRUE(state.accept(crossing_tokenizer().id_of(std::string_view(&c, 1))));
        }
        ASSERT_LT(constraint->bytes(), kNoShortWalks.bytes + (std::size_t{1} << 20));
    }
    for (const char* text : {"f", "d", "b"}) ASSERT_TRUE(kept.accept(crossing_tokenizer().id_of(text)));
    EXPECT_TRUE(kept.can_end());
}

TEST(Constraint, walking_a_vocabulary_again_and_again_is_an_error_and_walking_it_once_is_not) {
    const std::string path = conformance_dir() + "/tokenizers/ggml-vocab-qwen2.gguf";
    if (!std::filesystem::exists(path)) GTEST_SKIP() << "no conformance data at " << path;
    const Tokenizer tokenizer = Tokenizer::from_gguf(open_checkpoint(path)->metadata(), path);
    const auto trie = std::make_shared<const TokenTrie>(tokenizer);
    const auto masks = [&](std::string_view ebnf) {
        Grammar grammar;
        grammar.set_root(add_ebnf(grammar, ebnf));
        ConstraintState state = Constraint::compile(grammar, trie)->start();
        for (const int32_t id : tokenizer.encode("hello world this is a text")) {
            EXPECT_TRUE(state.mask()->has(id));
            EXPECT_TRUE(state.accept(id));
        }
    };
    EXPECT_THROW(masks("root ::= x\nx ::= . x x | ."),
                 GrammarError);  // in each place of the text, for each place before
    EXPECT_NO_THROW(masks("root ::= .{0,500}"));
    EXPECT_NO_THROW(masks("root ::= x\nx ::= . x | ."));
}

TEST(Constraint, hopeless_ambiguity_is_an_error_and_leaves_the_constraint_usable) {
    std::string grammar = "root ::= e\ne ::= ";
    for (int i = 0; i < 200; ++i) grammar += fmt::format("{}x{}", i > 0 ? " | " : "", i);
    for (int i = 0; i < 200; ++i) grammar += fmt::format("\nx{} ::= \"a\" e e | \"a\" e | \"a\"", i);
    const auto constraint = ebnf_constraint(grammar);
    const int32_t a = crossing_tokenizer().id_of("a");
    ConstraintState state = constraint->start();
    bool failed = false;
    for (int i = 0; i < 30 && !failed; ++i) {
        try {
            ASSERT_TRUE(state.accept(a));
        } catch (const GrammarError&) {
            failed = true;
        }
    }
    ConstraintState again = constraint->start();
    EXPECT_TRUE(again.accept(a));
    EXPECT_TRUE(again.can_end());
}

TEST(Constraint, work_that_is_broken_off_loses_nothing) {
    const char* const grammar = "root ::= x\nx ::= x x | [a-z] | \"ab\"";
    const auto constraint = ebnf_constraint(grammar), other = ebnf_constraint(grammar);
    ConstraintState state = constraint->start(), plain = other->start();
    std::stop_source stop;
    stop.request_stop();
    int broken_off = 0;
    for (const char* c = "abcabacabab"; *c != 0; ++c) {
        const int32_t token = crossing_tokenizer().id_of(std::string_view(c, 1));
        WorkBudget stopped(WorkBudget::kUnlimited, stop.get_token());
        EXPECT_THROW(state.next(std::span(&token, 1), &stopped), WorkStopped);
        NextTokens next;
        for (int64_t steps = 0; next.mask == nullptr; ++steps) {
            WorkBudget work(steps);
            try {
                next = state.next(std::span(&token, 1), &work);
            } catch (const TooMuchWork&) {
                ++broken_off;
            }
        }
        ASSERT_TRUE(plain.accept(token));
        EXPECT_EQ(next.mask->words, plain.mask()->words);
        EXPECT_EQ(next.can_end, plain.can_end());
    }
    EXPECT_GT(broken_off, 10);
}

TEST(Constraint, all_parts_of_compiling_are_counted_and_can_be_stopped) {
    const auto compile = [](std::string_view kind, WorkBudget* work) {
        Grammar grammar(work);
        if (kind == "grammar") grammar.set_root(add_ebnf(grammar, "root ::= (\"a\" | [b-d] \"e\"){1,300} [^x]{5,900}"));
        else if (kind == "regex") grammar.set_root(add_regex(grammar, "(?=.*a[^x]{9}$)[a-c]*", false));
        else if (kind == "property") grammar.set_root(add_regex(grammar, "\\p{L}[^x]{90}", false));
        else grammar.set_root(add_json_object(grammar));
        const int64_t made = work->steps_spent();
        return std::pair(made, Constraint::compile(grammar, crossing_trie(), kNoShortWalks));
    };
    for (const std::string_view kind : {"grammar", "regex", "property", "object"}) {
        WorkBudget whole;
        const int64_t made = compile(kind, &whole).first;
        EXPECT_GT(made, kind == "regex" ? 100 : kind == "property" ? 4000 : 5) << kind;
        EXPECT_GT(whole.steps_spent(), made + 10) << kind;
        for (const int64_t steps : {int64_t{1}, made / 2, made + 1, whole.steps_spent() - 1}) {
            WorkBudget some(steps);
            EXPECT_THROW(compile(kind, &some), TooMuchWork)
                << kind << ", of " << whole.steps_spent() << " steps " << steps;
        }
        std::stop_source stop;
        stop.request_stop();
        WorkBudget stopped(WorkBudget::kSteps, stop.get_token());
        EXPECT_THROW(compile(kind, &stopped), WorkStopped) << kind;
    }
}

TEST(Constraint, steps_along_known_transitions_are_counted_too) {
    Grammar grammar;
    grammar.set_root(add_ebnf(grammar, "root ::= [a-z]*"));  // two transitions that are not known, hundreds of bytes
    Constraint::Limits limits = kNoShortWalks;
    limits.work = 200;
    EXPECT_THROW(Constraint::compile(grammar, crossing_trie(), limits)->start().mask(), GrammarError);
    limits.work = 200'000;
    EXPECT_TRUE(Constraint::compile(grammar, crossing_trie(), limits)->start().mask()->any);
}

}  // namespace
}  // namespace riptide::testing
