// EngineLoop: answers whose next tokens are drafted ahead.
#include <algorithm>

#include "base/error.h"
#include "engine/loop/engine_loop.h"
#include "engine/sampling/device_sampling.h"
#include "engine/scheduler/waiting.h"

namespace riptide {

void EngineLoop::make_speculator() {
    rounds_.reset();
    speculator_.reset();
    const SpeculationOptions& options = machine_.options().speculation;
    if (options.on())
        speculate(std::make_unique<Speculator>(make_drafter(options, machine_.draft_target()), options));
}

std::unique_ptr<Speculator> EngineLoop::speculate(std::unique_ptr<Speculator> speculator) {
    if (speculator) {
        machine_.capture(speculator->drafter().capture_layers());
        const bool rounds = speculator->wants_rounds(machine_.options().gpu.has_value());
        if (rounds && (!rounds_ || &rounds_->drafter() != speculator->drafter().dflash()))
            rounds_ = machine_.make_rounds(speculator->shared_drafter());
    }
    return std::exchange(speculator_, std::move(speculator));
}

void EngineLoop::renew_drafter() {
    if (reads_layers() || rounds_) make_speculator();
}

/// Tells the scheduler what to check for each decoding answer.
void EngineLoop::propose_drafts() {
    if (!speculator_) return;
    drafting_.clear();
    drafts_wanted_.clear();
    resting_ = speculator_->idle_steps() > 0;
    if (resting_) return;
    const std::vector<RequestId> decoding = scheduler_.decoding();
    const bool lone = decoding.size() == 1 && scheduler_.running() == 1;
    if (lone && fits_rounds(answer_of(decoding[0]), std::ssize(scheduler_.tokens(decoding[0])) - 1)) return;
    for (const RequestId id : decoding) {
        Answer& answer = answer_of(id);
        if (answer.told < 0) {
            if (reads_layers()) continue;  // feed_drafter() begins
            speculator_->begin(static_cast<uint64_t>(id), scheduler_.tokens(id));
            answer.told = std::ssize(answer.tokens());
        }
        tell(answer);
        const int64_t room = answer.job().max_tokens - std::ssize(answer.tokens()) - 1;
        drafts_wanted_.push_back({static_cast<uint64_t>(id), std::max<int64_t>(0, room)});
    }
    if (drafts_wanted_.empty()) return;
    const std::span<const DraftTree> trees = speculator_->propose(drafts_wanted_);
    for (size_t i = 0; i < trees.size(); ++i) {
        const DraftTree& tree = trees[i];
        if (tree.empty()) continue;
        const auto id = static_cast<RequestId>(drafts_wanted_[i].sequence);
        scheduler_.propose(id, tree.tokens, tree.is_chain() ? std::span<const int32_t>() : std::span(tree.parents));
        drafting_[id] = tree;
    }
}

/// Whether the device can draw for all rows of the decode part that it does not run by itself: rows with drafts, or
/// whose layers a drafter is shown. Readies the slots by which it draws.
bool EngineLoop::device_draws_rows() {
    const DecodeDevice* decoder = machine_.decoder();
    if (decoder == nullptr || !decoder->draw_rows || host_items_.empty()) return false;
    int64_t rows = 0;
    for (size_t i = 0; i < host_items_.size(); ++i) {
        const StepItem& item = host_items_[i];
        const Answer& answer = answer_of(host_ids_[i]);
        const int64_t fed = std::ssize(item.tokens);
        const bool wanted = item.logits == StepRows::Logits::all || (item.logits == StepRows::Logits::last && fed == 1);
        if (!wanted || item.sequence->length() < answer.usage.prompt || answer.free_draws() < fed ||
            !device_draws(answer.sampling(), machine_.model().info().vocab_size) ||
            !draws_rows(answer.sampling(), std::ssize(answer.tokens())))
            return false;
        rows += fed;
    }
    if (rows > GpuDecoder::kMostDraws) return false;
    const bool largest = std::all_of(host_ids_.begin(), host_ids_.end(), [&](RequestId id) {
        return plainly_greedy(answer_of(id).sampling()) && !answer_of(id).constrained();
    });
    row_draw_ = largest ? GpuDecoder::Draw::largest : GpuDecoder::Draw::sampled;
    for (size_t i = 0; i < host_items_.size() && !largest; ++i) {
        const Answer& answer = answer_of(host_ids_[i]);
        start_slot(answer, host_items_[i].sequence->slot(), answer.sampling().min_tokens);
    }
    return true;
}

/// What the rows of a step are drawn from. What answers of a given form allow behind drafts is found out while it
/// runs.
EngineLoop::DrawnRows EngineLoop::drawn_rows(std::span<const StepItem> items, std::span<const RequestId> ids,
                                             bool on_device) {
    row_slots_.clear();
    row_allowed_.clear();
    const auto constrained = [&](RequestId id) { return answers_.contains(id) && answer_of(id).constrained(); };
    const bool formed = on_device && std::any_of(ids.begin(), ids.end(), constrained);
    for (size_t i = 0; on_device && i < items.size(); ++i) {
        const StepItem& item = items[i];
        row_slots_.insert(row_slots_.end(), item.tokens.size(), item.sequence->slot());
        if (!constrained(ids[i]) || answer_of(ids[i]).undrawn) row_allowed_.resize(row_slots_.size());
        else allow_rows(answer_of(ids[i]), item);
    }
    if (!formed) row_allowed_.clear();
    const Waiting waiting_for(waited_);
    if (!on_device) return {machine_.logits(), {}};
    return {{}, machine_.decoder()->draw_rows(row_slots_, row_draw_, row_allowed_)};
}

/// The token behind a row. Throws what Sampler::sample does.
Sampled EngineLoop::draw_row(Answer& answer, const DrawnRows& rows, int64_t row, int64_t position) {
    if (rows.tokens.empty())
        return answer.draw({rows.logits.row(row), static_cast<size_t>(rows.logits.row_elements())}, position);
    if (!row_allowed_.empty()) row_allowed_[static_cast<size_t>(row)].check();
    Sampled out;
    out.token = rows.tokens[static_cast<size_t>(row)];
    RT_CHECK(out.token >= 0, "{}", no_token(position));
    return out;
}

/// The tokens of a row with drafts below it, number `row` of the step, as far as the drafts were right.
void EngineLoop::draw_drafted(Answer& answer, const StepItem& item, const DrawnRows& rows, int64_t row) {
    DraftTree& tree = drafting_.at(answer.scheduled);
    tree.shorten(std::ssize(item.tokens) - 1);  // for the others there was no room
    const int64_t length = item.sequence->length();
    int32_t next = -1;
    bool failed = false;
    walk(tree, answer.path, [&](int32_t r) {
        Sampled sampled;
        try {
            sampled = draw_row(answer, rows, row + r, length + std::ssize(answer.path));
        } catch (const GrammarError& error) {  // the model is as it should be
            fail(answer, error.kind(), error.what());
            failed = true;
            return -1;
        } catch (const Error& error) {
            damaged(answer, error.what());
            failed = true;
            return -1;
        }
        next = sampled.token;
        return take(answer, sampled) && may_follow(answer, tree.child(r - 1, next), rows, row) ? next : -1;
    });
    if (failed) return;
    ++answer.usage.steps;
    answer.usage.drafted += tree.size();
    answer.usage.accepted += std::ssize(answer.path) - 1;
    const auto fresh = std::span(answer.tokens()).subspan(static_cast<size_t>(answer.told));
    speculator_->settle(static_cast<uint64_t>(answer.scheduled), tree, answer.path, fresh);
    answer.told = std::ssize(answer.tokens());
    conclude(answer, next);
}

/// Whether a drafter that reads layers has been shown all that the answer's next row builds on.
bool EngineLoop::follows(const Answer& answer, const StepItem& item) {
    return reads_layers() && answer.told >= 0 &&
           speculator_->drafter().fed(static_cast<uint64_t>(answer.scheduled)) == item.sequence->length();
}

/// Shows such a drafter what the last step's layers put out for the rows that count. Where a prompt's beginning came
/// from the prefix cache, no layer has run for it: then the drafter knows it from an earlier sequence, or drafts
/// nothing for this one.
void EngineLoop::feed_drafter(std::span<const StepItem> items, std::span<const RequestId> ids) {
    if (!reads_layers()) return;
    Tensor rows = machine_.captured();
    for (size_t i = 0; i < items.size(); ++i) {
        rows.shape[0] = std::ssize(items[i].tokens);
        Tensor next = rows;
        next.data = rows.row(rows.shape[0]);
        const auto found = answers_.find(ids[i]);
        if (found != answers_.end() && !found->second->undrawn) {
            Answer& answer = *found->second;
            const auto id = static_cast<uint64_t>(ids[i]);
            if (answer.told < 0) {
                const std::span<const int32_t> tokens = scheduler_.tokens(ids[i]);
                speculator_->begin(id, tokens);
                answer.told = std::ssize(tokens) - answer.usage.prompt;
            }
            speculator_->drafter().feed(id, items[i].sequence->length(), rows, answer.path);
        }
        rows = next;
    }
}

/// What was drawn without drafts, and what it took: `seconds`, 0 where more than decoding ran.
void EngineLoop::tell_drafter(const StepPlan& plan, int64_t steps, double seconds) {
    if (!speculator_) return;
    int64_t rows = 0;
    for (const StepItem& item : plan.decode) rows += std::ssize(item.tokens);
    if (rows > 0 && seconds > 0) {
        if (resting_) speculator_->idled(steps, seconds, rows);
        else speculator_->stepped(rows, seconds / static_cast<double>(steps));
    }
    for (const RequestId id : plan.decode_ids) {
        const auto found = answers_.find(id);
        if (found == answers_.end() || found->second->told < 0) continue;
        Answer& answer = *found->second;
        if (!resting_ && answer.path.empty()) {  // nobody had an idea: a step all the same
            const int32_t row = 0;
            const auto fresh = std::span(answer.tokens()).subspan(static_cast<size_t>(answer.told));
            speculator_->settle(static_cast<uint64_t>(id), {}, std::span(&row, 1), fresh);
            answer.told = std::ssize(answer.tokens());
        } else {
            tell(answer);  // idled() or settle() has counted it
        }
    }
}

/// Tells the drafter of tokens that it does not know yet.
void EngineLoop::tell(Answer& answer) {
    speculator_->extend(static_cast<uint64_t>(answer.scheduled),
                        std::span(answer.tokens()).subspan(static_cast<size_t>(answer.told)));
    answer.told = std::ssize(answer.tokens());
}

}  // namespace riptide
