// Large Q4_K, Q5_K and Q6_K matrices of any width times 2 to 256 rows: each weight is read and decoded once for up to
// 32 rows. For what kquant_f16_mma_sm90.cu does not take: Q5_K, other widths, other chips than Hopper.
//
// Bytes: those of the weights (kquant_i8_wide_row1_sm90.cu has them); the issue of instructions is as near: 65 of a
// warp for a sub-block of sixteen rows would take as long as its bytes in Q4_K, and 16 rows of x need about 52, by
// count. Measured (H200, 2026-11-22, bench_gpu_dense) at 8, 16 and 24 rows: gate, up and down 83, 114 and 146 us, o 15,
// 20 and 23, head 464, 607 and 831. ncu, gate and up, 16 rows: 108 instructions instead of 52, of which about 30 are
// what a tile costs whatever its columns; 60 % of issue slots. 24 rows of x of 17,408 columns fit beside Q4_K alone.
// Design: clusters of two CTAs (four where x is too long for two), an SM each, share tiles of 32 rows, each CTA a part
// of the columns, so that x fits beside a deep ring even where a row of it has 17,408 columns. Sixteen warps of a CTA
// multiply; four more ask for weights, from before pdl_wait() on. When a tile is done, its sums go to the CTAs of the
// cluster that add them up (through distributed shared memory, a part of the products each), and are added while the
// next tile is multiplied. x is quantised by a kernel before. Gate and up: half of a tile's rows are of each, and
// silu(gate) * up is stored.
// Tried: one warp that asks (22 % slower at 16 rows: it was the limit); sums by stores and released arrivals, which
// wait for the stores, and four CTAs for all widths (35 % slower together).
#include <algorithm>

#include "ops/cuda/device/row_math.cuh"
#include "ops/cuda/linear/shared/float.h"
#include "ops/cuda/linear/shared/float_rows_beside.cuh"
#include "ops/cuda/linear/shared/kquant_i8_wide.cuh"
#include "ops/cuda/linear/shared/kquant_i8_wide.h"
#include "ops/cuda/linear/shared/kquant_i8_wide_tile.cuh"

namespace riptide::ops::cuda::decode {

namespace {

constexpr int kAskers = 4;  // the last warps, which ask for weights
constexpr int kWideThreads = 32 * (kWideWarps + kAskers);

struct WideTileMatrix {
    TilePlanes planes;
    float* y;
    int32_t rows, first;  // first tile
    DType type;
};

struct WideTileArgs {
    WideTileMatrix m[kMostWide];
    int32_t matrices, tiles;
    int32_t gate_up;  // tile t has rows 16 t .. of m[0] and of m[1]; m[0].y gets silu(first) * second
    int32_t n, row_blocks;
    int32_t stages, stage_bytes, buffers;  // buffers: places for sums, 2 or 1
    int32_t a0;                            // whether any matrix is Q6_K
    int32_t layout_groups, most_groups;    // sub-blocks of a row, and of a CTA's share at most
    ActSource x;                           // kinds staged, int8
    float* residual;
    WideFloats floats;
};

struct WidePrepareArgs {
    ActSource x;
    ActLayout layout;
    char* out;
};

/// Row blockIdx.x, quantised; without a norm the columns from 2,048 blockIdx.y on.
__global__ void __launch_bounds__(kThreads) kquant_i8_wide_prepare_kernel(const __grid_constant__ WidePrepareArgs a) {
    __shared__ float partial[kWarps];
    pdl_trigger();
    float norm[kWholeRow][8] = {};
    load_norms(a.x, a.layout.cols, norm);
    pdl_wait();
    const auto* x = reinterpret_cast<const float*>(a.x.rows + blockIdx.x * a.x.stride);
    char* const out = a.out + static_cast<int64_t>(blockIdx.x) * a.layout.bytes();
    if (a.x.kind == ActKind::norm) {
        stage_whole_row(a.x, x, a.layout, norm, out, partial);
        return;
    }
    const int c = blockIdx.y * kThreads + threadIdx.x;
    float v[8];
    load8(x, c, a.layout.cols, v);
    put8(a.layout, out, c, v);
}

#if __CUDA_ARCH__ >= 900

constexpr int kAskerRows = kWideRows / kAskers;  // of a tile
constexpr int kUsers = 32 * kWideWarps;

__device__ __forceinline__ const WideTileMatrix& matrix_of_tile(const WideTileArgs& a, int tile) {
    int i = 0;
    if (a.gate_up == 0)
        while (i + 1 < a.matrices && tile >= a.m[i + 1].first) ++i;
    return a.m[i];
}

/// The blocks of 256 columns of this CTA: `blocks` of every row, in `parts` stages.
template <int C>
struct Share {
    static constexpr int kChains = 4 / C;
    int rank, blocks, parts, least,
        more;  // in pairs if there are two chains: `more` stages have least + 1, others least

