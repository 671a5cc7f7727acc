// A model for tests of the engine: its K/V rows are token and position, and what it says next is a hash of all tokens
// that it can reach.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "models/model.h"
#include "tests/cache/fake_forward.h"

namespace riptide {

/// A step reads every wanted row's past through page table, rings and tree, so that a wrong page, slot, position or
/// parent changes what it says. Layers: full attention, a window, none, full attention again, written last. The cache
/// must hold f32.
class FakeModel : public Model {
  public:
    static constexpr int64_t kVocab = 61;
    static constexpr int32_t kEnd = 0;  // the token that ends an answer

    explicit FakeModel(int32_t window = 9) {
        specs_ = {{StateSpec::Kind::paged, 1, 2, 0},
                  {StateSpec::Kind::window, 1, 2, window},
                  {},
                  {StateSpec::Kind::paged, 1, 2, 0}};
        info_.architecture = "fake";
        info_.num_hidden_layers = std::ssize(specs_);
        info_.vocab_size = kVocab;
        info_.max_position_embeddings = 1 << 20;
    }
    const ModelInfo& info() const override { return info_; }
    std::span<const StateSpec> state_specs() const override { return specs_; }
    Workspace workspace() const override { return {}; }

    /// What follows `tokens`: the definition.
    static int32_t next(std::span<const int32_t> tokens) {
        uint64_t hash = 0x9e3779b97f4a7c15;
        for (const int32_t token : tokens) {
            hash = (hash ^ static_cast<uint64_t>(static_cast<uint32_t>(token))) * 0xff51afd7ed558ccd;
            hash ^= hash >> 32;
        }
        return static_cast<int32_t>(hash % kVocab);
    }
    /// The whole answer to `prompt`, run alone: up to `most` tokens, without kEnd.
    static std::vector<int32_t> answer(std::span<const int32_t> prompt, int64_t most) {
        std::vector<int32_t> tokens(prompt.begin(), prompt.end());
        while (std::ssize(tokens) - std::ssize(prompt) < most) {
            const int32_t token = next(tokens);
            if (token == kEnd) break;
            tokens.push_back(token);
        }
        return {tokens.begin() + std::ssize(prompt), tokens.end()};
    }

    Tensor embed(Context& ctx, const Batch& batch) const override { return ctx.alloc(DType::f32, {batch.rows(), 1}); }
    void layer(Context&, int64_t l, Tensor& x, const Batch& batch, const States& states) const override {
        fake_append(states.kv.subspan(static_cast<size_t>(l), 1), batch);
        if (l == info_.num_hidden_layers - 1) choose(x, batch, states);
    }
    /// The largest logit is that of next(what the row sees), or of no token at all (logits of -1) where layers
    /// disagree.
    Tensor logits(Context& ctx, const Tensor& x, const Batch& batch) const override {
        const Tensor logits = ctx.alloc(DType::f32, {std::ssize(batch.logit_rows), kVocab});
        auto* out = static_cast<float*>(logits.data);
        std::fill_n(out, logits.shape[0] * kVocab, -1.0f);
        for (const int32_t row : batch.logit_rows) {
            const auto token = static_cast<int64_t>(static_cast<const float*>(x.data)[row]);
            if (token >= 0) out[token] = 1;
            out += kVocab;
        }
        return logits;
    }

  private:
    static void choose(Tensor& x, const Batch& batch, const States& states) {
        for (const int32_t row : batch.logit_rows) {
            const std::vector<int32_t> seen = fake_read(states.kv[0], batch, row),
                                       recent = fake_read(states.kv[1], batch, row);
            const bool agree =
                recent.size() <= seen.size() && std::equal(recent.rbegin(), recent.rend(), seen.rbegin()) &&
                std::ssize(seen) == batch.positions[static_cast<size_t>(row)] + 1 &&
                std::find(seen.begin(), seen.end(), -1) == seen.end() && fake_read(states.kv[3], batch, row) == seen;
            static_cast<float*>(x.data)[row] = agree ? static_cast<float>(next(seen)) : -1.0f;
        }
    }

    ModelInfo info_;
    std::vector<StateSpec> specs_;
};

/// The token with the largest logit; -1 for a row that has seen something wrong.
inline int32_t fake_choice(const Tensor& logits, int64_t row) {
    const float* first = static_cast<const float*>(logits.data) + row * FakeModel::kVocab;
    const float* best = std::max_element(first, first + FakeModel::kVocab);
    return *best > 0 ? static_cast<int32_t>(best - first) : -1;
}

}  // namespace riptide
