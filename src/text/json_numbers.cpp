// JsonGrammar: numbers within bounds, digit by digit.
#include <algorithm>

#include "text/json_grammar.h"

namespace riptide {

namespace {

using Expr = Grammar::Expr;

constexpr int64_t kDigits = 18, kDecimals = 16;

class NumberWriter {
  public:
    explicit NumberWriter(Grammar& g) : g_(g) {}

    /// Texts of the same length as `low` and `high`, between them.
    Expr same_length(std::string_view low, std::string_view high) {
        if (low.empty()) return g_.empty();
        const bool all_low = low.find_first_not_of('0') == std::string_view::npos;
        const bool all_high = high.find_first_not_of('9') == std::string_view::npos;
        const auto rest = static_cast<int64_t>(low.size()) - 1;
        if (all_low && all_high) return digits(rest + 1, rest + 1);
        const std::string nines(low.size() - 1, '9'), zeros(low.size() - 1, '0');
        if (low[0] == high[0])
            return g_.sequence({g_.text(low.substr(0, 1)), same_length(low.substr(1), high.substr(1))});
        std::vector<Expr> ways = {g_.sequence({g_.text(low.substr(0, 1)), same_length(low.substr(1), nines)}),
                                  g_.sequence({g_.text(high.substr(0, 1)), same_length(zeros, high.substr(1))})};
        if (low[0] + 1 < high[0])
            ways.push_back(g_.sequence(
                {digit(static_cast<char>(low[0] + 1), static_cast<char>(high[0] - 1)), digits(rest, rest)}));
        return g_.choice(std::move(ways));
    }

    /// Whole numbers from low to high, 0 <= low; of at most kDigits digits.
    Expr whole_between(int64_t low, int64_t high) {
        std::vector<Expr> ways;
        const std::string first = std::to_string(low), last = std::to_string(high);
        for (std::size_t length = first.size(); low <= high && length <= last.size(); ++length) {
            const std::string from = length == first.size() ? first : "1" + std::string(length - 1, '0');
            const std::string to = length == last.size() ? last : std::string(length, '9');
            ways.push_back(same_length(from, to));
        }
        return g_.choice(std::move(ways));
    }

    Expr digit(char low, char high) { return g_.chars({{static_cast<char32_t>(low), static_cast<char32_t>(high)}}); }
    Expr digits(int64_t least, int64_t most) { return g_.repeat(digit('0', '9'), least, most); }
    Expr any_fraction() { return g_.sequence({g_.text("."), digits(1, kDecimals)}); }
    Expr not_zero() {
        return g_.sequence({g_.repeat(g_.text("0"), 0, kDecimals - 1), digit('1', '9'), digits(0, kDecimals)});
    }
    /// Digits behind the point that make at least (strict: more than) `bound`.
    Expr fraction_above(std::string_view bound, bool strict) {
        if (bound.empty()) return strict ? not_zero() : digits(0, kDecimals);
        std::vector<Expr> ways = {g_.sequence({g_.text(bound.substr(0, 1)), fraction_above(bound.substr(1), strict)})};
        if (bound[0] < '9')
            ways.push_back(g_.sequence({digit(static_cast<char>(bound[0] + 1), '9'), digits(0, kDecimals)}));
        return g_.choice(std::move(ways));
    }
    /// Digits behind the point, at least one in all, that make at most (strict: less than) `bound`, which ends in none
    /// but 1 ... 9.
    Expr fraction_below(std::string_view bound, bool strict, bool may_end) {
        std::vector<Expr> ways;
        if (may_end && (!bound.empty() || !strict)) ways.push_back(g_.empty());
        if (bound.empty()) {
            if (!strict) ways.push_back(g_.repeat(g_.text("0"), 1, kDecimals));
            return g_.choice(std::move(ways));
        }
        ways.push_back(g_.sequence({g_.text(bound.substr(0, 1)), fraction_below(bound.substr(1), strict, true)}));
        if (bound[0] > '0')
            ways.push_back(g_.sequence({digit('0', static_cast<char>(bound[0] - 1)), digits(0, kDecimals)}));
        return g_.choice(std::move(ways));
    }

