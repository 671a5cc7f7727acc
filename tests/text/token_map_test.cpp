// Tokens and bytes of one text, in one vocabulary and in two; where it may be cut.
#include "text/tokenizer/token_map.h"

#include <gtest/gtest.h>

#include <cctype>
#include <numeric>
#include <random>

#include "base/error.h"
#include "base/json.h"
#include "tests/test_device.h"
#include "tests/text/demo_tokenizer.h"
#include "tests/text/small_vocabulary.h"
#include "text/tokenizer/nfc.h"
#include "text/utf8.h"

namespace riptide {
namespace {

/// Merges some pairs, and makes NFC of all text first.
Tokenizer normalising_tokenizer() {
    SmallVocabulary vocabulary;
    vocabulary.merges = {{"e", "r"}, {" ", "t"}, {" t", "h"}, {" th", "er"}, {"\xC3", "\xA9"}, {"\xC3\xA9", "t"}};
    json::object hf = vocabulary.hf();
    hf["normalizer"] = {{"type", "NFC"}};
    return Tokenizer::from_hf(hf, nullptr, "test");
}

std::string random_text(std::mt19937_64& rng, size_t bytes) {
    static const std::vector<std::string> kPieces = {"the ",
                                                     "other",
                                                     " ",
                                                     "  ",
                                                     "\n",
                                                     "\r\n",
                                                     "\n\n",
                                                     "\t",
                                                     "def f(x):\n    return x_1 + 42\n",
                                                     "naïve ",
                                                     "e\u0301te\u0301 ",
                                                     "\u00e9t\u00e9",
                                                     "o\u0308\u0323",
                                                     "Straße, ",
                                                     "ελληνικά ",
                                                     "русский ",
                                                     "שלום ",
                                                     "हिन्दी ",
                                                     "ไทย",
                                                     "漢字かな交じり文。",
                                                     "한국어 ",
                                                     "\u1112\u1161\u11ab ",
                                                     "👩‍👩‍👧‍👦",
                                                     "🏳️‍🌈 ",
                                                     "🦙",
                                                     "a",
                                                     "Z",
                                                     "9",
                                                     "_",
                                                     ".",
                                                     "; ",
                                                     "<user>",
                                                     "</assistant>",
                                                     "\u2026",
                                                     "\u00a0",
                                                     "e\u0301",
                                                     "\u0301",
                                                     "x86_64-linux-gnu/",
                                                     "{\"key\": [1, 2.5e-3, null]}",
                                                     "\\",
                                                     "\u200b",
                                                     "ﬁ",
                                                     "\u2126"};
    std::string out;
    while (out.size() < bytes) {
        const uint64_t pick = rng() % 100;
        if (pick == 0) {
            out += static_cast<char>(0x80 + rng() % 0x80);  // no UTF-8
        } else if (pick == 1) {
            const char letter = static_cast<char>('a' + rng() % 26);
            out += std::string(20 + rng() % 200, letter);
        } else {
            out += kPieces[rng() % kPieces.size()];
        }
    }
    return out;
}

std::vector<TextSpan> characters(const std::string& text) {
    std::vector<TextSpan> out;
    for (size_t at = 0; at < text.size();) {
        const auto size = static_cast<size_t>(utf8_at(text, at).length);
        out.push_back({static_cast<int64_t>(at), static_cast<int64_t>(at + size)});
        at += size;
    }
    return out;
}

TEST(TokenMap, tokens_of_a_byte_level_vocabulary_spell_the_text_byte_for_byte) {
    std::mt19937_64 rng(1);
    const Tokenizer tokenizer = demo_tokenizer();
    for (int i = 0; i < 50; ++i) {
        const std::string text = random_text(rng, rng() % 3000);
        const auto tokens = tokenizer.encode(text);
        const auto spans = token_spans(tokenizer, tokens, text);
        int64_t at = 0;
        for (size_t t = 0; t < tokens.size(); ++t) {
            EXPECT_EQ(spans[t].begin, at);
            at = spans[t].end;
            EXPECT_EQ(std::string_view(text).substr(spans[t].begin, at - spans[t].begin), tokenizer.piece(tokens[t]));
        }
        EXPECT_EQ(at, std::ssize(text));
    }
    EXPECT_THROW(token_spans(tokenizer, tokenizer.encode("cat"), "dog"), Error);
    EXPECT_THROW(token_spans(tokenizer, tokenizer.encode("cats"), "cat"), Error);
    EXPECT_THROW(token_spans(tokenizer, tokenizer.encode("cat"), "cats"), Error);
}

TEST(TokenMap, where_a_tokenizer_normalises_only_what_it_changed_is_coarse) {
    const Tokenizer tokenizer = normalising_tokenizer();
    const std::string text = "the e\u0301te\u0301! ";  // NFC: "the été! "
    const auto tokens = tokenizer.encode(text);
    ASSERT_EQ(tokenizer.decode(tokens), "the \u00e9t\u00e9! ");
    const auto spans = token_spans(tokenizer, tokens, text);
    for (size_t t = 0; t < tokens.size(); ++t) {
        const std::string piece(tokenizer.piece(tokens[t]));
        const std::string there = text.substr(spans[t].begin, spans[t].end - spans[t].begin);
        EXPECT_NE(to_nfc(there).find(piece), std::string::npos) << t;
        if (there.find("\u0301") == std::string::npos) {
            EXPECT_EQ(there, piece);
        }
    }
    std::mt19937_64 rng(2);
    for (int i = 0; i < 200; ++i) {
        const std::string random = random_text(rng, rng() % 400);
        const auto ids = tokenizer.encode(random);
        const auto found = token_spans(tokenizer, ids, random);
        int64_t covered = 0, last = 0;
        for (const TextSpan& span : found) {
            EXPECT_LE(span.begin, covered) << "a gap";
            EXPECT_GE(span.begin, last);
            EXPECT_GE(span.end, covered);
            covered = span.end;
            last = span.begin;
        }
        EXPECT_EQ(covered, std::ssize(random));
    }
}

/// By the definition, one place at a time.
bool may_cut(const std::string& text, const std::vector<TextSpan>& chars, size_t c) {
    const auto code = [&](size_t i) {
        const Utf8Char found = utf8_at(text, static_cast<size_t>(chars[i].begin));
        return found.kind == Utf8Char::Kind::character ? found.code_point : char32_t{0};
    };
    if (c == 0 || c == chars.size()) return true;
    const char32_t before = code(c - 1), here = code(c);
    if (before == '\r' && here == '\n') return false;
    const auto ascii_word = [](char32_t x) { return x < 0x80 && (std::isalnum(static_cast<int>(x)) != 0 || x == '_'); };
    return !(ascii_word(before) && ascii_word(here)) && here != 0x301 && here != 0x200D && before != 0x200D;
}

TEST(TokenMap, random_spans_grow_to_whole_words_and_lose_and_add_nothing) {
    const int64_t wanted = full_counts() ? 1'000'000 : 50'000;
    std::mt19937_64 rng(3);
    int64_t count = 0, cut_tokens = 0;
    const Tokenizer demo = demo_tokenizer(), normalising = normalising_tokenizer();
    for (int64_t round = 0; count < wanted; ++round) {
        const Tokenizer& tokenizer = round % 4 == 3 ? normalising : demo;
        std::string text = random_text(rng, 2000);
        const auto tokens = tokenizer.encode(text);
        if (&tokenizer == &normalising) text = tokenizer.decode(tokens);
        const auto spans = token_spans(tokenizer, tokens, text);
        const auto cuts = word_cuts(text, spans);
        const auto chars = characters(text);
        std::vector<int> character_at(text.size() + 1, -1);
        for (size_t c = 0; c < chars.size(); ++c)
            character_at[static_cast<size_t>(chars[c].begin)] = static_cast<int>(c);
        character_at[text.size()] = static_cast<int>(chars.size());
        for (int i = 0; i < 1000; ++i, ++count) {
            const auto a = static_cast<int64_t>(rng() % text.size());
            const auto size = static_cast<int64_t>(1 + rng() % (rng() % 4 == 0 ? 500 : 20));
            const TextSpan asked{a, std::min(a + size, std::ssize(text))};
            const TokenRun inner = tokens_at(spans, asked), run = grow_to_cuts(cuts, inner);
            ASSERT_LT(run.begin, run.end);
            const int64_t begin = spans[run.begin].begin, end = spans[run.end - 1].end;
            ASSERT_TRUE(begin <= asked.begin && end >= asked.end) << "something is lost";
            for (const int64_t at : {begin, end}) {
                ASSERT_GE(character_at[at], 0) << "cut inside a character";
                const auto c = static_cast<size_t>(character_at[at]);
                // A run of letters that is longer than any word may be cut.
                if (!may_cut(text, chars, c)) {
                    size_t from = c;  // a word may begin with letters that are not ASCII
                    const auto in_word = [&](char x) { return x < 0 || std::isalnum(x) != 0 || x == '_'; };
                    while (from > 0 && in_word(text[chars[from - 1].begin])) --from;
                    ASSERT_GT(chars[c].begin - chars[from].begin, kLongestWord) << "cut inside a word at " << at;
                }
            }
            // Nothing that need not be there: no place between could be cut.
            for (int64_t t = run.begin + 1; t <= inner.begin; ++t) ASSERT_FALSE(cuts[t]);
            for (int64_t t = inner.end; t < run.end; ++t) ASSERT_FALSE(cuts[t]);
            cut_tokens += run.size() - inner.size();
            // What is kept is a piece of the text.
            ASSERT_EQ(tokenizer.decode(std::span(tokens).subspan(run.begin, run.size())),
                      text.substr(begin, end - begin));
        }
    }
    EXPECT_GT(cut_tokens, 0);
}

TEST(TokenMap, words_of_scripts_without_spaces_are_their_characters) {
    const Tokenizer tokenizer = SmallVocabulary().tokenizer();  // a token for each byte
    const auto cuts_of = [&](const std::string& text) {
        const auto tokens = tokenizer.encode(text);
        const auto cuts = word_cuts(text, token_spans(tokenizer, tokens, text));
        std::string out;
        for (const bool cut : cuts) out += cut ? '|' : '.';
        return out;
    };
    EXPECT_EQ(cuts_of("ab c"),
              "|.||"
              "|");
    EXPECT_EQ(cuts_of("漢字"), "|..|..|");
    EXPECT_EQ(cuts_of("a\r\nb"), "||.||");
    EXPECT_EQ(cuts_of("x_1-y"), "|..|||");
    EXPECT_EQ(cuts_of("e\u0301 "), "|..||");
    EXPECT_EQ(cuts_of("né"), "|..|");
    EXPECT_EQ(cuts_of("\xff\xfe"), "|||");
    EXPECT_EQ(cuts_of(""), "|");
}

TEST(TokenMap, scores_fall_to_bytes_and_nothing_of_them_is_lost) {
    const std::vector<TextSpan> from = {{0, 4}, {4, 6}, {6, 6}, {6, 10}}, to = {{0, 2}, {2, 5}, {5, 10}};
    const std::vector<float> scores = {4, 1, 9, 2};
    EXPECT_EQ(deal_scores(from, scores, to), (std::vector<float>{2, 2.5f, 2.5f}));
    std::mt19937_64 rng(4);
    const Tokenizer a = demo_tokenizer(), b = normalising_tokenizer();
    for (int i = 0; i < 50; ++i) {
        const std::string text = a.decode(a.encode(random_text(rng, 1000)));
        const auto a_spans = token_spans(a, a.encode(text), text);
        const auto b_spans = token_spans(b, b.encode(text), text);
        std::vector<float> given(b_spans.size());
        for (float& score : given) score = static_cast<float>(rng() % 1000);
        const auto got = deal_scores(b_spans, given, a_spans);
        // Each sum is rounded once, to 24 bits.
        const double before = std::accumulate(given.begin(), given.end(), 0.0);
        EXPECT_NEAR(std::accumulate(got.begin(), got.end(), 0.0), before, before * 0x1p-24);
        // A score moves by no more than the token that it belongs to.
        const size_t one = rng() % given.size();
        std::fill(given.begin(), given.end(), 0.0f);
        given[one] = 1;
        const TokenRun near = tokens_at(a_spans, b_spans[one]);
        const auto moved = deal_scores(b_spans, given, a_spans);
        for (int64_t t = 0; t < std::ssize(moved); ++t) EXPECT_EQ(moved[t] > 0, t >= near.begin && t < near.end) << t;
    }
}

}  // namespace
}  // namespace riptide
