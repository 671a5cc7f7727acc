// A sparse layer of Laguna XS.2 in Q4_K_M for one row: 256 experts of 2048 x 512, up to eight of them and a shared one.
// The general kernels of decode_moe.cu take everything else, with the same bits.
//
// Bytes: router 1.0 MB (bf16), gate and up of nine experts 10.6 MB, down 5.3 MB (Q6_K: 7.7); at 4.65 TB/s 0.23, 2.3 and
// 1.1 us. Three kernels:
//   lean_router_kernel   logits of the normalised row, two experts a CTA.
//   lean_gate_up_kernel  every CTA chooses the experts itself from the 256 logits, then fetches its share of the rows
//   of
//                        all slots and leaves silu(gate) * up. Before it waits for the router it normalises and
//                        quantises x and fetches its rows of the shared expert.
//   lean_down_kernel     one output a warp, all slots; fetches its weights while gate and up are still being computed.
// What down reads before its wait: x, complete since gate_up lets it start only behind its own wait; and the ids of the
// experts: the router's kernel makes them -1, CTA 0 of gate_up stores them, and down asks until they are there. (CTA 0
// used to let down start behind a fence only, which took 1 to 2 us while weights streamed in, and all CTAs of down
// started so much later.)
// What limits it: nothing can be fetched until the experts are known: router, choice, memory latency and gate_up's
// bytes follow one another. Tried on an H200: down's weights, or the next layer's projections, sent to the L2 cache in
// the meantime: 1 to 2 % slower (a later kernel's own early loads do as well); a row a copy instead of runs of rows:
// slower (the copy engine takes about 20 ns a piece); down choosing for itself instead of reading the ids: slower.
#include <algorithm>

#include "ops/decode_host.h"
#include "ops/decode_lean.cuh"
#include "ops/decode_lean.h"
#include "ops/decode_moe.cuh"
#include "ops/decode_route.cuh"

