#include "text/json/decimal.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "base/error.h"
#include "base/json.h"

namespace riptide {

namespace {

constexpr double kTwo63 = 9223372036854775808.0;

void trim(Decimal& number) {
    number.whole.erase(0, std::min(number.whole.find_first_not_of('0'), number.whole.size()));
    if (number.whole.empty()) number.whole = "0";
    number.fraction.resize(number.fraction.find_last_not_of('0') + 1);
    if (number.is_zero()) number.negative = false;
}

/// Digits, one more.
std::string incremented(std::string digits) {
    auto at = digits.rbegin();
    for (; at != digits.rend() && *at == '9'; ++at) *at = '0';
    if (at == digits.rend()) return "1" + digits;
    ++*at;
    return digits;
}

/// Digits that are not all 0, one less.
std::string decremented(std::string digits) {
    auto at = digits.rbegin();
    for (; *at == '0'; ++at) *at = '9';
    --*at;
    return digits;
}

std::strong_ordering compare_sizes(const Decimal& a, const Decimal& b) {
    if (a.whole.size() != b.whole.size()) return a.whole.size() <=> b.whole.size();
    const int whole = a.whole.compare(b.whole), fraction = a.fraction.compare(b.fraction);
    return (whole != 0 ? whole : fraction) <=> 0;
}

double double_of(const Decimal& number) {
    // Not std::stod, which refuses what is nearly 0.
    return std::strtod(fmt::format("{}{}.{}0", number.negative ? "-" : "", number.whole, number.fraction).c_str(),
                       nullptr);
}

/// Whole numbers from 2^53 on exactly, others as shortly as can be.
Decimal decimal_of_double(double number) {
    if (std::isinf(number)) return decimal_of(number < 0 ? "-1e400" : "1e400");
    return decimal_of(std::abs(number) < 9007199254740992.0 ? fmt::format("{}", number)
                                                            : fmt::format("{:.0f}", number));
}

}  // namespace

std::strong_ordering operator<=>(const Decimal& a, const Decimal& b) {
    if (a.negative != b.negative) return a.negative ? std::strong_ordering::less : std::strong_ordering::greater;
    return a.negative ? compare_sizes(b, a) : compare_sizes(a, b);
}

Decimal decimal_of(std::string_view text) {
    Decimal out;
    out.negative = text.starts_with('-');
    if (out.negative) text.remove_prefix(1);
    const std::size_t e = std::min(text.find_first_of("eE"), text.size());
    const int exponent = e < text.size() ? std::stoi(std::string(text.substr(e + 1))) : 0;
    const std::string_view digits = text.substr(0, e);
    const std::size_t point = std::min(digits.find('.'), digits.size());
    std::string all(digits.substr(0, point));
    if (point < digits.size()) all += digits.substr(point + 1);
    auto place = static_cast<std::ptrdiff_t>(point) + exponent;  // of the point in `all`
    if (place < 0) {
        all.insert(0, static_cast<std::size_t>(-place), '0');
        place = 0;
    }
    if (place > std::ssize(all)) all.resize(static_cast<std::size_t>(place), '0');
    out.whole = all.substr(0, static_cast<std::size_t>(place));
    out.fraction = all.substr(static_cast<std::size_t>(place));
    trim(out);
    return out;
}

Decimal decimal_of(const json::value& number, bool low) {
    if (!number.is_double()) return decimal_of(json::serialize(number));
    const double value = number.get_double();
    if (std::isinf(value)) return decimal_of_double(value);
    const std::string shortest = fmt::format("{}", value);
    const std::string digits = shortest.substr(0, shortest.find('e'));
    const auto count = std::count_if(digits.begin(), digits.end(), [](char c) { return c >= '0' && c <= '9'; });
    if (std::abs(value) < kTwo63 || count <= 15) return decimal_of(shortest);
    const double inward = low ? std::numeric_limits<double>::infinity() : -std::numeric_limits<double>::infinity();
    return decimal_of_double(std::nextafter(value, inward));
}

Decimal decimal_beside(const Decimal& number, bool low) {
    const double inward = low ? std::numeric_limits<double>::infinity() : -std::numeric_limits<double>::infinity();
    return decimal_of_double(std::nextafter(double_of(number), inward));
}

Decimal whole_beside(const Decimal& number, bool low) {
    Decimal next = next_whole(number, low);
    return double_of(next) == double_of(number) ? decimal_beside(number, low) : next;
}

Decimal cut(const Decimal& number, std::size_t digits) {
    Decimal out = number;
    if (out.fraction.size() > digits) out.fraction.resize(digits);
    trim(out);
    return out;
}

Decimal rounded_up(const Decimal& number, std::size_t digits) {
    if (number.fraction.size() <= digits) return number;
    const std::string all = incremented(number.whole + number.fraction.substr(0, digits));
    Decimal out;
    out.whole = all.substr(0, all.size() - digits);
    out.fraction = all.substr(all.size() - digits);
    trim(out);
    return out;
}

Decimal next_whole(const Decimal& number, bool up) {
    Decimal out = number;
    if (number.is_zero()) {
        out.whole = "1";
        out.negative = !up;
    } else {
        out.whole = up != number.negative ? incremented(number.whole) : decremented(number.whole);
    }
    trim(out);
    return out;
}

Decimal negated(Decimal number) {
    number.negative = !number.negative && !number.is_zero();
    return number;
}

bool is_multiple(const Decimal& number, const Decimal& unit) {
    const std::string digits = unit.whole + unit.fraction;
    const std::size_t zeros = digits.size() - 1 - digits.find_last_not_of('0');
    std::string all = number.whole + number.fraction;
    if (number.fraction.size() > unit.fraction.size()) return false;
    all.append(unit.fraction.size() - number.fraction.size(), '0');
    const uint64_t divisor = std::stoull(digits.substr(0, digits.size() - zeros));
    uint64_t rest = 0;
    for (std::size_t i = 0; i < all.size(); ++i) {
        if (i + zeros >= all.size() && all[i] != '0') return false;
        if (i + zeros < all.size()) rest = (rest * 10 + static_cast<uint64_t>(all[i] - '0')) % divisor;
    }
    return rest == 0;
}

}  // namespace riptide
