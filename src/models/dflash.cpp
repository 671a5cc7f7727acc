// DFlash. n rows, D hidden_size, t taps, H query heads, Hkv key-value heads, d head_dim, Vd words of the drafts.
#include "models/dflash.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "base/error.h"
#include "models/facts.h"
#include "ops/block_attention.h"
#include "ops/block_heads.h"
#include "ops/capture.h"
#include "ops/embed.h"
#include "ops/gated_attention.h"
#include "ops/matmul.h"
#include "ops/norm.h"

namespace riptide {

namespace {

/// Of few rows: what is proposed will be checked, so it may be computed as suits the weights.
Family family_of(const Context& ctx) { return ctx.family == Family::prefill ? Family::prefill : Family::draft; }

}  // namespace

// ---- forward --------------------------------------------------------------------------------------------------------
// The formulas stand on the right margin.
// clang-format off

void Dflash::append(Context& ctx, const Tensor& features, const Batch& batch, const States& states) const {
    RT_ASSERT(features.rank == 2 && features.contiguous() && features.rows() == batch.rows() && features.shape[1] == fc_.cols);
    const ArenaScope scope(*ctx.arena);
    const WithFamily family(ctx, family_of(ctx));
    const int64_t n = features.rows(), Hkv = config_.num_key_value_heads, d = config_.head_dim;
    const auto eps = static_cast<float>(config_.rms_norm_eps);

    const Tensor taps = tap_norms_.empty() ? features                      // each tap, if the dialect has it: RMSNorm
        : ops::rms_norm_parts(ctx, features, tap_norms_, std::ssize(config_.taps), eps);
    const Tensor fused = ops::matmul(ctx, fc_, taps);                      // c = RMSNorm(fc [tap_1; ..; tap_t])  [n, D]
    const Tensor c = config_.norms_context || ctx.tap ? ops::rms_norm(ctx, fused, hidden_norm_, eps) : Tensor();
    std::vector<std::vector<Tensor>> kv;                                   // k, v = Wk c, Wv c; or of RMSNorm(c)
    if (config_.norms_context) {
        for (const Layer& w : layers_) {
            const Weight* projections[] = {&w.wk, &w.wv};
            kv.push_back(ops::norm_matmul_group(ctx, c, {w.attn_norm, eps}, projections));
        }
    } else {
        std::vector<const Weight*> projections;
        for (const Layer& w : layers_) projections.insert(projections.end(), {&w.wk, &w.wv});
        const std::vector<Tensor> all = ops::norm_matmul_group(ctx, fused, {hidden_norm_, eps}, projections);
        for (size_t l = 0; l < layers_.size(); ++l) kv.push_back({all[2 * l], all[2 * l + 1]});
    }
    std::vector<ops::BlockHeads> heads;                                    // each head of k: RMSNorm, rotation R(p)
    for (size_t l = 0; l < layers_.size(); ++l) {
        const Layer& w = layers_[l];
        const Tensor k = kv[l][0].view({n, Hkv, d}), v = kv[l][1].view({n, Hkv, d});
        if (ctx.tap) {
            Tensor seen = ops::rms_norm(ctx, k, w.k_norm, eps);
            ops::rope(ctx, seen, batch.positions, rope(static_cast<int64_t>(l)));
            ctx.observe("context_k", static_cast<int>(l), seen);
        }
        heads.push_back({Tensor(), k, v, {}, {w.k_norm, eps}, states.kv[l]});
        const bool last = l + 1 == layers_.size() || config_.is_sliding[l + 1] != config_.is_sliding[l];
        if (!last && heads.size() < ops::kMostBlockHeads) continue;
        ops::block_heads(ctx, heads, rope(static_cast<int64_t>(l)), batch);
        heads.clear();
    }
    if (ctx.tap) ctx.observe("context", -1, c);
}

void Dflash::attention(Context& ctx, int64_t l, Tensor& x, const Batch& batch, const KvView& kv) const {
    const auto i = static_cast<size_t>(l);
    const Layer& w = layers_[i];
    const int64_t n = x.rows(), H = config_.num_attention_heads, Hkv = config_.num_key_value_heads, d = config_.head_dim;
    const auto eps = static_cast<float>(config_.rms_norm_eps);
    const auto scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(d)));

    std::vector<const Weight*> projections = {&w.wq, &w.wk, &w.wv};        // h = RMSNorm(x)  [n, D]
    if (w.wg) projections.push_back(&w.wg);
    const std::vector<Tensor> p =                                          // q, k, v, g = Wq h, Wk h, Wv h, Wg h
        ops::norm_matmul_group(ctx, x, {w.attn_norm, eps}, projections);
    const Tensor gate = w.wg ? p[3] : Tensor();
    if (config_.is_causal[i]) {                                            // row j sees the context and rows <= j
        const ops::AttentionInput in{.q = p[0].view({n, H, d}), .k = p[1].view({n, Hkv, d}), .v = p[2].view({n, Hkv, d}),
                                     .gate = gate, .q_norm = {w.q_norm, eps}, .k_norm = {w.k_norm, eps},
                                     .rope = &rope(l), .softmax_scale = scale};
        ops::gated_attention_add(ctx, in, kv, batch, w.wo, x);
        return;
    }
    ops::BlockHeads heads{p[0].view({n, H, d}), p[1].view({n, Hkv, d}), p[2].view({n, Hkv, d}), {w.q_norm, eps},
                          {w.k_norm, eps}, kv};                            // each head of q, k: RMSNorm, rotation R(p)
    const Tensor o =                                                       // o = softmax(q K^T / sqrt d) V: the context
        ops::gated_block_attention(ctx, heads, rope(l), batch, scale, gate);  // and all rows of the block; o * softplus(g)
    ops::matmul_add(ctx, w.wo, o, x);                                      // x <- x + Wo o
}

