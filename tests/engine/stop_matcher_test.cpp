#include "engine/sampling/stop_matcher.h"

#include <gtest/gtest.h>

#include <random>

namespace riptide::testing {
namespace {

TEST(StopMatcher, holds_back_only_what_may_become_a_stop_string) {
    StopMatcher m({"</end>"});
    EXPECT_EQ(m.push("abc<"), "abc");
    EXPECT_EQ(m.push("/e"), "");
    EXPECT_EQ(m.push("x"), "</ex");
    EXPECT_EQ(m.push("</end"), "");
    EXPECT_EQ(m.push("></end>more"), "");
    EXPECT_TRUE(m.matched());
    EXPECT_EQ(m.match(), "</end>");
    EXPECT_EQ(m.push("again"), "");
    EXPECT_EQ(m.finish(), "");
}

TEST(StopMatcher, gives_the_rest_at_the_end) {
    StopMatcher m({"</end>"});
    EXPECT_EQ(m.push("a</en"), "a");
    EXPECT_EQ(m.finish(), "</en");
    EXPECT_EQ(m.finish(), "");
    EXPECT_FALSE(m.matched());
}

TEST(StopMatcher, the_string_that_is_complete_first_counts) {
    StopMatcher m({"abcdef", "cd"});
    EXPECT_EQ(m.push("xabcdef"), "xab");
    EXPECT_EQ(m.match(), "cd");
}

TEST(StopMatcher, of_those_that_end_together_the_longest_counts) {
    StopMatcher m({"cd", "abcd"});
    EXPECT_EQ(m.push("xabcd"), "x");
    EXPECT_EQ(m.match(), "abcd");
}

TEST(StopMatcher, a_prefix_that_repeats_itself_is_not_lost) {
    StopMatcher m({"aab"});
    std::string out;
    for (const char c : std::string("caaab")) out += m.push(std::string(1, c));
    EXPECT_EQ(out, "ca");
    EXPECT_TRUE(m.matched());
}

// Against the definition, on a two-letter alphabet where near misses are everywhere.
TEST(StopMatcher, any_cut_gives_what_a_search_of_the_whole_text_gives) {
    std::mt19937 random(3);
    const auto word = [&](size_t most) {
        std::string s(1 + random() % most, 'a');
        for (char& c : s) c = "ab"[random() % 2];
        return s;
    };
    for (int round = 0; round < 20000; ++round) {
        std::vector<std::string> stops;
        for (size_t i = 0; i <= random() % 3; ++i) stops.push_back(word(5));
        const std::string text = word(14);
        size_t end = std::string::npos, length = 0;  // of the match that completes first, the longest of those
        for (size_t e = 1; e <= text.size() && end == std::string::npos; ++e)
            for (const std::string& stop : stops)
                if (std::string_view(text).substr(0, e).ends_with(stop) && stop.size() > length)
                    end = e, length = stop.size();
        StopMatcher m(stops);
        std::string out;
        for (size_t at = 0; at < text.size();) {
            const size_t n = 1 + random() % 4;
            out += m.push(std::string_view(text).substr(at, n));
            at += n;
        }
        out += m.finish();
        ASSERT_EQ(m.matched(), end != std::string::npos) << text;
        ASSERT_EQ(out, end == std::string::npos ? text : text.substr(0, end - length)) << text;
    }
}

TEST(StopMatcher, without_stop_strings_everything_passes) {
    StopMatcher m({});
    EXPECT_EQ(m.push("abc"), "abc");
    EXPECT_EQ(m.finish(), "");
}

}  // namespace
}  // namespace riptide::testing
