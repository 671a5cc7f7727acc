// Large Q4_K and Q6_K matrices whose columns are a multiple of 1,024, times 2 to 24 rows (sm_90), where this is faster
// than decode_dense_tile.cu: up to 8 rows of x of up to 5,120 columns; few weight rows (o, down) times more than 8.
//
// Bytes: those of the weights. Instructions by count, for a sub-block of sixteen weight rows: 35, 49 and 63 for 8, 16
// and 24 rows; shared memory, 128 bytes a cycle: 13, 16 and 19 cycles. Floor of a step of Qwen3.5-27B, whose weights
// are 3.3 ms: about 2.7, 3.3 and 3.9 ms by shared memory. Measured (H200, 2026-11-22, bench_gpu_dense, in brackets
// decode_dense_tile.cu in the same run): 8 rows: projections 33.0 us (35.9), q k v 24.2 (26.6), gate up and down 76.8
// (82.3), head 367 (456); o of 16 rows 18.2 (19.6), down of 16 and 24 rows 37.7 (43.1) and 48.4 (55.8), in Q6_K 50.1
// (64.1) and 62.7 (108). What limits it is not known: no profile of this kernel was taken.
// Design: a warp multiplies 32 weight rows at a time, so that x is read from shared memory half as often; tiles are of
// single CTAs, or of four without a cluster; two teams of eight warps have tiles by turns and meet in the stage that
// they have just read; the last round's tiles are halved; x comes by bulk copies, part by part.
// Tried: x fitting beside the ring for 16 and 24 rows too (gate and up about 72 and 100 us, 70 and 88 without: sixteen
// warps of 96 registers spill, and at 24 rows three stages leave one team); one team of eight warps with 168 registers
// (8 rows 9.6 to 9.9 ms for all products instead of 8.5, 16 rows 12.1 to 12.4); steps one by one or five together
// instead of two (within 2 % but for spills); tiles of four CTAs at 8 rows (o 15.7 us, 14.8 without).
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
[[maybe_unused]] constexpr int kMostParts = 6, kUnroll = 2;
constexpr int kShortWide = 20;  // groups of a row of 5,120 columns
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
    ActSource x;         // rows as short_prepare_kernel() leaves them; L = 2: of four CTAs one behind the other
    float* residual;     // L = 8
    float* parts;        // L = 2: [low][n][rows]
    DenseFloats floats;  // L = 8
};

struct ShortPrepareArgs {
    ActSource x;  // kinds plain, norm
    char* out;
    int32_t split, cols, float_bytes;  // of a row, behind the groups
};

/// Row blockIdx.x, quantised; without a norm the columns from 2,048 blockIdx.y on. split: as L = 2 wants it.
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

struct ShortSumArgs {
    const float* parts;
    float* y;
    float* residual;
    int32_t products;
};

/// What four CTAs each left of every product.
__global__ void __launch_bounds__(kThreads) short_sum_kernel(const __grid_constant__ ShortSumArgs a) {
    pdl_trigger();
    pdl_wait();
    const int i = blockIdx.x * kThreads + threadIdx.x;
    if (i >= a.products) return;
    float v[8];
#pragma unroll
    for (int l = 0; l < 8; ++l) v[l] = a.parts[l * static_cast<int64_t>(a.products) + i];
    const float before = a.residual == nullptr ? 0.0f : a.residual[i];
    const float sum = add_eight([&](int l) { return v[l]; });
    a.y[i] = sum;
    if (a.residual != nullptr) a.residual[i] = __fadd_rn(before, sum);
}

#if __CUDA_ARCH__ >= 900

__device__ __forceinline__ const ShortMatrix& matrix_of_tile(const ShortArgs& a, int tile) {
    int i = 0;
    if (a.gate_up == 0)
        while (i + 1 < a.matrices && tile >= a.m[i + 1].first) ++i;
    return a.m[i];
}

