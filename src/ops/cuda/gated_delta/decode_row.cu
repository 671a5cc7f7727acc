// Gated DeltaNet, one row for each sequence: plain decoding. For chains and trees see verify_sm90.cu and
// recurrence.cu, for commits the latter.
//
// Bytes: a sequence's state, read (and written, where rows are kept) once: 3.15 MB a layer at 48 heads of 128 x 128;
// one row reads and writes 6.3 MB, 1.4 us at 4.5 TB/s on an H200. FLOPs: 8 for each element of the state and row; on
// CUDA cores, 128 x 128 x 4 fma of a head are 512 cycles of an SM. All of it is less than the latency of the chain from
// projections to output, so that is what the kernel is built around.
// Reached on an H200, 2026-11-23 (bench_gpu_delta, random inputs; docs/results/qwen35.md; before that day in brackets),
// a row that is not kept, that is kept, that follows: 48 heads in clusters 5.5 us (5.4), 6.6 (8.0), 6.8 (5.4), in
// single CTAs 4.8, 6.9 and 5.4; 16 heads in clusters 4.0 (3.8), 4.4 (6.0) and 4.4 us (4.2), in single CTAs 3.4, 4.9
// and 3.8. 16 kept rows of 16 sequences, 48 heads: 58.7 us (56.1), 37 %. Since outputs are sent without a fence, a row
// that follows takes 6.2 us in clusters (48 heads).
//
// A warp owns eight columns of a head's state, in registers (DeltaTile), and needs nobody else's. Before the wait,
// while the projections are still computed: the state, the sums over the convolution's older inputs. Behind it: one
// read of the row's projections; q, k, v and gates by a warp each; a barrier; the state's row; a barrier; norm and
// gate, 32 elements a warp. What is kept of the row is stored where no output waits for it. The convolution is computed
// again by each value head of a key head: 256 channels beside 128 x 128 elements of a state. A head is a CTA's, or
// where there are few a cluster's of four (32 columns each; q and k are prepared by all four). Alone that is slower. In
// a step of a model it is faster: 64 KB of state on a few SMs come after everything that other kernels fetch there, and
// 512 threads leave those no room. A token of Qwen3.5-0.8B 695 us, 667 with clusters; of the 27B 6.08 ms and 5.95.
#include <algorithm>
#include <type_traits>

#include "ops/cuda/backend.h"
#include "ops/cuda/device/cluster.cuh"
#include "ops/cuda/gated_delta/prepare_rows.cuh"

namespace riptide::ops {

namespace {

constexpr int kMostDim = 128;  // of a head here
constexpr int kParts = 3;      // q, k, v

struct RowShared {
    alignas(16) float last_key[kMostDim];                       // of the row that joins the state first
    float4 weights[kParts][kMostDim];                           // of the convolution, the oldest tap first
    alignas(16) float older[kParts][kDeltaTaps - 1][kMostDim];  // inputs, the newest first; then the row's own in [0]
    alignas(16) float head[kParts][kMostDim];                   // of v the CTA's columns
    float o[kMostDim];                                          // of the whole head
    float2 gates;
#ifdef RT_CLUSTER_KERNEL
    Inbox inbox;  // o of the cluster's CTAs
#endif
};

__device__ __forceinline__ void fetch16(void* to, const void* from) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(static_cast<uint32_t>(__cvta_generic_to_shared(to))),
                 "l"(from)
                 : "memory");
#else
    *static_cast<uint4*>(to) = load_weights(from);
#endif
}
__device__ __forceinline__ void fetched() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
    __syncwarp();
}

/// Of a step that follows another: the row of the stash that the slot does not hold yet, or null, and where the step's
/// own row goes.
struct DeltaLast {
    const float* row = nullptr;
    int held, to;

    __device__ __forceinline__ DeltaLast(const DeltaArgs& a, const DeltaPlace& at)
        : held(at.committed), to(static_cast<int>(at.first)) {
        if (a.held == nullptr) return;
        held = delta_early(a.held + at.sequence);
        to = static_cast<int>(delta_follow_row(at.sequence, at.committed));
        if (held < at.committed) row = a.kept.at + delta_follow_row(at.sequence, held) * a.kept.stride;
    }
};

