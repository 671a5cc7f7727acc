// Random weight matrices of every type that has a dot product, for tests.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "quant/codec.h"
#include "quant/dot.h"
#include "quant/random_fill.h"
#include "tensor/half.h"

namespace riptide::test {

/// A weight type with its scale plane, if it has one.
struct WeightKind {
    DType type;
    DType scale_dtype = DType::f32;
    int64_t scale_rows = 0;  // 0: no plane
    int64_t scale_cols = 0;
    float scale = 1.0f;

    std::string name() const {
        std::string text = dtype_name(type);
        if (scale_rows > 0)
            text += "_" + std::string(dtype_name(scale_dtype)) + "_" + std::to_string(scale_rows) + "x" +
                    std::to_string(scale_cols);
        return scale == 1.0f ? text : text + "_scaled";
    }
    /// Columns come in multiples of this.
    int64_t granule() const { return dtype_info(type).block_elements; }
};

inline const std::vector<WeightKind>& all_weight_kinds() {
    static const std::vector<WeightKind> kinds = {
        {DType::f32},
        {DType::f16},
        {DType::bf16},
        {DType::f8_e4m3},
        {DType::f32, DType::f32, 0, 0, 0.3f},
        {DType::f8_e4m3, DType::bf16, 128, 128},
        {DType::f8_e4m3, DType::f32, 1, 4096},
        {DType::f8_e4m3, DType::f32, 3, 7, 0.7f},
        {DType::i4_pack, DType::bf16, 1, 128},
        {DType::i4_pack, DType::f16, 1, 32, 1.7f},
        {DType::i8_pack, DType::bf16, 1, 128},
        {DType::i8_pack, DType::f32, 1, 4096},
        {DType::f4_pack, DType::f8_e4m3, 1, 16, 0.01f},
        {DType::f4_pack, DType::f8_e4m3, 1, 16},
        {DType::i8_pack, DType::f32, 2, 12},
        {DType::q4_0},
        {DType::q4_1},
        {DType::q5_0},
        {DType::q5_1},
        {DType::q8_0},
        {DType::q2_k},
        {DType::q3_k},
        {DType::q4_k},
        {DType::q5_k},
        {DType::q6_k},
        {DType::iq4_nl},
        {DType::iq4_xs},
        {DType::mxfp4},
        {DType::nvfp4},
        {DType::nvfp4, DType::f32, 0, 0, 0.02f},
        {DType::tq2_0},
        {DType::tq1_0},
        {DType::iq1_s},
        {DType::iq1_m},
        {DType::iq2_xxs},
        {DType::iq2_xs},
        {DType::iq2_s},
        {DType::iq3_xxs},
        {DType::iq3_s},
    };
    return kinds;
}

struct RandomWeight {
    std::vector<std::byte> data, plane;
    Weight w;

    RandomWeight(const WeightKind& kind, int64_t rows, int64_t cols, uint64_t seed) {
        w.dtype = kind.type;
        w.rows = rows;
        w.cols = cols;
        w.row_bytes = row_bytes(kind.type, cols);
        w.scale = kind.scale;
        data.resize(static_cast<size_t>(w.bytes()));
        std::mt19937_64 random(seed);
        if (kind.type == DType::i4_pack || kind.type == DType::i8_pack || kind.type == DType::f4_pack)
            for (std::byte& b : data) b = static_cast<std::byte>(random() & 255);
        else random_fill(kind.type, data.data(), rows * cols, kind.type == DType::f8_e4m3 ? 20.0f : 1.0f, seed);
        w.data = data.data();
        if (kind.scale_rows > 0) make_plane(kind, random);
    }
    RandomWeight(RandomWeight&&) = default;

    /// W as f32, row after row.
    std::vector<float> dequantized() const {
        std::vector<float> values(static_cast<size_t>(w.rows * w.cols));
        for (int64_t r = 0; r < w.rows; ++r) dequantize_row(w, r, values.data() + r * w.cols);
        return values;
    }

  private:
    void make_plane(const WeightKind& kind, std::mt19937_64& random) {
        w.scale_dtype = kind.scale_dtype;
        w.scale_rows = kind.scale_rows;
        w.scale_cols = kind.scale_cols;
        const int64_t entries =
            (w.rows + w.scale_rows - 1) / w.scale_rows * ((w.cols + w.scale_cols - 1) / w.scale_cols);
        std::vector<float> scales(static_cast<size_t>(entries));
        std::uniform_real_distribution<float> uniform(0.5f, 2.0f);
        for (float& s : scales) s = uniform(random);
        plane.resize(static_cast<size_t>(row_bytes(kind.scale_dtype, entries)));
        quantize(kind.scale_dtype, scales.data(), plane.data(), entries);
        w.scales = plane.data();
    }
};

/// n rows of normal values; every 37th value is 40 times larger, one group of row 1 is zero.
inline std::vector<float> random_rows(int64_t n, int64_t cols, uint64_t seed) {
    std::mt19937_64 random(seed);
    std::normal_distribution<float> normal;
    std::vector<float> x(static_cast<size_t>(n * cols));
    for (size_t i = 0; i < x.size(); ++i) x[i] = normal(random) * (i % 37 == 5 ? 40.0f : 1.0f);
    if (n > 1)
        for (int64_t c = 0; c < std::min<int64_t>(cols, 32); ++c) x[static_cast<size_t>(cols + c)] = 0.0f;
    return x;
}

/// Bounds on |y - exact| for one weight row and one activation row; see quant/dot.h for the derivation.
struct DotBound {
    double exact = 0;       // sum of w x in double
    double bound = 0;       // on the difference from exact
    double int8_exact = 0;  // block types: the product with the int8 activations, in double
    double int8_bound = 0;
};

inline DotBound dot_bound(const Weight& w, const float* row, const float* x) {
    constexpr double kUlp = 0x1p-24;
    DotBound b;
    double magnitude = 0;
    for (int64_t c = 0; c < w.cols; ++c) {
        b.exact += double{row[c]} * x[c];
        magnitude += std::abs(double{row[c]} * x[c]);
    }
    if (!uses_int8_activations(w.dtype)) {  // K / 16 fused operations in a lane, four additions
        b.bound = (std::ceil(static_cast<double>(w.cols) / 16) + 4) * kUlp * magnitude;
        return b;
    }
    std::vector<std::byte> memory(static_cast<size_t>(Int8Row::bytes(w.cols)));
    dot_kernels(Isa::baseline).quantize(x, 0, w.cols, w.cols, memory.data());
    const Int8Row q = int8_row(memory.data(), w.cols);
    double rounding = 0, terms = 0;
    for (int64_t g = 0; g < w.cols / 32; ++g) {
        double largest = 0;
        for (int64_t c = 32 * g; c < 32 * g + 32; ++c) largest = std::max(largest, std::abs(double{row[c]}));
        for (int64_t c = 32 * g; c < 32 * g + 32; ++c) {
            const double a = double{q.d[g]} * q.a[c];
            b.int8_exact += double{row[c]} * a;
            // s u and m: with codes drawn at random, some of the 32 lie near both ends, so |m| and s u stay below 2 max
            // |w|.
            terms += 4 * largest * std::abs(a);
            rounding += std::abs(double{row[c]}) * q.d[g] * (0.5 + 0x1p-14);
        }
    }
    // dequantize rounds s u - m and the product with w.scale; the kernel rounds v up to four times, K / 256 sums, three
    // more.
    b.int8_bound = (8 + std::ceil(static_cast<double>(w.cols) / 256)) * kUlp * terms;
    b.bound = rounding + b.int8_bound;
    return b;
}

}  // namespace riptide::test