/// What a team multiplies in a round: `halves` (0, 1, 2) of a tile, from `half` on.
struct Assigned {
    int tile, half, halves;
};
/// Of CTA `cta` of `ctas` (L = 2: of fours). Whole tiles as long as all teams get one; the last round's are halved
/// where that leaves no team with more than half a tile.
template <int kTeams>
__device__ __forceinline__ Assigned assigned(int tiles, int ctas, int cta, int round, int team) {
    const int all = kTeams * ctas, whole = tiles / all;
    if (round < whole) return {round * all + team * ctas + cta, 0, 2};
    int base = whole * all, rest = tiles - base, unit = team * ctas + cta, units = all;
    if (kTeams == 2 && rest > ctas) {
        if (team == 0) return {base + cta, 0, 2};
        base += ctas, rest -= ctas, unit = cta, units = ctas;
    }
    if (2 * rest <= units) return {base + unit / 2, unit % 2, unit < 2 * rest ? 1 : 0};
    return {base + unit, 0, unit < rest ? 2 : 0};
}
template <int kTeams>
__device__ __forceinline__ int rounds_of(int tiles, int ctas) {
    return (tiles + kTeams * ctas - 1) / (kTeams * ctas);
}

__device__ __forceinline__ void wait_for(uint32_t barrier, uint32_t parity) {
    asm volatile(
        "{\n.reg .pred p;\nagain_%=:\nmbarrier.try_wait.parity.shared.b64 p, [%0], %1;\n@!p bra again_%=;\n}" ::"r"(
            barrier),
        "r"(parity)
        : "memory");
}
__device__ __forceinline__ void copy_bulk(char* to, const char* from, int bytes, uint32_t barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     shared_address(to)),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}
/// By one warp: groups [first, first + count) of all rows of x, to be waited for at `barrier`.
template <int kGroups>
__device__ __forceinline__ void ask_for_x(const ShortArgs& a, int section, int first, int count, char* x,
                                          uint32_t barrier) {
    const int lane = threadIdx.x % 32;
    if (lane == 0) expect_bytes(barrier, kGroupBytes * count * a.n);
    __syncwarp();
    if (lane < a.n)
        copy_bulk(x + lane * kShortXStride<kGroups> + kGroupBytes * first,
                  a.x.rows + lane * a.x.stride + kGroupBytes * (section * (a.blocks / 4) + first), kGroupBytes * count,
                  barrier);
}

__device__ __forceinline__ void sync_team(int team) {
    asm volatile("bar.sync %0, %1;" ::"r"(6 + team), "n"(kTeamThreads) : "memory");
}

/// Adds up a tile and stores it; warp `warp` of the team has columns warp, warp + 8, ...
template <int L, int NT>
__device__ __forceinline__ void finish_short(const ShortArgs& a, const Assigned& of, int r, int warp, int lane,
                                             const float* sums) {
    const ShortMatrix& m = matrix_of_tile(a, of.tile);
    const float* const from = sums + 32 * warp + (lane ^ (warp / 2 % 4 * 8));
    const int kept = (a.gate_up != 0 ? 8 : 16) * of.halves;  // lanes that have a row to store
    const int row =
        a.gate_up != 0 ? 16 * of.tile + 8 * of.half + lane : kShortRows * (of.tile - m.first) + 16 * of.half + lane;
    const bool stores = lane < kept && row < m.rows;
#pragma unroll
    for (int nt = 0; nt < NT; ++nt) {
        const int p = 8 * nt + warp;
        if (p >= a.n) return;
        const auto value = [&](int i) { return from[(NT * i + nt) * 256]; };
        if constexpr (L == 8) {
            const float sum = add_eight(value);
            if (a.gate_up != 0) {
                const float up = __shfl_down_sync(~0u, sum, kept);
                if (stores) m.y[static_cast<int64_t>(p) * m.rows + row] = swiglu_value(sum, up);
            } else if (stores) {
                const int64_t at = static_cast<int64_t>(p) * m.rows + row;
                m.y[at] = sum;
                if (a.residual != nullptr) a.residual[at] = __fadd_rn(a.residual[at], sum);
            }
        } else {
#pragma unroll
            for (int l = 0; l < 2; ++l) {
                const float sum = __fadd_rn(__fadd_rn(value(l), value(4 + l)), __fadd_rn(value(2 + l), value(6 + l)));
                if (stores) a.parts[(static_cast<int64_t>(2 * r + l) * a.n + p) * m.rows + row] = sum;
            }
        }
    }
}

#endif  // __CUDA_ARCH__ >= 900

constexpr int short_threads(int teams) { return 32 * (kTeamWarps * teams + kShortAskers); }

