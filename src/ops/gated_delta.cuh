// The parts of the Gated DeltaNet kernels: arguments, and what a warp does with a row and with its columns of a state.
#pragma once

#include "ops/act_group.cuh"
#include "ops/delta_schedule.h"
#include "ops/gated_delta.h"
#include "ops/row_math.cuh"
#include "quant/kv_decode.cuh"
#include "tensor/launch.cuh"

namespace riptide::ops {

inline constexpr int kDeltaTaps = 4;        // the widest convolution
inline constexpr int kDeltaDim = 256;       // the largest key_dim
inline constexpr int kDeltaTreeRows = 256;  // of a step with trees
inline constexpr int kDeltaLayers = 64;     // of one commit
inline constexpr int kWarpColumns = 8;  // of the state, owned by a warp: 16 lanes share the rows, each has 4 columns
inline constexpr int kGroupRows = 16;   // prepared at a time

struct DeltaSizes {
    int key_heads, value_heads, key_dim, value_dim, width;
    bool tiled;
    int64_t conv_floats, state_elements, stash_floats;
    int channels;

    __device__ int keys() const { return key_heads * key_dim; }
    __device__ int key_head(int h) const { return tiled ? h % key_heads : h / (value_heads / key_heads); }
    /// Of the value heads that share a key head, the one that writes for all.
    __device__ bool writes_keys(int h) const { return tiled ? h < key_heads : h % (value_heads / key_heads) == 0; }
};

inline DeltaSizes delta_sizes(const DeltaView& view) {
    return {static_cast<int>(view.key_heads),
            static_cast<int>(view.value_heads),
            static_cast<int>(view.key_dim),
            static_cast<int>(view.value_dim),
            static_cast<int>(view.conv_width),
            view.heads == DeltaHeads::tiled,
            view.conv_floats(),
            view.state_elements(),
            view.stash_floats(),
            static_cast<int>(view.channels())};
}

/// A matrix of activations: rows `stride` floats apart.
struct DeltaMatrix {
    const float* data;
    int64_t stride;
    __device__ const float* row(int64_t r) const { return data + r * stride; }
};

/// Where prepared rows go: k, v and gates `heads_at` floats behind `at + row * stride`, and if wanted the inputs of the
/// convolution at its beginning. The stash, or memory of a prompt's step.
struct DeltaKept {
    float* at;  // null: nowhere
    int64_t stride;
    int heads_at;
    bool inputs;
};

struct DeltaArgs {
    float* conv;
    float* state;
    DeltaSizes sizes;
    DeltaKept kept;
    DeltaMatrix qkv, z, a, b;
    const float* conv_weights;
    const float* decay;
    const float* dt_bias;
    const float* norm;
    float eps;
    float* out;           // [n, value_heads * value_dim]
    unsigned char* out8;  // the same as ActRow rows; null: not wanted
    const int32_t* positions;
    const int32_t* row_begin;
    const int32_t* committed;
    const int32_t* state_slot;
    const int32_t* parent;  // null: chains
    const int32_t* held;    // [sequences] tokens that slots describe: DeltaMode::follow; null: committed
    bool update;            // the state is written
    bool one_row;           // update by delta_row_kernel: it keeps the convolution's inputs too
    bool by_chunks;         // update by launch_delta_chunks
};

/// A prompt's rows once they are prepared; or the kept rows of a stash, in all layers.
struct DeltaChainArgs {
    struct Layer {
        float* conv;
        float* state;
        const float* rows;  // as DeltaKept has them
    } layers[kDeltaLayers];
    DeltaSizes sizes;
    int64_t stride;
    int heads_at;
    bool update;
    const float* q;            // [n, key_heads * key_dim]; null with a path: outputs are not wanted
    const float* kq;           // [n, key_heads]
    float* out;                // [n, value_heads * value_dim], before the norm
    const int32_t* row_begin;  // null with a path
    const int32_t* parent;     // null: chains
    const int32_t* state_slot;
    const int32_t* committed;
    const int32_t* count;  // [sequences], with a path
    const int32_t* path;   // [sequences, most]; null: all rows
    int64_t most;
    int sequences;
};

/// Throws Error for sizes without kernels.
void check_delta_sizes(const DeltaView& view);
/// Any rows: prepared once (to a.kept; null: to the arena), then passed through the states. Leaves a.out before the
/// norm, and the slots' convolution inputs as they are.
void launch_delta_chain(Context& ctx, DeltaArgs a, const Batch& batch);
/// Prepares the rows of chains, if takes_delta_runs: q, k . q and a.kept as launch_delta_chain needs them.
bool takes_delta_runs(const DeltaArgs& a, int64_t rows);
void launch_delta_runs(Context& ctx, const DeltaArgs& a, float* q, float* kq, const Batch& batch);
/// Whether prompts of this layer go through the state in chunks.
bool takes_delta_chunks(const Gpu& gpu, const DeltaView& view);
inline constexpr int kDeltaChunk = 64;
/// Prepared rows (q and a.kept) through the states in chunks, as launch_delta_chain leaves them.
void launch_delta_chunks(Context& ctx, const DeltaArgs& a, const float* q, int64_t rows, int64_t sequences);
/// a.out behind the norm and the gate.
void launch_delta_norm(Context& ctx, const DeltaArgs& a, int64_t n);
/// The slots' convolution inputs behind the rows of the step.
void launch_delta_conv(Context& ctx, const DeltaArgs& a, int64_t sequences);

inline int blocks_of(int64_t count, int64_t each) { return static_cast<int>((count + each - 1) / each); }
inline int padded_dim(int64_t key_dim) { return key_dim <= 64 ? 64 : key_dim <= 128 ? 128 : 256; }

/// Warps of a block: as many as `most`, fewer until two thirds of the SMs have a block, at least two. heads: of all
/// sequences and layers.
inline int delta_warps(const Gpu& gpu, int64_t heads, int64_t value_dim, int most) {
    int warps = most;
    for (; warps > 2; warps /= 2)
        if (heads * blocks_of(value_dim, int64_t{kWarpColumns} * warps) * 3 >= gpu.info().sm_count * 2) break;
    return warps;
}

/// The one of three kernels (4, 8 or 16 rows of a state in a lane) that keys of that size need, allowed to use that
/// much shared memory.
template <class Args>
auto choose_delta_kernel(int64_t key_dim, void (*rows4)(Args), void (*rows8)(Args), void (*rows16)(Args),
                         size_t shared) {
    auto* const kernel = key_dim <= 64 ? rows4 : key_dim <= 128 ? rows8 : rows16;
    allow_shared(reinterpret_cast<const void*>(kernel), shared);
    return kernel;
}

#ifdef __CUDACC__

/// What the rows of a group need, in shared memory; heads padded with zeros. Columns are those of the block.
struct DeltaGroup {
    float* q;     // [kGroupRows, padded]
    float* k;     // [kGroupRows, padded]
    float* v;     // [kGroupRows, columns]
    float* o;     // [kGroupRows, columns]
    float* gate;  // [kGroupRows, 4]: e^g, beta, k . q
    int padded;
    int columns;
};
inline __host__ __device__ size_t delta_group_floats(int padded, int columns) {
    return static_cast<size_t>(kGroupRows) * static_cast<size_t>(2 * padded + 2 * columns + 4);
}
__device__ __forceinline__ DeltaGroup delta_group(float* at, int padded, int columns) {
    DeltaGroup group;
    group.q = at;
    group.k = group.q + kGroupRows * padded;
    group.v = group.k + kGroupRows * padded;
    group.o = group.v + kGroupRows * columns;
    group.gate = group.o + kGroupRows * columns;
    group.padded = padded;
    group.columns = columns;
    return group;
}

/// The convolution's inputs of one row, newest first; null before position 0.
struct DeltaTaps {
    const float* at[kDeltaTaps];
};

/// Four channels of a lane, 32 apart, of each of kHeads heads: taps and weights. All loads go out before the first is
/// used; weights may be asked for above pdl_wait().
template <int kHeads>
struct DeltaConvolution {
    static constexpr int kAtOnce = 4, kChannels = 32 * kAtOnce;
    float x[kHeads][kAtOnce][kDeltaTaps], w[kHeads][kAtOnce][kDeltaTaps];

