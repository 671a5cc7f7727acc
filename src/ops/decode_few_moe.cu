// A sparse layer of Laguna XS.2 in Q4_K_M for two to four rows: 256 experts of 2048 x 512, up to eight of them a row
// and a shared one. One row has kernels of its own (decode_lean_moe.cu), more rows take those of decode_group.cu; all
// with the same bits.
//
// Bytes: router 1.0 MB (bf16), gate and up 1.18 MB and down 0.59 MB (Q6_K: 0.86) for each distinct expert; rows that
// choose at random use 15.8 of them at two rows and 30.5 at four, and the shared one: at 4.65 TB/s 6.5 and 12 us. Three
// kernels, six with the general ones (norm, router, choice, gate and up, down, sum), each of which begins with the
// latency of what came before:
//   few_router_kernel   logits of the normalised rows, two experts a CTA; a thread holds 16 columns of each row.
//   few_gate_up_kernel  one CTA an SM. Before it waits for the router it normalises and quantises all rows; then one
//                       warp a row chooses its experts, every CTA for itself; a list of the distinct experts, whose
//                       stages (eight gate rows, eight up rows) the CTAs share out by what they cost. One warp asks for
//                       stages; two teams of eight take turns to multiply them with the rows that chose the expert.
//   few_down_kernel     an output a warp: half a warp for each (row, slot), a ring of weights in shared memory for each
//                       warp, which it begins to fill while gate and up are being computed; adds the slots up itself.
// What down reads before its wait is what decode_lean_moe.cu lets it read: the residual stream and the ids, which CTA 0
// of gate_up stores, with a fence, before it lets down start. What gate_up reads before its wait: x, complete since the
// router lets it start only behind its own wait.
#include <algorithm>

#include "ops/decode_group.h"
#include "ops/decode_group_lists.cuh"
#include "ops/decode_lean.cuh"
#include "ops/decode_lean_route.cuh"
#include "ops/decode_ring.cuh"