/// Teams take stages by turns: stage s of a team's tile i is stage kTeams (parts i + s) + team of the ring.
template <int L, int NT, int kTeams, int kGroups>
__global__ void __launch_bounds__(short_threads(kTeams), 1) short_kernel(const __grid_constant__ ShortArgs a) {
#if __CUDA_ARCH__ >= 900
    constexpr int kStride = kShortXStride<kGroups>;
    extern __shared__ uint4 dynamic[];
    __shared__ uint64_t barriers[2 * kMostShortStages + kMostParts];  // of the ring; parts of x there
    __shared__ alignas(16) float results[2 * kTeams][kFloatPair * kFloatX * 4];
    pdl_trigger();
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    constexpr int kShare = L == 8 ? 1 : 4;  // CTAs of a tile
    const int cta = blockIdx.x / kShare, r = blockIdx.x % kShare, ctas = gridDim.x / kShare;
    const int rounds = rounds_of<kTeams>(a.tiles, ctas);
    const int quads = a.blocks / 4;
    char* const x = reinterpret_cast<char*>(dynamic);
    char* const stages = x + 8 * NT * kStride;
    const uint32_t x_there = shared_address(barriers + 2 * kMostShortStages);
    StageRing ring(barriers, a.stages);
    if (threadIdx.x == 0) {
        ring.init(kTeamWarps, 32 * kShortAskers);
        for (int i = 0; i < kMostParts; ++i)
            asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(x_there + 8 * i) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    const int steps = L == 8 ? quads : a.m[0].q6 != 0 ? ShortStage<kQ6, L>::kSteps : ShortStage<kQ4, L>::kSteps;
    const int parts = L == 8 ? 4 : (quads + steps - 1) / steps;
    // The chain that a part of a tile is (L = 8), its first step and how many it has.
    const auto chain_of = [](int part) { return part % 2 * 2 + part / 2; };
    const auto first_of = [&](int part) { return L == 8 ? 0 : steps * part; };
    const auto count_of = [&](int part) { return min(steps, quads - first_of(part)); };
    if (warp >= kTeamWarps * kTeams) {
        const int asker = warp - kTeamWarps * kTeams;
#pragma unroll 1
        for (int round = 0; round < rounds; ++round) {
#pragma unroll 1
            for (int part = 0; part < parts; ++part)
#pragma unroll 1
                for (int team = 0; team < kTeams; ++team, ring.advance()) {
                    const Assigned of = assigned<kTeams>(a.tiles, ctas, cta, round, team);
                    ring.wait_until_empty();
                    if (asker >= 2 * of.halves) {
                        ring.asked();
                        continue;
                    }
                    const ShortMatrix& m = matrix_of_tile(a, of.tile);
                    const bool pair = a.gate_up != 0;
                    const TilePlanes& planes = pair ? a.m[asker / of.halves].planes : m.planes;
                    const int row0 = pair ? 16 * of.tile + 8 * of.half + asker % of.halves * 8
                                          : kShortRows * (of.tile - m.first) + 16 * of.half + kShortAskerRows * asker;
                    char* const stage = stages + ring.at() * a.stage_bytes;
                    const auto fetch = [&](auto type) {
                        constexpr DType kType = decltype(type)::value;
                        fetch_short<kType, L>(planes, row0, m.rows - 1, a.blocks, L == 8 ? chain_of(part) : r,
                                              first_of(part), count_of(part), asker, stage);
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
        for (int part = 0; part < parts; ++part)
            ask_for_x<kGroups>(a, L == 8 ? 0 : r, L == 8 ? quads * chain_of(part) : first_of(part), count_of(part), x,
                               x_there + 8 * part);
    const int team = warp / kTeamWarps, sub = warp % kTeamWarps;
    const int low = L == 8 ? sub : 2 * r + sub % 2;
    const KShifts at(low);
    const char* const xb =
        x + (lane % 8 + (NT > 1 ? lane / 16 * 8 : 0)) * kStride + lane / 8 % 2 * kGroupSecond + 16 * sub;
    const char* const xc = x + (lane % 8 + 16) * kStride + lane / 8 % 2 * kGroupSecond + 16 * sub;
    const char* const pairs = x + lane % 4 * 2 * kStride + kGroupPairs + 8 * sub;
    if (kTeams == 2 && team == 1) ring.advance();
#pragma unroll 1
    for (int round = 0; round < rounds; ++round) {
        const Assigned of = assigned<kTeams>(a.tiles, ctas, cta, round, team);
        if (of.halves == 0) {  // the last round: stages without weights
#pragma unroll 1
            for (int part = 0; part < parts; ++part) {
                ring.wait_until_full();
                ring.used();
#pragma unroll
                for (int i = 0; i < kTeams; ++i) ring.advance();
            }
            break;
        }
        const bool q6 = matrix_of_tile(a, of.tile).q6 != 0;
        float sum[2][NT][4], other[2][NT][4], acc[2][NT][4];
        char* stage = nullptr;
#pragma unroll 1
        for (int part = 0; part < parts; ++part) {
            const int q = L == 8 ? chain_of(part) : sub / 2;
            stage = stages + ring.at() * a.stage_bytes;
            if (L == 8 || part == 0)
#pragma unroll
                for (int i = 0; i < 8 * NT; ++i) acc[i / (4 * NT)][i / 4 % NT][i % 4] = 0.0f;
            if (round == 0) wait_for(x_there + 8 * part, 0);
            ring.wait_until_full();
            const auto multiply = [&](auto type) {
                constexpr DType kType = decltype(type)::value;
                const int count = count_of(part), at_x = kGroupBytes * (L == 8 ? quads * q : first_of(part));
                const ShortLane lanes{xb + at_x, xc + at_x, pairs + at_x};
                if (of.halves == 2)
                    short_stage<kType, L, NT, kGroups, kUnroll, 2>(stage, count, sub, low, q, at, lanes, lane, acc);
                else short_stage<kType, L, NT, kGroups, 1, 1>(stage, count, sub, low, q, at, lanes, lane, acc);
            };
            if (q6) multiply(std::integral_constant<DType, kQ6>{});
            else multiply(std::integral_constant<DType, kQ4>{});
            if constexpr (L == 8)  // (0 + 2) + (1 + 3)
#pragma unroll
                for (int i = 0; i < 8 * NT; ++i) {
                    const float v = acc[i / (4 * NT)][i / 4 % NT][i % 4];
                    float &s = sum[i / (4 * NT)][i / 4 % NT][i % 4], &o = other[i / (4 * NT)][i / 4 % NT][i % 4];
                    if (part == 0) s = v;
                    else if (part == 1) s = __fadd_rn(s, v);
                    else if (part == 2) o = v;
                    else s = __fadd_rn(s, __fadd_rn(o, v));
                }
            if (part + 1 == parts) break;
            ring.used();
#pragma unroll
            for (int i = 0; i < kTeams; ++i) ring.advance();
        }
        // The team's sums meet in the stage that it has just read.
        auto* const meeting = reinterpret_cast<float*>(stage);
        sync_team(team);
        put_sums<NT>(meeting, sub, lane, L == 8 ? sum : acc);
        sync_team(team);
        finish_short<L, NT>(a, of, r, sub, lane, meeting);
        ring.used();
#pragma unroll
        for (int i = 0; i < kTeams; ++i) ring.advance();
    }
    if constexpr (L == 8) {
        if (a.floats.pairs > 0)  // for the CTAs that have the fewest tiles
            multiply_floats<2 * kTeams>(a.floats, a.x, ctas - 1 - cta, ctas, 0, a.n, results[warp / 4]);
    }
#endif
}

template <int L, int NT, int kTeams, int kGroups>
bool launch_short(Context& ctx, ShortArgs& a) {
    const int64_t room = ctx.gpu->info().shared_bytes - (1 << 10);  // static shared memory
    const int64_t x = 8 * NT * kShortXStride<kGroups>;
    int64_t stage = 8192 * NT;  // sums meet there
    for (int i = 0; i < a.matrices; ++i)
        stage = std::max<int64_t>(stage, a.m[i].q6 != 0 ? ShortStage<kQ6, L>::kBytes : ShortStage<kQ4, L>::kBytes);
    a.stages = static_cast<int32_t>(std::clamp<int64_t>((room - x) / stage, 0, kMostShortStages));
    if (a.stages < (kTeams == 2 ? 4 : 2)) return false;
    a.stage_bytes = static_cast<int32_t>(stage);
    const int64_t shared = x + a.stages * stage;
    const auto kernel = short_kernel<L, NT, kTeams, kGroups>;
    allow_shared(reinterpret_cast<const void*>(kernel), shared);
    constexpr int kShare = L == 8 ? 1 : 4;
    const int64_t groups = std::min<int64_t>(a.tiles, std::max(1, ctx.gpu->info().sm_count / kShare));
    launch(*ctx.gpu, kernel, dim3(static_cast<unsigned>(kShare * groups)), short_threads(kTeams),
           static_cast<size_t>(shared), a);
    return true;
}

bool fits(const Context& ctx, const ActSource& x, int64_t cols, int64_t n) {
    return (x.kind == ActKind::plain || (x.kind == ActKind::norm && cols <= 2048 * kWholeRow)) && n >= 2 && n <= 24 &&
           cols % 1024 == 0 && ctx.gpu->info().major >= 9 && ctx.gpu->info().shared_bytes >= (220 << 10);
}
bool short_weight(const Context& ctx, const Weight& w) {
    return dense_weight(*ctx.gpu, w) && (w.dtype == kQ4 || w.dtype == kQ6);
}

/// x for launch_short().
void prepare_short(Context& ctx, ShortArgs& a, const ActSource& x, int64_t cols, int64_t n, bool split) {
    a.n = static_cast<int32_t>(n);
    a.blocks = static_cast<int32_t>(cols / 256);
    a.floats.bytes = a.floats.pairs > 0 ? act_layout(cols, false, true).float_bytes : 0;
    a.x.kind = ActKind::staged;
    a.x.stride = kGroupBytes * a.blocks + a.floats.bytes;
    ShortPrepareArgs p = {x, static_cast<char*>(ctx.arena->allocate(n * a.x.stride)), split ? 1 : 0,
                          static_cast<int32_t>(cols), a.floats.bytes};
    a.x.rows = p.out;
    const int64_t parts = x.kind == ActKind::norm ? 1 : (cols + 2047) / 2048;
    launch(*ctx.gpu, short_prepare_kernel, dim3(static_cast<unsigned>(n), static_cast<unsigned>(parts)), kThreads, 0,
           p);
}
/// One matrix, more than 8 rows of x, four CTAs to a tile. False: does not fit.
bool multiply_split(Context& ctx, ShortArgs& a, const ActSource& x, int64_t cols, int64_t n) {
    const int64_t groups = cols / 1024, products = n * a.m[0].rows;
    if (groups > 17 || (n > 16 && groups <= 6) || a.floats.pairs > 0) return false;
    prepare_short(ctx, a, x, cols, n, true);
    a.parts = static_cast<float*>(ctx.arena->allocate(8 * products * int64_t{sizeof(float)}));
    // Two teams need four stages.
    if (!(n > 16        ? launch_short<2, 3, 1, 17>(ctx, a)
          : groups <= 6 ? launch_short<2, 2, 2, 6>(ctx, a)
                        : launch_short<2, 2, 2, 17>(ctx, a)))
        return false;
    const ShortSumArgs s = {a.parts, a.m[0].y, a.residual, static_cast<int32_t>(products)};
    launch(*ctx.gpu, short_sum_kernel, dim3(static_cast<unsigned>((products + kThreads - 1) / kThreads)), kThreads, 0,
           s);
    return true;
}
/// Up to 8 rows of x.
bool multiply_short(Context& ctx, ShortArgs& a, const ActSource& x, int64_t cols, int64_t n) {
    if (cols > 256 * kShortWide) return false;
    prepare_short(ctx, a, x, cols, n, false);
    return launch_short<8, 1, 2, kShortWide>(ctx, a);
}

ShortMatrix short_matrix(const Weight& w, float* y, int32_t first) {
    return {tile_planes(matrix_of(w)), y, static_cast<int32_t>(w.rows), first, w.dtype == kQ6 ? 1 : 0};
}

}  // namespace

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
    if (n <= 8) return multiply_short(ctx, a, x, cols, n);
    const bool few = a.tiles < 2 * ctx.gpu->info().sm_count;
    return a.matrices == 1 && few && multiply_split(ctx, a, x, cols, n);
}

bool dense_gate_up_short(Context& ctx, const ActSource& x, int64_t cols, int64_t n, const Weight& gate,
                         const Weight& up, float* out) {
    if (!fits(ctx, x, cols, n) || n > 8 || cols > 256 * kShortWide || !short_weight(ctx, gate) ||
        !short_weight(ctx, up) || gate.dtype != up.dtype || gate.rows != up.rows)
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