/// That row joins the state: in registers, and in the slot, which no kernel reads until this one has ended. Above
/// pdl_wait(). Called by all threads.
template <int kRows>
__device__ __forceinline__ void catch_up(const DeltaArgs& a, const DeltaPlace& at, const float* last, int own,
                                         float* state, DeltaTile<kRows>& tile, RowShared& s) {
    const DeltaSizes& z = a.sizes;
    const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
    const float* const heads = last + a.kept.heads_at;
    if (warp == kParts)
#pragma unroll
        for (int c = 0; c < kMostDim / 32; ++c) {
            const int i = lane + 32 * c;
            s.last_key[i] = i < z.key_dim ? __uint_as_float(EarlyLoad::one(heads + at.key * z.key_dim + i)) : 0.0f;
        }
    const float* const gates = last + a.kept.stride - 2 * z.value_heads + at.h;
    const float decay = __uint_as_float(EarlyLoad::one(gates)),
                beta = __uint_as_float(EarlyLoad::one(gates + z.value_heads));
    const uint4 v = load_weights(heads + z.keys() + at.h * z.value_dim + own);
    __syncthreads();
    tile.template step<false>(nullptr, s.last_key,
                              {__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z), __uint_as_float(v.w)},
                              make_float4(decay, beta, 0.0f, 0.0f));
    tile.store(state, z.key_dim, z.value_dim, z.value_dim - own);
}

/// The inputs of that row's convolution to the slot, by the warp that fetched them.
__device__ __forceinline__ void keep_last_input(const DeltaArgs& a, const DeltaPlace& at, int held, int first, int d,
                                                const float* inputs) {
    DeltaPlace before = at;
    before.committed = held;
    for (int c = static_cast<int>(threadIdx.x % 32); c < d; c += 32) delta_put_input(a, before, first + c, inputs[c]);
}

/// What a head of q, k or v needs but for the row's own inputs, by a warp. first: its first channel. last: the inputs
/// of the position before, if they are not in the slot.
__device__ __forceinline__ void fetch_older(const DeltaArgs& a, const DeltaPlace& at, const float* last, int part,
                                            int first, int d, RowShared& s) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const DeltaSizes& z = a.sizes;
    const float* conv = a.conv + at.slot * z.conv_floats + first;
    for (int c = lane; c < d; c += 32) fetch16(&s.weights[part][c], a.conv_weights + int64_t{first + c} * kDeltaTaps);
    for (int i = 0; i < kDeltaTaps - 1; ++i) {
        const int position = at.committed - 1 - i;
        if (position >= 0) {
            const float* from =
                i == 0 && last != nullptr ? last + first : conv + int64_t{position % kDeltaTaps} * z.channels;
            if (4 * lane < d) fetch16(&s.older[part][i][4 * lane], from + 4 * lane);
        } else {
            for (int c = lane; c < d; c += 32) s.older[part][i][c] = 0.0f;
        }
    }
}

/// What a lane has of a head of q, k or v above the wait: the sums over the older taps, and the newest tap's weight.
struct OlderSums {
    float sum[kMostDim / 32], weight[kMostDim / 32];

    /// By the warp that fetched them. As DeltaConvolution::convolved begins.
    __device__ __forceinline__ void take(const RowShared& s, int part, int d) {
        const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
        for (int c = 0; c < kMostDim / 32; ++c) {
            const int i = lane + 32 * c;
            sum[c] = weight[c] = 0.0f;
            if (i >= d) continue;
            const float4 w = s.weights[part][i];
            sum[c] = __fmaf_rn(w.x, s.older[part][2][i], 0.0f);
            sum[c] = __fmaf_rn(w.y, s.older[part][1][i], sum[c]);
            sum[c] = __fmaf_rn(w.z, s.older[part][0][i], sum[c]);
            weight[c] = w.w;
        }
    }
};

/// q, k or v of the row, to shared memory.
__device__ __forceinline__ void prepare_part(const float* from, int part, int d, const OlderSums& older, RowShared& s) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    float newest[kMostDim / 32], x[kMostDim / 32];
#pragma unroll
    for (int c = 0; c < kMostDim / 32; ++c) newest[c] = lane + 32 * c < d ? from[lane + 32 * c] : 0.0f;