    __device__ __forceinline__ Share(const WideTileArgs& a, int r)
        : rank(r),
          blocks((a.layout_groups / 8 - r + C - 1) / C),
          parts((blocks + stage_blocks(C) - 1) / stage_blocks(C)) {
        const int units = (blocks + kChains - 1) / kChains;
        least = units / max(parts, 1);
        more = units - parts * least;
    }
    __device__ __forceinline__ int first(int part) const { return kChains * (part * least + min(part, more)); }
    __device__ __forceinline__ int count(int part) const { return min(first(part + 1), blocks) - first(part); }
};

/// An asker's rows of a tile, eight of them: row i of them is row 8 asker + i of the tile.
struct AskedRows {
    const TilePlanes* planes;
    int first, last;  // rows of the matrix

    __device__ __forceinline__ AskedRows(const WideTileArgs& a, const WideTileMatrix& m, int tile, int asker) {
        const bool both = a.gate_up != 0;
        planes = both && asker % 2 != 0 ? &a.m[1].planes : &m.planes;
        first = both ? 16 * tile + asker / 2 * 8 : 32 * (tile - m.first) + kAskerRows * asker;
        last = m.rows - 1;
    }
    /// The number of the first block of row i among those of the matrix.
    __device__ __forceinline__ int64_t block(int i, int blocks) const {
        return static_cast<int64_t>(min(first + i, last)) * blocks;
    }
};
/// `kEach` bytes of each of `count` blocks of the rows.
template <int C, int kEach, int kStride>
__device__ __forceinline__ void fetch_blocks(const char* plane, const AskedRows& rows, int blocks, int begin, int count,
                                             char* to) {
    constexpr int kPieces = kEach / 16, kRound = 32 / kPieces;  // rows at a time
    const int lane = threadIdx.x % 32, c = lane % kPieces * 16;
    if constexpr (kRound > kAskerRows) {  // some lanes have other blocks
        constexpr int kTogether = kRound / kAskerRows;
        const int i = lane / kPieces % kAskerRows, b0 = lane / kPieces / kAskerRows;
        const char* const from = plane + (rows.block(i, blocks) + begin + b0 * C) * kEach + c;
        char* const at = to + i * kStride + b0 * kEach + c;
#pragma unroll
        for (int b = 0; b < stage_blocks(C); b += kTogether)
            if (b + b0 < count) copy_async16(at + b * kEach, from + b * C * kEach);
    } else {
#pragma unroll
        for (int k = 0; k < kAskerRows / kRound; ++k) {
            const int i = k * kRound + lane / kPieces;
            const char* const from = plane + (rows.block(i, blocks) + begin) * kEach + c;
            char* const at = to + i * kStride + c;
#pragma unroll
            for (int b = 0; b < stage_blocks(C); ++b)
                if (b < count) copy_async16(at + b * kEach, from + b * C * kEach);
        }
    }
}
/// Blocks [first, first + count) of this CTA of an asker's rows of a tile. d: of Q6_K, as load_d() found them.
template <DType Type, int C>
__device__ __forceinline__ void fetch_stage(const AskedRows& rows, int blocks, const Share<C>& share, int first,
                                            int count, int asker, char* stage, const uint32_t (&d)[2]) {
    using S = WideStage<Type, C>;
    const int begin = share.rank + C * first, at = kAskerRows * asker;
    fetch_blocks<C, 128, S::kDataStride>(rows.planes->data, rows, blocks, begin, count, stage + at * S::kDataStride);
    fetch_blocks<C, 16, S::kHeadStride>(rows.planes->scales, rows, blocks, begin, count,
                                        stage + S::kHeads + at * S::kHeadStride);
    if constexpr (S::kHighEach > 0)
        fetch_blocks<C, S::kHighEach, S::kHighStride>(rows.planes->high, rows, blocks, begin, count,
                                                      stage + S::kHigh + at * S::kHighStride);
    if constexpr (S::kQ6) {
        const int lane = threadIdx.x % 32;
        auto* const to = reinterpret_cast<uint16_t*>(stage + S::kD) + (at + lane % 8) * S::kBlocks + lane / 8;
        if (lane / 8 < count) to[0] = static_cast<uint16_t>(d[0]);
        if (lane / 8 + 4 < count) to[4] = static_cast<uint16_t>(d[1]);
    }
}
/// d of Q6_K: lane 8 b + i has that of row i and blocks b and b + 4.
template <int C>
__device__ __forceinline__ void load_d(const AskedRows& rows, int blocks, const Share<C>& share, int first, int count,
                                       uint32_t (&d)[2]) {
    static_assert(stage_blocks(C) <= 8 && kAskerRows == 8);
    const int lane = threadIdx.x % 32;
    const char* const from = rows.planes->d + 2 * (rows.block(lane % 8, blocks) + share.rank + C * first);
    if (lane / 8 < count) d[0] = load_weight16(from + 2 * C * (lane / 8));
    if (lane / 8 + 4 < count) d[1] = load_weight16(from + 2 * C * (lane / 8 + 4));
}

/// What the last warps do.
template <int C>
__device__ __forceinline__ void ask_for_tiles(const WideTileArgs& a, const Share<C>& share, int asker, char* stages,
                                              StageRing ring, int tile, int step) {
    const int blocks = a.layout_groups / 8;
    uint32_t d[2] = {};
    if (tile < a.tiles && share.parts > 0) {
        const WideTileMatrix& m = matrix_of_tile(a, tile);
        if (m.type == DType::planes_q6_k) load_d(AskedRows(a, m, tile, asker), blocks, share, 0, share.count(0), d);
    }
#pragma unroll 1
    for (; tile < a.tiles; tile += step) {
        const WideTileMatrix& m = matrix_of_tile(a, tile);
        const AskedRows rows(a, m, tile, asker);
#pragma unroll 1
        for (int part = 0; part < share.parts; ++part, ring.advance()) {
            const int first = share.first(part), count = share.count(part);
            char* const stage = stages + ring.at() * a.stage_bytes;
            ring.wait_until_empty();
            if (m.type == DType::planes_q6_k)
                fetch_stage<DType::planes_q6_k, C>(rows, blocks, share, first, count, asker, stage, d);
            else if (m.type == DType::planes_q5_k)
                fetch_stage<DType::planes_q5_k, C>(rows, blocks, share, first, count, asker, stage, d);
            else fetch_stage<DType::planes_q4_k, C>(rows, blocks, share, first, count, asker, stage, d);
            ring.asked();
            ring.arrive();  // what this lane stored itself
            // d of the next stage: it is stored, not copied, and has a stage's time to come.
            if (part + 1 < share.parts) {
                if (m.type == DType::planes_q6_k)
                    load_d(rows, blocks, share, share.first(part + 1), share.count(part + 1), d);
            } else if (tile + step < a.tiles) {
                const WideTileMatrix& next = matrix_of_tile(a, tile + step);
                if (next.type == DType::planes_q6_k)
                    load_d(AskedRows(a, next, tile + step, asker), blocks, share, 0, share.count(0), d);
            }
        }
    }
}

/// This CTA's share of rows row0 .. row0 + count - 1 of x to shared memory, by the warps that multiply.
template <int C, int NT>
__device__ __forceinline__ void stage_share(const WideTileArgs& a, const Share<C>& share, int row0, int count,
                                            const WideX& x, char* staged) {
    const int groups = 8 * share.blocks, all = a.layout_groups;
    const bool given = a.x.kind == ActKind::int8;
#pragma unroll 1
    for (int i = threadIdx.x; i < count * groups; i += kUsers) {
        const int p = i / groups, j = i % groups, g = 8 * (share.rank + j / 8 * C) + j % 8;
        const char* const from = a.x.rows + (row0 + p) * a.x.stride;
        char* const row = staged + p * x.stride;
        copy_async16(row + 16 * j, from + 16 * g);
        copy_async16(row + 16 * (x.groups + j), from + 16 * (all + g));
        copy_async8(staged + x.pairs + 8 * (8 * NT * j + p), from + 32 * all + 8 * g);
        if (a.a0 != 0 && !given) copy_async4(staged + x.halves + 4 * (8 * NT * j + p), from + 40 * all + 4 * g);
    }
    copy_async_wait();
    if (a.a0 == 0 || !given) return;
#pragma unroll 1
    for (int i = threadIdx.x; i < count * groups; i += kUsers) {
        const int p = i / groups, j = i % groups;
        const uint32_t ones[4] = {0x01010101u, 0x01010101u, 0x01010101u, 0x01010101u};
        const int sum = dot4(ones, *reinterpret_cast<const uint4*>(staged + p * x.stride + 16 * j));
        *reinterpret_cast<float*>(staged + x.halves + 4 * (8 * NT * j + p)) = static_cast<float>(sum);
    }
}

/// Adds up this CTA's products of a tile and stores them.
template <int C, int NT>
__device__ __forceinline__ void finish_tile(const WideTileArgs& a, int tile, int rank, int row0, int count,
                                            const float* sums) {
    using F = WideFinish<C, NT>;
    const int o = static_cast<int>(threadIdx.x) / F::kShare, k = threadIdx.x % F::kShare;
    if (o >= F::kProducts) return;  // whole warps
    const float sum = add_sums<C, NT>(sums, o, k);
    const int p = o / F::kRows, h = o % 2, g = o % F::kRows / 2;
    const int half = C == 4 ? rank / 2 : rank, r = C == 4 ? 4 * (rank % 2) + g : g;  // row r + 8 h of that half
    if (a.gate_up != 0) {
        const float up = __shfl_xor_sync(~0u, sum, F::kShare);
        const int row = 16 * tile + 8 * half + r;
        if (k == 0 && h == 0 && p < count && row < a.m[0].rows)
            a.m[0].y[static_cast<int64_t>(row0 + p) * a.m[0].rows + row] = swiglu_value(sum, up);
        return;
    }
    const WideTileMatrix& m = matrix_of_tile(a, tile);
    const int row = 32 * (tile - m.first) + 16 * half + 8 * h + r;
    if (k != 0 || p >= count || row >= m.rows) return;
    const int64_t at = static_cast<int64_t>(row0 + p) * m.rows + row;
    m.y[at] = sum;
    if (a.residual != nullptr) a.residual[at] = __fadd_rn(a.residual[at], sum);
}

#endif  // __CUDA_ARCH__ >= 900

template <int C, int NT>
__global__ void __launch_bounds__(kWideThreads, 1) kquant_i8_wide_kernel(const __grid_constant__ WideTileArgs a) {
#if __CUDA_ARCH__ >= 900
    extern __shared__ uint4 dynamic[];
    __shared__ uint64_t barriers[2 * kMostWideStages + 3];  // of the ring; sums there (two), sums read
    __shared__ alignas(16) float results[kWideWarps / 4][2 * kFloatPair * kFloatX * 4];
    pdl_trigger();
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, cluster = blockIdx.x / C;
    const int row0 = cluster % a.row_blocks * 8 * NT, count = min(8 * NT, a.n - row0);
    const int first_tile = cluster / a.row_blocks, step = gridDim.x / C / a.row_blocks;
    const Share<C> share(a, static_cast<int>(cluster_rank()));
    using F = WideFinish<C, NT>;
    const WideX layout = WideX::of(a.most_groups, 8 * NT, a.a0 != 0);
    char* const stages = reinterpret_cast<char*>(dynamic);
    char* const sums = stages + a.stages * a.stage_bytes;
    char* const staged = sums + a.buffers * F::kBytes;
    const uint32_t there = shared_address(barriers + 2 * kMostWideStages), read = there + 16;
    StageRing ring(barriers, a.stages);
    if (threadIdx.x == 0) {
        ring.init(kWideWarps, 64 * kAskers);
        for (int i = 0; i < 3; ++i)
            asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(there + 8 * i), "r"(i < 2 ? 1 : C * kWideWarps)
                         : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        for (int i = 0; i < a.buffers; ++i) expect_bytes(there + 8 * i, F::kSent);
    }
    __syncthreads();
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    if (warp >= kWideWarps) {
        ask_for_tiles(a, share, warp - kWideWarps, stages, ring, first_tile, step);
        asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
        return;
    }
    pdl_wait();
    stage_share<C, NT>(a, share, row0, count, layout, staged);
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
    sync_warps<kWideWarps>();
    const int half = warp / 8, low = warp % 8;
    const WideLane x{staged + lane % 8 * layout.stride + lane / 8 % 2 * 16 * layout.groups,
                     staged + layout.pairs + lane % 4 * 16, staged + layout.halves + lane % 4 * 8, layout.stride};
    const KShifts at(low);
    int before = -1;  // the tile whose sums are to be added up
    uint32_t turn = 0;
    const auto finish = [&](int tile, uint32_t its_turn) {
        const uint32_t buffer = a.buffers == 2 ? its_turn & 1 : 0;
        wait_cluster(there + 8 * buffer, (a.buffers == 2 ? its_turn >> 1 : its_turn) & 1);
        if (threadIdx.x == 0) expect_bytes(there + 8 * buffer, F::kSent);
        finish_tile<C, NT>(a, tile, share.rank, row0, count, reinterpret_cast<const float*>(sums + buffer * F::kBytes));
    };
#pragma unroll 1
    for (int tile = first_tile; tile < a.tiles; tile += step, ++turn) {
        WideColumnSums<C, NT> acc = {};
        const DType type = matrix_of_tile(a, tile).type;
#pragma unroll 1
        for (int part = 0; part < share.parts; ++part, ring.advance()) {
            const int first = share.first(part), blocks = share.count(part);
            const char* const stage = stages + ring.at() * a.stage_bytes;
            ring.wait_until_full();
            if (type == DType::planes_q6_k)
                wide_stage<DType::planes_q6_k, C, NT>(stage, half, low, at, x, first, blocks, lane, acc);
            else if (type == DType::planes_q5_k)
                wide_stage<DType::planes_q5_k, C, NT>(stage, half, low, at, x, first, blocks, lane, acc);
            else wide_stage<DType::planes_q4_k, C, NT>(stage, half, low, at, x, first, blocks, lane, acc);
            ring.used();
            if (part == 0 && before >= 0) {
                finish(before, turn - 1);
                if (a.buffers == 1) arrive_everywhere<C>(read, lane);
                before = -1;
            }
        }
        if (before >= 0) {  // a CTA without columns
            finish(before, turn - 1);
            if (a.buffers == 1) arrive_everywhere<C>(read, lane);
        }
        const uint32_t buffer = a.buffers == 2 ? turn & 1 : 0;
        // The CTAs that get these sums have read those before them: with two places, because they have sent theirs of
        // the tile before this one, which they do when all their warps have read.
        if (a.buffers == 1 && turn > 0) wait_cluster(read, (turn - 1) & 1);
        sync_warps<kWideWarps>();
        send_sums<C, NT>(shared_address(sums) + buffer * F::kBytes, there + 8 * buffer,
                         static_cast<uint32_t>(share.rank), warp, lane, acc);
        before = tile;
    }
    if (before >= 0) finish(before, turn - 1);
    if (a.floats.pairs > 0)  // for the CTAs that have the fewest tiles
        multiply_floats(a.floats, a.x, (step - 1 - first_tile) * C + share.rank, step * C, row0, count,
                        results[warp / 4]);
#endif
}

template <int C, int NT>
void launch_wide(Context& ctx, WideTileArgs& a, const WideFit& fit) {
    const auto kernel = kquant_i8_wide_kernel<C, NT>;
    allow_shared(reinterpret_cast<const void*>(kernel), fit.shared);
    a.row_blocks = (a.n + 8 * NT - 1) / (8 * NT);
    const int64_t most = most_clusters(reinterpret_cast<const void*>(kernel), C, kWideThreads, fit.shared);
    const int64_t clusters = a.row_blocks * std::min<int64_t>(a.tiles, std::max<int64_t>(1, most / a.row_blocks));
    launch_clusters(*ctx.gpu, kernel, dim3(static_cast<unsigned>(C * clusters)), kWideThreads,
                    static_cast<size_t>(fit.shared), C, a);
}
template <int NT>
void launch_wide(Context& ctx, WideTileArgs& a, const WideFit& fit) {
    if (fit.cluster == 2) launch_wide<2, NT>(ctx, a, fit);
    else launch_wide<4, NT>(ctx, a, fit);
}

/// Launches for x and the matrices of a.
void multiply_tiles(Context& ctx, WideTileArgs& a, const ActSource& x, int64_t cols, int64_t n) {
    a.layout_groups = static_cast<int32_t>(cols / 32);
    a.n = static_cast<int32_t>(n);
    DType largest = DType::planes_q4_k;
    for (int i = 0; i < a.matrices; ++i) {
        a.a0 |= static_cast<int32_t>(a.m[i].type == DType::planes_q6_k);
        if (wide_stage_bytes<4>(a.m[i].type) > wide_stage_bytes<4>(largest)) largest = a.m[i].type;
    }
    const auto fit = fit_wide(chip_of(*ctx.gpu), cols, n, largest, a.a0 != 0);
    RT_ASSERT(fit);
    a.stages = fit->stages, a.stage_bytes = fit->stage_bytes, a.buffers = fit->buffers, a.most_groups = fit->groups;
    if (x.kind == ActKind::int8) {
        a.x = x;
    } else {
        WidePrepareArgs p = {x, act_layout(cols, true, a.floats.pairs > 0), nullptr};
        a.floats.bytes = p.layout.float_bytes;
        a.x.kind = ActKind::staged;
        a.x.stride = p.layout.bytes();
        p.out = static_cast<char*>(ctx.arena->allocate(n * a.x.stride));
        a.x.rows = p.out;
        const int64_t parts = x.kind == ActKind::norm ? 1 : (cols + 2047) / 2048;
        launch(*ctx.gpu, kquant_i8_wide_prepare_kernel, dim3(static_cast<unsigned>(n), static_cast<unsigned>(parts)),
               kThreads, 0, p);
    }
    if (fit->tiles == 4) launch_wide<4>(ctx, a, *fit);
    else if (fit->tiles == 3) launch_wide<3>(ctx, a, *fit);
    else if (fit->tiles == 2) launch_wide<2>(ctx, a, *fit);
    else launch_wide<1>(ctx, a, *fit);
}

WideTileMatrix tile_matrix(const Weight& w, float* y, int32_t first) {
    return {tile_planes(matrix_of(w)), y, static_cast<int32_t>(w.rows), first, w.dtype};
}

}  // namespace

void kquant_i8_wide_multiply(Context& ctx, const ActSource& x, int64_t cols, int64_t n,
                             std::span<const Weight* const> weights, std::span<const Tensor> y, Tensor* residual) {
    RT_ASSERT(weights.size() <= kMostWide);
    WideTileArgs a = {};
    for (size_t i = 0; i < weights.size(); ++i) {
        const Weight& w = *weights[i];
        if (is_planes(w.dtype)) {
            a.m[a.matrices++] = tile_matrix(w, y[i].row(0), a.tiles);
            a.tiles += static_cast<int32_t>((w.rows + kWideRows - 1) / kWideRows);
        } else {
            a.floats.add(w, y[i].row(0));
        }
    }
    a.residual = residual == nullptr ? nullptr : residual->row(0);
    multiply_tiles(ctx, a, x, cols, n);
}

void kquant_i8_wide_gate_up(Context& ctx, const ActSource& x, int64_t cols, int64_t n, const Weight& gate,
                            const Weight& up, float* out) {
    WideTileArgs a = {};
    a.m[0] = tile_matrix(gate, out, 0);
    a.m[1] = tile_matrix(up, nullptr, 0);
    a.matrices = 2;
    a.gate_up = 1;
    a.tiles = static_cast<int32_t>((gate.rows + kWideRows / 2 - 1) / (kWideRows / 2));
    multiply_tiles(ctx, a, x, cols, n);
}

}  // namespace riptide::ops::cuda::decode
