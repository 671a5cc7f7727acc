// Qwen3.5 and 3.6: hybrids of Gated DeltaNet and gated full attention, dense or mixtures of experts.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "models/binder.h"
#include "models/kv_scales.h"
#include "models/model.h"
#include "models/qwen35_config.h"
#include "ops/moe.h"

namespace riptide {

/// The text model; a vision tower and layers that predict further tokens (mtp, nextn) are left out, by name. Reference:
/// transformers, models/qwen3_5/modeling_qwen3_5.py and models/qwen3_5_moe. Taps as Laguna's; "attn_out" is what either
/// kind of layer adds to the residual stream.
class Qwen35 final : public Model {
  public:
    /// Binds every tensor of the checkpoint. Throws Error; see Binder and qwen35_config.
    Qwen35(const Checkpoint& checkpoint, const ModelOptions& options);

    const ModelInfo& info() const override { return info_; }
    std::span<const StateSpec> state_specs() const override { return specs_; }
    Workspace workspace() const override;
    Tensor embed(Context& ctx, const Batch& batch) const override;
    void layer(Context& ctx, int64_t l, Tensor& x, const Batch& batch, const States& states) const override;
    Tensor logits(Context& ctx, const Tensor& x, const Batch& batch) const override;
    SharedWeights shared_weights() const override { return {embed_tokens_, lm_head_}; }

  private:
    struct Layer {
        std::span<const float> attn_norm, ffn_norm;
        // Full attention; wq yields for each head the query and its gates.
        Weight wq, wk, wv, wo;
        std::span<const float> q_norm, k_norm;
        // Gated DeltaNet.
        Weight in_qkv, in_z, in_b, in_a, out;
        std::span<const float> conv, decay, dt_bias, delta_norm;
        // Feed-forward; of a mixture the shared expert, and its gate.
        Weight w_gate, w_up, w_down;
        Weight router, shared_gate;
        ops::ExpertWeights experts;
    };

    TensorNames names(int64_t l, std::string_view gguf, std::string_view hf) const;
    std::span<const float> norm(WeightLoader& bind, const TensorNames& names, int64_t size, float factor = 1) const;
    void bind_attention(WeightLoader& bind, int64_t l, KvScales& scales);
    void bind_delta(WeightLoader& bind, int64_t l);
    void bind_feed_forward(WeightLoader& bind, int64_t l);
    void add_fp8();
    void count(const Binder& bind);
    // x: the residual stream, f32 [n, D]; each adds its result to it.
    void attention(Context& ctx, int64_t l, Tensor& x, const Batch& batch, const KvView& kv) const;
    void linear_attention(Context& ctx, int64_t l, Tensor& x, const Batch& batch, const States& states) const;
    void feed_forward(Context& ctx, int64_t l, Tensor& x) const;
    ops::MoeLayer moe_layer(int64_t l) const;

    Qwen35Config config_;
    WeightStore store_;
    bool gguf_;
    std::string text_;  // what names of a Hugging Face folder begin with: "model." or "model.language_model."
    ops::Rope rope_;
    Weight embed_tokens_, lm_head_;
    std::span<const float> norm_;
    std::vector<Layer> layers_;
    std::vector<StateSpec> specs_;
    ModelInfo info_;
};

}  // namespace riptide
