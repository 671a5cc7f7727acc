// PFlash: a small model reads a whole prompt and says how much each token matters to the questions in it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "models/qwen3.h"
#include "ops/scoring/sparse_attention.h"

namespace riptide {

/// Tokens [begin, end) that ask: the end of the prompt, the user's last turn, earlier questions. Weights are relative.
struct QueryWindow {
    int64_t begin = 0;
    int64_t end = 0;
    float weight = 1;
};

struct ScorerOptions {
    /// Layers whose attention scores, ascending, 0-based; empty: all; {-1}: the model's last. Layers behind the last of
    /// them are not run, and of that one only queries and keys are computed: this is the early exit.
    std::vector<int32_t> score_layers;
    /// Sinks, window, threshold and budget of attention. full_from is the scorer's own affair: it follows last_blocks.
    ops::SparseOptions sparse;
    int32_t last_blocks = 2;     // the blocks of 128 tokens that end a prompt read everything
    int64_t chunk_rows = 16384;  // rows computed at a time, a multiple of 128
};

class Scorer;

/// What a conversation's earlier prompt left behind: its tokens, K/V of every layer that ran, keys of the scoring
/// layers and the queries of its windows. Belongs to one Scorer, which must outlive it. Move-only; not thread-safe.
/// Memory for each token (GPU; twice that on the CPU): 4 * Hkv * d bytes for each layer run but the last scoring one,
/// and 2 * Hkv * d for each scoring layer. Qwen3-0.6B: 110 KiB + 56 KiB with all 28 layers scoring. It grows by half at
/// a time.
class ScoredPrefix {
  public:
    explicit ScoredPrefix(const Scorer& scorer);
    ~ScoredPrefix();
    ScoredPrefix(ScoredPrefix&&) noexcept;
    ScoredPrefix& operator=(ScoredPrefix&&) noexcept;

    /// Tokens that need not be computed again. Ends at a block border, before the last_blocks of the prompt that left
    /// it.
    int64_t length() const;
    int64_t bytes() const;
    void clear();

  private:
    friend class Scorer;
    friend class ScorerRun;
    struct State;
    std::unique_ptr<State> state_;
};

/// A Qwen3 model as scorer. Immutable after loading; one thread at a time for one Context. Its vocabulary need not be
/// that of the model which answers: mapping is the caller's.
///
/// With q, k of a scoring layer behind their head norms, but not rotated (distance does not count), and t a row of
/// window w:
///
///     p_lht(j)  = softmax_j(q_lht . k_lj / sqrt d)    over all tokens j of the prompt but those behind t in w itself
///     mass_w(j) = mean of p over layers l, heads h and rows t
///     score(j)  = sum_w u_w mass_w(j) / (sum of mass_w outside of all windows),  u_w = weight_w / sum of weights
///
/// and 0 inside windows.
/// Cost: 2 FLOPs a weight and token; sparse attention (ops/scoring/sparse_attention.h); 4 * H * d FLOPs for each window
/// row, key and scoring layer. Qwen3-0.6B, 28 layers, 131,072 tokens: 115 TFLOP of products, and 250 TFLOP of attention
/// if every block of queries reads 70 blocks (dense: 1970 TFLOP): 0.92 s on an H200 (docs/results/gpu.md). Memory
/// besides the weights: workspace().
class Scorer {
  public:
    /// The checkpoint must outlive it. Throws Error: as Qwen3; for layers that the model lacks; for options out of
    /// range.
    Scorer(const Checkpoint& checkpoint, const ScorerOptions& options, Gpu* gpu);

    /// One value for each token: finite, at least 0, 0 inside windows, with a sum of 1 but for rounding. Throws Error
    /// for no tokens, tokens outside the vocabulary, no windows, windows that are empty, overlap or leave the prompt,
    /// weights that are not positive and finite, a prompt that is all windows, and if what the network computes is not
    /// finite. Prompts may be longer than the model was trained for: positions just go on. ctx must be on the device
    /// that the scorer was loaded for; kernels are those of the prefill family.
    ///
    /// prefix: what it shares with `tokens` from the beginning is not computed again; afterwards it holds this prompt.
    /// A window in the shared part costs nothing if the prompt before had it too; else computing begins at its block.
    /// The result has the bits of one without a prefix.
    std::vector<float> score(Context& ctx, std::span<const int32_t> tokens, std::span<const QueryWindow> windows,
                             ScoredPrefix* prefix = nullptr) const;

    const ModelInfo& info() const { return model_.info(); }
    const ScorerOptions& options() const { return options_; }
    /// ScorerOptions::chunk_rows; no score depends on it. Not while score() runs.
    void set_chunk_rows(int64_t rows);
    /// What score() takes from ctx.arena at most: rows are chunk_rows, tokens those of the prompt. Per token: the
    /// residual stream, one layer's K/V and scoring keys that all layers use in turn (if no prefix keeps them),
    /// attention's copies. On top of it, for each window row: 4 * H * d bytes a scoring layer, and H / 32 a token of
    /// the prompt.
    Workspace workspace() const;

  private:
    friend class ScoredPrefix;
    friend class ScorerRun;

    /// The last layer that is looked at: layers 0 .. last_layer() - 1 run, of this one queries and keys are taken.
    int64_t last_layer() const { return options_.score_layers.back(); }

    Gpu* gpu_;
    Qwen3 model_;
    ScorerOptions options_;  // score_layers filled in
};

}  // namespace riptide