Tensor Dflash::draft(Context& ctx, const Batch& batch, const States& states) const {
    RT_ASSERT(batch.parent.empty());
    const WithFamily family(ctx, family_of(ctx));
    const auto eps = static_cast<float>(config_.rms_norm_eps);
    Tensor x = ops::embed(ctx, embed_tokens_, batch.tokens);               // x = E[anchor], E[MASK], ..  [n, D]
    for (int64_t l = 0; l < std::ssize(layers_); ++l) {
        const ArenaScope scope(*ctx.arena);
        const Layer& w = layers_[static_cast<size_t>(l)];
        attention(ctx, l, x, batch, states.kv[static_cast<size_t>(l)]);
        ops::swiglu_ffn_add(ctx, x, {w.ffn_norm, eps}, w.w_gate, w.w_up, w.w_down);   // x <- x + Wd (silu(Wg h) * Wu h)
        ctx.observe("layer_out", static_cast<int>(l), x);
    }
    if (batch.logit_rows.empty()) return Tensor(nullptr, DType::f32, {0, lm_head_.rows});
    const Tensor wanted = ops::wanted_rows(ctx, x, batch.logit_rows);
    const Weight* head[] = {&lm_head_};
    return ops::norm_matmul_group(ctx, wanted, {norm_, eps}, head)[0];     // logits of the wanted slots  [m, Vd]
}
// clang-format on

// ---- weights --------------------------------------------------------------------------------------------------------

namespace {

/// Names of a tensor; Hugging Face folders have them with and without "model.".
TensorNames named(std::initializer_list<std::string_view> gguf, std::string_view hf) {
    TensorNames names;
    for (const std::string_view name : gguf) names.gguf.emplace_back(name);
    names.hf = {std::string(hf), "model." + std::string(hf)};
    return names;
}

TensorNames layer_names(int64_t l, std::initializer_list<std::string_view> gguf, std::string_view hf) {
    TensorNames names = named({}, fmt::format("layers.{}.{}", l, hf));
    for (const std::string_view name : gguf) names.gguf.push_back(fmt::format("blk.{}.{}", l, name));
    return names;
}

const TensorNames kFc = named({"dflash.fc.weight", "dflash_fc.weight", "fc.weight"}, "fc.weight");
const TensorNames kEmbedding = named({"token_embd.weight"}, "embed_tokens.weight");
const TensorNames kHead = {{"output.weight"}, {"lm_head.weight", "model.lm_head.weight"}};
const TensorNames kD2t = {{"dflash.d2t", "d2t"}, {"d2t", "model.d2t"}};
const TensorNames kTapNorms = {{"enc.aux_norm.weight"}, {}};  // llama.cpp: one above the other
const TensorNames kT2d = {{"dflash.t2d", "t2d"}, {"t2d", "model.t2d"}};

TensorNames tap_norm(size_t i) {
    return named({fmt::format("dflash.aux_hidden_norm.{}.weight", i)}, fmt::format("aux_hidden_norms.{}.weight", i));
}

}  // namespace

