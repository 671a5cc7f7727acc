#include "ops/norm.h"

#include <cmath>

#include "ops/cpu/lanes.h"
#include "ops/cpu/parallel.h"
#include "ops/cuda/backend.h"
#include "ops/op_cost.h"

namespace riptide::ops {

template <class Acc>
void rms_norm_ref(const float* x, const float* weight, int64_t rows, int64_t d, float eps, Acc* y) {
    for (int64_t r = 0; r < rows; ++r, x += d, y += d) {
        const Acc squares = lane_sum<Acc>(d, [x](int64_t i) { return Acc{x[i]} * Acc{x[i]}; });
        const Acc scale = Acc{1} / std::sqrt(squares / static_cast<Acc>(d) + Acc{eps});
        for (int64_t i = 0; i < d; ++i) y[i] = Acc{weight[i]} * (Acc{x[i]} * scale);
    }
}

template void rms_norm_ref<float>(const float*, const float*, int64_t, int64_t, float, float*);
template void rms_norm_ref<double>(const float*, const float*, int64_t, int64_t, float, double*);

namespace {

/// lane_sum of the squares.
float sum_of_squares(const float* x, int64_t d) {
    Float4 sum[4] = {};
    int64_t i = 0;
    for (; i + kLanes <= d; i += kLanes)
#pragma GCC unroll 4
        for (int64_t j = 0; j < 4; ++j) sum[j] += load4(x + i + 4 * j) * load4(x + i + 4 * j);
    for (; i < d; ++i) sum[i % kLanes / 4][i % 4] += x[i] * x[i];
    const Float4 four = (sum[0] + sum[2]) + (sum[1] + sum[3]);
    return (four[0] + four[2]) + (four[1] + four[3]);
}

}  // namespace

void rms_norm_row(const float* x, const float* weight, int64_t d, float eps, float* y) {
    const float scale = 1.0f / std::sqrt(sum_of_squares(x, d) / static_cast<float>(d) + eps);
    map4(
        d, y, [=](int64_t i) { return load4(weight + i) * (load4(x + i) * scale); },
        [=](int64_t i) { return weight[i] * (x[i] * scale); });
}

Tensor rms_norm(Context& ctx, const Tensor& x, std::span<const float> weight, float eps) {
    RT_ASSERT(x.dtype == DType::f32 && x.contiguous() && (x.rank == 2 || x.rank == 3));
    const auto d = static_cast<int64_t>(weight.size());
    RT_ASSERT(d > 0 && x.shape[static_cast<size_t>(x.rank - 1)] == d);
    const OpScope told = announce(ctx, "rms_norm", x.rows());
    if (ctx.gpu != nullptr) return cuda::rms_norm(ctx, x, weight, eps);
    Tensor y =
        x.rank == 2 ? ctx.alloc(DType::f32, {x.shape[0], d}) : ctx.alloc(DType::f32, {x.shape[0], x.shape[1], d});
    parallel_rows(ctx, x.elements() / d, 2 * d, [&](int64_t begin, int64_t end, int) {
        for (int64_t r = begin; r < end; ++r) rms_norm_row(x.row(0) + r * d, weight.data(), d, eps, y.row(0) + r * d);
    });
    return y;
}

}  // namespace riptide::ops
