// A vocabulary whose tokens cross every border that a grammar may have, and ways to walk through it.
#pragma once

#include <gtest/gtest.h>

#include <random>

#include "tests/text/small_vocabulary.h"
#include "base/json.h"
#include "text/constraint.h"
#include "text/grammar_ebnf.h"
#include "text/grammar_regex.h"
#include "text/json_schema.h"

namespace riptide::testing {

/// All bytes, and merges of structure with text, of pieces of characters, of digits and of names.
inline SmallVocabulary crossing_vocabulary() {
    SmallVocabulary v;
    v.specials.push_back({"<tool_call>", false});
    v.specials.push_back({"</tool_call>", false});
    v.specials.push_back({"<|im_end|>"});
    v.merges = {
        {"{", "\""},    {"\"", ":"},      {"\":", " "},      {"\":", "{"},     {"\"", ","},      {"\",", " "},
        {"\",", "\""},  {"\"", "}"},      {"\"}", "}"},      {"}", ","},       {"}", "]"},       {"]", "}"},
        {"]", ","},     {"[", "["},       {"[[", "[["},      {"[", "{"},       {"\"", "]"},      {"\n", " "},
        {"\n ", " "},   {" ", " "},       {"  ", "  "},      {"1", "2"},       {"0", "."},       {"1", ","},
        {"t", "r"},     {"tr", "ue"},     {"u", "e"},        {"n", "ull"},     {"a", "b"},       {"ab", "c"},
        {"a", "\""},    {"\\", "u"},      {"\\", "\""},      {"\xC3", "\xA4"}, {"\xE2", "\x82"}, {"\x82", "\xAC"},
        {"\xAC", "\""}, {"\xF0", "\x9F"}, {"\x98", "\x80"},  {"a", "\xC3"},    {"\n", "</"},     {"<", "/"},
        {"</", "arg"},  {"</", "para"},   {"para", "meter"}, {">", "\n\n"},    {"_", "value"},   {"</arg", "_value"},
        {">", "\n"},    {"x", "<"},       {"_value", ">"},   {"-", "1"},       {"e", "+"},       {" ", "{"}};
    return v;
}

inline const Tokenizer& crossing_tokenizer() {
    static const Tokenizer tokenizer = [] {
        SmallVocabulary v = crossing_vocabulary();
        std::vector<std::pair<std::string, std::string>> usable;  // merges of tokens that are there
        std::vector<std::string> known;
        const auto is_token = [&](const std::string& text) {
            return text.size() == 1 || std::find(known.begin(), known.end(), text) != known.end();
        };
        for (const auto& merge : v.merges)
            if (is_token(merge.first) && is_token(merge.second)) {
                usable.push_back(merge);
                known.push_back(merge.first + merge.second);
            }
        v.merges = usable;
        return v.tokenizer();
    }();
    return tokenizer;
}

inline std::shared_ptr<const TokenTrie> crossing_trie() {
    static const auto trie = std::make_shared<const TokenTrie>(crossing_tokenizer());
    return trie;
}

/// This vocabulary is small: its masks would all be found by walking through it.
inline constexpr Constraint::Limits kNoShortWalks = {.bytes = std::size_t{4} << 20, .short_walk = 0};

inline std::shared_ptr<Constraint> schema_constraint(const json::value& schema, SchemaOptions options = {}) {
    Grammar grammar;
    grammar.set_root(add_json_schema(grammar, schema, options));
    return Constraint::compile(grammar, crossing_trie(), kNoShortWalks);
}
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

/// Whether a text is a whole answer, told byte by byte.
inline bool takes(const std::shared_ptr<Constraint>& constraint, std::string_view text) {
    ConstraintState state = constraint->start();
    for (const char c : text)
        if (!state.accept(crossing_tokenizer().id_of(std::string_view(&c, 1)))) return false;
    return state.can_end();
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