void Dflash::bind_layer(WeightLoader& bind, int64_t l) {
    const int64_t D = config_.hidden_size, F = config_.intermediate_size, d = config_.head_dim;
    const int64_t q = config_.num_attention_heads * d, kv = config_.num_key_value_heads * d;
    Layer& w = layers_[static_cast<size_t>(l)];
    w.attn_norm = bind.vector(layer_names(l, {"attn_norm.weight"}, "input_layernorm.weight"), D);
    const TensorNames fused = layer_names(l, {"attn_qkv.weight"}, "self_attn.qkv_proj.weight");
    if (bind.has(fused)) {
        const int64_t parts[] = {q, kv, kv};
        const std::vector<Weight> qkv = bind.stacked(fused, parts, D);
        w.wq = qkv[0], w.wk = qkv[1], w.wv = qkv[2];
    } else {
        w.wq = bind.matrix(layer_names(l, {"attn_q.weight"}, "self_attn.q_proj.weight"), q, D);
        w.wk = bind.matrix(layer_names(l, {"attn_k.weight"}, "self_attn.k_proj.weight"), kv, D);
        w.wv = bind.matrix(layer_names(l, {"attn_v.weight"}, "self_attn.v_proj.weight"), kv, D);
    }
    w.wo = bind.matrix(layer_names(l, {"attn_output.weight"}, "self_attn.o_proj.weight"), D, q);
    w.q_norm = bind.vector(layer_names(l, {"attn_q_norm.weight"}, "self_attn.q_norm.weight"), d);
    w.k_norm = bind.vector(layer_names(l, {"attn_k_norm.weight"}, "self_attn.k_norm.weight"), d);
    const TensorNames gate = layer_names(l, {"attn_gate.weight"}, "self_attn.g_proj.weight");
    if (bind.has(gate)) w.wg = bind.matrix(gate, config_.num_attention_heads, D);
    w.ffn_norm = bind.vector(
        layer_names(l, {"ffn_norm.weight", "post_attention_norm.weight"}, "post_attention_layernorm.weight"), D);
    w.w_gate = bind.matrix(layer_names(l, {"ffn_gate.weight"}, "mlp.gate_proj.weight"), F, D);
    w.w_up = bind.matrix(layer_names(l, {"ffn_up.weight"}, "mlp.up_proj.weight"), F, D);
    w.w_down = bind.matrix(layer_names(l, {"ffn_down.weight"}, "mlp.down_proj.weight"), D, F);
    specs_.push_back(
        {.kind = config_.is_sliding[static_cast<size_t>(l)] ? StateSpec::Kind::window : StateSpec::Kind::paged,
         .num_kv_heads = config_.num_key_value_heads,
         .head_dim = d,
         .window = config_.is_sliding[static_cast<size_t>(l)] ? static_cast<int32_t>(config_.sliding_window) : 0});
}

