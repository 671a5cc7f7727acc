// Regular expressions with anchors, \b and look-ahead anywhere: judged by PCRE2, which reads them in its own way.
#include "text/grammar/text_automaton.h"

#include "tests/text/constraint_world.h"
#include "text/tokenizer/regex.h"
#include "text/utf8.h"

namespace riptide::testing {
namespace {

constexpr std::string_view kAlphabet = "ab_- 1";

bool accepted(const TextAutomaton& automaton, std::string_view text) {
    std::size_t state = 0;
    for (std::size_t at = 0; at < text.size();) {
        const Utf8Char c = utf8_at(text, at);
        at += static_cast<std::size_t>(c.length);
        const TextAutomaton::State& from = automaton.states[state];
        const auto edge = std::find_if(from.edges.begin(), from.edges.end(), [&](const TextAutomaton::Edge& e) {
            return !intersection(e.chars, {{c.code_point, c.code_point}}).empty();
        });
        if (edge == from.edges.end()) return false;
        state = static_cast<std::size_t>(edge->to);
    }
    return automaton.states[state].accepts;
}

TextAutomaton automaton_of(std::string_view pattern, bool search = true) {
    const Pattern read = parse_pattern(pattern);
    const TextCondition condition{.pattern = &read, .search = search};
    return text_automaton({&condition, 1});
}

std::string random_text(std::mt19937& random, std::size_t most) {
    std::string text(random() % (most + 1), 'a');
    for (char& c : text) c = kAlphabet[random() % kAlphabet.size()];
    return text;
}

std::string random_pattern(std::mt19937& random, int depth, bool ahead) {
    const auto inner = [&](bool may_look) { return random_pattern(random, depth - 1, may_look); };
    switch (random() % (depth > 0 ? 14 : 6)) {
        case 0:
            return "a";
        case 1:
            return "b";
        case 2:
            return "[^a-]";
        case 3:
            return "\\w";
        case 4:
            return random() % 2 == 0 ? "^" : "$";
        case 5:
            return random() % 2 == 0 ? "\\b" : "\\B";
        case 6:
            return "(?:" + inner(ahead) + ")*";
        case 7:
            return "(" + inner(ahead) + "){1,2}?";
        case 8:
            return "(?:" + inner(ahead) + "|" + inner(ahead) + ")";
        case 9:
            return ahead ? "(?=" + inner(ahead) + ")" : ".";
        case 10:
            return ahead ? "(?!" + inner(false) + ")" : "-";
        default: {
            const std::string first = inner(ahead);
            return first + inner(ahead);
        }
    }
}

TEST(TextAutomaton, patterns_match_what_another_reader_of_them_matches) {
    int matched = 0, not_matched = 0;
    for (unsigned seed = 0; seed < 1500; ++seed) {
        std::mt19937 random(seed);
        std::string pattern = random_pattern(random, 4, true);
        if (seed % 4 == 0) {
            std::string before = "^";
            for (unsigned i = 0; i <= seed % 3; ++i) before += "(?=" + random_pattern(random, 2, true) + ")";
            pattern = before + "(?:" + pattern + ")";
        }
        const Regex judge(pattern, "pattern");
        const TextAutomaton automaton = automaton_of(pattern);
        Regex::Scratch scratch;
        Regex::Match match;
        for (int i = 0; i < 40; ++i) {
            const std::string text = random_text(random, 7);
            const bool expected = judge.find(text, 0, scratch, match);
            ++(expected ? matched : not_matched);
            ASSERT_EQ(accepted(automaton, text), expected)
                << "seed " << seed << ": " << pattern << " on '" << text << "'";
        }
    }
    EXPECT_GT(matched, 5000);
    EXPECT_GT(not_matched, 5000);
}

TEST(TextAutomaton, all_conditions_hold_at_once) {
    int taken = 0;
    for (unsigned seed = 0; seed < 300; ++seed) {
        std::mt19937 random(seed);
        const std::string a = random_pattern(random, 2, true);
        const std::string b = random_pattern(random, 3, true);
        const Pattern read_a = parse_pattern(a), read_b = parse_pattern(b);
        const TextAutomaton whole_b = automaton_of(b, false);
        const TextCondition conditions[] = {{.pattern = &read_a, .search = true}, {.automaton = &whole_b}};
        const TextAutomaton both = text_automaton(conditions), one = automaton_of(a), other = automaton_of(b, false);
        const TextAutomaton crossed = intersection(one, other);
        for (int i = 0; i < 40; ++i) {
            const std::string text = random_text(random, 5);
            const bool expected = accepted(one, text) && accepted(other, text);
            taken += expected;
            ASSERT_EQ(accepted(crossed, text), expected)
                << "seed " << seed << ": " << a << " and " << b << " on " << text;
            ASSERT_EQ(accepted(both, text), expected) << "seed " << seed << ": " << a << " and " << b << " on " << text;
        }
    }
    EXPECT_GT(taken, 300);
}

TEST(TextAutomaton, a_condition_that_another_implies_takes_no_states) {
    // Counted to 253 beside labels counted to 63: 32,000 states together; the third is within both.
    const Pattern length =
        parse_pattern("^(?=.{1,253}\\.?$)[a-z](?:[a-z-]{0,61}[a-z])?(?:\\.[a-z](?:[a-z-]{0,61}[a-z])?)*$");
    const Pattern shorter = parse_pattern("[a-z]{1,9}(\\.[a-z]{1,9}){0,3}");
    const TextCondition conditions[] = {{.pattern = &length, .search = true}, {.pattern = &shorter}};
    const TextAutomaton both = text_automaton(conditions);
    EXPECT_LT(both.states.size(), 50u);
    EXPECT_TRUE(accepted(both, "ab.cd.e"));
    EXPECT_FALSE(accepted(both, "ab.c-d"));
    EXPECT_FALSE(accepted(both, "abcdefghij"));
}

TEST(TextAutomaton, a_grammar_of_an_automaton_takes_its_texts_of_the_lengths_asked_for) {
    const std::pair<int64_t, int64_t> lengths[] = {{0, -1}, {2, -1}, {0, 3}, {2, 4}, {3, 3}, {0, 0}};
    for (unsigned seed = 0; seed < 150; ++seed) {
        std::mt19937 random(seed);
        const TextAutomaton automaton = automaton_of(random_pattern(random, 3, true));
        const auto [least, most] = lengths[seed % std::size(lengths)];
        Grammar grammar;
        grammar.set_root(
            grammar.sequence({add_text_automaton(grammar, automaton, least, most, {}), grammar.text("!")}));
        std::shared_ptr<Constraint> constraint;
        try {
            constraint = Constraint::compile(grammar, crossing_trie(), kNoShortWalks);
        } catch (const GrammarError& error) {
            EXPECT_STREQ(error.what(), "nothing can match") << "seed " << seed;
        }
        for (int i = 0; i < 30; ++i) {
            const std::string text = random_text(random, 6);
            const bool fits = std::ssize(text) >= least && (most < 0 || std::ssize(text) <= most);
            ASSERT_EQ(constraint && takes(constraint, text + "!"), fits && accepted(automaton, text))
                << "seed " << seed << " on " << text;
        }
    }
}

TEST(TextAutomaton, an_automaton_is_minimal) {
    EXPECT_EQ(automaton_of("^(?:ax|bx)$").states.size(), 3U);
    EXPECT_EQ(automaton_of("a").states.size(), 2U);
    EXPECT_EQ(automaton_of("^(?=.*a)(?=.*b)(?=.*1).{2,}$").states.size(), 8U);  // subsets of what has come
}

TEST(TextAutomaton, classes_and_escapes_mean_what_ecmascript_says) {
    const std::pair<const char*, std::pair<std::vector<const char*>, std::vector<const char*>>> cases[] = {
        {"^\\p{Lu}\\p{L}+$", {{"\xC3\x84rger", "Ab"}, {"\xC3\xA4rger", "A1"}}},
        {"^\\p{Script=Greek}+$", {{"\xCE\xB1\xCE\xA9"}, {"a", ""}}},
        {"^\\p{Uppercase_Letter}\\P{Letter}\\pN$", {{"A-1"}, {"AA1", "a-1"}}},
        {"^(?<year>\\d{4})-\\u{61}\\x62\\cJ$", {{"2024-ab\n"}, {"2024-ab"}}},
        {"^[\\w.-]+[]?[^]$", {{"a.-b", "a\n"}, {"a"}}},
        {"^{a}\\/\\-x{,3}$", {{"{a}/-x{,3}"}, {"{a}/-xxx"}}},
        {"^\\d\\w\\s$",
         {{"1a\xC2\xA0"},
          {"\xD9\xA1"
           "a "}}},
        {"\\bcat\\b", {{"a cat!", "cat"}, {"concat", "cats"}}},
        {"^((?!--).)*$", {{"a-b-", ""}, {"a--b"}}},
        {"^(?!.*\\.\\.)(?!\\.)[a-z.]+(?<x>a|b)$", {{"x.yb"}, {".xa", "x..a"}}},
    };
    for (const auto& [pattern, texts] : cases) {
        const TextAutomaton automaton = automaton_of(pattern);
        for (const char* text : texts.first) EXPECT_TRUE(accepted(automaton, text)) << pattern << "\n" << text;
        for (const char* text : texts.second) EXPECT_FALSE(accepted(automaton, text)) << pattern << "\n" << text;
    }
}

TEST(TextAutomaton, what_is_too_much_is_refused_with_the_limit) {
    const std::pair<std::string, const char*> cases[] = {
        {"(?:a|b)*a(?:a|b){20}$", "more than 20000 states"},
        {"((((){1000000}){1000000}){1000000}){1000000}", "steps to compile"},
        {"^(?:a{1000}){1000}(?=b)", "more than 100000 parts"},
        {"(?!(?!a))", "look-ahead inside (?!...)"},
        {"(?<=a)b", "at byte 1: look-behind"},
        {"(a)\\1", "at byte 4: \\1 is not supported"},
        {"\\p{Klingon}", "'Klingon' is not known"},
        {"a{3,2}", "at least 3 repetitions and at most 2"},
        {"a{9999999}", "more than 1000000 repetitions"},
    };
    for (const auto& [pattern, message] : cases) {
        try {
            automaton_of(pattern);
            ADD_FAILURE() << pattern << " is taken";
        } catch (const GrammarError& error) {
            EXPECT_NE(std::string(error.what()).find(message), std::string::npos) << pattern << "\n" << error.what();
        }
    }
}

TEST(Repetition, up_to_a_million_is_counted_exactly) {
    const auto fits = [](const char* pattern, std::string_view part, int64_t count) {
        std::string text;
        for (int64_t i = 0; i < count; ++i) text += part;
        return takes(regex_constraint(pattern), text);
    };
    for (const int64_t count : {0, 999, 1000, 1001, 1999, 2000, 2001, 3456, 4567, 4568}) {
        EXPECT_EQ(fits("a{2000,4567}", "a", count), count >= 2000 && count <= 4567) << count;
        EXPECT_EQ(fits("(ab){0,2000}", "ab", count), count <= 2000) << count;
        EXPECT_EQ(fits("(a?){1001}", "a", count), count <= 1001) << count;
        EXPECT_EQ(fits("(a?){1500,3456}", "a", count), count <= 3456) << count;
        EXPECT_EQ(fits("(a|b){1001,}", "b", count), count >= 1001) << count;
    }
    EXPECT_NO_THROW(regex_constraint("[^x]{0,1000000}"));
    EXPECT_NO_THROW(regex_constraint("[^x]{1000000}"));
}

}  // namespace
}  // namespace riptide::testing
