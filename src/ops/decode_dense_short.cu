// Large Q4_K and Q6_K matrices of up to 5,120 columns, a multiple of 1,024, times 2 to 8 rows (sm_90), where this is
// faster than decode_dense_tile.cu.
//
// Bytes: those of the weights. Instructions by count, for a sub-block of sixteen weight rows: 35; shared memory, 128
// bytes a cycle: 13 cycles. Floor of a step of Qwen3.5-27B, whose weights are 3.3 ms: about 2.7 ms by shared memory.
// Measured (H200, 2026-11-22, bench_gpu_dense, in brackets decode_dense_tile.cu in the same run): projections 33.0 us
// (35.9), q k v 24.2 (26.6), gate up and down 76.8 (82.3), head 367 (456). Gate and up issue in 71 % of the slots
// (ncu). Design: a warp multiplies 32 weight rows at a time, so that x is read from shared memory half as often; tiles
// are of single CTAs; two teams of eight warps have tiles by turns and meet in the stage that they have just read; the
// last round's tiles are halved; x comes by bulk copies, part by part. Tried: x fitting beside the ring for 16 and 24
// rows too (gate and up about 72 and 100 us, 70 and 88 without: sixteen warps of 96 registers spill, and at 24 rows
// three stages leave one team); one team of eight warps with 168 registers (8 rows 9.6 to 9.9 ms for all products
// instead of 8.5, 16 rows 12.1 to 12.4); steps one by one or five together instead of two (within 2 % but for spills);
// tiles of four CTAs at 8 rows (o 15.7 us, 14.8 without).
#include <algorithm>

#include "ops/decode_dense.cuh"
#include "ops/decode_dense.h"
#include "ops/decode_dense_float.cuh"
#include "ops/decode_dense_short.cuh"
#include "ops/decode_float.h"
#include "ops/row_math.cuh"

