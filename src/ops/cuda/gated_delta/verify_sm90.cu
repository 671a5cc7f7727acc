// Gated DeltaNet over the few rows of a step that verifies drafts, chains or trees, in one kernel (Hopper, heads of
// 128 x 128): what recurrence.cu does in three, with its bits.
//
// Bytes: a sequence's state, read once (3.15 MB a layer at 48 heads), and 66 KB a row; 0.8 us for 16 rows. FLOPs: 8 for
// each element of the state and row, 3.4 us of CUDA cores if all were busy. But the rows follow each other, and at
// either end stands what a row is made of and what becomes of it. So the design is about latency, as in decode_row.cu,
// and that of instructions is part of it: what a CTA runs once comes from the L2 cache. So there is little code, in
// loops where there can be, without branches between loads, and divisions side by side (quotients()).
// Reached on an H200, 2026-11-24 (bench_gpu_delta, random inputs; the three kernels in brackets): 48 heads, 2, 8 and 16
// rows of a chain 5.2, 7.9 and 11.7 us (9.9, 13.4, 17.1), trees of 8 and 23 nodes 10.1 and 20.2 us (13.6, 25.2); 16
// heads, 16 rows 8.1 us (11.3). Within a step of a 27B, 16 rows (stamps of all CTAs, from the end of the projections):
// rows there after 3.3 us, through the state after 8.6, ended after 9.2.
//
// Design: a head is a cluster's, each of whose CTAs has some columns of the state, fetched before the wait. Behind it a
// warp prepares q or k of a row, and sends it to all CTAs; v and gates a CTA prepares itself. Once all rows are there,
// every warp takes its eight columns through them (DeltaTile), and an output goes to the CTA that ends its row: norm
// and gate. What the stash keeps is stored by those who made it. 48 heads are clusters of two CTAs of eight warps, one
// on an SM: two warps for each scheduler, 215 instructions a row each, which are four fifths of the row's time.
//
// Tried, 48 heads, 16 rows: clusters of eight CTAs of four warps with two columns a lane, four of which lie on one SM
// while others have none (14.2 us); a column in four lanes, 190 instructions a row and half the exchanges, but four
// times as much of q and k read from shared memory (12.0 instead of 12.1 then, and 5.8 instead of 5.1 us of a step for
// the rows); a row's code and that of a second one side by side, so that all loads go out at once (24 rows later by 1
// us: twice the code).
#include <algorithm>
#include <cmath>

#include "ops/cuda/backend.h"
#include "ops/cuda/device/cluster.cuh"
#include "ops/cuda/gated_delta/recurrence.cuh"
#include "ops/cuda/linear/shared/linear.h"

namespace riptide::ops {

namespace {

constexpr int kDim = 128;                       // of a head
constexpr int kMostRows = 32;                   // of all sequences
constexpr int kColumnsOf = 8;                   // of a warp
[[maybe_unused]] constexpr int kTogether = 16;  // rows whose v are prepared at once
[[maybe_unused]] constexpr int kElements = kDim / 32;

/// Shared memory: q and k [rows, kDim], v [rows, columns], gates [rows, 4], outputs of the CTA's own rows, where the
/// taps of rows lie [rows, 4]; then (trees) the plan and the kept states.
struct VerifyLayout {
    int rows, outputs, taps, plan, slots;
    int heads;       // value heads of a key head; tiled: key heads
    uint32_t magic;  // h / heads = h * magic >> 20
    float query_factor = 1.0f / std::sqrt(static_cast<float>(kDim));

    VerifyLayout(int rows_, int columns, int heads_)
        : rows(rows_),
          outputs(4 * rows * (2 * kDim + columns + 4)),
          taps(outputs + 4 * (rows * columns / kDim + 1) * kDim),
          plan(taps + rows * kDeltaTaps * 8),
          slots(plan + (static_cast<int>(sizeof(TreePlan)) + 15) / 16 * 16),
          heads(heads_),
          magic((1u << 20) / static_cast<unsigned>(heads_) + 1) {}
};

#ifdef RT_CLUSTER_KERNEL

/// Where the convolution's input of a row lies, `tap` positions before it; null: it counts as zeros. As delta_taps().
template <bool kTree>
__device__ __forceinline__ const float* verify_tap(const DeltaArgs& a, const DeltaPlace& at, int row, int tap) {
    const int position = (kTree ? delta_early(a.positions + at.first + row) : at.committed + row) - tap;
    if (position < at.committed)
        return position < 0 ? nullptr
                            : a.conv + at.slot * a.sizes.conv_floats + position % kDeltaTaps * a.sizes.channels;
    row += at.first;
    if constexpr (kTree) {
#pragma unroll 1
        for (; tap > 0; --tap) row = delta_early(a.parent + row);
    }
    return a.qkv.row(row - tap);
}

/// Four neighbouring channels, all taps, the newest first: no branches, nothing waits.
struct VerifyInputs {
    float x[kDeltaTaps][4];

