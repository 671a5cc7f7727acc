// Scheduler: who waits, who runs, who makes room. scheduler_step.cpp has the rows of a step.
#include <algorithm>
#include <utility>

#include "engine/scheduler/scheduler_request.h"

namespace riptide {

namespace {

/// How far, in quanta, a session may be ahead or behind.
constexpr int64_t kLagQuanta = 8;

void check(const SchedulerOptions& o) {
    const auto positive = [](const char* name, int64_t value) {
        RT_CHECK(value >= 1, "scheduler: {} is {}, expected at least 1", name, value);
    };
    RT_CHECK(o.decode_rows >= 2, "scheduler: decode_rows is {}, expected at least 2", o.decode_rows);
    positive("prefill_rows", o.prefill_rows);
    positive("prefill_rows_beside", o.prefill_rows_beside);
    positive("quantum", o.quantum);
    positive("max_queue", o.max_queue);
    positive("aging_us", o.aging_us);
    RT_CHECK(o.max_running >= 0 && o.max_preemptions >= 0,
             "scheduler: max_running {} and max_preemptions {} must not be negative", o.max_running, o.max_preemptions);
}

}  // namespace

Scheduler::Scheduler(KvCache& cache, const SchedulerOptions& options, SchedulerHooks hooks)
    : cache_(cache), options_(options), hooks_(std::move(hooks)), share_(kLagQuanta * std::max(1, options.quantum)) {
    check(options_);
    if (options_.max_running == 0) options_.max_running = cache.options().max_sequences;
}

Scheduler::~Scheduler() = default;

int64_t Scheduler::retry_after_us() const { return std::max<int64_t>({1000, start_gap_, now_ - last_start_}); }

int64_t Scheduler::longest_prompt() const {
    int64_t longest = 0;
    for (const Request* r : running_)
        if (r->in_prompt()) longest = std::max(longest, r->prompt_size);
    return longest;
}

int64_t Scheduler::begun() const {
    return running() + std::count_if(waiting_.begin(), waiting_.end(), [](const Request* r) { return r->begun(); });
}

RequestId Scheduler::submit(ScheduledRequest request, int64_t now_us) {
    now_ = std::max(now_, now_us);
    const int64_t prompt = std::ssize(request.prompt);
    RT_CHECK(prompt >= 1, "the prompt is empty");
    RT_CHECK(request.max_tokens >= 0, "max_tokens is {}, expected at least 0", request.max_tokens);
    RT_CHECK(request.priority >= 0 && request.priority <= ScheduledRequest::kHighest,
             "priority is {}, expected 0 to {}", request.priority, ScheduledRequest::kHighest);
    const int64_t room = cache_.has_pages() ? int64_t{cache_.pool().size()} * cache_.options().page_rows : INT32_MAX;
    RT_CHECK(prompt <= room && request.max_tokens <= room - prompt,
             "a prompt of {} tokens and an answer of up to {} do not fit the K/V cache of {} tokens", prompt,
             request.max_tokens, room);
    if (std::ssize(waiting_) >= options_.max_queue) {
        ++counts_.refused;
        const int64_t wait = std::max<int64_t>(1000, retry_after_us());
        throw QueueFull(
            fmt::format("{} requests wait already; try again in {} s", waiting_.size(), (wait + 999'999) / 1'000'000),
            wait);
    }
    auto r = std::make_unique<Request>();
    r->id = ++last_id_;
    r->tokens = std::exchange(request.prompt, {});
    r->asked = std::move(request);
    r->prompt_size = prompt;
    r->arrival = now_;
    share_.join(r->asked.session);
    waiting_.push_back(r.get());
    requests_.emplace(r->id, std::move(r));
    return last_id_;
}

void Scheduler::cancel(RequestId id) {
    const auto found = requests_.find(id);
    if (found == requests_.end()) return;
    if (found->second->rows > 0 && in_step_) found->second->cancelled = true;  // the device may be writing its pages
    else remove(*found->second, Leaving::cancelled);
}

std::span<const int32_t> Scheduler::tokens(RequestId id) const { return requests_.at(id)->tokens; }

const SequenceState* Scheduler::state(RequestId id) const {
    const std::optional<SequenceState>& state = requests_.at(id)->state;
    return state ? &*state : nullptr;
}

std::vector<RequestId> Scheduler::decoding() const {
    std::vector<RequestId> ids;
    for (const Request* r : running_)
        if (r->decodes()) ids.push_back(r->id);
    return ids;
}

void Scheduler::propose(RequestId id, std::span<const int32_t> tokens, std::span<const int32_t> parents) {
    Request& r = *requests_.at(id);
    RT_ASSERT(!in_step_ && r.state && r.decodes() && (parents.empty() || parents.size() == tokens.size()));
    for (size_t i = 0; i < parents.size(); ++i) RT_ASSERT(parents[i] >= -1 && parents[i] < static_cast<int32_t>(i));
    r.draft_tokens.assign(tokens.begin(), tokens.end());
    r.draft_parents.assign(parents.begin(), parents.end());
}

void Scheduler::sit_out(RequestId id, bool out) {
    if (const auto found = requests_.find(id); found != requests_.end()) found->second->sits_out = out;
}

// Order.

int64_t Scheduler::age_class(const Request& r) const {
    return std::min<int64_t>(ScheduledRequest::kHighest, r.asked.priority + (now_ - r.arrival) / options_.aging_us);
}

bool Scheduler::before(const Request& a, const Request& b) const {
    const int64_t class_a = age_class(a), class_b = age_class(b);
    if (class_a != class_b) return class_a > class_b;
    const int64_t served_a = share_.served(a.asked.session), served_b = share_.served(b.asked.session);
    return served_a != served_b ? served_a < served_b : a.id < b.id;
}

/// Whose pages go first, of those whose pages can.
Scheduler::Request* Scheduler::last_running() const {
    const auto rank = [&](const Request* r) { return std::pair(r->victim_priority(options_.max_preemptions), -r->id); };
    Request* last = nullptr;
    for (Request* r : running_)
        if (!r->reading && (last == nullptr || rank(r) < rank(last))) last = r;
    return last;
}

// Coming and going.

void Scheduler::expire(int64_t now_us) {
    RT_ASSERT(!in_step_);
    now_ = std::max(now_, now_us);
    Requests late;
    for (const auto& [id, r] : requests_)
        if (r->asked.deadline_us <= now_) late.push_back(r.get());
    for (Request* r : late) remove(*r, Leaving::deadline);
}

/// Pages that a running request will still take, as far as admission looks ahead.
int64_t Scheduler::promised(const Request& r) const {
    const int64_t worst = r.state->pages_needed(r.worst_tokens() - r.state->length());
    return options_.optimistic ? std::min<int64_t>(worst, r.state->pages_needed(r.pending()) + 1) : worst;
}

bool Scheduler::fits(const Request& r) {
    if (std::ssize(running_) >= options_.max_running || cache_.free_slots() == 0) return false;
    if (!cache_.has_pages()) return true;
    const int64_t cached = hooks_.cached ? hooks_.cached(r.id, r.tokens) : 0;
    const int64_t worst = cache_.pages_for(r.worst_tokens()),
                  now = std::min<int64_t>(worst, cache_.pages_for(std::ssize(r.tokens)) + 1);
    int64_t wanted = (options_.optimistic ? now : worst) - cached / cache_.options().page_rows;
    for (const Request* other : running_) wanted += promised(*other);
    return make_free(r, wanted);
}

bool Scheduler::make_free(const Request& r, int64_t pages) {
    const int64_t lacking = pages - cache_.pool().free_count();
    if (lacking > 0 && hooks_.evict) hooks_.evict(r.id, static_cast<int32_t>(lacking));
    return pages <= cache_.pool().free_count();
}

/// Preempts requests of lower priority for one that waits, if that is enough.
bool Scheduler::make_room(const Request& r) {
    const auto lower = [&](const Request* other) {
        return !other->reading && other->victim_priority(options_.max_preemptions) < r.asked.priority;
    };
    // What would be left without all of them; only then is it worth to begin.
    int64_t pages = cache_.pool().free_count(), slots = cache_.free_slots(), kept = 0;
    int64_t wanted =
        options_.optimistic ? cache_.pages_for(std::ssize(r.tokens)) + 1 : cache_.pages_for(r.worst_tokens());
    wanted = std::min<int64_t>(wanted, cache_.pages_for(r.worst_tokens()));
    bool any = false;
    for (const Request* other : running_) {
        if (!lower(other)) {
            ++kept;
            wanted += promised(*other);
            continue;
        }
        any = true;
        ++slots;
        for (const int32_t page : other->state->pages()) pages += cache_.pool().refcount(page) == 1;
    }
    if (!any || slots == 0 || kept >= options_.max_running || (cache_.has_pages() && wanted > pages)) return false;
    do {
        Request* victim = last_running();
        if (victim == nullptr || !lower(victim)) return false;  // a hook kept what the preempted had
        preempt(*victim);
    } while (!fits(r));
    return true;
}

/// The first that waits, of those with a priority above `above`; null if there is none.
Scheduler::Request* Scheduler::first_waiting(int above) const {
    Request* first = nullptr;
    for (Request* r : waiting_)
        if (r->asked.priority > above && (admit_new_ || r->begun()) && (first == nullptr || before(*r, *first)))
            first = r;
    return first;
}

void Scheduler::admit() {
    while (Request* first = first_waiting(-1)) {
        if (!fits(*first) && !make_room(*first)) {
            // It waits until others end. One of higher priority need not: it may take the place of lower ones.
            first = first_waiting(first->asked.priority);
            if (first == nullptr || !make_room(*first)) return;
        }
        start(*first);
    }
}

void Scheduler::start(Request& r) {
    if (r.preemptions == 0) {
        const int64_t gap = now_ - std::max(last_start_, r.arrival);
        start_gap_ = (7 * start_gap_ + gap) / 8;
        last_start_ = now_;
    }
    std::erase(waiting_, &r);
    running_.push_back(&r);
    r.state.emplace(cache_);
    if (hooks_.restore) hooks_.restore(r.id, r.tokens, *r.state);
    RT_ASSERT(r.pending() > 0);
    r.computed_once = std::max(r.computed_once, r.state->length());
}

void Scheduler::preempt(Request& r) {
    RT_ASSERT(!r.reading);
    if (r.state->reserved() > 0) r.state->commit_prefix(0);  // planned for this step, but not run
    if (hooks_.leave) hooks_.leave(r.id, Leaving::preempted, r.tokens, &*r.state);
    r.state.reset();
    r.rows = r.drafts = 0;
    r.draft_tokens.clear();
    r.draft_parents.clear();
    ++r.preemptions;
    ++counts_.preempted;
    std::erase(running_, &r);
    waiting_.push_back(&r);
}

void Scheduler::remove(Request& r, Leaving why) {
    if (r.state && !r.reading && r.state->reserved() > 0) r.state->commit_prefix(0);
    if (hooks_.leave) hooks_.leave(r.id, why, r.tokens, r.state && !r.reading ? &*r.state : nullptr);
    std::erase(r.state ? running_ : waiting_, &r);
    if (r.reading) {
        left_behind_.push_back(std::move(*r.state));
        if (--reading_ == 0) left_behind_.clear();  // nobody is left: no more of that step will run
    }
    share_.leave(r.asked.session);
    requests_.erase(r.id);
}

}  // namespace riptide
