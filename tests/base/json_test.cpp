#include "base/json.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <random>

#include "base/error.h"
#include "base/work_budget.h"

namespace riptide {
namespace {

std::string problem_of(std::string_view text) {
    try {
        parse_json(text, "it");
    } catch (const Error& error) {
        return error.what();
    }
    return "";
}

TEST(Json, half_a_surrogate_pair_is_said_with_its_place) {
    const char* missing = "is half of a surrogate pair, and the other half does not follow";
    EXPECT_EQ(problem_of(R"({"a":"\ud800"})"), std::string("it: not valid JSON at byte 12: \\ud800 ") + missing);
    EXPECT_EQ(problem_of(R"({"a":"\uDBffx"})"), std::string("it: not valid JSON at byte 12: \\uDBff ") + missing);
    EXPECT_EQ(problem_of(R"({"a":"\ud800\n"})"), std::string("it: not valid JSON at byte 13: \\ud800 ") + missing);
    EXPECT_EQ(problem_of(R"({"a":"\ud800\u0041"})"), "it: not valid JSON at byte 14: illegal trailing surrogate");
    EXPECT_EQ(problem_of(R"({"a":"\udc00"})"), "it: not valid JSON at byte 12: illegal trailing surrogate");
    EXPECT_EQ(problem_of(R"({"a":"\ud83d\ude00"})"), "");
    for (const char* other : {R"({"a":"\ue000")", R"(["\\ud800" x])", "]", "x"})
        EXPECT_EQ(problem_of(other).find("surrogate"), std::string::npos) << problem_of(other);
}

TEST(Json, numbers_are_read_as_the_nearest_double) {
    std::mt19937 random(1);
    for (int i = 0; i < 20'000; ++i) {
        std::string text = i % 2 == 0 ? "" : "-";
        text += std::to_string(1 + random() % 9) + ".";
        for (std::size_t digits = 1 + random() % 17; digits > 0; --digits) text += std::to_string(random() % 10);
        text += "e" + std::to_string(static_cast<int>(random() % 600) - 300);
        ASSERT_EQ(parse_json("[" + text + "]", "it").at(0).as_double(), std::strtod(text.c_str(), nullptr)) << text;
    }
    EXPECT_EQ(parse_json("7.679126163740e-12", "it").as_double(), 7.679126163740e-12);
    EXPECT_EQ(parse_json("[0.1, 12, 2.5e1]", "it"), json::value({0.1, 12, 25.0}));
    EXPECT_EQ(parse_json("1e-400", "it").as_double(), 0);
    EXPECT_TRUE(parse_json("18446744073709551615", "it").is_uint64());
}

TEST(Json, values_that_need_more_memory_than_allowed_are_refused_while_they_are_parsed) {
    std::string text = "[1";
    for (int i = 0; i < 100'000; ++i) text += ",1";
    text += "]";
    const json::value fits = parse_json_within(text, "it", 16 << 20);
    EXPECT_EQ(fits.as_array().size(), 100'001u);
    EXPECT_EQ(json::value(fits), fits) << "a copy is of no such memory";
    try {
        parse_json_within(text, "it", 1 << 20);
        ADD_FAILURE() << "taken";
    } catch (const Error& error) {
        EXPECT_STREQ(error.what(), "it: its values need more than 1048576 bytes of memory");
    }
    EXPECT_EQ(parse_json_within("{\"a\": [1, \"b\"]}", "it", 1 << 20), parse_json("{\"a\": [1, \"b\"]}", "it"));
}

TEST(Json, an_object_of_a_stranger_has_32768_members_at_most) {
    std::string text = "{";
    for (std::size_t i = 0; i < kMostJsonMembers; ++i) text += fmt::format("\"{}\":0,", i);
    try {
        parse_json_within(text + "\"\":0}", "it", 1 << 30);
        ADD_FAILURE() << "taken";
    } catch (const Error& error) {
        EXPECT_EQ(error.what(),
                  fmt::format("it: not valid JSON at byte {}: an object of more than 32768 members", text.size()));
    }
    EXPECT_EQ(parse_json(text + "\"\":0}", "it").as_object().size(), kMostJsonMembers + 1);
    text.back() = '}';
    EXPECT_EQ(parse_json_within(text, "it", 1 << 30).as_object().size(), kMostJsonMembers);
}

/// Names whose hashes (FNV-1a, 64 bits, its start plus the salt) are equal in their lower 12 bits for this salt.
std::string colliding_members(std::size_t members, uint64_t salt) {
    std::string text = "{";
    for (std::size_t i = 0, made = 0; made < members; ++i) {
        const std::string name = fmt::format("{:x}", i);
        uint64_t hash = 0xcbf29ce484222325 + salt;
        for (const char c : name) hash = (static_cast<uint64_t>(c) ^ hash) * 0x100000001b3;
        if (hash % 4096 != 5) continue;
        text += fmt::format("{}\"{}\":0", made == 0 ? "" : ",", name);
        ++made;
    }
    return text + "}";
}

TEST(Json, names_made_to_collide_are_no_slower_than_others) {
    // A table of 131,072 bytes or more begins 16 bytes behind a page's start, unless somebody draws the place.
    const std::string texts[] = {colliding_members(4096, 0x10), colliding_members(4096, 0x7f1)};
    double fastest[] = {1e9, 1e9};
    const auto processor = [] {  // of this thread: others may be busy
        timespec t;
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
        return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
    };
    for (int i = 0; i < 30; ++i) {
        const double begun = processor();
        parse_json_within(texts[i % 2], "it", 1 << 30);
        fastest[i % 2] = std::min(fastest[i % 2], processor() - begun);
    }
    EXPECT_LT(fastest[0], 4 * fastest[1]) << "seconds, the fastest of fifteen";
}

TEST(Json, a_text_is_read_piece_by_piece_and_says_the_same) {
    const std::string pair =
        R"(["\ud83d\ude00 \u00e4\n",-12345678901234567.5e-3,true,null,{"a key":18446744073709551615}])";
    const json::value expected = parse_json(pair, "it");
    for (std::size_t before = (16 << 10) - 2 * pair.size(); before < (16 << 10); ++before) {
        const std::string text = std::string(before, ' ') + "[" + pair + "," + pair + "]";
        const json::value value = parse_json(text, "it");
        ASSERT_EQ(value.at(0), expected) << before;
        ASSERT_EQ(value.at(1), expected) << before;
        const std::string half = std::string(before, ' ') + R"({"a":"\ud800\n"})";
        ASSERT_EQ(problem_of(half),
                  fmt::format("it: not valid JSON at byte {}: \\ud800 is half of a surrogate pair, and "
                              "the other half does not follow",
                              before + 13));
        ASSERT_EQ(problem_of(text + " x"),
                  fmt::format("it: extra bytes after the JSON value at byte {}", text.size() + 1));
        ASSERT_EQ(problem_of(text.substr(0, text.size() - 1)),
                  fmt::format("it: not valid JSON at byte {}: incomplete JSON", text.size() - 1));
    }
}

TEST(Json, who_has_gone_does_not_wait_until_a_text_is_parsed) {
    std::atomic<bool> gone = true;
    WorkBudget work(WorkBudget::kUnlimited, &gone);
    EXPECT_THROW(parse_json_within("[1]", "it", 1 << 20, &work), WorkStopped);
    gone = false;
    EXPECT_EQ(parse_json_within("[1]", "it", 1 << 20, &work), parse_json("[1]", "it"));
}

TEST(Json, copies_of_a_shared_value_are_one) {
    EXPECT_TRUE((*SharedJson()).is_null());
    const SharedJson one = json::value("long enough to be no small text");
    const SharedJson other = one;
    EXPECT_EQ(&*one, &*other);
}

}  // namespace
}  // namespace riptide
