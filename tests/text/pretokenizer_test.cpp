// Where text is cut: the named rules, Hugging Face's Split behaviours, invalid UTF-8.
#include "text/tokenizer/pretokenizer.h"

#include <gtest/gtest.h>

#include <random>

#include "base/error.h"
#include "base/json.h"
#include "tests/text/small_vocabulary.h"
#include "text/tokenizer/nfc.h"
#include "text/utf8.h"

namespace riptide {
namespace {

using Pieces = std::vector<std::string>;

Pieces pieces_of(const PreTokenizer& pre, const std::string& text) {
    std::vector<TextSpan> spans;
    pre.split(text, spans);
    Pieces out;
    for (const TextSpan& s : spans)
        out.push_back(text.substr(static_cast<std::size_t>(s.begin), static_cast<std::size_t>(s.end - s.begin)));
    return out;
}
Pieces cut(const char* name, const std::string& text) { return pieces_of(PreTokenizer::from_ggml(name, "test"), text); }

TEST(pretokenizer, laguna_breaks_before_every_run_of_newlines) {
    EXPECT_EQ(cut("laguna", "a:\nb"), (Pieces{"a", ":", "\n", "b"}));
    EXPECT_EQ(cut("qwen2", "a:\nb"), (Pieces{"a", ":\n", "b"}));
    EXPECT_EQ(cut("laguna", " \n x"), (Pieces{" ", "\n", " x"}));
    EXPECT_EQ(cut("laguna", "a\n\n\tb"), (Pieces{"a", "\n\n", "\tb"}));
    EXPECT_EQ(cut("laguna", "x\t\t\n\ty"), (Pieces{"x", "\t\t", "\n", "\ty"}));
    EXPECT_EQ(cut("laguna", "\n"), (Pieces{"\n"}));
    EXPECT_EQ(cut("laguna", ""), Pieces{});
}

TEST(pretokenizer, laguna_keeps_crlf_together) {
    EXPECT_EQ(cut("laguna", "a;\r\nb"), (Pieces{"a", ";", "\r\n", "b"}));
    EXPECT_EQ(cut("laguna", "a;\r\n\r\n\nb"), (Pieces{"a", ";", "\r\n\r\n\n", "b"}));
    EXPECT_EQ(cut("laguna", "a\r\r\nb"), (Pieces{"a", "\r", "\r\n", "b"}));
    EXPECT_EQ(cut("laguna", "a;\rb"), (Pieces{"a", ";\r", "b"}));  // a lone \r is no line break
    EXPECT_EQ(cut("laguna", "\r\n  x"), (Pieces{"\r\n", " ", " x"}));
}

TEST(pretokenizer, digits_and_contractions) {
    EXPECT_EQ(cut("laguna", "a1234"), (Pieces{"a", "1", "2", "3", "4"}));
    EXPECT_EQ(cut("llama-bpe", "a12345"), (Pieces{"a", "123", "45"}));
    EXPECT_EQ(cut("gpt-2", "a 12345"), (Pieces{"a", " 12345"}));
    EXPECT_EQ(cut("starcoder", "a 123"), (Pieces{"a", " ", "1", "2", "3"}));
    EXPECT_EQ(cut("laguna", "we'll'S it'D x'Q"), (Pieces{"we", "'ll", "'S", " it", "'D", " x", "'Q"}));
    EXPECT_EQ(cut("gpt-2", "it'S we'll"), (Pieces{"it", "'", "S", " we", "'ll"}));
}

TEST(pretokenizer, white_space_is_unicodes) {
    EXPECT_EQ(cut("laguna", "a\u00A0b"), (Pieces{"a", "\u00A0b"}));
    EXPECT_EQ(cut("laguna", "a \u00A0 b"), (Pieces{"a", " \u00A0", " b"}));
    EXPECT_EQ(cut("laguna", "1\u3000\u20282"), (Pieces{"1", "\u3000", "\u2028", "2"}));
    // U+180E, U+200B and U+001C are not White_Space, so they count as symbols.
    EXPECT_EQ(cut("laguna", "1 \u180E\u200B\x1C!2"), (Pieces{"1", " \u180E\u200B\x1C!", "2"}));
}

TEST(pretokenizer, combining_marks_are_letters_only_for_qwen35) {
    EXPECT_EQ(cut("qwen2", "re\u0301sume"), (Pieces{"re", "\u0301sume"}));
    EXPECT_EQ(cut("qwen35", "re\u0301sume"), (Pieces{"re\u0301sume"}));
}

TEST(pretokenizer, split_behaviours_are_hugging_faces) {
    const auto split = [](const char* behavior, bool invert) {
        const json::value node = {
            {"type", "Split"}, {"pattern", {{"String", "-"}}}, {"behavior", behavior}, {"invert", invert}};
        return pieces_of(PreTokenizer::from_hf(node, "test"), "the-final--countdown");
    };
    EXPECT_EQ(split("Removed", false), (Pieces{"the", "final", "countdown"}));
    EXPECT_EQ(split("Isolated", false), (Pieces{"the", "-", "final", "-", "-", "countdown"}));
    EXPECT_EQ(split("MergedWithPrevious", false), (Pieces{"the-", "final-", "-", "countdown"}));
    EXPECT_EQ(split("MergedWithNext", false), (Pieces{"the", "-final", "-", "-countdown"}));
    EXPECT_EQ(split("Contiguous", false), (Pieces{"the", "-", "final", "--", "countdown"}));
    EXPECT_EQ(split("Removed", true), (Pieces{"-", "-", "-"}));
}

TEST(pretokenizer, empty_matches_cut_without_taking) {
    const json::value node = {{"type", "Split"}, {"pattern", {{"Regex", "(?=[A-Z])"}}}, {"behavior", "Isolated"}};
    EXPECT_EQ(pieces_of(PreTokenizer::from_hf(node, "test"), "oneTwo\u00E9Three"),
              (Pieces{"one", "Two\u00E9", "Three"}));
}

TEST(pretokenizer, digits_and_byte_level_from_hugging_face) {
    const auto pre = [](const char* text) { return PreTokenizer::from_hf(json::parse(text), "test"); };
    EXPECT_EQ(pieces_of(pre(R"({"type": "Digits", "individual_digits": false})"), "a12b3"),
              (Pieces{"a", "12", "b", "3"}));
    const PreTokenizer starcoder =
        pre(R"({"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": true},
        {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true}]})");
    EXPECT_EQ(starcoder.description(), PreTokenizer::from_ggml("starcoder", "test").description());
    const PreTokenizer laguna = PreTokenizer::from_hf(SmallVocabulary::laguna_pre_tokenizer(), "test");
    EXPECT_EQ(laguna.description(), PreTokenizer::from_ggml("laguna", "test").description());
    EXPECT_TRUE(laguna.is_laguna());
    EXPECT_FALSE(starcoder.is_laguna());
}

