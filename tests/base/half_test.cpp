// The 16- and 8-bit float conversions, exhaustively where the domain is small, against slow ones in double elsewhere.
#include "tensor/half.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

namespace riptide {

namespace {

/// An IEEE-like format: exponent bits, mantissa bits; with an infinity, or (E4M3FN) with finite values up to
/// mantissa 6.
struct Format {
    int exponent_bits, mantissa_bits;
    bool has_infinity;

    int bias() const { return (1 << (exponent_bits - 1)) - 1; }
    uint32_t sign_bit() const { return 1u << (exponent_bits + mantissa_bits); }
    uint32_t codes() const { return sign_bit(); }  // of non-negative values, infinity and NaN included
    bool is_nan(uint32_t code) const {
        const uint32_t top = ((1u << exponent_bits) - 1) << mantissa_bits;
        return has_infinity ? code > top : code == sign_bit() - 1;
    }
    /// The value of a non-negative code, infinity as the next power of two.
    double value(uint32_t code) const {
        const int exponent = static_cast<int>(code >> mantissa_bits);
        const double mantissa = code & ((1u << mantissa_bits) - 1), unit = std::ldexp(1.0, -mantissa_bits);
        if (exponent == 0) return std::ldexp(mantissa * unit, 1 - bias());
        return std::ldexp(1 + mantissa * unit, exponent - bias());
    }
    uint32_t largest() const {
        return has_infinity ? (((1u << exponent_bits) - 1) << mantissa_bits) - 1 : sign_bit() - 2;
    }
};
constexpr Format kF16{5, 10, true}, kBF16{8, 7, true}, kF8{4, 3, false};

/// Nearest even by bisection over the codes. Saturates where there is no infinity.
uint32_t slow_encode(const Format& format, float x) {
    const uint32_t sign = std::signbit(x) ? format.sign_bit() : 0;
    const double a = std::fabs(double{x});
    uint32_t low = 0, high = format.has_infinity ? format.largest() + 1 : format.largest();
    if (a >= format.value(high)) return sign | high;
    while (high - low > 1) {
        const uint32_t middle = (low + high) / 2;
        (format.value(middle) <= a ? low : high) = middle;
    }
    const double below = a - format.value(low), above = format.value(high) - a;
    const bool up = above < below || (above == below && low % 2 == 1);
    return sign | (up ? high : low);
}

template <class Decode, class Encode>
void expect_all_codes_round_trip(const Format& format, Decode decode, Encode encode) {
    for (uint32_t code = 0; code < 2 * format.codes(); ++code) {
        const uint32_t magnitude = code & (format.sign_bit() - 1);
        const float value = decode(code);
        if (format.is_nan(magnitude)) {
            EXPECT_TRUE(std::isnan(value)) << code;
            EXPECT_TRUE(format.is_nan(encode(value) & (format.sign_bit() - 1))) << code;
            continue;
        }
        const bool infinite = format.has_infinity && magnitude > format.largest();
        const double expected = infinite ? INFINITY : format.value(magnitude);
        EXPECT_EQ(std::fabs(double{value}), expected) << code;
        EXPECT_EQ(std::signbit(value), (code & format.sign_bit()) != 0) << code;
        EXPECT_EQ(encode(value), code);
    }
}

/// Values where a rounding could go wrong: every code, the midpoint to the next one, and the floats next to both.
template <class Encode>
void expect_nearest_even(const Format& format, Encode encode) {
    const auto check = [&](float x) {
        ASSERT_EQ(encode(x), slow_encode(format, x)) << x;
        ASSERT_EQ(encode(-x), slow_encode(format, -x)) << -x;
    };
    for (uint32_t code = 0; code <= format.largest(); ++code) {
        const double here = format.value(code), next = format.value(code + 1);
        for (double v : {here, (here + next) / 2}) {
            const auto x = static_cast<float>(v);
            check(x);
            check(std::nextafter(x, INFINITY));
            check(std::nextafter(x, 0.0f));
        }
    }
    std::mt19937 engine(20);
    for (int i = 0; i < 300000; ++i) {
        const float x = std::bit_cast<float>(static_cast<uint32_t>(engine()));
        if (!std::isnan(x)) check(x);
        check(std::ldexp(static_cast<float>(engine()), -48 + static_cast<int>(engine() % 40)));
    }
    check(INFINITY);
}

float f16_value(uint32_t code) { return f16_to_f32(static_cast<uint16_t>(code)); }
float bf16_value(uint32_t code) { return bf16_to_f32(static_cast<uint16_t>(code)); }
float f8_value(uint32_t code) { return f8_e4m3_to_f32(static_cast<uint8_t>(code)); }

}  // namespace

TEST(Half, all_f16_codes_round_trip) { expect_all_codes_round_trip(kF16, f16_value, f32_to_f16); }
TEST(Half, all_bf16_codes_round_trip) { expect_all_codes_round_trip(kBF16, bf16_value, f32_to_bf16); }
TEST(Half, all_f8_codes_round_trip) { expect_all_codes_round_trip(kF8, f8_value, f32_to_f8_e4m3); }

TEST(Half, f16_rounds_to_nearest_even) { expect_nearest_even(kF16, f32_to_f16); }
TEST(Half, bf16_rounds_to_nearest_even) { expect_nearest_even(kBF16, f32_to_bf16); }
TEST(Half, f8_rounds_to_nearest_even_and_saturates) { expect_nearest_even(kF8, f32_to_f8_e4m3); }

TEST(Half, f8_nan_is_the_quiet_nan_of_its_sign) {
    EXPECT_EQ(std::bit_cast<uint32_t>(f8_e4m3_to_f32(0x7F)), 0x7FC00000u);
    EXPECT_EQ(std::bit_cast<uint32_t>(f8_e4m3_to_f32(0xFF)), 0xFFC00000u);
}

TEST(Half, every_float_nan_stays_nan) {
    for (uint32_t payload : {1u, 0x1FFFu, 0x2000u, 0xFFFFu, 0x10000u, 0x3FFFFFu, 0x400000u, 0x7FFFFFu})
        for (uint32_t sign : {0u, 0x80000000u}) {
            const float x = std::bit_cast<float>(sign | 0x7F800000u | payload);
            EXPECT_TRUE(std::isnan(f16_to_f32(f32_to_f16(x)))) << payload;
            EXPECT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(x)))) << payload;
            EXPECT_TRUE(std::isnan(f8_e4m3_to_f32(f32_to_f8_e4m3(x)))) << payload;
        }
}

}  // namespace riptide
