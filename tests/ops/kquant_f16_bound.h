// How far from the exact one a product of the decode family with a Q4_K or Q6_K matrix may be, in either arithmetic
// that such a matrix may have: x in int8 (quant/dot.h), or x in f16 on tensor cores. Two bounds: one on the distance
// from the exact product, and a sharp one, some hundred times smaller, on the distance from the product with x as it is
// rounded, which is known to the bit. The first says what a user loses, the second notices one missing column.
//
// u = 2^-24; h = x as rounded, in units of x; amax of a block of 256 columns (half) or a group of 32 (int8).
//
// x in f16. z = x, or fl(x * norm): u |z| off. A block is divided by a power of two 2^e so that amax / 2^e lies in
// [2^8, 2^9): exact. To f16: 2^-11 of |z|, or, below the normal range, 2^-25 in units of 2^e <= amax 2^-8: 2^-33 amax.
// Blocks with amax < 2^-100 count as zeros: |z|. The 1 / rms of a normalised row multiplies the product in the end.
// One block of Q4_K, a weight being d us - dmin m (us, m integers that f16 holds), in units of 2^e:
//   acc = A + B, sums of us h over the first and the second halves of the sub-blocks of 32, each by eight steps of
//     m16n8k16 (step_column() says of which columns). A tensor core of Hopper lines up the 16 exact products and the
//     sum so far with the largest of these 17, keeps two bits more than f32 has and cuts off the rest: 16 terms, each
//     off by up to 2^-25 of the largest; the result is cut to 24 bits, 2^-23.
//   X_j = sum of the 32 h of a sub-block, f32, no more than ten additions one behind the other: 10 u sum |h|. Its
//   halves
//     hi + lo, each rounded to f16: 2^-22 |X_j|, or 2^-25 where lo is below the normal range. One step for acc_m =
//     sum_j m_j (hi + lo).
//   d acc - dmin acc_m: three roundings of |d acc| + |dmin acc_m|, A + B one of them. Times 2^e: exact, or lost below
//   2^-126.
// Q6_K: us = (code - 32) s, to f16: exact up to 2,048, then 1 off if odd; no minimum.
// All blocks: block b goes to chain b mod 8, u of the chain's new sum each; then three more additions, and 1 / rms.
//
// x in int8: 0.502 / 127 amax for rounding, or |x| where amax < 2^-100; (10 + K / 256) u sum G: see quant/dot.h.
//
// 1 / rms: the squares in at least 64 lanes: K / 64 + 8 roundings of a positive sum, halved by the root, and four more.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include "quant/blocks.h"
#include "quant/dot.h"
#include "tensor/half.h"
#include "tests/ops/op_fixture.h"

namespace riptide {

enum class Arithmetic { int8, half };

/// How a step of the decode family on this device multiplies a Q4_K or Q6_K matrix of a file.
inline Arithmetic expected_arithmetic(const Gpu* gpu, const Weight& file) {
    const bool chip = gpu != nullptr && gpu->info().major == 9 && !gpu->options().portable;
    const bool wide = file.cols % 1024 == 0 && file.cols > 2048 && (file.rows >= 4096 || file.cols % 2048 != 0);
    return chip && wide && file.scale == 1.0f ? Arithmetic::half : Arithmetic::int8;
}

/// One row of a matrix, taken apart: weight c is d[c / 256] us[c] - dmin[c / 256] m[c], all of them exact.
struct TakenRow {
    bool minimums = false;
    std::vector<double> d, dmin;             // of each block of 256
    std::vector<double> code, scale, us, m;  // of each column; us = code * scale

    TakenRow(const Weight& w, int64_t row) : minimums(w.dtype == DType::q4_k) {
        const auto* at = static_cast<const std::byte*>(w.data) + row * w.row_bytes;
        for (std::vector<double>* v : {&code, &scale, &us, &m}) v->resize(static_cast<size_t>(w.cols));
        for (int64_t c = 0; c < w.cols; c += 256)
            if (minimums) take(reinterpret_cast<const BlockQ4K*>(at)[c / 256], static_cast<size_t>(c));
            else take(reinterpret_cast<const BlockQ6K*>(at)[c / 256], static_cast<size_t>(c));
        multiply();
    }
    void multiply() {
        for (size_t c = 0; c < us.size(); ++c) us[c] = code[c] * scale[c];
    }