namespace riptide::ops::cuda::decode {

namespace {

constexpr int kExperts = kThreads, kHidden = kLeanHidden, kFf = 512, kMostChosen = 8, kSlots = kMostChosen + 1;
constexpr int kRowBytes = kHidden / 2, kHeaderBytes = kHidden / 16;  // of a Q4_K row: nibbles, headers
constexpr int kWarpRows = 5;
constexpr int kStatic = 8 << 10;  // of gate and up: static shared memory, and what the chip keeps of it

// ---- Router.

struct LeanRouterArgs {
    const char* router;  // bf16 [kExperts, kHidden]
    const float* x;
    const float* norm;
    float eps;
    float* logits;
    int32_t* chosen;  // [top_k], set to -1
    int32_t top_k;
};

/// Four warps have an expert, as in router_kernel: the same products in the same order.
__global__ void __launch_bounds__(kThreads, 4) lean_router_kernel(const __grid_constant__ LeanRouterArgs a) {
    __shared__ alignas(16) float row[kHidden];
    __shared__ float partial[kWarps], sums[kWarps];
    pdl_trigger();
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, expert = 2 * blockIdx.x + warp / 4;
    uint4 raw[2];
    float norm[2][8], mine[8];
#pragma unroll
    for (int s = 0; s < 2; ++s) {
        const int c = (warp % 4 + 4 * s) * 32 + lane;
        raw[s] = load_weights_once(a.router + (expert * kHidden + 8 * c) * 2);
        lean_weights8(a.norm, c, norm[s]);
    }
    pdl_wait();
    if (blockIdx.x == 0 && threadIdx.x < a.top_k) a.chosen[threadIdx.x] = -1;
    lean_load8(a.x, threadIdx.x, mine);
    const float sum = warp_sum(add_squares(mine, 0.0f));
    auto* quads = reinterpret_cast<float4*>(row);
    quads[2 * threadIdx.x] = make_float4(mine[0], mine[1], mine[2], mine[3]);
    quads[2 * threadIdx.x + 1] = make_float4(mine[4], mine[5], mine[6], mine[7]);
    if (lane == 0) partial[warp] = sum;
    __syncthreads();
    const float scale = row_scale(partial, kHidden, a.eps);
    float acc = 0.0f;
#pragma unroll
    for (int s = 0; s < 2; ++s) {
        const int c = (warp % 4 + 4 * s) * 32 + lane;
        const uint32_t words[4] = {raw[s].x, raw[s].y, raw[s].z, raw[s].w};
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const float4 x = quads[2 * c + i];
            acc =
                fma4(decode4(DType::bf16, words, i),
                     make_float4(rms_value(x.x, scale, norm[s][4 * i]), rms_value(x.y, scale, norm[s][4 * i + 1]),
                                 rms_value(x.z, scale, norm[s][4 * i + 2]), rms_value(x.w, scale, norm[s][4 * i + 3])),
                     acc);
        }
    }
    acc = warp_sum(acc);
    if (lane == 0) sums[warp] = acc;
    __syncthreads();
    if (threadIdx.x < 2) {
        const float* s = sums + 4 * threadIdx.x;
        a.logits[2 * blockIdx.x + threadIdx.x] = (s[0] + s[1]) + (s[2] + s[3]);
    }
}

// ---- Choosing experts.

/// A word for a kernel that may have started already and asks for it with await_id().
__device__ __forceinline__ void post_id(int32_t* p, int32_t id) {
    asm volatile("st.relaxed.gpu.global.s32 [%0], %1;" ::"l"(p), "r"(id) : "memory");
}
/// The word, once it is not negative.
__device__ __forceinline__ int32_t await_id(const int32_t* p) {
    int32_t id;
    do {
        asm volatile("ld.relaxed.gpu.global.s32 %0, [%1];" : "=r"(id) : "l"(p) : "memory");
    } while (id < 0);
    return id;
}

struct LeanRoute {
    alignas(16) uint32_t key[kExperts];
    alignas(16) uint32_t best_key[8 * kWarps];
    alignas(16) int32_t best[8 * kWarps];
    float s[kExperts];
    int32_t chosen[kMostChosen];
    float weights[kMostChosen];
};

/// As route_row() chooses of kExperts experts, by the first kThreads threads, in two parts: each warp ranks its 32
/// among themselves; then, when the CTA has synchronised, 64 candidates are ranked. It synchronises again before it
/// reads `m`.
__device__ __forceinline__ void lean_rank_own(const RouteArgs& a, float logit, float bias, LeanRoute& m) {
    const int t = threadIdx.x, warp = t / 32, lane = t % 32;
    const float s = sigmoid(logit);
    const uint32_t key = route_key(a.bias == nullptr ? s : __fadd_rn(s, bias));
    m.s[t] = s;
    m.key[t] = key;
    __syncwarp();
    int rank = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const uint4 other = reinterpret_cast<const uint4*>(m.key + 32 * warp)[i];
        const uint32_t keys[4] = {other.x, other.y, other.z, other.w};
#pragma unroll
        for (int k = 0; k < 4; ++k) rank += keys[k] > key || (keys[k] == key && 4 * i + k < lane) ? 1 : 0;
    }
    if (rank < 8) {
        m.best_key[8 * warp + rank] = key;
        m.best[8 * warp + rank] = t;
    }
}
__device__ __forceinline__ void lean_rank_best(const RouteArgs& a, LeanRoute& m) {
    const int t = threadIdx.x, candidate = t / 4, quarter = t % 4, mine = m.best[candidate];
    const uint32_t my_key = m.best_key[candidate];
    int rank = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const uint4 other = reinterpret_cast<const uint4*>(m.best_key + 16 * quarter)[i];
        const int4 index = reinterpret_cast<const int4*>(m.best + 16 * quarter)[i];
        const uint32_t keys[4] = {other.x, other.y, other.z, other.w};
        const int indices[4] = {index.x, index.y, index.z, index.w};
#pragma unroll
        for (int k = 0; k < 4; ++k) rank += keys[k] > my_key || (keys[k] == my_key && indices[k] < mine) ? 1 : 0;
    }
    rank += __shfl_xor_sync(~0u, rank, 1);
    rank += __shfl_xor_sync(~0u, rank, 2);
    if (quarter == 0 && rank < a.top_k) m.chosen[rank] = mine;
}

/// The weight of rank t, by the first top_k threads, when m.chosen is there.
__device__ __forceinline__ float lean_weight(const RouteArgs& a, const LeanRoute& m) {
    const int t = threadIdx.x;
    float weight = m.s[m.chosen[t]], sum = 0.0f;
    for (int k = 0; k < a.top_k; ++k) sum = __fadd_rn(sum, m.s[m.chosen[k]]);
    if (a.normalize) weight = __fdiv_rn(weight, sum);
    return __fmul_rn(weight, a.scale);
}

__device__ __forceinline__ float lean_bias(const RouteArgs& a) {
    return a.bias == nullptr ? 0.0f : __uint_as_float(load_weight32(a.bias + threadIdx.x));
}

// ---- Gate and up.

struct LeanGateUpArgs {
    LeanPlanes m[4];  // gate and up of the experts, gate and up of the shared expert
    int64_t stride;   // from expert to expert
    RouteArgs route;
    const float* logits;
    const float* x;
    const float* norm;
    float eps;
    float* out;  // [slots, ff], the shared expert last
};

