// Sparse layers of 2 to 256 rows, Q4_K, Q5_K or Q6_K experts of 512 x 2048: the rows that chose an expert share one
// read of it.
//
// Bytes of gate and up: 1.18 MB for each distinct expert (Q4_K), of down 0.59 (Q6_K: 0.86). Rows that choose at random
// use 57 distinct experts at 8 rows, 102 at 16, 163 at 32, 222 at 64, and the shared one. Measured (H200, 2026-11-21,
// bench_gpu_ops --table, gate, up and down, in brackets the bytes at 4.65 TB/s): 42 us (24) at 8 rows, 64 (41) at 16,
// 103 (70) at 32, 158 (92) at 64; alike: 22 (4), 31, 47, 71. What limits it: the issue of instructions with four or
// five warps a scheduler (55 to 60 % of the cycles; 250 to 300 instructions of a warp for a stage and one row of x, 480
// for three to eight), and some 8 us of finding groups and filling the ring. Design: three kernels.
//   gate_up  every CTA finds the groups for itself: a mask of rows for each expert (bits set by atomics: the order does
//            not matter), a list of groups of up to eight rows by a scan over the experts, those of many rows first. Of
//            the stages (eight gate rows, eight up rows) of all groups each CTA has 70 % of its share by what they cost
//            roughly; the rest, of the groups with the fewest rows, goes to whoever is free, four at a time
//            (share_out(), ask_for_work()). One warp of a CTA asks for them, eight multiply; these stage the rows of x
//            of a group when they come to it, but one or two rows of what was taken come with the weights.
//            One or two rows: dp4a; more: mma.
//   down     the same with stages of 64 rows; its groups are found and its first stages asked for before pdl_wait()
//            (routing is older than gate_up, which lets it go behind its own wait). Writes weight * product of each
//            (row, slot).
//   combine  adds the slots in order of rank.
// Up to 8 rows choose their experts here, from the keys that fused_router() leaves: in gate_up and again in down,
// which does it before pdl_wait(). Tried: all warps ask for stages and meet at a barrier for each (88 us at 16 rows,
// 204 at 64); stages shared out by their number (20 % of the CTAs' time was waiting for the last); one CTA an SM, so
// that the next kernel's fits beside it (8 rows 42 to 60 us: what is short is warps); one more warp to add up what
// eight leave of a stage, so that these meet at no barrier (no faster); sigmoid and bias in every CTA that chooses (2
// to 6 us slower: code nobody has yet). No result depends on how rows are grouped: each is one canonical product, or a
// sum in order of rank.
#include "ops/cuda/moe/experts_grouped_sm80.h"

#include <algorithm>

#include "ops/cuda/device/row_math.cuh"
#include "ops/cuda/linear/shared/tile.cuh"
#include "ops/cuda/linear/skinny/kquant_i8_sm80.h"
#include "ops/cuda/moe/experts_grouped_sm80.cuh"

namespace riptide::ops::cuda::decode {

namespace {

constexpr int kHidden = 2048, kFf = 512;
constexpr int kPairTiles = kFf / 8;  // units of gate and up
constexpr DType kQ4 = DType::planes_q4_k, kQ5 = DType::planes_q5_k, kQ6 = DType::planes_q6_k;

/// A matrix of each expert and of the shared one.
struct ExpertPlanes {
    TilePlanes routed, shared;
    int64_t data_stride, high_stride, scale_stride;

    __device__ __forceinline__ TilePlanes of(uint32_t e) const {
        return e == kShared ? shared : routed.moved(e * data_stride, e * high_stride, e * scale_stride);
    }
};

struct GroupGateUpArgs {
    GroupArgs g;
    ExpertPlanes gate, up;
    ActSource x;  // staged rows
    float* out;   // [n, slots, kFf]
};

/// What is where in the shared memory of a kernel, and the stages from `begin` to `end` of this CTA.
template <DType Type, int Cols>
struct GroupMemory {
    static constexpr int64_t kPartial = partial_bytes(1, kWarps);  // of one stage; there are two
    static constexpr bool kA0 = Cols == kFf || Type == kQ6;        // put8() writes it, whether it is needed or not
    static RT_HD ActLayout layout() { return {Cols, Cols / 32, 44 * (Cols / 32), 0}; }
    static RT_HD int stride() { return tile_x_stride(layout(), kA0); }
    char* ring;
    float* partial;  // two
    char* staged;
    Groups groups;
    void* barriers;

