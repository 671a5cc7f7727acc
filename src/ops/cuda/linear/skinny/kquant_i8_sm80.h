// The host's side of kquant_i8_sm80.cu: matrices times 2 to 256 rows.
#pragma once

#include <algorithm>
#include <span>

#include "ops/cuda/linear/shared/linear.h"

namespace riptide::ops::cuda::decode {

/// Whether the tile kernels can run on this device and multiply this weight: Q4_K, Q5_K or Q6_K, columns a multiple of
/// 2,048.
bool tile_weight(const Gpu& gpu, const Weight& w);

constexpr int64_t kMostStages = 6;
/// How the shared memory of a tile kernel is divided.
struct TilePlan {
    int32_t stages = 0;  // 0: it does not fit
    int32_t ctas = 0;    // on the whole device
    int64_t shared = 0;  // bytes
};
/// `fixed` bytes and as many stages (2 to kMostStages) as leave room for `most_ctas` CTAs on an SM, or else for fewer.
TilePlan plan_tiles(const Gpu& gpu, int32_t most_ctas, int64_t fixed, int64_t stage_bytes);

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

/// y and residual as in multiply_into. x: kinds plain, norm or int8. REQUIRES tile_weight() of all, at most
/// kMaxMatrices. False: rows this long do not fit in shared memory, or Q4_K and Q5_K are mixed; nothing was done.
bool tile_multiply(Context& ctx, const ActSource& x, int64_t cols, int64_t n, std::span<const Weight* const> weights,
                   std::span<const Tensor> y, Tensor* residual);

}  // namespace riptide::ops::cuda::decode
