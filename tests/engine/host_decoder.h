// A device that is none: what GpuDecoder does, with a model's own kernels and the host's sampler, for tests on the CPU.
#pragma once

#include <deque>
#include <map>
#include <optional>

#include "engine/loop/resources.h"
#include "engine/sampling/sampler.h"

namespace riptide::testing {

/// Holds the loop to GpuDecoder's contract. A step's layers are computed when it is launched, long before the loop asks
/// for its tokens. Rows of several at once (draw_rows) are drawn greedily only. Recurrent state follows, if it can.
class HostDecoder {
  public:
    explicit HostDecoder(Machine& machine)
        : machine_(machine), vocab_(machine.model().info().vocab_size), pool_(1), arena_(1 << 20) {
        context_.threads = &pool_;
        context_.arena = &arena_;
    }
    DecodeDevice functions() {
        return {[this](int64_t slot, const ops::SampleStart& from) { start(slot, from); },
                [this](std::span<const DecodeRow> rows, GpuDecoder::Draw how, GpuDecoder::Recurrent state) {
                    EXPECT_TRUE(pending_.empty());
                    rows_.assign(rows.begin(), rows.end());
                    how_ = how;
                    state_ = state;
                    begin();
                },
                [this] {
                    forward();
                    draw({});
                },
                [this]() -> std::span<const int32_t> {
                    taken_ = pending_.at(0);
                    pending_.pop_front();
                    return taken_;
                },
                [this](std::span<const int32_t> slots, GpuDecoder::Draw, std::span<const AllowedSet> allowed) {
                    return draw_rows(slots, allowed);
                },
                [this] {
                    EXPECT_EQ(how_, GpuDecoder::Draw::sampled);
                    forward();
                },
                [this](std::span<const AllowedSet> allowed) {
                    EXPECT_TRUE(pending_.empty()) << "what may be drawn cannot be known yet";
                    EXPECT_EQ(allowed.size(), rows_.size());
                    draw(allowed);
                },
                machine_.cache().delta().follow_rows()};
    }
    int64_t lost = 0;                     // steps without a draw
    int64_t most_run = 0, most_rows = 0;  // of steps that followed each other: how many, and of how many answers