    __device__ __forceinline__ GroupMemory(void* dynamic, const GroupArgs& a) : ring(static_cast<char*>(dynamic)) {
        partial = reinterpret_cast<float*>(ring + a.stages * Tile<Type, Cols>::kBytes);
        staged = reinterpret_cast<char*>(partial) + 2 * kPartial;
        groups = groups_at(staged + kGroupRows * stride(), a);
        barriers = reinterpret_cast<char*>(groups.mask) + Groups::bytes(a.n, a.top_k);
    }
    __device__ __forceinline__ char* stage(int i) const { return ring + i * Tile<Type, Cols>::kBytes; }
    __device__ __forceinline__ float* partial_of(int u) const { return partial + u % 2 * (kPartial / 4); }
};

/// The next `count` stages of a group that has P rows: store(stage, row of its eight, row of x, gate, up). Rows of x
/// stay in registers, and the sums of some stages are added up together.
template <DType Type, int P, class Store>
__device__ __forceinline__ void rows2_gate_up(const GroupMemory<Type, kHidden>& memory, StageRing& ring, const TileX& x,
                                              int count, int warp, int lane, const Store& store) {
    constexpr int kTogether = 4 / P;
    const HeldX<Type, kHidden, P> held(x, 0, lane);
#pragma unroll 1
    for (int u = 0; u < count; u += kTogether) {
        float v[8];  // [stage][row of x]{gate, up}
#pragma unroll
        for (int k = 0; k < kTogether; ++k) {
            float acc[2][P] = {};
            if (u + k < count) {
                ring.wait_until_full();
                dot_rows(memory.stage(ring.at()), held, x, 0, warp, lane, acc);
                ring.used();
                ring.advance();
            }
#pragma unroll
            for (int p = 0; p < P; ++p) v[2 * (P * k + p)] = acc[0][p], v[2 * (P * k + p) + 1] = acc[1][p];
        }
        const float sum = reduce_lanes<8>(v, lane), up = __shfl_xor_sync(~0u, sum, 4);
        const int stage = u + lane / 8 / P;
        if (lane % 8 == 0 && stage < count) store(stage, warp, lane / 8 % P, sum, up);
    }
}

template <DType Type>
__global__ void __launch_bounds__(kCtaThreads, 2)
    experts_grouped_gate_up_kernel(const __grid_constant__ GroupGateUpArgs a) {
    extern __shared__ uint4 dynamic[];
    __shared__ int totals[kWarps];
    __shared__ Members members;
    const GroupMemory<Type, kHidden> memory(dynamic, a.g);
    StageRing ring(memory.barriers, a.g.stages);
    clear_groups(a.g, memory.groups);
    if (threadIdx.x == 0) ring.init(kWarps);
    __syncthreads();
    pdl_wait();
    pdl_trigger();  // now: the next kernel may read above its wait what is older than this kernel
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int all = build_groups(a.g, memory.groups, totals);
    const int begin = first_stage(memory.groups, all, kPairTiles, blockIdx.x, gridDim.x),
              end = first_stage(memory.groups, all, kPairTiles, blockIdx.x + 1, gridDim.x);
    Cursor now{begin / kPairTiles, begin % kPairTiles};
    if (warp == kWarps) {
#pragma unroll 1
        for (int u = begin; u < end; ++u, now.advance(kPairTiles, 1), ring.advance()) {
            const uint32_t e = memory.groups.list[now.outer] & 0xFFFFu;
            const auto row_of = [&](int r) { return now.part * 8 + r; };
            ring.wait_until_empty();
            fetch_rows<Type, kHidden, 8>(a.gate.of(e), kHidden, 0, row_of, memory.stage(ring.at()), 0);
            fetch_rows<Type, kHidden, 8>(a.up.of(e), kHidden, 0, row_of, memory.stage(ring.at()), 8);
            ring.asked();
        }
        const int row = 4 * static_cast<int>(blockIdx.x);
        if (a.g.keys != nullptr && row < a.g.n) write_routing(a.g, memory.groups, row, lane);
        return;
    }
    TileX x{memory.staged, memory.stride(), kHidden / 32, 0};
    const LaneX mine(x, lane, kWarps);
#pragma unroll 1
    for (int u = begin; u < end; ++now.outer, now.part = 0) {
        const int count = min(end - u, kPairTiles - now.part), first = 8 * now.part;  // stages, rows of this group
        sync_warps<kWarps>();
        x.count = find_members(a.g, memory.groups, memory.groups.list[now.outer], nullptr, members);
        sync_warps<kWarps>();
        stage_x(
            a.x, x, memory.kA0, [&](int p) { return static_cast<int64_t>(members.row[p]); }, memory.staged);
        sync_warps<kWarps>();
        const auto store = [&](int stage, int f, int p, float gate, float up) {
            a.out[static_cast<int64_t>(members.place[p]) * kFf + first + 8 * stage + f] = swiglu_value(gate, up);
        };
        if (x.count == 1) {
            rows2_gate_up<Type, 1>(memory, ring, x, count, warp, lane, store);
        } else if (x.count == 2) {
            rows2_gate_up<Type, 2>(memory, ring, x, count, warp, lane, store);
        } else {
#pragma unroll 1
            for (int k = 0; k < count; ++k, ring.advance()) {
                ring.wait_until_full();
                WideSums<1, kWarps> acc = {};
                mma_wide<Type, 1, kWarps>(memory.stage(ring.at()), mine, 0, warp, lane, acc);
                ring.used();
                float* const partial = memory.partial_of(u + k);
                put_wide<1, kWarps>(partial, warp, lane, acc);
                sync_warps<kWarps>();  // what was put two stages ago has been added up
                const int i = static_cast<int>(threadIdx.x) - (u + k) % 2 * 128;
                if (i >= 0 && i < 128) {
                    const float sum = wide_sum<1, kWarps>(partial, i % 16, i / 16), up = __shfl_xor_sync(~0u, sum, 8);
                    if (i % 16 < 8 && i / 16 < x.count) store(k, i % 16, i / 16, sum, up);
                }
            }
        }
        u += count;
    }
}

struct DownGroupArgs {
    GroupArgs g;
    ExpertPlanes down;
    const float* weights;  // [n, top_k]
    const float* act;      // [n, slots, kFf]
    int32_t rows;          // of the matrices, a multiple of 64
    float* terms;          // [n, slots, rows]
};

/// The product for the other ranks of a row that chose its expert more than once. terms: of place 0.
__device__ __noinline__ void store_again(const DownGroupArgs& a, int row, uint32_t ranks, float* terms, float sum) {
    for (; ranks != 0; ranks &= ranks - 1) {
        const int rank = __ffs(static_cast<int>(ranks)) - 1;
        terms[static_cast<int64_t>(row * a.g.slots + rank) * a.rows] =
            __fmul_rn(a.weights[row * a.g.top_k + rank], sum);
    }
}

/// As rows2_gate_up(): store(stage, row of its 64, row of x, sum).
template <DType Type, int P, class Store>
__device__ __forceinline__ void rows2_down(const GroupMemory<Type, kFf>& memory, StageRing& ring, const TileX& x,
                                           int count, int warp, int lane, const Store& store) {
    constexpr int kTogether = 2 / P;
    const HeldX<Type, kFf, P> held(x, 0, lane);
#pragma unroll 1
    for (int u = 0; u < count; u += kTogether) {
        float v[8];  // [stage][row of each half-warp's four][row of x]
#pragma unroll
        for (int k = 0; k < kTogether; ++k) {
            float acc[4][P] = {};
            if (u + k < count) {
                ring.wait_until_full();
                dot_rows(memory.stage(ring.at()), held, x, 0, warp, lane, acc);
                ring.used();
                ring.advance();
            }
#pragma unroll
            for (int i = 0; i < 4 * P; ++i) v[4 * P * k + i] = acc[i / P][i % P];
        }
        const float sum = reduce_lanes<8, 16>(v, lane);
        const int which = lane % 16 / 2, stage = u + which / (4 * P), i = which / P % 4;
        if (lane % 2 == 0 && stage < count) store(stage, 8 * warp + 2 * i + lane / 16, which % P, sum);
    }
}

template <DType Type>
__global__ void __launch_bounds__(kCtaThreads, 2) experts_grouped_down_kernel(const __grid_constant__ DownGroupArgs a) {
    extern __shared__ uint4 dynamic[];
    __shared__ int totals[kWarps];
    __shared__ Members members;
    pdl_trigger();
    const GroupMemory<Type, kFf> memory(dynamic, a.g);
    StageRing ring(memory.barriers, a.g.stages);
    clear_groups(a.g, memory.groups);
    if (threadIdx.x == 0) ring.init(kWarps);
    __syncthreads();
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int tiles = a.rows / 64, all = build_groups(a.g, memory.groups, totals);
    const int begin = first_stage(memory.groups, all, tiles, blockIdx.x, gridDim.x),
              end = first_stage(memory.groups, all, tiles, blockIdx.x + 1, gridDim.x);
    Cursor now{begin / tiles, begin % tiles};
    if (warp == kWarps) {
#pragma unroll 1
        for (int u = begin; u < end; ++u, now.advance(tiles, 1), ring.advance()) {
            const TilePlanes planes = a.down.of(memory.groups.list[now.outer] & 0xFFFFu);
            const auto row_of = [&](int r) { return now.part * 64 + r; };
            ring.wait_until_empty();
            fetch_rows<Type, kFf, 64>(planes, kFf, 0, row_of, memory.stage(ring.at()), 0);
            ring.asked();
        }
        return;
    }
    pdl_wait();
    TileX x{memory.staged, memory.stride(), kFf / 32, 0};
    const LaneX mine(x, lane, kWarps);
#pragma unroll 1
    for (int u = begin; u < end; ++now.outer, now.part = 0) {
        const int count = min(end - u, tiles - now.part), first = 64 * now.part;  // stages, rows of this group
        sync_warps<kWarps>();
        x.count = find_members(a.g, memory.groups, memory.groups.list[now.outer], a.weights, members);
        sync_warps<kWarps>();
#pragma unroll 2
        for (int q = threadIdx.x; q < x.count * (kFf / 8); q += kThreads) {
            const int p = q / (kFf / 8), c = q % (kFf / 8);
            float v[8];
            load8(a.act + static_cast<int64_t>(members.place[p]) * kFf, c, kFf, v);
            put8(memory.layout(), memory.staged + p * x.stride, c, v);
        }
        sync_warps<kWarps>();
        const auto store = [&](int stage, int o, int p, float sum) {
            float* const to = a.terms + static_cast<int64_t>(members.place[p]) * a.rows + first + 64 * stage + o;
            *to = __fmul_rn(members.weight[p], sum);
            const uint32_t ranks = members.slots[p], more = ranks & (ranks - 1);
            if (more != 0) store_again(a, members.row[p], more, to - members.place[p] * int64_t{a.rows}, sum);
        };
        if (x.count == 1) {
            rows2_down<Type, 1>(memory, ring, x, count, warp, lane, store);
        } else if (x.count == 2) {
            rows2_down<Type, 2>(memory, ring, x, count, warp, lane, store);
        } else {
#pragma unroll 1
            for (int k = 0; k < count; ++k, ring.advance()) {
                ring.wait_until_full();
                float* const partial = memory.partial_of(u + k);
                mma_narrow<Type>(memory.stage(ring.at()), mine, warp, lane, partial);
                ring.used();
                sync_warps<kWarps>();  // what was put two stages ago has been added up
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    const int i = h * kThreads + threadIdx.x;
                    if (i / 64 < x.count) store(k, i % 64, i / 64, narrow_sum(partial, i % 64, i / 64));
                }
            }
        }
        u += count;
    }
}

struct CombineArgs {
    const float* terms;  // [n, slots, rows]
    const float* extra;  // [n, rows] or null: added to y
    const float* share;  // [n] or null: the last slot counts its sigmoid
    float* y;            // [n, rows]
    float* residual;     // [n, rows] or null: += y
    int32_t slots, rows;
};

/// Four outputs a thread, blockIdx.y = row.
__global__ void __launch_bounds__(kThreads) experts_grouped_combine_kernel(const __grid_constant__ CombineArgs a) {
    pdl_trigger();
    pdl_wait();
    const int o = (blockIdx.x * kThreads + threadIdx.x) * 4;
    if (o >= a.rows) return;
    const int64_t row = blockIdx.y, at = row * a.rows + o;
    const auto load = [&](const float* p) { return *reinterpret_cast<const float4*>(p); };
    const auto add = [](float4 p, float4 q) {
        return make_float4(__fadd_rn(p.x, q.x), __fadd_rn(p.y, q.y), __fadd_rn(p.z, q.z), __fadd_rn(p.w, q.w));
    };
    const float* terms = a.terms + row * a.slots * a.rows + o;
    float4 y = load(terms);
    const int whole = a.slots - (a.share != nullptr ? 1 : 0);
#pragma unroll 8
    for (int slot = 1; slot < whole; ++slot) y = add(y, load(terms + static_cast<int64_t>(slot) * a.rows));
    if (a.share != nullptr) {
        const float by = sigmoid(a.share[row]);
        const float4 term = load(terms + static_cast<int64_t>(whole) * a.rows);
        y = add(
            y, make_float4(__fmul_rn(term.x, by), __fmul_rn(term.y, by), __fmul_rn(term.z, by), __fmul_rn(term.w, by)));
    }
    if (a.extra != nullptr) y = add(y, load(a.extra + at));
    *reinterpret_cast<float4*>(a.y + at) = y;
    if (a.residual != nullptr) *reinterpret_cast<float4*>(a.residual + at) = add(load(a.residual + at), y);
}

ExpertPlanes expert_planes(const Matrix& routed, const Matrix& shared) {
    return {tile_planes(routed), tile_planes(shared), routed.data_stride, routed.high_stride, routed.scale_stride};
}

}  // namespace