/// CTA b has an even share of the shared expert's pairs (gate row, up row) and one of the other slots' pairs. Its rows
/// are all gate rows, then all up rows, each first those of the shared expert; warps share them evenly, in runs that
/// lie one behind the other in memory (the copy engine takes few large pieces much faster than many small ones), and
/// their products meet in shared memory.
__global__ void __launch_bounds__(kLeanThreads, 2) lean_gate_up_kernel(const __grid_constant__ LeanGateUpArgs a) {
    constexpr int S = kHidden / 1024, kGroups = kHidden / 32, kWarpBytes = kWarpRows * (kRowBytes + kHeaderBytes);
    extern __shared__ uint4 dynamic[];
    __shared__ alignas(16) char staged[staged_bytes(kHidden)];
    __shared__ float partial[kWarps], results[kLeanWarps * kWarpRows];
    __shared__ LeanRoute route;
    __shared__ uint64_t barriers[kLeanWarps];
    const int t = threadIdx.x, lane = t % 32, warp = t / 32, b = blockIdx.x, parts = gridDim.x;
    const int pairs = a.route.top_k * kFf, shared_first = part_of(kFf, b, parts), first = part_of(pairs, b, parts);
    const int shared_count = part_of(kFf, b + 1, parts) - shared_first;
    const int total = shared_count + part_of(pairs, b + 1, parts) - first;
    const int begin = part_of(2 * total, warp, kLeanWarps), count = part_of(2 * total, warp + 1, kLeanWarps) - begin;
    char* nibbles = reinterpret_cast<char*>(dynamic) + warp * kWarpBytes;
    char* headers = nibbles + kWarpRows * kRowBytes;
    // Lane g below `count` knows row g: its matrix, its slot (-1: shared) and its place there. The first lane of a run
    // copies it.
    const int i = begin + lane, up = i >= total ? 1 : 0, pair = i - up * total;
    const bool shared = pair < shared_count;
    const int at = first + pair - shared_count, slot = shared ? -1 : at / kFf;
    const int row = shared ? shared_first + pair : at % kFf;
    const bool starts = lane < count && (lane == 0 || pair == 0 || pair == shared_count || row == 0);
    const uint32_t others = __ballot_sync(~0u, starts) >> lane >> 1;  // starts behind this lane
    const int run = min(others == 0 ? 32 : __ffs(static_cast<int>(others)), count - lane);
    const LeanFetch fetch{&barriers[warp]};
    const auto copy_run = [&](const LeanPlanes& m, int64_t offset) {
        fetch.copy(nibbles + lane * kRowBytes, m.data + offset + row * kRowBytes, run * kRowBytes);
        fetch.copy(headers + lane * kHeaderBytes, m.scales + offset + row * kHeaderBytes, run * kHeaderBytes);
    };
    fetch.begin(lane == 0, count * (kRowBytes + kHeaderBytes));
    if (starts && shared) copy_run(a.m[2 + up], 0);
    __syncwarp();
    float norm[8], bias = 0.0f;
    if (t < kThreads) bias = lean_bias(a.route);
    else lean_weights8(a.norm, t - kThreads, norm);
    pdl_wait();
    const bool chooses = t < kThreads;
    LeanNormRow x;
    if (chooses) lean_rank_own(a.route, load_shared_f32(a.logits + t), bias, route);
    else x.load(a.x, t - kThreads, partial);
    __syncthreads();
    if (chooses) lean_rank_best(a.route, route);
    else x.stage(norm, a.eps, t - kThreads, partial, staged);
    __syncthreads();
    // Now: see the top of the file.
    if (b == 0 && t < a.route.top_k) post_id(a.route.chosen + t, route.chosen[t]);
    pdl_trigger();
    if (starts && !shared) copy_run(a.m[up], route.chosen[slot] * a.stride);
    if (b == 0 && t < a.route.top_k) a.route.weights[t] = lean_weight(a.route, route);
    __syncwarp();
    fetch.wait();
    const LeanAux<false> aux{headers, kGroups, kWarpRows};
    float2 by[kWarpRows][S];
    lean_row_scales<false, S, kWarpRows>(aux, lane, by);
    float acc[kWarpRows];
    lean_dot_shared<false, S, kWarpRows>(nibbles, aux, by, staged, lane, acc);
    lean_reduce<kWarpRows>(acc, lane, [&](int g, float sum) {
        if (g < count) results[begin + g] = sum;
    });
    __syncthreads();
    if (t < total)
        a.out[t < shared_count ? pairs + shared_first + t : first + t - shared_count] =
            swiglu_value(results[t], results[total + t]);
}

