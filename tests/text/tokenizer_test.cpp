// Encoding and decoding with small vocabularies made here.
#include "text/tokenizer/tokenizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <thread>

#include "base/error.h"
#include "base/json.h"
#include "tests/text/small_vocabulary.h"
#include "text/utf8.h"

namespace riptide {
namespace {

using Ids = std::vector<int32_t>;

SmallVocabulary awkward_merges() {
    SmallVocabulary v;
    v.merges = {{"a", "b"},  {"b", "c"},   {"ab", "c"},  {"'", "S"}, {"'", "l"},       {"'l", "l"},
                {" ", "x"},  {"\n", "\n"}, {"\r", "\n"}, {"1", "2"}, {"\xC2", "\xA0"}, {"\t", "\t"},
                {":", "\n"}, {"\n", "\t"}, {"<", "t"},   {"k", ">"}, {"\r\n", "\r\n"}};
    return v;
}
const SmallVocabulary kV = awkward_merges();

std::string spell(const Tokenizer& tokenizer, std::string_view text, const EncodeOptions& options = {}) {
    std::string out;
    for (const int32_t id : tokenizer.encode(text, options))
        out += (out.empty() ? "" : "|") + std::string(tokenizer.piece(id));
    return out;
}

TEST(tokenizer, merges_by_rank_then_from_the_left) {
    const Tokenizer t = kV.tokenizer();
    EXPECT_EQ(spell(t, "abc"), "abc");
    EXPECT_EQ(spell(t, "bcabab"), "bc|ab|ab");
    EXPECT_EQ(spell(t, "abbc"), "ab|bc");
    EXPECT_EQ(t.encode("abc"), Ids{kV.merge_id(2)});
    EXPECT_EQ(t.encode(""), Ids{});
}

// The rule itself, without a heap: merge the leftmost pair of lowest rank until there is none.
Ids merge_slowly(const SmallVocabulary& v, const std::string& piece) {
    std::vector<std::string> parts;
    for (const char c : piece) parts.emplace_back(1, c);
    for (;;) {
        std::size_t best = v.merges.size(), where = 0;
        for (std::size_t i = 0; i + 1 < parts.size(); ++i) {
            const auto at = std::find(v.merges.begin(), v.merges.end(), std::pair(parts[i], parts[i + 1]));
            const auto rank = static_cast<std::size_t>(at - v.merges.begin());
            if (rank < best) best = rank, where = i;
        }
        if (best == v.merges.size()) break;
        parts[where] += parts[where + 1];
        parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(where) + 1);
    }
    Ids ids;
    for (const std::string& part : parts) {
        for (std::size_t i = 0; i < v.merges.size() && part.size() > 1; ++i) {
            if (v.merges[i].first + v.merges[i].second == part) ids.push_back(v.merge_id(i));
        }
        if (part.size() == 1) ids.push_back(v.byte_id(part[0]));
    }
    return ids;
}

TEST(tokenizer, heap_merging_equals_the_rule_on_random_pieces) {
    SmallVocabulary v;
    std::mt19937 random(3);
    std::vector<std::string> known = {"a", "b", "c"};
    while (v.merges.size() < 40) {
        const std::string left = known[random() % known.size()], right = known[random() % known.size()];
        if (std::find(known.begin(), known.end(), left + right) != known.end()) continue;
        v.merges.emplace_back(left, right);
        known.push_back(left + right);
    }
    const Tokenizer t = v.tokenizer();
    for (int n = 0; n < 2000; ++n) {
        std::string piece;
        for (unsigned k = random() % 30; k > 0; --k) piece += "abc"[random() % 3];
        EXPECT_EQ(t.encode(piece), merge_slowly(v, piece)) << piece;
    }
}

TEST(tokenizer, merges_stay_inside_pieces) {
    const Tokenizer t = kV.tokenizer();
    EXPECT_EQ(spell(t, "a12"), "a|1|2");
    EXPECT_EQ(spell(t, "x:\n\ty"), "x|:|\n|\t|y");  // Laguna never glues a newline to what is before it
    EXPECT_EQ(spell(t, "a\r\n\r\nb"), "a|\r\n\r\n|b");
    EXPECT_EQ(spell(t, "'S x'll"), "'S| x|'ll");
    EXPECT_EQ(spell(t,
                    "1\u00A0\u00A0"
                    "2"),
              "1|\u00A0|\u00A0|2");
    EXPECT_EQ(spell(t, "\t\t\n\n\n"), "\t\t|\n\n|\n");
}

TEST(tokenizer, added_tokens_are_found_only_in_trusted_text) {
    const Tokenizer t = kV.tokenizer();
    const std::string text = "<think>a</think><think>";
    EXPECT_EQ(spell(t, text), "<t|h|i|n|k|>|a|<|/|t|h|i|n|k|>|<|t|h|i|n|k|>");
    for (const int32_t id : t.encode(text)) EXPECT_FALSE(t.is_added(id));
    EXPECT_EQ(t.encode(text, {.parse_special = true}), (Ids{2, kV.byte_id('a'), 3, 2}));
    const std::vector<TextSpan> last = {{16, 23}};
    const Ids ids = t.encode(text, {.trusted = last});
    EXPECT_EQ(ids.back(), 2);
    EXPECT_EQ(std::count_if(ids.begin(), ids.end(), [&](int32_t id) { return t.is_added(id); }), 1);
    // A tag that crosses the border of a span is not one, even if both sides are trusted.
    for (const std::vector<TextSpan>& spans : {std::vector<TextSpan>{{0, 6}}, {{1, 23}}, {{0, 3}, {3, 8}}}) {
        EXPECT_NE(t.encode(text, {.trusted = spans}).front(), 2);
    }
}

TEST(tokenizer, added_tokens_of_white_space_are_found_in_any_text) {
    SmallVocabulary v;  // as vocabularies of GPT-NeoX's family have them
    v.specials.insert(v.specials.end(), {{"  ", false}, {"    ", false}, {" \t", true}, {" x", false}});
    const std::string text = "a     b  c \td x";
    for (const Tokenizer& t : {v.tokenizer(), Tokenizer::from_hf(v.hf(), nullptr, "t")}) {
        EXPECT_EQ(spell(t, text), "a|    | |b|  |c| |\t|d| |x") << "control tokens and words are markup";
        EXPECT_EQ(spell(t, text, {.parse_special = true}), "a|    | |b|  |c| \t|d| x");
        const TextSpan trusted[] = {{2, 4}};  // of the run of five
        EXPECT_EQ(spell(t, text, {.trusted = trusted}), "a| |  |  |b|  |c| |\t|d| |x");
    }
}

TEST(tokenizer, text_merges_across_the_borders_of_trusted_spans) {
    const Tokenizer t = kV.tokenizer();
    const std::string text = "<think>abc</think>";
    for (int64_t border = 7; border <= 10; ++border) {
        const std::vector<TextSpan> spans = {{0, border}, {10, 18}};
        EXPECT_EQ(t.encode(text, {.trusted = spans}), (Ids{2, kV.merge_id(2), 3}));
    }
}

TEST(tokenizer, trusted_spans_out_of_order_are_refused) {
    const Tokenizer t = kV.tokenizer();
    for (const std::vector<TextSpan>& spans : {std::vector<TextSpan>{{2, 1}}, {{0, 4}}, {{-1, 2}}, {{0, 2}, {1, 3}}}) {
        EXPECT_THROW(t.encode("abc", {.trusted = spans}), Error);
    }
}

TEST(tokenizer, everything_trusted_equals_parse_special) {
    const Tokenizer t = kV.tokenizer();
    std::mt19937 random(5);
    static const char* const parts[] = {"<think>", "</think>", "〈|EOS|〉", "</assistant>", "abc",
                                        "<",       "\n",       " x",        "'ll",          "〈|"};
    for (int n = 0; n < 200; ++n) {
        std::string text;
        for (unsigned k = random() % 12; k > 0; --k) text += parts[random() % std::size(parts)];
        const std::vector<TextSpan> all = {{0, static_cast<int64_t>(text.size())}};
        const Ids ids = t.encode(text, {.trusted = all});
        EXPECT_EQ(ids, t.encode(text, {.parse_special = true}));
        EXPECT_EQ(t.decode(ids), text);
        for (const int32_t id : t.encode(text)) EXPECT_FALSE(t.is_added(id));
    }
}

TEST(tokenizer, longest_added_token_wins_and_strips_take_white_space) {
    SmallVocabulary v = kV;
    v.specials = {{"<a"}, {"<a>"}, {"<ab>"}, {"<l>"}, {"<r>"}};
    json::object hf = v.hf();
    hf["post_processor"] = nullptr;
    hf["added_tokens"].as_array()[3].as_object()["lstrip"] = true;
    hf["added_tokens"].as_array()[4].as_object()["rstrip"] = true;
    const Tokenizer t = Tokenizer::from_hf(hf, nullptr, "t.json");
    const EncodeOptions special = {.parse_special = true};
    EXPECT_EQ(t.encode("<a><ab><abc<a", special), (Ids{1, 2, 0, kV.merge_id(1), 0}));
    EXPECT_EQ(t.encode("x \u3000<l> <r> \n<r>", special), (Ids{kV.byte_id('x'), 3, kV.byte_id(' '), 4, 4}));
}

TEST(tokenizer, decode_gives_back_any_bytes) {
    std::mt19937 random(17);
    for (const char* pre : {"laguna", "gpt-2", "llama-bpe", "qwen35", "starcoder"}) {
        SmallVocabulary v = kV;
        v.pre = pre;
        const Tokenizer t = v.tokenizer();
        for (int n = 0; n < 300; ++n) {
            std::string text;
            for (unsigned k = random() % 60; k > 0; --k) {
                switch (random() % 4) {
                    case 0:
                        text += static_cast<char>(random() % 256);
                        break;
                    case 1:
                        text += "abcx12 \n\r\t'S<"[random() % 13];
                        break;
                    default:
                        append_utf8(text, static_cast<char32_t>(random() % 0xD800));
                        break;
                }
            }
            EXPECT_EQ(t.decode(t.encode(text)), text);
            EXPECT_EQ(t.decode(t.encode(text, {.parse_special = true})), text);
        }
    }
}

TEST(tokenizer, add_special_follows_the_file) {
    const Tokenizer t = kV.tokenizer();
    EXPECT_EQ(t.encode("a", {.add_special = true}), (Ids{1, kV.byte_id('a')}));
    EXPECT_EQ(t.encode("a"), (Ids{kV.byte_id('a')}));
    EXPECT_TRUE(t.adds_bos());
    json::object plain = kV.gguf();
    plain["tokenizer.ggml.add_bos_token"] = false;
    plain["tokenizer.ggml.add_eos_token"] = true;
    EXPECT_EQ(Tokenizer::from_gguf(plain, "t").encode("a", {.add_special = true}), (Ids{kV.byte_id('a'), 1}));
}

TEST(tokenizer, questions_about_tokens) {
    const Tokenizer t = kV.tokenizer();
    EXPECT_EQ(t.vocab_size(), static_cast<int32_t>(kV.tokens().size()));
    EXPECT_EQ(t.piece(kV.byte_id('\n')), "\n");
    EXPECT_TRUE(t.is_special(1));
    EXPECT_FALSE(t.is_special(2));
    EXPECT_TRUE(t.is_added(2));
    EXPECT_EQ(t.id_of("abc"), kV.merge_id(2));
    EXPECT_EQ(t.id_of("<think>"), 2);
    EXPECT_EQ(t.id_of("zzz"), -1);
    EXPECT_EQ(t.decode(Ids{1, 2, kV.byte_id('a')}, true), "<think>a");
    EXPECT_EQ(t.eot(), 4);  // Laguna's </assistant>, which no key names
    EXPECT_EQ(t.stop_ids(), (Ids{1, 4}));
    EXPECT_EQ(t.stop_ids(Ids{4, 3}), (Ids{1, 3, 4}));
    EXPECT_THROW(t.stop_ids(Ids{100000}), Error);
    EXPECT_THROW(t.piece(t.vocab_size()), Error);
    EXPECT_THROW(t.decode(Ids{-1}), Error);
}

TEST(tokenizer, ignore_merges_takes_whole_tokens) {
    SmallVocabulary v = kV;
    v.merges = {{"a", "b"}, {"b", "c"}, {"a", "bc"}};  // "abc" is a token that merging does not reach
    v.pre = "llama-bpe";
    EXPECT_EQ(spell(v.tokenizer(), "abc"), "abc");
    v.pre = "laguna";
    EXPECT_EQ(spell(v.tokenizer(), "abc"), "ab|c");
}

TEST(tokenizer, time_is_near_linear_in_long_runs) {
    SmallVocabulary v = kV;
    std::string run = "a";
    while (run.size() < 64) {
        v.merges.emplace_back(run, run);
        run += run;
    }
    const Tokenizer t = v.tokenizer();
    std::mt19937 random(1);
    std::string base64;
    while (base64.size() < 200000)
        base64 += "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"[random() % 64];
    for (const std::string& text : {std::string(1 << 20, 'a'), std::string(1 << 20, ' '), std::string(1 << 20, '\n'),
                                    std::string(1 << 20, '<'), std::string(1 << 20, '\xFF'), base64}) {
        const auto start = std::chrono::steady_clock::now();
        const Ids ids = t.encode(text, {.parse_special = true});
        const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
        RecordProperty("seconds_" + std::to_string(static_cast<unsigned char>(text[0])), std::to_string(took.count()));
        EXPECT_LT(took.count(), 20.0);  // a quadratic merge takes hours; the figure itself is in the record
        EXPECT_EQ(t.decode(ids), text);
    }
}

TEST(tokenizer, threads_share_one) {
    const Tokenizer t = kV.tokenizer();
    const std::string text = "abc 'll <think> \r\n12 abab";
    const Ids expected = t.encode(text, {.parse_special = true});
    std::vector<std::thread> threads;
    std::array<int, 4> wrong{};
    for (int& count : wrong) {
        threads.emplace_back([&] {
            for (int n = 0; n < 500; ++n) count += t.encode(text, {.parse_special = true}) == expected ? 0 : 1;
        });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(wrong, (std::array<int, 4>{}));
}

}  // namespace
}  // namespace riptide
