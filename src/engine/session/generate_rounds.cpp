// Session::generate with a drafter: rounds that the device runs by itself, while the host takes what came of them.
#include <algorithm>
#include <chrono>

#include "base/error.h"
#include "engine/sampling/device_sampling.h"
#include "engine/session/session.h"

namespace riptide {

namespace {

/// Rounds that the device may be ahead. What to check is chosen when a round is launched: more would be later to learn.
constexpr int64_t kRoundsAhead = 2;

/// Seconds from one arrival to the next; the first since it began to launch, which is somewhat longer than a round.
class Arrivals {
  public:
    double arrived() {
        const auto now = std::chrono::steady_clock::now();
        return std::chrono::duration<double>(now - std::exchange(last_, now)).count();
    }

  private:
    std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

}  // namespace

/// As the device draws for an answer that needs nothing of the host; on the CPU the host's own sampler.
DraftRounds::Draws Session::round_draws(const GenerateRequest& request, std::span<const int32_t> stop_ids) {
    const bool greedy = plainly_greedy(request.sampling);
    if (gpu_) {
        const auto how = greedy ? GpuDecoder::Draw::largest : GpuDecoder::Draw::sampled;
        return {greedy ? 0 : 1, [this, how](const Tensor& logits, std::span<const int32_t> positions) {
                    return decoder_->draw(logits, positions, how);
                }};
    }
    if (greedy) return {0, [this](const Tensor& logits, auto) { return ops::most_likely(runner_->context(), logits); }};
    SamplingParams sampling = request.sampling;
    sampling.min_tokens = 0;  // the answer has them by now
    auto sampler = std::make_shared<Sampler>(sampling, model_->info().vocab_size, stop_ids, request.prompt);
    return {1, [this, sampler](const Tensor& logits, std::span<const int32_t> positions) {
                const Tensor tokens = runner_->context().alloc(DType::i32, {logits.rows()});
                for (int64_t r = 0; r < logits.rows(); ++r)
                    *tokens.row<int32_t>(r) = sampler
                                                  ->sample({logits.row(r), static_cast<size_t>(logits.shape[1])},
                                                           positions[static_cast<size_t>(r)] + 1)
                                                  .token;
                return tokens;
            }};
}

bool Session::wants_rounds(const Speculator& speculator) const {
    const SpeculationOptions& o = speculator.options();
    const bool device = o.rounds == SpeculationOptions::Rounds::device ||
                        (o.rounds == SpeculationOptions::Rounds::choose && gpu_ != nullptr);
    return device && o.tree < ops::kMostRoundRows && speculator.shared_drafter()->dflash() != nullptr;
}

bool Session::can_run_rounds() const {
    if (!rounds_ || &rounds_->drafter() != speculator_->drafter().dflash()) return false;
    const SequenceState* drafted = rounds_->drafter().state(kSequence);
    return drafted != nullptr && drafted->length() == sequence_->length() && sequence_->length() < context_;
}

/// Makes the first `fed` rows of rounds that have ended part of the sequence. Recurrent state that has gone further, by
/// rounds under way or because a token ended the answer, goes back to where the rounds began (`before`),
/// and these tokens are fed once more.
void Session::keep_rounds(int64_t fed, bool exact, const SpareState& before) {
    const auto again = std::span(tokens_).last(static_cast<size_t>(fed));
    if (exact || !cache_->delta().any()) return sequence_->keep_prefix(fed);
    before.restore(sequence_->slot());
    sequence_->keep_prefix(0);
    if (fed == 0) return;
    const StepItem item{&*sequence_, again, {}, StepRows::Logits::none, {}};
    runner_->step(std::span(&item, 1), Family::decode);
    sequence_->commit_prefix(fed);
}

/// Rounds for as many rows as can be reserved at once. Ends before a plain round where the last had drafts, or the
/// other way round. False if there is no room for any.
bool Session::run_rounds(RoundSpan& span) {
    DraftRounds& rounds = *rounds_;
    DflashDrafter& drafter = rounds.drafter();
    SequenceState& drafted = *drafter.state(kSequence);
    const int64_t start = sequence_->length(), block = drafter.model().block_size();
    int64_t room = std::min({int64_t{DflashDrafter::kAheadRows}, context_ - start, int64_t{options_.chunk_rows}});
    ops::DraftPlan plan = speculator_->plan_ahead(room - 1);
    const bool plain = plan.rows == 1;
    if (plain) room = std::min({room, speculator_->plain_ahead(), DraftRounds::kMostPlain});
    RT_ASSERT(sequence_->try_reserve(room));
    if (!plain && !drafted.try_reserve(room + block)) {
        sequence_->commit_prefix(0);
        return false;
    }
    // claimed: rows of rounds under way; kept: rows that the device has kept, as far as is known.
    int64_t fed = 0, claimed = 0, kept = 0, wanted = span.wanted;
    int32_t token = span.answer.back();
    std::vector<int32_t> path;
    const SpareState before(cache_->delta(), sequence_->slot());
    const auto settle = [&] {
        const bool exact = rounds.pending() == 0 && kept == fed;
        rounds.end();
        drafted.commit_prefix(plain ? 0 : fed);
        keep_rounds(fed, exact, before);
    };
    rounds.begin(*sequence_, drafted, token, span.draws);
    Arrivals arrivals;
    try {
        while (span.more) {
            while (rounds.pending() < std::min(kRoundsAhead, wanted) && (plan.rows == 1) == plain &&
                   fed + claimed + plan.rows <= room) {
                rounds.launch(plan);
                claimed += plan.rows;
                if (!plain) plan = speculator_->plan_ahead(room - 1);
            }
            if (rounds.pending() == 0) break;
            const DraftRounds::Round& round = rounds.next();
            kept += round.kept;
            const double seconds = arrivals.arrived();
            const auto known = span.answer.size();
            const auto feed = [&](int32_t row) {
                tokens_.push_back(row == 0 ? token : round.tree.tokens[static_cast<size_t>(row - 1)]);
                ++fed;
                span.more = span.take({}, round.drawn[static_cast<size_t>(row)]);
                return span.more ? span.answer.back() : -1;
            };
            walk(round.tree, path, feed);
            RT_ASSERT(!span.more || std::ssize(path) == round.kept);
            claimed -= std::ssize(round.drawn);
            wanted -= std::ssize(path);
            token = span.answer.back();
            ++span.steps;
            const auto fresh = std::span(span.answer).subspan(known);
            if (plain) speculator_->ran_plain(kSequence, fresh, seconds);
            else speculator_->ran_ahead(kSequence, round.tree, path, fresh, std::ssize(round.drawn), seconds);
        }
    } catch (...) {  // of take(): what was fed stays fed
        settle();
        throw;
    }
    settle();
    if (plain && fed > 0) drafter.feed(kSequence, start, rounds.features(fed), {});
    return fed > 0;
}

}  // namespace riptide
