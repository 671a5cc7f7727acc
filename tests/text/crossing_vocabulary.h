// A vocabulary whose tokens cross every border that a grammar may have, and constraints over it.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "tests/text/small_vocabulary.h"
#include "text/json/json_schema.h"
#include "text/structured/token_masks.h"

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

/// Whether a text is a whole answer, told byte by byte.
inline bool takes(const std::shared_ptr<Constraint>& constraint, std::string_view text) {
    ConstraintState state = constraint->start();
    for (const char c : text)
        if (!state.accept(crossing_tokenizer().id_of(std::string_view(&c, 1)))) return false;
    return state.can_end();
}

}  // namespace riptide::testing
