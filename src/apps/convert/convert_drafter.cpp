#include "apps/convert/convert_drafter.h"

#include "base/error.h"
#include "base/json.h"

namespace riptide::apps {

namespace {

TensorNames both(const std::string& hf) { return {{}, {hf, "model." + hf}}; }

/// Collects the tensors of a folder that has them.
class Collector {
  public:
    explicit Collector(const Checkpoint& checkpoint) : binder_(checkpoint) {}

    bool has(const std::string& hf) const { return binder_.has(both(hf)); }
    int64_t rows(const std::string& hf) const { return binder_.rows_of(both(hf)); }
    DrafterTensor& add(const std::string& gguf, const std::string& hf, std::vector<int64_t> shape, int64_t layer = -1) {
        return tensors_.emplace_back(DrafterTensor{{gguf, std::move(shape), layer}, both(hf)});
    }
    std::vector<DrafterTensor> take() { return std::move(tensors_); }

  private:
    Binder binder_;
    std::vector<DrafterTensor> tensors_;
};

void add_drafter_attention(Collector& out, const DflashConfig& c, int64_t l) {
    const std::string blk = fmt::format("blk.{}.", l), hf = fmt::format("layers.{}.self_attn.", l);
    const int64_t D = c.hidden_size, q = c.num_attention_heads * c.head_dim, kv = c.num_key_value_heads * c.head_dim;
    const bool fused = out.has(hf + "qkv_proj.weight");
    int64_t first = 0;
    for (const auto& [name, rows] : {std::pair("q", q), std::pair("k", kv), std::pair("v", kv)}) {
        DrafterTensor& t =
            out.add(fmt::format("{}attn_{}.weight", blk, name),
                    hf + (fused ? std::string("qkv_proj.weight") : fmt::format("{}_proj.weight", name)), {rows, D}, l);
        if (!fused) continue;
        t.first_row = first;
        t.source_rows = q + 2 * kv;
        first += rows;
    }
    out.add(blk + "attn_output.weight", hf + "o_proj.weight", {D, q}, l);
    if (out.has(hf + "g_proj.weight"))
        out.add(blk + "attn_gate.weight", hf + "g_proj.weight", {c.num_attention_heads, D}, l);
    out.add(blk + "attn_q_norm.weight", hf + "q_norm.weight", {c.head_dim}, l);
    out.add(blk + "attn_k_norm.weight", hf + "k_norm.weight", {c.head_dim}, l);
}

}  // namespace

std::vector<DrafterTensor> drafter_tensors(const Checkpoint& checkpoint, const DflashConfig& c) {
    Collector out(checkpoint);
    const int64_t D = c.hidden_size, F = c.intermediate_size;
    const TensorInfo* fc = nullptr;
    for (const char* name : {"fc.weight", "model.fc.weight"})
        if (const TensorInfo* found = checkpoint.find(name)) fc = found;
    RT_CHECK(fc != nullptr && fc->shape.size() == 2, "{}: missing tensor fc.weight", checkpoint.path());
    const int64_t columns = fc->shape[1], taps = std::ssize(c.taps);
    RT_CHECK(columns % taps == 0, "{}: fc reads {} columns, which is no whole number for each of {} taps",
             checkpoint.path(), columns, taps);
    out.add("dflash.fc.weight", "fc.weight", {D, columns}).keeps_precision = true;
    for (int64_t i = 0; i < taps && out.has("aux_hidden_norms.0.weight"); ++i)
        out.add(fmt::format("dflash.aux_hidden_norm.{}.weight", i), fmt::format("aux_hidden_norms.{}.weight", i),
                {columns / taps});
    out.add("dflash.hidden_norm.weight", "hidden_norm.weight", {D});
    out.add("output_norm.weight", "norm.weight", {D});
    if (out.has("embed_tokens.weight"))
        out.add("token_embd.weight", "embed_tokens.weight", {out.rows("embed_tokens.weight"), D});
    if (out.has("lm_head.weight"))
        out.add("output.weight", "lm_head.weight", {out.rows("lm_head.weight"), D}).keeps_precision = true;
    if (out.has("d2t")) out.add("dflash.d2t", "d2t", {out.rows("d2t")}).integers = true;
    for (int64_t l = 0; l < c.num_hidden_layers; ++l) {
        const std::string blk = fmt::format("blk.{}.", l), hf = fmt::format("layers.{}.", l);
        out.add(blk + "attn_norm.weight", hf + "input_layernorm.weight", {D}, l);
        add_drafter_attention(out, c, l);
        out.add(blk + "ffn_norm.weight", hf + "post_attention_layernorm.weight", {D}, l);
        out.add(blk + "ffn_gate.weight", hf + "mlp.gate_proj.weight", {F, D}, l);
        out.add(blk + "ffn_up.weight", hf + "mlp.up_proj.weight", {F, D}, l);
        out.add(blk + "ffn_down.weight", hf + "mlp.down_proj.weight", {D, F}, l);
    }
    return out.take();
}

DType drafter_type(DType type) {
    const DTypeInfo& info = dtype_info(type);
    return info.block_bytes < info.block_elements ? DType::q8_0 : type;
}

void write_drafter_metadata(const DflashConfig& c, const std::string& name, GgufWriter& w) {
    const std::string p = "dflash-draft.";
    const auto u32 = [&](const std::string& key, int64_t value) { w.set_u32(p + key, static_cast<uint32_t>(value)); };
    const auto f32 = [&](const std::string& key, double value) { w.set_f32(p + key, static_cast<float>(value)); };
    const auto flags = [&](const std::string& key, const std::vector<char>& values) {
        json::array out;
        for (const char value : values) out.push_back(value != 0);
        w.set_array(p + key, GgufType::boolean, out);
    };
    w.set_string("general.architecture", "dflash-draft");
    w.set_string("general.name", name);
    u32("block_count", c.num_hidden_layers);
    u32("context_length", c.max_position_embeddings);
    u32("embedding_length", c.hidden_size);
    u32("feed_forward_length", c.intermediate_size);
    u32("attention.head_count", c.num_attention_heads);
    u32("attention.head_count_kv", c.num_key_value_heads);
    u32("attention.key_length", c.head_dim);
    u32("attention.value_length", c.head_dim);
    f32("attention.layer_norm_rms_epsilon", c.rms_norm_eps);
    if (c.vocab_size > 0) u32("vocab_size", c.vocab_size);
    u32("dflash.block_size", c.block_size);
    u32("dflash.mask_token_id", c.mask_token_id);
    u32("dflash.n_target_layers", std::ssize(c.taps));
    json::array taps;
    for (const int32_t tap : c.taps) taps.push_back(tap);
    w.set_array(p + "dflash.target_layer_ids", GgufType::i32, taps);
    w.set_bool(p + "dflash.context_kv_layer_norm", c.norms_context);
    flags("dflash.causal", c.is_causal);
    if (c.draft_vocab_size > 0) u32("dflash.draft_vocab_size", c.draft_vocab_size);
    if (c.num_target_layers > 0) u32("dflash.num_target_layers", c.num_target_layers);
    if (c.sample_from_anchor) w.set_bool(p + "dflash.sample_from_anchor", true);
    if (c.has_sliding()) {
        u32("attention.sliding_window", c.sliding_window);
        flags("attention.sliding_window_pattern", c.is_sliding);
        const RopeConfig &a = c.rope, &b = c.rope_sliding;
        RT_CHECK(
            a.theta == b.theta && a.rotary_dim == b.rotary_dim && a.factor == b.factor && a.magnitude == b.magnitude,
            "{}: full and sliding layers have different rotary embeddings, which drafters in GGUF cannot say", name);
    }
    u32("rope.dimension_count", c.rope.rotary_dim);
    f32("rope.freq_base", c.rope.theta);
    if (!c.rope.yarn()) return;
    w.set_string(p + "rope.scaling.type", "yarn");
    f32("rope.scaling.factor", c.rope.factor);
    u32("rope.scaling.original_context_length", static_cast<int64_t>(c.rope.original_context));
    f32("rope.scaling.yarn_beta_fast", c.rope.beta_fast);
    f32("rope.scaling.yarn_beta_slow", c.rope.beta_slow);
    const double derived = yarn_magnitude(c.rope.factor);
    if (c.rope.magnitude != derived) f32("rope.scaling.attn_factor", c.rope.magnitude / derived);
}

}  // namespace riptide::apps
