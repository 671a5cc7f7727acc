#include "engine/scheduler.h"

#include <algorithm>
#include <optional>
#include <utility>

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
    int64_t rows = 0;    // without drafts
    int64_t drafts = 0;  // the first of draft_tokens
    std::vector<int32_t> fed_tokens, fed_parents;
    bool cancelled = false;
    const StepResult* result = nullptr;

    int64_t pending() const { return std::ssize(tokens) - state->length(); }
    bool in_prompt() const { return state->length() < prompt_size; }
    bool decodes() const { return !in_prompt() && pending() == 1; }
    bool recomputes_answer() const { return !in_prompt() && pending() > 1; }
    int64_t answer() const { return std::ssize(tokens) - prompt_size; }
    bool wants_logits() const { return rows == pending(); }
    int64_t worst_tokens() const { return prompt_size + asked.max_tokens; }
    int victim_priority(int32_t max_preemptions) const {
        return preemptions >= max_preemptions ? ScheduledRequest::kHighest : asked.priority;
    }
};

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

RequestId Scheduler::submit(ScheduledRequest request, int64_t now_us) {
    now_ = std::max(now_, now_us);
    const int64_t prompt = std::ssize(request.prompt);
    RT_CHECK(prompt >= 1, "the prompt is empty");
    RT_CHECK(request.max_tokens >= 1, "max_tokens is {}, expected at least 1", request.max_tokens);
    RT_CHECK(request.priority >= 0 && request.priority <= ScheduledRequest::kHighest,
             "priority is {}, expected 0 to {}", request.priority, ScheduledRequest::kHighest);
    const int64_t room = cache_.has_pages() ? int64_t{cache_.pool().size()} * cache_.options().page_rows : INT32_MAX;
    RT_CHECK(prompt <= room && request.max_tokens <= room - prompt,
             "a prompt of {} tokens and an answer of up to {} do not fit the K/V cache of {} tokens", prompt,
             request.max_tokens, room);
    if (std::ssize(waiting_) >= options_.max_queue) {
        ++counts_.refused;
        const int64_t wait = std::max<int64_t>({1000, start_gap_, now_ - last_start_});
        throw QueueFull(fmt::format("{} requests wait already; try again in {:.1f} s", waiting_.size(),
                                    static_cast<double>(wait) / 1e6),
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
    if (found->second->rows > 0) found->second->cancelled = true;  // the device may be writing its pages
    else remove(*found->second, Leaving::cancelled);
}

std::span<const int32_t> Scheduler::tokens(RequestId id) const { return requests_.at(id)->tokens; }

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

/// Whose pages go first.
Scheduler::Request* Scheduler::last_running() const {
    const auto rank = [&](const Request* r) { return std::pair(r->victim_priority(options_.max_preemptions), -r->id); };
    const auto last = std::min_element(running_.begin(), running_.end(),
                                       [&](const Request* a, const Request* b) { return rank(a) < rank(b); });
    return last == running_.end() ? nullptr : *last;
}

// Coming and going.

void Scheduler::expire() {
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
    const int64_t cached = hooks_.cached ? hooks_.cached(r.tokens) : 0;
    const int64_t worst = cache_.pages_for(r.worst_tokens()),
                  now = std::min<int64_t>(worst, cache_.pages_for(std::ssize(r.tokens)) + 1);
    int64_t wanted = (options_.optimistic ? now : worst) - cached / cache_.options().page_rows;
    for (const Request* other : running_) wanted += promised(*other);
    return make_free(wanted);
}

bool Scheduler::make_free(int64_t pages) {
    const int64_t lacking = pages - cache_.pool().free_count();
    if (lacking > 0 && hooks_.evict) hooks_.evict(static_cast<int32_t>(lacking));
    return pages <= cache_.pool().free_count();
}

/// Preempts requests of lower priority for one that waits, if that is enough.
bool Scheduler::make_room(const Request& r) {
    const auto lower = [&](const Request* other) {
        return other->victim_priority(options_.max_preemptions) < r.asked.priority;
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
        if (r->asked.priority > above && (first == nullptr || before(*r, *first))) first = r;
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
    if (r.state && r.state->reserved() > 0) r.state->commit_prefix(0);
    if (hooks_.leave) hooks_.leave(r.id, why, r.tokens, r.state ? &*r.state : nullptr);
    std::erase(r.state ? running_ : waiting_, &r);
    share_.leave(r.asked.session);
    requests_.erase(r.id);
}

// A step.

const StepPlan& Scheduler::plan(int64_t now_us) {
    RT_ASSERT(!in_step_);
    now_ = std::max(now_, now_us);
    ++step_;
    in_step_ = true;
    expire();
    admit();
    plan_decode();
    plan_prompts();
    plan_drafts();
    build_items();
    return plan_;
}

/// Reserves rows beyond those that the request has in this step, up to `most`; preempts those that come after it for
/// the first of them. Returns how many.
int64_t Scheduler::reserve(Request& r, int64_t most) {
    const PagePool& pool = cache_.pool();
    for (;;) {
        int64_t rows = most;
        make_free(r.state->pages_needed(r.rows + most));
        while (rows > 0 && r.state->pages_needed(r.rows + rows) > pool.free_count())
            rows -= std::min(rows, (r.state->length() + r.rows + rows - 1) % cache_.options().page_rows + 1);
        if (rows == 0 && make_free(r.state->pages_needed(r.rows + 1))) rows = 1;
        if (rows > 0) {
            RT_ASSERT(r.state->try_reserve(r.rows + rows));
            r.rows += rows;
            return rows;
        }
        Request* victim = last_running();  // r runs, so there is one
        if (r.rows > 0 || victim == &r) return 0;
        preempt(*victim);
    }
}

void Scheduler::plan_decode() {
    Requests chosen;
    for (Request* r : running_)
        if (r->decodes()) chosen.push_back(r);
    const bool recomputes =
        std::any_of(running_.begin(), running_.end(), [](const Request* r) { return r->recomputes_answer(); });
    const int64_t most = options_.decode_rows - (recomputes ? std::max(1, options_.decode_rows / 4) : 0);
    if (std::ssize(chosen) > most) {
        std::stable_sort(chosen.begin(), chosen.end(),
                         [](const Request* a, const Request* b) { return a->last_step < b->last_step; });
        chosen.resize(static_cast<size_t>(most));
    }
    // Those that may be preempted last reserve first.
    std::stable_sort(chosen.begin(), chosen.end(), [&](const Request* a, const Request* b) {
        const int pa = a->victim_priority(options_.max_preemptions), pb = b->victim_priority(options_.max_preemptions);
        return pa != pb ? pa > pb : a->id < b->id;
    });
    decode_left_ = options_.decode_rows;
    for (Request* r : chosen)
        if (r->state && reserve(*r, 1) > 0) {
            --decode_left_;
            r->last_step = step_;
            share_.charge(r->asked.session, 1);
        }
}

/// Prompts, and answers that are computed again, a quantum at a time.
void Scheduler::plan_prompts() {
    int64_t prefill_left = decode_left_ < options_.decode_rows ? options_.prefill_rows_beside : options_.prefill_rows;
    Requests stuck;
    const auto wanted = [&](const Request& r) -> int64_t {
        if (r.decodes() || std::find(stuck.begin(), stuck.end(), &r) != stuck.end()) return 0;
        const int64_t rows = r.in_prompt() ? std::min(prefill_left, r.prompt_size - r.state->length() - r.rows)
                                           : std::min(decode_left_, r.pending() - r.rows);
        return std::min<int64_t>({rows, options_.quantum, cache_.options().max_step_rows - r.rows});
    };
    for (;;) {
        Request* next = nullptr;
        for (Request* r : running_)
            if (wanted(*r) > 0 && (next == nullptr || before(*r, *next))) next = r;
        if (next == nullptr) return;
        const int64_t rows = reserve(*next, wanted(*next));
        if (rows == 0) stuck.push_back(next);
        (next->in_prompt() ? prefill_left : decode_left_) -= rows;
        next->last_step = step_;
        const int64_t end = next->state->length() + next->rows,
                      again = std::clamp<int64_t>(next->computed_once - (end - rows), 0, rows);
        counts_.recomputed_rows += again;
        share_.charge(next->asked.session, rows - again);
    }
}

void Scheduler::plan_drafts() {
    int64_t drafters = std::count_if(running_.begin(), running_.end(),
                                     [](const Request* r) { return r->rows > 0 && !r->draft_tokens.empty(); });
    for (Request* r : running_) {
        if (r->rows == 0 || r->draft_tokens.empty()) continue;
        int64_t rows = std::min<int64_t>(
            {decode_left_ / drafters--, std::ssize(r->draft_tokens), cache_.options().max_step_rows - r->rows});
        while (rows > 0 && !r->state->try_reserve(r->rows + rows)) --rows;
        r->drafts = rows;
        decode_left_ -= rows;
        counts_.draft_rows += rows;
        share_.charge(r->asked.session, rows);
    }
}

void Scheduler::build_items() {
    plan_ = {};
    for (Request* r : running_) {
        if (r->rows == 0) continue;
        StepItem item{.sequence = &*r->state,
                      .tokens = std::span(r->tokens).subspan(static_cast<size_t>(r->state->length()),
                                                             static_cast<size_t>(r->rows)),
                      .logits = r->wants_logits() ? StepRows::Logits::last : StepRows::Logits::none};
        if (r->drafts > 0) {
            r->fed_tokens.assign(1, r->tokens.back());
            r->fed_tokens.insert(r->fed_tokens.end(), r->draft_tokens.begin(), r->draft_tokens.begin() + r->drafts);
            r->fed_parents.clear();
            if (!r->draft_parents.empty()) r->fed_parents.push_back(-1);
            for (int64_t i = 0; i < r->drafts && !r->draft_parents.empty(); ++i)
                r->fed_parents.push_back(r->draft_parents[static_cast<size_t>(i)] + 1);
            item = {&*r->state, r->fed_tokens, r->fed_parents, StepRows::Logits::all};
        }
        counts_.rows += r->rows + r->drafts;
        r->computed_once = std::max(r->computed_once, r->state->length() + r->rows);
        (r->in_prompt() ? plan_.prefill : plan_.decode).push_back(item);
        (r->in_prompt() ? plan_.prefill_ids : plan_.decode_ids).push_back(r->id);
    }
    plan_.stalled = plan_.decode.empty() && plan_.prefill.empty() && !requests_.empty();
    counts_.stalled += plan_.stalled;
}

void Scheduler::settle(std::span<const StepResult> results) {
    RT_ASSERT(in_step_);
    for (const StepResult& result : results) {
        const auto found = requests_.find(result.id);
        RT_ASSERT(found != requests_.end() && found->second->rows > 0 && found->second->result == nullptr);
        found->second->result = &result;
    }
    const Requests stepped = running_;
    for (Request* r : stepped)
        if (r->rows > 0) finish_step(*r, std::exchange(r->result, nullptr));
    in_step_ = false;
}

void Scheduler::finish_step(Request& r, const StepResult* result) {
    const int64_t rows = std::exchange(r.rows, 0), drafts = std::exchange(r.drafts, 0);
    r.draft_tokens.clear();
    r.draft_parents.clear();
    if (r.cancelled) return remove(r, Leaving::cancelled);
    const bool last = rows == r.pending();
    RT_ASSERT(last == (result != nullptr));
    if (!last || result->path.empty()) {
        r.state->commit_prefix(rows);
    } else {
        RT_ASSERT(result->path[0] == 0 && rows == 1);
        const auto most = static_cast<size_t>(1 + r.asked.max_tokens - r.answer());
        const auto path = result->path.first(std::min(result->path.size(), most));
        for (size_t i = 1; i < path.size(); ++i) {
            const auto row = static_cast<size_t>(path[i]);
            RT_ASSERT(path[i] >= 1 && path[i] <= drafts);
            RT_ASSERT((r.fed_parents.empty() ? path[i] - 1 : r.fed_parents[row]) == path[i - 1]);
            r.tokens.push_back(r.fed_tokens[row]);
        }
        r.state->commit(path);
    }
    if (!last) return;
    RT_ASSERT(result->next >= 0 || result->end);
    if (result->next >= 0 && r.answer() < r.asked.max_tokens) r.tokens.push_back(result->next);
    if (result->end) remove(r, Leaving::finished);
    else if (r.answer() >= r.asked.max_tokens) remove(r, Leaving::length);
}

void Scheduler::abandon() {
    RT_ASSERT(in_step_);
    const Requests stepped = running_;
    for (Request* r : stepped) {
        if (r->rows == 0) continue;
        if (r->state->reserved() > 0) r->state->commit_prefix(0);
        r->rows = r->drafts = 0;
        r->draft_tokens.clear();
        r->draft_parents.clear();
        if (r->cancelled) remove(*r, Leaving::cancelled);
    }
    in_step_ = false;
}

}  // namespace riptide