namespace riptide::ops::cuda::decode {

namespace {

constexpr int kHidden = kLeanHidden, kFf = 512, kMostChosen = kLeanChosen, kMostRows = 4;
constexpr DType kQ4 = DType::planes_q4_k;

// ---- Router.

struct FewRouterArgs {
    const char* router;  // bf16 [kExperts, kHidden]
    const float* x;      // [n, kHidden]
    const float* norm;
    float eps;
    int32_t n;
    float* logits;  // [n, kExperts]
};

/// As lean_router_kernel for R rows: four warps have an expert, and all columns of every row.
template <int R>
__global__ void __launch_bounds__(kThreads, 2) few_router_kernel(const __grid_constant__ FewRouterArgs a) {
    __shared__ float partial[R][kWarps], sums[R][kWarps];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, expert = 2 * blockIdx.x + warp / 4;
    uint4 raw[2];
    float norm[2][8];
#pragma unroll
    for (int s = 0; s < 2; ++s) {
        const int c = (warp % 4 + 4 * s) * 32 + lane;
        raw[s] = load_weights(a.router + (expert * kHidden + 8 * c) * 2);
        lean_weights8(a.norm, c, norm[s]);
    }
    pdl_wait();
    pdl_trigger();  // behind the wait: gate and up may read x above theirs
    float x[R][2][8];
#pragma unroll
    for (int r = 0; r < R; ++r)
#pragma unroll
        for (int s = 0; s < 2; ++s)
            lean_load8(a.x + min(r, a.n - 1) * kHidden, (warp % 4 + 4 * s) * 32 + lane, x[r][s]);
    // The partial sums of block_rms_scale(): piece c is that of its thread c.
    float squares[2 * R];
#pragma unroll
    for (int i = 0; i < 2 * R; ++i) squares[i] = add_squares(x[i / 2][i % 2], 0.0f);
    const float square = reduce_lanes<2 * R>(squares, lane);
    constexpr int kEach = 32 / (2 * R);  // lanes that hold the same sum
    if (warp < 4 && lane % kEach == 0) partial[lane / kEach / 2][warp + 4 * (lane / kEach % 2)] = square;
    __syncthreads();
    float acc[R];
#pragma unroll
    for (int r = 0; r < R; ++r) {
        const float scale = row_scale(partial[r], kHidden, a.eps);
        acc[r] = 0.0f;
#pragma unroll
        for (int s = 0; s < 2; ++s) {
            const uint32_t words[4] = {raw[s].x, raw[s].y, raw[s].z, raw[s].w};
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const auto value = [&](int k) { return rms_value(x[r][s][4 * i + k], scale, norm[s][4 * i + k]); };
                acc[r] =
                    fma4(decode4(DType::bf16, words, i), make_float4(value(0), value(1), value(2), value(3)), acc[r]);
            }
        }
    }
    const float sum = reduce_lanes<R>(acc, lane);
    if (lane % (32 / R) == 0) sums[lane / (32 / R)][warp] = sum;
    __syncthreads();
    const int r = threadIdx.x / 2, e = threadIdx.x % 2;
    if (r >= min(R, a.n)) return;
    const float* s = sums[r] + 4 * e;
    a.logits[r * kExperts + 2 * blockIdx.x + e] = (s[0] + s[1]) + (s[2] + s[3]);
}

// ---- Choosing experts.

/// The rows' experts, in the shared memory of a CTA.
struct FewRoute {
    uint32_t mask[kExperts];  // bit r: row r chose it
    uint8_t rank[kExperts][kMostRows];
    int32_t ids[kMostRows * kMostChosen];        // [n, top_k]
    uint32_t list[kMostRows * kMostChosen + 1];  // expert (or kShared) | mask of rows << 16
    int32_t costs[kMostRows * kMostChosen + 2];  // see Groups
    int32_t totals[kWarps];
};

/// The weight of entry i of m.ids.
__device__ __forceinline__ float few_weight(const RouteArgs& a, const FewRoute& m, const LeanRanks* ranks, int i) {
    const int row = i / a.top_k;
    const float* const s = ranks[row].s;
    float sum = 0.0f;
    for (int k = 0; k < a.top_k; ++k) sum = __fadd_rn(sum, s[m.ids[row * a.top_k + k]]);
    const float weight = s[m.ids[i]];
    return __fmul_rn(a.normalize ? __fdiv_rn(weight, sum) : weight, a.scale);
}

/// How long a stage takes for that many rows, roughly.
__device__ __forceinline__ int few_cost(int rows) { return rows == 1 ? 4 : rows == 2 ? 5 : 9; }

/// The list of distinct experts, the shared one first; how many. The whole CTA, when all rows are in m.mask.
__device__ __forceinline__ int list_experts(int n, FewRoute& m) {
    const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
    const uint32_t mask = thread < kExperts ? m.mask[thread] : 0;
    const int mine = mask != 0 ? 1 | few_cost(__popc(mask)) << 12 : 0;
    int upto = mine;
#pragma unroll
    for (int o = 1; o < 32; o *= 2) {
        const int other = __shfl_up_sync(~0u, upto, o);
        if (lane >= o) upto += other;
    }
    if (warp < kWarps && lane == 31) m.totals[warp] = upto;
    __syncthreads();
    int all = 1 | few_cost(n) << 12, before = all;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
        if (w < warp) before += m.totals[w];
        all += m.totals[w];
    }
    before += upto - mine;
    if (mine != 0) {
        m.list[before & 0xFFF] = static_cast<uint32_t>(thread) | mask << 16;
        m.costs[before & 0xFFF] = before >> 12;
    }
    if (thread == 0) {
        m.list[0] = kShared | ((1u << n) - 1) << 16;
        m.costs[0] = 0;
        m.costs[all & 0xFFF] = all >> 12;
    }
    __syncthreads();
    return all & 0xFFF;
}

// ---- Gate and up.