    /// Channels first[i] + begin + lane, ... of `count` from first[i] on.
    __device__ __forceinline__ void load_weights(const float* weights, int width, const int (&first)[kHeads], int begin,
                                                 int count) {
        const int lane = static_cast<int>(threadIdx.x % 32);
        const bool whole = width == kDeltaTaps && reinterpret_cast<uintptr_t>(weights) % 16 == 0;
#pragma unroll
        for (int h = 0; h < kHeads; ++h)
#pragma unroll
            for (int c = 0; c < kAtOnce; ++c) {
                const int at = begin + lane + 32 * c;
                const float* from = weights + int64_t{first[h] + at} * width;
                uint4 v = {};
                if (whole) {
                    if (at < count) v = riptide::load_weights(from);
                } else if (at < count) {  // the last tap is the newest input's
                    v.w = EarlyLoad::one(from + width - 1);
                    if (width > 1) v.z = EarlyLoad::one(from + width - 2);
                    if (width > 2) v.y = EarlyLoad::one(from + width - 3);
                }
                w[h][c][0] = __uint_as_float(v.w), w[h][c][1] = __uint_as_float(v.z);
                w[h][c][2] = __uint_as_float(v.y), w[h][c][3] = __uint_as_float(v.x);
            }
    }
    __device__ __forceinline__ void load_inputs(const DeltaTaps& taps, const int (&first)[kHeads], int begin,
                                                int count) {
        const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
        for (int h = 0; h < kHeads; ++h)
#pragma unroll
            for (int c = 0; c < kAtOnce; ++c) {
                const int at = begin + lane + 32 * c;
#pragma unroll
                for (int i = 0; i < kDeltaTaps; ++i)
                    x[h][c][i] = at < count && taps.at[i] != nullptr ? taps.at[i][first[h] + at] : 0.0f;
            }
    }
    /// silu of the convolution, taps from the oldest to the newest. Taps that are not there are zeros: a product with
    /// zero leaves the sum, which begins at +0, as it is.
    __device__ __forceinline__ float value(int h, int c) const { return convolved(x[h][c], w[h][c]); }
    __device__ __forceinline__ static float convolved(const float (&x)[kDeltaTaps], const float (&w)[kDeltaTaps]) {
        float sum = 0.0f;
#pragma unroll
        for (int i = kDeltaTaps - 1; i >= 0; --i) sum = __fmaf_rn(w[i], x[i], sum);
        return __fdiv_rn(sum, __fadd_rn(1.0f, expf(-sum)));
    }
};

/// A warp's columns of a state. Lane 2 l + g has the four columns 4 g .. 4 g + 3 of the warp's eight, and of each the
/// rows 64 j + 4 l + t (t < 4): element [4 j + t]. Neighbours share a sector of 32 bytes, which one request takes
/// whole. Rows behind key_dim and columns behind value_dim are zeros.
template <int kRows>
struct DeltaTile {
    float4 s[kRows];