// ---- Down.

struct LeanDownArgs {
    LeanPlanes routed, shared;
    int64_t stride;
    const int32_t* experts;
    const float* weights;
    int32_t top_k;
    const float* act;  // [slots, ff]
    int32_t rows;
    float* y;
    float* residual;  // null: none
};

/// As plane_down_kernel: an output a warp, a slot for each half of it, ten slots at once.
template <bool Q6>
__global__ void __launch_bounds__(kLeanThreads, 2) lean_down_kernel(const __grid_constant__ LeanDownArgs a) {
    constexpr ActLayout l = lean_layout(kSlots * kFf);
    constexpr int kGroups = kFf / 32, kPasses = (kSlots + 1) / 2,
                  kAuxBytes = (LeanAux<Q6>::row_bytes(kGroups) + 15) / 16 * 16;
    __shared__ alignas(16) char staged[staged_bytes(kSlots * kFf)];
    __shared__ alignas(16) char planes[kLeanWarps][2 * kPasses][kAuxBytes];
    __shared__ float terms[kLeanWarps][2 * kPasses];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, half = lane / 16, j = lane % 16;
    const int o = blockIdx.x * kLeanWarps + warp, slots = a.top_k + 1;
    const int mine = lane < a.top_k ? await_id(a.experts + lane) : 0;
    __syncwarp();
    uint4 raw[kPasses];
    uint32_t d[kPasses];
#pragma unroll
    for (int b = 0; b < kPasses; ++b) {
        const int slot = 2 * b + half;
        const int expert = __shfl_sync(~0u, mine, min(slot, a.top_k - 1));
        raw[b] = make_uint4(0, 0, 0, 0);
        d[b] = 0;
        if (slot >= slots) continue;
        LeanPlanes m = slot < a.top_k ? a.routed : a.shared;
        if (slot < a.top_k) {
            const int64_t offset = expert * a.stride;
            m.data += offset, m.scales += offset;
            if constexpr (Q6) m.high += offset, m.d += offset;
        }
        const int first = o * kGroups;
        raw[b] = load_weights_once(m.data + (first + j) * 16);
        const LeanAux<Q6> aux{planes[warp][slot], kGroups, 1};
        if (j < kGroups / 8) copy_async16_once(aux.scales() + 16 * j, m.scales + 2 * first + 16 * j);
        if constexpr (Q6) {
            if (j < kGroups / 2) copy_async16_once(aux.high() + 16 * j, m.high + 8 * first + 16 * j);
            d[b] = load_weight32(m.d + first / 4);
        }
    }
    pdl_trigger();  // now: the next kernel's weights queue up behind these
    const float old =
        a.residual != nullptr && lane == 0 ? load_shared_f32(a.residual + o) : 0.0f;  // older than gate_up
    copy_async_wait();
    __syncwarp();
    // While gate and up are being computed: everything that needs the weights alone.
    const KShifts at(lane);
    float2 by[kPasses];
#pragma unroll
    for (int b = 0; b < kPasses; ++b) {
        const LeanAux<Q6> aux{planes[warp][min(2 * b + half, slots - 1)], kGroups, 1};
        if constexpr (Q6) {
            if (j == 0 && 2 * b + half < slots) *reinterpret_cast<uint32_t*>(aux.d()) = d[b];
            __syncwarp();
        }
        by[b] = lean_scales<Q6>(aux, j, at);
    }
    pdl_wait();
    const float weight = lane < a.top_k ? a.weights[lane] : 0.0f;
    lean_stage_floats<kSlots * kFf / 8>(a.act, l, staged, slots * kFf / 8);
    __syncthreads();
    float acc[kPasses];
#pragma unroll
    for (int b = 0; b < kPasses; ++b) {
        const int slot = min(2 * b + half, slots - 1);
        const KActs x = k_acts<Q6>(staged, l.groups, slot * kGroups + j);
        const LeanAux<Q6> aux{planes[warp][slot], kGroups, 1};
        acc[b] = lean_dot<Q6>(raw[b], aux, j, x, by[b], 0.0f);
    }
    lean_reduce<kPasses, 16>(acc, lane, [&](int b, float sum) { terms[warp][2 * b + half] = sum; });
    __syncwarp();
    float term = lane < slots ? terms[warp][lane] : 0.0f;
    if (lane < a.top_k) term = __fmul_rn(weight, term);
    float y = __shfl_sync(~0u, term, 0);
    for (int slot = 1; slot < slots; ++slot) y = __fadd_rn(y, __shfl_sync(~0u, term, slot));
    if (lane != 0) return;
    a.y[o] = y;
    if (a.residual != nullptr) a.residual[o] = __fadd_rn(old, y);
}

