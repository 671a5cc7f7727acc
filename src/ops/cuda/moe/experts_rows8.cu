// A sparse layer of up to 8 rows that choose their experts here: gate and up of 512 x 2048, down, all in planes.
// Kernels of their own for Q4_K_M, and ones that ask each matrix for its format (RowFormat). experts_grouped_sm80.cu
// takes more rows of K-quants and routing that is given, with the same bits; more rows of other types come here by
// eights.
//
// Bytes: 1.18 MB of gate and up and 0.59 of down (Q6_K: 0.86) for each distinct expert: of rows that choose at random
// 16 at 2 rows, 30 at 4, 57 at 8, 102 at 16, and the shared one: floors 7.2, 13.3, 23.9 and 40.7 us.
// Measured (H200, 2026-11-22, bench_gpu_ops --table, with norm and router; before, experts_grouped_sm80.cu): 19.7 us at
// 2 rows (25.6), 28.2 at 4 (35.1), 41.8 at 8 (47.6), 63.2 at 16 (70.1). A verification of 16 drafts is slower all the
// same (4.05 and 3.97 ms), so 9 to 16 rows, which these kernels can take, stay with experts_grouped_sm80.cu. Behind
// fused_router(), or (2 to 4 rows of Q4_K_M) behind a product that left the router's words, two kernels; a group is an
// expert and up to four of the rows that chose it:
//   experts_rows8_gate_up_kernel  chooses the experts and lists the groups, for the next kernel too. 32 pairs (gate
//   row,
//                       up row) of a group are a unit, a warp has two of them (or one at a time, where rows are long);
//                       CTA b has units b, b + CTAs, ..., and four pairs of the shared expert, fetched before the
//                       router has ended. Leaves silu(gate) * up, quantised. With words it makes its keys of them,
//                       and normalises the rows itself while the first weights are on their way.
//   experts_rows8_down_kernel     a CTA has 16 outputs of all groups, half of them a warp at a time, and adds up each
//                       row's slots itself, in order of rank: nothing is combined afterwards. Zeroes the words.
// A warp fetches for itself, a task or two ahead, into shared memory that nobody else touches: no barriers in the
// loops. Everything is dp4a: most groups have one row, for which it takes a third of what tensor cores need.
// Where 8 rows go (globaltimer, every CTA): router 4.7 to 6.1 us from the layer before; keys, choice and list 2.7; the
// first weights 3 later; gate and up 14; 1.5 until down has its rows; down 9.6; 0.6. What was tried: units in one piece
// for each CTA, all of a group of many rows in the same: the last CTA 6 us (16 rows: 12) behind the mean; tasks of one
// pair and both kernels side by side on a multiprocessor: 52 to 65 us at 8 rows, 83 to 90 at 16 (down's copies come
// before those that gate and up wait for), three such tasks a warp 4 % faster at 2 rows, 15 % slower at 16; four
// outputs a task of down: slower; with words tasks of one pair, so that CTAs fit beside those of o: 2 rows 1,614 us a
// step, not 1,438. Copies with an L2 cache hint are an illegal instruction here: ptxas 13.0 takes some of their
// descriptors from registers that nobody set.
#include "ops/cuda/moe/experts_rows8.h"

#include <algorithm>
#include <type_traits>

#include "ops/cuda/moe/experts_rows8.cuh"

