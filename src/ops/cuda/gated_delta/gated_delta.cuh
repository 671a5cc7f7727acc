// The parts of the Gated DeltaNet kernels: arguments, and what a warp does with a row. Its columns of a state:
// state_tile.cuh.
#pragma once

#include "ops/cuda/device/int8_group.cuh"
#include "ops/cuda/device/row_math.cuh"
#include "ops/cuda/gated_delta/state_tile.cuh"
#include "ops/gated_delta.h"
#include "quant/kv_decode.cuh"
#include "tensor/launch.cuh"

namespace riptide::ops {

inline constexpr int kDeltaTaps = 4;        // the widest convolution
inline constexpr int kDeltaDim = 256;       // the largest key_dim
inline constexpr int kDeltaTreeRows = 256;  // of a step with trees
inline constexpr int kDeltaLayers = 64;     // of one commit

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
/// Few rows that are stashed, of few heads: all of it in one kernel. False: not these, and nothing is launched.
bool launch_delta_verify(const Gpu& gpu, const DeltaArgs& a, int64_t rows, int64_t sequences);
/// a.out behind the norm and the gate.
void launch_delta_norm(Context& ctx, const DeltaArgs& a, int64_t n);
/// The slots' convolution inputs behind the rows of the step.
void launch_delta_conv(Context& ctx, const DeltaArgs& a, int64_t sequences);

inline int blocks_of(int64_t count, int64_t each) { return static_cast<int>((count + each - 1) / each); }
inline int padded_dim(int64_t key_dim) { return key_dim <= 64 ? 64 : key_dim <= 128 ? 128 : 256; }

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

#endif

}  // namespace riptide::ops
