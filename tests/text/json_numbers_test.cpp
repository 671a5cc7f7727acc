// Numbers within bounds: judged by comparing their digits, and by what doubles make of them.
#include <cstdlib>

#include "tests/text/constraint_world.h"

namespace riptide::testing {
namespace {

/// A number's digits without zeros around them, and the place of the first: 0.0120 is 12, -2.
struct Digits {
    bool negative = false;
    std::string text;
    int place = 0;

    explicit Digits(std::string number) {
        negative = number[0] == '-';
        if (negative) number.erase(0, 1);
        const size_t e = std::min(number.find_first_of("eE"), number.size());
        const int exponent = e < number.size() ? std::stoi(number.substr(e + 1)) : 0;
        number.resize(e);
        const size_t point = std::min(number.find('.'), number.size());
        if (point < number.size()) number.erase(point, 1);
        const size_t first = number.find_first_not_of('0');
        if (first == std::string::npos) {
            negative = false;
            return;
        }
        text = number.substr(first, number.find_last_not_of('0') + 1 - first);
        place = static_cast<int>(point) - static_cast<int>(first) + exponent;
    }
    int sign() const { return text.empty() ? 0 : negative ? -1 : 1; }
};

/// -1, 0, 1: less, equal, more.
int compared(const std::string& left, const std::string& right) {
    const Digits a(left), b(right);
    if (a.sign() != b.sign()) return a.sign() < b.sign() ? -1 : 1;
    if (a.place != b.place) return (a.place < b.place) == !a.negative ? -1 : 1;
    const int digits = a.text.compare(b.text);
    return digits == 0 ? 0 : (digits < 0) == !a.negative ? -1 : 1;
}

struct Range {
    std::string low, high;  // empty: none
    bool low_strict = false, high_strict = false, whole = false;

