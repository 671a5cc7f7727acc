// DFlash drafters: a few layers that read a target model's hidden states and propose the next tokens, a block at a time.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "models/binder.h"
#include "models/dflash_config.h"
#include "models/model.h"

namespace riptide {

/// Once for each committed position p the drafter is given the target's hidden states (FeatureCapture) and keeps K/V of
/// them, in a KvCache of its own made from state_specs(), through a SequenceState of its own:
///
///     c_p = RMSNorm(fc [tap_1; ...; tap_t])                          (taps normalised one by one in some dialects)
///     k, v of layer i = Wk c_p, Wv c_p                               (of InputNorm_i(c_p) in some dialects)
///
/// To propose, a block [anchor, MASK, ..., MASK] at positions p0 .. p0 + B - 1 runs through the layers; it sees the
/// context p < p0 and itself. The anchor is the token that the target drew last and has not read yet. Slot j >= 1 is the
/// distribution of the token at position p0 + j, given the context and the anchor alone.
///
/// A round, for any number of sequences (state: the drafter's SequenceState, committed up to p0):
///
///     draft      state.try_reserve(B); build a Batch of rows [anchor, mask_token_id() ...] with logits of the rows
///                first_slot() .. B - 1; draft(); state.commit_prefix(0)
///     verify     the target runs [anchor, drafts] with a FeatureCapture of taps()
///     append     m + 1 rows (the anchor, m accepted drafts): gather their features; state.try_reserve(m + 1); build a
///                Batch of these rows (tokens are not looked at, no logits); append(); state.commit_prefix(m + 1)
///
/// Prompts are appended as the target reads them, at most max_step_rows of the drafter's cache in a call. Positions are
/// appended in order, from 0: where the target took K/V from a prefix cache without running, there are no features, and
/// the drafter needs its own K/V from such a cache, or must wait.
///
/// Immutable after loading; one thread at a time for one Context. A row's values do not depend on other sequences in the
/// step, bit for bit (per family); a block may be shorter than block_size(), and is then another block.
/// Source: Chen et al. 2026 (DFlash); z-lab, speculators and vLLM implement it.
class Dflash {
  public:
    /// Binds every tensor of the checkpoint. Both must outlive it. Throws Error; see Binder and dflash_config, and if the
    /// drafter does not fit the target: another hidden size, layers that the target lacks, another vocabulary.
    Dflash(const Checkpoint& checkpoint, const Model& target, const ModelOptions& options);

    /// architecture "dflash"; vocab_size is that of the drafts.
    const ModelInfo& info() const { return info_; }
    const DflashConfig& config() const { return config_; }
    /// One entry for each layer.
    std::span<const StateSpec> state_specs() const { return specs_; }
    /// What the temporaries of append() for up to `rows` rows and of draft() may take of a GPU's memory, at most:
    /// bytes.
    static int64_t workspace(const DflashConfig& config, const ModelInfo& target, int64_t rows);

    /// Target layers to capture, in the order of the feature columns; -1 stands for the embedding.
    std::span<const int32_t> taps() const { return config_.taps; }
    /// Columns of features: taps times the target's hidden size.
    int64_t feature_columns() const { return fc_.cols; }
    int64_t block_size() const { return config_.block_size; }
    int32_t mask_token_id() const { return static_cast<int32_t>(config_.mask_token_id); }
    /// The first row of a block whose logits are drafts: 1, or 0 for drafters that sample from the anchor.
    int64_t first_slot() const { return config_.sample_from_anchor ? 0 : 1; }
    /// Entry i: the target's token that draft logit i stands for. Ascending.
    std::span<const int32_t> target_ids() const { return target_ids_; }

    /// Makes K/V of the batch's rows from their features, f32 [n, feature_columns()], contiguous, row by row as in the
    /// batch. May use the arena; result is in the caches.
    void append(Context& ctx, const Tensor& features, const Batch& batch, const States& states) const;
    /// f32 logits [batch.logit_rows.size(), target_ids().size()] of blocks, in the arena. Each sequence's rows are a block.
    /// Writes the block's K/V behind the committed rows. batch.parent must be empty.
    Tensor draft(Context& ctx, const Batch& batch, const States& states) const;

  private:
    struct Layer {
        std::span<const float> attn_norm, ffn_norm, q_norm, k_norm;
        Weight wq, wk, wv, wo;
        Weight wg;  // optional: a gate for each head
        Weight w_gate, w_up, w_down;
    };

    void bind_layer(WeightLoader& bind, int64_t l);
    void bind_vocabulary(WeightLoader& bind, const Checkpoint& checkpoint, const Model& target);
    void count(const Binder& bind);
    const ops::Rope& rope(int64_t l) const { return config_.is_sliding[static_cast<size_t>(l)] ? rope_sliding_ : rope_; }
    // x: the residual stream, f32 [n, D]; adds its result to it.
    void attention(Context& ctx, int64_t l, Tensor& x, const Batch& batch, const KvView& kv) const;

    DflashConfig config_;
    WeightStore store_;
    ops::Rope rope_, rope_sliding_;
    Weight fc_;
    std::span<const float> tap_norms_;  // [feature columns]; empty: none
    std::span<const float> hidden_norm_, norm_;
    Weight embed_tokens_, lm_head_;     // own or the target's
    bool owns_embedding_ = false, owns_head_ = false;
    std::vector<int32_t> target_ids_;
    std::vector<Layer> layers_;
    std::vector<StateSpec> specs_;
    ModelInfo info_;
};

/// Builds the drafter that the checkpoint describes, for this target. Throws Error, also if the checkpoint is no drafter.
std::unique_ptr<Dflash> load_drafter(const Checkpoint& checkpoint, const Model& target,
                                     const ModelOptions& options = {});

}  // namespace riptide
