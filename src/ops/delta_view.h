// What an op needs to read and write one Gated DeltaNet layer's recurrent state: pointers, sizes, and where things lie.
#pragma once

#include <cstdint>

#include "tensor/dtype.h"

namespace riptide {

/// Which key head a value head reads, where there are fewer key heads.
enum class DeltaHeads : uint8_t {
    grouped,  // h / (value_heads / key_heads): Hugging Face's files (repeat_interleave)
    tiled,    // h % key_heads: GGUF, whose converter reorders everything that has value heads, A and dt_bias too
};

/// One layer's recurrent state of all slots (Batch::state_slot), and the stash of the running step. All of it is memory
/// of the device that runs the step. A slot belongs to one sequence and describes it at exactly its committed length:
/// state cannot be truncated, only copied away and back. Slots are plain bytes without pointers. What a slot holds
/// while its sequence has no committed tokens does not matter: it counts as zeros, and the first rows kept overwrite
/// all of it.
///
/// conv: the inputs of the convolution of the last conv_width positions (one more than are needed, so that a position
/// can be written while its predecessors are read); position p lies in column conv_column(p), channels in the order q,
/// k, v. state: S of each value head, S[i, j] pairing key element i with value element j.
/// stash: for each row of the step, by its number in the step: inputs of the convolution [channels], key heads after
/// convolution, SiLU and norm [key_heads * key_dim], value heads [value_heads * value_dim], e^g and beta [value_heads].
struct DeltaView {
    float* conv = nullptr;           // [slots, conv_width, channels]
    void* state = nullptr;           // [slots, value_heads, key_dim, value_dim]
    float* stash = nullptr;          // [stash_rows, stash_floats()]; null where no step ever stashes
    DType state_dtype = DType::f32;  // the only one so far
    DeltaHeads heads = DeltaHeads::grouped;
    int64_t key_heads = 0;    // linear_num_key_heads
    int64_t value_heads = 0;  // linear_num_value_heads, a multiple of key_heads
    int64_t key_dim = 0;      // linear_key_head_dim
    int64_t value_dim = 0;    // linear_value_head_dim
    int64_t conv_width = 0;   // linear_conv_kernel_dim
    int64_t stash_rows = 0;
    bool by_chunks = false;  // prompts may go through S in chunks of rows: gated_delta

    /// Inputs of the convolution: q [key_heads, key_dim], k likewise, v [value_heads, value_dim].
    int64_t channels() const { return 2 * key_heads * key_dim + value_heads * value_dim; }
    /// Floats of one slot of `conv`: conv_width * channels.
    int64_t conv_floats() const { return conv_width * channels(); }
    /// Elements of one slot of `state`.
    int64_t state_elements() const { return value_heads * key_dim * value_dim; }
    /// Bytes of one slot of `state`.
    int64_t state_bytes() const { return row_bytes(state_dtype, state_elements()); }
    /// Floats that one row of a step stashes.
    int64_t stash_floats() const {
        return channels() + key_heads * key_dim + value_heads * value_dim + 2 * value_heads;
    }
    /// The column of `conv` that holds the input of a position.
    int64_t conv_column(int64_t position) const { return position % conv_width; }
    /// The key head that value head h reads.
    int64_t key_head(int64_t h) const {
        return heads == DeltaHeads::grouped ? h / (value_heads / key_heads) : h % key_heads;
    }
};

}  // namespace riptide