namespace riptide::ops::cuda::decode {

namespace {

constexpr int kMostShort = 8;  // matrices of a group
constexpr int kMostShortStages = 8;
[[maybe_unused]] constexpr int kParts = 4, kUnroll = 2;  // parts of a tile: its chains
constexpr int kShortWide = 20;                           // groups of a row of 5,120 columns
constexpr int kShortAskers = 4;                          // the last warps of a CTA, which ask for weights
constexpr int kShortThreads = 32 * (kTeamWarps * kTeams + kShortAskers);
constexpr DType kQ4 = DType::planes_q4_k, kQ6 = DType::planes_q6_k;

struct ShortMatrix {
    TilePlanes planes;
    float* y;
    int32_t rows, first;  // first tile
    int32_t q6;
};

struct ShortArgs {
    ShortMatrix m[kMostShort];
    int32_t matrices, tiles;
    int32_t gate_up;  // tile t has rows 16 t .. of m[0] and of m[1]; m[0].y gets silu(first) * second
    int32_t n, blocks;
    int32_t stages, stage_bytes;
    ActSource x;  // as prepare_short() leaves it
    float* residual;
    DenseFloats floats;
};

struct ShortPrepareArgs {
    ActSource x;  // kinds plain, norm
    char* out;
    int32_t split, cols, float_bytes;  // of a row, behind the groups
};

/// Row blockIdx.x, quantised; without a norm the columns from 2,048 blockIdx.y on.
__global__ void __launch_bounds__(kThreads) short_prepare_kernel(const __grid_constant__ ShortPrepareArgs a) {
    __shared__ float partial[kWarps];
    pdl_trigger();
    float norm[kWholeRow][8] = {};
    load_norms(a.x, a.cols, norm);
    pdl_wait();
    const auto* x = reinterpret_cast<const float*>(a.x.rows + blockIdx.x * a.x.stride);
    const int blocks = a.cols / 256, bytes = kGroupBytes * blocks;
    char* const out = a.out + static_cast<int64_t>(blockIdx.x) * (bytes + a.float_bytes);
    const ActLayout floats = {a.cols, 0, 0, a.float_bytes};
    const auto put = [&](int c, const float(&v)[8]) {
        const int b = c / 32, low = c / 4 % 8;
        const int at = a.split != 0 ? low / 2 * (blocks / 4) + b / 4 : b % 4 * (blocks / 4) + b / 4;
        put_group(out + kGroupBytes * at, a.split != 0 ? b % 4 * 2 + low % 2 : low, c % 4, b < blocks, v);
        put8(floats, out + bytes, c, v);
    };
    if (a.x.kind == ActKind::norm) {
        whole_row(a.x, x, a.cols, norm, partial, put);
        return;
    }
    const int c = blockIdx.y * kThreads + threadIdx.x;
    float v[8];
    load8(x, c, a.cols, v);
    put(c, v);
}

#if __CUDA_ARCH__ >= 900

__device__ __forceinline__ const ShortMatrix& matrix_of_tile(const ShortArgs& a, int tile) {
    int i = 0;
    if (a.gate_up == 0)
        while (i + 1 < a.matrices && tile >= a.m[i + 1].first) ++i;
    return a.m[i];
}

/// A lane's places. b: of load_two_matrices; pairs: {d, A} of column 2 t.
struct ShortLane {
    const char* b;
    const char* pairs;
};

/// acc[m] += step `k` of rows 16 m .. + 15 of a stage times x, by the warp with `low` of its team.
template <DType Type, int M>
__device__ __forceinline__ void short_step(const char* stage, int k, int low, int q, const KShifts& at,
                                           const ShortLane& x, int lane, float (&acc)[2][1][4]) {
    using S = ShortStage<Type>;
    const int g = lane / 4, t = lane % 4;
    uint32_t w[4], xs[2];
    load_matrices(w, stage + lane * S::kDataStride + 128 * k + 16 * low);
    float2 mine;  // scales of row `lane`
    const char* const head = stage + S::kHeads + lane * S::kHeadStride + 16 * k;
    if constexpr (S::kQ6)
        mine = q6_scales(*reinterpret_cast<const uint16_t*>(head + 2 * low),
                         *reinterpret_cast<const uint16_t*>(stage + S::kD + lane * S::kDStride + 8 * k + 2 * q));
    else mine = q4_scales<false>(load_shared16(head), at);
    load_two_matrices(xs[0], xs[1], x.b + kGroupBytes * k);
    float d[2], total[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const float2 pair = *reinterpret_cast<const float2*>(x.pairs + i * kShortXStride<kShortWide> + kGroupBytes * k);
        d[i] = pair.x, total[i] = pair.y;
    }
#pragma unroll
    for (int m = 0; m < M; ++m) {
        float3 by[2];  // rows g, g + 8
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            by[h].x = __shfl_sync(~0u, mine.x, 16 * m + 8 * h + g);
            by[h].z = __shfl_sync(~0u, mine.y, 16 * m + 8 * h + g);
            by[h].y = -__fmul_rn(by[h].x, kMagic);
            if constexpr (!S::kQ6) by[h].z = -by[h].z;
        }
        uint32_t a[4];
        make_a<S>(stage, w + 2 * m, 16 * m + g, 8 * k + low, t, a);
        add_products<S::kQ6>(a, xs[0], xs[1], by, d, total, acc[m][0]);
    }
}

/// All `count` steps of a stage; x: at the first of them.
template <DType Type, int U, int M>
__device__ __forceinline__ void short_stage(const char* stage, int count, int low, int q, const KShifts& at,
                                            const ShortLane& x, int lane, float (&acc)[2][1][4]) {
#pragma unroll U
    for (int k = 0; k < count; ++k) short_step<Type, M>(stage, k, low, q, at, x, lane, acc);
}

/// Chain q of eight rows from row0 on of a tile, `count` blocks, to a stage, by warp `asker` of those that ask.
template <DType Type>
__device__ __forceinline__ void fetch_short(const TilePlanes& planes, int row0, int last, int blocks, int q, int count,
                                            int asker, char* stage) {
    using S = ShortStage<Type>;
    static_assert(kShortRows == 8 * kShortAskers);
    const int lane = threadIdx.x % 32, at = 8 * asker;
    const auto block = [&](int i) { return static_cast<int64_t>(min(row0 + i, last)) * blocks; };
    {
        const int c = lane % 8;
#pragma unroll
        for (int i = lane / 8; i < 8; i += 4) {
            const char* const from = planes.data + block(i) * 128 + (128 * q + 16 * c);
            char* const to = stage + (at + i) * S::kDataStride + 16 * c;
#pragma unroll
            for (int k = 0; k < S::kSteps; ++k)
                if (k < count) copy_async16(to + 128 * k, from + 512 * k);
        }
    }
    const int r = lane % 8;
    const char* const from = planes.scales + block(r) * 16 + 16 * q;
    char* const to = stage + S::kHeads + (at + r) * S::kHeadStride;
#pragma unroll
    for (int k0 = 0; k0 < S::kSteps; k0 += 4)
        if (k0 + lane / 8 < count) copy_async16(to + 16 * (k0 + lane / 8), from + 64 * (k0 + lane / 8));
    if constexpr (S::kQ6) {
        const int i = lane / 4, c = lane % 4;
        const char* const high = planes.high + block(i) * 64 + (64 * q + 16 * c);
        char* const highs = stage + S::kHigh + (at + i) * S::kHighStride + 16 * c;
#pragma unroll
        for (int k = 0; k < S::kSteps; ++k)
            if (k < count) copy_async16(highs + 64 * k, high + 256 * k);
#pragma unroll
        for (int k0 = 0; k0 < S::kSteps; k0 += 4)
            if (k0 + lane / 8 < count)
                copy_async8(stage + S::kD + (at + r) * S::kDStride + 8 * (k0 + lane / 8),
                            planes.d + 2 * block(r) + 8 * (k0 + lane / 8));
    }
}

/// Adds up a tile and stores it; warp `warp` of the team has column `warp`.
__device__ __forceinline__ void finish_short(const ShortArgs& a, const Assigned& of, int warp, int lane,
                                             const float* sums) {
    const ShortMatrix& m = matrix_of_tile(a, of.tile);
    const float* const from = sums + 32 * warp + (lane ^ (warp / 2 % 4 * 8));
    const int kept = (a.gate_up != 0 ? 8 : 16) * of.halves;  // lanes that have a row to store
    const int row =
        a.gate_up != 0 ? 16 * of.tile + 8 * of.half + lane : kShortRows * (of.tile - m.first) + 16 * of.half + lane;
    const bool stores = lane < kept && row < m.rows;
    if (warp >= a.n) return;
    const float sum = add_eight([&](int i) { return from[i * 256]; });
    if (a.gate_up != 0) {
        const float up = __shfl_down_sync(~0u, sum, kept);
        if (stores) m.y[static_cast<int64_t>(warp) * m.rows + row] = swiglu_value(sum, up);
    } else if (stores) {
        const int64_t at = static_cast<int64_t>(warp) * m.rows + row;
        m.y[at] = sum;
        if (a.residual != nullptr) a.residual[at] = __fadd_rn(a.residual[at], sum);
    }
}

#endif  // __CUDA_ARCH__ >= 900

/// Teams take stages by turns: chain s of a team's tile i is stage kTeams (kParts i + s) + team of the ring.
__global__ void __launch_bounds__(kShortThreads, 1) short_kernel(const __grid_constant__ ShortArgs a) {
#if __CUDA_ARCH__ >= 900
    constexpr int kStride = kShortXStride<kShortWide>;
    extern __shared__ uint4 dynamic[];
    __shared__ uint64_t barriers[2 * kMostShortStages + kParts];  // of the ring; parts of x there
    __shared__ alignas(16) float results[2 * kTeams][kFloatPair * kFloatX * 4];
    pdl_trigger();
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int cta = blockIdx.x, ctas = gridDim.x;
    const int rounds = rounds_of(a.tiles, ctas);
    const int count = a.blocks / 4;  // steps of a chain
    char* const x = reinterpret_cast<char*>(dynamic);
    char* const stages = x + 8 * kStride;
    const uint32_t x_there = shared_address(barriers + 2 * kMostShortStages);
    StageRing ring(barriers, a.stages);
    if (threadIdx.x == 0) {
        ring.init(kTeamWarps, 32 * kShortAskers);
        for (int i = 0; i < kParts; ++i)
            asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(x_there + 8 * i) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    const auto chain_of = [](int part) { return part % 2 * 2 + part / 2; };
    if (warp >= kTeamWarps * kTeams) {
        const int asker = warp - kTeamWarps * kTeams;
#pragma unroll 1
        for (int round = 0; round < rounds; ++round) {
#pragma unroll 1
            for (int part = 0; part < kParts; ++part)
#pragma unroll 1
                for (int team = 0; team < kTeams; ++team, ring.advance()) {
                    const Assigned of = assigned(a.tiles, ctas, cta, round, team);
                    ring.wait_until_empty();
                    if (asker >= 2 * of.halves) {
                        ring.asked();
                        continue;
                    }
                    const ShortMatrix& m = matrix_of_tile(a, of.tile);
                    const bool pair = a.gate_up != 0;
                    const TilePlanes& planes = pair ? a.m[asker / of.halves].planes : m.planes;
                    const int row0 = pair ? 16 * of.tile + 8 * of.half + asker % of.halves * 8
                                          : kShortRows * (of.tile - m.first) + 16 * of.half + 8 * asker;
                    char* const stage = stages + ring.at() * a.stage_bytes;
                    const auto fetch = [&](auto type) {
                        fetch_short<decltype(type)::value>(planes, row0, m.rows - 1, a.blocks, chain_of(part), count,
                                                           asker, stage);
                    };
                    if (m.q6 != 0) fetch(std::integral_constant<DType, kQ6>{});
                    else fetch(std::integral_constant<DType, kQ4>{});
                    ring.asked();
                }
        }
        return;
    }
    pdl_wait();
    if (warp == 0)
#pragma unroll 1
        for (int part = 0; part < kParts; ++part)
            ask_for_x<kShortWide>(a.x, a.n, count * chain_of(part), count * chain_of(part), count, x,
                                  x_there + 8 * part);
    const int team = warp / kTeamWarps, low = warp % kTeamWarps;
    const KShifts at(low);
    const char* const xb = x + lane % 8 * kStride + lane / 8 % 2 * kGroupSecond + 16 * low;
    const char* const pairs = x + lane % 4 * 2 * kStride + kGroupPairs + 8 * low;
    if (team == 1) ring.advance();
#pragma unroll 1
    for (int round = 0; round < rounds; ++round) {
        const Assigned of = assigned(a.tiles, ctas, cta, round, team);
        if (of.halves == 0) {  // the last round: stages without weights
#pragma unroll 1
            for (int part = 0; part < kParts; ++part) {
                ring.wait_until_full();
                ring.used();
#pragma unroll
                for (int i = 0; i < kTeams; ++i) ring.advance();
            }
            break;
        }
        const bool q6 = matrix_of_tile(a, of.tile).q6 != 0;
        float sum[2][1][4], other[2][1][4], acc[2][1][4];
        char* stage = nullptr;
#pragma unroll 1
        for (int part = 0; part < kParts; ++part) {
            const int q = chain_of(part);
            stage = stages + ring.at() * a.stage_bytes;
#pragma unroll
            for (int i = 0; i < 8; ++i) acc[i / 4][0][i % 4] = 0.0f;
            if (round == 0) wait_for(x_there + 8 * part, 0);
            ring.wait_until_full();
            const auto multiply = [&](auto type) {
                constexpr DType kType = decltype(type)::value;
                const int at_x = kGroupBytes * (count * q);
                const ShortLane lanes{xb + at_x, pairs + at_x};
                if (of.halves == 2) short_stage<kType, kUnroll, 2>(stage, count, low, q, at, lanes, lane, acc);
                else short_stage<kType, 1, 1>(stage, count, low, q, at, lanes, lane, acc);
            };
            if (q6) multiply(std::integral_constant<DType, kQ6>{});
            else multiply(std::integral_constant<DType, kQ4>{});
#pragma unroll
            for (int i = 0; i < 8; ++i) {  // (0 + 2) + (1 + 3)
                const float v = acc[i / 4][0][i % 4];
                float &s = sum[i / 4][0][i % 4], &o = other[i / 4][0][i % 4];
                if (part == 0) s = v;
                else if (part == 1) s = __fadd_rn(s, v);
                else if (part == 2) o = v;
                else s = __fadd_rn(s, __fadd_rn(o, v));
            }
            if (part + 1 == kParts) break;
            ring.used();
#pragma unroll
            for (int i = 0; i < kTeams; ++i) ring.advance();
        }
        // The team's sums meet in the stage that it has just read.
        auto* const meeting = reinterpret_cast<float*>(stage);
        sync_team(team);
        put_sums<1>(meeting, low, lane, sum);
        sync_team(team);
        finish_short(a, of, low, lane, meeting);
        ring.used();
#pragma unroll
        for (int i = 0; i < kTeams; ++i) ring.advance();
    }
    if (a.floats.pairs > 0)  // for the CTAs that have the fewest tiles
        multiply_floats<2 * kTeams>(a.floats, a.x, ctas - 1 - cta, ctas, 0, a.n, results[warp / 4]);
#endif
}

bool launch_short(Context& ctx, ShortArgs& a) {
    const int64_t room = ctx.gpu->info().shared_bytes - (1 << 10);  // static shared memory
    const int64_t x = 8 * kShortXStride<kShortWide>;
    int64_t stage = 0;
    for (int i = 0; i < a.matrices; ++i)
        stage = std::max<int64_t>(stage, a.m[i].q6 != 0 ? ShortStage<kQ6>::kBytes : ShortStage<kQ4>::kBytes);
    static_assert(ShortStage<kQ4>::kBytes >= 8192);  // sums meet there
    a.stages = static_cast<int32_t>(std::clamp<int64_t>((room - x) / stage, 0, kMostShortStages));
    if (a.stages < 2 * kTeams) return false;
    a.stage_bytes = static_cast<int32_t>(stage);
    const int64_t shared = x + a.stages * stage;
    allow_shared(reinterpret_cast<const void*>(short_kernel), shared);
    const int64_t ctas = std::min<int64_t>(a.tiles, std::max(1, ctx.gpu->info().sm_count));
    launch(*ctx.gpu, short_kernel, dim3(static_cast<unsigned>(ctas)), kShortThreads, static_cast<size_t>(shared), a);
    return true;
}

bool fits(const Context& ctx, const ActSource& x, int64_t cols, int64_t n) {
    return (x.kind == ActKind::plain || (x.kind == ActKind::norm && cols <= 2048 * kWholeRow)) && n >= 2 && n <= 8 &&
           cols <= 256 * kShortWide && cols % 1024 == 0 && ctx.gpu->info().major >= 9 &&
           ctx.gpu->info().shared_bytes >= (220 << 10);
}
bool short_weight(const Context& ctx, const Weight& w) {
    return dense_weight(*ctx.gpu, w) && (w.dtype == kQ4 || w.dtype == kQ6);
}

bool multiply_short(Context& ctx, ShortArgs& a, const ActSource& x, int64_t cols, int64_t n) {
    a.n = static_cast<int32_t>(n);
    a.blocks = static_cast<int32_t>(cols / 256);
    a.floats.bytes = a.floats.pairs > 0 ? act_layout(cols, false, true).float_bytes : 0;
    a.x = prepare_short(ctx, x, cols, n, false, a.floats.bytes);
    return launch_short(ctx, a);
}

ShortMatrix short_matrix(const Weight& w, float* y, int32_t first) {
    return {tile_planes(matrix_of(w)), y, static_cast<int32_t>(w.rows), first, w.dtype == kQ6 ? 1 : 0};
}

}  // namespace

ActSource prepare_short(Context& ctx, const ActSource& x, int64_t cols, int64_t n, bool split, int32_t float_bytes) {
    ActSource out;
    out.kind = ActKind::staged;
    out.stride = kGroupBytes * (cols / 256) + float_bytes;
    const ShortPrepareArgs p = {x, static_cast<char*>(ctx.arena->allocate(n * out.stride)), split ? 1 : 0,
                                static_cast<int32_t>(cols), float_bytes};
    out.rows = p.out;
    const int64_t parts = x.kind == ActKind::norm ? 1 : (cols + 2047) / 2048;
    launch(*ctx.gpu, short_prepare_kernel, dim3(static_cast<unsigned>(n), static_cast<unsigned>(parts)), kThreads, 0,
           p);
    return out;
}

bool dense_multiply_short(Context& ctx, const ActSource& x, int64_t cols, int64_t n,
                          std::span<const Weight* const> weights, std::span<const Tensor> y, Tensor* residual) {
    if (!fits(ctx, x, cols, n) || weights.size() > kMostShort) return false;
    ShortArgs a = {};
    for (size_t i = 0; i < weights.size(); ++i) {
        const Weight& w = *weights[i];
        if (short_weight(ctx, w)) {
            a.m[a.matrices++] = short_matrix(w, y[i].row(0), a.tiles);
            a.tiles += static_cast<int32_t>((w.rows + kShortRows - 1) / kShortRows);
        } else if (residual != nullptr || !a.floats.add(w, y[i].row(0))) {
            return false;
        }
    }
    if (a.matrices == 0) return false;
    a.residual = residual == nullptr ? nullptr : residual->row(0);
    return multiply_short(ctx, a, x, cols, n);
}

bool dense_gate_up_short(Context& ctx, const ActSource& x, int64_t cols, int64_t n, const Weight& gate,
                         const Weight& up, float* out) {
    if (!fits(ctx, x, cols, n) || !short_weight(ctx, gate) || !short_weight(ctx, up) || gate.dtype != up.dtype ||
        gate.rows != up.rows)
        return false;
    ShortArgs a = {};
    a.m[0] = short_matrix(gate, out, 0);
    a.m[1] = short_matrix(up, nullptr, 0);
    a.matrices = 2;
    a.gate_up = 1;
    a.tiles = static_cast<int32_t>((gate.rows + kShortRows / 2 - 1) / (kShortRows / 2));
    return multiply_short(ctx, a, x, cols, n);
}

}  // namespace riptide::ops::cuda::decode
