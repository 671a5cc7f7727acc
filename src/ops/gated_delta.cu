// Gated DeltaNet, one row for each sequence: plain decoding. For chains, trees and commits see gated_delta_chain.cu.
//
// Bytes: a sequence's state, read (and written, where rows are kept) once: 3.15 MB a layer at 48 heads of 128 x 128;
// one row reads and writes 6.3 MB, 1.4 us at 4.5 TB/s on an H200. FLOPs: 8 for each element of the state and row; on
// CUDA cores, 128 x 128 x 4 fma of a head are 512 cycles of an SM. All of it is less than the latency of the chain from
// projections to output, so that is what the kernel is built around.
// Reached on an H200, 2026-11-22 (bench_gpu_delta, random inputs, 48 heads; docs/results/qwen35.md): a row that is not
// kept 5.5 us, kept 8.3 us (13.8 before anything was fetched ahead); 16 kept rows of 16 sequences 58 us, 37 %.
//
// A block has a head; a warp owns eight columns of its state, in registers (DeltaTile), and needs nobody else's. Before
// the wait, while the projections are still computed: the state, the convolution's weights and older inputs. Behind it:
// one read of the row's projections; q, k, v and gates by a warp each; a barrier; the state's row; a barrier; norm and
// gate, 32 elements a warp. The convolution is computed again by each value head of a key head: 256 channels beside 128
// x 128 elements of a state.
#include <algorithm>

#include "ops/cuda.h"
#include "ops/gated_delta_rows.cuh"

