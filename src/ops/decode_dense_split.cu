// One large Q4_K or Q6_K matrix of few rows (o, down) and up to 17,408 columns, a multiple of 1,024, times 9 to 24 rows
// of x (sm_90a): four CTAs to a tile (decode_dense_short.cuh), fed by the tensor copy engine.
//
// Bytes: those of the weights. Measured (H200, 2026-11-23, bench_gpu_dense, in brackets with
// cp.async in the same run): 16 rows: o 16.3 us (18.2), down 33.7 (37.6), in Q6_K 45.8 (50.0); 24 rows: 19.4
// (22.3), 39.4 (48.3), 56.6 (62.7). What limits it was not profiled. Design: arithmetic, shares and sums are those of
// decode_dense_short.cuh: CTA r of four has sub-blocks 2 r and 2 r + 1 of every block of 256 columns, 32 bytes of its
// 128. A box brings them for eight weight rows and four blocks, [block] [row][32 bytes], by one instruction of one lane
// where cp.async takes 434 of an asking warp for a stage. Each of the two teams has four askers and stages of its own.
// The weights' scales come whole, 64 bytes for four blocks. Tried: the same for tiles of single CTAs (gate and up,
// projections), with scales prepared by the askers (43 instead of 54 instructions for a sub-block of 16 rows at 16 rows
// of x, 28 instead of 40 at 8): slower, 33.3, 46.7 and 54.7 us before and 35.5, 56.6 and 94.5 after for the projections
// of 8, 16 and 24 rows. ncu: the askers wait for the headers that they load, and 96 registers are too few for three
// sets of sums: they are stored at every chain's end (with 104 registers and steps one by one 16 rows take 50.2). Boxes
// whose parts are narrower than their swizzle: other bits.
#include <algorithm>

#include "ops/decode_dense.cuh"
#include "ops/decode_dense.h"
#include "ops/decode_dense_short.cuh"
#include "ops/prefill_gemm_hopper.cuh"