    __device__ static int row(int i) { return 64 * (i / 4) + 4 * static_cast<int>(threadIdx.x % 32 / 2) + i % 4; }
    __device__ static int first_column() { return 4 * static_cast<int>(threadIdx.x % 2); }

    __device__ static bool has_output() { return (threadIdx.x & 18) == 16; }
    __device__ static int output_column() { return static_cast<int>(threadIdx.x % 16 / 4); }

    /// from: element [0, the lane's first column] of the head's state; `columns`: how many there are from it on. Also
    /// above pdl_wait().
    __device__ __forceinline__ void load(const float* from, int dk, int dv, int columns) {
        if (dv % 4 == 0 && columns >= 4) {
#pragma unroll
            for (int i = 0; i < kRows; ++i)
                s[i] = row(i) < dk ? load_four(from + int64_t{row(i)} * dv) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            return;
        }
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
            const float* at = from + int64_t{row(i)} * dv;
            const int count = row(i) < dk ? columns : 0;
            const auto one = [at, count](int c) { return count > c ? __uint_as_float(EarlyLoad::one(at + c)) : 0.0f; };
            s[i] = make_float4(one(0), one(1), one(2), one(3));
        }
    }
    __device__ __forceinline__ void store(float* to, int dk, int dv, int columns) const {
        if (dv % 4 == 0 && columns >= 4) {
#pragma unroll
            for (int i = 0; i < kRows; ++i)
                if (row(i) < dk) store_four(to + int64_t{row(i)} * dv, s[i]);
            return;
        }
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
            float* at = to + int64_t{row(i)} * dv;
            const int count = row(i) < dk ? columns : 0;
            if (count > 0) at[0] = s[i].x;
            if (count > 1) at[1] = s[i].y;
            if (count > 2) at[2] = s[i].z;
            if (count > 3) at[3] = s[i].w;
        }
    }
    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int i = 0; i < kRows; ++i) s[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
    /// To and from a slot of this warp in shared memory, [kRows][32].
    __device__ __forceinline__ void keep(float4* slot) const {
#pragma unroll
        for (int i = 0; i < kRows; ++i) slot[32 * i + threadIdx.x % 32] = s[i];
    }
    __device__ __forceinline__ void recall(const float4* slot) {
#pragma unroll
        for (int i = 0; i < kRows; ++i) s[i] = slot[32 * i + threadIdx.x % 32];
    }

    /// One row: see gated_delta.h. q, k [padded], v of the lane's columns, gate: e^g, beta, k . q. Returns, where
    /// has_output(), o of the lane's column first_column() + output_column().
    template <bool kOutput>
    __device__ __forceinline__ float step(const float* q, const float* k, float4 v, float4 gate) {
        float keys[kRows], d[4];
        const float sum = sums<kOutput>(q, k, keys);
        join(sum, keys, v, gate, d);
        if constexpr (!kOutput) return 0.0f;
        return output(sum, d, gate);
    }
    /// The same in two parts, the output first: sums(), look(), and join() where the state is kept.
    ///
    /// The sums over rows: a lane's own in ascending order, then lanes xor 16, 8, 4, 2. Lanes with bit 4 of their
    /// number get S^T q of column output_column(), the others S^T k.
    template <bool kOutput>
    __device__ __forceinline__ float sums(const float* q, const float* k, float (&keys)[kRows]) const {
        const int lane = static_cast<int>(threadIdx.x % 32);
        float p[4] = {}, o[4] = {};
        own_rows(k, keys);
#pragma unroll
        for (int j = 0; j < kRows / 4; ++j) {
            float queries[4] = {};
            if constexpr (kOutput) {
                const float4 y = *reinterpret_cast<const float4*>(q + row(4 * j));
                queries[0] = y.x, queries[1] = y.y, queries[2] = y.z, queries[3] = y.w;
            }
#pragma unroll
            for (int t = 0; t < 4; ++t) {
                const float4 e = s[4 * j + t];
                add(p, e, keys[4 * j + t]);
                if constexpr (kOutput) add(o, e, queries[t]);
            }
        }
        const bool bit4 = (lane & 16) != 0, bit3 = (lane & 8) != 0, bit2 = (lane & 4) != 0;
        float four[4], two[2];
#pragma unroll
        for (int c = 0; c < 4; ++c) four[c] = exchange(bit4 ? o[c] : p[c], bit4 ? p[c] : o[c], 16);
#pragma unroll
        for (int c = 0; c < 2; ++c) two[c] = exchange(bit3 ? four[2 + c] : four[c], bit3 ? four[c] : four[2 + c], 8);
        const float one = exchange(bit2 ? two[1] : two[0], bit2 ? two[0] : two[1], 4);
        return exchange(one, one, 2);
    }
    __device__ __forceinline__ static void own_rows(const float* k, float (&keys)[kRows]) {
#pragma unroll
        for (int j = 0; j < kRows / 4; ++j) {
            const float4 x = *reinterpret_cast<const float4*>(k + row(4 * j));
            keys[4 * j] = x.x, keys[4 * j + 1] = x.y, keys[4 * j + 2] = x.z, keys[4 * j + 3] = x.w;
        }
    }
    /// What step() returns.
    __device__ __forceinline__ static float look(float sum, float4 v, float4 gate) {
        const int lane = static_cast<int>(threadIdx.x % 32);
        const float p = __shfl_sync(0xFFFFFFFFu, sum, 4 * output_column() + lane % 2);
        const bool bit3 = (lane & 8) != 0, bit2 = (lane & 4) != 0;
        const float own = bit3 ? (bit2 ? v.w : v.z) : (bit2 ? v.y : v.x);
        const float d = __fmul_rn(gate.y, __fsub_rn(own, __fmul_rn(gate.x, p)));
        return __fmaf_rn(gate.z, d, __fmul_rn(gate.x, sum));
    }
    /// S <- e^g S + k d^T.
    __device__ __forceinline__ void join(float sum, const float (&keys)[kRows], float4 v, float4 gate, float (&d)[4]) {
        const int lane = static_cast<int>(threadIdx.x % 32);
        const float decay = gate.x, beta = gate.y;
#pragma unroll
        for (int c = 0; c < 4; ++c) d[c] = __shfl_sync(0xFFFFFFFFu, sum, 4 * c + lane % 2);
        d[0] = __fmul_rn(beta, __fsub_rn(v.x, __fmul_rn(decay, d[0])));
        d[1] = __fmul_rn(beta, __fsub_rn(v.y, __fmul_rn(decay, d[1])));
        d[2] = __fmul_rn(beta, __fsub_rn(v.z, __fmul_rn(decay, d[2])));
        d[3] = __fmul_rn(beta, __fsub_rn(v.w, __fmul_rn(decay, d[3])));
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
            s[i].x = __fmaf_rn(keys[i], d[0], __fmul_rn(decay, s[i].x));
            s[i].y = __fmaf_rn(keys[i], d[1], __fmul_rn(decay, s[i].y));
            s[i].z = __fmaf_rn(keys[i], d[2], __fmul_rn(decay, s[i].z));
            s[i].w = __fmaf_rn(keys[i], d[3], __fmul_rn(decay, s[i].w));
        }
    }

  private:
    __device__ static float4 load_four(const float* from) {
        const uint4 x = load_weights(from);
        return make_float4(__uint_as_float(x.x), __uint_as_float(x.y), __uint_as_float(x.z), __uint_as_float(x.w));
    }
    /// In one piece: the compiler turns a plain store beside the branch for single columns into four.
    __device__ static void store_four(float* to, float4 x) {
#ifdef __CUDA_ARCH__
        asm volatile("st.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w)
                     : "memory");
#else
        *reinterpret_cast<float4*>(to) = x;
#endif
    }
    __device__ static float output(float sum, const float (&d)[4], float4 gate) {
        const bool bit3 = (threadIdx.x & 8) != 0, bit2 = (threadIdx.x & 4) != 0;
        return __fmaf_rn(gate.z, bit3 ? (bit2 ? d[3] : d[2]) : (bit2 ? d[1] : d[0]), __fmul_rn(gate.x, sum));
    }
    __device__ static void add(float (&sum)[4], float4 e, float factor) {
        sum[0] = __fmaf_rn(e.x, factor, sum[0]);
        sum[1] = __fmaf_rn(e.y, factor, sum[1]);
        sum[2] = __fmaf_rn(e.z, factor, sum[2]);
        sum[3] = __fmaf_rn(e.w, factor, sum[3]);
    }
    /// mine + what the lane `mask` away gives.
    __device__ static float exchange(float mine, float given, int mask) {
        return __fadd_rn(mine, __shfl_xor_sync(0xFFFFFFFFu, given, mask));
    }
};

#endif

}  // namespace riptide::ops
