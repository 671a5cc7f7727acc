// THE TABLE for gate and up of a SwiGLU layer; plan.cpp is that for groups.
#include "ops/cuda/linear/fit.h"
#include "ops/cuda/linear/plan.h"
#include "quant/planes.h"

namespace riptide::ops::cuda::linear {

using namespace decode;

namespace {

struct PairCase {
    const Case& c;
    const Weight &gate, &up, &down;

    template <class F>
    bool both(const F& f) const {
        return f(c.chip, gate) && f(c.chip, up);
    }
    bool same_shape() const { return gate.dtype == up.dtype && gate.rows == up.rows; }
    bool one_by_one() const { return f16_weight(c.chip, gate) || f16_weight(c.chip, up); }
    /// One row for which there is a kernel that does both, but that kquant_i8.cu is faster for 2,048 columns.
    bool one_row() const {
        const auto lean = [](const Weight& w) {
            return w.dtype == DType::planes_q4_k || w.dtype == DType::planes_q6_k;
        };
        const bool planes = is_planes(gate.dtype);
        return c.rows == 1 && !(gate.cols == 2048 && lean(gate) && lean(up)) && !one_by_one() &&
               planes == is_planes(up.dtype) && (planes || c.x != ActKind::int8);
    }
};

/// Tensor maps span both: the one that lies higher is not too far, a whole number of pieces away, in all planes.
bool maps_span(const Weight& gate, const Weight& up) {
    constexpr int64_t kFar = int64_t{1} << 40;
    const bool swapped = gate.data > up.data;
    const Weight &first = swapped ? up : gate, &second = swapped ? gate : up;
    const auto fits = [](const void* from, const void* to) {
        const auto apart = reinterpret_cast<intptr_t>(to) - reinterpret_cast<intptr_t>(from);
        return apart > 0 && apart < kFar && apart % 16 == 0;
    };
    return fits(first.data, second.data) && fits(first.scales, second.scales) &&
           (first.high == nullptr || fits(first.high, second.high));
}

bool pair_drafts(const PairCase& p) {
    return p.c.family == Family::draft && p.c.floats_as_given() && p.c.aligned && p.same_shape() &&
           p.both(draft_weight);
}
bool pair_halves(const PairCase& p) {
    return p.c.floats_as_given() && p.both(f16_weight) && p.same_shape() && maps_span(p.gate, p.up);
}

bool pair_bf16(const PairCase& p) {
    const auto suits = [&](const Chip&, const Weight& w) {
        return w.dtype == DType::bf16 && w.row_bytes == 2 * p.c.cols;
    };
    return p.one_row() && p.c.small_bf16_source() && p.both(suits) && p.gate.rows == p.up.rows &&
           p.gate.rows % 2 == 0 && p.gate.rows > 0 &&
           fit_bf16_small(p.c.chip, p.c.cols, p.gate.rows / 2, false).has_value();
}
bool pair_float(const PairCase& p) {
    return p.one_row() && !is_planes(p.gate.dtype) && p.c.floats_as_given() && float_weight(p.gate) &&
           alike(p.gate, p.up) && p.gate.rows % 2 == 0 &&
           fit_float_pair(p.c.chip, p.c.cols, p.c.x, p.gate.rows).has_value();
}
bool pair_wide_row1(const PairCase& p) {
    return p.one_row() && p.both(wide_weight) && p.same_shape() && p.c.wide_source() &&
           fit_wide_row(p.c.chip, p.c.cols, false, p.gate.dtype == DType::planes_q4_k).has_value();
}
bool pair_any(const PairCase& p) { return p.one_row(); }

bool pair_wide(const PairCase& p) {
    return p.c.rows > 1 && p.c.cols != 2048 && p.c.wide_source() && p.both(wide_weight) && p.same_shape() &&
           fit_wide(p.c.chip, p.c.cols, p.c.rows, p.gate.dtype, p.gate.dtype == DType::planes_q6_k).has_value();
}
bool pair_q8(const PairCase& p) {
    constexpr int64_t kRows = 2 * Q8Shape::kTileRows;
    return p.c.rows > 1 && q8_weight(p.c.chip, p.down) && p.both(q8_weight) && p.gate.rows % kRows == 0 &&
           p.gate.rows == p.up.rows && fit_q8(p.c.chip, p.c.cols, p.c.rows, q8_norms(p.c), true).has_value();
}

struct PairRow {
    Kernel kernel;
    bool (*when)(const PairCase&);
};

// clang-format off
constexpr PairRow kPairs[] = {
    {Kernel::draft_f16_sm90,           pair_drafts},      // any rows: drafts
    {Kernel::kquant_f16_mma_sm90,      pair_halves},      // any rows: Q4_K, Q6_K, x 1,024, large; Hopper (choose_halves)
    {Kernel::bf16_small_sm90,          pair_bf16},        // 1: bf16, to 4,096, small; sm_90
    {Kernel::float_row1,               pair_float},       // 1: f32, f16, bf16, fp8
    {Kernel::kquant_i8_wide_row1_sm90, pair_wide_row1},   // 1: Q4_K, Q5_K, Q6_K, x 256; sm_90
    {Kernel::any,                      pair_any},         // 1: all else, but K-quants of 2,048 columns
    {Kernel::kquant_i8_wide_sm90,      pair_wide},        // 2 up: Q4_K, Q5_K, Q6_K, x 256 but 2,048; sm_90
    {Kernel::q8_i8_sm80,               pair_q8},       // 2 up: Q8_0, x 2,048, down too; sm_80
};
// clang-format on

}  // namespace

Choice choose_pair(const Case& c, const Weight& down) {
    RT_ASSERT(c.weights.size() == 2);
    const PairCase p{c, *c.weights[0], *c.weights[1], down};
    for (const PairRow& row : kPairs) {
        if (!row.when(p)) continue;
        if (row.when == pair_halves) return choose_halves(c);
        return {{row.kernel, 0, c.rows, {0, 1}}};
    }
    return {};
}

}  // namespace riptide::ops::cuda::linear