namespace riptide::ops::cuda::decode {

namespace {

[[maybe_unused]] constexpr int kMostStages = 8, kMostParts = 10;
constexpr int kAskers = 4;  // a team's
constexpr int kSplitThreads = 32 * kTeams * (kTeamWarps + kAskers);
constexpr int kSplitWide = 17;  // groups of eight sub-blocks of a CTA's rows of x, at most
// Of a thread that multiplies, that asks; all start with 80.
[[maybe_unused]] constexpr int kUserRegisters = 96, kAskerRegisters = 48;
static_assert(512 * kUserRegisters + 256 * kAskerRegisters <= 80 * kSplitThreads);
constexpr DType kQ4 = DType::planes_q4_k, kQ6 = DType::planes_q6_k;

/// Where everything lies in a stage: kSteps groups of four blocks of 32 rows. Boxes of an asker's eight rows, one for
/// each group: nibbles [block][row][32 bytes], headers [row][4 blocks], high bits [block][row][16 bytes].
template <int kSteps>
struct SplitStage {
    static constexpr int kData = 1024 * kSteps, kHead = 512 * kSteps, kHigh = 512 * kSteps;  // of an asker
    static constexpr int kHeads = kAskers * kData, kHighs = kHeads + kAskers * kHead;
    static constexpr int kDs = kHighs + kAskers * kHigh, kDStride = 8 * kSteps;  // d of Q6_K, row by row
    static constexpr int bytes(bool q6) { return q6 ? (kDs + kShortRows * kDStride + 1023) / 1024 * 1024 : kHighs; }
};

struct SplitMatrix {
    TilePlanes planes;
    float* y;
    int32_t rows, q6;
};
struct SplitArgs {
    SplitMatrix m;
    int32_t tiles, n, blocks, stages, stage_bytes;
    ActSource x;   // rows as prepare_short() leaves them: of four CTAs one behind the other
    float* parts;  // [low][n][rows]
};
struct SplitMaps {
    CUtensorMap data, high, heads;
};

struct SplitSumArgs {
    const float* parts;
    float* y;
    float* residual;
    int32_t products;
};

/// What four CTAs each left of every product.
__global__ void __launch_bounds__(kThreads) split_sum_kernel(const __grid_constant__ SplitSumArgs a) {
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

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// A box of four blocks, those of number `quad`: bytes x .. of each, rows row ..
__device__ __forceinline__ void copy_box(uint32_t to, const CUtensorMap* map, uint32_t barrier, int x, int row,
                                         int quad) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, "
        "%6}], [%2];" ::"r"(to),
        "l"(map), "r"(barrier), "r"(x), "r"(row), "r"(0), "r"(quad)
        : "memory");
}
/// A lane's places in a stage and in x.
struct SplitLane {
    int data, head, high, d, low;
    const char* b;
    const char* more;
    const char* pairs;
};

/// acc[m] += block `k` of the stage's chain, rows 16 m .. + 15, times x.
template <bool Q6, int NT, int S, int M>
__device__ __forceinline__ void split_step(const char* stage, int k, const KShifts& at, const SplitLane& x, int lane,
                                           float (&acc)[2][NT][4]) {
    constexpr uint32_t kNibble = 0x0F0F0F0Fu, kTwo = 0x03030303u;
    constexpr int kStride = kShortXStride<kSplitWide>;
    const int g = lane / 4, t = lane % 4;
    uint32_t w[4], xs[4][2];
    load_matrices(w, stage + x.data + 1024 * k);
    float2 mine;  // scales of row `lane`
    const char* const head = stage + x.head + 512 * k;
    if constexpr (Q6)
        mine = q6_scales(*reinterpret_cast<const uint16_t*>(head + 2 * x.low),
                         *reinterpret_cast<const uint16_t*>(stage + x.d + 8 * k));
    else mine = q4_scales<false>(load_shared16(head), at);
    uint32_t two[4];
    load_matrices(two, x.b + kGroupBytes * k);
    xs[0][0] = two[0], xs[0][1] = two[1], xs[1][0] = two[2], xs[1][1] = two[3];
    if constexpr (NT == 3) load_two_matrices(xs[2][0], xs[2][1], x.more + kGroupBytes * k);
    float d[NT][2], total[NT][2];
#pragma unroll
    for (int nt = 0; nt < NT; ++nt)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const float2 pair = *reinterpret_cast<const float2*>(x.pairs + (8 * nt + i) * kStride + kGroupBytes * k);
            d[nt][i] = pair.x, total[nt][i] = pair.y;
        }
#pragma unroll
    for (int m = 0; m < M; ++m) {
        float3 by[2];  // rows g, g + 8
        uint32_t a[4];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            by[h].x = __shfl_sync(~0u, mine.x, 16 * m + 8 * h + g);
            by[h].z = __shfl_sync(~0u, mine.y, 16 * m + 8 * h + g);
            by[h].y = -__fmul_rn(by[h].x, kMagic);
            if constexpr (!Q6) by[h].z = -by[h].z;
            const uint32_t v = w[2 * m + h];
            a[h] = v & kNibble;
            a[2 + h] = (v >> 4) & kNibble;
            if constexpr (Q6) {
                const uint2 bits =
                    *reinterpret_cast<const uint2*>(stage + x.high + (2 * m + h) * SplitStage<S>::kHigh + 512 * k);
                // Byte by byte: + 96, then the highest bit the other way round.
                a[h] = ((a[h] | ((bits.x >> (2 * t) & kTwo) << 4)) + 0x60606060u) ^ 0x80808080u;
                a[2 + h] = ((a[2 + h] | ((bits.y >> (2 * t) & kTwo) << 4)) + 0x60606060u) ^ 0x80808080u;
            }
        }
#pragma unroll
        for (int nt = 0; nt < NT; ++nt) add_products<Q6>(a, xs[nt][0], xs[nt][1], by, d[nt], total[nt], acc[m][nt]);
    }
}

template <bool Q6, int NT, int S, int M, int U>
__device__ __forceinline__ void split_stage(const char* stage, int count, const KShifts& at, const SplitLane& x,
                                            int lane, float (&acc)[2][NT][4]) {
#pragma unroll U
    for (int k = 0; k < count; ++k) split_step<Q6, NT, S, M>(stage, k, at, x, lane, acc);
}

/// Adds up a tile and stores it; warp `warp` of the team has columns warp, warp + 8, ...
template <int NT>
__device__ __forceinline__ void finish_split(const SplitArgs& a, const Assigned& of, int r, int warp, int lane,
                                             const float* sums) {
    const int rows = a.m.rows, row = kShortRows * of.tile + 16 * of.half + lane;
    const bool stores = lane < 16 * of.halves && row < rows;
    const float* const from = sums + 32 * warp + (lane ^ (warp / 2 % 4 * 8));
#pragma unroll
    for (int nt = 0; nt < NT; ++nt) {
        const int p = 8 * nt + warp;
        if (p >= a.n) return;
        const auto value = [&](int i) { return from[(NT * i + nt) * 256]; };
#pragma unroll
        for (int l = 0; l < 2; ++l) {
            const float sum = __fadd_rn(__fadd_rn(value(l), value(4 + l)), __fadd_rn(value(2 + l), value(6 + l)));
            if (stores) a.parts[(static_cast<int64_t>(2 * r + l) * a.n + p) * rows + row] = sum;
        }
    }
}