  private:
    void take(const BlockQ4K& b, size_t at) {
        d.push_back(double{f16_to_f32(b.d)});
        dmin.push_back(double{f16_to_f32(b.dmin)});
        const KScales k = unpack_k_scales(b.scales);
        for (size_t i = 0; i < 256; ++i) {
            const uint8_t byte = b.qs[i / 64 * 32 + i % 32];
            code[at + i] = i % 64 < 32 ? byte & 15 : byte >> 4;
            scale[at + i] = k.s[i / 32];
            m[at + i] = k.m[i / 32];
        }
    }
    void take(const BlockQ6K& b, size_t at) {
        d.push_back(double{f16_to_f32(b.d)});
        dmin.push_back(0);
        for (size_t i = 0; i < 256; ++i) {
            const size_t h = i / 128, s = i / 32 % 4, l = i % 32;
            const int low = b.ql[64 * h + 32 * (s & 1) + l] >> (s < 2 ? 0 : 4) & 15,
                      high = b.qh[32 * h + l] >> 2 * s & 3;
            code[at + i] = (low | high << 4) - 32;
            scale[at + i] = b.scales[i / 16];
        }
    }
};

/// Column i of step `step` of a block: steps 0 .. 7 are those of A, 8 .. 15 those of B. A lane t of four has sub-blocks
/// 2 t and 2 t + 1 and takes four columns of one of them in each step (ops/cuda/linear/shared/kquant_f16.cuh).
constexpr size_t step_column(size_t step, size_t i) {
    const size_t k = step % 8;
    return 32 * (2 * (i / 4) + k / 4) + 4 * (k % 4) + i % 4 + step / 8 * 16;
}

inline double to_f16(double v) { return double{f16_to_f32(f32_to_f16(static_cast<float>(v)))}; }

/// A row of x as an arithmetic takes it. In each column: exact, as rounded, how far apart these may be, and what sums
/// of Q4_K's minimums may be off by beside what is relative.
struct TakenInput {
    Arithmetic arithmetic = Arithmetic::int8;
    std::vector<double> exact, rounded, off, size, floor;
    std::vector<double> steps;          // rounded, as steps take it (half)
    std::vector<int> exponent;          // of each block of 256 (half)
    double factor = 1, factor_off = 0;  // 1 / rms, and how far from it relatively
    bool finite = true;                 // otherwise all products are NaN
    bool known = true;                  // `rounded` is
    bool normalisable = true;  // otherwise the squares of the row overflow f32, 1 / rms is 0, and so are all products

    /// norm: empty, or a weight for each column.
    TakenInput(Arithmetic kind, std::span<const float> x, std::span<const float> norm = {}, float eps = 0)
        : arithmetic(kind), exact(x.size()), rounded(x.size()), off(x.size()), size(x.size()), floor(x.size()) {
        double squares = 0;
        for (size_t c = 0; c < x.size(); ++c) {
            exact[c] = norm.empty() ? double{x[c]} : double{x[c]} * norm[c];
            squares += double{x[c]} * x[c];
            finite = finite && std::isfinite(x[c]);
        }
        const auto cols = static_cast<double>(x.size());
        if (!norm.empty()) {
            factor = 1 / std::sqrt(squares / cols + double{eps});
            normalisable = squares <= double{std::numeric_limits<float>::max()};
            factor_off = ((cols / 64 + 8) / 2 + 4) * kUnitF32;
        }
        if (!finite) return;
        if (kind == Arithmetic::half) take_half(!norm.empty());
        else take_int8(x, !norm.empty());
    }

