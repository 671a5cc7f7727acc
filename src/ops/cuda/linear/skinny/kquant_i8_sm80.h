// The host's side of kquant_i8_sm80.cu: matrices times 2 to 256 rows.
#pragma once

#include <algorithm>
#include <span>

#include "ops/cuda/linear/fit.h"
#include "ops/cuda/linear/shared/linear.h"

namespace riptide::ops::cuda::decode {

#ifdef __CUDACC__
/// Launches a kernel whose CTAs have tiles by turns and `rows` rows of x each; Args has n, tiles, row_blocks and
/// stages, of which the last two are set here.
template <class Args>
void launch_planned(const Gpu& gpu, void (*kernel)(Args), int threads, int rows, const TilePlan& plan, Args& a) {
    allow_shared(reinterpret_cast<const void*>(kernel), plan.shared);
    a.stages = plan.stages;
    a.row_blocks = (a.n + rows - 1) / rows;
    const int32_t ctas = a.row_blocks * std::min(a.tiles, std::max(1, plan.ctas / a.row_blocks));
    launch(gpu, kernel, dim3(static_cast<unsigned>(ctas)), threads, static_cast<size_t>(plan.shared), a);
}
#endif

/// y and residual as in multiply_into. x: kinds plain, norm or int8. REQUIRES linear::tile_weight() of all, at most
/// kMaxMatrices, not Q4_K and Q5_K mixed.
void tile_multiply(Context& ctx, const ActSource& x, int64_t cols, int64_t n, std::span<const Weight* const> weights,
                   std::span<const Tensor> y, Tensor* residual);

}  // namespace riptide::ops::cuda::decode
