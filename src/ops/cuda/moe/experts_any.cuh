// The SwiGLU kernels of the decode family, as templates: moe_decode.cu compiles those for Q4_K_M files,
// experts_any_other.cu those for all other types. moe_decode.cu describes the design.
#pragma once

#include <type_traits>

#include "ops/cuda/device/row_math.cuh"
#include "ops/cuda/linear/shared/dot_batch.cuh"

namespace riptide::ops::cuda::decode {

// ---- Gate and up.

struct GateUpArgs {
    Matrix m[4];  // gate and up of the experts, gate and up of the shared expert (or of a dense layer)
    const int32_t* experts = nullptr;  // [n, top_k]
    int32_t top_k = 0;
    int32_t ff = 0;
    int32_t shared_warps = 0;       // of the eight of a CTA; 0: no shared expert
    bool next_reads_early = false;  // see experts_any_gate_up_kernel
    ActLayout layout;
    ActSource x;
    float* out = nullptr;  // [n, top_k (+ 1), ff]
};

// ---- Down.

struct DownArgs {
    Matrix m[2];  // of the experts, of the shared expert
    const int32_t* experts = nullptr;
    const float* weights = nullptr;  // [n, top_k]
    const float* act = nullptr;      // [n, slots, ff]
    int32_t top_k = 0;
    int32_t slots = 0;  // top_k, and one for a shared expert
    int32_t ff = 0;
    int32_t padded = 0;  // ff up to a multiple of 16
    int32_t rows = 0;
    ActLayout layout;              // of slots * padded columns
    float* y = nullptr;            // [n, rows]
    float* residual = nullptr;     // [n, rows] or null: += y
    const float* extra = nullptr;  // [n, rows] or null: added to y
};

constexpr int kMostTopK = 32;

#ifdef __CUDACC__

/// Rows gate 0, up 0, gate 1, up 1, ... of a CTA's pairs.
struct PairList {
    int first_pair, ff, first_matrix;
    int my_expert;  // of rank `lane`

