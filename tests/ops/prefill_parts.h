// What tests of the prefill family's parts share: bf16 operands, products in double, plans of experts on the host.
#pragma once

#include <cmath>
#include <vector>

#include "ops/cuda/linear/gemm/gemm.h"
#include "ops/cuda/moe/moe_prefill.h"
#include "tensor/half.h"
#include "tests/ops/op_fixture.h"

namespace riptide::test {

using namespace ops::cuda::prefill;

inline float rounded(float v) { return bf16_to_f32(f32_to_bf16(v)); }

inline std::vector<float> rounded(std::vector<float> v) {
    for (float& x : v) x = rounded(x);
    return v;
}

inline std::vector<uint16_t> bits_of(const std::vector<float>& v) {
    std::vector<uint16_t> bits;
    for (float x : v) bits.push_back(f32_to_bf16(x));
    return bits;
}

/// Rows of B in scratch order, NaN where there are none.
inline std::vector<uint16_t> in_order(const std::vector<float>& w, int64_t columns, int64_t k, RowOrder order,
                                      int which, std::vector<uint16_t> b = {}) {
    b.resize(static_cast<size_t>(scratch_rows(order, columns) * k), uint16_t{0x7FC0});
    for (int64_t c = 0; c < columns; ++c)
        for (int64_t i = 0; i < k; ++i)
            b[static_cast<size_t>(scratch_row(order, which, static_cast<int>(c)) * k + i)] =
                f32_to_bf16(w[static_cast<size_t>(c * k + i)]);
    return b;
}

struct Dot {
    double value = 0, magnitude = 0;
};
inline Dot dot(const float* a, const float* b, int64_t k) {
    Dot d;
    for (int64_t i = 0; i < k; ++i) {
        d.value += double{a[i]} * b[i];
        d.magnitude += std::abs(double{a[i]} * b[i]);
    }
    return d;
}

inline constexpr float kUntouched = -12345.0f;

/// Slots of experts, one after the other, as the device's plan has them.
struct HostPlan {
    std::vector<int32_t> row_first{0}, tile_first{0}, tile_expert;
    int experts;  // without the shared one, which comes last
    explicit HostPlan(const std::vector<int>& counts, bool shared = false)
        : experts(static_cast<int>(counts.size()) - (shared ? 1 : 0)) {
        for (size_t e = 0; e < counts.size(); ++e) {
            row_first.push_back(row_first.back() + counts[e]);
            const int tiles = ceil_div(counts[e], kTileM);
            tile_first.push_back(tile_first.back() + tiles);
            tile_expert.insert(tile_expert.end(), static_cast<size_t>(tiles), static_cast<int32_t>(e));
        }
    }
    GroupPlan upload_to(OpContext& op) const {
        return {upload(op, row_first), upload(op, tile_first), upload(op, tile_expert), experts};
    }
};

}  // namespace riptide::test