// The line-break rule is written by hand; the regex engine judges it.
TEST(pretokenizer, line_breaks_equal_the_pattern) {
    const json::value by_regex = {
        {"type", "Split"}, {"pattern", {{"Regex", R"x((?:(?:\r?\n)+)(?!\r?\n))x"}}}, {"behavior", "MergedWithNext"}};
    const json::value by_hand = {
        {"type", "Split"}, {"pattern", {{"Regex", R"x((?:\r?\n)+(?!\r?\n))x"}}}, {"behavior", "MergedWithNext"}};
    const PreTokenizer a = PreTokenizer::from_hf(by_regex, "test");
    const PreTokenizer b = PreTokenizer::from_hf(by_hand, "test");
    ASSERT_FALSE(a.is_laguna());
    ASSERT_TRUE(b.is_laguna());
    for (int n = 0; n < 3 * 3 * 3 * 3 * 3 * 3 * 3; ++n) {
        std::string text;
        for (int k = n, i = 0; i < 7; ++i, k /= 3) text += "\r\nx"[k % 3];
        EXPECT_EQ(pieces_of(a, text), pieces_of(b, text)) << n;
    }
}

TEST(pretokenizer, pieces_cover_any_bytes_and_invalid_ones_stand_alone) {
    std::mt19937 random(7);
    for (const char* name : {"laguna", "qwen2", "qwen35", "gpt-2", "llama-bpe", "starcoder"}) {
        const PreTokenizer pre = PreTokenizer::from_ggml(name, "test");
        for (int n = 0; n < 300; ++n) {
            std::string text;
            for (unsigned k = random() % 40; k > 0; --k) {
                if (random() % 3 == 0) text += static_cast<char>(random() % 256);
                else append_utf8(text, static_cast<char32_t>(random() % 0x600 + (random() % 8 == 0 ? 0x1F000 : 0)));
            }
            std::vector<TextSpan> spans;
            pre.split(text, spans);
            int64_t at = 0;
            for (const TextSpan& s : spans) {
                EXPECT_EQ(s.begin, at);
                EXPECT_LT(s.begin, s.end);
                at = s.end;
            }
            EXPECT_EQ(at, static_cast<int64_t>(text.size()));
        }
    }
    EXPECT_EQ(cut("laguna", "ab\xFF\xC3 c"), (Pieces{"ab", "\xFF\xC3", " c"}));
}

