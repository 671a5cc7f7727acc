// Q8_0 matrices times 2 to 256 rows: each weight is read once for up to 16 rows. What a drafter's block is made of.
//
// Bytes: those of the weights, 1.0625 each, for each 16 rows (the first time from memory, then from L2). For a drafter
// of Laguna XS.2: q, k, v 8.9 MB, o 4.5, gate and up 35.7, down 17.8, head 69.6, fc 22.3 MB: at 4.65
// TB/s 1.9, 1.0, 7.7, 3.8, 15.0 and 4.8 us. Design: decode_mma.cu's, whose sums and rings these are (decode_tile.cuh):
// a CTA of 16 warps an SM takes every gridDim.x-th tile of 16 rows of the whole group, warp w of it the sub-blocks j
// with j mod 16 = w, by mma.m16n8k32.s8; four more warps ask for its stages (2,048 columns of a tile), from before
// pdl_wait() on. Weights need no decoding: about 22 instructions for a sub-block, 16 rows of weights and 8 of x. Bits:
// those of decode_dot.cuh. Measured (H200, 2026-11-22, 8 rows, op by op in a drafter, 4 us of it the profile's): q, k,
// v 12 us, o 10, feed-forward with both quantisations 33; with dp4a for four rows at a time a pass took 290 to 330 us
// more.
#include "ops/decode_eight.h"

#include <algorithm>

#include "ops/decode_matmul.cuh"
#include "ops/decode_mma.h"
#include "ops/decode_tile.cuh"

