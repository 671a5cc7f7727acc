#include "models/scored_prefix.h"

#include <algorithm>

#include "ops/scoring/window_mass.h"

namespace riptide {

ScoredPrefix::ScoredPrefix(const Scorer& scorer) : state_(std::make_unique<State>()) {
    const Qwen3Config& c = scorer.model_.config();
    State& s = *state_;
    s.gpu = scorer.gpu_;
    const int64_t value_bytes = s.gpu != nullptr ? 2 : 4;
    s.kv_token_bytes = c.num_key_value_heads * c.head_dim * value_bytes;
    s.score_token_bytes = c.num_key_value_heads * ops::score_key_columns(c.head_dim) * value_bytes;
    s.query_bytes = c.num_attention_heads * c.head_dim * int64_t{sizeof(float)};
    s.k.resize(static_cast<size_t>(scorer.last_layer()));
    s.v.resize(s.k.size());
    s.keys.resize(scorer.options_.score_layers.size());
    s.queries.resize(s.keys.size());
}
ScoredPrefix::~ScoredPrefix() = default;
ScoredPrefix::ScoredPrefix(ScoredPrefix&&) noexcept = default;
ScoredPrefix& ScoredPrefix::operator=(ScoredPrefix&&) noexcept = default;

int64_t ScoredPrefix::length() const { return state_->length; }

int64_t ScoredPrefix::bytes() const {
    int64_t sum = 0;
    for (const auto* memories : {&state_->k, &state_->v, &state_->keys, &state_->queries})
        for (const DeviceMemory& memory : *memories) sum += memory.bytes();
    return sum;
}

void ScoredPrefix::clear() {
    State& s = *state_;
    s.capacity = s.length = 0;
    s.tokens.clear();
    s.query_rows.clear();
    for (auto* memories : {&s.k, &s.v, &s.keys, &s.queries})
        for (DeviceMemory& memory : *memories) memory = {};
}

void ScoredPrefix::State::reserve(int64_t n) {
    if (n <= capacity) return;
    const int64_t wanted = std::max(n, capacity + capacity / 2), kept = length;
    capacity = length = 0;  // if memory runs out half-way, nothing is kept
    const auto grow = [&](std::vector<DeviceMemory>& memories, int64_t token_bytes) {
        for (DeviceMemory& memory : memories) {
            DeviceMemory larger(gpu, wanted * token_bytes, "a scored prefix");
            if (kept > 0) copy_bytes(gpu, larger.data(), memory.data(), kept * token_bytes);
            memory = std::move(larger);
        }
    };
    grow(k, kv_token_bytes);
    grow(v, kv_token_bytes);
    grow(keys, score_token_bytes);
    length = kept;
    capacity = wanted;
}

int64_t ScoredPrefix::State::find_query(int64_t position) const {
    const auto at = std::ranges::lower_bound(query_rows, position);
    return at != query_rows.end() && *at == position ? at - query_rows.begin() : -1;
}

}  // namespace riptide
