#include "ops/capture.h"

#include <algorithm>

#include "ops/cpu/parallel.h"
#include "ops/cuda/backend.h"
#include "ops/norm.h"
#include "ops/op_cost.h"

namespace riptide::ops {

void copy_columns(Context& ctx, const Tensor& x, Tensor& out, int64_t column) {
    RT_ASSERT(x.dtype == DType::f32 && x.rank == 2 && x.contiguous() && out.dtype == DType::f32 && out.rank == 2);
    RT_ASSERT(x.rows() == out.rows() && column >= 0 && column + x.shape[1] <= out.shape[1]);
    out.int8 = nullptr;
    const OpScope told = announce(ctx, "copy_columns", x.rows());
    if (ctx.gpu != nullptr) return cuda::copy_columns(ctx, x, out, column);
    const int64_t d = x.shape[1];
    parallel_rows(ctx, x.rows(), d, [&](int64_t begin, int64_t end, int) {
        for (int64_t r = begin; r < end; ++r) std::copy_n(x.row(r), d, out.row(r) + column);
    });
}

Tensor rms_norm_parts(Context& ctx, const Tensor& x, std::span<const float> weight, int64_t parts, float eps) {
    RT_ASSERT(x.dtype == DType::f32 && x.rank == 2 && x.contiguous() && parts > 0 && x.shape[1] % parts == 0);
    RT_ASSERT(std::ssize(weight) == x.shape[1]);
    const OpScope told = announce(ctx, "rms_norm_parts", x.rows());
    if (ctx.gpu != nullptr) return cuda::rms_norm_parts(ctx, x, weight, parts, eps);
    const int64_t d = x.shape[1] / parts;
    Tensor y = ctx.alloc(DType::f32, {x.rows(), x.shape[1]});
    parallel_rows(ctx, x.rows() * parts, 4 * d, [&](int64_t begin, int64_t end, int) {
        for (int64_t i = begin; i < end; ++i)
            rms_norm_row(x.row(0) + i * d, weight.data() + i % parts * d, d, eps, y.row(0) + i * d);
    });
    return y;
}

}  // namespace riptide::ops
