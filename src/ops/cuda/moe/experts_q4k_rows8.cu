// A sparse layer of 2 to 8 rows that choose their experts here: Q4_K gate and up of 512 x 2048, Q4_K or Q6_K down.
// experts_grouped_sm80.cu takes more rows, other types and routing that is given, with the same bits.
//
// Bytes: 1.18 MB of gate and up and 0.59 of down (Q6_K: 0.86) for each distinct expert: of rows that choose at random
// 16 at 2 rows, 30 at 4, 57 at 8, 102 at 16, and the shared one: floors 7.2, 13.3, 23.9 and 40.7 us.
// Measured (H200, 2026-11-22, bench_gpu_ops --table, with norm and router; before, experts_grouped_sm80.cu): 19.7 us at
// 2 rows (25.6), 28.2 at 4 (35.1), 41.8 at 8 (47.6), 63.2 at 16 (70.1). A verification of 16 drafts is slower all the
// same (4.05 and 3.97 ms), so 9 to 16 rows, which these kernels can take, stay with experts_grouped_sm80.cu. Behind
// fused_router() two kernels; a group is an expert and up to four of the rows that chose it:
//   experts_q4k_rows8_gate_up_kernel  chooses the experts and lists the groups, for the next kernel too. 32 pairs (gate
//   row, up row)
//                       of a group are a unit, a warp has two of them; CTA b has units b, b + CTAs, ..., and four pairs
//                       of the shared expert, fetched before the router has ended. Leaves silu(gate) * up, quantised.
//   experts_q4k_rows8_down_kernel     a CTA has 16 outputs of all groups, half of them a warp at a time, and adds up
//   each row's slots
//                       itself, in order of rank: nothing is combined afterwards.
// A warp fetches for itself, a task or two ahead, into shared memory that nobody else touches: no barriers in the
// loops. Everything is dp4a: most groups have one row, for which it takes a third of what tensor cores need.
// Where 8 rows go (globaltimer, every CTA): router 4.7 to 6.1 us from the layer before; keys, choice and list 2.7; the
// first weights 3 later; gate and up 14; 1.5 until down has its rows; down 9.6; 0.6. What was tried: units in one piece
// for each CTA, all of a group of many rows in the same: the last CTA 6 us (16 rows: 12) behind the mean; tasks of one
// pair and both kernels side by side on a multiprocessor: 52 to 65 us at 8 rows, 83 to 90 at 16 (down's copies come
// before those that gate and up wait for), three such tasks a warp 4 % faster at 2 rows, 15 % slower at 16; four
// outputs a task of down: slower. Copies with an L2 cache hint are an illegal instruction here: ptxas 13.0 takes some
// of their descriptors from registers that nobody set.
#include "ops/cuda/moe/experts_q4k_rows8.h"

#include <algorithm>

#include "ops/cuda/moe/experts_q4k_rows8.cuh"

