// EngineLoop: what answers of a given form may say next. In one step the engine's thread finds out only so much of it:
// what takes longer another thread does, while the answer sits out of steps. Which of them does it changes no token.
#include <algorithm>

#include "engine/loop/engine_loop.h"
#include "engine/scheduler/waiting.h"

namespace riptide {

namespace {

/// How soon the engine's thread looks again whether it has news, where all answers wait for masks.
constexpr std::chrono::microseconds kNextNews{1000};

}  // namespace

/// Before a step is planned: who need not sit out any more.
void EngineLoop::begin_masks() {
    mask_steps_left_ = mask_steps_.step;
    std::erase_if(searching_, [&](RequestId id) {
        const auto found = answers_.find(id);
        if (found == answers_.end()) return true;  // it has left
        if (!found->second->allowed()->known()) return false;
        scheduler_.sit_out(id, false);
        return true;
    });
}

/// Nothing can run until a mask is found, or there is news.
void EngineLoop::wait_for_masks() {
    const Waiting waiting_for(waited_);
    mask_worker_.wait(kNextNews);
    --stats_.steps;  // this was none
    decoded_us_ = -1;
}

/// Work on one mask, or on those of one answer's drafts, as far as the step has room for it.
template <class Find>
bool EngineLoop::within_step(const Find& find) {
    WorkBudget work(std::min(mask_steps_.mask, mask_steps_left_));
    const bool found = find(work);
    mask_steps_left_ -= work.steps_spent();
    stats_.most_mask_steps = std::max(stats_.most_mask_steps, mask_steps_.step - mask_steps_left_);
    return found;
}

/// Whether it is known what may come next in an answer, or can be found out within this step. If not, the answer sits
/// out of the steps that follow until another thread has found it out.
bool EngineLoop::knows_allowed(Answer& answer) {
    AllowedTokens* const allowed = answer.allowed();
    if (allowed == nullptr || within_step([&](WorkBudget& work) { return allowed->try_find(work); })) return true;
    search_allowed(answer);
    return false;
}

void EngineLoop::search_allowed(Answer& answer) {
    if (std::find(searching_.begin(), searching_.end(), answer.scheduled) != searching_.end()) return;
    searching_.push_back(answer.scheduled);
    scheduler_.sit_out(answer.scheduled, true);
    mask_worker_.add(answer.allowed()->search());
    ++stats_.masks_aside;
}

/// After an answer's token: where the last mask took long the next will, too. So its search begins at once, and not
/// with a row that nothing can be drawn for.
void EngineLoop::expect_slow_mask(Answer& answer) {
    AllowedTokens* const allowed = answer.allowed();
    if (allowed != nullptr && !allowed->known() && allowed->took_more_than(mask_steps_.mask)) search_allowed(answer);
}

/// Which answers of a step have to run their last row again, since it is not known what may be drawn for it.
void EngineLoop::find_undrawn(std::span<const StepItem> items, std::span<const RequestId> ids) {
    for (size_t i = 0; i < items.size(); ++i) {
        const auto found = answers_.find(ids[i]);
        if (found == answers_.end()) continue;
        Answer& answer = *found->second;
        const int64_t end = items[i].sequence->length() + std::ssize(items[i].tokens);
        const bool draws = items[i].logits != StepRows::Logits::none && end >= answer.usage.prompt;
        answer.undrawn = draws && !knows_allowed(answer);
    }
}

/// Appends what may follow an answer's last token, which is known, and each of its drafts, to row_allowed_.
void EngineLoop::allow_rows(Answer& answer, const StepItem& item) {
    within_step([&](WorkBudget& work) {
        answer.allowed()->rows(item.tokens, item.parents, work, row_allowed_);
        return true;
    });
    stats_.formed_rows += std::ssize(item.tokens);
}

/// Whether the row of a draft that was right (node `drafted`; -1: there is none) may be looked at: what may follow it
/// is known. `row`: the first of the answer's.
bool EngineLoop::may_follow(Answer& answer, int32_t drafted, const DrawnRows& rows, int64_t row) {
    if (drafted < 0 || answer.allowed() == nullptr) return true;
    if (rows.tokens.empty()) return knows_allowed(answer);
    return !row_allowed_[static_cast<size_t>(row + drafted + 1)].unknown;
}

/// Finds out what may be drawn for device_rows_, whose layers are running, and has it drawn. False if an answer has
/// ended, or has to run its row again.
bool EngineLoop::draw_formed() {
    bool all = true;
    allowed_.assign(device_rows_.size(), {});
    for (size_t r = 0; r < device_rows_.size(); ++r) {
        DeviceRow& row = device_rows_[r];
        Answer& answer = *row.answer;
        if (row.over || answer.allowed() == nullptr) continue;
        ++stats_.formed_rows;
        if (!knows_allowed(answer)) {
            answer.undrawn = row.next < 0;                           // else the tokens before it count
            slots_[static_cast<size_t>(decode_rows_[r].slot)] = {};  // which takes something all the same
            row.over = true;
            all = false;
            continue;
        }
        try {
            allowed_[r] = answer.allowed()->place();
        } catch (const GrammarError& error) {  // the model is as it should be
            fail(answer, error.kind(), error.what());
            row.over = true;
            all = false;
        }
    }
    machine_.decoder()->draw(allowed_);
    return all;
}

}  // namespace riptide