void Dflash::bind_vocabulary(WeightLoader& bind, const Checkpoint& checkpoint, const Model& target) {
    const int64_t V = target.info().vocab_size, D = config_.hidden_size;
    const SharedWeights shared = target.shared_weights();
    const auto borrow = [&](const Weight& w, std::string_view what) {
        RT_CHECK(w, "{}: has no {} of its own, and {} has none to share", info_.name, what, target.info().name);
        RT_CHECK(w.cols == D, "{}: borrows the {} of {}, whose hidden size is {}, but its own is {}", info_.name, what,
                 target.info().name, w.cols, D);
        return w;
    };
    owns_embedding_ = bind.has(kEmbedding);
    embed_tokens_ = owns_embedding_ ? bind.matrix(kEmbedding, V, D) : borrow(shared.embed_tokens, "embedding");
    owns_head_ = bind.has(kHead);
    const int64_t Vd = owns_head_ ? bind.rows_of(kHead) : V;
    RT_CHECK(config_.draft_vocab_size == 0 || config_.draft_vocab_size == Vd,
             "{}: draft_vocab_size is {}, but the {} has {} rows", info_.name, config_.draft_vocab_size,
             owns_head_ ? "head" : "target's head, which it borrows,", Vd);
    lm_head_ = owns_head_ ? bind.matrix(kHead, Vd, D) : borrow(shared.lm_head, "head");
    RT_CHECK(Vd <= V, "{}: drafts {} words, but {} knows {}", info_.name, Vd, target.info().name, V);
    target_ids_.resize(static_cast<size_t>(Vd));
    std::iota(target_ids_.begin(), target_ids_.end(), 0);
    if (bind.has(kD2t)) {
        const std::vector<int64_t> words = bind.integers(kD2t, Vd);
        for (size_t i = 0; i < words.size(); ++i) {
            const int64_t id = words[i] + (config_.d2t_is_absolute ? 0 : static_cast<int64_t>(i));
            RT_CHECK(id >= 0 && id < V && (i == 0 || id > target_ids_[i - 1]),
                     "{}: d2t[{}] is {}: word {} of the target, expected ascending words below {}", checkpoint.path(),
                     i, words[i], id, V);
            target_ids_[i] = static_cast<int32_t>(id);
        }
    } else {
        RT_CHECK(Vd == V, "{}: its head has {} rows and {} knows {} words, but there is no d2t that says which words",
                 info_.name, Vd, target.info().name, V);
    }
    if (!bind.has(kT2d)) return;
    const std::vector<int64_t> mask = bind.integers(kT2d, V);
    std::vector<int64_t> expected(mask.size());
    for (const int32_t id : target_ids_) expected[static_cast<size_t>(id)] = 1;
    RT_CHECK(mask == expected, "{}: t2d and d2t name different words", checkpoint.path());
}

Dflash::Dflash(const Checkpoint& checkpoint, const Model& target, const ModelOptions& options)
    : config_(dflash_config(checkpoint)), store_(options.gpu, options.on_progress) {
    info_.name = model_name(checkpoint);
    const ModelInfo& t = target.info();
    const auto fits = [&](int64_t said, int64_t is, std::string_view what) {
        RT_CHECK(said == 0 || said == is, "{}: made for a target of {} {}, but {} has {}", info_.name, said, what,
                 t.name, is);
    };
    fits(config_.num_target_layers, t.num_hidden_layers, "layers");
    fits(config_.vocab_size, t.vocab_size, "words");
    for (const int32_t tap : config_.taps)
        RT_CHECK(tap < t.num_hidden_layers, "{}: reads the output of layer {}, but {} has {} layers", info_.name, tap,
                 t.name, t.num_hidden_layers);
    RT_CHECK(config_.mask_token_id < t.vocab_size, "{}: mask_token_id is {}, but {} knows {} words", info_.name,
             config_.mask_token_id, t.name, t.vocab_size);
    rope_ = make_rope(config_.rope);
    if (config_.has_sliding()) rope_sliding_ = make_rope(config_.rope_sliding);

    WeightLoader bind(checkpoint, store_);
    const int64_t D = config_.hidden_size, columns = std::ssize(config_.taps) * t.hidden_size;
    const TensorInfo* fc = nullptr;
    for (const TensorInfo& tensor : checkpoint.tensors())
        if (tensor.name.ends_with("fc.weight")) fc = &tensor;
    if (fc != nullptr && fc->shape.size() == 2)
        RT_CHECK(fc->shape[1] == columns,
                 "{}: fc reads {} columns, but {} taps of {}, whose hidden size is {}, have {}", info_.name,
                 fc->shape[1], config_.taps.size(), t.name, t.hidden_size, columns);
    fc_ = bind.matrix(kFc, D, columns);
    std::vector<float> norms;
    if (bind.has(kTapNorms)) norms = bind.host_values(kTapNorms, {std::ssize(config_.taps), t.hidden_size});
    else if (bind.has(tap_norm(0)))
        for (size_t i = 0; i < config_.taps.size(); ++i) {
            const std::vector<float> values = bind.host_vector(tap_norm(i), t.hidden_size);
            norms.insert(norms.end(), values.begin(), values.end());
        }
    if (!norms.empty()) tap_norms_ = store_.floats(std::move(norms));
    hidden_norm_ =
        bind.vector(named({"dflash.hidden_norm.weight", "dflash_hidden_norm.weight", "enc.output_norm.weight"},
                          "hidden_norm.weight"),
                    D);
    norm_ = bind.vector(named({"output_norm.weight"}, "norm.weight"), D);
    layers_.resize(static_cast<size_t>(config_.num_hidden_layers));
    for (int64_t l = 0; l < config_.num_hidden_layers; ++l) bind_layer(bind, l);
    for (const Layer& layer : layers_)
        RT_CHECK(bool(layer.wg) == bool(layers_[0].wg), "{}: some layers have an attention gate, and some have none",
                 info_.name);
    bind_vocabulary(bind, checkpoint, target);
    bind.finish();
    count(bind.binder());
}