void group_experts(Context& ctx, const Layer& layer, const ActSource& x, int64_t n, const Routing& routing, Tensor& y,
                   Tensor* residual, const Tensor& extra, const Tensor& share, const ChooseHere& choose) {
    const Gpu& gpu = *ctx.gpu;
    const Matrix &gate = layer.gate, &down = layer.down;
    RT_ASSERT(x.kind == ActKind::staged);
    const auto fit = fit_groups(chip_of(gpu), n, layer.top_k, gate.type, down.type);
    RT_ASSERT(fit && Groups::bytes(static_cast<int>(n), layer.top_k) == group_list_bytes(n, layer.top_k));
    const TilePlan &up_plan = fit->up, &down_plan = fit->down;
    GroupGateUpArgs a = {};
    a.g.experts = routing.experts.row<int32_t>(0);
    if (choose.route != nullptr) a.g.route = *choose.route, a.g.logits = choose.logits, a.g.keys = choose.keys;
    a.g.n = static_cast<int32_t>(n);
    a.g.top_k = layer.top_k;
    a.g.slots = layer.top_k + (layer.shared ? 1 : 0);
    a.g.words = static_cast<int32_t>((n + 31) / 32);
    DownGroupArgs d = {};
    d.g = a.g;
    a.g.stages = up_plan.stages, d.g.stages = down_plan.stages;

    a.gate = expert_planes(gate, layer.shared ? layer.shared_gate : gate);
    a.up = expert_planes(layer.up, layer.shared ? layer.shared_up : layer.up);
    a.x = x;
    a.out = static_cast<float*>(ctx.arena->allocate(n * a.g.slots * kFf * int64_t{sizeof(float)}));
    const auto up_kernel = gate.type == kQ4   ? experts_grouped_gate_up_kernel<kQ4>
                           : gate.type == kQ5 ? experts_grouped_gate_up_kernel<kQ5>
                                              : experts_grouped_gate_up_kernel<kQ6>;
    allow_shared(reinterpret_cast<const void*>(up_kernel), up_plan.shared);
    launch(gpu, up_kernel, dim3(static_cast<unsigned>(up_plan.ctas)), kCtaThreads, static_cast<size_t>(up_plan.shared),
           a);

    d.down = expert_planes(down, layer.shared ? layer.shared_down : down);
    d.weights = routing.weights.row(0);
    d.act = a.out;
    d.rows = down.rows;
    d.terms = static_cast<float*>(ctx.arena->allocate(n * d.g.slots * d.rows * int64_t{sizeof(float)}));
    const auto down_kernel = down.type == kQ4   ? experts_grouped_down_kernel<kQ4>
                             : down.type == kQ5 ? experts_grouped_down_kernel<kQ5>
                                                : experts_grouped_down_kernel<kQ6>;
    allow_shared(reinterpret_cast<const void*>(down_kernel), down_plan.shared);
    launch(gpu, down_kernel, dim3(static_cast<unsigned>(down_plan.ctas)), kCtaThreads,
           static_cast<size_t>(down_plan.shared), d);

    CombineArgs c = {};
    c.terms = d.terms;
    c.extra = extra.data == nullptr ? nullptr : extra.row(0);
    c.share = share.data == nullptr ? nullptr : share.row(0);
    c.y = y.row(0);
    c.residual = residual == nullptr ? nullptr : residual->row(0);
    c.slots = d.g.slots;
    c.rows = d.rows;
    launch(gpu, experts_grouped_combine_kernel,
           dim3(static_cast<unsigned>((d.rows + 4 * kThreads - 1) / (4 * kThreads)), static_cast<unsigned>(n)),
           kThreads, 0, c);
}

}  // namespace riptide::ops::cuda::decode
