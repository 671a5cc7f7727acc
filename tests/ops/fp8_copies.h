// What the tests of the FP8 path share.
#pragma once

#include <cstdint>
#include <vector>

#include "quant/fp8_copy.h"
#include "tensor/half.h"
#include "tests/ops/op_fixture.h"

namespace riptide {

inline bool on_hopper() { return test_gpu() != nullptr && test_gpu()->hopper(); }
#define RT_HOPPER_ONLY() \
    if (!on_hopper()) GTEST_SKIP() << "needs a Hopper GPU"

/// Gives placed matrices of one shape their copies, in the arena.
inline void add_copies(OpContext& op, std::vector<Weight>& w) {
    const auto count = static_cast<int64_t>(w.size());
    const int64_t values = fp8_rows(w[0].rows) * w[0].cols, scales = fp8_scales(w[0].rows, w[0].cols);
    const int64_t apart = static_cast<const char*>(w.back().data) - static_cast<const char*>(w.front().data),
                  stride = count < 2 ? 0 : apart / (count - 1);
    auto* codes = static_cast<uint8_t*>(op.ctx.arena->allocate(count * values));
    auto* plane = static_cast<float*>(op.ctx.arena->allocate(4 * count * scales));
    write_fp8(*op.ctx.gpu, w[0], count, stride, codes, plane);
    for (int64_t e = 0; e < count; ++e) {
        w[static_cast<size_t>(e)].fp8 = codes + e * values;
        w[static_cast<size_t>(e)].fp8_scales = plane + e * scales;
    }
}
inline Weight with_copy(OpContext& op, const Weight& host) {
    std::vector<Weight> one{op.weight(host)};
    add_copies(op, one);
    return one[0];
}

/// The copy's values, row after row.
inline std::vector<float> values_of_copy(OpContext& op, const Weight& w) {
    const auto codes = download(op, static_cast<const uint8_t*>(w.fp8), fp8_rows(w.rows) * w.cols);
    const auto scales = download(op, w.fp8_scales, fp8_scales(w.rows, w.cols));
    std::vector<float> values;
    for (int64_t r = 0; r < w.rows; ++r)
        for (int64_t c = 0; c < w.cols; ++c)
            values.push_back(
                f8_e4m3_to_f32(
                    codes[static_cast<size_t>((r / 64 * 64 + fp8_row(static_cast<int>(r % 64))) * w.cols + c)]) *
                scales[static_cast<size_t>(r / 64 * (w.cols / 128) + c / 128)]);
    return values;
}

}  // namespace riptide
