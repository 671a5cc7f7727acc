// Q4_K and Q6_K matrices of 2,048 columns times 5 to 256 rows, and small Q4_K matrices of 6,144 or 8,192 columns times
// 9 to 256 (sm_90): q, k, v, gate, o, dense gate and up, head of Laguna XS.2 where sequences share a step.
//
// Bytes: those of the weights for each 32 rows, from memory once, then from L2: 2.6, 2.0, 3.6 and 36 us at 4.65 TB/s.
// Floor of 128 rows by instructions (some 20 of a warp for 16 x 8 x 32 products, 12 of them the canonical
// floating-point part; twice as much in kquant_i8_sm80.cu): 17, 13, 27 and 260 us. Measured (H200, 2026-11-22,
// bench_gpu_ops --table; in brackets kquant_i8_sm80.cu): q, k, v, gate of 16, 32, 64 and 128 rows 12.8 (14.6), 18.2
// (23.4), 26.8 (37.9), 45.3 us (68.2); o 11.3 (11.6), 15.6 (16.7), 23.7 (27.7), 44.0 (50.8); head 85 (117), 118 (203),
// 221 (394), 430 (775). What limits it (by count, not profiled): what shared memory returns, 128 bytes a cycle: 8
// cycles for 16 x 8 x 32 products, x and its scales most of it. Design: eight warps of a CTA multiply, each a value of
// the lowest bits of a sub-block's number, so that everything lies at offsets known here; four ask for weights, 16 rows
// of up to 2,048 columns at a time. Two teams of four warps have every second tile: while one meets, the other
// multiplies (one team of eight warps: o 53.9 us, else 3 %). More columns: clusters of four CTAs take the blocks of 256
// with the same number mod 4, hence whole chains of the canonical sum, and send each other their sums
// (kquant_i8_wide_tile.cuh). Tried: rows of x in registers, 16 at a time (65.6 us for q, k, v, gate of 128 rows,
// o 81.8, head 718: weights are decoded twice as often).
#include <algorithm>

#include "ops/cuda/linear/gemv/any.cuh"
#include "ops/cuda/linear/skinny/kquant_i8_narrow_sm90.cuh"
#include "ops/cuda/linear/skinny/kquant_i8_narrow_sm90.h"
#include "ops/cuda/linear/skinny/kquant_i8_sm80.h"