    /// Numbers from low to high, neither negative; `high` absent: no end.
    Expr magnitude(const NumberBound& low, const std::optional<NumberBound>& high) {
        const int64_t most = high ? std::stoll(high->whole) : std::stoll(std::string(kDigits, '9'));
        const int64_t least = std::stoll(low.whole);
        const bool low_inside = !low.fraction.empty(), high_inside = high && !high->fraction.empty();
        if ((low_inside || low.strict) && high_inside && least == most)
            throw GrammarError("bounds of a number within one unit of each other are not supported");
        const Expr point = g_.text(".");
        std::vector<Expr> ways;
        // Whole numbers.
        const int64_t first = least + (low_inside || low.strict), last = most - (high && high->strict && !high_inside);
        if (first <= last) ways.push_back(whole_between(first, last));
        // Units that lie inside as a whole: n ... n + 1 with any decimals.
        const int64_t first_unit = least + (low_inside || low.strict), last_unit = high ? most - 1 : most;
        if (first_unit <= last_unit)
            ways.push_back(g_.sequence({whole_between(first_unit, last_unit), any_fraction()}));
        // The units that hold the bounds.
        if ((low_inside || low.strict) && least <= last_unit)
            ways.push_back(g_.sequence({g_.text(low.whole), point, fraction_above(low.fraction, low.strict)}));
        if (high_inside && first_unit <= most)
            ways.push_back(
                g_.sequence({g_.text(high->whole), point, fraction_below(high->fraction, high->strict, false)}));
        // A whole bound may be written with zeros behind the point.
        if (high && !high_inside && !high->strict && first <= most)
            ways.push_back(g_.sequence({g_.text(high->whole), point, g_.repeat(g_.text("0"), 1, kDecimals)}));
        return g_.choice(std::move(ways));
    }

  private:
    Grammar& g_;
};

bool is_zero(const NumberBound& bound) { return bound.whole == "0" && bound.fraction.empty(); }

}  // namespace

Expr JsonGrammar::integer_between(std::optional<int64_t> low, std::optional<int64_t> high) {
    constexpr int64_t kMost = 999'999'999'999'999'999;
    const int64_t first = std::max(low.value_or(-kMost), -kMost), last = std::min(high.value_or(kMost), kMost);
    NumberWriter writer(g_);
    std::vector<Expr> ways;
    if (last >= 0) ways.push_back(writer.whole_between(std::max<int64_t>(0, first), last));
    if (first < 0)
        ways.push_back(g_.sequence({g_.text("-"), writer.whole_between(std::max<int64_t>(1, -last), -first)}));
    if (first > last) ways.clear();
    return g_.choice(std::move(ways));
}

Expr JsonGrammar::number_between(const std::optional<NumberBound>& low, const std::optional<NumberBound>& high) {
    NumberWriter writer(g_);
    std::vector<Expr> ways;
    const auto mirrored = [](NumberBound bound) {
        bound.negative = !bound.negative;
        return bound;
    };
    // Zero and above.
    if (!high || !high->negative) {
        const NumberBound from = low && !low->negative ? *low : NumberBound{};
        if (!(high && is_zero(*high) && high->strict)) ways.push_back(writer.magnitude(from, high));
    }
    // Below zero, as the mirror image: from -high (or just above zero) to -low.
    if (!low || (low->negative && !is_zero(*low))) {
        NumberBound from{.strict = true};
        if (high && high->negative) from = mirrored(*high);
        const std::optional<NumberBound> to = low ? std::optional(mirrored(*low)) : std::nullopt;
        ways.push_back(g_.sequence({g_.text("-"), writer.magnitude(from, to)}));
    }
    return g_.choice(std::move(ways));
}

}  // namespace riptide
