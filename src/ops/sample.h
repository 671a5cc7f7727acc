// Drawing tokens on a GPU: what engine/sampling/sampler.h defines, without the host.
#pragma once

#include <cstdint>
#include <span>
#include <utility>

#include "tensor/context.h"

namespace riptide::ops {

/// The numbers of SamplingParams that a draw depends on, with the same ranges and meaning.
struct SampleParams {
    double temperature = 1;
    double top_p = 1;
    double min_p = 0;
    double repetition = 1;
    double frequency = 0;
    double presence = 0;
    int64_t top_k = 0;
    int64_t min_tokens = 0;
    uint64_t seed = 0;
};

struct SampleBias {
    int32_t token = -1;
    int32_t unused = 0;
    double value = 0;
};

/// One sequence that tokens are drawn for.
struct SampleSlot {
    SampleParams params;
    int64_t answer_tokens = 0;
    int32_t marked = 0;  // whether the slot's marks change any logit: bias, penalties or min_tokens are in use
    int32_t biases = 0;
};

/// Device memory of all slots. `marks` has a word for each token: how often it stands in the answer, and flags.
struct SampleState {
    SampleSlot* slots = nullptr;   // [count]
    uint32_t* marks = nullptr;     // [count, vocab]
    SampleBias* biases = nullptr;  // [count, kMaxBiases]
    int64_t count = 0;
    int64_t vocab = 0;

    static constexpr int64_t kMaxBiases = 1024;
    static constexpr int64_t kMostVocab = int64_t{1} << 18;
    static constexpr uint32_t kPrompt = 1u << 31;
    static constexpr uint32_t kBiased = 1u << 30;
    static constexpr uint32_t kStop = 1u << 29;
    static constexpr uint32_t kCount = kStop - 1;
};

/// What a slot starts with. The spans are host memory; ids outside the vocabulary are passed over.
struct SampleStart {
    SampleParams params;
    std::span<const std::pair<int32_t, double>> logit_bias;  // no token twice
    std::span<const int32_t> stop_ids;                       // those that min_tokens makes impossible
    std::span<const int32_t> prompt;
    std::span<const int32_t> answer;  // tokens of the answer so far
};

/// Owns the memory of `count` slots: 4 bytes x vocab + 16 KB each. Not thread-safe.
class SampleSlots {
  public:
    SampleSlots(Gpu& gpu, int64_t count, int64_t vocab);
    /// Begins an answer in a slot, in stream order, by copies of the slot's memory (400 KB for 100,352 tokens):
    /// recorded graphs that draw for it stay valid. Throws Error for more than kMaxBiases biases or a bias outside the
    /// vocabulary.
    void start(int64_t slot, const SampleStart& start);
    const SampleState& state() const { return state_; }

  private:
    Gpu& gpu_;
    SampleState state_;
    DeviceMemory slots_, marks_, biases_;
};

/// What may be drawn, in device memory: masks of one bit a token, and which of them each row has.
struct SampleMasks {
    const uint64_t* words =
        nullptr;  // [any, words_of(vocab)]: bit i % 64 of word i / 64 for token i; 1: it may be drawn
    std::span<const int32_t> of_row;  // [n]: number of the row's mask, -1: it has none; empty: no row has one

    /// Of one mask. Bits beyond the vocabulary mean nothing.
    static constexpr int64_t words_of(int64_t vocab) { return (vocab + 63) / 64; }
};

/// The token of each row, i32 [n]: exactly what Sampler::sample draws for these logits, parameters, history and allowed
/// tokens, or -1 if a logit is NaN or +infinity (also of a token that is not allowed) or no token is possible. -1 must
/// not be embedded.
///   logits     f32 [n, vocab], n <= 256, vocab <= 2^18
///   positions  i32 [n] of the rows that the logits come from (Batch::positions): the token drawn has that position + 1
///   slots      i32 [n], the slot of each row; empty: row r has slot r
///   accept     the token becomes part of its slot's answer. REQUIRES that no two rows have the same slot.
///   masks      tokens outside its mask are out for a row, as if their logits were -infinity: before all else of the
///   chain
/// All in device memory, parameters too; the kernels and grids depend on n and vocab alone, so a recorded step serves
/// whatever the slots hold. Does not wait for the device. A row's token depends on no other row, and not on timing.
/// Arithmetic is double, as on the CPU; exp and log may differ from the host's in the last bit, and with top_p < 1
/// after keeping more than 512 tokens the sums are exact sums of weights rounded to multiples of 2^-45 (vocab up to
/// 2^17), where the CPU's round at every addition. A draw can differ only where two keys agree to some 15 digits, or
/// with a probability below vocab x 2^-45 where the edge of top_p falls between such sums. GPU only; two kernels, of
/// which the second returns at once unless more than 256 tokens are to be filtered (top_p < 1 or min_p > 0 without
/// top_k, top_k > 256) or more than 512 remain (equal logits). A row whose mask leaves at most 512 tokens never needs
/// it. A mask is 12.5 KB for 100,352 tokens beside 401 KB of logits.
Tensor sample(Context& ctx, const Tensor& logits, const SampleState& state, std::span<const int32_t> positions,
              std::span<const int32_t> slots = {}, bool accept = true, const SampleMasks& masks = {});

}  // namespace riptide::ops