int64_t Dflash::workspace(const DflashConfig& config, const ModelInfo& target, int64_t rows) {
    constexpr int64_t kExpanded = int64_t{520} << 20;  // weights in bf16 that a prefill step has at once
    constexpr int64_t kOther = int64_t{96} << 20;      // sums of products in parts, of attention in parts
    const int64_t D = config.hidden_size, layers = config.num_hidden_layers, block = config.block_size;
    const int64_t q = config.num_attention_heads * config.head_dim, kv = config.num_key_value_heads * config.head_dim;
    const int64_t columns = std::ssize(config.taps) * target.hidden_size;
    const int64_t context = 4 * (2 * columns + 3 * D + 2 * kv * (layers + 1)) + 2 * columns;
    const int64_t row = 4 * (3 * D + 3 * q + 4 * kv) + 10 * config.intermediate_size + 2 * (D + 2 * q);
    return std::min(kExpanded, 2 * D * std::max(columns, 2 * kv * layers)) + kOther +
           std::max(rows * context, block * (row + 4 * target.vocab_size));
}

void Dflash::count(const Binder& bind) {
    info_.architecture = "dflash";
    info_.num_hidden_layers = config_.num_hidden_layers;
    info_.hidden_size = config_.hidden_size;
    info_.vocab_size = std::ssize(target_ids_);
    info_.max_position_embeddings = config_.max_position_embeddings;
    info_.parameters = bind.parameters();
    info_.weight_bytes = bind.weight_bytes();
    info_.device_bytes = store_.device_bytes();
    info_.conversions = store_.conversions();
    TokenCost cost;  // of a block: each matrix is read once for all its rows
    cost.add_row(embed_tokens_);
    cost.add(lm_head_);
    for (const Layer& w : layers_) {
        for (const Weight* matrix : {&w.wq, &w.wk, &w.wv, &w.wo, &w.w_gate, &w.w_up, &w.w_down}) cost.add(*matrix);
        if (w.wg) cost.add(w.wg);
    }
    info_.active_parameters = cost.parameters;
    info_.bytes_per_token = cost.bytes;
}

std::unique_ptr<Dflash> load_drafter(const Checkpoint& checkpoint, const Model& target, const ModelOptions& options) {
    RT_CHECK(is_dflash(checkpoint), "{}: is no DFlash drafter", checkpoint.path());
    return std::make_unique<Dflash>(checkpoint, target, options);
}

}  // namespace riptide
