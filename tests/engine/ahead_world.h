// Models that decode ahead of the host, and the same step by step.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <random>

#include "engine/execution/decode_ahead.h"
#include "engine/execution/runner.h"
#include "tests/models/fixture.h"
#include "tests/models/seeded_hybrid.h"

namespace riptide::testing {

inline int32_t largest(std::span<const float> logits) {
    return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

/// A model and room for some sequences, and who decodes ahead of the host: GpuDecoder; on the CPU, where nothing runs
/// ahead, the same steps with the same arguments, one after the other.
class AheadWorld {
  public:
    explicit AheadWorld(const std::string& type) : checkpoint_(SeededHybrid::open(type)) {
        ModelOptions options;
        options.gpu = test_gpu();
        model_ = load_model(*checkpoint_, options);
        KvCacheOptions o;
        o.k_dtype = o.v_dtype = DType::q8_0;
        o.page_rows = 16;
        o.pages = 200;
        o.max_sequences = 3;
        o.max_step_rows = 256;
        cache_.emplace(model_->state_specs(), o, test_gpu());
        runner_.emplace(*model_, *cache_, nullptr);
        if (test_gpu() != nullptr)
            decoder_.emplace(*model_, *cache_, runner_->context(), runner_->device_batch(), o.max_sequences);
    }
    KvCache& cache() { return *cache_; }
    bool follows() const { return (decoder_ ? decoder_->follow_rows() : cache_->delta().follow_rows()) > 0; }
    /// Greedy: the `kept` tokens that come after `token`, drawn by steps that follow each other. `dropped`: with one
    /// more step under way, whose row does not count. The last token is not fed.
    std::vector<int32_t> ahead(SequenceState& s, int32_t token, int64_t kept, bool dropped) {
        const int64_t run = kept + (dropped ? 1 : 0);
        RT_ASSERT(s.try_reserve(run));
        std::vector<int32_t> drawn;
        if (!decoder_) {
            drawn = follow_here(s, token, run);
        } else {
            const DecodeRow row{&s, token};
            decoder_->begin(std::span(&row, 1), GpuDecoder::Draw::largest, {}, GpuDecoder::Recurrent::follows);
            for (int64_t i = 0; i < run; ++i) {
                if (i == 0) decoder_->launch();
                if (i + 1 < run) decoder_->launch();
                if (i < kept) drawn.push_back(decoder_->next()[0]);
            }
            decoder_->end();
        }
        s.commit_followed(kept, run);
        drawn.resize(static_cast<size_t>(kept));
        return drawn;
    }
    /// A step of some sequences' rows: the logits of all of them. The caller commits.
    std::vector<float> step(std::span<const StepItem> items, Family family = Family::decode) {
        return host_values(cache_->gpu(), runner_->step(items, family));
    }
    /// Feeds one token by itself.
    std::vector<float> feed(SequenceState& s, int32_t token) {
        const StepItem item{&s, std::span(&token, 1)};
        std::vector<float> logits = step(std::span(&item, 1));
        s.commit_prefix(1);
        return logits;
    }
    void prefill(SequenceState& s, std::span<const int32_t> tokens) {
        const StepItem item{&s, tokens};
        step(std::span(&item, 1), Family::prefill);
        s.commit_prefix(std::ssize(tokens));
    }

  private:
    /// What GpuDecoder does, with arrays of the host.
    std::vector<int32_t> follow_here(SequenceState& s, int32_t token, int64_t steps) {
        const StepRows rows{&s, std::span(&token, 1), {}, StepRows::Logits::last, {}};
        Batch batch = builder_.build(std::span(&rows, 1));
        cache_->delta().begin_step();
        s.begin_follow();
        auto committed = static_cast<int32_t>(s.length()), held = committed;
        batch.positions = batch.committed = {&committed, 1};
        batch.tokens = {&token, 1};
        std::vector<int32_t> drawn;
        for (int64_t i = 0; i < steps; ++i, held = committed++) {
            States states{cache_->views(), cache_->delta().views()};
            states.delta_mode = ops::DeltaMode::follow;
            states.held = {&held, 1};
            Context& ctx = runner_->context();
            ctx.arena->reset();
            ctx.family = Family::decode;
            token = largest(host_values(nullptr, model_->forward(ctx, batch, states)));
            drawn.push_back(token);
        }
        return drawn;
    }

    std::unique_ptr<Checkpoint> checkpoint_;
    std::unique_ptr<Model> model_;
    std::optional<KvCache> cache_;
    std::optional<Runner> runner_;
    std::optional<GpuDecoder> decoder_;
    BatchBuilder builder_;
};

inline std::vector<int32_t> some_tokens(size_t n, uint32_t seed) {
    std::mt19937 random(seed);
    std::vector<int32_t> tokens(n);
    for (int32_t& token : tokens) token = static_cast<int32_t>(random() % SeededHybrid::kVocab);
    return tokens;
}

}  // namespace riptide::testing
