// Qwen3, the dense models.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "models/binder.h"
#include "models/kv_scales.h"
#include "models/model.h"
#include "models/rope_config.h"

namespace riptide {

struct Qwen3Config {
    int64_t vocab_size = 0;  // 0: as many as the embedding table has rows
    int64_t hidden_size = 0;
    int64_t num_hidden_layers = 0;
    int64_t num_attention_heads = 0;
    int64_t num_key_value_heads = 0;
    int64_t head_dim = 0;
    int64_t intermediate_size = 0;
    int64_t max_position_embeddings = 0;
    double rms_norm_eps = 0;
    bool tie_word_embeddings = false;
    RopeConfig rope;
};

/// From config.json, with rope_theta and rope_scaling or with rope_parameters. Throws Error naming the key for anything
/// missing or not supported (attention biases, sliding windows, other activations).
Qwen3Config qwen3_config_from_hf(const ConfigReader& config);
/// From GGUF metadata; `keys` has the prefix "qwen3.".
Qwen3Config qwen3_config_from_gguf(const ConfigReader& keys);

/// Every field, as text that tells any two configs apart.
std::string config_text(const Qwen3Config& config);

/// Reference: transformers, models/qwen3/modeling_qwen3.py. Taps as Laguna's.
class Qwen3 final : public Model {
  public:
    struct Layer {
        std::span<const float> attn_norm, ffn_norm, q_norm, k_norm;
        Weight wq, wk, wv, wo;
        Weight w_gate, w_up, w_down;
    };

    /// Binds every tensor of the checkpoint. Throws Error; see Binder and qwen3_config_*.
    Qwen3(const Checkpoint& checkpoint, const ModelOptions& options);

    const ModelInfo& info() const override { return info_; }
    std::span<const StateSpec> state_specs() const override { return specs_; }
    Workspace workspace() const override;
    Tensor embed(Context& ctx, const Batch& batch) const override;
    void layer(Context& ctx, int64_t l, Tensor& x, const Batch& batch, const States& states) const override;
    Tensor logits(Context& ctx, const Tensor& x, const Batch& batch) const override;
    SharedWeights shared_weights() const override { return {embed_tokens_, lm_head_}; }

    const Qwen3Config& config() const { return config_; }
    /// For who runs the layers in another way (models/scorer.h).
    const Layer& weights(int64_t l) const { return layers_[static_cast<size_t>(l)]; }
    const ops::Rope& rope() const { return rope_; }

  private:
    void bind_layer(WeightLoader& bind, int64_t l, KvScales& scales);
    void add_fp8();
    void count(const Binder& bind);
    // x: the residual stream, f32 [n, D]; each adds its result to it.
    void attention(Context& ctx, int64_t l, Tensor& x, const Batch& batch, const KvView& kv) const;
    void feed_forward(Context& ctx, int64_t l, Tensor& x) const;

    Qwen3Config config_;
    WeightStore store_;
    ops::Rope rope_;
    Weight embed_tokens_, lm_head_;  // of a model that embeds no head
    std::span<const float> norm_;
    std::vector<Layer> layers_;
    std::vector<StateSpec> specs_;
    ModelInfo info_;
};

}  // namespace riptide
