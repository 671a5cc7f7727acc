#include "base/json.h"

#include <gtest/gtest.h>

#include "base/error.h"

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

}  // namespace
}  // namespace riptide
