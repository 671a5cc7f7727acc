// The engine's steps: what runs next, what came of it, who is told. Internal to the engine.
#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

#include "engine/engine.h"
#include "engine/loop/answer.h"
#include "engine/loop/recent_count.h"
#include "engine/loop/resources.h"
#include "engine/sampling/mask_search.h"
#include "engine/scheduler/scheduler.h"
#include "engine/speculation/speculation.h"

namespace riptide {

/// A step: scheduler.plan -> decode part and prompt part -> draw -> settle -> publish to the prefix cache -> events.
///
/// Beside decoding answers the prompts' step stays under way for several steps, each of which runs some of its layers
/// behind the decode part (PromptPace says how many). Nothing is drawn from it, settled or published until all have
/// run.
///
/// On a GPU the device draws for all rows that it can (ops/sample.h): such a step is begun, the prompts' step is put
/// behind it, and only then its tokens are waited for. While nothing but such rows is planned, steps run ahead of the
/// host until an answer ends or `interrupted` says that there is news: settle then sees them as one.
/// Other rows (log-probabilities, first tokens, answers computed again) are drawn here from copied logits, as all are
/// on the CPU. For answers of a given form the host finds out what may come next while the step's layers run, and so
/// one step is launched ahead, without its draw.
///
/// What may come next can take long to find out (a mask of an ambiguous grammar). In a step this thread does only so
/// much work for it, however many answers ask; the rest another thread does (engine_masks.cpp). An answer that waits
/// for it runs its last row again, and meanwhile sits out. The first mask of an answer is always known, so that prompts
/// are never read again for it. Drafts behind which it would take long are not looked at.
///
/// Recurrent state: the device's steps follow each other (SequenceState::begin_follow), where its layers can, and are
/// no more than one beyond the one whose tokens are asked for: what that one was fed is not yet part of the state of an
/// answer that has ended. Before settle() the state of all of them describes the tokens that they keep.
///
/// Not thread-safe: the engine's thread owns it. Functions throw only what ends the engine; errors of one request
/// become its Failed.
class EngineLoop {
  public:
    /// All must outlive the loop.
    EngineLoop(Machine& machine, std::function<bool()> interrupted);
    ~EngineLoop();

    void add(std::unique_ptr<Job> job);
    /// Ends a request that was never added: with its answers failed, or (empty) cancelled.
    void refuse(std::unique_ptr<Job> job, const std::optional<Failed>& failure);
    void cancel(RequestId id);
    /// Ends what is past its deadline, between steps; step() does that too.
    void expire();
    /// Of all requests that are left, by now_us(); the largest number if none has one.
    int64_t nearest_deadline() const;
    /// Runs one step, or several ahead. REQUIRES !idle().
    void step();
    /// Ends everything, each answer with Failed, or (null) Done as cancelled. The loop cannot step afterwards.
    void end_all(const Failed* failure, std::vector<std::unique_ptr<Job>> never_added);
    /// Whether no request is left.
    bool idle() const { return jobs_.empty(); }

    /// While held, requests that have not begun stay in the queue.
    void hold(bool held) { scheduler_.admit_new(!held); }
    /// Requests that have begun and have not ended.
    int64_t begun() const { return scheduler_.begun(); }
    /// The machine has other weights (and has forgotten what was cached of the old); answers carry `version`.
    /// REQUIRES begun() == 0.
    void change_weights(int64_t version);
    /// Forgets the prefix cache but for its disk tier. REQUIRES that no request has begun.
    void flush();

    /// Machine::learn_weights.
    void learn_weights() { cache_changes_ += machine_.learn_weights() ? 1 : 0; }
    /// PrefixCache::share_some, of weights that are still what they were.
    bool share_some() {
        learn_weights();
        return machine_.prefix() != nullptr && machine_.prefix()->share_some();
    }
    /// About how long it takes to read so many tokens of a prompt; 0: unknown.
    double read_seconds(int64_t tokens) const;

    /// From now on answers are drafted by this, or (null) by nobody; returns who did. Both know nothing of sequences.
    /// REQUIRES begun() == 0.
    std::unique_ptr<Speculator> speculate(std::unique_ptr<Speculator> speculator);
    /// The model has been loaded anew, whose weights a drafter may share. REQUIRES begun() == 0.
    void renew_drafter();