/// What the last warps do: those of a team fill its stages, each with eight rows of a tile. Blocks 4 k .. 4 k + 3 are a
/// box, for which lane k asks.
template <int Steps>
__device__ __forceinline__ void ask_for_boxes(const SplitArgs& a, const SplitMaps& maps, int team, int asker,
                                              int rounds, int cta, int ctas, int r, char* stages, uint32_t barriers,
                                              StageRing ring) {
    using S = SplitStage<Steps>;
    const int lane = threadIdx.x % 32, quads = a.blocks / 4;
    const bool six = a.m.q6 != 0;
    if (team == 1) ring.advance();
#pragma unroll 1
    for (int round = 0; round < rounds; ++round) {
        const Assigned of = assigned(a.tiles, ctas, cta, round, team);
        const bool asks = asker < 2 * of.halves;
        const int row0 = kShortRows * of.tile + 16 * of.half + 8 * asker;
        const char* const ds = a.m.planes.d + 2 * static_cast<int64_t>(min(row0 + lane % 8, a.m.rows - 1)) * a.blocks;
#pragma unroll 1
        for (int first = 0; first < quads; first += Steps) {
            const int count = min(quads - first, Steps), k = lane / 8;
            uint2 d = {};  // of row lane % 8, blocks 4 k ..
            if (six && asks && k < count) d = load_weight64(ds + 8 * (first + k));
            ring.wait_until_empty();
            const uint32_t barrier = barriers + 16 * ring.at();
            char* const stage = stages + ring.at() * a.stage_bytes;
            if (lane == 0) expect_bytes(barrier, asks ? (six ? 2048 : 1536) * count : 0);
            __syncwarp();
            if (asks && lane < count) {
                const uint32_t to = shared_address(stage);
                copy_box(to + asker * S::kData + 1024 * lane, &maps.data, barrier, 32 * r, row0, first + lane);
                prefill::load_box(to + S::kHeads + asker * S::kHead + 512 * lane, &maps.heads, barrier, 0, row0,
                                  first + lane);
                if (six)
                    copy_box(to + S::kHighs + asker * S::kHigh + 512 * lane, &maps.high, barrier, 16 * r, row0,
                             first + lane);
            }
            __syncwarp();
            if (six && asks && k < count)
                *reinterpret_cast<uint2*>(stage + S::kDs + (8 * asker + lane % 8) * S::kDStride + 8 * k) = d;
            ring.arrive();
#pragma unroll
            for (int i = 0; i < kTeams; ++i) ring.advance();
        }
    }
}

#endif

