// What the scheduler is told and what it answers. A request is here one answer.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "cache/sequence_state.h"
#include "engine/execution/runner.h"
#include "engine/request.h"

namespace riptide {

struct SchedulerOptions {
    int32_t max_running = 0;  // requests that hold K/V at a time; 0: as many as the cache has ring slots
    int32_t decode_rows =
        256;  // rows of a step's decode part: one for each decoding request, drafts, recomputed answers
    int32_t prefill_rows = 8192;         // rows of its prefill part when nothing decodes
    int32_t prefill_rows_beside = 1024;  // and beside decoding requests, which wait for it
    int32_t quantum = 512;               // prompt rows that a session gets before the others are looked at
    int32_t scored_rows = 64;            // rows of a step that want logits each, of one request
    int32_t max_queue = 512;             // requests that wait for their first step
    int64_t aging_us = 10'000'000;       // a request that waits so long counts as one priority higher
    bool optimistic = true;       // admit by the pages that a request needs now; false: by what max_tokens may need
    int32_t max_preemptions = 3;  // a request preempted so often counts as of the highest priority
};

struct ScheduledRequest {
    static constexpr int kHighest = 2;
    std::vector<int32_t> prompt;
    int64_t max_tokens = 1;  // of the answer; 0: the prompt is only read
    uint64_t session = 0;    // requests with the same number have one share together
    int priority = 1;        // 0 background, 1 normal, 2 interactive
    /// Ascending lengths inside the prompt at which a step must end: those worth keeping of recurrent state.
    std::vector<int64_t> stops = {};
    bool prompt_logits = false;  // every row of the prompt wants logits, not only the last
    int64_t deadline_us = std::numeric_limits<int64_t>::max();
};

/// Why a request gives its K/V back. After `preempted` it waits and runs again; all else is its end.
enum class Leaving { finished, length, cancelled, deadline, preempted };

/// How the prefix cache takes part. Each may be empty; none may call the scheduler or throw.
struct SchedulerHooks {
    /// Tokens, from the first, fewer than all, that restore() would bring back now in pages that the pool need not
    /// give.
    std::function<int64_t(RequestId, std::span<const int32_t> tokens)> cached = {};
    /// Fills the empty state of a request that starts. It must end shorter than `tokens`.
    std::function<void(RequestId, std::span<const int32_t> tokens, SequenceState&)> restore = {};
    /// Rows of the prompt have become part of the state; it is between two steps.
    std::function<void(RequestId, std::span<const int32_t> tokens, const SequenceState&)> computed = {};
    /// Gives back at least `pages` pages to the pool that no sequence needs, or none if it cannot give so many.
    std::function<void(RequestId, int32_t pages)> evict = {};
    /// A request leaves, exactly once with a reason other than preempted. `tokens`: prompt and answer. `state`: what it
    /// has computed, about to be freed; null if it was waiting, or if a step of its prompt is under way. Spans of the
    /// request end here.
    std::function<void(RequestId, Leaving, std::span<const int32_t> tokens, const SequenceState* state)> leave = {};
};

/// What to run: Runner::step(decode, Family::decode), then Runner::step(prefill, Family::prefill), each if not empty.
/// (Read the logits of the first before the second: they share the arena.) Rows are reserved already. Valid until
/// settle() or abandon(); `prefill`, if it is still under way then, until it is complete, except items of requests that
/// have left since. While it is under way the `prefill` of further plans is empty.
struct StepPlan {
    std::vector<StepItem> decode, prefill;
    std::vector<RequestId> decode_ids, prefill_ids;  // whose item it is
    /// Requests are there, but none can run: the pages they need are held by others than requests.
    bool stalled = false;
};

/// What came of an item that wanted logits.
struct StepResult {
    RequestId id = 0;
    /// Rows of the item to keep: 0, then accepted draft rows, each the child of the one before. Empty: all rows but
    /// drafts.
    std::span<const int32_t> path = {};
    /// After Scheduler::run_ahead: what all steps but the last drew, each fed to the step after it.
    std::span<const int32_t> ahead = {};
    int32_t next = -1;  // the token that follows; -1: none, with end
    bool end = false;   // the answer is complete
    /// Nothing was drawn: the last row, which is of the answer, and its drafts run again in a later step.
    bool undrawn = false;
};

struct SchedulerCounts {
    int64_t refused = 0, preempted = 0, stalled = 0;
    int64_t rows = 0, draft_rows = 0, recomputed_rows = 0;  // rows planned; the others are among them
};

}  // namespace riptide