    /// Microseconds of the clock that requests are measured by.
    int64_t now_us() const;
    /// For tests: what holds the K/V of the only answer; null if it does not run. REQUIRES that there is one.
    const SequenceState* lone_state() const { return scheduler_.state(answers_.begin()->first); }
    /// For tests: layers of a prompts' step that run beside a decode part, in place of what PromptPace says.
    void use_parts(std::function<int64_t()> layers) { part_layers_ = std::move(layers); }
    const PromptPace& pace() const { return pace_; }
    /// Work on masks that may be done on the engine's thread, in steps of WorkBudget (0.1 to 0.25 us): on one, and in a
    /// step of the loop. Walking a whole vocabulary of 151,936 tokens takes 41,600.
    struct MaskSteps {
        int64_t mask = 4000, step = 8000;
    };
    /// For tests: other limits.
    void use_mask_steps(MaskSteps steps) { mask_steps_ = steps; }
    /// What the loop knows.
    void report(EngineStats& stats) const;
    /// Answers that have not begun. Who submits adds to it; the loop takes away.
    std::atomic<int64_t> waiting = 0;
    /// As in EngineStats. The loop alone changes it.
    std::atomic<int64_t> waiting_tokens = 0;
    /// The machine is another thread's for the moment: nothing is asked of its model and its prefix cache.
    bool loading = false;
    /// Tokens of answers that came lately.
    const RecentCount& recent() const { return recent_; }
    int64_t retry_after_us() const { return scheduler_.retry_after_us(); }

  private:
    /// A row that the device draws for.
    struct DeviceRow {
        Answer* answer;
        bool over = false;
        int32_t next = -1;  // the last token drawn
    };

    SchedulerHooks hooks();
    int64_t cached(Answer& answer);
    void waits_for(Answer& answer, int64_t tokens);
    void all_is_to_be_read();
    PrefixRequest prefix_request(const Job& job, std::span<const int32_t> tokens) const;
    void restore(Answer& answer, SequenceState& state);
    void computed(Answer& answer, const SequenceState& state);
    void keep_prompt(Job& job, const SequenceState& state, int64_t length);
    void leave(RequestId id, Leaving why, std::span<const int32_t> tokens, const SequenceState* state);
    void evict(Answer& answer, int32_t pages);
    void publish(const Job& job, std::span<const int32_t> tokens, const SequenceState& state, PrefixCache::Mark mark,
                 int64_t length);
    template <class Action>
    void guarded(const Action& action);

    void schedule(Answer& answer);
    void release_held(Job& job);
    void cancel(Job& job);
    void fail(Answer& answer, ErrorKind kind, const std::string& message);
    void close_departed();
    void relieve();
    void forget();

    struct DrawnRows;
    // engine_masks.cpp
    void begin_masks();
    void wait_for_masks();
    template <class Find>
    bool within_step(const Find& find);
    bool knows_allowed(Answer& answer);
    void search_allowed(Answer& answer);
    void expect_slow_mask(Answer& answer);
    void find_undrawn(std::span<const StepItem> items, std::span<const RequestId> ids);
    void allow_rows(Answer& answer, const StepItem& item);
    bool may_follow(Answer& answer, int32_t drafted, const DrawnRows& rows, int64_t row);
    bool draw_formed();

    // engine_speculation.cpp
    void propose_drafts();
    void tell(Answer& answer);
    /// What the tokens that follow rows are drawn from: logits, or, where the device has drawn them, nothing.
    struct DrawnRows {
        Tensor logits;
        std::span<const int32_t> tokens;
    };
    bool device_draws_rows();
    DrawnRows drawn_rows(std::span<const StepItem> items, std::span<const RequestId> ids, bool on_device);
    Sampled draw_row(Answer& answer, const DrawnRows& rows, int64_t row, int64_t position);
    void take_row(Answer& answer, const DrawnRows& rows, int64_t row);
    void draw_drafted(Answer& answer, const StepItem& item, const DrawnRows& rows, int64_t row);
    void make_speculator();
    bool reads_layers() const { return speculator_ && !speculator_->drafter().capture_layers().empty(); }
    bool follows(const Answer& answer, const StepItem& item);
    void feed_drafter(std::span<const StepItem> items, std::span<const RequestId> ids);
    void tell_drafter(const StepPlan& plan, int64_t steps, double seconds);

    // engine_rounds.cpp
    /// An answer while the device runs rounds of it.
    struct RoundSpan {
        Answer& answer;
        bool plain;                // no drafts in any of them
        int64_t room;              // rows reserved
        int32_t token;             // fed next
        std::vector<int32_t> fed;  // rows that count
        int64_t kept = 0;          // that the device has kept, as far as is known
        bool more = true;          // another token is wanted
    };
    bool fits_rounds(const Answer& answer, int64_t length);
    bool run_rounds(const StepPlan& plan);
    void take_rounds(RoundSpan& span, ops::DraftPlan plan);
    void take_round(RoundSpan& span, const DraftRounds::Round& round, double seconds);
    void keep_rounds(const RoundSpan& span, const StepItem& item, bool exact, const SpareState& before);
    DraftRounds::Draws round_draws(const Answer& answer, int32_t slot);