/// Teams take stages by turns: part i of a team's tile is stage 2 i + team.
template <int NT, int Steps, int U>
__global__ void __launch_bounds__(kSplitThreads, 1)
    split_kernel(const __grid_constant__ SplitArgs a, const __grid_constant__ SplitMaps maps) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    using S = SplitStage<Steps>;
    constexpr int kStride = kShortXStride<kSplitWide>;
    extern __shared__ uint4 dynamic[];
    __shared__ uint64_t barriers[2 * kMostStages + kMostParts];  // of the ring; parts of x there
    pdl_trigger();
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int cta = blockIdx.x / 4, r = blockIdx.x % 4, ctas = gridDim.x / 4;
    const int rounds = rounds_of(a.tiles, ctas), quads = a.blocks / 4;
    char* const stages = reinterpret_cast<char*>(dynamic) + (1024 - shared_address(dynamic) % 1024) % 1024;
    char* const x = stages + a.stages * a.stage_bytes;
    const uint32_t x_there = shared_address(barriers + 2 * kMostStages);
    StageRing ring(barriers, a.stages);
    if (threadIdx.x == 0) {
        ring.init(kTeamWarps, 33 * kAskers);
        for (int i = 0; i < kMostParts; ++i)
            asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(x_there + 8 * i) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (warp >= kTeamWarps * kTeams) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kAskerRegisters));
        const int asker = warp - kTeamWarps * kTeams;
        ask_for_boxes<Steps>(a, maps, asker / kAskers, asker % kAskers, rounds, cta, ctas, r, stages,
                             shared_address(barriers), ring);
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kUserRegisters));
    pdl_wait();
    if (warp == 0) {
        asm volatile("fence.proxy.async.global;" ::: "memory");
#pragma unroll 1
        for (int first = 0; first < quads; first += Steps)
            ask_for_x<kSplitWide>(a.x, a.n, r * quads + first, first, min(quads - first, Steps), x,
                                  x_there + 8 * (first / Steps));
    }
    const int team = warp / kTeamWarps, sub = warp % kTeamWarps, q = sub / 2, l = sub % 2, g = lane / 4;
    const KShifts at(2 * r + l);
    SplitLane places;
    places.data = lane / 8 * S::kData + q * 256 + lane % 8 * 32 + ((l ^ lane % 8 / 4) << 4);
    places.head = S::kHeads + lane / 8 * S::kHead + lane % 8 * 64 + ((q ^ lane % 8 / 2) << 4);
    places.high = S::kHighs + q * 128 + g * 16 + 8 * l;
    places.d = S::kDs + lane * S::kDStride + 2 * q, places.low = 2 * r + l;
    const char* const xb = x + lane % 16 / 8 * kGroupSecond + (lane % 8 + lane / 16 * 8) * kStride + 16 * sub;
    const char* const more = x + lane % 16 / 8 * kGroupSecond + (lane % 8 + 16) * kStride + 16 * sub;
    const char* const pairs = x + lane % 4 * 2 * kStride + kGroupPairs + 8 * sub;
    if (team == 1) ring.advance();
    const auto next = [&] {
#pragma unroll
        for (int i = 0; i < kTeams; ++i) ring.advance();
    };
#pragma unroll 1
    for (int round = 0; round < rounds; ++round) {
        const Assigned of = assigned(a.tiles, ctas, cta, round, team);
        if (of.halves == 0) {  // the last round: stages without weights
#pragma unroll 1
            for (int first = 0; first < quads; first += Steps, next()) {
                ring.wait_until_full();
                ring.used();
            }
            break;
        }
        float acc[2][NT][4] = {};
        char* stage = nullptr;
#pragma unroll 1
        for (int first = 0; first < quads; first += Steps) {
            if (first != 0) {
                ring.used();
                next();
            }
            stage = stages + ring.at() * a.stage_bytes;
            if (round == 0) wait_for(x_there + 8 * (first / Steps), 0);
            ring.wait_until_full();
            const int at_x = kGroupBytes * first, count = min(quads - first, Steps);
            places.b = xb + at_x, places.more = more + at_x, places.pairs = pairs + at_x;
            if (of.halves == 2) {
                if (a.m.q6 != 0) split_stage<true, NT, Steps, 2, U>(stage, count, at, places, lane, acc);
                else split_stage<false, NT, Steps, 2, U>(stage, count, at, places, lane, acc);
            } else {
                if (a.m.q6 != 0) split_stage<true, NT, Steps, 1, 1>(stage, count, at, places, lane, acc);
                else split_stage<false, NT, Steps, 1, 1>(stage, count, at, places, lane, acc);
            }
        }
        // The team's sums meet in the stage that it has just read.
        auto* const meeting = reinterpret_cast<float*>(stage);
        sync_team(team);
        put_sums<NT>(meeting, sub, lane, acc);
        sync_team(team);
        finish_split<NT>(a, of, r, sub, lane, meeting);
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // boxes are written there next
        ring.used();
        next();
    }
#endif
}

/// A plane of `each` bytes for each block of 256 columns, in boxes of `part` bytes of each of four blocks of eight
/// rows: [block][row][part]. A swizzle is as wide as a part: a narrower part does not lie where one expects it.
CUtensorMap boxes_of(const char* plane, int64_t rows, int blocks, int each, int part) {
    prefill::BoxedTensor t;
    t.data = plane;
    t.type = CU_TENSOR_MAP_DATA_TYPE_UINT8;
    t.swizzle = part == 32 ? CU_TENSOR_MAP_SWIZZLE_32B : CU_TENSOR_MAP_SWIZZLE_NONE;
    t.rank = 4;
    const auto e = static_cast<cuuint64_t>(each), b = static_cast<cuuint64_t>(blocks);
    t.extents[0] = e, t.extents[1] = static_cast<cuuint64_t>(rows), t.extents[2] = 4, t.extents[3] = b / 4;
    t.strides[0] = e * b, t.strides[1] = e, t.strides[2] = 4 * e;
    t.box[0] = static_cast<cuuint32_t>(part), t.box[1] = 8, t.box[2] = 4, t.box[3] = 1;
    return prefill::encode(t);
}