  private:
    void start(int64_t slot, const ops::SampleStart& from) {
        EXPECT_TRUE(pending_.empty());
        SamplingParams params;
        params.temperature = from.params.temperature, params.top_p = from.params.top_p,
        params.top_k = from.params.top_k;
        params.min_p = from.params.min_p, params.seed = from.params.seed, params.min_tokens = from.params.min_tokens;
        params.repetition_penalty = from.params.repetition, params.frequency_penalty = from.params.frequency;
        params.presence_penalty = from.params.presence;
        params.logit_bias.assign(from.logit_bias.begin(), from.logit_bias.end());
        Sampler sampler(params, vocab_, from.stop_ids, from.prompt);
        for (const int32_t token : from.answer) sampler.accept(token);
        slots_.insert_or_assign(static_cast<int32_t>(slot), std::move(sampler));
    }
    void begin() {
        std::vector<StepRows> steps;
        for (const DecodeRow& row : rows_)
            steps.push_back({row.sequence, std::span(&row.token, 1), {}, StepRows::Logits::last, {}});
        batch_ = builder_.build(steps);
        committed_.assign(batch_.committed.begin(), batch_.committed.end());
        held_ = committed_;
        machine_.cache().delta().begin_step();
        for (size_t r = 0; r < rows_.size(); ++r) {
            const auto number = static_cast<int64_t>(r);
            if (state_ == GpuDecoder::Recurrent::follows) rows_[r].sequence->begin_follow(number);
            else rows_[r].sequence->begin_rows(number, 1, ops::DeltaMode::stash);
        }
        step_ = 0;
    }
    void forward() {
        lost += logits_.empty() ? 0 : 1;
        logits_.clear();
        KvCache& cache = machine_.cache();
        const bool follows = state_ == GpuDecoder::Recurrent::follows;
        std::vector<int32_t> tokens;
        for (const DecodeRow& row : rows_) {
            ASSERT_LT(step_, row.sequence->reserved()) << "a step without room";
            tokens.push_back(std::max(row.token, 0));
        }
        ASSERT_TRUE(step_ == 0 || follows || !cache.delta().any()) << "a step that is not committed";
        Batch batch = batch_;
        batch.tokens = tokens, batch.positions = batch.committed = committed_;
        States states{cache.views(), cache.delta().views()};
        if (follows) states.delta_mode = ops::DeltaMode::follow, states.held = held_;
        arena_.reset();
        const Tensor logits = machine_.model().forward(context_, batch, states);
        for (int64_t r = 0; r < logits.rows(); ++r) logits_.emplace_back(logits.row(r), logits.row(r) + vocab_);
        held_ = committed_;
        for (int32_t& length : committed_) ++length;
        ++step_;
        if (!follows) return;
        most_run = std::max(most_run, step_);
        if (step_ > 1) most_rows = std::max(most_rows, std::ssize(rows_));
    }
    void draw(std::span<const AllowedSet> allowed) {
        std::vector<int32_t> drawn;
        for (size_t r = 0; r < rows_.size(); ++r) {
            const DecodeRow& row = rows_[r];
            std::optional<Sampler> greedy;
            if (how_ == GpuDecoder::Draw::largest) greedy.emplace(largest(), vocab_);
            Sampler& sampler = greedy ? *greedy : slots_.at(row.slot);
            drawn.push_back(token_of(sampler, logits_[r], row.sequence->length() + step_,
                                     allowed.empty() ? AllowedSet() : allowed[r]));
            if (drawn[r] >= 0) sampler.accept(drawn[r]);
            rows_[r].token = drawn[r];
        }
        logits_.clear();
        pending_.push_back(drawn);
    }
    std::span<const int32_t> draw_rows(std::span<const int32_t> slots, std::span<const AllowedSet> allowed) {
        const Tensor logits = machine_.logits();
        EXPECT_EQ(std::ssize(slots), logits.rows());
        drawn_.clear();
        for (int64_t r = 0; r < logits.rows(); ++r) {
            Sampler sampler(largest(), vocab_);
            const std::vector<float> row(logits.row(r), logits.row(r) + vocab_);
            drawn_.push_back(
                token_of(sampler, row, 0, allowed.empty() ? AllowedSet() : allowed[static_cast<size_t>(r)]));
        }
        return drawn_;
    }
    int32_t token_of(Sampler& sampler, const std::vector<float>& logits, int64_t position, const AllowedSet& set) {
        words_.assign(set.any_token() ? 0 : static_cast<size_t>(ops::SampleMasks::words_of(vocab_)), 0);
        if (!set.any_token()) set.write(words_);
        try {
            return sampler.sample(logits, position, words_).token;
        } catch (const Error&) {
            return -1;
        }
    }
    static SamplingParams largest() {
        SamplingParams params;
        params.temperature = 0;
        return params;
    }

    Machine& machine_;
    int64_t vocab_;
    ThreadPool pool_;
    Arena arena_;
    Context context_;
    std::map<int32_t, Sampler> slots_;
    std::vector<DecodeRow> rows_;
    GpuDecoder::Draw how_ = GpuDecoder::Draw::largest;
    GpuDecoder::Recurrent state_ = GpuDecoder::Recurrent::waits;
    BatchBuilder builder_;
    Batch batch_;  // of the first step
    std::vector<int32_t> committed_, held_;
    int64_t step_ = 0;
    std::vector<std::vector<float>> logits_;  // of a step that waits for its draw
    std::deque<std::vector<int32_t>> pending_;
    std::vector<int32_t> taken_, drawn_;
    std::vector<uint64_t> words_;
};

}  // namespace riptide::testing