constexpr int kTeams = 2, kFewUsers = kTeams * kThreads, kFewThreads = kFewUsers + 32;
constexpr int kStageRows = 8, kPairTiles = kFf / kStageRows;  // pairs of a stage, stages of an expert
constexpr int kFewStages = 5;
constexpr int kNibbles = kHidden / 2, kHeaders = kHidden / 16;       // bytes of a row
constexpr int kStageBytes = 2 * kStageRows * (kNibbles + kHeaders);  // nibbles of gate, of up, headers of gate, of up
constexpr int kXStride = staged_bytes(kHidden);
constexpr int kMostShare = 24;  // stages of a CTA

struct FewGateUpArgs {
    LeanPlanes m[4];  // gate and up of the experts, gate and up of the shared expert
    int64_t stride;   // from expert to expert
    RouteArgs route;
    const float* logits;  // [n, kExperts]
    const float* x;       // [n, kHidden]
    const float* norm;
    float eps;
    int32_t n;
    float* out;  // [n * top_k + n, kFf]: the chosen experts of each row, then the shared one
};

/// One of two things at a time.
union FewScratch {
    LeanRanks ranks[kMostRows];
    float results[kMostShare][kMostRows][kStageRows][2];  // gate and up: [stage][row of the expert][pair]
};

/// acc[gate or up][p] of pair `pair` of a stage times P rows.
template <int P>
__device__ __forceinline__ void few_pair(const char* stage, int pair, const char* const (&rows)[P], int lane,
                                         float (&acc)[2][P]) {
    constexpr int kGroups = kHidden / 32;
    const LeanAux<false> aux{const_cast<char*>(stage) + 2 * kStageRows * kNibbles, kGroups, 1};
    const KShifts at(lane);
#pragma unroll
    for (int s = 0; s < 2; ++s) {
        KActs x[P];
#pragma unroll
        for (int p = 0; p < P; ++p) x[p] = k_acts<false>(rows[p], kGroups, 32 * s + lane);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int index = (kStageRows * i + pair) * kGroups + 32 * s + lane;
            const uint4 q = *reinterpret_cast<const uint4*>(stage + 16 * index);
            const float2 by = lean_scales<false>(aux, index, at);
#pragma unroll
            for (int p = 0; p < P; ++p) acc[i][p] = lean_dot<false>(q, aux, index, x[p], by, acc[i][p]);
        }
    }
}

