// PFlash: a small model reads a whole prompt and says how much each token matters to the questions in it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "models/qwen3.h"
#include "ops/sparse_attention.h"

namespace riptide {

/// Tokens [begin, end) that ask: the end of the prompt, the user's last turn, earlier questions. Weights are relative.
struct QueryWindow {
    int64_t begin = 0;
    int64_t end = 0;
    float weight = 1;
};

struct ScorerOptions {
    /// Layers whose attention scores, ascending, 0-based; empty: the last one. Layers behind the last of them are not
    /// run, and of that one only its queries and keys are computed: this is the early exit.
    std::vector<int32_t> score_layers;
    /// Sinks, window, threshold and budget of block-sparse attention; full_from is set by the scorer from last_blocks.
    ops::SparseOptions sparse;
    int32_t last_blocks = 2;    // the blocks of 128 that end a prompt read everything
    int64_t chunk_rows = 8192;  // rows computed at a time, a multiple of 128
};

class Scorer;

/// What a conversation's earlier prompt left behind: its tokens, K/V of every layer that runs, keys of the scoring
/// layers, and the queries of its windows. Belongs to one Scorer, which must outlive it. Move-only; not thread-safe.
/// Memory: bytes(); for each token 4 * kv heads * head_dim bytes a layer run (16-bit K and V) and half of that a
/// scoring layer.
class ScoredPrefix {
  public:
    explicit ScoredPrefix(const Scorer& scorer);
    ~ScoredPrefix();
    ScoredPrefix(ScoredPrefix&&) noexcept;
    ScoredPrefix& operator=(ScoredPrefix&&) noexcept;

    /// Tokens that need not be computed again. Ends before the last_blocks of the prompt that left them, at a block
    /// border.
    int64_t length() const;
    int64_t bytes() const;
    void clear();

  private:
    friend class Scorer;
    struct State;
    std::unique_ptr<State> state_;
};

/// A Qwen3 model as scorer. Immutable after loading; one thread at a time for one Context. Its vocabulary need not be
/// that of the model which answers: whoever calls maps.
///
/// With q, k of a scoring layer after their head norms but not rotated (distance does not count), and t a row of window
/// w,
///
///     p_lht(j)  = softmax_j(q_lht . k_lj / sqrt d)   over all tokens j of the prompt but those behind t in w itself
///     mass_w(j) = mean of p over layers l, heads h, rows t
///     score(j)  = sum_w weight_w * mass_w(j) / (sum of mass_w outside of all windows), 0 in windows, scaled to a sum
///     of 1
///
/// Cost: 2 FLOPs a weight and token, sparse attention (ops/sparse_attention.h), and 4 * H * d FLOPs for each window
/// row, key and scoring layer. Qwen3-0.6B, 28 layers, 131,072 tokens: 115 TFLOP of products, 270 TFLOP of attention if
/// every block of queries reads 70 blocks (dense: 1970 TFLOP): 0.6 s at 650 TFLOP/s. Memory besides the weights, from
/// ctx.arena, for each token: 4 * hidden_size for the residual stream and, if no prefix is kept, one layer's K/V and
/// scoring keys, used by all layers in turn; and temporaries for chunk_rows rows.
class Scorer {
  public:
    /// The checkpoint must outlive it. Throws Error: see Qwen3; for layers that the model lacks; for options out of
    /// range.
    Scorer(const Checkpoint& checkpoint, const ScorerOptions& options, Gpu* gpu);
    ~Scorer();

    /// One value for each token: at least 0, finite, 0 inside windows, with a sum of 1 (in f64, to 1e-6). Throws Error
    /// for no tokens, tokens outside the vocabulary, windows that are empty, overlap or lie outside the prompt, weights
    /// that are not positive and finite, a prompt that is all windows, and if the network's result is not finite. ctx
    /// must be on the device that the scorer was loaded for; all work is of the prefill family.
    ///
    /// prefix, if given: what it shares with `tokens` from the beginning is not computed again; afterwards it holds
    /// this prompt. A window in the shared part costs nothing if the prompt before had it too; else computing begins at
    /// its block. The result has the bits of one without a prefix.
    std::vector<float> score(Context& ctx, std::span<const int32_t> tokens, std::span<const QueryWindow> windows,
                             ScoredPrefix* prefix = nullptr) const;

    const ModelInfo& info() const { return model_.info(); }
    const ScorerOptions& options() const { return options_; }

  private:
    friend class ScoredPrefix;
    class Run;

    ScorerOptions options_;
    Qwen3 model_;
};

}  // namespace riptide