// ---- Launching.

/// From expert to expert, the same in every plane; 0 if they do not lie so.
int64_t expert_stride(const std::vector<Weight>& experts) {
    if (experts.size() < 2) return 0;
    return static_cast<const char*>(experts[1].data) - static_cast<const char*>(experts[0].data);
}

bool all_lean(std::span<const Weight* const> weights, DType type, int64_t rows, int64_t cols) {
    return std::all_of(weights.begin(), weights.end(), [&](const Weight* w) {
        return w->dtype == type && lean_type(*w) && w->rows == rows && w->cols == cols;
    });
}

}  // namespace

bool lean_moe(Context& ctx, const Tensor& x, const Norm& norm, const Router& router, const ExpertWeights& weights,
              const SharedExpert& shared, MoeResult& result, float* residual) {
    if (shared.gate == nullptr || norm.weight.empty() || x.shape[1] != kHidden || router.w->dtype != DType::bf16 ||
        router.w->rows != kExperts || router.w->row_bytes != 2 * kHidden || router.w->scale != 1.0f ||
        router.top_k > kMostChosen || weights.gate.size() != kExperts)
        return false;
    const Weight* const ups[] = {&weights.gate[0], &weights.up[0], shared.gate, shared.up};
    const Weight* const downs[] = {&weights.down[0], shared.down};
    const int64_t out = weights.down[0].rows, stride = expert_stride(weights.gate);
    if (!all_lean(ups, DType::planes_q4_k, kFf, kHidden) || !all_lean(downs, downs[0]->dtype, out, kFf) ||
        out % kLeanWarps != 0 || expert_stride(weights.up) != stride)
        return false;
    constexpr int kShared = std::max(kLeanLarge, kLeanWarps * kWarpRows * (kRowBytes + kHeaderBytes));
    if (ctx.gpu->info().shared_bytes < kShared + kStatic) return false;
    const ArenaScope scope(*ctx.arena);
    LeanRouterArgs r = {};
    r.router = static_cast<const char*>(router.w->data);
    r.x = x.row(0);
    r.norm = norm.weight.data();
    r.eps = norm.eps;
    r.logits = result.logits.row(0);
    r.chosen = result.routing.experts.row<int32_t>(0);
    r.top_k = static_cast<int32_t>(router.top_k);
    allow_shared(reinterpret_cast<const void*>(lean_router_kernel), kLeanSmall);
    launch(*ctx.gpu, lean_router_kernel, kExperts / 2, kThreads, kLeanSmall, r);

    LeanGateUpArgs a = {};
    for (size_t i = 0; i < 4; ++i) a.m[i] = planes_of(*ups[i]);
    a.stride = stride;
    a.route = {router.bias.empty() ? nullptr : router.bias.data(),
               kExperts,
               static_cast<int32_t>(router.top_k),
               router.scale,
               router.normalize,
               result.routing.experts.row<int32_t>(0),
               result.routing.weights.row(0)};
    a.logits = r.logits;
    a.x = r.x;
    a.norm = r.norm;
    a.eps = r.eps;
    a.out = static_cast<float*>(ctx.arena->allocate(kSlots * kFf * int64_t{sizeof(float)}));
    int ctas = ctx.gpu->info().sm_count;  // or more: no warp has more than kWarpRows rows
    while (2 * ((kFf - 1) / ctas + (kFf * a.route.top_k - 1) / ctas + 2) > kLeanWarps * kWarpRows) ++ctas;
    allow_shared(reinterpret_cast<const void*>(lean_gate_up_kernel), kShared);
    launch(*ctx.gpu, lean_gate_up_kernel, dim3(static_cast<unsigned>(ctas)), kLeanThreads, kShared, a);

    LeanDownArgs d = {};
    d.routed = planes_of(weights.down[0]);
    d.shared = planes_of(*shared.down);
    d.stride = expert_stride(weights.down);
    d.experts = a.route.chosen;
    d.weights = a.route.weights;
    d.top_k = a.route.top_k;
    d.act = a.out;
    d.rows = static_cast<int32_t>(out);
    d.y = result.y.row(0);
    d.residual = residual;
    const auto kernel = downs[0]->dtype == DType::planes_q6_k ? lean_down_kernel<true> : lean_down_kernel<false>;
    allow_shared(reinterpret_cast<const void*>(kernel), kLeanSmall);
    launch(*ctx.gpu, kernel, dim3(static_cast<unsigned>(out / kLeanWarps)), kLeanThreads, kLeanSmall, d);
    return true;
}

}  // namespace riptide::ops::cuda::decode
