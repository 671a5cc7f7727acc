// Which rows of which requests run in the next step.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "engine/scheduler/fair_share.h"
#include "engine/scheduler/schedule.h"

namespace riptide {

/// The life of a step: [propose] -> plan -> Runner -> settle (or abandon, if it failed). cancel and submit at any time.
///
/// **Prompts' steps may stay under way** while further steps are planned, run and settled: their requests keep their
/// rows and cannot be preempted (who lacks a page waits), and no other prompt is planned. One that is cancelled or late
/// leaves at once all the same, but its pages and its ring stay taken until the prompts' step ends, since layers still
/// to run write to them.
/// **Rows.** A request is its tokens and how many of them have K/V. Each step feeds one row of every decoding request,
/// then prompts as far as the row budget goes, then drafts with what is left. When decoding requests exceed decode_rows
/// they take turns. Prompt tokens always run in the prefill family and answer tokens in the decode family, also when
/// they are computed a second time, so that a preempted request computes the same bits as one that never was.
/// **Order.** By priority (plus age, up to the highest), then by what the session has had (FairShare), then by arrival.
/// The first in this order that waits is the next to start: nobody overtakes it because it is large.
/// **Pages.** One that lacks a page preempts the last of those that run: the lowest priority, of these the youngest. If
/// it is that itself, it waits. A request of higher priority also preempts lower ones in order to start. So the first
/// always advances, and no request waits for ever. Drafts never preempt.
/// **Time** is an argument, in microseconds of any clock that does not go back. Decisions depend on nothing but the
/// calls made, the cache's counts and the hooks. Not thread-safe. A plan takes O(requests) + O(rows / quantum *
/// running).
class Scheduler {
  public:
    /// The cache must outlive the scheduler. Throws Error for options out of range.
    Scheduler(KvCache& cache, const SchedulerOptions& options, SchedulerHooks hooks = {});
    ~Scheduler();

    /// Throws QueueFull, or Error for an empty prompt, max_tokens < 0, a priority out of range or a request that the
    /// whole cache could not hold.
    RequestId submit(ScheduledRequest request, int64_t now_us);
    /// Ends a request, at once or after the running step, and frees its pages. An id that has left is ignored.
    void cancel(RequestId id);

    /// Decoding requests that do not sit out: they may have drafts.
    std::vector<RequestId> decoding() const;
    /// Draft rows below the last token of a decoding request: `parents` empty for a chain, else for each row the
    /// earlier draft row that is its parent, or -1. The step feeds the first of them, as many as there is room for.
    void propose(RequestId id, std::span<const int32_t> tokens, std::span<const int32_t> parents = {});

    /// From now on a request takes part in no step but those of its prompt, or (`out` false) in all again. While it
    /// sits out it may be preempted, like others.
    void sit_out(RequestId id, bool out);

    /// Ends what is past its deadline; plan() does that too. REQUIRES the last plan settled or abandoned.
    void expire(int64_t now_us);
    /// Ends what is past its deadline, starts requests, chooses rows. REQUIRES the last plan settled or abandoned.
    const StepPlan& plan(int64_t now_us);
    /// Room for more steps like the planned one before settle(), if all that run decode a row each without drafts: each
    /// step feeds what the one before it drew. Takes pages that no sequence needs, but preempts nobody. Returns how
    /// many steps may run, from 1 to `most`; not more than answers want tokens, unless some of the rows are `drafts`,
    /// which do not count. REQUIRES most = 1 if there is recurrent state, unless they follow each
    /// other (SequenceState::begin_follow), and are ended by commit_followed_states() before settle(), or are committed by
    /// the device (state_is_committed).
    int64_t run_ahead(int64_t most, bool drafts = false);
    /// REQUIRES one result for each item that wanted logits, except of requests cancelled since. Answers end at
    /// max_tokens: what a path brings beyond is dropped. `prompts_done` false: the prompts' step, planned now or
    /// earlier, is still under way and has no results.
    void settle(std::span<const StepResult> results, bool prompts_done = true);
    /// The step failed, and the prompts' step if one is under way: nothing of them counts.
    void abandon();
    /// Requests whose prompts' step is under way. Once it is 0 no more of that step may run, though settle() has not
    /// ended it: all in it have left.
    int64_t reading() const { return reading_; }

    /// Whether requests that have never run may start. They may at first.
    void admit_new(bool may) { admit_new_ = may; }
    /// SchedulerOptions::prefill_rows_beside from the next plan on. REQUIRES rows > 0.
    void read_beside(int32_t rows) { options_.prefill_rows_beside = rows; }
    /// Requests that have run and have not left: the running and the preempted.
    int64_t begun() const;

    /// Prompt and answer of a request that has not left.
    std::span<const int32_t> tokens(RequestId id) const;
    /// Its K/V; null while it waits.
    const SequenceState* state(RequestId id) const;
    int64_t waiting() const { return std::ssize(waiting_); }
    int64_t running() const { return std::ssize(running_); }
    /// Tokens of the longest prompt that runs and is not read to its end; 0 without one.
    int64_t longest_prompt() const;
    /// Sessions whose share is remembered.
    int64_t sessions() const { return share_.known(); }
    const SchedulerCounts& counts() const { return counts_; }
    /// When a place in a full queue should be free, as fast as places have become free lately.
    int64_t retry_after_us() const;

  private:
    struct Request;
    using Requests = std::vector<Request*>;
    void admit();
    bool make_room(const Request& request);
    bool fits(const Request& request);
    bool make_free(const Request& request, int64_t pages);
    Request* first_waiting(int above) const;
    void start(Request& request);
    void plan_decode();
    void plan_prompts();
    void plan_drafts();
    void build_items();
    int64_t reserve(Request& request, int64_t most);
    bool lacks_spare(const Request& request) const;
    int64_t promised(const Request& request) const;
    void preempt(Request& request);
    void remove(Request& request, Leaving why);
    void keep_reading();
    void end_reading();
    void finish_step(Request& request, const StepResult* result);
    Request* last_running() const;
    bool before(const Request& a, const Request& b) const;
    int64_t age_class(const Request& request) const;

    KvCache& cache_;
    SchedulerOptions options_;
    SchedulerHooks hooks_;
    FairShare share_;
    std::map<RequestId, std::unique_ptr<Request>> requests_;
    Requests waiting_, running_;
    StepPlan plan_;
    SchedulerCounts counts_;
    RequestId last_id_ = 0;
    int64_t now_ = 0, step_ = 0;
    int64_t last_start_ = 0, start_gap_ = 0;  // of requests that waited
    int64_t decode_left_ = 0;
    int64_t reading_ = 0;
    std::vector<SequenceState> left_behind_;  // by requests that left while they were read
    bool in_step_ = false, admit_new_ = true;
};

}  // namespace riptide
