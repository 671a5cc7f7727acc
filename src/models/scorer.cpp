// The PFlash scorer. n rows of a chunk, N tokens of the prompt, D hidden_size, H query heads, Hkv key-value heads,
// d head_dim, W windows.
#include "models/scorer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "base/error.h"
#include "models/scorer_run.h"
#include "ops/embed.h"
#include "ops/matmul.h"
#include "ops/norm.h"
#include "ops/scoring/window_mass.h"

namespace riptide {

namespace {

constexpr int64_t kFixedWorkspace = int64_t{96} << 20;

void check_scorer_options(const ScorerOptions& o, int64_t layers) {
    RT_CHECK(o.chunk_rows >= ops::kSparseBlock && o.chunk_rows % ops::kSparseBlock == 0 && o.chunk_rows <= 1 << 20,
             "the scorer's chunks have {} rows, expected a multiple of {} up to {}", o.chunk_rows, ops::kSparseBlock,
             1 << 20);
    RT_CHECK(o.last_blocks >= 0, "the scorer reads the last {} blocks in full, expected 0 or more", o.last_blocks);
    const ops::SparseOptions& s = o.sparse;
    RT_CHECK(
        s.sink_blocks >= 0 && s.window_blocks >= 1 && s.most_blocks >= 0 && s.full_below >= 0,
        "the scorer's attention has {} sink blocks, a window of {}, at most {} others, and is full below block {}; "
        "expected a window of at least 1 and nothing below 0",
        s.sink_blocks, s.window_blocks, s.most_blocks, s.full_below);
    RT_CHECK(s.alpha >= 0 && s.alpha <= 1, "the scorer's alpha is {}, expected 0 to 1", s.alpha);
    for (size_t i = 0; i < o.score_layers.size(); ++i) {
        const int32_t layer = o.score_layers[i];
        RT_CHECK(layer >= 0 && layer < layers, "scoring layer {} is not there: the model has layers 0 to {}", layer,
                 layers - 1);
        RT_CHECK(i == 0 || layer > o.score_layers[i - 1], "scoring layer {} follows {}, expected ascending layers",
                 layer, o.score_layers[i - 1]);
    }
}

/// In order of position.
std::vector<QueryWindow> checked_windows(std::span<const QueryWindow> windows, int64_t tokens) {
    std::vector<QueryWindow> sorted(windows.begin(), windows.end());
    std::ranges::sort(sorted, {}, &QueryWindow::begin);
    int64_t inside = 0, end = 0;
    for (const QueryWindow& w : sorted) {
        RT_CHECK(w.begin >= 0 && w.begin < w.end && w.end <= tokens,
                 "query window [{}, {}) of a prompt of {} tokens, expected some of them", w.begin, w.end, tokens);
        RT_CHECK(w.begin >= end, "query window [{}, {}) begins before {}, where another one ends", w.begin, w.end, end);
        RT_CHECK(std::isfinite(w.weight) && w.weight > 0, "query window [{}, {}) has weight {}, expected more than 0",
                 w.begin, w.end, w.weight);
        end = w.end;
        inside += w.end - w.begin;
    }
    RT_CHECK(!sorted.empty(), "no query window: nothing says what matters");
    RT_CHECK(inside < tokens, "all {} tokens lie in query windows: none is left to be scored", tokens);
    return sorted;
}

}  // namespace

// ---- forward --------------------------------------------------------------------------------------------------------
// The formulas stand on the right margin.
// clang-format off

void ScorerRun::layer(int64_t l, const Chunk& chunk, Tensor& x, bool scores) {
    const ArenaScope scope(*ctx_.arena);
    const Qwen3::Layer& w = model_.weights(l);
    const int64_t n = chunk.rows, H = config_.num_attention_heads, Hkv = config_.num_key_value_heads, d = config_.head_dim;
    const auto eps = static_cast<float>(config_.rms_norm_eps);
    const Weight* projections[] = {&w.wq, &w.wk, &w.wv};                   // h = RMSNorm(x)  [n, D]
    const std::vector<Tensor> p =                                          // q, k, v = Wq h, Wk h, Wv h
        ops::norm_matmul_group(ctx_, x, {w.attn_norm, eps}, projections);
    if (scores) store_keys(l, chunk, p[1]);
    const ops::AttentionInput in{.q = p[0].view({n, H, d}),                // each head of q, k: RMSNorm, rotation R(p)
                                 .k = p[1].view({n, Hkv, d}), .v = p[2].view({n, Hkv, d}), .gate = {},
                                 .q_norm = {w.q_norm, eps}, .k_norm = {w.k_norm, eps},
                                 .rope = &model_.rope(), .softmax_scale = scale_};
    const Tensor o =                                                       // o = softmax(q K^T / sqrt d) V over the
        ops::sparse_attention(ctx_, in, kv(l), chunk.batch, sparse_).o;    //   chosen blocks
    ops::matmul_add(ctx_, w.wo, o, x);                                     // x <- x + Wo o
    ops::swiglu_ffn_add(ctx_, x, {w.ffn_norm, eps}, w.w_gate, w.w_up, w.w_down);   // x <- x + Wd (silu(Wg h) * Wu h)
    ctx_.observe("layer_out", static_cast<int>(l), x);
}

/// What scores, from what goes into layer l: not rotated.
void ScorerRun::store_keys(int64_t l, const Chunk& chunk, const Tensor& k) {
    const Qwen3::Layer& w = model_.weights(l);
    const Tensor normed =                                                  // k = RMSNorm(Wk h)  [n, Hkv, d]
        ops::rms_norm(ctx_, k.view({chunk.rows, config_.num_key_value_heads, config_.head_dim}), w.k_norm,
                      static_cast<float>(config_.rms_norm_eps));
    ops::store_score_keys(ctx_, normed, start_ + chunk.first, keys_);
}

void ScorerRun::last_keys(int64_t l, const Chunk& chunk, const Tensor& x) {
    const ArenaScope scope(*ctx_.arena);
    const Qwen3::Layer& w = model_.weights(l);
    const Weight* wk[] = {&w.wk};
    const ops::Norm norm{w.attn_norm, static_cast<float>(config_.rms_norm_eps)};
    store_keys(l, chunk, ops::norm_matmul_group(ctx_, x, norm, wk)[0]);
}

void ScorerRun::store_queries(int64_t l, size_t index, const Chunk& chunk, const Tensor& x) {
    if (chunk.questions.empty()) return;
    const ArenaScope scope(*ctx_.arena);
    const Qwen3::Layer& w = model_.weights(l);
    const auto eps = static_cast<float>(config_.rms_norm_eps);
    const Weight* wq[] = {&w.wq};
    const Tensor asking = ops::gather_rows(ctx_, x, chunk.questions);
    const Tensor q = ops::norm_matmul_group(ctx_, asking, {w.attn_norm, eps}, wq)[0];
    const Tensor normed =                                                  // q = RMSNorm(Wq h)  [rows of windows, H, d]
        ops::rms_norm(ctx_, q.view({q.rows(), config_.num_attention_heads, config_.head_dim}), w.q_norm, eps);
    copy_bytes(ctx_.gpu, queries_[index].row(chunk.question), normed.data, normed.elements() * 4);
}

void ScorerRun::mass_of_windows(size_t index) {
    const ArenaScope scope(*ctx_.arena);
    int64_t first = 0;
    for (int64_t i = 0; i < std::ssize(windows_); ++i) {
        const QueryWindow& w = windows_[static_cast<size_t>(i)];
        Tensor mass(mass_.row(i), DType::f32, {N_});
        const int64_t rows = w.end - w.begin;                              // mass_w += softmax(q K^T / sqrt d)
        ops::add_window_mass(ctx_, rows_of(queries_[index], first, rows), keys_, w.begin, N_, scale_, mass);
        first += rows;
    }
}

std::vector<float> ScorerRun::run() {
    prepare();
    Tensor x;                                                              // of all new rows, f32 [N - start, D]
    if (new_rows() > 0) x = ops::embed(ctx_, model_.shared_weights().embed_tokens, new_tokens_);
    const std::vector<int32_t>& scoring = scorer_.options_.score_layers;
    const int64_t last = scorer_.last_layer();
    size_t index = 0;
    for (int64_t l = 0; l <= last; ++l) {
        const bool scores = scoring[index] == l;
        if (scores && prefix_ != nullptr) keys_.data = prefix_->keys[index].data();
        for (const Chunk& chunk : chunks_) {
            Tensor part = rows_of(x, chunk.first, chunk.rows);
            if (scores) store_queries(l, index, chunk, part);
            if (l < last) layer(l, chunk, part, scores);
            else last_keys(l, chunk, part);
        }
        if (scores) mass_of_windows(index++);
    }
    if (ctx_.on_op) ctx_.on_op({});
    std::vector<float> scores = mix();
    if (prefix_ != nullptr) keep();
    return scores;
}
// clang-format on

// ---- Scorer ---------------------------------------------------------------------------------------------------------

Scorer::Scorer(const Checkpoint& checkpoint, const ScorerOptions& options, Gpu* gpu)
    : gpu_(gpu), model_(checkpoint, {.gpu = gpu}), options_(options) {
    if (options_.score_layers == std::vector<int32_t>{-1})
        options_.score_layers = {static_cast<int32_t>(model_.config().num_hidden_layers - 1)};
    check_scorer_options(options_, model_.config().num_hidden_layers);
    if (!options_.score_layers.empty()) return;
    options_.score_layers.resize(static_cast<size_t>(model_.config().num_hidden_layers));
    std::iota(options_.score_layers.begin(), options_.score_layers.end(), 0);
}

std::vector<float> Scorer::score(Context& ctx, std::span<const int32_t> tokens, std::span<const QueryWindow> windows,
                                 ScoredPrefix* prefix) const {
    RT_ASSERT(ctx.gpu == gpu_);
    constexpr int64_t kMostTokens = int64_t{1} << 24;
    RT_CHECK(!tokens.empty() && std::ssize(tokens) <= kMostTokens, "a prompt of {} tokens to score, expected 1 to {}",
             tokens.size(), kMostTokens);
    const std::vector<QueryWindow> sorted = checked_windows(windows, std::ssize(tokens));
    const int64_t vocab = model_.config().vocab_size;
    for (const int32_t token : tokens)
        RT_CHECK(token >= 0 && token < vocab, "token {} is not in the scorer's vocabulary of {}", token, vocab);
    const WithFamily prefill(ctx, Family::prefill);
    const ArenaScope scope(*ctx.arena);
    return ScorerRun(*this, ctx, tokens, sorted, prefix == nullptr ? nullptr : prefix->state_.get()).run();
}

void Scorer::set_chunk_rows(int64_t rows) {
    ScorerOptions changed = options_;
    changed.chunk_rows = rows;
    check_scorer_options(changed, model_.config().num_hidden_layers);
    options_ = changed;
}

Workspace Scorer::workspace() const {
    const Qwen3Config& c = model_.config();
    const int64_t kv = c.num_key_value_heads * c.head_dim, value = gpu_ != nullptr ? 2 : 4;
    const int64_t keys = c.num_key_value_heads * ops::score_key_columns(c.head_dim);
    Workspace w = model_.workspace();
    // The stream, K and V, scoring keys; their copies as attention reads them; masses and lists; the arrays of a batch.
    w.per_token = 4 * c.hidden_size + value * (2 * kv + keys) + 2 * value * kv +
                  options_.chunk_rows * c.num_attention_heads * 8 / (ops::kSparseBlock * ops::kSparseBlock) + 64;
    w.per_row += 4 * kv;
    // No logits; a feed-forward layer's weights as bf16 while they are used.
    w.fixed = kFixedWorkspace + 2 * 3 * c.hidden_size * c.intermediate_size;
    return w;
}

}  // namespace riptide