namespace riptide::ops::cuda::decode {

namespace {

constexpr int kUsers = 16, kAskers = 4, kEightThreads = 32 * (kUsers + kAskers);
constexpr int kCols = 2048, kGroups = kCols / 32, kTileRows = 16, kAskRows = kTileRows / kAskers;
// A stage: rows of int8, then rows of f16 scales, padded so that ldmatrix and 2-byte reads have no bank conflicts.
constexpr int kDataStride = kCols + 16, kScaleStride = 2 * kGroups + 16, kScales = kTileRows * kDataStride;
constexpr int kStageBytes = kScales + kTileRows * kScaleStride;

struct EightMatrix {
    const char* data;
    const char* scales;
    float* y;
    int32_t rows, first;  // first tile
};

struct EightArgs {
    EightMatrix m[kEightMatrices];
    int32_t matrices, tiles, chunks;  // chunks: stages of a tile
    int32_t n, row_blocks, stages, x_stride;
    ActLayout layout;
    ActSource x;
    float* residual;
};

/// By warp `asker` of kAskers: its rows of every stage.
__device__ __forceinline__ void ask_for_stages(const EightArgs& a, char* stages, StageRing ring, Cursor now, int step,
                                               int asker) {
    const int cols = a.layout.cols;
#pragma unroll 1
    for (; now.outer < a.tiles; now.advance(a.chunks, step), ring.advance()) {
        const EightMatrix& m = matrix_of_tile(a, now.outer);
        const int first = kTileRows * (now.outer - m.first) + kAskRows * asker, last = m.rows - 1;
        const auto row_of = [&](int r) { return min(first + r, last); };
        char* const stage = stages + ring.at() * kStageBytes;
        ring.wait_until_empty();
        fetch_plane<kCols, kDataStride, kAskRows>(stage + kAskRows * asker * kDataStride, m.data + now.part * kCols,
                                                  cols, row_of);
        fetch_plane<2 * kGroups, kScaleStride, kAskRows>(stage + kScales + kAskRows * asker * kScaleStride,
                                                         m.scales + now.part * 2 * kGroups, cols / 16, row_of);
        ring.asked();
    }
}

/// Sub-blocks sub, sub + 16 of a stage, which are j, j + 16 of x: acc[u] += their products.
template <int NT>
__device__ __forceinline__ void eight_pair(const char* stage, int sub, const LaneX& x, int j, int lane,
                                           WideSums<NT, kUsers>& acc) {
    uint32_t xs[NT][4];
#pragma unroll
    for (int nt = 0; nt < NT; ++nt) load_matrices(xs[nt], x.b + 8 * nt * x.stride + 16 * j);
#pragma unroll
    for (int u = 0; u < 2; ++u) {
        const int at = sub + kUsers * u;
        uint32_t w[4];
        load_matrices(w, stage + lane % 16 * kDataStride + 32 * at + lane / 16 * 16);
        float s[2], shift[2];  // rows g, g + 8
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            s[h] = half_bits(
                *reinterpret_cast<const uint16_t*>(stage + kScales + (lane / 4 + 8 * h) * kScaleStride + 2 * at));
            shift[h] = -__fmul_rn(s[h], kMagic);
        }
#pragma unroll
        for (int nt = 0; nt < NT; ++nt) {
            float d[2];  // of the two columns
#pragma unroll
            for (int c = 0; c < 2; ++c)
                d[c] = *reinterpret_cast<const float*>(x.pairs + (8 * nt + c) * x.stride + 8 * (j + kUsers * u));
            int c[4] = {};
            mma_k32(c, w, xs[nt][2 * u], xs[nt][2 * u + 1], kMagicBits);
#pragma unroll
            for (int i = 0; i < 4; ++i)
                acc[u][nt][i] = fmaf(fmaf(s[i / 2], __int_as_float(c[i]), shift[i / 2]), d[i % 2], acc[u][nt][i]);
        }
    }
}

template <int NT>
__global__ void __launch_bounds__(kEightThreads, 1) eight_kernel(const __grid_constant__ EightArgs a) {
    extern __shared__ uint4 dynamic[];
    __shared__ uint64_t barriers[2 * kMostStages];
    pdl_trigger();
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int block = blockIdx.x, row0 = block % a.row_blocks * 8 * NT, count = min(8 * NT, a.n - row0);
    constexpr int kPartial = static_cast<int>(partial_bytes(NT, kUsers));
    char* const stages = reinterpret_cast<char*>(dynamic);
    char* const partials = stages + a.stages * kStageBytes;
    char* const staged = partials + 2 * kPartial;
    const int step = gridDim.x / a.row_blocks;
    Cursor now{block / a.row_blocks, 0};
    StageRing ring(barriers, a.stages);
    if (threadIdx.x == 0) ring.init(kUsers, 32 * kAskers);
    __syncthreads();
    if (warp >= kUsers) {
        ask_for_stages(a, stages, ring, now, step, warp - kUsers);
        return;
    }
    pdl_wait();
    constexpr int kUserThreads = 32 * kUsers;
#pragma unroll 1
    for (int chunk = 0; chunk < a.chunks; ++chunk)
        fetch_x<kUserThreads>(a.x, a.layout.groups, chunk, row0, count, false, a.x_stride, staged);
    const LaneX mine({staged, a.x_stride, a.layout.groups, count}, lane, kUsers);
    WideSums<NT, kUsers> acc;
    int tile = 0;
#pragma unroll 1
    for (int u = 0; now.outer < a.tiles; ++u, now.advance(a.chunks, step), ring.advance()) {
        if (u < a.chunks) {  // chunk u of x, behind which a.chunks - 1 - u were asked for
            wait_copies(a.chunks - 1 - u);
            sync_warps<kUsers>();
        }
        ring.wait_until_full();
        if (now.part == 0) {
#pragma unroll
            for (int i = 0; i < 8 * NT; ++i) acc[i / (4 * NT)][i / 4 % NT][i % 4] = 0.0f;
        }
        const char* const stage = stages + ring.at() * kStageBytes;
#pragma unroll
        for (int b = 0; b < kGroups; b += 2 * kUsers)
            eight_pair<NT>(stage, b + warp, mine, kGroups * now.part + b + warp, lane, acc);
        ring.used();
        if (now.part != a.chunks - 1) continue;
        const EightMatrix& m = matrix_of_tile(a, now.outer);
        float* const partial = reinterpret_cast<float*>(partials + tile % 2 * kPartial);
        put_wide<NT, kUsers>(partial, warp, lane, acc);
        sync_warps<kUsers>();
        // Other warps each time, which are behind the rest then.
        const int i = (static_cast<int>(threadIdx.x) + 128 * NT * tile) % kUserThreads;
        const int row = kTileRows * (now.outer - m.first) + i % 16, p = i / 16;
        if (i < 128 * NT && row < m.rows && p < count) {
            const int64_t at = static_cast<int64_t>(row0 + p) * m.rows + row;
            const float sum = wide_sum<NT, kUsers>(partial, i % 16, p);
            m.y[at] = sum;
            if (a.residual != nullptr) a.residual[at] = a.residual[at] + sum;
        }
        ++tile;
    }
}

/// CTA (row, piece of 8 * kThreads columns).
__global__ void __launch_bounds__(kThreads)
    swiglu_kernel(const float* gate, const float* up, ActLayout layout, char* out) {
    pdl_trigger();
    pdl_wait();
    const int c = static_cast<int>(blockIdx.y * kThreads + threadIdx.x);
    const int64_t at = static_cast<int64_t>(blockIdx.x) * layout.cols;
    float g[8], u[8];
    load8(gate + at, c, layout.cols, g);
    load8(up + at, c, layout.cols, u);
#pragma unroll
    for (int i = 0; i < 8; ++i) g[i] = 8 * c + i < layout.cols ? swiglu_value(g[i], u[i]) : 0.0f;
    put8(layout, out + static_cast<int64_t>(blockIdx.x) * layout.bytes(), c, g);
}

template <int NT>
bool launch_eight(Context& ctx, EightArgs& a) {
    const int64_t fixed = 2 * partial_bytes(NT, kUsers) + int64_t{8} * NT * a.x_stride;
    const TilePlan plan = plan_tiles(*ctx.gpu, 1, fixed, kStageBytes);
    if (plan.stages == 0) return false;
    launch_planned(*ctx.gpu, eight_kernel<NT>, kEightThreads, 8 * NT, plan, a);
    return true;
}

}  // namespace