    __device__ __forceinline__ void ask(const float* const* taps, int channel) {
#pragma unroll
        for (int i = 0; i < kDeltaTaps; ++i)
            asm volatile(
                "{\n.reg .pred p;\nsetp.ne.u64 p, %4, 0;\nmov.f32 %0, 0f00000000;\nmov.f32 %1, 0f00000000;\n"
                "mov.f32 %2, 0f00000000;\nmov.f32 %3, 0f00000000;\n"
                "@p ld.global.cg.v4.f32 {%0,%1,%2,%3}, [%5];\n}"
                : "=&f"(x[i][0]), "=&f"(x[i][1]), "=&f"(x[i][2]), "=&f"(x[i][3])
                : "l"(taps[i]), "l"(taps[i] + channel)
                : "memory");
    }
};
/// Their weights [channel], the oldest tap's first. Also above pdl_wait().
struct VerifyWeights {
    float w[4][kDeltaTaps];

    __device__ __forceinline__ void ask(const float* weights, int channel) {
#pragma unroll
        for (int c = 0; c < 4; ++c) {
            const uint4 v = load_weights(weights + int64_t{channel + c} * kDeltaTaps);
            w[c][0] = __uint_as_float(v.x), w[c][1] = __uint_as_float(v.y), w[c][2] = __uint_as_float(v.z),
            w[c][3] = __uint_as_float(v.w);
        }
    }
};
/// silu(x), as DeltaConvolution and delta_gate() have it.
__device__ __forceinline__ void verify_silu(const float (&x)[4], float (&y)[4]) {
    float divisor[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) divisor[i] = __fadd_rn(1.0f, expf(-x[i]));
    quotients(x, divisor, y);
}
__device__ __forceinline__ float4 verify_convolution(const VerifyInputs& inputs, const VerifyWeights& weights) {
    float sum[4] = {}, y[4];
#pragma unroll
    for (int i = 0; i < kDeltaTaps; ++i)
#pragma unroll
        for (int c = 0; c < 4; ++c) sum[c] = __fmaf_rn(weights.w[c][i], inputs.x[kDeltaTaps - 1 - i][c], sum[c]);
    verify_silu(sum, y);
    return make_float4(y[0], y[1], y[2], y[3]);
}
__device__ __forceinline__ void store_four(float* to, float4 x) { *reinterpret_cast<float4*>(to) = x; }
__device__ __forceinline__ void store_newest(float* to, const VerifyInputs& inputs) {
    store_four(to, make_float4(inputs.x[0][0], inputs.x[0][1], inputs.x[0][2], inputs.x[0][3]));
}
/// Elements lane + 32 c of a head in shared memory.
__device__ __forceinline__ void verify_elements(const float* from, float (&x)[kElements]) {
#pragma unroll
    for (int c = 0; c < kElements; ++c) x[c] = from[threadIdx.x % 32 + 32 * c];
}

/// send(), without a branch.
__device__ __forceinline__ void send_if(int wanted, uint32_t to, float x, uint32_t barrier) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.s32 p, %3, 0;\n"
        "@p st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];\n}" ::"r"(to),
        "f"(x), "r"(barrier), "r"(wanted)
        : "memory");
}

#endif