namespace riptide::ops::cuda::decode {

namespace {

constexpr DType kQ4 = DType::planes_q4_k, kQ6 = DType::planes_q6_k;

struct NarrowArgs {
    TileMatrix m[kMaxMatrices];
    int32_t matrices, tiles, cols;
    int32_t n, row_blocks, stages, stage_bytes;
    ActSource x;  // kinds staged, int8
    float* residual;
};

#if __CUDA_ARCH__ >= 900

constexpr int kAskerRows = 16 / kNarrowProducers;

/// Rows `first` .. + 3 (or the last) of a matrix to rows 4 asker .. + 3 of a stage.
template <bool Q6, int C, int B>
__device__ __forceinline__ void fetch_narrow(const TileMatrix& m, int cols, int rank, int first, int asker,
                                             char* stage) {
    using T = Tile<Q6 ? kQ6 : kQ4, 2048>;
    const int lane = threadIdx.x % 32, last = m.rows - 1, at = kAskerRows * asker;
    const int64_t row_bytes = C == 1 ? 1024 : cols / 2;
    // 16 bytes a lane: 512 of a row, of its block `piece` (and piece + 4) a quarter.
    const int piece = lane / 8, c = lane % 8 * 16;
    const char* const data = m.planes.data + (C * piece + rank) * 128 + c;
    char* const to = stage + at * T::kDataStride + 16 * lane;
#pragma unroll
    for (int r = 0; r < kAskerRows; ++r) {
        const char* const from = data + min(first + r, last) * row_bytes;
#pragma unroll
        for (int q = 0; q < 2; ++q)
            if (4 * q + 3 < B || 4 * q + piece < B) copy_async16(to + r * T::kDataStride + 512 * q, from + 512 * C * q);
    }
    const int b = lane % 8, of = min(first + piece, last);
    if (B == 8 || b < B)
        copy_async16(stage + T::kHeads + (at + piece) * T::kHeadStride + 16 * b,
                     m.planes.scales + of * (C == 1 ? 128 : cols / 16) + (C * b + rank) * 16);
    if constexpr (Q6) {
#pragma unroll
        for (int r = 0; r < kAskerRows; ++r)
            copy_async16(stage + T::kHigh + (at + r) * T::kHighStride + 16 * lane,
                         m.planes.high + int64_t{512} * min(first + r, last) + 16 * lane);
        if (lane < kAskerRows)
            copy_async16(stage + T::kD + 16 * (at + lane), m.planes.d + 16 * min(first + lane, last));
    }
}

/// This CTA's columns of rows row0 .. row0 + count - 1 of x to shared memory, by the warps that multiply: int8 row by
/// row, {d, A} sub-block by sub-block.
template <int NT, int C, int B>
__device__ __forceinline__ void stage_narrow(const NarrowArgs& a, int rank, int row0, int count, char* x) {
    const int all = (C == 1 ? 2048 : a.cols) / 32, thread = threadIdx.x;
    const char* const rows = a.x.rows + row0 * a.x.stride;
    const auto group = [&](int j) { return C == 1 ? j : 8 * (rank + j / 8 * C) + j % 8; };
#pragma unroll 4
    for (int i = thread; i < 128 * count; i += kNarrowConsumers) {
        const int p = i / 128, c = i % 128, j = c % 64;
        if (B == 8 || j < 8 * B)
            copy_async16(x + p * kNarrowXStride + 16 * c, rows + p * a.x.stride + 16 * (c / 64 * all + group(j)));
    }
    // Lanes have four sub-blocks of eight rows: 32 bytes of each row, 64 together where they go.
    const int blocks = (count + 7) / 8;
#pragma unroll 4
    for (int i = thread; i < 512 * blocks; i += kNarrowConsumers) {
        const int lane = i % 32, j = i / 32 % 16 * 4 + lane / 8, p = i / 512 * 8 + lane % 8;
        if (p < count && (B == 8 || j < 8 * B))
            copy_async8(x + 8 * NT * kNarrowXStride + 8 * (8 * NT * j + p),
                        rows + p * a.x.stride + 32 * all + 8 * group(j));
    }
    copy_async_wait();
}

/// Barrier of a team of warps.
template <int kTeams>
__device__ __forceinline__ void sync_team(int team) {
    constexpr int kThreadsOf = kNarrowConsumers / kTeams;
    if (kTeams == 1 || team == 0) asm volatile("bar.sync 2, %0;" ::"n"(kThreadsOf) : "memory");
    else asm volatile("bar.sync 3, %0;" ::"n"(kThreadsOf) : "memory");
}

#endif  // __CUDA_ARCH__ >= 900

/// With two teams of four warps, each has two values of the low bits and every second tile: while one waits at its
/// barrier, the other multiplies.
template <int NT, int C, int B>
__global__ void __launch_bounds__(kNarrowThreads, 1) kquant_i8_narrow_kernel(const __grid_constant__ NarrowArgs a) {
#if __CUDA_ARCH__ >= 900
    using S = NarrowShape<NT, C, B>;
    constexpr int kTeams = S::kTeams, kTeamWarps = kNarrowWarps / kTeams;
    extern __shared__ uint4 dynamic[];
    __shared__ uint64_t barriers[2 * kMostNarrowStages + 2 * kTeams];  // of the ring; sums there (two a team)
    pdl_trigger();
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, cluster = blockIdx.x / C;
    const int rank = C == 1 ? 0 : static_cast<int>(cluster_rank());
    const int row0 = cluster % a.row_blocks * S::kRows, count = min(S::kRows, a.n - row0);
    const int step = gridDim.x / C / a.row_blocks;
    char* const sums = reinterpret_cast<char*>(dynamic);
    char* const x = sums + 2 * kTeams * S::kTileSums;
    char* const stages = x + S::kXBytes + S::kScaleBytes;
    const uint32_t there = shared_address(barriers + 2 * kMostNarrowStages);
    StageRing ring(barriers, a.stages);
    int tile = cluster / a.row_blocks;
    if (threadIdx.x == 0) {
        ring.init(kTeamWarps, 32 * kNarrowProducers);
        if constexpr (C > 1) {
            for (int i = 0; i < 2 * kTeams; ++i)
                asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(there + 8 * i) : "memory");
            asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
            for (int i = 0; i < 2 * kTeams; ++i) expect_bytes(there + 8 * i, S::kSumBytes);
        }
    }
    __syncthreads();
    if constexpr (C > 1) asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    if (warp >= kNarrowWarps) {
        const int asker = warp - kNarrowWarps;
#pragma unroll 1
        for (; tile < a.tiles; tile += step, ring.advance()) {
            const TileMatrix& m = matrix_of_tile(a, tile);
            const int first = 16 * (tile - m.first) + kAskerRows * asker;
            char* const stage = stages + ring.at() * a.stage_bytes;
            ring.wait_until_empty();
            if (C == 1 && m.q6 != 0) fetch_narrow<true, 1, 8>(m, a.cols, 0, first, asker, stage);
            else fetch_narrow<false, C, B>(m, a.cols, rank, first, asker, stage);
            ring.asked();
        }
        if constexpr (C > 1) asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
        return;
    }
    pdl_wait();
    stage_narrow<NT, C, B>(a, rank, row0, count, x);
    if constexpr (C > 1) asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
    sync_warps<kNarrowWarps>();
    auto* const scales = reinterpret_cast<float2*>(x + S::kXBytes) + warp * (B / 2 * 32);
    const char* const xb = x + (lane % 8 + (NT > 1 ? lane / 16 * 8 : 0)) * kNarrowXStride + lane / 8 % 2 * 1024;
    const char* const pairs = x + S::kRows * kNarrowXStride + lane % 4 * 16;
    int before = -1;  // C == 4: the tile whose sums are to be added up
    uint32_t turn = 0;
    const int team = warp / kTeamWarps, first_low = warp % kTeamWarps;
    constexpr int kOf = 32 * kTeamWarps;  // threads of a team
    const int thread = threadIdx.x % kOf;
    // C == 4: adds up this CTA's quarter of the products, each by a thread, other warps each time if not all are
    // needed.
    [[maybe_unused]] const auto finish = [&](int of, uint32_t its_turn) {
        constexpr int kProducts = 32 * NT;
        const int buffer = 2 * team + static_cast<int>(its_turn & 1);
        wait_cluster(there + 8 * buffer, its_turn >> 1 & 1);
        if (thread == 0) expect_bytes(there + 8 * buffer, S::kSumBytes);
        const int word = (thread + kProducts * static_cast<int>(its_turn)) % kOf;
        if (word >= kProducts) return;  // whole warps
        // The lane that sent it had row r (and r + 8) and columns 2 t, 2 t + 1 of eight.
        const int from = word / NT, e = word % NT, r = from / 4;
        const int h = NT == 4 ? e / 2 : NT == 2 ? rank % 2 : rank / 2;
        const int c = from % 4 * 2 + (NT == 1 ? rank : e) % 2;
        const float* const s = reinterpret_cast<const float*>(sums + buffer * S::kTileSums) + word;
        const auto low = [&](int l) {  // xor 16, 8
            const auto q = [&](int i) { return s[(i * kNarrowWarps + l) * kProducts]; };
            return __fadd_rn(__fadd_rn(q(0), q(2)), __fadd_rn(q(1), q(3)));
        };
        const auto four = [&](int l) { return __fadd_rn(low(l), low(l + 4)); };
        const float sum = __fadd_rn(__fadd_rn(four(0), four(2)), __fadd_rn(four(1), four(3)));
        const TileMatrix& m = matrix_of_tile(a, of);
        const int p = 8 * (NT == 4 ? rank : NT == 2 ? rank / 2 : 0) + c, row = 16 * (of - m.first) + r + 8 * h;
        if (p >= count || row >= m.rows) return;
        const int64_t to = static_cast<int64_t>(row0 + p) * m.rows + row;
        m.y[to] = sum;
        if (a.residual != nullptr) a.residual[to] = __fadd_rn(a.residual[to], sum);
    };
    if (team == 1) tile += step, ring.advance();
#pragma unroll 1
    for (; tile < a.tiles; tile += kTeams * step, ++turn) {
        const TileMatrix& m = matrix_of_tile(a, tile);
        const char* const stage = stages + ring.at() * a.stage_bytes;
        char* const mine = sums + (2 * team + static_cast<int>(turn & 1)) * S::kTileSums;
        float sum[NT][4];
        ring.wait_until_full();
        const auto multiply = [&](int low, float(&out)[NT][4]) {
            if (C == 1 && m.q6 != 0)
                narrow_tile<kQ6, NT, 1, 8>(stage, scales, xb + 16 * low, pairs + 64 * NT * low, low, lane, out);
            else narrow_tile<kQ4, NT, C, B>(stage, scales, xb + 16 * low, pairs + 64 * NT * low, low, lane, out);
        };
        if constexpr (C == 1 && kTeams == 1) {
            multiply(first_low, sum);
        } else {
#pragma unroll 1
            for (int h = 0; h < kTeams; ++h) {
                const int low = first_low + 4 * h;
                float part[NT][4];
                multiply(low, part);
                __syncwarp();  // the warp's scales have been read: the next stage's come there
                if constexpr (C == 1) {
#pragma unroll
                    for (int i = 0; i < 4 * NT; ++i)
                        sum[i / 4][i % 4] =
                            h == 0 ? part[i / 4][i % 4] : __fadd_rn(sum[i / 4][i % 4], part[i / 4][i % 4]);
                    continue;
                }
                if (h == 0) {
                    if (before >= 0) finish(before, turn - 1);
                    // The CTAs that get these sums have read those of two tiles ago, because they have sent those of
                    // the last, which they do when all warps of the team have read.
                    sync_team<kTeams>(team);
                }
                const uint32_t base = shared_address(mine),
                               buffer = there + 8 * (2 * static_cast<uint32_t>(team) + (turn & 1));
                const uint32_t slot = static_cast<uint32_t>((rank * kNarrowWarps + low) * 32 + lane);
#pragma unroll
                for (uint32_t r = 0; r < 4; ++r) {
                    const uint32_t to = in_cta(base, r), when = in_cta(buffer, r);
                    if constexpr (NT == 4)
                        send(to + 16 * slot, make_float4(part[r][0], part[r][1], part[r][2], part[r][3]), when);
                    else if constexpr (NT == 2)
                        send(to + 8 * slot, make_float2(part[r / 2][2 * (r % 2)], part[r / 2][2 * (r % 2) + 1]), when);
                    else send(to + 4 * slot, part[0][r], when);
                }
            }
            before = tile;
        }
        ring.used();
        ring.advance();
        if constexpr (kTeams == 2) ring.advance();
        if constexpr (C == 1) {
#pragma unroll
            for (int nt = 0; nt < NT; ++nt)
                *reinterpret_cast<float4*>(mine + (first_low * NT + nt) * 512 + 16 * lane) =
                    make_float4(sum[nt][0], sum[nt][1], sum[nt][2], sum[nt][3]);
            sync_team<kTeams>(team);  // what was put two tiles ago has been added up
            // Four products a thread; other warps each time if not all are needed.
            const int i = (thread + 32 * NT * static_cast<int>(turn)) % kOf;
            if (i >= 32 * NT) continue;
            const auto* const from = reinterpret_cast<const float4*>(mine) + i;
            float v[4][kTeamWarps];
#pragma unroll
            for (int l = 0; l < kTeamWarps; ++l) {
                const float4 f = from[32 * NT * l];
                v[0][l] = f.x, v[1][l] = f.y, v[2][l] = f.z, v[3][l] = f.w;
            }
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                float out;
                if constexpr (kTeams == 1) out = add_eight([&](int l) { return v[e][l]; });
                else out = __fadd_rn(__fadd_rn(v[e][0], v[e][2]), __fadd_rn(v[e][1], v[e][3]));
                const int row = 16 * (tile - m.first) + lane / 4 + e / 2 * 8, p = i / 32 * 8 + lane % 4 * 2 + e % 2;
                if (row >= m.rows || p >= count) continue;
                const int64_t to = static_cast<int64_t>(row0 + p) * m.rows + row;
                m.y[to] = out;
                if (a.residual != nullptr) a.residual[to] = __fadd_rn(a.residual[to], out);
            }
        }
    }
    if constexpr (C > 1) {
        if (before >= 0) finish(before, turn - 1);
    }
#endif
}