__global__ void __launch_bounds__(kFewThreads, 2) few_gate_up_kernel(const __grid_constant__ FewGateUpArgs a) {
    extern __shared__ uint4 dynamic[];
    __shared__ FewRoute route;
    __shared__ FewScratch scratch;
    __shared__ float partial[kMostRows][kWarps];
    __shared__ uint64_t barriers[2 * kFewStages];
    char* const stages = reinterpret_cast<char*>(dynamic);
    char* const staged = stages + kFewStages * kStageBytes;
    const int t = threadIdx.x, lane = t % 32, warp = t / 32, team = warp / kWarps, u0 = t % kThreads;
    StageRing ring(barriers, kFewStages);
    if (t == 0) ring.init(kWarps, 1);
    if (t < kExperts) route.mask[t] = 0;
    // f(row) for the rows of this thread's team.
    const auto each_row = [&](const auto& f) {
#pragma unroll
        for (int i = 0; i < kMostRows / kTeams; ++i)
            if (team < kTeams && team + kTeams * i < a.n) f(i, team + kTeams * i);
    };
    float norm[8];
    if (team < kTeams) lean_weights8(a.norm, u0, norm);
    const float bias =
        a.route.bias == nullptr || team == kTeams ? 0.0f : __uint_as_float(load_weight32(a.route.bias + u0));
    LeanNormRow x[kMostRows / kTeams];
    each_row([&](int i, int r) { x[i].load(a.x + r * kHidden, u0, partial[r]); });
    __syncthreads();
    each_row([&](int i, int r) { x[i].stage(norm, a.eps, u0, partial[r], staged + r * kXStride); });
    pdl_wait();
    each_row([&](int, int r) {
        lean_rank_own(a.route, u0, load_shared_f32(a.logits + r * kExperts + u0), bias, scratch.ranks[r]);
    });
    __syncthreads();
    each_row([&](int, int r) {
        lean_rank_best(u0, scratch.ranks[r], [&](int rank, int expert) {
            if (rank >= a.route.top_k) return;
            route.ids[r * a.route.top_k + rank] = expert;
            route.rank[expert][r] = static_cast<uint8_t>(rank);
            atomicOr(&route.mask[expert], 1u << r);
        });
    });
    __syncthreads();
    if (blockIdx.x > 0) {
        pdl_trigger();
    } else if (warp == 0) {  // in CTA 0 this warp alone, behind its stores
        if (lane < a.n * a.route.top_k) {
            a.route.chosen[lane] = route.ids[lane];
            __threadfence();
        }
        __syncwarp();
        pdl_trigger();
        if (lane < a.n * a.route.top_k) a.route.weights[lane] = few_weight(a.route, route, scratch.ranks, lane);
    }
    const int all = list_experts(a.n, route);
    Groups groups = {};
    groups.costs = route.costs;
    const int begin = first_stage(groups, all, kPairTiles, blockIdx.x, gridDim.x),
              end = first_stage(groups, all, kPairTiles, blockIdx.x + 1, gridDim.x);
    Cursor now{begin / kPairTiles, begin % kPairTiles};
    if (warp == kTeams * kWarps) {
        if (lane != 0) return;
#pragma unroll 1
        for (int u = begin; u < end; ++u, now.advance(kPairTiles, 1), ring.advance()) {
            const uint32_t e = route.list[now.outer] & 0xFFFFu;
            const int first = e == kShared ? 2 : 0, row = now.part * kStageRows;
            const int64_t offset = e == kShared ? 0 : e * a.stride;
            char* const stage = stages + ring.at() * kStageBytes;
            ring.wait_until_empty();
            ring.expect(kStageBytes);
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const LeanPlanes& m = a.m[first + i];
                ring.copy(stage + i * kStageRows * kNibbles, m.data + offset + row * kNibbles, kStageRows * kNibbles);
                ring.copy(stage + 2 * kStageRows * kNibbles + i * kStageRows * kHeaders,
                          m.scales + offset + row * kHeaders, kStageRows * kHeaders);
            }
        }
        return;
    }
    const auto advance = [&] {
        now.advance(kPairTiles, 1);
        ring.advance();
    };
    if (team == 1) advance();
    const int pair = warp % kWarps;
#pragma unroll 1
    for (int u = begin + team; u < end; u += kTeams) {
        const char* const stage = stages + ring.at() * kStageBytes;
        ring.wait_until_full();
        auto* const to = &scratch.results[u - begin][0][pair];
        int k = 0;
#pragma unroll 1
        for (uint32_t rows = route.list[now.outer] >> 16; rows != 0; k += 2) {
            const int p0 = __ffs(static_cast<int>(rows)) - 1;
            rows &= rows - 1;
            const int p1 = __ffs(static_cast<int>(rows)) - 1;
            rows &= rows - 1;
            if (p1 < 0) {
                const char* const one[1] = {staged + p0 * kXStride};
                float acc[2][1] = {};
                few_pair<1>(stage, pair, one, lane, acc);
                float v[2] = {acc[0][0], acc[1][0]};
                const float sum = reduce_lanes<2>(v, lane);
                if (lane % 16 == 0) to[k * kStageRows][lane / 16] = sum;
            } else {
                const char* const two[2] = {staged + p0 * kXStride, staged + p1 * kXStride};
                float acc[2][2] = {};
                few_pair<2>(stage, pair, two, lane, acc);
                float v[4] = {acc[0][0], acc[1][0], acc[0][1], acc[1][1]};
                const float sum = reduce_lanes<4>(v, lane);
                if (lane % 8 == 0) to[(k + lane / 16) * kStageRows][lane / 8 % 2] = sum;
            }
        }
        ring.used(lane);
        advance();
        advance();
    }
    sync_warps<kTeams * kWarps>();
    // All lanes at once: an exponential and two divisions for a lane each, not for a warp.
