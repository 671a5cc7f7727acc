#include "engine/execution/one_launch.h"

#include <string>
#include <utility>

#include "base/error.h"
#include "models/qwen35.h"

namespace riptide {

namespace {

ops::PersistentLayer layer_of(const Qwen35::Layer& w, bool linear) {
    ops::PersistentLayer layer;
    layer.linear = linear;
    if (linear) {
        layer.in[0] = w.in_qkv, layer.in[1] = w.in_z, layer.in[2] = w.in_b, layer.in[3] = w.in_a;
        layer.head_norm = w.delta_norm;
    } else {
        layer.in[0] = w.wq, layer.in[1] = w.wk, layer.in[2] = w.wv;
        layer.head_norm = w.q_norm;
        layer.k_norm = w.k_norm;
    }
    layer.out = linear ? w.out : w.wo;
    layer.gate = w.w_gate;
    layer.up = w.w_up;
    layer.down = w.w_down;
    layer.attn_norm = w.attn_norm;
    layer.ffn_norm = w.ffn_norm;
    layer.conv = w.conv;
    layer.decay = w.decay;
    layer.dt_bias = w.dt_bias;
    return layer;
}

ops::PersistentModel model_of(const Qwen35& model, int64_t tokens) {
    const Qwen35Config& config = model.config();
    ops::PersistentModel m;
    m.embed_tokens = model.shared_weights().embed_tokens;
    m.lm_head = model.shared_weights().lm_head;
    m.norm = model.last_norm();
    m.rope = make_rope(config.rope);
    m.eps = static_cast<float>(config.rms_norm_eps);
    m.hidden = config.hidden_size;
    m.ffn = config.intermediate_size;
    m.vocab = config.vocab_size;
    m.heads = config.num_attention_heads;
    m.kv_heads = config.num_key_value_heads;
    m.head_dim = config.head_dim;
    m.tokens = tokens;
    m.delta = config.delta;
    for (size_t l = 0; l < model.layers().size(); ++l)
        m.layers.push_back(layer_of(model.layers()[l], config.is_linear[l] != 0));
    return m;
}

}  // namespace

std::unique_ptr<ops::PersistentDecode> one_launch(const Model& model, const KvCache& cache, int64_t tokens) {
    RT_CHECK(cache.gpu() != nullptr, ErrorKind::usage, "--decode persistent: it runs on a GPU only");
    const auto* const qwen35 = dynamic_cast<const Qwen35*>(&model);
    RT_CHECK(qwen35 != nullptr, ErrorKind::usage, "--decode persistent: there is no such kernel for {} models",
             model.info().architecture);
    RT_CHECK(qwen35->config().num_experts == 0, ErrorKind::usage,
             "--decode persistent: the persistent kernel takes no mixtures of experts");
    ops::PersistentModel parts = model_of(*qwen35, tokens);
    const std::string why_not = ops::PersistentDecode::refusal(*cache.gpu(), parts, cache.views());
    RT_CHECK(why_not.empty(), ErrorKind::usage, "--decode persistent: the persistent kernel {}", why_not);
    return std::make_unique<ops::PersistentDecode>(*cache.gpu(), std::move(parts));
}

}  // namespace riptide
