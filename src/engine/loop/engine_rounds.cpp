// EngineLoop: rounds of drafting and checking that the device runs by itself, while the host takes what came of them.
#include <algorithm>

#include "base/error.h"
#include "engine/loop/engine_loop.h"
#include "engine/sampling/device_sampling.h"
#include "engine/scheduler/waiting.h"
#include "ops/topk.h"

namespace riptide {

namespace {

/// Rounds that the device may be ahead. What to check is chosen when a round is launched: more would be later to learn.
constexpr int64_t kRoundsAhead = 2;

}  // namespace

/// Whether an answer of so many tokens with the prompt, but for the last, needs nothing of the host between rounds, and
/// the drafter knows all of it.
bool EngineLoop::fits_rounds(const Answer& answer, int64_t length) {
    if (!rounds_ || !speculator_->wants_rounds(machine_.options().gpu.has_value())) return false;
    return &rounds_->drafter() == speculator_->drafter().dflash() && answer.told >= 0 && !answer.without_rounds &&
           !answer.constrained() && answer.free_draws() > 0 &&
           device_draws(answer.sampling(), machine_.model().info().vocab_size) &&
           draws_rows(answer.sampling(), std::ssize(answer.tokens())) &&
           rounds_->drafter().fed(static_cast<uint64_t>(answer.scheduled)) == length;
}

/// As the device draws for an answer that needs nothing of the host; on the CPU the host's own sampler.
DraftRounds::Draws EngineLoop::round_draws(const Answer& answer, int32_t slot) {
    const bool greedy = plainly_greedy(answer.sampling());
    const DecodeDevice* const decoder = machine_.decoder();
    if (decoder != nullptr && decoder->round_draws) {
        if (!greedy) start_slot(answer, slot, answer.sampling().min_tokens);
        return {greedy ? 0 : 1,
                decoder->round_draws(slot, greedy ? GpuDecoder::Draw::largest : GpuDecoder::Draw::sampled)};
    }
    Context& context = machine_.runner().context();
    if (greedy) return {0, [&context](const Tensor& logits, auto) { return ops::most_likely(context, logits); }};
    SamplingParams sampling = answer.sampling();
    sampling.min_tokens = 0;  // the answer has them by now
    auto sampler = std::make_shared<Sampler>(sampling, machine_.model().info().vocab_size, answer.job().stop_ids,
                                             answer.job().prompt.tokens);
    return {1, [&context, sampler](const Tensor& logits, std::span<const int32_t> positions) {
                const Tensor tokens = context.alloc(DType::i32, {logits.rows()});
                for (int64_t r = 0; r < logits.rows(); ++r) {
                    const std::span<const float> row(logits.row(r), static_cast<size_t>(logits.row_elements()));
                    try {
                        *tokens.row<int32_t>(r) = sampler->sample(row, positions[static_cast<size_t>(r)] + 1).token;
                    } catch (const Error&) {
                        *tokens.row<int32_t>(r) = -1;
                    }
                }
                return tokens;
            }};
}

/// Instead of a step: rounds for one answer that is alone, as many as there is room for, with drafts or all without.
/// False if they are not for this step.
bool EngineLoop::run_rounds(const StepPlan& plan) {
    if (!speculator_ || plan.decode.size() != 1 || !prompt_items_.empty() || scheduler_.running() != 1) return false;
    const StepItem& item = plan.decode[0];
    SequenceState& sequence = *item.sequence;
    Answer& answer = answer_of(plan.decode_ids[0]);
    const int64_t start = sequence.length();
    if (item.tokens.size() != 1 || !fits_rounds(answer, start)) return false;
    DflashDrafter& drafter = rounds_->drafter();
    const auto id = static_cast<uint64_t>(answer.scheduled);
    SequenceState& drafted = *drafter.state(id);
    int64_t room = std::min({int64_t{DflashDrafter::kAheadRows}, machine_.context_length() - start, answer.free_draws()});
    room = scheduler_.run_ahead(room, true);
    const ops::DraftPlan first = speculator_->plan_ahead(room - 1);
    const bool plain = first.rows == 1;
    if (plain) room = std::min({room, speculator_->plain_ahead(), DraftRounds::kMostPlain});
    if (!plain && !drafter.reserve(id, room + drafter.model().block_size())) {
        answer.without_rounds = true;
        return false;
    }
    answer.begin_step();
    tell(answer);
    const SpareState before(machine_.cache().delta(), sequence.slot());
    rounds_->begin(sequence, drafted, item.tokens[0], round_draws(answer, sequence.slot()));
    RoundSpan span{.answer = answer, .plain = plain, .room = room, .token = item.tokens[0], .fed = {}};
    take_rounds(span, first);
    const auto fed = std::ssize(span.fed);
    const bool exact = rounds_->pending() == 0 && span.kept == fed;
    rounds_->end();
    machine_.check();
    drafted.commit_prefix(plain ? 0 : fed);
    keep_rounds(span, item, exact, before);
    if (plain) drafter.feed(id, start, rounds_->features(fed), {});
    conclude(answer, span.token);
    keep_pace(-1, 1, false);
    return true;
}

/// Launches rounds and takes what comes of them, until there is no room for another, nobody wants one, or drafts pay
/// that did not, or the other way round. The first is taken in any case.
void EngineLoop::take_rounds(RoundSpan& span, ops::DraftPlan plan) {
    int64_t claimed = 0, rounds = 0;  // rows of rounds under way; rounds that were taken
    const int64_t deadline = nearest_deadline();
    bool launches = true;
    int64_t last_us = now_us();
    for (;;) {
        const int64_t wanted = span.answer.job().max_tokens - std::ssize(span.answer.tokens());
        while (launches && rounds_->pending() < std::min(kRoundsAhead, wanted) && (plan.rows == 1) == span.plain &&
               std::ssize(span.fed) + claimed + plan.rows <= span.room) {
            rounds_->launch(plan);
            claimed += plan.rows;
            stats_.decode_rows += plan.rows;
            if (!span.plain) plan = speculator_->plan_ahead(span.room - 1);
        }
        if (rounds_->pending() == 0 || !span.more) break;
        const DraftRounds::Round* round = nullptr;
        {
            const Waiting waiting_for(waited_);
            round = &rounds_->next();
        }
        claimed -= std::ssize(round->drawn);
        ++rounds;
        const int64_t now = now_us();
        take_round(span, *round, static_cast<double>(now - std::exchange(last_us, now)) * 1e-6);
        launches = span.more && !interrupted_() && now < deadline;
    }
    stats_.steps += rounds - 1;  // step() counts the first
    stats_.rounds += rounds;
}

/// `seconds`: from the last round's arrival to this one's.
void EngineLoop::take_round(RoundSpan& span, const DraftRounds::Round& round, double seconds) {
    Answer& answer = span.answer;
    const auto id = static_cast<uint64_t>(answer.scheduled);
    std::vector<int32_t> path;
    span.kept += round.kept;
    walk(round.tree, path, [&](int32_t row) {
        if (!span.fed.empty()) answer.ahead.push_back(span.token);
        span.fed.push_back(span.token);
        Sampled drawn;
        drawn.token = span.token = round.drawn[static_cast<size_t>(row)];
        if (drawn.token < 0) damaged(answer, no_token(answer.usage.prompt + std::ssize(answer.tokens())));
        span.more = drawn.token >= 0 && take(answer, drawn);
        return span.more ? drawn.token : -1;
    });
    RT_ASSERT(!span.more || std::ssize(path) == round.kept);
    ++answer.usage.steps;
    answer.usage.drafted += round.tree.size();
    answer.usage.accepted += std::ssize(path) - 1;
    const auto fresh = std::span(answer.tokens()).subspan(static_cast<size_t>(answer.told));
    if (span.plain) speculator_->ran_plain(id, fresh, seconds);
    else speculator_->ran_ahead(id, round.tree, path, fresh, std::ssize(round.drawn), seconds);
    answer.told = std::ssize(answer.tokens());
}

/// Recurrent state that has gone further than what was fed, by rounds under way or because a token ended the answer,
/// goes back to where the rounds began, and these tokens are fed once more.
void EngineLoop::keep_rounds(const RoundSpan& span, const StepItem& item, bool exact, const SpareState& before) {
    if (exact || !machine_.cache().delta().any()) return item.sequence->state_is_committed(std::ssize(span.fed));
    before.restore(item.sequence->slot());
    const StepItem again{item.sequence, span.fed, {}, StepRows::Logits::none, {}};
    if (try_step(std::span(&again, 1), Family::decode)) commit_state(again, span.answer.scheduled);
    else fail(span.answer, step_error_->kind(), step_error_->what());
}

}  // namespace riptide