#pragma unroll 1
    for (int i = t; i < (end - begin) * kMostRows * kStageRows; i += kFewUsers) {
        const int u = begin + i / (kMostRows * kStageRows), k = i / kStageRows % kMostRows, f = i % kStageRows;
        const uint32_t entry = route.list[u / kPairTiles], e = entry & 0xFFFFu;
        uint32_t rows = entry >> 16;
        if (k >= __popc(rows)) continue;
        for (int skip = 0; skip < k; ++skip) rows &= rows - 1;
        const int p = __ffs(static_cast<int>(rows)) - 1, top_k = a.route.top_k;
        const int combo = e == kShared ? a.n * top_k + p : p * top_k + route.rank[e][p];
        const float* const v = scratch.results[u - begin][k][f];
        a.out[combo * kFf + u % kPairTiles * kStageRows + f] = swiglu_value(v[0], v[1]);
    }
}

// ---- Down.

struct FewDownArgs {
    LeanPlanes routed, shared;
    int64_t stride;
    const int32_t* experts;  // [n, top_k]
    const float* weights;
    int32_t n, top_k;
    const float* act;  // FewGateUpArgs::out
    int32_t rows;
    float* y;         // [n, rows]
    float* residual;  // [n, rows] or null
};

/// Until all but the newest kPending groups of copies of this thread are there.
template <int kPending>
__device__ __forceinline__ void wait_copies_but() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
#endif
}

constexpr int kDownGroups = kFf / 32, kMostCombos = kMostRows * (kMostChosen + 1);
template <bool Q6>
constexpr int kComboBytes = 16 * kDownGroups + (LeanAux<Q6>::row_bytes(kDownGroups) + 15) / 16 * 16;
/// Passes (of two products a warp) whose weights may be on their way.
template <bool Q6>
constexpr int kDownAhead = Q6 ? 5 : 8;

__host__ __device__ constexpr int act_bytes(int combos) { return staged_bytes((combos + 1) / 2 * 2 * kFf); }
template <bool Q6>
constexpr int down_shared(int n, int slots) {
    return act_bytes(n * slots) + kLeanWarps * kDownAhead<Q6> * 2 * kComboBytes<Q6>;
}

