// Decimal numbers of any size, exact.
#pragma once

#include <compare>
#include <string>
#include <string_view>

#include "base/json_fwd.h"

namespace riptide {

/// A number in decimal.
struct Decimal {
    std::string whole = "0", fraction;  // digits; no leading zeros, no trailing ones
    bool negative = false;              // not of zero

    bool is_zero() const { return whole == "0" && fraction.empty(); }
    bool is_whole() const { return fraction.empty(); }
    friend std::strong_ordering operator<=>(const Decimal& a, const Decimal& b);
    friend bool operator==(const Decimal&, const Decimal&) = default;
};

/// Of a number as JSON writes it. REQUIRES: it is one, with an exponent within 400.
Decimal decimal_of(std::string_view text);
/// Of a JSON number. A double stands for the shortest decimal that is read as this double. From 2^63 on, where the text
/// may have been a whole number of more digits than a double keeps, it is one that is surely not above (`low`: not
/// below) what was written.
Decimal decimal_of(const json::value& number, bool low);
/// The nearest decimal of a double that is less (`low`: more) than this one and is not read as this one.
Decimal decimal_beside(const Decimal& number, bool low);
/// The same of whole numbers: the next one, or the nearest double if the next one is read as this one is.
Decimal whole_beside(const Decimal& number, bool low);

/// Cut behind so many digits of the fraction; rounded up to it. REQUIRES: not negative.
Decimal cut(const Decimal& number, std::size_t digits);
Decimal rounded_up(const Decimal& number, std::size_t digits);
/// One unit more, or less: of a whole number.
Decimal next_whole(const Decimal& number, bool up);
Decimal negated(Decimal number);
/// Whether it is a whole number of times `unit`. REQUIRES: unit is above 0, its digits without the zeros round them are
/// at most 18.
bool is_multiple(const Decimal& number, const Decimal& unit);

}  // namespace riptide