TEST(pretokenizer, long_runs_need_no_stack) {
    for (const char* name : {"laguna", "qwen2", "gpt-2", "llama-bpe"}) {
        for (const char c : {' ', '\n', 'a', '!', '\r', '\t'}) {
            EXPECT_EQ(cut(name, std::string(1 << 20, c)).size(), 1u) << name;
        }
    }
    const json::value nested = {{"type", "Split"}, {"pattern", {{"Regex", "(?:a|b)+"}}}, {"behavior", "Isolated"}};
    EXPECT_EQ(pieces_of(PreTokenizer::from_hf(nested, "test"), std::string(100000, 'a')).size(), 1u);
}

TEST(pretokenizer, bad_rules_are_named) {
    const auto message = [](const char* text) {
        try {
            PreTokenizer::from_hf(json::parse(text), "t.json");
        } catch (const Error& e) {
            return std::string(e.what());
        }
        return std::string("no error");
    };
    EXPECT_NE(message(R"({"type": "Metaspace"})").find("t.json: type \"Metaspace\""), std::string::npos);
    EXPECT_NE(
        message(R"({"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated"})").find("regular expression"),
        std::string::npos);
    EXPECT_NE(message(R"({"type": "Split", "pattern": {"Regex": "[a&&b]"}, "behavior": "Isolated"})").find("&&"),
              std::string::npos);
    EXPECT_NE(message(R"({"type": "Split", "pattern": {"Regex": "a"}, "behavior": "Sideways"})").find("Sideways"),
              std::string::npos);
    EXPECT_NE(message(R"({"type": "ByteLevel", "add_prefix_space": true})").find("add_prefix_space"),
              std::string::npos);
    EXPECT_NE(message(R"({"type": "Sequence", "pretokenizers": [7]})").find("pretokenizers"), std::string::npos);
    for (const char* name : {"whatever", "mpt"}) {  // of the second there is nothing to judge by
        try {
            PreTokenizer::from_ggml(name, "t.gguf");
            ADD_FAILURE() << name;
        } catch (const Error& error) {
            const std::string what = error.what();
            EXPECT_TRUE(what.starts_with(fmt::format("t.gguf: unknown pre-tokenizer \"{}\"; known are ", name)))
                << what;
            EXPECT_NE(what.find("--tokenizer"), std::string::npos) << what;
        }
    }
    const json::value slow = {{"type", "Split"}, {"pattern", {{"Regex", "(?:a+)+[bc]"}}}, {"behavior", "Isolated"}};
    const PreTokenizer pre = PreTokenizer::from_hf(slow, "t.json");
    EXPECT_THROW(pieces_of(pre, std::string(60, 'a')), Error);
}

TEST(nfc, composes_reorders_and_leaves_the_rest) {
    EXPECT_EQ(to_nfc("plain \u00E9"), "plain \u00E9");
    EXPECT_EQ(to_nfc("e\u0301"), "\u00E9");
    EXPECT_EQ(to_nfc("q\u0307\u0323"), "q\u0323\u0307");
    EXPECT_EQ(to_nfc("\u1E0B\u0323"), "\u1E0D\u0307");
    EXPECT_EQ(to_nfc("\u2126\u212B"), "\u03A9\u00C5");
    EXPECT_EQ(to_nfc("\u1112\u1161\u11AB"), "\uD55C");
    EXPECT_EQ(to_nfc("\uAC00\u11A8"), "\uAC01");
    EXPECT_EQ(to_nfc("\u0958"), "\u0915\u093C");  // a composition exclusion
    EXPECT_EQ(to_nfc("\u0344"), "\u0308\u0301");
    EXPECT_EQ(to_nfc("a\u0315\u0300\u05AE\u0062"), "\u00E0\u05AE\u0315b");
    EXPECT_EQ(to_nfc("e\xFF\u0301"), "e\xFF\u0301");
}

}  // namespace
}  // namespace riptide
