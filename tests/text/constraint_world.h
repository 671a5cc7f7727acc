// Constraints over the crossing vocabulary, and ways to walk through them.
#pragma once

#include <gtest/gtest.h>

#include <random>

#include "base/json.h"
#include "tests/text/crossing_vocabulary.h"
#include "text/grammar/grammar_regex.h"
#include "text/structured/grammar_ebnf.h"

namespace riptide::testing {

inline std::shared_ptr<Constraint> regex_constraint(std::string_view pattern) {
    Grammar grammar;
    grammar.set_root(add_regex(grammar, pattern, false));
    return Constraint::compile(grammar, crossing_trie(), kNoShortWalks);
}
inline std::shared_ptr<Constraint> ebnf_constraint(std::string_view text) {
    Grammar grammar;
    grammar.set_root(add_ebnf(grammar, text));
    return Constraint::compile(grammar, crossing_trie(), kNoShortWalks);
}

/// A random answer; after `patience` tokens it tries to come to an end. Holds on the way: a state that cannot end has
/// a token that fits; every token of the mask is accepted. `phrase`: what ends a part.
inline std::string random_answer(const std::shared_ptr<Constraint>& constraint, std::mt19937& random, int patience,
                                 std::vector<int32_t>* tokens = nullptr, std::string_view phrase = "") {
    const Tokenizer& tokenizer = crossing_tokenizer();
    ConstraintState state = constraint->start();
    std::string text;
    for (int step = 0; step < patience + 4000; ++step) {
        const auto mask = state.mask();
        std::vector<int32_t> fitting;
        for (int32_t id = 0; id < tokenizer.vocab_size(); ++id)
            if (mask->has(id)) fitting.push_back(id);
        EXPECT_EQ(mask->any, !fitting.empty());
        const bool can_end = state.can_end();
        if (can_end && (fitting.empty() || step >= patience || random() % 8 == 0)) return text;
        if (fitting.empty()) {
            ADD_FAILURE() << "a dead end behind " << text;
            return text;
        }
        const auto say = [&](ConstraintState& to, std::string_view what, bool keep) {
            for (const char c : what) {
                const int32_t id = tokenizer.id_of(std::string_view(&c, 1));
                if (!to.accept(id)) return false;
                if (keep && tokens != nullptr) tokens->push_back(id);
            }
            return true;
        };
        if (ConstraintState copy = state;
            step >= patience && !phrase.empty() && random() % 2 == 0 && say(copy, phrase, false)) {
            say(state, phrase, true);
            text += phrase;
            continue;
        }
        int32_t token = fitting[random() % fitting.size()];
        // Towards the end of what is open: mostly the first of these that fits, sometimes any.
        const std::string_view closing[] = {"</think>", "\"", "]", "}", "n", "b", "\\", "0", ">", "@"};
        for (size_t i = random() % 3 == 0 ? random() % 10 : 0; step >= patience && i < 10; ++i)
            if (const int32_t id = tokenizer.id_of(closing[i]); mask->has(id)) {
                token = id;
                break;
            }
        if (!state.accept(token)) {
            ADD_FAILURE() << "token " << token << " of the mask is not accepted behind " << text;
            return text;
        }
        text += tokenizer.piece(token);
        if (tokens != nullptr) tokens->push_back(token);
    }
    ADD_FAILURE() << "no end: " << text.substr(0, 500);
    return text;
}

}  // namespace riptide::testing
