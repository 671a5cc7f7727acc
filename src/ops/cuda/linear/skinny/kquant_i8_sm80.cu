// Q4_K, Q5_K and Q6_K matrices times 2 to 256 rows: each weight is read and decoded once for up to 32 rows.
//
// Bytes: those of the weights for each 32 rows (the first time from memory, then from L2): q, k, v and the gate of
// Laguna XS.2 12.9 MB, o 9.4 MB, head 168.6 MB: 2.8, 2.0, 36 us at 4.65 TB/s. Measured (H200, 2026-11-21, bench_gpu_ops
// --table, the kernel that quantises x included): q, k, v, gate 12 us at 8 rows, 15 at 16, 38 at 64; o 9, 12, 28; head
// 89, 117, 410. What limits it: instructions (tile.cuh: 40 to 65 for a sub-block and 8 rows of x) of four warps
// a scheduler, each waiting for shared memory half of the time, and about 5 us before the first tile is done. Design: a
// CTA of 16 warps an SM takes every gridDim.x-th tile of 16 rows of the whole group; one more warp asks for its stages
// (2,048 columns of a tile), from before pdl_wait() on. x lies in shared memory, quantised by an earlier kernel. Two
// rows: dp4a, the same tiles. More than 32 rows (16 if rows of x are long): blockIdx.x % row_blocks. Tried: two CTAs of
// eight warps (o 11 and 13 us, since its 128 tiles leave each SM one; the head 72 us at 8 rows, faster than now).
#include "ops/cuda/linear/skinny/kquant_i8_sm80.h"

#include <algorithm>

#include "ops/cuda/linear/gemv/any.cuh"
#include "ops/cuda/linear/shared/tile.cuh"