namespace riptide::ops::cuda::decode {

namespace {

using namespace few;

// ---- Gate and up.

struct NoWords {
    __device__ __forceinline__ NoWords(const Rows8Args&, const float*) {}
};

/// What the kernels of a layer leave for one another.
struct Rows8Middle {
    char* act;      // [n, kRowSlots] staged rows of kFf columns
    float* shared;  // [n, kFf]: of the shared expert
};

struct Rows8GateUpArgs {
    Rows8Args f;
    RowPlanes gate, up, shared_gate, shared_up;  // of expert 0
    int64_t stride;                              // from expert to expert
    const char* x;                               // staged rows, kHiddenBytes each; Words: [n, kHidden] floats,
    const float* norm;                           // to be normalised
    float eps;
    int32_t units;       // the most that a CTA has
    int32_t task_bytes;  // AnyFormat: of the largest
    Rows8Middle middle;
};

constexpr int kUpRoom = 2;  // tasks that a warp has room for; a task is Pairs pairs
constexpr int kUnitBytes = kMembers * 32 * 4;

/// Rows of a task (Pairs of gate, as many of up) times P rows of x: of V = 2 Pairs P products lane 32 / V * i has that
/// of weight row i / P and row i % P of x.
template <class Formats, int Pairs, int P>
__device__ __forceinline__ float rows8_pairs(char* task, const RowPlanes& m, const char* const (&x)[P], int lane) {
    constexpr int kRows = 2 * Pairs, kGroups = kHidden / 32;
    const KShifts at(lane);
    float v[kRows * P] = {};
    Formats::with(m.format, [&](auto format) {
        const SharedRows<format.value> rows{task, kGroups, kRows};
#pragma unroll 1
        for (int s = 0; s < kHidden / 1024; ++s) {
            const int j = 32 * s + lane;
            KActs acts[P];
#pragma unroll
            for (int p = 0; p < P; ++p) acts[p] = row_acts<format.value>(x[p], kGroups, j);
#pragma unroll
            for (int r = 0; r < kRows; ++r) {
                const int index = r * kGroups + j;
                const auto by = rows.scales(index, at);
#pragma unroll
                for (int p = 0; p < P; ++p)
                    v[r * P + p] = fmaf(rows.value(index, acts[p], by, m.levels), acts[p].d, v[r * P + p]);
            }
        }
    });
    return reduce_lanes<kRows * P>(v, lane);
}

/// Words: rows are normalised here, and experts chosen by the words that the product before left.
template <class Formats, int Pairs, bool Words>
__global__ void __launch_bounds__(kRow1Threads, Words ? 1 : 2)
    experts_rows8_gate_up_kernel(const __grid_constant__ Rows8GateUpArgs a) {
    extern __shared__ uint4 dynamic[];
    __shared__ Rows8Groups groups;
    constexpr int kPairs = Pairs, kSharedTasks = 4 / kPairs, kSharedParts = kRow1Warps / kSharedTasks;
    constexpr int kUnitTasks = 32 / (kRow1Warps * kPairs);  // of a warp
    constexpr int kListedRows = Words ? (kMostWordRows + 3) / 4 * 4 : kMostRows;
    constexpr int kUpRowBytes = Formats::kHalves ? kHiddenBytes : kHiddenBytes - 4 * (kHidden / 32);
    const int task_bytes =
        Formats::kAhead ? 2 * kPairs * (kHidden / 256) * plane_bytes(Formats::kFormat).all() : a.task_bytes;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, n = a.f.n;
    char* const x = reinterpret_cast<char*>(dynamic);
    auto* const results = reinterpret_cast<float*>(x + n * kUpRowBytes);  // [unit][member][32]
    char* const tasks = x + n * kUpRowBytes + a.units * kUnitBytes + warp * kUpRoom * task_bytes;
    rows8_clear(groups);
    // Rows of gate and of up from row f on, `offset` bytes behind, to slot s.
    const auto fetch = [&](const RowPlanes& gate, const RowPlanes& up, int64_t offset, int f, int s) {
        Formats::with(gate.format, [&](auto format) {
            const SharedRows<format.value> rows{tasks + s * task_bytes, kHidden / 32, 2 * kPairs};
            rows.template planes<kHidden / 32>([&](auto plane, auto row_bytes) {
                constexpr int kRow = row_bytes.value;
                rows8_copy_two<kPairs * kRow>(rows.plane(plane.value), gate.plane[plane.value] + offset + f * kRow,
                                              up.plane[plane.value] + offset + f * kRow, lane);
            });
        });
    };
    // Task 0: of the shared expert, with every kSharedParts-th row.
    const int shared_f = 4 * static_cast<int>(blockIdx.x) + kPairs * (warp % kSharedTasks),
              shared_row = warp / kSharedTasks;
    const bool shared = a.f.shared != 0 && blockIdx.x < kLeastCtas && shared_row < n;
    if (shared) fetch(a.shared_gate, a.shared_up, 0, shared_f, 0);
    commit_copies();
    __syncthreads();
    [[maybe_unused]] std::conditional_t<Words, Rows8Words, NoWords> rows_of_words(a.f, a.norm);
    pdl_wait();
    pdl_trigger();  // now: the next kernel may read above its wait what is older than this kernel
    int chosen;
    if constexpr (Words) {
        auto* const keys = reinterpret_cast<uint32_t*>(x);  // until the rows are there
        rows_of_words.leave_keys(a.f, a.eps, keys);
        __syncthreads();
        rows_of_words.ask(reinterpret_cast<const float*>(a.x));  // behind the words, which are waited for
        chosen = rows8_choose(
            a.f, groups, [&](int e) { return keys[warp * kExperts + e]; }, warp, lane);
    } else {
#pragma unroll 1
        for (int i = threadIdx.x; i < n * (kUpRowBytes / 16); i += kRow1Threads) {
            const int row = i / (kUpRowBytes / 16), c = i % (kUpRowBytes / 16);
            copy_async16(x + 16 * i, a.x + row * kHiddenBytes + 16 * c);
        }
        chosen = rows8_choose(a.f, groups, FarKeys{a.f.keys + warp * a.f.route.experts}, warp, lane);
    }
    __syncthreads();
    const int all = rows8_list<kListedRows>(a.f, groups, warp, lane);
    const int ctas = gridDim.x, count = (all * kTiles - static_cast<int>(blockIdx.x) + ctas - 1) / ctas;
    if constexpr (!Words) copy_async_wait();
    __syncthreads();
    if (blockIdx.x == 0 && static_cast<int>(threadIdx.x) < n * kRowSlots) {
        const Rows8Group group = groups.list[threadIdx.x];
        const bool there = static_cast<int>(threadIdx.x) < all;
        post_group(a.f.listed + threadIdx.x, there ? group.expert | static_cast<uint64_t>(group.members) << 32 : 0);
    }
    __syncwarp();
    // Unit u of this CTA: 32 pairs of a group. Neighbours have other CTAs: those of a group of many rows take longest.
    const auto unit_of = [&](int u) { return static_cast<int>(blockIdx.x) + u * ctas; };
    const auto group_of = [&](int u) { return groups.list[unit_of(u) / kTiles]; };
    const auto tile_of = [&](int u) { return unit_of(u) % kTiles; };
    const auto fetch_task = [&](int k) {  // of unit (k - 1) / kUnitTasks
        if (k <= count * kUnitTasks) {
            const int u = (k - 1) / kUnitTasks, part = (k - 1) % kUnitTasks * kRow1Warps + warp;
            fetch(a.gate, a.up, group_of(u).id() * a.stride, 32 * tile_of(u) + kPairs * part, k % kUpRoom);
        }
        commit_copies();
    };
#pragma unroll
    for (int k = 1; k < kUpRoom; ++k) fetch_task(k);
    if constexpr (Words) {
        rows_of_words.template stage<Formats::kHalves>(a.eps, results, x, kUpRowBytes);
        if (a.f.route.share != nullptr && blockIdx.x == gridDim.x - 1) rows_of_words.leave_share(a.f.route, groups);
    }
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
    for (int k = 0; k <= count * kUnitTasks; ++k) {
        rows8_wait<kUpRoom - 1>();
        char* const task = tasks + k % kUpRoom * task_bytes;
        const int u = (k - 1) / kUnitTasks, part = (k - 1) % kUnitTasks * kRow1Warps + warp;
        const RowPlanes& m = k > 0 ? a.gate : a.shared_gate;
        Rows8Group group{0, kRowSlots * (0x01010101u * shared_row + kSharedParts * 0x03020100u)};
        if (k > 0) group = group_of(u);
        const int rows = k > 0 ? group.count() : !shared ? 0 : (n - shared_row + kSharedParts - 1) / kSharedParts;
#pragma unroll 1
        for (int p0 = 0; p0 < rows; p0 += 2) {
            const auto row = [&](int p) { return group.place(p) / kRowSlots; };
            const char *const x0 = x + row(p0) * kUpRowBytes, *const x1 = x + row(p0 + 1) * kUpRowBytes;
            const bool two = p0 + 1 < rows;
            const float sum = two ? rows8_pairs<Formats, kPairs, 2>(task, m, {x0, x1}, lane)
                                  : rows8_pairs<Formats, kPairs, 1>(task, m, {x0}, lane);
            const float up = __shfl_xor_sync(~0u, sum, 16);
            constexpr int kLanes = 16 / kPairs;  // for each row of gate
            const int f = lane / kLanes, p = p0 + (two ? lane / (kLanes / 2) % 2 : 0);
            if (lane >= 16 || lane % (two ? kLanes / 2 : kLanes) != 0) continue;
            const float v = swiglu_value(sum, up);
            if (k > 0) results[(u * kMembers + p) * 32 + kPairs * part + f] = v;
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
    RowPlanes routed, shared;
    int64_t stride;
    Rows8Middle middle;
    int32_t task_bytes;  // AnyFormat: of the largest
    int32_t rows;
    float* y;         // [n, rows]
    float* residual;  // null: none
};

constexpr int kOutputs = 16, kTaskOutputs = 8, kMostSlots = kRowSlots + 1;

/// `Outputs` outputs of an expert times P staged rows: of V = P Outputs / 2, lane 16 h + 16 / V * i has the product of
/// output 2 (i / P) + h and row i % P.
template <class Formats, int Outputs, int P>
__device__ __forceinline__ float rows8_outputs(char* task, const RowPlanes& m, const char* const (&x)[P], int lane) {
    const KShifts at(lane);
    const int j = lane % 16;
    float v[Outputs / 2 * P] = {};
    Formats::with(m.format, [&](auto format) {
        const SharedRows<format.value> rows{task, kTiles, Outputs};
        KActs acts[P];
#pragma unroll
        for (int p = 0; p < P; ++p) acts[p] = row_acts<format.value>(x[p], kTiles, j);
#pragma unroll
        for (int i = 0; i < Outputs / 2; ++i) {
            const int index = (2 * i + lane / 16) * kTiles + j;
            const auto by = rows.scales(index, at);
#pragma unroll
            for (int p = 0; p < P; ++p) v[i * P + p] = fmaf(rows.value(index, acts[p], by, m.levels), acts[p].d, 0.0f);
        }
    });
    return reduce_lanes<Outputs / 2 * P, 16>(v, lane);
}

/// A task is `Outputs` outputs of a group; a warp has room for S of them.
template <class Formats, int Outputs, int S>
__global__ void __launch_bounds__(kRow1Threads, 2) experts_rows8_down_kernel(const __grid_constant__ Rows8DownArgs a) {
    extern __shared__ uint4 dynamic[];
    __shared__ Rows8Group list[kMostGroups];
    __shared__ float weights[kMostRows * kRowSlots], shares[kMostRows];  // of the shared expert
    constexpr int kRowBytes = Formats::kHalves ? kFfBytes : kFfBytes - 4 * kTiles, kParts = kOutputs / Outputs;
    const int task_bytes = Formats::kAhead ? Outputs * (kFf / 256) * plane_bytes(Formats::kFormat).all() : a.task_bytes;
    constexpr uint32_t kSharedOnes = 0xFFFF;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, n = a.f.n, t = threadIdx.x;
    char* const staged = reinterpret_cast<char*>(dynamic);  // n * kRowSlots rows, and those of the shared expert
    auto* const terms = reinterpret_cast<float*>(staged + n * kMostSlots * kRowBytes);  // [n][kMostSlots][kOutputs]
    char* const tasks = reinterpret_cast<char*>(terms + n * kMostSlots * kOutputs) + warp * S * task_bytes;
    const uint64_t listed = t < n * kRowSlots ? await_group(a.f.listed + t) : 0;
    if (t < n * kRowSlots) list[t] = {static_cast<uint32_t>(listed), static_cast<uint32_t>(listed >> 32)};
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
            const bool routed = group.id() != kSharedOnes;
            const RowPlanes& m = routed ? a.routed : a.shared;
            const int64_t offset = routed ? group.id() * a.stride : 0;
            Formats::with(m.format, [&](auto format) {
                const SharedRows<format.value> rows{tasks + k % S * task_bytes, kTiles, Outputs};
                rows.template planes<kTiles>([&](auto plane, auto row_bytes) {
                    constexpr int kRow = row_bytes.value;
                    rows8_copy<Outputs * kRow>(rows.plane(plane.value), m.plane[plane.value] + offset + o * kRow, lane);
                });
            });
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
    if (t < n)
        shares[t] = a.f.route.share_logits == nullptr ? 1.0f : sigmoid(load_shared_f32(a.f.route.share_logits + t));
    if (t < n * kRowSlots && t % kRowSlots < a.f.route.top_k)
        weights[t] = load_shared_f32(a.f.route.weights + t / kRowSlots * a.f.route.top_k + t % kRowSlots);
    if (a.f.shared != 0) {
#pragma unroll 1
        for (int c = t; c < n * (kFf / 8); c += kRow1Threads) {
            float v[8];
            row1_load8(a.middle.shared, c, v);
            rows8_put8<kTiles, Formats::kHalves>(staged + (n * kRowSlots + c / (kFf / 8)) * kRowBytes, c % (kFf / 8),
                                                 v);
        }
    }
    if (a.f.words != nullptr) clear_words(*a.f.words, n);
    copy_async_wait();
    __syncthreads();
#pragma unroll 1
    for (int k = 0; warp + k * kRow1Warps < all; ++k) {
        rows8_wait<S - 1>();
        const int task = warp + k * kRow1Warps;
        const Rows8Group group = group_of(task);
        const bool routed = group.id() != kSharedOnes;
        char* const from = tasks + k % S * task_bytes;
        const RowPlanes& m = routed ? a.routed : a.shared;
#pragma unroll 1
        for (int p0 = 0; p0 < group.count(); p0 += 2) {
            const auto at = [&](int p) { return staged + (group.place(p) + (routed ? 0 : n * kRowSlots)) * kRowBytes; };
            const bool two = p0 + 1 < group.count();
            const float sum = two ? rows8_outputs<Formats, Outputs, 2>(from, m, {at(p0), at(p0 + 1)}, lane)
                                  : rows8_outputs<Formats, Outputs, 1>(from, m, {at(p0)}, lane);
            constexpr int kLanes = 32 / Outputs;  // that have the same sum of one row
            const int i = lane % 16 / (two ? kLanes / 2 : kLanes);
            const int o = task % kParts * Outputs + 2 * (two ? i / 2 : i) + lane / 16;
            const int place = group.place(two ? p0 + i % 2 : p0);
            if (lane % (two ? kLanes / 2 : kLanes) != 0) continue;
            const int term =
                routed ? place / kRowSlots * kMostSlots + place % kRowSlots : place * kMostSlots + kRowSlots;
            terms[term * kOutputs + o] = __fmul_rn(routed ? weights[place] : shares[place], sum);
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

static_assert(kUnitBytes == 512 && kUpRoom == 2 && kOutputs == 16 &&
              kTaskOutputs == 8);  // fit_rows8() counts with them

template <class Formats>
auto down_kernel(int64_t tasks) {
    return tasks == 3 ? experts_rows8_down_kernel<Formats, kTaskOutputs, 3>
                      : experts_rows8_down_kernel<Formats, kTaskOutputs, 2>;
}

}  // namespace

void experts_rows8(Context& ctx, const ExpertWeights& weights, const SharedExpert& shared, const ActSource& x,
                   int64_t n, const ChooseHere& choose, Tensor& y, Tensor* residual) {
    const bool words = choose.words != nullptr;
    RT_ASSERT(words ? x.kind == ActKind::norm && x.stride == kHidden * int64_t{sizeof(float)} && n <= kMostWordRows
                    : x.kind == ActKind::staged && x.stride == kHiddenBytes && n <= SparseShape512::kRows8);
    const bool with_shared = shared.gate != nullptr;
    const LayerFormats formats = formats_of(weights, shared);
    const auto fit = fit_rows8(chip_of(*ctx.gpu), n, choose.route->top_k, formats);
    RT_ASSERT(fit);
    Rows8GateUpArgs a = {};
    a.f.keys = choose.keys;
    a.f.logits = choose.logits;
    a.f.words = choose.words;
    a.f.listed = choose.listed;
    a.f.route = *choose.route;
    a.f.n = static_cast<int32_t>(n);
    a.f.shared = with_shared ? 1 : 0;
    a.gate = row_planes(weights.gate[0]);
    a.up = row_planes(weights.up[0]);
    a.stride = planes_stride(weights.gate);
    if (with_shared) a.shared_gate = row_planes(*shared.gate), a.shared_up = row_planes(*shared.up);
    a.x = x.rows;
    a.norm = x.norm;
    a.eps = x.eps;
    a.middle.act = static_cast<char*>(ctx.arena->allocate(n * kRowSlots * kFfBytes));
    a.middle.shared = static_cast<float*>(ctx.arena->allocate(n * kFf * int64_t{sizeof(float)}));
    const auto start = [&](auto kernel, int64_t ctas, int64_t bytes, const auto& args) {
        allow_shared(reinterpret_cast<const void*>(kernel), bytes);
        launch(*ctx.gpu, kernel, dim3(static_cast<unsigned>(ctas)), kRow1Threads, static_cast<size_t>(bytes), args);
    };
    a.units = static_cast<int32_t>(fit->units);
    a.task_bytes = static_cast<int32_t>(fit->up_task);
    using Q4 = OneFormat<RowFormat::q4_k>;
    using Q6 = OneFormat<RowFormat::q6_k>;
    const bool q4 = formats.up == Q4::kFormat && formats.shared_up == Q4::kFormat;
    RT_ASSERT(q4 || !words);
    start(words             ? experts_rows8_gate_up_kernel<Q4, 2, true>
          : q4              ? experts_rows8_gate_up_kernel<Q4, 2, false>
          : fit->pairs == 2 ? experts_rows8_gate_up_kernel<AnyFormat, 2, false>
                            : experts_rows8_gate_up_kernel<AnyFormat, 1, false>,
          fit->up_ctas, fit->up_shared, a);

    Rows8DownArgs d = {};
    d.f = a.f;
    d.routed = row_planes(weights.down[0]);
    if (with_shared) d.shared = row_planes(*shared.down);
    d.stride = planes_stride(weights.down);
    d.middle = a.middle;
    d.task_bytes = static_cast<int32_t>(fit->down_task);
    d.rows = static_cast<int32_t>(weights.down[0].rows);
    d.y = y.row(0);
    d.residual = residual == nullptr ? nullptr : residual->row(0);
    const bool one = formats.down == formats.shared_down;
    start(one && formats.down == Q6::kFormat   ? down_kernel<Q6>(fit->down_tasks)
          : one && formats.down == Q4::kFormat ? down_kernel<Q4>(fit->down_tasks)
                                               : down_kernel<AnyFormat>(fit->down_tasks),
          d.rows / kOutputs, fit->down_shared, d);
    if (words) ctx.gpu->sums_open = false;
}

}  // namespace riptide::ops::cuda::decode
