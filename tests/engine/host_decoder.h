// A device that is none: what GpuDecoder does, with a model's own kernels and the host's sampler, for tests on the CPU.
#pragma once

#include <deque>
#include <map>
#include <optional>

#include "engine/machine.h"
#include "engine/sampler.h"

namespace riptide::testing {

/// Holds the loop to GpuDecoder's contract. A step's layers are computed when it is launched, long before the loop asks
/// for its tokens. Rows of several at once (draw_rows) are drawn greedily only.
class HostDecoder {
  public:
    explicit HostDecoder(Machine& machine)
        : machine_(machine), vocab_(machine.model().info().vocab_size), pool_(1), arena_(1 << 20) {
        context_.threads = &pool_;
        context_.arena = &arena_;
    }
    DecodeDevice functions() {
        return {[this](int64_t slot, const ops::SampleStart& from) { start(slot, from); },
                [this](std::span<const DecodeRow> rows, GpuDecoder::Draw how) {
                    EXPECT_TRUE(pending_.empty());
                    rows_.assign(rows.begin(), rows.end());
                    how_ = how;
                    step_ = 0;
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
                }};
    }
    int64_t lost = 0;  // steps without a draw

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
    void forward() {
        lost += logits_.empty() ? 0 : 1;
        logits_.clear();
        for (const DecodeRow& row : rows_) {
            ASSERT_LT(step_, row.sequence->reserved()) << "a step without room";
            const std::vector<int32_t> token = {std::max(row.token, 0)}, zero = {0}, begin = {0, 1},
                                       slot = {row.sequence->slot()},
                                       at = {static_cast<int32_t>(row.sequence->length() + step_)};
            Batch batch;
            batch.tokens = token, batch.positions = at, batch.row_sequence = zero, batch.row_begin = begin;
            batch.committed = at, batch.page_table = row.sequence->pages(), batch.state_slot = slot;
            batch.logit_rows = zero, batch.max_pages = static_cast<int32_t>(row.sequence->pages().size());
            arena_.reset();
            KvCache& cache = machine_.cache();
            const Tensor logits = machine_.model().forward(context_, batch, {cache.views(), cache.delta().views()});
            logits_.emplace_back(logits.row(0), logits.row(0) + vocab_);
        }
        ++step_;
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
    int64_t step_ = 0;
    std::vector<std::vector<float>> logits_;  // of a step that waits for its draw
    std::deque<std::vector<int32_t>> pending_;
    std::vector<int32_t> taken_, drawn_;
    std::vector<uint64_t> words_;
};

}  // namespace riptide::testing