  private:
    void take_half(bool normed) {
        steps.resize(exact.size());
        for (size_t b = 0; b < exact.size(); b += 256) {
            float amax = 0;
            for (size_t c = b; c < b + 256; ++c) amax = std::max(amax, std::abs(static_cast<float>(exact[c])));
            const bool zero = amax < 0x1p-100f;
            const int e = zero ? 0 : std::ilogb(amax) - 8;
            exponent.push_back(e);
            for (size_t c = b; c < b + 256; ++c) {
                const double z = double{static_cast<float>(exact[c])}, whole = std::abs(exact[c]);
                rounded[c] = zero ? 0 : std::ldexp(to_f16(std::ldexp(z, -e)), e);
                off[c] = zero ? whole : (0x1p-11 + (normed ? kUnitF32 : 0)) * whole + 0x1p-33 * amax;
                size[c] = std::abs(rounded[c]);
                floor[c] = zero ? 0 : std::ldexp(0x1p-25, e);
            }
            for (size_t i = 0; i < 256; ++i) steps[b + i] = rounded[b + step_column(i / 16, i % 16)];
        }
    }
    /// The codes of a normalised row hang on how its rounding went.
    void take_int8(std::span<const float> x, bool normed) {
        known = !normed;
        const auto cols = static_cast<double>(x.size());
        std::vector<std::byte> memory(static_cast<size_t>(Int8Row::bytes(std::ssize(x))));
        dot_kernels(Isa::baseline).quantize(x.data(), 0, std::ssize(x), std::ssize(x), memory.data());
        const Int8Row q = int8_row(memory.data(), std::ssize(x));
        for (size_t g = 0; g < x.size(); g += 32) {
            double amax = 0;
            for (size_t c = g; c < g + 32; ++c) amax = std::max(amax, std::abs(exact[c]));
            for (size_t c = g; c < g + 32; ++c) {
                const double whole = std::abs(exact[c]);
                rounded[c] = known ? double{q.d[g / 32]} * q.a[c] : 0;
                off[c] = amax * factor < 0x1p-99 ? whole : 0.502 / 127 * amax;
                size[c] = whole + off[c];
                if (normed) off[c] += kUnitF32 * (4 + 3 * std::sqrt(cols / 16 + 5)) * (whole + amax);
            }
        }
    }
};

/// One product, and how far a device may be from it.
struct Judged {
    double exact = 0, bound = 0;        // the product, and the distance from it that is allowed
    double sharp = 0, sharp_bound = 0;  // with x, and Q6_K's weights, as they are rounded
    bool known = true;
};

/// A row of a matrix in the forms that bounds want.
class JudgeRow {
  public:
    JudgeRow(const TakenRow& row, Arithmetic arithmetic) : arithmetic_(arithmetic), minimums_(row.minimums) {
        const size_t cols = row.us.size();
        steps_.resize(cols);
        for (std::vector<double>* v : {&weight_, &rounded_, &code_, &minimum_, &apart_}) v->resize(cols);
        for (size_t c = 0; c < cols; ++c) {
            const double d = row.d[c / 256], dmin = row.dmin[c / 256];
            const double us = arithmetic == Arithmetic::half ? to_f16(row.us[c]) : row.us[c];
            weight_[c] = d * row.us[c] - dmin * row.m[c];
            rounded_[c] = d * us - dmin * row.m[c];
            code_[c] = d * us;
            minimum_[c] = dmin * row.m[c];
            apart_[c] = std::abs(rounded_[c] - weight_[c]);
        }
        for (size_t c = 0; c < cols; ++c) steps_[c] = code_[c / 256 * 256 + step_column(c / 16 % 16, c % 16)];
    }
    /// REQUIRES x.finite and x.normalisable.
    Judged operator()(const TakenInput& x) const {
        RT_ASSERT(x.arithmetic == arithmetic_ && x.exact.size() == weight_.size());
        Judged j;
        j.known = x.known;
        const size_t cols = weight_.size();
        const double off = (arithmetic_ == Arithmetic::half ? half_off(x) : int8_off(x)) * (1 + 0x1p-8);
        j.exact = sum(weight_, x.exact, 0, cols);
        j.sharp = sum(rounded_, x.rounded, 0, cols);
        const double apart = sum<true>(weight_, x.off, 0, cols) + sum(apart_, x.size, 0, cols),
                     more = (x.factor_off + kUnitF32) * (std::abs(j.known ? j.sharp : j.exact) + off + apart);
        j.sharp_bound = (off + more) * x.factor + static_cast<double>(cols) * 0x1p-126;
        j.bound = j.sharp_bound + apart * x.factor;
        j.exact *= x.factor;
        j.sharp *= x.factor;
        return j;
    }

    static constexpr double kStep = 0x1p-21 + 0x1p-23;  // of the sum of all magnitudes

  private:
    double half_off(const TakenInput& x) const {
        double off = 0, chain[8] = {};
        for (size_t b = 0; b < weight_.size(); b += 256) {
            double acc[2] = {}, least = 0;
            for (size_t step = 0; step < 16; ++step) {
                double products[16], largest = std::abs(acc[step / 8]);
                for (size_t i = 0; i < 16; ++i) products[i] = steps_[b + 16 * step + i] * x.steps[b + 16 * step + i];
                for (const double p : products) largest = std::max(largest, std::abs(p)), acc[step / 8] += p;
                off += 0x1p-21 * largest + 0x1p-23 * std::abs(acc[step / 8]);
            }
            for (size_t g = b; g < b + 256 && minimums_; g += 32) {
                const double X = sum(minimum_, x.rounded, g, 32), size = sum<true>(minimum_, x.size, g, 32);
                least += X;
                off += kStep * std::abs(X) + (10 * kUnitF32 + 0x1p-22) * size + std::abs(minimum_[g]) * x.floor[g];
            }
            double& to = chain[b / 256 % 8];
            to += acc[0] + acc[1] - least;
            off += kUnitF32 * (3 * (std::abs(acc[0] + acc[1]) + std::abs(least)) + std::abs(to));
        }
        for (const double c : chain) off += 3 * kUnitF32 * std::abs(c);
        return off;
    }
    double int8_off(const TakenInput& x) const {
        const size_t cols = weight_.size();
        return (10 + std::ceil(static_cast<double>(cols) / 256)) * kUnitF32 *
               (sum<true>(code_, x.size, 0, cols) + sum<true>(minimum_, x.size, 0, cols));
    }
    /// The sum of a b, or of |a| b, over some columns; in eight lanes: this is what a judgement takes its time for.
    template <bool Absolute = false>
    static double sum(const std::vector<double>& a, const std::vector<double>& b, size_t begin, size_t count) {
        double lanes[8] = {};
        for (size_t c = begin; c < begin + count; c += 8)
            for (size_t i = 0; i < 8; ++i) lanes[i] += (Absolute ? std::abs(a[c + i]) : a[c + i]) * b[c + i];
        return ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
    }

    Arithmetic arithmetic_;
    bool minimums_;
    std::vector<double> weight_, rounded_, code_, minimum_, apart_;
    std::vector<double> steps_;  // code_ as steps take it
};

}  // namespace riptide