/// Headers of four blocks of eight rows.
CUtensorMap head_boxes(const char* plane, int64_t rows, int blocks) {
    prefill::BoxedTensor t;
    t.data = plane;
    t.type = CU_TENSOR_MAP_DATA_TYPE_UINT8;
    t.swizzle = CU_TENSOR_MAP_SWIZZLE_64B;
    t.rank = 3;
    t.extents[0] = 64, t.extents[1] = static_cast<cuuint64_t>(rows), t.extents[2] = static_cast<cuuint64_t>(blocks / 4);
    t.strides[0] = static_cast<cuuint64_t>(16 * blocks), t.strides[1] = 64;
    t.box[0] = 64, t.box[1] = 8, t.box[2] = 1;
    return prefill::encode(t);
}

template <int NT, int Steps, int U>
bool launch_split(Context& ctx, SplitArgs& a) {
    const int64_t room = ctx.gpu->info().shared_bytes - (2 << 10);  // static shared memory, and to align
    const int64_t x = 8 * NT * kShortXStride<kSplitWide>;
    const int64_t stage = std::max<int64_t>(8192 * NT, SplitStage<Steps>::bytes(a.m.q6 != 0));  // sums meet there
    // An even number, so that a team always has the same ones: who skips a phase of a slot takes old data for new.
    a.stages = static_cast<int32_t>(std::min<int64_t>((room - x) / stage, kMostStages)) / 2 * 2;
    if (a.stages < 4) return false;
    a.stage_bytes = static_cast<int32_t>(stage);
    SplitMaps maps = {};
    maps.data = boxes_of(a.m.planes.data, a.m.rows, a.blocks, 128, 32);
    if (a.m.q6 != 0) maps.high = boxes_of(a.m.planes.high, a.m.rows, a.blocks, 64, 16);
    maps.heads = head_boxes(a.m.planes.scales, a.m.rows, a.blocks);
    const int64_t shared = x + a.stages * stage + 1024;
    const auto kernel = split_kernel<NT, Steps, U>;
    allow_shared(reinterpret_cast<const void*>(kernel), shared);
    const int64_t groups = std::min<int64_t>(a.tiles, std::max(1, ctx.gpu->info().sm_count / 4));
    launch(*ctx.gpu, kernel, dim3(static_cast<unsigned>(4 * groups)), kSplitThreads, static_cast<size_t>(shared), a,
           maps);
    return true;
}

}  // namespace

bool dense_multiply_split(Context& ctx, const ActSource& x, int64_t cols, int64_t n, const Weight& w, float* y,
                          Tensor* residual) {
    const Gpu& gpu = *ctx.gpu;
    if ((x.kind != ActKind::plain && (x.kind != ActKind::norm || cols > 2048 * kWholeRow)) || n <= 8 || n > 24 ||
        cols % 1024 != 0 || cols > 1024 * kSplitWide || gpu.info().major != 9 ||
        gpu.info().shared_bytes < (220 << 10) || !dense_weight(gpu, w) || (w.dtype != kQ4 && w.dtype != kQ6))
        return false;
    SplitArgs a = {};
    a.m = {tile_planes(matrix_of(w)), y, static_cast<int32_t>(w.rows), w.dtype == kQ6 ? 1 : 0};
    a.tiles = static_cast<int32_t>((w.rows + kShortRows - 1) / kShortRows);
    if (a.tiles >= 2 * gpu.info().sm_count) return false;
    const int64_t products = n * w.rows;
    a.n = static_cast<int32_t>(n);
    a.blocks = static_cast<int32_t>(cols / 256);
    a.x = prepare_short(ctx, x, cols, n, true, 0);
    a.parts = static_cast<float*>(ctx.arena->allocate(8 * products * int64_t{sizeof(float)}));
    if (!(n <= 16 ? launch_split<2, 4, 2>(ctx, a) : launch_split<3, 4, 1>(ctx, a) || launch_split<3, 2, 1>(ctx, a)))
        return false;
    const SplitSumArgs s = {a.parts, y, residual == nullptr ? nullptr : residual->row(0),
                            static_cast<int32_t>(products)};
    launch(*ctx.gpu, split_sum_kernel, dim3(static_cast<unsigned>((products + kThreads - 1) / kThreads)), kThreads, 0,
           s);
    return true;
}

}  // namespace riptide::ops::cuda::decode
