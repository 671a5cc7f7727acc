// Laguna: Poolside's mixture-of-experts models XS.2, XS-2.1, S-2.1 and M.1.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "models/binder.h"
#include "models/kv_scales.h"
#include "models/laguna_config.h"
#include "models/model.h"
#include "ops/moe.h"

namespace riptide {

/// Reference: transformers, models/laguna/modular_laguna.py. Taps, in the order of a forward pass: "embed" (layer -1),
/// for each layer "attn_out" (after o_proj), in sparse layers "router_logits" and "router_experts", "ffn_out" (the
/// feed-forward with the shared expert) and "layer_out", then "norm" (layer -1, the rows of the logits).
class Laguna final : public Model {
  public:
    /// Binds every tensor of the checkpoint. Throws Error; see Binder and laguna_config.
    Laguna(const Checkpoint& checkpoint, const ModelOptions& options);

    const ModelInfo& info() const override { return info_; }
    std::span<const StateSpec> state_specs() const override { return specs_; }
    Workspace workspace() const override;
    Tensor embed(Context& ctx, const Batch& batch) const override;
    void layer(Context& ctx, int64_t l, Tensor& x, const Batch& batch, const States& states) const override;
    Tensor logits(Context& ctx, const Tensor& x, const Batch& batch) const override;
    SharedWeights shared_weights() const override { return {embed_tokens_, lm_head_}; }

    const LagunaConfig& config() const { return config_; }

  private:
    struct Layer {
        std::span<const float> attn_norm, ffn_norm, q_norm, k_norm;
        Weight wq, wk, wv, wo, wg;
        Weight w_gate, w_up, w_down;  // dense layers: the feed-forward; sparse layers: the shared expert
        Weight router;                // sparse layers only
        std::span<const float> router_bias;
        ops::ExpertWeights experts;
    };

    void bind_attention(WeightLoader& bind, int64_t l, KvScales& scales);
    void bind_feed_forward(WeightLoader& bind, int64_t l);
    void add_fp8();
    void count(const Binder& bind);
    // x: the residual stream, f32 [n, D]; each adds its result to it.
    void attention(Context& ctx, int64_t l, Tensor& x, const Batch& batch, const KvView& kv) const;
    ops::MoeLayer moe_layer(int64_t l) const;
    void feed_forward(Context& ctx, int64_t l, Tensor& x) const;

    LagunaConfig config_;
    WeightStore store_;
    ops::Rope rope_full_, rope_sliding_;
    Weight embed_tokens_, lm_head_;
    std::span<const float> norm_;
    std::vector<Layer> layers_;
    std::vector<StateSpec> specs_;
    ModelInfo info_;
};

}  // namespace riptide