template <int NT, int C, int B>
void launch_narrow(Context& ctx, NarrowArgs& a, const ActSource& x, const NarrowFit& fit) {
    using S = NarrowShape<NT, C, B>;
    a.stages = fit.stages;
    const auto kernel = kquant_i8_narrow_kernel<NT, C, B>;
    allow_shared(reinterpret_cast<const void*>(kernel), fit.shared);
    a.row_blocks = (a.n + S::kRows - 1) / S::kRows;
    const int64_t most = C == 1 ? ctx.gpu->info().sm_count
                                : most_clusters(reinterpret_cast<const void*>(kernel), 4, kNarrowThreads, fit.shared);
    // Where fewer clusters run at a time than there are blocks of rows, the last ones wait.
    const int64_t each = std::min<int64_t>(a.tiles, std::max<int64_t>(1, most / a.row_blocks));
    const ActLayout layout = act_layout(a.cols, true, false);
    a.x = x.kind == ActKind::int8 ? x : prepare_rows(ctx, x, layout, a.n);
    launch_clusters(*ctx.gpu, kernel, dim3(static_cast<unsigned>(C * each * a.row_blocks)), kNarrowThreads,
                    static_cast<size_t>(fit.shared), C, a);
}

template <int C, int B>
void launch_rows(Context& ctx, NarrowArgs& a, const ActSource& x, const NarrowFit& fit) {
    if constexpr (C == 1)
        if (fit.tiles == 1) return launch_narrow<1, C, B>(ctx, a, x, fit);
    if (fit.tiles == 4) launch_narrow<4, C, B>(ctx, a, x, fit);
    else launch_narrow<2, C, B>(ctx, a, x, fit);
}

}  // namespace