    __device__ __forceinline__ int matrix(int i) const { return first_matrix + (i & 1); }
    __device__ __forceinline__ RowRef operator()(int i) const {
        const int pair = first_pair + i / 2, slot = pair / ff;
        return {matrix(i), first_matrix != 0 ? 0 : __shfl_sync(~0u, my_expert, slot), pair - slot * ff};
    }
};

/// out[r, slot, f] = silu(gate_f . x_r) * (up_f . x_r) for the experts of row r = blockIdx.y, last the shared one. CTA
/// b of B has pairs (f of a slot) of its own; its warps share the rows of their matrices, results meet in shared
/// memory. The first warps have the shared expert, whose weights they load before pdl_wait(); the others learn their
/// experts behind it. next_reads_early: the next kernel may read above ITS wait what was written before this kernel: it
/// is let go behind our own wait, when all that is complete.
template <class Batch>
__global__ void __launch_bounds__(kThreads, 2) experts_any_gate_up_kernel(const __grid_constant__ GateUpArgs a) {
    extern __shared__ uint4 dynamic[];
    __shared__ float partial[2 * kWarps];
    if (!a.next_reads_early) pdl_trigger();
    uint32_t raw[Batch::kWords];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = blockIdx.y;
    const int b = blockIdx.x, parts = gridDim.x, routed_warps = kWarps - a.shared_warps;
    const int shared_pairs = a.shared_warps > 0 ? a.ff : 0, pairs = a.top_k * a.ff;
    const int shared_first = part_of(shared_pairs, b, parts), first = part_of(pairs, b, parts);
    const int shared_count = part_of(shared_pairs, b + 1, parts) - shared_first;
    const int count = part_of(pairs, b + 1, parts) - first;
    const bool shared = warp < a.shared_warps;
    PairList list{shared ? shared_first : first, a.ff, shared ? 2 : 0, 0};
    const int rows = 2 * (shared ? shared_count : count);
    const int mine = shared ? warp : warp - a.shared_warps, of = shared ? a.shared_warps : routed_warps;
    const int begin = part_of(rows, mine, of), end = part_of(rows, mine + 1, of);
    char* staged = reinterpret_cast<char*>(dynamic);
    float* norm = reinterpret_cast<float*>(staged + a.layout.bytes());
    float* results = norm + a.x.norm_bytes(a.layout.cols) / 4;
    fetch_norm(a.x, a.layout.cols, norm);
    const auto wait = [&] {
        pdl_wait();
        if (a.next_reads_early) pdl_trigger();
    };
    run_rows<Batch, 1>(
        a.m, list, begin, end, lane, raw, false, staged, a.layout, 1,
        [&] {
            if (shared) return;
            wait();
            if (lane < a.top_k)
                list.my_expert = load_shared_i32(a.experts + static_cast<int64_t>(row) * a.top_k + lane);
            __syncwarp();
        },
        [&] {
            if (shared) wait();
            stage_rows(a.x, a.layout, row, 1, staged, norm, partial);
            __syncthreads();
        },
        [&](int i, int, float sum) { results[(shared ? 0 : 2 * shared_count) + i] = sum * a.m[list.matrix(i)].scale; });
    __syncthreads();
    const int slots = a.top_k + (a.shared_warps > 0 ? 1 : 0);
    float* out = a.out + static_cast<int64_t>(row) * slots * a.ff;
    for (int i = threadIdx.x; i < shared_count + count; i += kThreads) {
        const int at = i < shared_count ? pairs + shared_first + i : first + i - shared_count;
        out[at] = swiglu_value(results[2 * i], results[2 * i + 1]);
    }
}

/// The row's activations of all slots, one after the other.
__device__ __forceinline__ void stage_slots(const DownArgs& a, int row, char* out) {
    const int per_slot = a.padded / 8, pieces = a.slots * per_slot;
    const float* act = a.act + static_cast<int64_t>(row) * a.slots * a.ff;
#pragma unroll 1
    for (int first = 0; first < pieces; first += kThreads) {
        const int c = first + threadIdx.x, slot = min(c / per_slot, a.slots - 1);
        float v[8];
        load8(act + static_cast<int64_t>(slot) * a.ff, c < pieces ? c - slot * per_slot : a.padded, a.ff, v);
        put8(a.layout, out, c, v);
    }
}

__device__ __forceinline__ void wait_and_stage(const DownArgs& a, int row, char* staged) {
    pdl_wait();
    stage_slots(a, row, staged);
    __syncthreads();
}

/// A slot's matrix and expert. Ids are older than experts_any_gate_up_kernel: see experts_any_down_kernel.
struct Slot {
    int matrix, expert;
    bool there;
};
__device__ __forceinline__ Slot find_slot(const DownArgs& a, int row, int slot) {
    if (slot >= a.slots) return {0, 0, false};
    if (slot == a.top_k) return {1, 0, true};
    return {0, load_shared_i32(a.experts + static_cast<int64_t>(row) * a.top_k + slot), true};
}

/// By one lane for each slot: its product, weighed.
__device__ __forceinline__ void put_term(const DownArgs& a, int row, int slot, float sum, float* terms) {
    const float y = __fmul_rn(sum, a.m[slot < a.top_k ? 0 : 1].scale);
    terms[slot] = slot < a.top_k ? __fmul_rn(a.weights[static_cast<int64_t>(row) * a.top_k + slot], y) : y;
}

/// The sum in order of rank, the shared expert last. Behind __syncwarp().
__device__ __forceinline__ void store_down(const DownArgs& a, int row, int o, const float* terms) {
    const int64_t at = static_cast<int64_t>(row) * a.rows + o;
    float y = terms[0];
    for (int slot = 1; slot < a.slots; ++slot) y = __fadd_rn(y, terms[slot]);
    if (a.extra != nullptr) y = __fadd_rn(y, a.extra[at]);
    a.y[at] = y;
    if (a.residual != nullptr) a.residual[at] = __fadd_rn(a.residual[at], y);
}

/// y[r, o] = sum over slots, in order, of weight * (down_slot[o] . act[r, slot]): one warp for output o. B slots at a
/// time, or 2 B half a warp each (ff = 512: sixteen sub-blocks, whose butterfly needs no xor 16 because the other half
/// would add zeros). Everything but the activations is known before pdl_wait(): experts are older than
/// experts_any_gate_up_kernel, which lets this kernel go only behind its own wait.
template <class Set, int B, bool Halves>
__global__ void __launch_bounds__(kThreads, 2) experts_any_down_kernel(const __grid_constant__ DownArgs a) {
    extern __shared__ uint4 dynamic[];
    __shared__ float terms[kWarps][kMostTopK + 1];
    pdl_trigger();
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, o = blockIdx.x * kWarps + warp, row = blockIdx.y;
    constexpr int kStep = Halves ? 2 * B : B, kWidth = Halves ? 16 : 32;
    const int per_slot = a.ff / 32;
    const DType common = a.m[0].type == a.m[1].type ? a.m[0].type : DType::count;
    const auto slot_of = [&](int first, int b) { return Halves ? first + 2 * b + lane / 16 : first + b; };
    uint32_t raw[B][Set::kWords];
    const auto load = [&](int first, int j0) {
        Slot slots[B];
#pragma unroll
        for (int b = 0; b < B; ++b) slots[b] = find_slot(a, row, slot_of(first, b));
        const int j = j0 + lane % kWidth;
        with_plane_type<Set>(common, [&](auto type) {
#pragma unroll
            for (int b = 0; b < B; ++b) {
                const Matrix& w = a.m[slots[b].matrix];
                if (slots[b].there && j < per_slot && o < a.rows) {
                    if constexpr (std::is_same_v<decltype(type), DType>) type = w.type;
                    load_plane<Set>(type, w, slots[b].expert, o, j, raw[b]);
                } else {
#pragma unroll
                    for (int i = 0; i < Set::kWords; ++i) raw[b][i] = 0;
                }
            }
        });
    };
    char* staged = reinterpret_cast<char*>(dynamic);
#pragma unroll 1
    for (int first = 0; first < a.slots; first += kStep) {
        float acc[B][1] = {};
#pragma unroll 1
        for (int j0 = 0; j0 < per_slot; j0 += kWidth) {
            load(first, j0);
            if (first + j0 == 0) wait_and_stage(a, row, staged);
            const int j = min(j0 + lane % kWidth, per_slot - 1);  // beyond it the words are zeros
            with_plane_type<Set>(common, [&](auto type) {
#pragma unroll
                for (int b = 0; b < B; ++b) {
                    const int slot = min(slot_of(first, b), a.slots - 1);
                    const Matrix& w = a.m[slot >= a.top_k ? 1 : 0];
                    if constexpr (std::is_same_v<decltype(type), DType>) type = w.type;
                    dot_plane<Set, 1>(type, w, raw[b], slot * per_slot + j, a.layout.groups, staged, 0, 1, acc[b]);
                }
            });
        }
        constexpr int kValues = pow2_ceil(B), kShift = log2_floor(kWidth) - log2_floor(kValues);
        float v[kValues];
#pragma unroll
        for (int b = 0; b < kValues; ++b) v[b] = b < B ? acc[b < B ? b : 0][0] : 0.0f;
        const float sum = reduce_lanes<kValues, kWidth>(v, lane);
        const int b = (lane % kWidth) >> kShift, slot = slot_of(first, b);
        if (lane % (1 << kShift) == 0 && b < B && slot < a.slots) put_term(a, row, slot, sum, terms[warp]);
    }
    __syncwarp();
    if (lane == 0 && o < a.rows) store_down(a, row, o, terms[warp]);
}

/// The same for float types: B slots at a time, four steps of each.
template <int B>
__global__ void __launch_bounds__(kThreads, 2) experts_any_float_down_kernel(const __grid_constant__ DownArgs a) {
    extern __shared__ uint4 dynamic[];
    __shared__ float terms[kWarps][kMostTopK + 1];
    pdl_trigger();
    constexpr int S = 4;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, o = blockIdx.x * kWarps + warp, row = blockIdx.y;
    uint32_t raw[B][S][4], scales[B][S];
    const auto load = [&](int first, int step) {
        Slot slots[B];
#pragma unroll
        for (int b = 0; b < B; ++b) slots[b] = find_slot(a, row, first + b);
#pragma unroll
        for (int b = 0; b < B; ++b) {
            const Matrix& w = a.m[slots[b].matrix];
            const int pieces = slots[b].there && o < a.rows ? pieces_of(w) : 0;
#pragma unroll
            for (int s = 0; s < S; ++s) {
                const int c = (step + s) * 32 + lane;
                raw[b][s][0] = raw[b][s][1] = raw[b][s][2] = raw[b][s][3] = scales[b][s] = 0;
                if (c < pieces) load_piece(w, slots[b].expert, o, c, raw[b][s]);
                if (c < pieces && piece_scaled(w)) scales[b][s] = load_piece_scale(w, slots[b].expert, o, c);
            }
        }
    };
    char* staged = reinterpret_cast<char*>(dynamic);
    const int steps = max((pieces_of(a.m[0]) + 31) / 32, (pieces_of(a.m[1]) + 31) / 32);
#pragma unroll 1
    for (int first = 0; first < a.slots; first += B) {
        float acc[B][4][1] = {};
#pragma unroll 1
        for (int step = 0; step < steps; step += S) {
            load(first, step);
            if (first + step == 0) wait_and_stage(a, row, staged);
#pragma unroll
            for (int b = 0; b < B; ++b) {
                const int slot = min(first + b, a.slots - 1);
                const Matrix& w = a.m[slot >= a.top_k ? 1 : 0];
                const int pieces = o < a.rows ? pieces_of(w) : 0;
                const auto expert = [&] { return find_slot(a, row, slot).expert; };
                const PiecePlane plane = piece_plane<AllFloats>(w, expert, o);
                with_float_type<AllFloats>(w.type, [&](auto type) {
#pragma unroll
                    for (int s = 0; s < S; ++s) {
                        const int c = (step + s) * 32 + lane;
                        if (c < pieces)
                            dot_piece<1>(type, c, slot * a.padded / 4, raw[b][s], plane, scales[b][s], staged, 0, 1,
                                         acc[b][s]);
                    }
                });
            }
        }
        float v[4 * B];
#pragma unroll
        for (int i = 0; i < 4 * B; ++i) v[i] = acc[i / 4][i % 4][0];
        constexpr int kShift = 5 - log2_floor(4 * B);
        float sum = reduce_lanes<4 * B>(v, lane);
        sum += __shfl_xor_sync(~0u, sum, 1 << kShift);
        sum += __shfl_xor_sync(~0u, sum, 2 << kShift);
        const int slot = first + (lane >> (kShift + 2));
        if (lane % (4 << kShift) == 0 && slot < a.slots) put_term(a, row, slot, sum, terms[warp]);
    }
    __syncwarp();
    if (lane == 0 && o < a.rows) store_down(a, row, o, terms[warp]);
}

#endif  // __CUDACC__

using GateUpKernel = void (*)(GateUpArgs);
using DownKernel = void (*)(DownArgs);

/// For planes of any type, or (floats) for float types. halves: see experts_any_down_kernel.
GateUpKernel other_gate_up_kernel(bool floats);
DownKernel other_down_kernel(bool floats, bool halves);

}  // namespace riptide::ops::cuda::decode