#pragma unroll
    for (int c = 0; c < kMostDim / 32; ++c) {
        x[c] = 0.0f;
        if (lane + 32 * c >= d) continue;
        const float sum = __fmaf_rn(older.weight[c], newest[c], older.sum[c]);
        x[c] = __fdiv_rn(sum, __fadd_rn(1.0f, expf(-sum)));
    }
    if (part < 2) {
        const float factor = delta_factor(delta_squares(x, d, 0.0f), d, part == 0);
#pragma unroll
        for (int c = 0; c < kMostDim / 32; ++c) x[c] = __fmul_rn(x[c], factor);
    }
#pragma unroll
    for (int c = 0; c < kMostDim / 32; ++c) {
        s.head[part][lane + 32 * c] = x[c];  // behind d: zeros
        s.older[part][0][lane + 32 * c] = newest[c];
    }
}

/// What is kept of it, by the same warp.
__device__ __forceinline__ void keep_part(const DeltaArgs& a, const DeltaPlace& at, int to, int part, int first, int d,
                                          const RowShared& s) {
    float* const kept = a.kept.at + to * a.kept.stride + a.kept.heads_at - a.sizes.keys() + first;
    for (int i = static_cast<int>(threadIdx.x % 32); i < d; i += 32) {
        delta_keep_input(a, at, to, first + i, s.older[part][0][i]);
        if (part > 0 && a.kept.at != nullptr) kept[i] = s.head[part][i];
    }
}

/// The CTAs of a head. Alone: value_dim / 8 warps.
struct OneCta {
    static constexpr int kThreads = 4 * kMostDim, kMost = 2;
    static constexpr bool kKeepsFirst = false;
    __device__ static int head() { return static_cast<int>(blockIdx.x); }
    __device__ static int first_column() { return 0; }
    __device__ static void start(RowShared&, int) {}
    __device__ static void started() {}
    __device__ static void put(RowShared& s, int column, int, float o) { s.o[column] = o; }
    __device__ static void receive(const RowShared&) { __syncthreads(); }
};
/// A cluster: each has 32 columns and four warps. The outputs of a head meet in the shared memory of all.
struct Cluster {
    static constexpr int kColumns = 32, kThreads = kColumns / kWarpColumns * 32, kMost = 7;
#ifdef RT_CLUSTER_KERNEL
    static constexpr bool kKeepsFirst = true;
    __device__ static int size() { return static_cast<int>(cluster_size()); }
    __device__ static int head() { return static_cast<int>(blockIdx.x) / size(); }
    __device__ static int first_column() { return static_cast<int>(blockIdx.x) % size() * kColumns; }
    __device__ static void start(RowShared& s, int columns) {
        if (threadIdx.x == 0) s.inbox.open(columns * static_cast<int>(sizeof(float)));
        __syncwarp();
        cluster_start();
    }
    __device__ static void started() {
        __syncwarp();
        cluster_wait();
    }
    __device__ static void put(RowShared& s, int column, int count, float o) {
        for (int i = 0; i < count; ++i) send(s.o + column, i, s.inbox, o);
    }
    __device__ static void receive(const RowShared& s) { s.inbox.wait(); }
#endif
};