namespace riptide::ops::cuda::decode {

namespace {

using namespace few;

// ---- Gate and up.

/// What the kernels of a layer leave for one another.
struct Rows8Middle {
    char* act;      // [n, kRowSlots] staged rows of kFf columns
    float* shared;  // [n, kFf]: of the shared expert
};

struct Rows8GateUpArgs {
    Rows8Args f;
    Rows8Planes gate, up;
    TilePlanes shared_gate, shared_up;
    const char* x;  // staged rows, kHiddenBytes each
    int32_t units;  // the most that a CTA has
    Rows8Middle middle;
};

constexpr int kPairs = 2, kUpRoom = 2;  // a task is kPairs pairs; a warp has room for kUpRoom of them
constexpr int kUpTaskBytes = kPairs * 2 * (kHidden / 2 + kHidden / 16);
constexpr int kUpRowBytes = kHiddenBytes - 4 * (kHidden / 32);  // of a row of x, without what Q6_K needs
constexpr int kUnitBytes = kMembers * 32 * 4;

/// Rows of a task (kPairs of gate, as many of up: nibbles, then headers) times P rows of x: of V = 2 kPairs P products
/// lane 32 / V * i has that of weight row i / P and row i % P of x.
template <int P>
__device__ __forceinline__ float few_pairs(const char* task, const char* const (&x)[P], int lane) {
    constexpr int kRows = 2 * kPairs;
    const KShifts at(lane);
    float v[kRows * P] = {};
#pragma unroll 1
    for (int s = 0; s < kHidden / 1024; ++s) {
        const int j = 32 * s + lane;
        KActs acts[P];
#pragma unroll
        for (int p = 0; p < P; ++p) acts[p] = k_acts<false>(x[p], kHidden / 32, j);
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
            const uint4 q = *reinterpret_cast<const uint4*>(task + r * (kHidden / 2) + 16 * j);
            const uint4 header =
                *reinterpret_cast<const uint4*>(task + kRows * (kHidden / 2) + r * (kHidden / 16) + j / 8 * 16);
            const float2 by = q4_scales<true>(header, at);
#pragma unroll
            for (int p = 0; p < P; ++p)
                v[r * P + p] = fmaf(k_value<false>(q, {}, acts[p], by), acts[p].d, v[r * P + p]);
        }
    }
    return reduce_lanes<kRows * P>(v, lane);
}

__global__ void __launch_bounds__(kRow1Threads, 2)
    experts_q4k_rows8_gate_up_kernel(const __grid_constant__ Rows8GateUpArgs a) {
    extern __shared__ uint4 dynamic[];
    __shared__ Rows8Groups groups;
    constexpr int kSharedTasks = 4 / kPairs, kSharedParts = kRow1Warps / kSharedTasks;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, n = a.f.n;
    char* const x = reinterpret_cast<char*>(dynamic);
    auto* const results = reinterpret_cast<float*>(x + n * kUpRowBytes);  // [unit][member][32]
    char* const tasks = x + n * kUpRowBytes + a.units * kUnitBytes + warp * kUpRoom * kUpTaskBytes;
    rows8_clear(groups);
    // Rows of gate and of up from row f on, to slot s.
    const auto fetch = [&](const TilePlanes& gate, const TilePlanes& up, int f, int s) {
        char* const to = tasks + s * kUpTaskBytes;
        rows8_copy<2 * kPairs>(to, gate.data + f * (kHidden / 2), lane);
        rows8_copy<2 * kPairs>(to + kPairs * (kHidden / 2), up.data + f * (kHidden / 2), lane);
        constexpr int kHeaders = kPairs * (kHidden / 16);
        const char* const headers = lane < kHeaders / 16 ? gate.scales : up.scales - kHeaders;
        if (lane < 2 * kHeaders / 16)
            copy_async16(to + kPairs * kHidden + 16 * lane, headers + f * (kHidden / 16) + 16 * lane);
    };
    // Task 0: of the shared expert, with every kSharedParts-th row.
    const int shared_f = 4 * static_cast<int>(blockIdx.x) + kPairs * (warp % kSharedTasks),
              shared_row = warp / kSharedTasks;
    const bool shared = a.f.shared != 0 && blockIdx.x < kLeastCtas && shared_row < n;
    if (shared) fetch(a.shared_gate, a.shared_up, shared_f, 0);
    commit_copies();
    __syncthreads();
    pdl_wait();
    pdl_trigger();  // now: the next kernel may read above its wait what is older than this kernel
#pragma unroll 1
    for (int i = threadIdx.x; i < n * (kUpRowBytes / 16); i += kRow1Threads) {
        const int row = i / (kUpRowBytes / 16), c = i % (kUpRowBytes / 16);
        copy_async16(x + 16 * i, a.x + row * kHiddenBytes + 16 * c);
    }
    const int chosen = rows8_choose(a.f, groups, warp, lane);
    __syncthreads();
    const int all = rows8_list(a.f, groups, warp, lane);
    const int ctas = gridDim.x, count = (all * kTiles - static_cast<int>(blockIdx.x) + ctas - 1) / ctas;
    copy_async_wait();
    __syncthreads();
    if (blockIdx.x == 0 && threadIdx.x < kMostGroups) {
        const Rows8Group group = groups.list[threadIdx.x];
        const bool there = static_cast<int>(threadIdx.x) < all;
        post_group(a.f.listed + threadIdx.x, there ? group.expert | static_cast<uint64_t>(group.members) << 32 : 0);
    }
    __syncwarp();
    // Unit u of this CTA: 32 pairs of a group. Neighbours have other CTAs: those of a group of many rows take longest.
    const auto unit_of = [&](int u) { return static_cast<int>(blockIdx.x) + u * ctas; };
    const auto group_of = [&](int u) { return groups.list[unit_of(u) / kTiles]; };
    const auto tile_of = [&](int u) { return unit_of(u) % kTiles; };
    const auto fetch_task = [&](int k) {  // of unit k - 1
        if (k <= count) {
            const int e = group_of(k - 1).id();
            fetch(a.gate.of(e), a.up.of(e), 32 * tile_of(k - 1) + kPairs * warp, k % kUpRoom);
        }
        commit_copies();
    };
#pragma unroll
    for (int k = 1; k < kUpRoom; ++k) fetch_task(k);
    if (static_cast<int>(blockIdx.x) == warp && warp < n) {
        const float weight = rows8_weight(a.f, warp, chosen, lane);
        if (lane < a.f.route.top_k) {
            const int at = warp * a.f.route.top_k + lane;
            a.f.route.chosen[at] = chosen;
            a.f.route.weights[at] = weight;
        }
        __syncwarp();
    }
#pragma unroll 1
    for (int k = 0; k <= count; ++k) {
        rows8_wait<kUpRoom - 1>();
        const char* const task = tasks + k % kUpRoom * kUpTaskBytes;
        Rows8Group group{0, kRowSlots * (0x01010101u * shared_row + kSharedParts * 0x03020100u)};
        if (k > 0) group = group_of(k - 1);
        const int rows = k > 0 ? group.count() : !shared ? 0 : (n - shared_row + kSharedParts - 1) / kSharedParts;
#pragma unroll 1
        for (int p0 = 0; p0 < rows; p0 += 2) {
            const auto row = [&](int p) { return group.place(p) / kRowSlots; };
            const char *const x0 = x + row(p0) * kUpRowBytes, *const x1 = x + row(p0 + 1) * kUpRowBytes;
            const bool two = p0 + 1 < rows;
            const float sum = two ? few_pairs<2>(task, {x0, x1}, lane) : few_pairs<1>(task, {x0}, lane);
            const float up = __shfl_xor_sync(~0u, sum, 16);
            constexpr int kLanes = 16 / kPairs;  // for each row of gate
            const int f = lane / kLanes, p = p0 + (two ? lane / (kLanes / 2) % 2 : 0);
            if (lane >= 16 || lane % (two ? kLanes / 2 : kLanes) != 0) continue;
            const float v = swiglu_value(sum, up);
            if (k > 0) results[((k - 1) * kMembers + p) * 32 + kPairs * warp + f] = v;
            else a.middle.shared[row(p) * kFf + shared_f + f] = v;
        }
        __syncwarp();
        fetch_task(k + kUpRoom);
    }
    __syncthreads();
#pragma unroll 1
    for (int i = warp; i < count * kMembers; i += kRow1Warps) {
        const Rows8Group group = group_of(i / kMembers);
        if (i % kMembers < group.count())
            put_group<kTiles>(a.middle.act + group.place(i % kMembers) * kFfBytes, tile_of(i / kMembers),
                              results[i * 32 + lane]);
    }
}

// ---- Down.

struct Rows8DownArgs {
    Rows8Args f;
    Rows8Planes routed;
    TilePlanes shared;
    Rows8Middle middle;
    int32_t rows;
    float* y;         // [n, rows]
    float* residual;  // null: none
};

constexpr int kOutputs = 16, kMostSlots = kRowSlots + 1;

/// Bytes of a task of `Outputs` outputs, and of a row of activations.
template <bool Q6>
constexpr int rows8_down_bytes(int outputs) {
    return outputs * (kFf / 2 + Row1Aux<Q6>::row_bytes(kTiles));
}
template <bool Q6>
constexpr int kDownRowBytes = Q6 ? kFfBytes : kFfBytes - 4 * kTiles;

/// `Outputs` outputs of an expert times P staged rows: of V = P Outputs / 2, lane 16 h + 16 / V * i has the product of
/// output 2 (i / P) + h and row i % P.
template <bool Q6, int Outputs, int P>
__device__ __forceinline__ float rows8_outputs(char* task, const char* const (&x)[P], int lane) {
    const KShifts at(lane);
    const Row1Aux<Q6> aux{task + Outputs * (kFf / 2), kTiles, Outputs};
    const int j = lane % 16;
    KActs acts[P];
#pragma unroll
    for (int p = 0; p < P; ++p) acts[p] = k_acts<Q6>(x[p], kTiles, j);
    float v[Outputs / 2 * P];
#pragma unroll
    for (int i = 0; i < Outputs / 2; ++i) {
        const int index = (2 * i + lane / 16) * kTiles + j;
        const uint4 q = *reinterpret_cast<const uint4*>(task + 16 * index);
        const float2 by = row1_scales<Q6>(aux, index, at);
#pragma unroll
        for (int p = 0; p < P; ++p) v[i * P + p] = row1_dot<Q6>(q, aux, index, acts[p], by, 0.0f);
    }
    return reduce_lanes<Outputs / 2 * P, 16>(v, lane);
}

/// A task is `Outputs` outputs of a group; a warp has room for S of them.
template <bool Q6, int Outputs, int S>
__global__ void __launch_bounds__(kRow1Threads, 2)
    experts_q4k_rows8_down_kernel(const __grid_constant__ Rows8DownArgs a) {
    extern __shared__ uint4 dynamic[];
    __shared__ Rows8Group list[kMostGroups];
    __shared__ float weights[kMostRows * kRowSlots];
    constexpr int kBytes = rows8_down_bytes<Q6>(Outputs), kRowBytes = kDownRowBytes<Q6>, kParts = kOutputs / Outputs;
    constexpr uint32_t kSharedOnes = 0xFFFF;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, n = a.f.n, t = threadIdx.x;
    char* const staged = reinterpret_cast<char*>(dynamic);  // n * kRowSlots rows, and those of the shared expert
    auto* const terms = reinterpret_cast<float*>(staged + n * kMostSlots * kRowBytes);  // [n][kMostSlots][kOutputs]
    char* const tasks = reinterpret_cast<char*>(terms + n * kMostSlots * kOutputs) + warp * S * kBytes;
    const uint64_t listed = t < kMostGroups ? await_group(a.f.listed + t) : 0;
    if (t < kMostGroups) list[t] = {static_cast<uint32_t>(listed), static_cast<uint32_t>(listed >> 32)};
    const int shared = a.f.shared != 0 ? (n + kMembers - 1) / kMembers : 0;  // groups of it, which come first
    const int all = kParts * (shared + __syncthreads_count(listed != 0));
    const auto group_of = [&](int task) {
        const int i = task / kParts, first = kMembers * i;
        if (i >= shared) return list[i - shared];
        const uint32_t ones = 0x03020100u + static_cast<uint32_t>(first) * 0x01010101u;  // rows
        return Rows8Group{kSharedOnes | static_cast<uint32_t>(min(kMembers, n - first)) << 16, ones};
    };
    const auto fetch_task = [&](int k) {
        const int task = warp + k * kRow1Warps, o = kOutputs * static_cast<int>(blockIdx.x) + task % kParts * Outputs;
        if (task < all) {
            const Rows8Group group = group_of(task);
            const TilePlanes m = group.id() == kSharedOnes ? a.shared : a.routed.of(group.id());
            char* const to = tasks + k % S * kBytes;
            const Row1Aux<Q6> aux{to + Outputs * (kFf / 2), kTiles, Outputs};
            rows8_copy<Outputs / 2>(to, m.data + o * (kFf / 2), lane);
            if constexpr (Q6) rows8_copy<Outputs / 4>(aux.high(), m.high + o * (kFf / 4), lane);
            if (lane < 2 * Outputs) copy_async16(aux.scales() + 16 * lane, m.scales + o * (kFf / 16) + 16 * lane);
            else if (const int c = lane - 2 * Outputs; Q6 && c < Outputs / 4)
                copy_async16(aux.d() + 16 * c, m.d + o * (kFf / 128) + 16 * c);
        }
        commit_copies();
    };
#pragma unroll
    for (int k = 0; k < S; ++k) fetch_task(k);
    pdl_trigger();
    const int row = t / kOutputs, out = row * a.rows + kOutputs * static_cast<int>(blockIdx.x) + t % kOutputs;
    const float old =
        row < n && a.residual != nullptr ? load_shared_f32(a.residual + out) : 0.0f;  // older than gate_up
    pdl_wait();
#pragma unroll 1
    for (int i = t; i < n * kRowSlots * (kRowBytes / 16); i += kRow1Threads)
        copy_async16(staged + 16 * i, a.middle.act + i / (kRowBytes / 16) * kFfBytes + i % (kRowBytes / 16) * 16);
    if (t < n * kRowSlots && t % kRowSlots < a.f.route.top_k)
        weights[t] = load_shared_f32(a.f.route.weights + t / kRowSlots * a.f.route.top_k + t % kRowSlots);
    if (a.f.shared != 0) {
#pragma unroll 1
        for (int c = t; c < n * (kFf / 8); c += kRow1Threads) {
            float v[8];
            row1_load8(a.middle.shared, c, v);
            rows8_put8<Q6>(staged + (n * kRowSlots + c / (kFf / 8)) * kRowBytes, c % (kFf / 8), v);
        }
    }
    copy_async_wait();
    __syncthreads();
#pragma unroll 1
    for (int k = 0; warp + k * kRow1Warps < all; ++k) {
        rows8_wait<S - 1>();
        const int task = warp + k * kRow1Warps;
        const Rows8Group group = group_of(task);
        const bool routed = group.id() != kSharedOnes;
        char* const from = tasks + k % S * kBytes;
#pragma unroll 1
        for (int p0 = 0; p0 < group.count(); p0 += 2) {
            const auto at = [&](int p) { return staged + (group.place(p) + (routed ? 0 : n * kRowSlots)) * kRowBytes; };
            const bool two = p0 + 1 < group.count();
            const float sum = two ? rows8_outputs<Q6, Outputs, 2>(from, {at(p0), at(p0 + 1)}, lane)
                                  : rows8_outputs<Q6, Outputs, 1>(from, {at(p0)}, lane);
            constexpr int kLanes = 32 / Outputs;  // that have the same sum of one row
            const int i = lane % 16 / (two ? kLanes / 2 : kLanes);
            const int o = task % kParts * Outputs + 2 * (two ? i / 2 : i) + lane / 16;
            const int place = group.place(two ? p0 + i % 2 : p0);
            if (lane % (two ? kLanes / 2 : kLanes) != 0) continue;
            const int term =
                routed ? place / kRowSlots * kMostSlots + place % kRowSlots : place * kMostSlots + kRowSlots;
            terms[term * kOutputs + o] = routed ? __fmul_rn(weights[place], sum) : sum;
        }
        __syncwarp();
        fetch_task(k + S);
    }
    __syncthreads();
    if (row >= n) return;
    const float* const mine = terms + row * kMostSlots * kOutputs + t % kOutputs;
    float y = mine[0];
#pragma unroll 1
    for (int slot = 1; slot < a.f.route.top_k; ++slot) y = __fadd_rn(y, mine[slot * kOutputs]);
    if (a.f.shared != 0) y = __fadd_rn(y, mine[kRowSlots * kOutputs]);
    a.y[out] = y;
    if (a.residual != nullptr) a.residual[out] = __fadd_rn(old, y);
}

// ---- Launching.

Rows8Planes rows8_planes(const Matrix& m) { return {tile_planes(m), m.data_stride, m.high_stride, m.scale_stride}; }

static_assert(kUpTaskBytes == 4 * (kHidden / 2 + kHidden / 16) && kUpRowBytes == 40 * (kHidden / 32) &&
              kUnitBytes == 512 && kUpRoom == 2 && kOutputs == 16);  // fit_rows8() counts with the same

}  // namespace