namespace riptide::ops::cuda::decode {

namespace {

struct TileMatmulArgs {
    TileMatrix m[kMaxMatrices];
    int32_t matrices, tiles, chunks;  // chunks: stages of a tile
    int32_t n, row_blocks, stages, stage_bytes, x_stride;
    int32_t q6;        // whether any matrix is
    int32_t partials;  // places for partial sums: 2, or 1 if there is no room
    ActLayout layout;
    ActSource x;
    float* residual;
};

constexpr int kCtaThreads = 32 * (kTileWarps + 1);  // the last warp asks for weights
constexpr DType kQ6 = DType::planes_q6_k;

template <DType Most>
__device__ __forceinline__ void ask_for_stages(const TileMatmulArgs& a, char* stages, StageRing ring, Cursor now,
                                               int step) {
#pragma unroll 1
    for (; now.outer < a.tiles; now.advance(a.chunks, step), ring.advance()) {
        const TileMatrix& m = matrix_of_tile(a, now.outer);
        const int first = 16 * (now.outer - m.first), last = m.rows - 1;
        const auto row_of = [&](int r) { return min(first + r, last); };
        char* const stage = stages + ring.at() * a.stage_bytes;
        ring.wait_until_empty();
        if (m.q6 != 0) fetch_rows<kQ6, 2048, 16>(m.planes, a.layout.cols, now.part, row_of, stage, 0);
        else fetch_rows<Most, 2048, 16>(m.planes, a.layout.cols, now.part, row_of, stage, 0);
        ring.asked();
    }
}

/// Matrices of type Most and of Q6_K.
template <DType Most, int NT>
__global__ void __launch_bounds__(kCtaThreads, 1) kquant_i8_kernel(const __grid_constant__ TileMatmulArgs a) {
    extern __shared__ uint4 dynamic[];
    __shared__ uint64_t barriers[2 * kMostTileStages];
    pdl_trigger();
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int block = blockIdx.x, row0 = block % a.row_blocks * 8 * NT, count = min(8 * NT, a.n - row0);
    constexpr int64_t kPartial = partial_bytes(NT, kTileWarps);
    char* const stages = reinterpret_cast<char*>(dynamic);
    char* const partials = stages + a.stages * a.stage_bytes;
    char* const staged = partials + a.partials * kPartial;
    const int step = gridDim.x / a.row_blocks;
    Cursor now{block / a.row_blocks, 0};
    StageRing ring(barriers, a.stages);
    if (threadIdx.x == 0) ring.init(kTileWarps);
    __syncthreads();
    if (warp == kTileWarps) {
        ask_for_stages<Most>(a, stages, ring, now, step);
        return;
    }
    pdl_wait();
    constexpr int kUsers = 32 * kTileWarps;
#pragma unroll 1
    for (int chunk = 0; chunk < a.chunks; ++chunk)
        fetch_x<kUsers>(a.x, a.layout.groups, chunk, row0, count, a.q6 != 0, a.x_stride, staged);
    if (a.q6 != 0 && a.x.kind == ActKind::int8) {
        wait_copies(0);
#pragma unroll 1
        for (int chunk = 0; chunk < a.chunks; ++chunk)
            sum_halves<kUsers>(a.layout.groups, chunk, count, a.x_stride, staged);
    }
    const TileX x{staged, a.x_stride, a.layout.groups, count};
    const LaneX mine(x, lane, kTileWarps);
    const bool few = NT == 1 && count <= 2;
    WideSums<NT, kTileWarps> acc;
    float two[1][2];
    int tile = 0;
#pragma unroll 1
    for (int u = 0; now.outer < a.tiles; ++u, now.advance(a.chunks, step), ring.advance()) {
        if (u < a.chunks) {  // chunk u of x, behind which a.chunks - 1 - u were asked for
            wait_copies(a.chunks - 1 - u);
            sync_warps<kTileWarps>();
        }
        ring.wait_until_full();
        const TileMatrix& m = matrix_of_tile(a, now.outer);
        const char* const stage = stages + ring.at() * a.stage_bytes;
        const int chunk = now.part, first = 16 * (now.outer - m.first);
        const bool last = chunk == a.chunks - 1;
        const auto store = [&](int r, int p, float sum) {
            if (first + r >= m.rows || p >= count) return;
            const int64_t at = static_cast<int64_t>(row0 + p) * m.rows + first + r;
            m.y[at] = sum;
            if (a.residual != nullptr) a.residual[at] = a.residual[at] + sum;
        };
        if (NT == 1 && few) {
            if (chunk == 0) two[0][0] = two[0][1] = 0.0f;
            if (m.q6 != 0) dot_rows(stage, HeldX<kQ6, 2048, 2>(x, chunk, lane), x, chunk, warp, lane, two);
            else dot_rows(stage, HeldX<Most, 2048, 2>(x, chunk, lane), x, chunk, warp, lane, two);
            ring.used();
            if (!last) continue;
            float v[2] = {two[0][0], two[0][1]};
            const float sum = reduce_lanes<2>(v, lane);
            if (lane % 16 == 0) store(warp, lane / 16, sum);
            continue;
        }
        if (chunk == 0) {
            constexpr int kEach = 4 * NT;
#pragma unroll
            for (int i = 0; i < 2 * kEach; ++i) acc[i / kEach][i / 4 % NT][i % 4] = 0.0f;
        }
        if (m.q6 != 0) mma_wide<kQ6, NT, kTileWarps>(stage, mine, chunk, warp, lane, acc);
        else mma_wide<Most, NT, kTileWarps>(stage, mine, chunk, warp, lane, acc);
        ring.used();
        if (!last) continue;
        float* const partial = reinterpret_cast<float*>(partials + tile % a.partials * kPartial);
        if (a.partials == 1) sync_warps<kTileWarps>();  // else what was put two tiles ago has been added up
        put_wide<NT, kTileWarps>(partial, warp, lane, acc);
        sync_warps<kTileWarps>();
        // Other warps each time, which are behind the rest then.
        const int i = (static_cast<int>(threadIdx.x) + 128 * NT * tile) % kUsers;
        if (i < 128 * NT) store(i % 16, i / 16, wide_sum<NT, kTileWarps>(partial, i % 16, i / 16));
        ++tile;
    }
}

template <DType Most, int NT>
void launch_tiles(Context& ctx, TileMatmulArgs& a, const TilePlan& plan) {
    launch_planned(*ctx.gpu, kquant_i8_kernel<Most, NT>, kCtaThreads, 8 * NT, plan, a);
}
template <DType Most>
void launch_tiles(Context& ctx, TileMatmulArgs& a, const TileFit& fit) {
    a.partials = fit.partials;
    if (fit.tiles == 4) launch_tiles<Most, 4>(ctx, a, fit.plan);
    else if (fit.tiles == 2) launch_tiles<Most, 2>(ctx, a, fit.plan);
    else launch_tiles<Most, 1>(ctx, a, fit.plan);
}

}  // namespace

void tile_multiply(Context& ctx, const ActSource& x, int64_t cols, int64_t n, std::span<const Weight* const> weights,
                   std::span<const Tensor> y, Tensor* residual) {
    RT_ASSERT(weights.size() <= kMaxMatrices && x.kind != ActKind::staged);
    TileMatmulArgs a = {};
    bool q5 = false;
    for (size_t i = 0; i < weights.size(); ++i) {
        const Weight& w = *weights[i];
        add_tiles(a, w, y[i].row(0), 16);
        a.q6 |= static_cast<int32_t>(w.dtype == kQ6);
        a.stage_bytes = std::max(a.stage_bytes, static_cast<int32_t>(stage_bytes<2048>(w.dtype)));
        q5 = q5 || w.dtype == DType::planes_q5_k;
    }
    a.chunks = static_cast<int32_t>(cols / 2048);
    a.n = static_cast<int32_t>(n);
    a.layout = act_layout(cols, true, false);
    a.x_stride = tile_x_stride(a.layout, a.q6 != 0);
    a.residual = residual == nullptr ? nullptr : residual->row(0);
    const auto fit = fit_tile(chip_of(*ctx.gpu), cols, n, a.stage_bytes, a.q6 != 0);
    RT_ASSERT(fit);
    a.x = x.kind == ActKind::int8 ? x : prepare_rows(ctx, x, a.layout, n);
    if (q5) launch_tiles<DType::planes_q5_k>(ctx, a, *fit);
    else launch_tiles<DType::planes_q4_k>(ctx, a, *fit);
}

}  // namespace riptide::ops::cuda::decode