/// Grid: value heads times CTAs of a cluster, sequences; layout.rows: at least those of any sequence.
template <int kWarps, bool kTree>
__global__ void __launch_bounds__(32 * kWarps)
    delta_verify_kernel(const __grid_constant__ DeltaArgs a, const __grid_constant__ VerifyLayout layout) {
#ifdef RT_CLUSTER_KERNEL
    using Tile = DeltaTile<8, 4>;
    using Piece = Tile::Piece;
    static_assert(Tile::kOwned == kColumnsOf);
    constexpr int kColumns = kColumnsOf * kWarps, kCtas = kDim / kColumns;
    extern __shared__ float4 verify_shared[];
    __shared__ Inbox rows_there, outputs_there;
    pdl_trigger();
    const DeltaSizes& z = a.sizes;
    const int thread = static_cast<int>(threadIdx.x), warp = __shfl_sync(~0u, thread / 32, 0), lane = thread % 32;
    const int rank = static_cast<int>(blockIdx.x) % kCtas;
    DeltaPlace at;
    at.sequence = static_cast<int>(blockIdx.y);
    at.slot = delta_early(a.state_slot + at.sequence), at.committed = delta_early(a.committed + at.sequence);
    at.first = delta_early(a.row_begin + at.sequence), at.n = delta_early(a.row_begin + at.sequence + 1) - at.first;
    at.h = static_cast<int>(blockIdx.x) / kCtas;
    const int of_heads = static_cast<int>(static_cast<uint32_t>(at.h) * layout.magic >> 20);
    at.key = z.tiled ? at.h - of_heads * layout.heads : of_heads;
    const bool keeps = z.tiled ? of_heads == 0 : of_heads * layout.heads == at.h;

    // What depends on the head alone. Even warps prepare q, odd ones k.
    const int keys = z.keys(), key_channel = warp % 2 * keys + at.key * kDim + 4 * lane;
    const int first_column = rank * kColumns, own = warp * kColumnsOf + Tile::first_column();
    const int column = 4 * (thread % (kColumns / 4)), first_value = thread / (kColumns / 4);  // of v
    const int value_channel = 2 * keys + at.h * kDim + first_column + column;
    VerifyWeights key_weights, value_weights;
    key_weights.ask(a.conv_weights, key_channel);
    value_weights.ask(a.conv_weights, value_channel);
    const float dt_bias = __uint_as_float(EarlyLoad::one(a.dt_bias + at.h)),
                decay = __uint_as_float(EarlyLoad::one(a.decay + at.h)),
                last_factor = warp % 2 == 0 ? layout.query_factor : 1.0f;
    float norm[kElements];
#pragma unroll
    for (int c = 0; c < kElements; ++c) norm[c] = __uint_as_float(EarlyLoad::one(a.norm + lane + 32 * c));
    const int own_rows = (at.n - rank + kCtas - 1) / kCtas;
    if (thread == 0) {
        rows_there.open((at.n - own_rows) * (2 * kDim + 1) * 4);
        outputs_there.open(own_rows * kDim * 4);
    }
    __syncwarp();
    cluster_start();
    Tile tile;
    if (at.committed == 0) tile.clear();
    else tile.load_all<kDim>(a.state + at.slot * z.state_elements + at.h * (kDim * kDim) + first_column + own);

    auto* const bytes = reinterpret_cast<unsigned char*>(verify_shared);
    float* const q = reinterpret_cast<float*>(bytes);
    float* const k = q + layout.rows * kDim;
    float* const v = k + layout.rows * kDim;
    float* const gates = v + layout.rows * kColumns;
    auto* const outputs = reinterpret_cast<float*>(bytes + layout.outputs);
    auto* const taps = reinterpret_cast<const float**>(bytes + layout.taps);
    auto& plan = *reinterpret_cast<TreePlan*>(bytes + layout.plan);
    auto* const kept = reinterpret_cast<Piece*>(bytes + layout.slots) + 32 * 8 * warp;
    constexpr int kSlot = kDim * kColumns * 4 / static_cast<int>(sizeof(Piece));
#pragma unroll 1
    for (int i = thread; i < kDeltaTaps * at.n; i += 32 * kWarps)
        taps[i] = verify_tap<kTree>(a, at, i / kDeltaTaps, i % kDeltaTaps);
    if constexpr (kTree) {
        if (plan_tree(a.parent, plan, at.first, at.n)) tile.keep(kept);
    }
    __syncthreads();
    cluster_wait();
    pdl_wait();
    if (at.n == 0) return;

    // All that is needed first is asked for before any of it is used, and of loops what the next turn needs.
    float* const stash = a.kept.at + int64_t{at.first} * a.kept.stride;
    int row = rank + kCtas * (warp / 2);
    VerifyInputs inputs, values;
    if (row < at.n) inputs.ask(taps + kDeltaTaps * row, key_channel);
    if (first_value < at.n) values.ask(taps + kDeltaTaps * first_value, value_channel);
    const bool has_gates = warp == kWarps - 1 && lane < at.n;
    float2 gates_from = {};
    if (has_gates) {
        gates_from.x = __uint_as_float(EarlyLoad::one(a.a.row(at.first + lane) + at.h));
        gates_from.y = __uint_as_float(EarlyLoad::one(a.b.row(at.first + lane) + at.h));
    }
    // All warps take as many turns, though not all have a row in each: they meet in pairs.
    constexpr int kRowStep = kCtas * (kWarps / 2);
#pragma unroll 1
    for (int turns = (at.n - rank + kRowStep - 1) / kRowStep; turns > 0; --turns, row += kRowStep) {
        const bool there = row < at.n;
        if (there) {
            const float4 y = verify_convolution(inputs, key_weights);
            float* const to = (warp % 2 == 0 ? q : k) + row * kDim;
            store_four(to + 4 * lane, y);
            float* const keep = stash + row * a.kept.stride;
            if (keeps) store_newest(keep + key_channel, inputs);
            if (row + kRowStep < at.n) inputs.ask(taps + kDeltaTaps * (row + kRowStep), key_channel);
            __syncwarp();
            float x[kElements];
            verify_elements(to, x);
            const float factor = __fmul_rn(delta_factor(delta_squares(x, kDim, 0.0f)), last_factor);
            const float4 scaled = make_float4(__fmul_rn(y.x, factor), __fmul_rn(y.y, factor), __fmul_rn(y.z, factor),
                                              __fmul_rn(y.w, factor));
            __syncwarp();
            store_four(to + 4 * lane, scaled);
#pragma unroll
            for (int other = 1; other < kCtas; ++other) send(to + 4 * lane, (rank + other) % kCtas, rows_there, scaled);
            if (keeps && warp % 2 == 1) store_four(keep + a.kept.heads_at + key_channel - keys, scaled);
        }
        asm volatile("bar.sync %0, 64;" ::"r"(1 + warp / 2) : "memory");  // q and k of the row
        if (there && warp % 2 == 1) {
            const float dot = delta_dot(k + row * kDim, q + row * kDim, kDim);
            if (lane == rank) gates[4 * row + 2] = dot;
            else if (lane < kCtas) send(gates + 4 * row + 2, lane, rows_there, dot);
        }
    }
    if (has_gates) {
        const float2 by = delta_gates(gates_from.x, gates_from.y, dt_bias, decay);
        gates[4 * lane] = by.x, gates[4 * lane + 1] = by.y;
        if (rank == 0) delta_keep_gates(a, at.first + lane, at.h, by);
    }
#pragma unroll 1
    for (int r = first_value; r < at.n; r += kTogether) {
        const float4 y = verify_convolution(values, value_weights);
        float* const keep = stash + r * a.kept.stride + value_channel;
        store_newest(keep, values);
        if (r + kTogether < at.n) values.ask(taps + kDeltaTaps * (r + kTogether), value_channel);
        store_four(v + r * kColumns + column, y);
        store_four(keep + a.kept.heads_at - keys, y);
    }
    // Rows that this warp will end.
    const int first_row = rank + kCtas * warp;
    float gate[kElements], next_gate[kElements];
#pragma unroll
    for (int c = 0; c < kElements; ++c) {
        const float* const from = a.z.row(at.first + first_row) + at.h * kDim + lane + 32 * c;
        gate[c] = first_row < at.n ? *from : 0.0f;
        next_gate[c] = first_row + kCtas * kWarps < at.n ? from[kCtas * kWarps * a.z.stride] : 0.0f;
    }
    __syncthreads();
    rows_there.wait();

    uint32_t to = shared_address(outputs + first_column + own + Tile::whose()),
             to_inbox = shared_address(&outputs_there);
    int writes = Tile::speaks() ? 1 : 0;
    asm volatile("" : "+r"(to), "+r"(to_inbox), "+r"(writes));  // computed here, not again for each row
    const DeltaVisit* visit = plan.visits;
    const float *const my_q = q + Tile::row(0), *const my_k = k + Tile::row(0);
    float own_keys[8];
    int here = kTree ? visit->node : 0;
    Tile::own_rows(my_k + here * kDim, own_keys);
#pragma unroll 1
    for (int more = at.n - 1; more >= 0; --more) {
        if (kTree && visit->load >= 0) tile.recall(kept + visit->load * kSlot);
        const float4 by = *reinterpret_cast<const float4*>(gates + 4 * here);
        const Piece value = *reinterpret_cast<const Piece*>(v + here * kColumns + own);
        float queries[8];
        Tile::own_rows(my_q + here * kDim, queries);
        const float of_keys = tile.sum_of(own_keys), of_queries = tile.sum_of(queries);
        const Piece d = Tile::differences_of(of_keys, value, by);
        tile.join(own_keys, d, by);
        const int next = more == 0 ? here : kTree ? visit[1].node : here + 1;
        Tile::own_rows(my_k + next * kDim, own_keys);
        if (kTree && visit->save >= 0) tile.keep(kept + visit->save * kSlot);
        const auto end = static_cast<uint32_t>(here % kCtas);
        send_if(writes, in_cta(to + static_cast<uint32_t>(here / kCtas * kDim * 4), end),
                Tile::output_of(of_queries, d, by), in_cta(to_inbox, end));
        here = next;
        if constexpr (kTree) ++visit;
    }
    if (first_row >= at.n) return;

    outputs_there.wait();
    const int64_t cols = int64_t{z.value_heads} * kDim;
#pragma unroll 1
    for (int r = first_row; r < at.n; r += kCtas * kWarps) {
        float o[kElements], silu[kElements];
        verify_elements(outputs + r / kCtas * kDim, o);
        verify_silu(gate, silu);
        const float scale = rms_scale(warp_sum(delta_squares(o, kDim, 0.0f)), kDim, a.eps);
        float* const out = a.out + (at.first + r) * cols + at.h * kDim + lane;
#pragma unroll
        for (int c = 0; c < kElements; ++c) {
            out[32 * c] = o[c] = delta_output(o[c], scale, norm[c], silu[c]);
            gate[c] = next_gate[c];
        }
        if (a.out8 == nullptr) continue;
#pragma unroll 1
        for (int c = 0; c < kElements; ++c) {
            put_act_group(a.out8 + (at.first + r) * ActRow::bytes(cols), cols, at.h * kElements + c, o[0]);
            o[0] = o[1], o[1] = o[2], o[2] = o[3];
        }
    }
#endif
}