template <int kRows, class Ctas>
__device__ __forceinline__ void delta_row(const DeltaArgs& a, RowShared& s) {
    pdl_trigger();
    const DeltaSizes& z = a.sizes;
    Ctas::start(s, z.value_dim);
    const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
    const int warps = static_cast<int>(blockDim.x / 32), columns = kWarpColumns * warps;
    DeltaPlace at;
    at.find(a, static_cast<int>(blockIdx.y), Ctas::head());
    const int column = Ctas::first_column(), own = warp * kWarpColumns + DeltaTile<kRows>::first_column();
    float* state = a.state + at.slot * z.state_elements + int64_t{at.h} * z.key_dim * z.value_dim + column + own;
    const DeltaLast last(a, at);
    DeltaTile<kRows> tile;
    if (last.held == 0) tile.clear();
    else tile.load(state, z.key_dim, z.value_dim, columns - own);
    const int part = warp, d = part == 2 ? columns : z.key_dim;
    const int first = part == 0   ? at.key * d
                      : part == 1 ? z.keys() + at.key * d
                                  : 2 * z.keys() + at.h * z.value_dim + column;
    const bool writes = part == 2 || (column == 0 && z.writes_keys(at.h));
    if (part < kParts) fetch_older(a, at, last.row, part, first, d, s);
    // The last warps will finish 32 elements each.
    const int finishes = column + 32 * (warps - 1 - warp) + lane;
    const bool finisher = 32 * (warps - 1 - warp) < columns;
    float norm = 0.0f, gate = 0.0f;
    if (finisher) norm = __uint_as_float(EarlyLoad::one(a.norm + finishes));
    const float dt_bias = __uint_as_float(EarlyLoad::one(a.dt_bias + at.h)),
                decay = __uint_as_float(EarlyLoad::one(a.decay + at.h));
    if (last.row != nullptr) catch_up(a, at, last.row, column + own, state, tile, s);
    OlderSums older;
    if (part < kParts) {
        fetched();
        if (last.row != nullptr && writes) keep_last_input(a, at, last.held, first, d, s.older[part][0]);
        older.take(s, part, d);
    }
    Ctas::started();
    pdl_wait();
    if (finisher) gate = a.z.row(at.first)[at.h * z.value_dim + finishes];
    if (part < kParts) {
        prepare_part(a.qkv.row(at.first) + first, part, d, older, s);
    } else if (part == kParts) {
        const float2 gates = delta_gates(a, at.first, at.h, dt_bias, decay);
        if (lane == 0) s.gates = gates;
    }
    __syncthreads();
    using Piece = DeltaTile<kRows>::Piece;
    const Piece v = *reinterpret_cast<const Piece*>(s.head[2] + own);
    const float kq = delta_dot(s.head[1], s.head[0], z.key_dim);
    const float4 by = make_float4(s.gates.x, s.gates.y, kq, 0.0f);
    float keys[kRows], queries[kRows];
    tile.own_rows(s.head[0] + tile.row(0), queries);
    tile.own_rows(s.head[1] + tile.row(0), keys);
    const float sum = tile.template sums<true>(queries, keys), o = tile.look(sum, v, by);
    if (DeltaTile<kRows>::has_output())
        Ctas::put(s, column + own + DeltaTile<kRows>::output_column(), z.value_dim / columns, o);
    const auto keep = [&] {  // nobody of the step waits for it
        if (part < kParts && writes) keep_part(a, at, last.to, part, first, d, s);
        if (warp == 0 && lane == 0 && column == 0) delta_keep_gates(a, last.to, at.h, s.gates);
        if (!a.update) return;
        tile.own_rows(s.head[1] + tile.row(0), keys);
        tile.join(keys, tile.differences(sum, *reinterpret_cast<const Piece*>(s.head[2] + own), by), by);
        tile.store(state, z.key_dim, z.value_dim, columns - own);
    };
    if (finisher) gate = delta_gate(gate);
    if (Ctas::kKeepsFirst) keep();  // meanwhile outputs are on their way
    Ctas::receive(s);
    if (finisher) {
        const float* const all = s.o;
        const float scale = warp_rms_scale([all, lane](int j) { return all[lane + 32 * j]; }, z.value_dim, a.eps);
        const float y = delta_output(s.o[finishes], scale, norm, gate);
        const int64_t cols = int64_t{z.value_heads} * z.value_dim, i = int64_t{at.h} * z.value_dim + finishes;
        a.out[at.first * cols + i] = y;
        if (a.out8 != nullptr) put_act_group(a.out8 + at.first * ActRow::bytes(cols), cols, i / 32, y);
    }
    if (!Ctas::kKeepsFirst) keep();
}

/// Grid: value heads times CTAs of each, sequences. REQUIRES takes_one_row.
template <int kRows, class Ctas>
__global__ void __launch_bounds__(Ctas::kThreads, Ctas::kMost) delta_row_kernel(const __grid_constant__ DeltaArgs a) {
    __shared__ RowShared s;
#ifndef RT_CLUSTER_KERNEL
    if constexpr (std::is_same_v<Ctas, OneCta>)
#endif
        delta_row<kRows, Ctas>(a, s);
}

bool aligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

