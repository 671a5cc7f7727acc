// EngineLoop: requests that come and go, and their part in the prefix cache. engine_step.cpp has the steps.
#include "engine/loop/engine_loop.h"

#include <algorithm>

#include "base/error.h"

namespace riptide {

namespace {

/// Pages that go together: to find the oldest takes a walk over all.
constexpr int32_t kEvictAtOnce = 16;
/// Logits of one request in a step, for log-probabilities of its prompt.
constexpr int64_t kScoredBytes = int64_t{64} << 20;

SchedulerOptions scheduler_options(const EngineOptions& o, int64_t vocab_size) {
    SchedulerOptions s;
    s.max_running = o.max_running;
    s.prefill_rows = o.chunk_rows;
    s.quantum = o.chunk_rows;  // smaller ones would let more prompts share a step, and all of them end later
    s.scored_rows = static_cast<int32_t>(
        std::clamp<int64_t>(kScoredBytes / (vocab_size * int64_t{sizeof(float)}), 1, o.chunk_rows));
    s.max_queue = INT32_MAX;  // bounded where requests come in
    return s;
}

/// What is restored from the cache has no logits.
bool reads_whole_prompt(const Answer& answer) { return answer.job().prompt_logprobs && answer.index() == 0; }

}  // namespace

EngineLoop::EngineLoop(Machine& machine, std::function<bool()> interrupted)
    : machine_(machine),
      interrupted_(std::move(interrupted)),
      attention_window_(machine.model().info().attention_window),
      slots_(static_cast<size_t>(machine.options().max_running)),
      scheduler_(machine.cache(), scheduler_options(machine.options(), machine.model().info().vocab_size), hooks()) {
    make_speculator();
}

EngineLoop::~EngineLoop() = default;

int64_t EngineLoop::now_us() const { return machine_.now_us(); }

// Coming.

void EngineLoop::add(std::unique_ptr<Job> fresh) {
    Job& job = *fresh;
    jobs_.emplace(job.id, std::move(fresh));
    ++stats_.submitted;
    if (job.compression.original > 0) {
        ++stats_.compressed;
        stats_.scored_tokens += job.compression.scored;
        stats_.dropped_tokens += job.compression.original - job.compression.kept;
        if (machine_.options().on_compressed) machine_.options().on_compressed(job.compression);
    }
    // The others restore what the first keeps, unless it keeps nothing.
    job.held_from = machine_.prefix() == nullptr || job.cuts.empty() ? std::ssize(job.answers) : 1;
    for (int64_t i = 0; i < job.held_from; ++i) schedule(*job.answers[static_cast<size_t>(i)]);
    close_departed();
}

void EngineLoop::refuse(std::unique_ptr<Job> fresh, const std::optional<Failed>& failure) {
    Job& job = *fresh;
    jobs_.emplace(job.id, std::move(fresh));
    ++stats_.submitted;
    job.held_from = std::ssize(job.answers);
    for (const auto& answer : job.answers) {
        answer->failure = failure;
        departed_.emplace_back(answer.get(), Leaving::cancelled);
    }
    close_departed();
}

void EngineLoop::schedule(Answer& answer) {
    const Job& job = answer.job();
    ScheduledRequest request;
    request.prompt = job.prompt.tokens;
    request.max_tokens = job.max_tokens;
    request.session = job.share;
    request.priority = job.priority;
    request.prompt_logits = job.prompt_logprobs && answer.index() == 0;
    request.deadline_us = job.deadline_us;
    if (machine_.cache().delta().any() && machine_.prefix() != nullptr) request.stops = job.cuts;
    try {
        answer.scheduled = scheduler_.submit(std::move(request), now_us());
        answers_.emplace(answer.scheduled, &answer);
        waits_for(answer, std::ssize(job.prompt.tokens));
        if (!loading) cached(answer);  // which may be fewer
    } catch (const Error& error) {
        answer.failure = Failed{error.kind(), error.what()};
        departed_.emplace_back(&answer, Leaving::cancelled);
    }
}

void EngineLoop::release_held(Job& job) {
    const auto count = std::ssize(job.answers);
    for (int64_t i = std::exchange(job.held_from, count); i < count; ++i)
        schedule(*job.answers[static_cast<size_t>(i)]);
}

// Going.

void EngineLoop::cancel(RequestId id) {
    const auto found = jobs_.find(id);
    if (found == jobs_.end()) return;
    cancel(*found->second);
    close_departed();
}

void EngineLoop::cancel(Job& job) {
    const auto count = std::ssize(job.answers);
    for (int64_t i = std::exchange(job.held_from, count); i < count; ++i)
        departed_.emplace_back(job.answers[static_cast<size_t>(i)].get(), Leaving::cancelled);
    for (const auto& answer : job.answers)
        if (answer->scheduled != 0) scheduler_.cancel(answer->scheduled);
}

void EngineLoop::expire() {
    do {
        close_departed();  // brings up answers that were held back, which are late as well
        scheduler_.expire(now_us());
    } while (!departed_.empty());
}

/// The request's own fault, or bad luck: it ends, and nobody else.
void EngineLoop::fail(Answer& answer, ErrorKind kind, const std::string& message) {
    if (!answer.failure) answer.failure = Failed{kind, message};
    scheduler_.cancel(answer.scheduled);
}

/// Last events of those that have left.
void EngineLoop::close_departed() {
    for (size_t i = 0; i < departed_.size(); ++i) {
        const auto [answer, why] = departed_[i];
        Job& job = answer->job();
        answer->scheduled = 0;
        if (answer->index() == 0) release_held(job);
        if (answer->start_us < 0) --waiting;
        waits_for(*answer, 0);
        if (why == Leaving::deadline) answer->failure = job.late();
        if (why == Leaving::cancelled) answer->reason = FinishReason::cancelled;
        ++(answer->failure ? stats_.failed : why == Leaving::cancelled ? stats_.cancelled : stats_.finished);
        answer->close(now_us(), version_, attention_window_);
        if (job.sink_failed) cancel(job);
        if (job.open == 0) jobs_.erase(job.id);
    }
    departed_.clear();
}

void EngineLoop::end_all(const Failed* failure, std::vector<std::unique_ptr<Job>> never_added) {
    for (auto& job : never_added) jobs_.emplace(job->id, std::move(job));
    for (const auto& [id, job] : jobs_)
        for (const auto& answer : job->answers) {
            if (answer->closed()) continue;
            if (failure != nullptr && !answer->failure) answer->failure = *failure;
            answer->reason = FinishReason::cancelled;
            answer->close(now_us(), version_, attention_window_);
        }
    answers_.clear();
    departed_.clear();
    jobs_.clear();
    waiting_tokens = 0;
}

// The prefix cache's part.

SchedulerHooks EngineLoop::hooks() {
    SchedulerHooks hooks;
    hooks.cached = [this](RequestId id, std::span<const int32_t>) { return cached(answer_of(id)); };
    hooks.restore = [this](RequestId id, std::span<const int32_t>, SequenceState& state) {
        restore(answer_of(id), state);
    };
    hooks.computed = [this](RequestId id, std::span<const int32_t>, const SequenceState& state) {
        computed(answer_of(id), state);
    };
    hooks.evict = [this](RequestId id, int32_t pages) { evict(answer_of(id), pages); };
    hooks.leave = [this](RequestId id, Leaving why, std::span<const int32_t> tokens, const SequenceState* state) {
        leave(id, why, tokens, state);
    };
    return hooks;
}

/// The scheduler's hooks must not throw: what does ends the engine after the step.
template <class Action>
void EngineLoop::guarded(const Action& action) {
    if (fault_) return;
    try {
        action();
    } catch (...) {
        fault_ = std::current_exception();
    }
}

// An answer that was preempted restores at most its prompt: the answer's K/V are computed again by the kernels of
// decoding, so that they are what they were.

PrefixRequest EngineLoop::prefix_request(const Job& job, std::span<const int32_t> tokens) const {
    return job.prefix(tokens, machine_.model().info().vocab_size);
}

int64_t EngineLoop::cached(Answer& answer) {
    PrefixCache* prefix = machine_.prefix();
    if (prefix == nullptr || reads_whole_prompt(answer)) return 0;
    if (answer.cached_at != cache_changes_)
        guarded([&] {
            const Job& job = answer.job();
            const PrefixMatch match = prefix->find(prefix_request(job, job.prompt.tokens));
            const int64_t loaded = int64_t{match.pages_to_load} * machine_.options().page_rows;
            answer.cached_tokens = std::max<int64_t>(0, match.cached - loaded);
            answer.cached_at = cache_changes_;
            if (answer.start_us < 0) waits_for(answer, std::ssize(job.prompt.tokens) - match.cached);
        });
    return answer.cached_tokens;
}

/// So many tokens are to be read for it; the sum over all that have not begun is told.
void EngineLoop::waits_for(Answer& answer, int64_t tokens) {
    waiting_tokens += tokens - std::exchange(answer.waits_for, tokens);
}

void EngineLoop::restore(Answer& answer, SequenceState& state) {
    const bool first = answer.start_us < 0;
    if (first) {
        answer.start_us = now_us();
        --waiting;
        waits_for(answer, 0);
        stats_.prompt_tokens += answer.usage.prompt;
    }
    state.set_gaps(answer.job().gaps);
    PrefixCache* prefix = machine_.prefix();
    if (prefix == nullptr || reads_whole_prompt(answer)) return;
    guarded([&] {
        const Job& job = answer.job();
        PrefixMatch match = prefix->attach(prefix_request(job, job.prompt.tokens), state);
        const int64_t vocab = machine_.model().info().vocab_size;  // keys of tokens behind gaps, for people
        for (int32_t* token : {&match.cached_token, &match.prompt_token})
            if (*token >= 0) *token = static_cast<int32_t>(*token % vocab);
        answer.computed = match.cached;
        ++cache_changes_;
        if (!first) return;
        answer.usage.cached = match.cached;
        if (match.loaded) answer.fetch_us = now_us() - answer.start_us;
        answer.cache_note = match.why();
        stats_.cached_tokens += match.cached;
    });
}

void EngineLoop::computed(Answer& answer, const SequenceState& state) {
    if (machine_.prefix() == nullptr) return;
    Job& job = answer.job();
    const int64_t before = std::exchange(answer.computed, state.length());
    // After a step the rings hold what they held at any length in it, so that none ends at a cut for its own sake,
    // unless there is recurrent state: ScheduledRequest::stops.
    for (auto cut = std::upper_bound(job.cuts.begin(), job.cuts.end(), before);
         cut != job.cuts.end() && *cut <= state.length(); ++cut)
        if (state.can_truncate(*cut)) keep_prompt(job, state, *cut);
}

void EngineLoop::keep_prompt(Job& job, const SequenceState& state, int64_t length) {
    const std::vector<int64_t>& ends = job.prompt.message_ends;
    const bool opening = job.prompt.opens_with_system && !ends.empty() && length == ends[0];
    const bool end =
        length + 1 == std::ssize(job.prompt.tokens) || std::binary_search(ends.begin(), ends.end(), length);
    publish(job, job.prompt.tokens, state,
            opening ? PrefixCache::Mark::pinned
            : end   ? PrefixCache::Mark::message
                    : PrefixCache::Mark::interval,
            length);
    if (length == job.cuts.back()) job.prompt_kept = true;
}

void EngineLoop::publish(const Job& job, std::span<const int32_t> tokens, const SequenceState& state,
                         PrefixCache::Mark mark, int64_t length) {
    guarded([&] {
        machine_.prefix()->publish(prefix_request(job, tokens), state, mark, length);
        ++cache_changes_;
    });
}

void EngineLoop::leave(RequestId id, Leaving why, std::span<const int32_t> tokens, const SequenceState* state) {
    if (why == Leaving::preempted) return;
    Answer& answer = answer_of(id);
    const Job& job = answer.job();
    const bool complete = why == Leaving::finished || why == Leaving::length;
    // Of several answers at most one will be gone on with: not worth a checkpoint each.
    if (complete && machine_.prefix() != nullptr && job.answers.size() == 1 && !job.deterministic && !damage_)
        publish(job, tokens, *state, PrefixCache::Mark::message, state->length());
    if (speculator_) speculator_->end(static_cast<uint64_t>(id));
    answers_.erase(id);
    departed_.emplace_back(&answer, why);
}

void EngineLoop::evict(Answer& answer, int32_t pages) {
    PrefixCache* prefix = machine_.prefix();
    if (prefix == nullptr) return;
    const bool side = answer.job().side && !evict_anything_;
    const PagePool& pool = machine_.cache().pool();
    const int32_t spare = pool.spare_count();  // all or nothing, as far as it can be foreseen
    if (spare < pages) return;
    const int32_t some = std::min({kEvictAtOnce, pool.size() / 64, spare});
    guarded([&] {
        prefix->make_room(pool.free_count() + std::max(pages, some), side);
        ++cache_changes_;
    });
}

void EngineLoop::forget() {
    ++cache_changes_;
    if (PrefixCache* prefix = machine_.prefix()) prefix->forget();
}

/// Until it is looked up again.
void EngineLoop::all_is_to_be_read() {
    ++cache_changes_;
    for (const auto& [id, answer] : answers_)
        if (answer->start_us < 0) waits_for(*answer, std::ssize(answer->job().prompt.tokens));
}

void EngineLoop::flush() {
    all_is_to_be_read();
    if (PrefixCache* prefix = machine_.prefix()) prefix->flush();
}

void EngineLoop::change_weights(int64_t version) {
    version_ = version;
    all_is_to_be_read();
    renew_drafter();
}

/// Requests are there but none can run: what the cache holds is in the way.
void EngineLoop::relieve() {
    if (!std::exchange(evict_anything_, true) && machine_.prefix() != nullptr) return;  // first for side requests
    const PrefixCache::Stats held = machine_.prefix() != nullptr ? machine_.prefix()->stats() : PrefixCache::Stats{};
    if (held.pages + held.checkpoints == 0)
        riptide::fail(ErrorKind::system, "no request can run, with {} of {} K/V pages free: this is a bug",
                      machine_.cache().pool().free_count(), machine_.cache().pool().size());
    forget();
    evict_anything_ = false;
}

void EngineLoop::report(EngineStats& stats) const {
    stats = stats_;
    stats.waiting = waiting;
    stats.waiting_tokens = waiting_tokens;
    stats.running = scheduler_.running();
    stats.device_peak = machine_.device_peak();
    stats.preempted = scheduler_.counts().preempted;
    stats.recomputed_rows = scheduler_.counts().recomputed_rows;
    const PagePool& pool = machine_.cache().pool();
    stats.pages = pool.size();
    stats.free_pages = pool.free_count();
    stats.used_pages = pool.used_count();
    stats.cached_pages = pool.kept_count();
    if (PrefixCache* prefix = machine_.prefix()) {
        stats.checkpoints = prefix->stats().checkpoints;
        stats.checkpoint_bytes = prefix->stats().state_bytes;
        stats.damaged_records = prefix->stats().damaged;
    }
    if (speculator_) {
        stats.drafted_rows = speculator_->stats().drafted;
        stats.accepted_rows = speculator_->stats().accepted;
        stats.draft_slots.clear();
        for (const SpeculationStats::Slot& slot : speculator_->stats().slots)
            stats.draft_slots.push_back({slot.reached, slot.accepted});
    }
    if (const HostStore* host = machine_.host_tier()) stats.host_tier_bytes = host->bytes();
    if (const SharedStore* shared = machine_.shared_tier()) {
        const SharedStore::Stats s = shared->stats();
        stats.shared_ready = machine_.prefix() != nullptr && machine_.prefix()->shares() ? 1 : 0;
        stats.shared_hits = s.hits;
        stats.shared_misses = s.misses;
        stats.shared_errors = s.errors;
        stats.shared_rejected = s.rejected;
        stats.shared_written = s.written;
        stats.shared_dropped = s.dropped;
        stats.shared_read_bytes = s.bytes_read;
        stats.shared_written_bytes = s.bytes_written;
    }
    if (const DiskStore* disk = machine_.disk_tier()) {
        stats.disk_tier_bytes = disk->bytes();
        stats.failed_writes = disk->stats().failed_writes;
    }
    stats.version = version_;
}

}  // namespace riptide