bool aligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }
bool aligned(const DeltaMatrix& m) { return aligned(m.data) && m.stride % 4 == 0; }

/// False if not all clusters are on the chip at once.
template <int kWarps>
bool launch_verify(const Gpu& gpu, const DeltaArgs& a, int64_t rows, int64_t sequences) {
    constexpr int kColumns = kColumnsOf * kWarps, kCtas = kDim / kColumns;
    const DeltaSizes& z = a.sizes;
    const int heads = z.tiled ? z.key_heads : z.value_heads / z.key_heads;
    const VerifyLayout layout(static_cast<int>(rows), kColumns, heads);
    const bool tree = a.parent != nullptr;
    auto* const kernel = tree ? delta_verify_kernel<kWarps, true> : delta_verify_kernel<kWarps, false>;
    const int64_t needed = tree ? layout.slots + delta_slots(rows) * kDim * kColumns * 4 : layout.plan;
    // So much shared memory that no SM takes more than its share.
    const int64_t clusters = z.value_heads * sequences,
                  each = blocks_of(clusters * kCtas, std::max(1, gpu.info().sm_count)),
                  shared = std::max(needed, gpu.info().shared_bytes / (each + 1));
    if (shared > gpu.info().shared_bytes) return false;
    allow_shared(reinterpret_cast<const void*>(kernel), static_cast<size_t>(shared));
    if (cuda::decode::most_clusters(reinterpret_cast<const void*>(kernel), kCtas, 32 * kWarps, shared) < clusters)
        return false;
    const dim3 grid(static_cast<unsigned>(z.value_heads * kCtas), static_cast<unsigned>(sequences));
    launch_clusters(gpu, kernel, grid, dim3(32 * kWarps), static_cast<size_t>(shared), kCtas, a, layout);
    return true;
}

}  // namespace

bool launch_delta_verify(const Gpu& gpu, const DeltaArgs& a, int64_t rows, int64_t sequences) {
    const DeltaSizes& z = a.sizes;
    if (!gpu.hopper() || a.update || a.kept.at == nullptr || rows > kMostRows || z.width != kDeltaTaps ||
        z.key_dim != kDim || z.value_dim != kDim || !aligned(a.conv_weights) || !aligned(a.conv) || !aligned(a.qkv) ||
        !aligned(a.kept.at) || (a.kept.stride | a.kept.heads_at) % 4 != 0)
        return false;
    return (4 * z.value_heads * sequences <= gpu.info().sm_count && launch_verify<4>(gpu, a, rows, sequences)) ||
           launch_verify<8>(gpu, a, rows, sequences);
}

}  // namespace riptide::ops
