// A request as the scheduler keeps it. Internal to scheduler*.cpp.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "engine/scheduler/scheduler.h"

namespace riptide {

struct Scheduler::Request {
    RequestId id = 0;
    ScheduledRequest asked;  // the prompt has moved to tokens
    std::vector<int32_t> tokens;
    int64_t prompt_size = 0;
    int64_t arrival = 0;
    std::optional<SequenceState> state;  // while it runs
    int64_t computed_once = 0;           // tokens whose K/V have been planned before
    int32_t preemptions = 0;
    int64_t last_step = 0;
    std::vector<int32_t> draft_tokens, draft_parents;
    // The running step.
    int64_t rows = 0;      // without drafts
    int64_t drafts = 0;    // the first of draft_tokens
    bool reading = false;  // rows of the prompt, in a step that is under way since an earlier plan
    std::vector<int32_t> fed_tokens, fed_parents;
    bool cancelled = false;
    bool sits_out = false;
    const StepResult* result = nullptr;

    int64_t pending() const { return std::ssize(tokens) - state->length(); }
    bool in_prompt() const { return state->length() < prompt_size; }
    bool begun() const { return state || preemptions > 0; }
    /// Prompt rows that are left behind those of this step.
    int64_t prompt_left() const { return prompt_size - state->length() - rows; }
    /// Prompt rows until a length at which the step must end, behind those that it has; 0: it has reached one.
    int64_t to_stop() const {
        const int64_t end = state->length() + rows;
        const auto stop = rows > 0 ? std::lower_bound(asked.stops.begin(), asked.stops.end(), end)
                                   : std::upper_bound(asked.stops.begin(), asked.stops.end(), end);
        return (stop == asked.stops.end() ? prompt_size : *stop) - end;
    }
    bool decodes() const { return !in_prompt() && pending() == 1 && !sits_out; }
    bool recomputes_answer() const { return !in_prompt() && pending() > 1 && !sits_out; }
    int64_t answer() const { return std::ssize(tokens) - prompt_size; }
    bool wants_logits() const { return rows == pending(); }
    int64_t worst_tokens() const { return prompt_size + asked.max_tokens; }
    int victim_priority(int32_t max_preemptions) const {
        return preemptions >= max_preemptions ? ScheduledRequest::kHighest : asked.priority;
    }
};

}  // namespace riptide
