// Streamed text: whole characters only, equal to the decoded whole.
#include "text/tokenizer/detokenizer.h"

#include <gtest/gtest.h>

#include <random>

#include "base/error.h"
#include "tests/text/small_vocabulary.h"

namespace riptide {
namespace {

const SmallVocabulary kVocabulary;

std::string stream(const Tokenizer& tokenizer, const std::vector<int32_t>& ids,
                   Detokenizer::Special special = Detokenizer::Special::hide) {
    Detokenizer detokenizer(tokenizer, special);
    std::string out;
    for (const int32_t id : ids) {
        const std::string now = detokenizer.push(id);
        EXPECT_EQ(utf8_valid_prefix(now), now.size());
        out += now;
    }
    return out + detokenizer.finish();
}

std::vector<int32_t> bytes(const std::string& text) {
    std::vector<int32_t> out;
    for (const char c : text) out.push_back(kVocabulary.byte_id(c));
    return out;
}

TEST(detokenizer, characters_come_whole) {
    const Tokenizer tokenizer = kVocabulary.tokenizer();
    Detokenizer detokenizer(tokenizer);
    EXPECT_EQ(detokenizer.push(kVocabulary.byte_id('\xF0')), "");
    EXPECT_EQ(detokenizer.push(kVocabulary.byte_id('\x9F')), "");
    EXPECT_EQ(detokenizer.push(kVocabulary.byte_id('\xA6')), "");
    EXPECT_EQ(detokenizer.push(kVocabulary.byte_id('\x99')), "🦙");
    EXPECT_EQ(detokenizer.push(kVocabulary.byte_id('a')), "a");
    EXPECT_EQ(detokenizer.finish(), "");
}

TEST(detokenizer, each_maximal_invalid_prefix_becomes_one_replacement) {
    const Tokenizer tokenizer = kVocabulary.tokenizer();
    const auto check = [&](const std::string& text, const std::string& expected) {
        EXPECT_EQ(stream(tokenizer, bytes(text)), expected);
    };
    check("\xE2\x82", "\uFFFD");
    check(
        "\xE2\x82"
        "a",
        "\uFFFD"
        "a");
    check("\xF0\x9F\xA6", "\uFFFD");
    check("\xFF\xFE", "\uFFFD\uFFFD");
    check("\xE2\xE2\x82\xAC", "\uFFFD€");
    check("\xC0\x80", "\uFFFD\uFFFD");
    check("\xED\xA0\x80", "\uFFFD\uFFFD\uFFFD");
    // The sequence of Unicode's table 3-8.
    check(
        "a\xF1\x80\x80\xE1\x80\xC2"
        "b\x80"
        "c\x80\xBF"
        "d",
        "a\uFFFD\uFFFD\uFFFD"
        "b\uFFFD"
        "c\uFFFD\uFFFD"
        "d");
}

TEST(detokenizer, special_tokens_hide_or_show_and_added_ones_always_show) {
    const Tokenizer tokenizer = kVocabulary.tokenizer();
    std::vector<int32_t> ids = {1, 2, kVocabulary.byte_id('a'), 1};
    EXPECT_EQ(stream(tokenizer, ids), "<think>a");
    EXPECT_EQ(stream(tokenizer, ids, Detokenizer::Special::show), "〈|EOS|〉<think>a〈|EOS|〉");
    ids = {kVocabulary.byte_id('\xC3'), 1, kVocabulary.byte_id('\xA9')};
    EXPECT_EQ(stream(tokenizer, ids), "é");
    ids = {kVocabulary.byte_id('\xC3'), 2, kVocabulary.byte_id('\xA9')};
    EXPECT_EQ(stream(tokenizer, ids), "\uFFFD<think>\uFFFD");
    EXPECT_THROW(stream(tokenizer, {tokenizer.vocab_size()}), Error);
    EXPECT_THROW(stream(tokenizer, {-1}), Error);
}

TEST(detokenizer, stream_equals_the_decoded_whole_on_random_ids) {
    SmallVocabulary vocabulary;
    vocabulary.merges = {{"\xF0", "\x9F"}, {"\x82", "a"}, {"\xE2", "\x82"}, {"\xF0\x9F", "\xE2\x82"}};
    const Tokenizer tokenizer = vocabulary.tokenizer();
    std::mt19937 random(11);
    for (int n = 0; n < 500; ++n) {
        std::vector<int32_t> ids;
        for (unsigned k = random() % 30; k > 0; --k) {
            const unsigned count = static_cast<unsigned>(tokenizer.vocab_size());
            ids.push_back(static_cast<int32_t>(random() % 2 == 0 ? random() % count : count - 1 - random() % 100));
        }
        std::string whole;
        Utf8Stream once;
        once.push(tokenizer.decode(ids), whole);
        once.finish(whole);
        EXPECT_EQ(stream(tokenizer, ids, Detokenizer::Special::show), whole);
    }
}

}  // namespace
}  // namespace riptide