template <bool Q6>
__global__ void __launch_bounds__(kLeanThreads, 2) few_down_kernel(const __grid_constant__ FewDownArgs a) {
    extern __shared__ uint4 dynamic[];
    __shared__ float terms[kLeanWarps][kMostCombos];
    constexpr int kAhead = kDownAhead<Q6>;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, half = lane / 16, j = lane % 16;
    const int o = blockIdx.x * kLeanWarps + warp, routed = a.n * a.top_k, combos = routed + a.n,
              passes = (combos + 1) / 2;
    const ActLayout l = lean_layout(passes * 2 * kFf);
    char* const staged = reinterpret_cast<char*>(dynamic);
    char* const ring = staged + act_bytes(combos) + (warp * kAhead * 2 + half) * kComboBytes<Q6>;
    const int chosen = lane < routed ? load_shared_i32(a.experts + lane) : 0;
    const auto place = [&](int b) { return ring + b % kAhead * 2 * kComboBytes<Q6>; };
    const auto aux_of = [&](int b) { return LeanAux<Q6>{place(b) + 16 * kDownGroups, kDownGroups, 1}; };
    // This lane's pieces of row o of expert 0 and of the shared one.
    const auto pieces = [&](LeanPlanes m) {
        const int first = o * kDownGroups;
        m.data += 16 * (first + j), m.scales += 2 * first + 16 * j;
        if constexpr (Q6) m.high += 8 * first + 16 * j, m.d += first / 4;
        return m;
    };
    const LeanPlanes from_routed = pieces(a.routed), from_shared = pieces(a.shared);
    const auto fetch = [&](int b) {
        const int c = 2 * b + half;
        const int expert = __shfl_sync(~0u, chosen, c);
        if (c < combos) {
            const bool is_routed = c < routed;
            const int64_t offset = is_routed ? expert * a.stride : 0;
            const auto from = [&](const char* one, const char* other) { return (is_routed ? one : other) + offset; };
            const LeanAux<Q6> aux = aux_of(b);
            copy_async16(place(b) + 16 * j, from(from_routed.data, from_shared.data));
            if (j < kDownGroups / 8) copy_async16(aux.scales() + 16 * j, from(from_routed.scales, from_shared.scales));
            if constexpr (Q6) {
                if (j < kDownGroups / 2) copy_async16(aux.high() + 16 * j, from(from_routed.high, from_shared.high));
                if (j == kDownGroups - 1) copy_async4(aux.d(), from(from_routed.d, from_shared.d));
            }
        }
        commit_copies();
    };
#pragma unroll 1
    for (int b = 0; b < kAhead; ++b) fetch(b);
    pdl_trigger();  // now: the next kernel's weights queue up behind these
    const int own = min(lane, a.n - 1);
    const float old =
        a.residual != nullptr && lane < a.n ? load_shared_f32(a.residual + own * a.rows + o) : 0.0f;  // before gate_up
    const KShifts at(lane);
    pdl_wait();
    const float weight = lane < routed ? a.weights[lane] : 0.0f;
#pragma unroll 3
    for (int c = threadIdx.x; c < passes * 2 * kFf / 8; c += kLeanThreads) {
        float v[8] = {};
        if (c < combos * kFf / 8) lean_load8(a.act, c, v);
        put8(l, staged, c, v);
    }
    __syncthreads();
#pragma unroll 1
    for (int b = 0; b < passes; ++b) {
        wait_copies_but<kAhead - 1>();
        __syncwarp();
        const int c = 2 * b + half;
        const KActs x = k_acts<Q6>(staged, l.groups, c * kDownGroups + j);
        const LeanAux<Q6> aux = aux_of(b);
        const uint4 q = *reinterpret_cast<const uint4*>(place(b) + 16 * j);
        float v[1] = {lean_dot<Q6>(q, aux, j, x, lean_scales<Q6>(aux, j, at), 0.0f)};
        const float sum = reduce_lanes<1, 16>(v, lane);
        if (j == 0 && c < combos) terms[warp][c] = sum;
        __syncwarp();
        fetch(b + kAhead);
    }
    float y = 0.0f;
#pragma unroll 1
    for (int rank = 0; rank < a.top_k; ++rank) {
        const float by = __shfl_sync(~0u, weight, own * a.top_k + rank);
        const float term = __fmul_rn(by, terms[warp][own * a.top_k + rank]);
        y = rank == 0 ? term : __fadd_rn(y, term);
    }
    if (lane >= a.n) return;
    y = __fadd_rn(y, terms[warp][routed + lane]);
    a.y[lane * a.rows + o] = y;
    if (a.residual != nullptr) a.residual[lane * a.rows + o] = __fadd_rn(old, y);
}

bool all_q4(std::initializer_list<const Matrix*> matrices, int rows, int cols) {
    return std::all_of(matrices.begin(), matrices.end(), [&](const Matrix* m) {
        return m->type == kQ4 && m->rows == rows && m->cols == cols && m->scale == 1.0f;
    });
}

}  // namespace