void kquant_i8_narrow_multiply(Context& ctx, const ActSource& x, int64_t cols, int64_t n,
                               std::span<const Weight* const> weights, std::span<const Tensor> y, Tensor* residual) {
    RT_ASSERT(weights.size() <= kMaxMatrices && x.kind != ActKind::staged);
    NarrowArgs a = {};
    a.stage_bytes = static_cast<int32_t>(stage_bytes<2048>(kQ4));
    for (size_t i = 0; i < weights.size(); ++i) {
        const Weight& w = *weights[i];
        add_tiles(a, w, y[i].row(0), 16);
        if (w.dtype == kQ6) a.stage_bytes = static_cast<int32_t>(stage_bytes<2048>(kQ6));
    }
    a.cols = static_cast<int32_t>(cols);
    a.n = static_cast<int32_t>(n);
    a.residual = residual == nullptr ? nullptr : residual->row(0);
    const auto fit = fit_narrow(chip_of(*ctx.gpu), cols, n, a.stage_bytes);
    RT_ASSERT(fit);
    if (cols == 2048) launch_rows<1, 8>(ctx, a, x, *fit);
    else if (cols == 6144) launch_rows<4, 6>(ctx, a, x, *fit);
    else launch_rows<4, 8>(ctx, a, x, *fit);
}

}  // namespace riptide::ops::cuda::decode