    Answer& answer_of(RequestId scheduled) { return *answers_.at(scheduled); }
    void run_step();
    void run(const StepPlan& plan);
    void split(const StepPlan& plan);
    bool device_can_draw(const Answer& answer, const StepItem& item);
    bool begin_on_device();
    bool next_from_device();
    int64_t run_on_device(int64_t steps);
    bool steps_follow() const;
    void commit_followed();
    void run_part(std::span<const StepItem> items, std::span<const RequestId> ids, Family family);
    void run_each(std::span<const StepItem> items, std::span<const RequestId> ids, Family family);
    void commit_state(const StepItem& item, RequestId id);
    bool try_step(std::span<const StepItem> items, Family family);
    bool try_run(const std::function<void()>& run);
    enum class Prompts { none, under_way, complete, failed };
    void begin_prompts(const StepPlan& plan);
    Prompts run_prompts(int64_t decoding);
    double slowdown(int64_t decoding) const;
    int32_t rows_beside() const;
    void finish_prompts(Prompts prompts);
    void keep_pace(int64_t decoded_us, int64_t steps, bool parts_run);
    void start_slot(const Answer& answer, int32_t slot, int64_t least);
    void draw_all(std::span<const StepItem> items, std::span<const RequestId> ids, bool on_device = false);
    bool take(Answer& answer, const Sampled& sampled);
    void conclude(Answer& answer, int32_t next);
    static std::string no_token(int64_t position);
    void damaged(Answer& answer, const std::string& message);

    Machine& machine_;
    std::function<bool()> interrupted_;
    const int32_t attention_window_;  // of the model, which is not there while other weights are loaded
    int64_t version_ = 1;
    std::map<RequestId, std::unique_ptr<Job>> jobs_;
    std::unordered_map<RequestId, Answer*> answers_;  // by the scheduler's number

    // The step at hand.
    std::vector<DeviceRow> device_rows_;
    std::vector<StepItem> host_items_;
    std::vector<RequestId> host_ids_;
    std::vector<DecodeRow> decode_rows_;
    bool rows_on_device_ = false;  // the device draws for all rows of host_items_ too
    GpuDecoder::Draw row_draw_ = GpuDecoder::Draw::largest;
    std::vector<int32_t> row_slots_;
    int64_t device_steps_ = 0;             // that have been started
    bool device_samples_ = false;          // by its slots' parameters; else the largest logits
    bool device_formed_ = false;           // answers of a given form are among device_rows_
    std::vector<AllowedSet> allowed_;      // what may be drawn for device_rows_
    std::vector<AllowedSet> row_allowed_;  // for the rows of host_items_; empty: anything
    std::optional<Error> step_error_;

    MaskSteps mask_steps_;
    int64_t mask_steps_left_ = 0;       // of this step
    std::vector<RequestId> searching_;  // who sits out until the worker has found what may come next
    MaskWorker mask_worker_;

    // The prompts' step, which may be under way for several steps.
    std::vector<StepItem> prompt_items_;  // of those who have left: not to be touched
    std::vector<RequestId> prompt_ids_;
    bool prompts_begun_ = false;  // on the machine
    PromptPace pace_;
    std::function<int64_t()> part_layers_;
    int64_t decoded_us_ = -1;  // when the last step's decode part had its tokens; -1: it had none

    std::unique_ptr<Speculator> speculator_;  // null: nobody drafts
    std::unique_ptr<DraftRounds> rounds_;     // of the last drafter that can
    std::vector<Speculator::Wanted> drafts_wanted_;
    bool resting_ = false;                               // this step has no drafts, since they do not pay
    std::unordered_map<RequestId, DraftTree> drafting_;  // what may be checked in this step
    std::vector<StepResult> results_;
    std::vector<std::pair<Answer*, Leaving>> departed_;
    std::exception_ptr fault_;  // thrown inside a hook: ends the engine
    bool damage_ = false;       // K/V may be: the cache must go

    struct SlotUse {
        RequestId scheduled = 0;
        int64_t tokens = 0;  // of the answer, that the slot's history has
    };
    std::vector<SlotUse> slots_;  // of the device's sampler, numbered as ring slots

    uint64_t cache_changes_ = 1;   // what cached() has found holds until the next
    bool evict_anything_ = false;  // nothing can run otherwise
    EngineStats stats_;
    RecentCount recent_;
    double waited_ = 0;    // seconds of this step in the model or for the device
    Scheduler scheduler_;  // last: its end frees pages
};

}  // namespace riptide