    std::string schema() const {
        std::string out = whole ? R"({"type": "integer")" : R"({"type": "number")";
        if (!low.empty()) out += fmt::format(R"(, "{}": {})", low_strict ? "exclusiveMinimum" : "minimum", low);
        if (!high.empty()) out += fmt::format(R"(, "{}": {})", high_strict ? "exclusiveMaximum" : "maximum", high);
        return out + "}";
    }
    bool holds(const std::string& number) const {
        return (low.empty() || compared(number, low) >= low_strict) &&
               (high.empty() || compared(number, high) <= -int{high_strict});
    }
    bool holds_as_double(const std::string& number) const {
        const auto read = [](const std::string& text) { return std::strtod(text.c_str(), nullptr); };
        const double x = read(number);
        return (low.empty() || (low_strict ? x > read(low) : x >= read(low))) &&
               (high.empty() || (high_strict ? x < read(high) : x <= read(high)));
    }
};

std::string random_digits(std::mt19937& random, size_t most) {
    std::string text;
    for (size_t i = 1 + random() % most; i > 0; --i)
        text += static_cast<char>('0' + (random() % 3 == 0 ? 9 : random() % 10));
    return text;
}

/// Of at most 15 digits, which doubles tell apart.
std::string random_number(std::mt19937& random, bool whole) {
    std::string text = random() % 3 == 0 ? "-" : "";
    const std::string digits = random_digits(random, 5);
    text += random() % 3 == 0 ? "0" : digits[0] == '0' ? "1" + digits : digits;
    if (!whole && random() % 4 != 0) text += "." + random_digits(random, 8);
    return text == "-0" ? "0" : text;
}

Range random_range(std::mt19937& random, bool whole) {
    Range range{.whole = whole};
    const auto bound = [&] {
        std::string text = random_number(random, false);
        if (random() % 4 == 0) text += "e" + std::to_string(static_cast<int>(random() % 9) - 4);
        return text;
    };
    if (random() % 5 != 0) range.low = bound();
    if (random() % 5 != 0) range.high = bound();
    if (!range.low.empty() && !range.high.empty() && compared(range.low, range.high) > 0)
        std::swap(range.low, range.high);
    range.low_strict = random() % 2 == 0;
    range.high_strict = random() % 2 == 0;
    return range;
}

std::shared_ptr<Constraint> constraint_of(const std::string& schema) {
    return schema_constraint(parse_json(schema, "schema"));
}

TEST(JsonNumbers, a_number_is_taken_just_if_it_is_within_the_bounds) {
    int taken = 0, refused = 0;
    for (unsigned seed = 0; seed < 250; ++seed) {
        std::mt19937 random(seed);
        const Range range = random_range(random, seed % 3 == 0);
        std::shared_ptr<Constraint> constraint;
        try {
            constraint = constraint_of(range.schema());
        } catch (const GrammarError&) {
        }
        for (int i = 0; i < 60; ++i) {
            std::string number = random_number(random, range.whole);
            const std::string& near = random() % 2 == 0 ? range.low : range.high;  // often a bound, or right beside it
            if (i % 3 == 0 && near.find('e') == std::string::npos && !near.empty()) {
                const bool has_point = near.find('.') != std::string::npos;
                if (!range.whole || !has_point) number = near;
                if (!range.whole && random() % 2 == 0) number += has_point ? "1" : ".0";
            }
            if (compared(number, "0") == 0) number = "0";
            if (number[0] == '-' && Digits(number).sign() == 0) continue;
            const bool expected = range.holds(number);
            ++(expected ? taken : refused);
            ASSERT_EQ(constraint && takes(constraint, number), expected) << "seed " << seed << "\n"
                                                                         << range.schema() << "\n"
                                                                         << number;
        }
    }
    EXPECT_GT(taken, 2000);
    EXPECT_GT(refused, 2000);
}

TEST(JsonNumbers, all_that_is_written_is_within_the_bounds_also_as_doubles) {
    const Range ranges[] = {
        {"1e-12", "0.001"},
        {"0.99999999999999", "0.99999999999999"},
        {"1e-300", "2e-300"},
        {"", "-1e-300"},
        {"1e25", "1e26"},
        {"0", "1", true, true},
        {"10", "", true},
        {"", "10", false, true},
        {"-0.1", "0.1", true, true},
        {"9007199254740993", ""},
        {"0.1", "0.3", true, true},
        {"-1e300", "1e-7"},
        {"5e-324", "1e-310"},
        {"1e18", "1e18"},
        {"-12.5", "-12.25"},
        {"0", "", true, false, false},
        {"1e-40", "1e-39"},
        {"0", "1e30", false, false, true},
        {"-9223372036854775808", "18446744073709551615", false, false, true},
        {"18446744073709551616", "18446744073709551700", false, false, true},
        {"-1e300", "-1e20", false, false, true},
    };
    for (const Range& range : ranges) {
        std::shared_ptr<Constraint> constraint;
        try {
            constraint = constraint_of(range.schema());
        } catch (const GrammarError& error) {
            EXPECT_TRUE(range.low == "5e-324" || range.low == "18446744073709551616") << range.schema() << error.what();
            continue;
        }
        for (unsigned seed = 0; seed < 60; ++seed) {
            std::mt19937 random(seed);
            const std::string answer = random_answer(constraint, random, static_cast<int>(seed % 25));
            ASSERT_TRUE(range.holds(answer)) << range.schema() << "\n" << answer;
            ASSERT_TRUE(range.holds_as_double(answer)) << range.schema() << "\n" << answer;
        }
    }
    for (unsigned seed = 0; seed < 150; ++seed) {
        std::mt19937 random(1000 + seed);
        const Range range = random_range(random, seed % 3 == 0);
        try {
            const std::string answer = random_answer(constraint_of(range.schema()), random, 12);
            ASSERT_TRUE(range.holds(answer) && range.holds_as_double(answer)) << range.schema() << "\n" << answer;
        } catch (const GrammarError&) {
        }
    }
}

TEST(JsonNumbers, numbers_are_taken_or_not_as_written_here) {
    const std::pair<const char*, std::pair<std::vector<const char*>, std::vector<const char*>>> cases[] = {
        {R"({"type": "number", "minimum": 1e-12, "maximum": 0.001})",
         {{"0.000000000001", "1e-12", "9.99E-4", "0.001", "1e-05"}, {"0", "0.0", "9.9e-13", "0.0011", "1.01e-3"}}},
        {R"({"type": "number", "minimum": 0.99999999999999, "maximum": 0.99999999999999})",
         {{"0.99999999999999", "0.9999999999999900"}, {"1", "1.0", "0.999999999999991"}}},
        {R"({"type": "integer", "minimum": 9007199254740993, "maximum": 18446744073709551615})",
         {{"9007199254740993", "18446744073709551615"}, {"9007199254740992", "18446744073709551616"}}},
        {R"({"type": "number", "maximum": 18446744073709551615})",
         {{"18446744073709551600"}, {"18446744073709551616"}}},
        {R"({"type": "integer", "exclusiveMinimum": -3, "exclusiveMaximum": 3})",
         {{"-2", "0", "2"}, {"-3", "3", "-0"}}},
        {R"({"type": "integer", "minimum": 0, "exclusiveMinimum": true, "maximum": 9})", {{"1", "9"}, {"0", "10"}}},
        // What a reader of doubles takes for the bound itself is not beyond it.
        {R"({"type": "integer", "exclusiveMinimum": 18446744073709551615, "exclusiveMaximum": 1e20})",
         {{"18446744073709555712", "99999999999999983616"}, {"18446744073709551615", "18446744073709551616"}}},
        {R"({"type": "integer", "exclusiveMinimum": 9007199254740995})",
         {{"9007199254740998"}, {"9007199254740995", "9007199254740996"}}},
        {R"({"type": "integer", "exclusiveMaximum": -9007199254740995})",
         {{"-9007199254740998"}, {"-9007199254740995", "-9007199254740996"}}},
        {R"({"type": "integer", "multipleOf": 7, "minimum": -20, "maximum": 700})",
         {{"-14", "0", "7", "693", "700"}, {"-21", "6", "699", "707", "07"}}},
        {R"({"type": "number", "multipleOf": 0.01, "minimum": 0})",
         {{"0", "0.07", "0.070", "19.99", "5.0", "3"}, {"0.001", "-0.01", "19.999", "1e2", "5."}}},
        {R"({"type": "number", "multipleOf": 2.5})", {{"0", "-2.5", "5", "7.50", "10.0"}, {"1", "2.05", "-3", "5.5"}}},
        {R"({"type": "integer", "multipleOf": 1e-8})", {{"12391239123", "-1"}, {"1.5"}}},
        {R"({"type": "integer", "multipleOf": 1000})", {{"0", "120000", "-1000"}, {"100", "1200"}}},
    };
    for (const auto& [schema, numbers] : cases) {
        const auto constraint = constraint_of(schema);
        for (const char* number : numbers.first) EXPECT_TRUE(takes(constraint, number)) << schema << "\n" << number;
        for (const char* number : numbers.second) EXPECT_FALSE(takes(constraint, number)) << schema << "\n" << number;
    }
}

TEST(JsonNumbers, what_cannot_be_held_is_refused_by_name) {
    const std::pair<const char*, const char*> cases[] = {
        {R"({"type": "integer", "multipleOf": 123456789})", "#: 'multipleOf' needs a state for each remainder of"},
        {R"({"type": "integer", "multipleOf": 0})", "#: 'multipleOf' is not above 0"},
        {R"({"type": "integer", "multipleOf": "a"})", "#: 'multipleOf' is not a number"},
        {R"({"type": "integer", "minimum": 1e60})", "#: whole numbers of more than 40 digits"},
        {R"({"type": "integer", "minimum": 0.1, "maximum": 0.9})", "nothing can match"},
        {R"({"type": "number", "minimum": "0"})", "#: 'minimum' is not a number"},
        {R"({"type": "number", "exclusiveMinimum": 1e400})", "nothing can match"},
    };
    for (const auto& [schema, message] : cases) {
        try {
            constraint_of(schema);
            ADD_FAILURE() << schema << " is taken";
        } catch (const GrammarError& error) {
            EXPECT_NE(std::string(error.what()).find(message), std::string::npos) << schema << "\n" << error.what();
        }
    }
}

}  // namespace
}  // namespace riptide::testing
