// How far from the exact one a product with a stored weight may be: for the CPU and for both kernel families of a GPU.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "quant/codec.h"
#include "quant/dot.h"
#include "quant/planes.h"
#include "tests/ops/kquant_f16_bound.h"
#include "tests/ops/op_fixture.h"

namespace riptide {

/// A number in double, and how far from it the device may be.
struct Near {
    double value = 0;
    double error = 0;
    double most() const { return std::abs(value) + error; }
};

inline std::vector<Near> exactly(const float* x, int64_t n) {
    std::vector<Near> out;
    for (int64_t i = 0; i < n; ++i) out.push_back({x[i], 0});
    return out;
}

// The bounds, with M = sum |w x| and u = 2^-24. What x is off by goes in with |w|. Not for the matrices that Hopper
// multiplies in half precision: kquant_f16_bound.h.
//   int8 activations (CPU: block types; GPU decode: plane types):
//     sum |w| 0.502 amax_32 / 127 for quantising x; then at most (10 + K / 256) roundings of terms of which each is
//     below 4 max |w| |a|: |m| and s u stay below 2 max |w| because codes drawn at random lie near both ends.
//   f32 activations (CPU: (K / 16 + 4) u M): on a GPU (K / 16 + 8) u M, for planes multiplied into w or into sums.
//   GPU prefill: w and x rounded to bf16, each off by at most 2^-8 (eight digits, nearest): (1 + 2^-8)^2 - 1 = 2^-7 +
//     2^-16; their products are exact; tensor cores may cut off instead of rounding: K 2^-23 M for the sum, in any
//     order, of products that are larger by the former.
//   Types that a GPU stores as f16: 2^-11 of |w|, or 2^-25 below the normal range of f16.
class ProductBound {
  public:
    /// `host` as in the file, `placed` as OpContext::weight gave it. What `host` points to must stay.
    ProductBound(const Context& ctx, const Weight& host, const Weight& placed)
        : host_(host),
          gpu_(ctx.gpu != nullptr),
          bf16_(gpu_ && ctx.family == Family::prefill),
          int8_(gpu_ ? !bf16_ && is_planes(placed.dtype) : uses_int8_activations(host.dtype)),
          halved_(gpu_ && placed.dtype == DType::f16 && host.dtype != DType::f16) {
        RT_ASSERT(!int8_ || expected_arithmetic(ctx.gpu, host) == Arithmetic::int8);
    }

    /// y = W x.
    std::vector<Near> operator()(const std::vector<Near>& x) const {
        EXPECT_EQ(static_cast<int64_t>(x.size()), host_.cols);
        std::vector<Near> y;
        std::vector<float> w(static_cast<size_t>(host_.cols));
        for (int64_t r = 0; r < host_.rows; ++r) {
            dequantize_row(host_, r, w.data());
            y.push_back(row(w, x));
        }
        return y;
    }

  private:
    Near row(const std::vector<float>& w, const std::vector<Near>& x) const {
        const auto cols = static_cast<double>(x.size());
        Near y;
        double magnitude = 0, halving = 0;
        for (size_t c = 0; c < x.size(); ++c) {
            const double size = std::abs(double{w[c]});
            y.value += w[c] * x[c].value;
            y.error += size * x[c].error;
            magnitude += size * x[c].most();
            halving += std::max(size * 0x1p-11, 0x1p-25) * x[c].most();
        }
        if (halved_) y.error += halving;
        if (bf16_) y.error += (kBf16Product + cols * 0x1p-23 * (1 + kBf16Product)) * magnitude;
        else if (int8_) y.error += int8_error(w, x);
        else y.error += (std::ceil(cols / 16) + (gpu_ ? 8 : 4)) * kUnitF32 * magnitude;
        return y;
    }
    static double int8_error(const std::vector<float>& w, const std::vector<Near>& x) {
        double quantising = 0, terms = 0;
        for (size_t g = 0; g < x.size(); g += 32) {
            double largest = 0, amax = 0;
            for (size_t c = g; c < g + 32; ++c) {
                largest = std::max(largest, std::abs(double{w[c]}));
                amax = std::max(amax, x[c].most());
            }
            const double step = 0.502 / 127 * amax;
            for (size_t c = g; c < g + 32; ++c) {
                quantising += std::abs(double{w[c]}) * step;
                terms += 4 * largest * (x[c].most() + step);
            }
        }
        return quantising + (10 + std::ceil(static_cast<double>(x.size()) / 256)) * kUnitF32 * terms;
    }

    static constexpr double kBf16Product = 0x1p-7 + 0x1p-16;

    Weight host_;
    bool gpu_, bf16_, int8_, halved_;
};

/// silu(gate) * up: silu and its slope stay within 1.1 |t| and 1.1; exp, sum, quotient, product round 8 times at most.
inline Near swiglu_near(const Near& gate, const Near& up) {
    const double silu = gate.value / (1 + std::exp(-gate.value));
    Near z{silu * up.value, 0};
    const double silu_error = 1.1 * gate.error + 8 * kUnitF32 * (std::abs(silu) + 1.1 * gate.error);
    z.error = silu_error * up.most() + std::abs(silu) * up.error + kUnitF32 * std::abs(z.value) + 0x1p-120;
    return z;
}

/// RMSNorm(x) of one row with f32 weights: see norm_test.cpp.
inline std::vector<Near> rms_norm_near(const float* x, const std::vector<float>& weight, float eps) {
    double squares = 0;
    const auto d = static_cast<double>(weight.size());
    for (size_t i = 0; i < weight.size(); ++i) squares += double{x[i]} * x[i];
    std::vector<Near> y;
    for (size_t i = 0; i < weight.size(); ++i) {
        const double value = weight[i] * (x[i] / std::sqrt(squares / d + double{eps}));
        y.push_back({value, kUnitF32 * (4 + 3 * std::sqrt(d / 16 + 5)) * std::abs(value)});
    }
    return y;
}

/// Each value within its bound.
inline void expect_near(const float* values, const std::vector<Near>& expected, const std::string& what) {
    for (size_t i = 0; i < expected.size(); ++i)
        ASSERT_LE(std::abs(values[i] - expected[i].value), expected[i].error)
            << what << ": element " << i << " is " << values[i] << ", expected " << expected[i].value;
}

}  // namespace riptide