namespace riptide::ops {

namespace {

constexpr int kMostDim = 128;  // of a head here
constexpr int kParts = 3;      // q, k, v

struct RowShared {
    alignas(16) float last_key[kMostDim];                       // of the row that joins the state first
    float4 weights[kParts][kMostDim];                           // of the convolution, the oldest tap first
    alignas(16) float older[kParts][kDeltaTaps - 1][kMostDim];  // inputs, the newest first
    alignas(16) float head[kParts][kMostDim];
    float o[kMostDim];
    float2 gates;
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
    tile.template step<false>(
        nullptr, s.last_key,
        make_float4(__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z), __uint_as_float(v.w)),
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

/// q, k or v of the row, by the warp that fetched what is older: to shared memory, and to row `to` of what is kept.
__device__ __forceinline__ void prepare_part(const DeltaArgs& a, const DeltaPlace& at, int to, int part, int first,
                                             int d, RowShared& s) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const float* from = a.qkv.row(at.first) + first;
    float newest[kMostDim / 32], x[kMostDim / 32];
#pragma unroll
    for (int c = 0; c < kMostDim / 32; ++c) newest[c] = lane + 32 * c < d ? from[lane + 32 * c] : 0.0f;
    fetched();
    const bool writes = part == 2 || a.sizes.writes_keys(at.h);
#pragma unroll
    for (int c = 0; c < kMostDim / 32; ++c) {
        const int i = lane + 32 * c;
        x[c] = 0.0f;
        if (i >= d) continue;
        const float4 w = s.weights[part][i];
        const float taps[kDeltaTaps] = {newest[c], s.older[part][0][i], s.older[part][1][i], s.older[part][2][i]},
                    weights[kDeltaTaps] = {w.w, w.z, w.y, w.x};
        x[c] = DeltaConvolution<1>::convolved(taps, weights);
    }
    if (part < 2) {
        const float factor = delta_factor(delta_squares(x, d, 0.0f), d, part == 0);
#pragma unroll
        for (int c = 0; c < kMostDim / 32; ++c) x[c] = __fmul_rn(x[c], factor);
    }
#pragma unroll
    for (int c = 0; c < kMostDim / 32; ++c) s.head[part][lane + 32 * c] = x[c];  // behind d: zeros
    if (!writes) return;
    float* const kept = a.kept.at + to * a.kept.stride + a.kept.heads_at - a.sizes.keys() + first;
#pragma unroll
    for (int c = 0; c < kMostDim / 32; ++c) {
        const int i = lane + 32 * c;
        if (i >= d) break;
        delta_keep_input(a, at, to, first + i, newest[c]);
        if (part > 0 && a.kept.at != nullptr) kept[i] = x[c];
    }
}

/// Grid: value heads, sequences. REQUIRES takes_one_row.
template <int kRows>
__global__ void __launch_bounds__(4 * kMostDim, 2) delta_row_kernel(const __grid_constant__ DeltaArgs a) {
    __shared__ RowShared s;
    pdl_trigger();
    const DeltaSizes& z = a.sizes;
    const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
    const int warps = static_cast<int>(blockDim.x / 32);
    DeltaPlace at;
    at.find(a, static_cast<int>(blockIdx.y), static_cast<int>(blockIdx.x));
    const int own = warp * kWarpColumns + DeltaTile<kRows>::first_column();
    float* state = a.state + at.slot * z.state_elements + int64_t{at.h} * z.key_dim * z.value_dim + own;
    const DeltaLast last(a, at);
    DeltaTile<kRows> tile;
    if (last.held == 0) tile.clear();
    else tile.load(state, z.key_dim, z.value_dim, z.value_dim - own);
    const int part = warp, d = part == 2 ? z.value_dim : z.key_dim;
    const int first = part == 0 ? at.key * d : part == 1 ? z.keys() + at.key * d : 2 * z.keys() + at.h * d;
    if (part < kParts) fetch_older(a, at, last.row, part, first, d, s);
    // The last warps will finish 32 elements each.
    const int finishes = 32 * (warps - 1 - warp) + lane;
    const bool finisher = finishes < z.value_dim;
    float norm = 0.0f, gate = 0.0f;
    if (finisher) norm = __uint_as_float(EarlyLoad::one(a.norm + finishes));
    const float dt_bias = __uint_as_float(EarlyLoad::one(a.dt_bias + at.h)),
                decay = __uint_as_float(EarlyLoad::one(a.decay + at.h));
    if (last.row != nullptr) {
        catch_up(a, at, last.row, own, state, tile, s);
        if (part < kParts) {
            fetched();
            if (part == 2 || z.writes_keys(at.h)) keep_last_input(a, at, last.held, first, d, s.older[part][0]);
        }
    }
    pdl_wait();
    if (finisher) gate = delta_gate(a.z.row(at.first)[at.h * z.value_dim + finishes]);
    if (part < kParts) {
        prepare_part(a, at, last.to, part, first, d, s);
    } else if (part == kParts && lane == 0) {
        s.gates = delta_gates(a, at.first, at.h, dt_bias, decay);
        delta_keep_gates(a, last.to, at.h, s.gates);
    }
    __syncthreads();
    const float4 v = *reinterpret_cast<const float4*>(s.head[2] + own);
    const float kq = delta_dot(s.head[1], s.head[0], z.key_dim);
    const float o = tile.template step<true>(s.head[0], s.head[1], v, make_float4(s.gates.x, s.gates.y, kq, 0.0f));
    if (DeltaTile<kRows>::has_output()) s.o[own + DeltaTile<kRows>::output_column()] = o;
    __syncthreads();
    if (a.update) tile.store(state, z.key_dim, z.value_dim, z.value_dim - own);
    if (!finisher) return;
    const float* const all = s.o;
    const float scale = warp_rms_scale([all, lane](int j) { return all[lane + 32 * j]; }, z.value_dim, a.eps);
    const float y = delta_output(s.o[finishes], scale, norm, gate);
    const int64_t cols = int64_t{z.value_heads} * z.value_dim, i = int64_t{at.h} * z.value_dim + finishes;
    a.out[at.first * cols + i] = y;
    if (a.out8 != nullptr) put_act_group(a.out8 + at.first * ActRow::bytes(cols), cols, i / 32, y);
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
    const dim3 grid(static_cast<unsigned>(view.value_heads), static_cast<unsigned>(sequences));
    auto* const kernel = view.key_dim <= 64 ? delta_row_kernel<4> : delta_row_kernel<8>;
    launch(gpu, kernel, grid, dim3(static_cast<unsigned>(view.value_dim / kWarpColumns * 32)), 0, a);
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
    if (ctx.family == Family::decode && view.value_dim % 32 == 0) {
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
    a.by_chunks =
        a.update && ctx.family == Family::prefill && n >= kDeltaChunk && takes_delta_chunks(*ctx.gpu, view);
    launch_delta_chain(ctx, a, batch);
    launch_delta_norm(ctx, a, n);
    if (a.update) launch_delta_conv(ctx, a, batch.sequences());
    return out;
}

}  // namespace cuda

}  // namespace riptide::ops