/// Sizes whose pieces of 16 bytes are whole.
bool suits_one_row(const DeltaView& view) {
    return view.conv_width == kDeltaTaps && view.key_dim % 32 == 0 && view.key_dim <= kMostDim &&
           view.value_dim % 32 == 0 && view.value_dim <= kMostDim && aligned(view.conv);
}
/// One row for each sequence.
bool takes_one_row(const DeltaView& view, const GatedDeltaInput& in, const Batch& batch) {
    return batch.rows() == batch.sequences() && suits_one_row(view) && aligned(in.conv.data());
}

void launch_row(const Gpu& gpu, const DeltaArgs& a, const DeltaView& view, int64_t sequences) {
    const bool clusters =
        gpu.hopper() && view.value_dim > Cluster::kColumns && 2 * view.value_heads * sequences <= gpu.info().sm_count;
    const int ctas = clusters ? static_cast<int>(view.value_dim) / Cluster::kColumns : 1;
    const dim3 grid(static_cast<unsigned>(view.value_heads * ctas), static_cast<unsigned>(sequences));
    const auto threads = static_cast<unsigned>(view.value_dim / ctas / kWarpColumns * 32);
    auto* const kernel = view.key_dim <= 64 ? (clusters ? delta_row_kernel<4, Cluster> : delta_row_kernel<4, OneCta>)
                                            : (clusters ? delta_row_kernel<8, Cluster> : delta_row_kernel<8, OneCta>);
    launch_clusters(gpu, kernel, grid, dim3(threads), 0, ctas, a);
}

DeltaMatrix matrix(const Tensor& t) { return {t.row(0), t.row_stride}; }

}  // namespace

namespace cuda {

bool delta_follows(const DeltaView& view) {
    return suits_one_row(view) && view.value_heads % 2 == 0 && aligned(view.stash);  // rows of the stash too
}

Tensor gated_delta(Context& ctx, const GatedDeltaInput& in, const DeltaView& view, const Batch& batch, DeltaMode mode,
                   std::span<const int32_t> held) {
    check_delta_sizes(view);
    RT_ASSERT(batch.parent.empty() || batch.rows() <= kDeltaTreeRows);
    const int64_t n = batch.rows(), heads = view.value_heads;
    Tensor out = ctx.alloc(DType::f32, {n, heads * view.value_dim});
    if (n == 0) return out;
    DeltaArgs a = {};
    a.conv = view.conv;
    a.state = static_cast<float*>(view.state);
    a.sizes = delta_sizes(view);
    a.qkv = matrix(in.qkv);
    a.z = matrix(in.z);
    a.a = matrix(in.a);
    a.b = matrix(in.b);
    a.conv_weights = in.conv.data();
    a.decay = in.decay.data();
    a.dt_bias = in.dt_bias.data();
    a.norm = in.norm.weight.data();
    a.eps = in.norm.eps;
    a.out = out.row(0);
    if (in.int8 && ctx.family == Family::decode && view.value_dim % 32 == 0) {
        a.out8 = static_cast<unsigned char*>(ctx.arena->allocate(n * ActRow::bytes(heads * view.value_dim)));
        out.int8 = a.out8;
    }
    a.positions = batch.positions.data();
    a.row_begin = batch.row_begin.data();
    a.committed = batch.committed.data();
    a.state_slot = batch.state_slot.data();
    a.parent = batch.parent.empty() ? nullptr : batch.parent.data();
    a.update = mode == DeltaMode::update;
    if (!a.update) a.kept = {view.stash, view.stash_floats(), static_cast<int>(view.channels()), true};
    RT_ASSERT(held.empty() || (delta_follows(view) && takes_one_row(view, in, batch)));
    a.held = held.empty() ? nullptr : held.data();
    if (takes_one_row(view, in, batch)) {
        a.one_row = a.update;
        launch_row(*ctx.gpu, a, view, batch.sequences());
        return out;
    }
    if (launch_delta_verify(*ctx.gpu, a, n, batch.sequences())) return out;
    a.by_chunks = a.update && ctx.family == Family::prefill && n >= kDeltaChunk && takes_delta_chunks(*ctx.gpu, view);
    launch_delta_chain(ctx, a, batch);
    launch_delta_norm(ctx, a, n);
    if (a.update) launch_delta_conv(ctx, a, batch.sequences());
    return out;
}

}  // namespace cuda

}  // namespace riptide::ops
