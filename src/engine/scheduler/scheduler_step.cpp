// Scheduler: the rows of a step and what becomes of them.
#include <algorithm>
#include <utility>

#include "engine/scheduler/scheduler_request.h"

namespace riptide {

const StepPlan& Scheduler::plan(int64_t now_us) {
    expire(now_us);
    ++step_;
    in_step_ = true;
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
        make_free(r, r.state->pages_needed(r.rows + most));
        while (rows > 0 && r.state->pages_needed(r.rows + rows) > pool.free_count())
            rows -= std::min(rows, (r.state->length() + r.rows + rows - 1) % cache_.options().page_rows + 1);
        if (rows == 0 && make_free(r, r.state->pages_needed(r.rows + 1))) rows = 1;
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

/// Whether a request would need a spare slot for its recurrent state, and all are taken by others of this step.
bool Scheduler::lacks_spare(const Request& r) const {
    const auto overwritten = [](const Request* other) {
        return other->rows > 0 && other->in_prompt() && other->state->length() > 0;
    };
    return cache_.delta().any() && r.rows == 0 && r.state->length() > 0 &&
           std::count_if(running_.begin(), running_.end(), overwritten) >= cache_.delta().spares();
}

/// Prompts, and answers that are computed again, a quantum at a time.
void Scheduler::plan_prompts() {
    int64_t prefill_left = decode_left_ < options_.decode_rows ? options_.prefill_rows_beside : options_.prefill_rows;
    Requests stuck;
    const auto wanted = [&](const Request& r) -> int64_t {
        if (r.in_prompt() && reading_ > 0) return 0;
        if (!r.in_prompt() && !r.recomputes_answer()) return 0;
        if (std::find(stuck.begin(), stuck.end(), &r) != stuck.end()) return 0;
        const int64_t rows = r.in_prompt() ? std::min({prefill_left, r.prompt_left(), r.to_stop()})
                                           : std::min(decode_left_, r.pending() - r.rows);
        if (r.in_prompt() && (lacks_spare(r) || (r.rows > 0 && r.to_stop() == 0))) return 0;
        const bool scored = r.in_prompt() && r.asked.prompt_logits;
        const int64_t most = scored ? options_.scored_rows : cache_.options().max_step_rows;
        return std::min<int64_t>({rows, options_.quantum, most - r.rows});
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
        if (r->rows == 0) {  // a proposal is for one plan
            r->draft_tokens.clear();
            r->draft_parents.clear();
        }
        if (r->draft_tokens.empty()) continue;
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
        if (r->rows == 0 || r->reading) continue;
        StepItem item{.sequence = &*r->state,
                      .tokens = std::span(r->tokens).subspan(static_cast<size_t>(r->state->length()),
                                                             static_cast<size_t>(r->rows)),
                      .logits = r->wants_logits() ? StepRows::Logits::last : StepRows::Logits::none};
        if (r->in_prompt() && r->asked.prompt_logits) item.logits = StepRows::Logits::all;
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
    const bool waits = std::any_of(running_.begin(), running_.end(), [](const Request* r) { return r->sits_out; });
    plan_.stalled = plan_.decode.empty() && plan_.prefill.empty() && reading_ == 0 && !requests_.empty() && !waits;
    counts_.stalled += plan_.stalled;
}

int64_t Scheduler::run_ahead(int64_t most, bool drafts) {
    RT_ASSERT(in_step_ && most >= 1);
    int64_t steps = std::min<int64_t>(most, cache_.options().max_step_rows);
    for (const Request* r : running_) {
        if (r->rows != 1 || r->drafts > 0 || !r->decodes()) return 1;
        if (!drafts) steps = std::min(steps, r->asked.max_tokens - r->answer());
    }
    if (running_.empty()) return 1;
    for (; steps > 1; steps /= 2) {
        int64_t pages = 0;
        for (const Request* r : running_) pages += r->state->pages_needed(steps);
        if (steps > cache_.options().page_rows ? pages <= cache_.pool().free_count()
                                               : make_free(*running_.back(), pages))
            break;
    }
    for (Request* r : running_) RT_ASSERT(steps <= 1 || r->state->try_reserve(steps));
    return std::max<int64_t>(1, steps);
}

void Scheduler::settle(std::span<const StepResult> results, bool prompts_done) {
    RT_ASSERT(in_step_);
    for (const StepResult& result : results) {
        const auto found = requests_.find(result.id);
        RT_ASSERT(found != requests_.end() && found->second->rows > 0 && found->second->result == nullptr);
        found->second->result = &result;
    }
    const Requests stepped = running_;
    if (prompts_done) end_reading();
    for (Request* r : stepped)
        if (r->rows > 0 && (prompts_done || !r->in_prompt())) finish_step(*r, std::exchange(r->result, nullptr));
    if (!prompts_done) keep_reading();
    in_step_ = false;
}

/// The prompts' step goes on, without those who have been cancelled.
void Scheduler::keep_reading() {
    Requests read;
    for (Request* r : running_)
        if (r->rows > 0) read.push_back(r);  // all others have been settled
    for (Request* r : read) r->reading = true;
    reading_ = std::ssize(read);
    for (Request* r : read)
        if (r->cancelled) remove(*r, Leaving::cancelled);
}

/// The prompts' step has ended, for better or worse.
void Scheduler::end_reading() {
    for (Request* r : running_) r->reading = false;
    reading_ = 0;
    left_behind_.clear();
}

void Scheduler::finish_step(Request& r, const StepResult* result) {
    const int64_t rows = std::exchange(r.rows, 0), drafts = std::exchange(r.drafts, 0);
    r.draft_tokens.clear();
    r.draft_parents.clear();
    if (r.cancelled) return remove(r, Leaving::cancelled);
    const bool prompt = r.in_prompt();
    const bool last = rows == r.pending();
    RT_ASSERT(last == (result != nullptr));
    if (last && result->undrawn) {
        RT_ASSERT(!prompt);
        return r.state->commit_prefix(rows - 1);
    }
    if (!last || result->path.empty()) {
        const std::span<const int32_t> ahead = last ? result->ahead : std::span<const int32_t>();
        r.state->commit_prefix(rows + std::ssize(ahead));
        r.tokens.insert(r.tokens.end(), ahead.begin(), ahead.end());
        r.computed_once = std::max(r.computed_once, r.state->length());
        counts_.rows += std::ssize(ahead);
        share_.charge(r.asked.session, std::ssize(ahead));
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
    if (prompt && hooks_.computed) hooks_.computed(r.id, r.tokens, *r.state);
    if (!last) return;
    RT_ASSERT(result->next >= 0 || result->end);
    if (result->next >= 0 && r.answer() < r.asked.max_tokens) r.tokens.push_back(result->next);
    if (result->end) remove(r, Leaving::finished);
    else if (r.answer() >= r.asked.max_tokens) remove(r, Leaving::length);
}

void Scheduler::abandon() {
    RT_ASSERT(in_step_);
    end_reading();
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