void experts_q4k_rows8(Context& ctx, const Layer& layer, const ActSource& x, int64_t n, const ChooseHere& choose,
                       Tensor& y, Tensor* residual) {
    RT_ASSERT(x.kind == ActKind::staged && x.stride == kHiddenBytes);
    const Matrix& down = layer.down;
    const bool q6 = down.type == DType::planes_q6_k;
    const auto fit = fit_rows8(chip_of(*ctx.gpu), n, layer.top_k, q6);
    RT_ASSERT(fit);
    Rows8GateUpArgs a = {};
    a.f.keys = choose.keys;
    a.f.logits = choose.logits;
    a.f.listed = choose.listed;
    a.f.route = *choose.route;
    a.f.n = static_cast<int32_t>(n);
    a.f.shared = layer.shared ? 1 : 0;
    a.gate = rows8_planes(layer.gate);
    a.up = rows8_planes(layer.up);
    if (layer.shared) a.shared_gate = tile_planes(layer.shared_gate), a.shared_up = tile_planes(layer.shared_up);
    a.x = x.rows;
    a.middle.act = static_cast<char*>(ctx.arena->allocate(n * kRowSlots * kFfBytes));
    a.middle.shared = static_cast<float*>(ctx.arena->allocate(n * kFf * int64_t{sizeof(float)}));
    const auto start = [&](auto kernel, int64_t ctas, int64_t shared, const auto& args) {
        allow_shared(reinterpret_cast<const void*>(kernel), shared);
        launch(*ctx.gpu, kernel, dim3(static_cast<unsigned>(ctas)), kRow1Threads, static_cast<size_t>(shared), args);
    };
    a.units = static_cast<int32_t>(fit->units);
    start(experts_q4k_rows8_gate_up_kernel, fit->up_ctas, fit->up_shared, a);

    Rows8DownArgs d = {};
    d.f = a.f;
    d.routed = rows8_planes(down);
    if (layer.shared) d.shared = tile_planes(layer.shared_down);
    d.middle = a.middle;
    d.rows = down.rows;
    d.y = y.row(0);
    d.residual = residual == nullptr ? nullptr : residual->row(0);
    const auto kernel = q6 ? (fit->down_tasks == 3 ? experts_q4k_rows8_down_kernel<true, 8, 3>
                                                   : experts_q4k_rows8_down_kernel<true, 8, 2>)
                           : (fit->down_tasks == 3 ? experts_q4k_rows8_down_kernel<false, 8, 3>
                                                   : experts_q4k_rows8_down_kernel<false, 8, 2>);
    start(kernel, down.rows / kOutputs, fit->down_shared, d);
}

}  // namespace riptide::ops::cuda::decode
