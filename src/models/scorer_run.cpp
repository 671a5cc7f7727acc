// What a call of Scorer::score() needs around the layers: where it starts, arrays, memory, the mixing of windows.
#include "models/scorer_run.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "base/error.h"
#include "ops/scoring/window_mass.h"

namespace riptide {

namespace {

int64_t blocks_of(int64_t tokens) { return (tokens + ops::kSparseBlock - 1) / ops::kSparseBlock; }

}  // namespace

ScorerRun::ScorerRun(const Scorer& scorer, Context& ctx, std::span<const int32_t> tokens,
                     std::span<const QueryWindow> windows, ScoredPrefix::State* prefix)
    : scorer_(scorer),
      model_(scorer.model_),
      config_(scorer.model_.config()),
      ctx_(ctx),
      tokens_(tokens),
      windows_(windows),
      prefix_(prefix),
      sparse_(scorer.options_.sparse),
      N_(std::ssize(tokens)),
      scale_(static_cast<float>(1.0 / std::sqrt(static_cast<double>(config_.head_dim)))) {
    const int64_t full_from = std::max<int64_t>(0, blocks_of(N_) - scorer.options_.last_blocks);
    sparse_.full_from = static_cast<int32_t>(full_from);
    final_ = std::min(N_ / ops::kSparseBlock, full_from) * ops::kSparseBlock;
    for (const QueryWindow& w : windows_)
        for (int64_t t = w.begin; t < w.end; ++t) questions_.push_back(static_cast<int32_t>(t));
}

void ScorerRun::prepare() {
    find_start();
    if (prefix_ != nullptr) {
        prefix_->length = start_;  // what lies behind is about to be overwritten
        prefix_->reserve(N_);
    }
    open_stores();
    make_chunks();
    take_kept_queries();
}

/// The first row to compute: behind what the prefix holds, at a block border, not behind a window's row that is needed.
void ScorerRun::find_start() {
    if (prefix_ == nullptr) return;
    const int64_t most = std::min(prefix_->length, final_);
    const auto differs = std::mismatch(tokens_.begin(), tokens_.begin() + most, prefix_->tokens.begin()).first;
    start_ = (differs - tokens_.begin()) / ops::kSparseBlock * ops::kSparseBlock;
    for (const int32_t t : questions_)
        if (t < start_ && prefix_->find_query(t) < 0)
            start_ = t / ops::kSparseBlock * ops::kSparseBlock;  // ascending: the first one decides
}

void ScorerRun::open_stores() {
    const int64_t Hkv = config_.num_key_value_heads, d = config_.head_dim, questions = std::ssize(questions_);
    const DType type = ops::score_key_dtype(ctx_.gpu);
    keys_ = Tensor(nullptr, type, {N_, Hkv, ops::score_key_columns(d)});
    if (prefix_ == nullptr) {
        k_ = ctx_.alloc(type, {N_, Hkv, d});
        v_ = ctx_.alloc(type, {N_, Hkv, d});
        keys_ = ctx_.alloc(type, {N_, Hkv, ops::score_key_columns(d)});
    }
    mass_ = ctx_.alloc(DType::f32, {std::ssize(windows_), N_});
    if (ctx_.gpu != nullptr) ctx_.gpu->fill(mass_.data, 0, mass_.elements() * 4);
    else std::fill_n(mass_.row(0), mass_.elements(), 0.0f);
    for (size_t i = 0; i < scorer_.options_.score_layers.size(); ++i)
        queries_.push_back(ctx_.alloc(DType::f32, {questions, config_.num_attention_heads, d}));
}

void ScorerRun::send(void* to, std::span<const int32_t> host) {
    const auto bytes = static_cast<int64_t>(host.size_bytes());
    if (ctx_.gpu != nullptr) ctx_.gpu->to_device(to, host.data(), bytes);
    else std::memcpy(to, host.data(), host.size_bytes());
}

/// Chunks, and the arrays of their batches in one piece of the device's memory.
void ScorerRun::make_chunks() {
    const int64_t size = scorer_.options_.chunk_rows, n = new_rows(), count = (n + size - 1) / size;
    const int64_t pages = blocks_of(N_), questions = std::ssize(questions_);
    const Tensor memory = ctx_.alloc(DType::i32, {2 * n + std::min(size, n) + 1 + pages + 3 * count + questions});
    std::vector<int32_t> host;
    const auto put = [&](int64_t values, auto value) {  // the span that the values will have on the device
        const std::span<const int32_t> place(memory.row<int32_t>(0) + host.size(), static_cast<size_t>(values));
        for (int64_t i = 0; i < values; ++i) host.push_back(static_cast<int32_t>(value(i)));
        return place;
    };
    new_tokens_ = put(n, [&](int64_t i) { return tokens_[static_cast<size_t>(start_ + i)]; });
    const auto positions = put(n, [&](int64_t i) { return start_ + i; });
    const auto zeros = put(std::min(size, n) + 1, [](int64_t) { return 0; });
    const auto table = put(pages, [](int64_t i) { return i; });
    int64_t question = std::ranges::lower_bound(questions_, start_) - questions_.begin();
    for (int64_t first = 0; first < n; first += size) {
        const int64_t rows = std::min(size, n - first), end = start_ + first + rows;
        const int64_t next = std::ranges::lower_bound(questions_, end) - questions_.begin();
        Chunk chunk{.batch = {}, .first = first, .rows = rows, .questions = {}, .question = question};
        const auto begin = static_cast<size_t>(first), length = static_cast<size_t>(rows);
        chunk.batch.tokens = new_tokens_.subspan(begin, length);
        chunk.batch.positions = positions.subspan(begin, length);
        chunk.batch.row_sequence = zeros.first(length);
        chunk.batch.row_begin = put(2, [&](int64_t i) { return i * rows; });
        chunk.batch.committed = put(1, [&](int64_t) { return start_ + first; });
        chunk.batch.page_table = table.first(static_cast<size_t>(blocks_of(end)));
        chunk.batch.max_pages = static_cast<int32_t>(blocks_of(end));
        chunk.batch.state_slot = zeros.first(1);
        chunk.questions = put(
            next - question, [&](int64_t i) { return questions_[static_cast<size_t>(question + i)] - start_ - first; });
        question = next;
        chunks_.push_back(chunk);
    }
    send(memory.data, host);
}

/// Queries of windows' rows in front of the first row that is computed.
void ScorerRun::take_kept_queries() {
    for (int64_t i = 0; i < std::ssize(questions_) && questions_[static_cast<size_t>(i)] < start_; ++i) {
        const int64_t at = prefix_->find_query(questions_[static_cast<size_t>(i)]);
        for (size_t j = 0; j < queries_.size(); ++j)
            copy_bytes(ctx_.gpu, queries_[j].row(i), prefix_->queries[j].data() + at * prefix_->query_bytes,
                       prefix_->query_bytes);
    }
}

KvView ScorerRun::kv(int64_t l) const {
    const auto i = static_cast<size_t>(l);
    KvView view;
    view.k = prefix_ != nullptr ? prefix_->k[i].data() : static_cast<std::byte*>(k_.data);
    view.v = prefix_ != nullptr ? prefix_->v[i].data() : static_cast<std::byte*>(v_.data);
    view.k_dtype = view.v_dtype = ops::score_key_dtype(ctx_.gpu);
    view.num_kv_heads = config_.num_key_value_heads;
    view.head_dim = config_.head_dim;
    view.k_slot_bytes = view.v_slot_bytes = view.num_kv_heads * row_bytes(view.k_dtype, view.head_dim);
    view.page_rows = ops::kSparseBlock;
    return view;
}

/// Rows of a contiguous f32 tensor, under the same shape.
Tensor ScorerRun::rows_of(const Tensor& x, int64_t first, int64_t count) const {
    Tensor part = x;
    part.data = x.row(first);
    part.shape[0] = count;
    return part;
}

std::vector<float> ScorerRun::mix() {
    std::vector<float> mass(static_cast<size_t>(mass_.elements()));
    if (ctx_.gpu != nullptr) ctx_.gpu->to_host(mass.data(), mass_.data, mass_.elements() * 4);
    else std::copy_n(mass_.row(0), mass.size(), mass.begin());
    double weights = 0;
    for (const QueryWindow& w : windows_) weights += w.weight;
    std::vector<double> mixed(static_cast<size_t>(N_));
    for (size_t i = 0; i < windows_.size(); ++i) {
        const std::span<float> part(mass.data() + i * static_cast<size_t>(N_), static_cast<size_t>(N_));
        for (const QueryWindow& w : windows_) std::fill(part.begin() + w.begin, part.begin() + w.end, 0.0f);
        const double sum = std::accumulate(part.begin(), part.end(), 0.0);
        RT_CHECK(
            std::isfinite(sum) && sum > 0,
            "the scorer {} gave its query window [{}, {}) the attention {} to all other tokens, expected a positive "
            "number",
            model_.info().name, windows_[i].begin, windows_[i].end, sum);
        for (size_t j = 0; j < part.size(); ++j) mixed[j] += windows_[i].weight / weights / sum * double{part[j]};
    }
    return {mixed.begin(), mixed.end()};
}

/// Leaves the prompt in the prefix.
void ScorerRun::keep() {
    prefix_->tokens.assign(tokens_.begin(), tokens_.end());
    prefix_->query_rows = questions_;
    for (size_t j = 0; j < queries_.size(); ++j) {
        const int64_t bytes = std::ssize(questions_) * prefix_->query_bytes;
        if (prefix_->queries[j].bytes() < bytes) prefix_->queries[j] = DeviceMemory(ctx_.gpu, bytes, "a scored prefix");
        copy_bytes(ctx_.gpu, prefix_->queries[j].data(), queries_[j].data, bytes);
    }
    prefix_->length = final_;
}

}  // namespace riptide