bool few_moe(Context& ctx, const Layer& layer, const ActSource& x, int64_t n, const Router& router,
             const ExpertWeights& weights, const SharedExpert& shared, MoeResult& result, float* residual) {
    const Gpu& gpu = *ctx.gpu;
    if (!gpu.hopper() || gpu.options().portable || n < 2 || n > kMostRows || !layer.shared ||
        layer.experts != kExperts || layer.top_k > kMostChosen || x.kind != ActKind::norm ||
        router.w->dtype != DType::bf16 || router.w->cols != kHidden || router.w->row_bytes != 2 * kHidden ||
        router.w->scale != 1.0f ||
        !all_q4({&layer.gate, &layer.up, &layer.shared_gate, &layer.shared_up}, kFf, kHidden))
        return false;
    const Weight &down = weights.down[0], &shared_down = *shared.down;
    const auto stride_of = [](const std::vector<Weight>& w) {
        return static_cast<const char*>(w[1].data) - static_cast<const char*>(w[0].data);
    };
    if (stride_of(weights.gate) != stride_of(weights.up)) return false;
    if (!lean_type(down) || !lean_type(shared_down) || down.dtype != shared_down.dtype || down.cols != kFf ||
        shared_down.cols != kFf || shared_down.rows != down.rows || down.rows % kLeanWarps != 0)
        return false;
    const int slots = layer.top_k + 1, rows = static_cast<int>(n);
    const bool q6 = down.dtype == DType::planes_q6_k;
    const int up_shared = kFewStages * kStageBytes + rows * kXStride;
    const int down_bytes = q6 ? down_shared<true>(rows, slots) : down_shared<false>(rows, slots);
    constexpr int kStatic = 16 << 10;
    // An expert of each row costs a stage few_cost(1), the shared one at most few_cost(kMostRows).
    const int share = (kMostRows * kMostChosen * 4 + 9) * kPairTiles / 4 / gpu.info().sm_count + 2;
    if (share > kMostShare || std::max(up_shared, down_bytes) + kStatic > gpu.info().shared_bytes) return false;
    result.logits = ctx.alloc(DType::f32, {n, kExperts});
    result.routing = {router.top_k, ctx.alloc(DType::i32, {n, router.top_k}), ctx.alloc(DType::f32, {n, router.top_k})};
    const ArenaScope scope(*ctx.arena);
    const auto* const f32_rows = reinterpret_cast<const float*>(x.rows);

    const FewRouterArgs r{
        static_cast<const char*>(router.w->data), f32_rows, x.norm, x.eps, rows, result.logits.row(0)};
    const auto router_kernel = n == 2 ? few_router_kernel<2> : few_router_kernel<4>;
    allow_shared(reinterpret_cast<const void*>(router_kernel), kLeanSmall);
    launch(gpu, router_kernel, kExperts / 2, kThreads, kLeanSmall, r);

    FewGateUpArgs g = {};
    const Weight* const ups[] = {&weights.gate[0], &weights.up[0], shared.gate, shared.up};
    for (size_t i = 0; i < 4; ++i) g.m[i] = planes_of(*ups[i]);
    g.stride = stride_of(weights.gate);
    g.route = {router.bias.empty() ? nullptr : router.bias.data(),
               kExperts,
               layer.top_k,
               router.scale,
               router.normalize,
               result.routing.experts.row<int32_t>(0),
               result.routing.weights.row(0)};
    g.logits = r.logits;
    g.x = f32_rows;
    g.norm = x.norm;
    g.eps = x.eps;
    g.n = rows;
    g.out = static_cast<float*>(ctx.arena->allocate(n * slots * kFf * int64_t{sizeof(float)}));
    allow_shared(reinterpret_cast<const void*>(few_gate_up_kernel), up_shared);
    launch(gpu, few_gate_up_kernel, dim3(static_cast<unsigned>(gpu.info().sm_count)), kFewThreads,
           static_cast<size_t>(up_shared), g);

    FewDownArgs d = {};
    d.routed = planes_of(down);
    d.shared = planes_of(shared_down);
    d.stride = stride_of(weights.down);
    d.experts = g.route.chosen;
    d.weights = g.route.weights;
    d.n = rows;
    d.top_k = layer.top_k;
    d.act = g.out;
    d.rows = static_cast<int32_t>(down.rows);
    d.y = result.y.row(0);
    d.residual = residual;
    const auto down_kernel = q6 ? few_down_kernel<true> : few_down_kernel<false>;
    allow_shared(reinterpret_cast<const void*>(down_kernel), down_bytes);
    launch(gpu, down_kernel, dim3(static_cast<unsigned>(down.rows / kLeanWarps)), kLeanThreads,
           static_cast<size_t>(down_bytes), d);
    return true;
}

}  // namespace riptide::ops::cuda::decode