bool eight_weight(const Gpu& gpu, const Weight& w) {
    return gpu.info().major >= 8 && !gpu.options().portable && w.dtype == DType::planes_int8 && w.scale == 1.0f &&
           w.scale_dtype == DType::f16 && w.scale_cols == 32 && w.scale_rows == 1 && w.cols % kCols == 0 &&
           w.cols > 0 && w.rows > 0;
}

ActSource prepare_swiglu(Context& ctx, const Tensor& gate, const Tensor& up) {
    ActSource staged;
    const ActLayout layout = act_layout(gate.shape[1], true, false);
    staged.kind = ActKind::staged;
    staged.stride = layout.bytes();
    auto* out = static_cast<char*>(ctx.arena->allocate(gate.rows() * staged.stride));
    staged.rows = out;
    constexpr int64_t kPiece = 8 * kThreads;
    launch(*ctx.gpu, swiglu_kernel,
           dim3(static_cast<unsigned>(gate.rows()), static_cast<unsigned>((layout.cols + kPiece - 1) / kPiece)),
           kThreads, 0, gate.row(0), up.row(0), layout, out);
    return staged;
}

bool eight_multiply(Context& ctx, const ActSource& x, int64_t cols, int64_t n, std::span<const Weight* const> weights,
                    std::span<const Tensor> y, Tensor* residual) {
    RT_ASSERT(weights.size() <= kEightMatrices);
    EightArgs a = {};
    for (size_t i = 0; i < weights.size(); ++i) {
        const Weight& w = *weights[i];
        a.m[i] = {static_cast<const char*>(w.data), static_cast<const char*>(w.scales), y[i].row(0),
                  static_cast<int32_t>(w.rows), a.tiles};
        a.tiles += static_cast<int32_t>((w.rows + kTileRows - 1) / kTileRows);
    }
    a.matrices = static_cast<int32_t>(weights.size());
    a.chunks = static_cast<int32_t>(cols / kCols);
    a.n = static_cast<int32_t>(n);
    a.layout = act_layout(cols, true, false);
    a.x_stride = tile_x_stride(a.layout, false);
    a.residual = residual == nullptr ? nullptr : residual->row(0);
    const int64_t least = 2 * partial_bytes(1, kUsers) + int64_t{8} * a.x_stride;
    if (plan_tiles(*ctx.gpu, 1, least, kStageBytes).stages == 0) return false;
    a.x = x.kind == ActKind::int8 ? x : prepare_rows(ctx, x, a.layout, n);
    return (n > 8 && launch_eight<2>(ctx, a)) || launch_eight<1>(ctx, a);
}

}  // namespace riptide::ops::cuda::decode
