#include "ops/norm.h"

#include <cmath>

#include "ops/lanes.h"
#include "ops/parallel.h"

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

Tensor rms_norm(Context& ctx, const Tensor& x, std::span<const float> weight, float eps) {
    RT_ASSERT(x.dtype == DType::f32 && x.contiguous() && (x.rank == 2 || x.rank == 3));
    const auto d = static_cast<int64_t>(weight.size());
    RT_ASSERT(d > 0 && x.shape[static_cast<size_t>(x.rank - 1)] == d);
    Tensor y =
        x.rank == 2 ? ctx.alloc(DType::f32, {x.shape[0], d}) : ctx.alloc(DType::f32, {x.shape[0], x.shape[1], d});
    parallel_rows(ctx, x.elements() / d, 2 * d, [&](int64_t begin, int64_t end, int) {
        rms_norm_ref<float>(x.row(0) + begin * d, weight.data(), end - begin, d, eps, y.row(0) + begin * d);
    });
    return y;
}

}  // namespace riptide::ops
