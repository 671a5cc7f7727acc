#include "server/metrics.h"

#include <algorithm>

namespace riptide::server {

namespace {

void put_head(std::string& out, std::string_view name, std::string_view help, std::string_view type) {
    out += fmt::format("# HELP riptide_{} {}\n# TYPE riptide_{} {}\n", name, help, name, type);
}

template <class Number>
void single(std::string& out, std::string_view name, std::string_view help, std::string_view type, Number value) {
    put_head(out, name, help, type);
    out += fmt::format("riptide_{} {}\n", name, value);
}

void draft_part(std::string& out, const EngineStats& s) {
    single(out, "drafted_tokens_total", "Drafted tokens that were checked", "counter", s.drafted_rows);
    single(out, "accepted_tokens_total", "Of them, accepted", "counter", s.accepted_rows);
    const auto by_slot = [&](std::string_view name, std::string_view help, int64_t EngineStats::DraftSlot::*count) {
        put_head(out, name, help, "counter");
        for (size_t i = 0; i < s.draft_slots.size(); ++i)
            out += fmt::format("riptide_{}{{slot=\"{}\"}} {}\n", name, i + 1, s.draft_slots[i].*count);
    };
    by_slot("draft_slot_reached_total", "Steps with a drafted token in this place, and all before it accepted",
            &EngineStats::DraftSlot::reached);
    by_slot("draft_slot_accepted_total", "Of them, steps in which it was accepted too",
            &EngineStats::DraftSlot::accepted);
}

void engine_part(std::string& out, const EngineStats& s, const EngineInfo& info) {
    single(out, "requests_waiting", "Answers that wait for their turn", "gauge", s.waiting);
    single(out, "requests_running", "Answers that are being made", "gauge", s.running);
    single(out, "requests_running_limit", "Answers that can be made at a time", "gauge", info.max_running);
    single(out, "requests_submitted_total", "Requests that the engine has taken", "counter", s.submitted);
    single(out, "requests_refused_total", "Requests that found the queue full", "counter", s.refused);
    single(out, "answers_finished_total", "Answers that are complete", "counter", s.finished);
    single(out, "answers_cancelled_total", "Answers that nobody waited for", "counter", s.cancelled);
    single(out, "answers_failed_total", "Answers that went wrong", "counter", s.failed);
    single(out, "prompt_tokens_total", "Tokens of prompts", "counter", s.prompt_tokens);
    single(out, "prompt_cached_tokens_total", "Tokens of prompts that the prefix cache held", "counter",
           s.cached_tokens);
    single(out, "requests_scoring", "Requests whose prompts are with the scorer", "gauge", s.scoring);
    single(out, "prompts_compressed_total", "Prompts of which only a part was read", "counter", s.compressed);
    single(out, "prompt_scored_tokens_total", "Tokens that the scorer read for them", "counter", s.scored_tokens);
    single(out, "prompt_dropped_tokens_total", "Tokens that were left out", "counter", s.dropped_tokens);
    single(out, "answer_tokens_total", "Tokens of answers", "counter", s.answer_tokens);
    single(out, "formed_rows_total", "Rows of structured output that the device drew for", "counter", s.formed_rows);
    single(out, "masks_aside_total", "Masks that took so long that another thread found them out", "counter",
           s.masks_aside);
    single(out, "mask_steps_most", "Most work on masks in one step on the engine's thread", "gauge", s.most_mask_steps);
    single(out, "preemptions_total", "Times that an answer had to give up its K/V", "counter", s.preempted);
    single(out, "recomputed_rows_total", "Rows computed again after that", "counter", s.recomputed_rows);
    single(out, "kv_pages", "Pages of K/V", "gauge", s.pages);
    single(out, "kv_pages_free", "Pages of K/V that nobody uses", "gauge", s.free_pages);
    single(out, "kv_pages_cached", "Pages of K/V that the prefix cache holds, partly filled ones too", "gauge",
           s.cached_pages);
    put_head(out, "cache_tier_bytes", "Bytes of the prefix cache", "gauge");
    out += fmt::format("riptide_cache_tier_bytes{{tier=\"checkpoints\"}} {}\n", s.checkpoint_bytes);
    out += fmt::format("riptide_cache_tier_bytes{{tier=\"host\"}} {}\n", s.host_tier_bytes);
    out += fmt::format("riptide_cache_tier_bytes{{tier=\"disk\"}} {}\n", s.disk_tier_bytes);
    single(out, "cache_damaged_records_total", "Records of the disk tier that were damaged", "counter",
           s.damaged_records);
    single(out, "cache_failed_writes_total", "Records that could not be written to the disk tier", "counter",
           s.failed_writes);
    single(out, "steps_total", "Steps of the engine", "counter", s.steps);
    put_head(out, "rows_total", "Rows of steps", "counter");
    out += fmt::format("riptide_rows_total{{kind=\"decode\"}} {}\n", s.decode_rows);
    out += fmt::format("riptide_rows_total{{kind=\"prefill\"}} {}\n", s.prefill_rows);
    if (!s.draft_slots.empty()) draft_part(out, s);
    single(out, "step_seconds_total", "Time of all steps", "counter", s.step_seconds);
    single(out, "step_host_seconds_total", "Of it, on the host", "counter", s.host_seconds);
    single(out, "context_tokens", "Tokens that a prompt and its answer may have", "gauge", info.context_length);
    single(out, "weights_version", "1, and one more with each reload", "gauge", s.version);
}

}  // namespace

Metrics::Metrics() {
    const auto prepare = [](Histogram& h, const char* name, const char* help, std::vector<double> bounds) {
        h = {name, help, std::move(bounds), {}, 0};
        h.counts.resize(h.bounds.size() + 1);
    };
    prepare(first_token_, "time_to_first_token_seconds", "From the request to its first token",
            {0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120});
    prepare(between_tokens_, "time_per_output_token_seconds", "Mean time between the tokens of an answer",
            {0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1});
    prepare(queue_, "queue_seconds", "From the request to its first step",
            {0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 120});
    prepare(prompt_tokens_, "request_prompt_tokens", "Tokens of a prompt",
            {64, 256, 1024, 4096, 16384, 32768, 65536, 131072, 262144});
}

void Metrics::Histogram::add(double value) {
    const auto at = std::lower_bound(bounds.begin(), bounds.end(), value) - bounds.begin();
    ++counts[static_cast<std::size_t>(at)];
    sum += value;
}

void Metrics::replied(std::string_view route, int status) {
    const std::lock_guard lock(mutex_);
    ++replies_[{std::string(route), status}];
}

void Metrics::abandoned() {
    const std::lock_guard lock(mutex_);
    ++abandoned_;
}

void Metrics::mistaken() {
    const std::lock_guard lock(mutex_);
    ++mistaken_;
}

void Metrics::answered(const Done& done) {
    const std::lock_guard lock(mutex_);
    ++reasons_[finish_reason_name(done.reason)];
    queue_.add(done.timings.queue);
    prompt_tokens_.add(static_cast<double>(done.usage.prompt));
    if (done.usage.completion < 1) return;
    first_token_.add(done.timings.scoring + done.timings.queue + done.timings.prefill);
    if (done.usage.completion > 1)
        between_tokens_.add(done.timings.decode / static_cast<double>(done.usage.completion - 1));
}

std::string Metrics::page(const Engine* engine, int64_t connections) const {
    std::string out;
    single(out, "ready", "1 once the model is loaded", "gauge", engine != nullptr ? 1 : 0);
    single(out, "connections", "Open connections", "gauge", connections);
    if (engine != nullptr) engine_part(out, engine->stats(), engine->info());
    const std::lock_guard lock(mutex_);
    put_head(out, "http_replies_total", "Replies by route and status", "counter");
    for (const auto& [key, count] : replies_)
        out +=
            fmt::format("riptide_http_replies_total{{route=\"{}\",status=\"{}\"}} {}\n", key.first, key.second, count);
    single(out, "http_abandoned_total", "Replies whose client left before they were complete", "counter", abandoned_);
    single(out, "http_failed_total", "Replies that a mistake of the server ended", "counter", mistaken_);
    put_head(out, "answers_total", "Answers by what ended them", "counter");
    for (const auto& [reason, count] : reasons_)
        out += fmt::format("riptide_answers_total{{reason=\"{}\"}} {}\n", reason, count);
    for (const Histogram* h : {&first_token_, &between_tokens_, &queue_, &prompt_tokens_}) {
        put_head(out, h->name, h->help, "histogram");
        int64_t total = 0;
        for (std::size_t i = 0; i < h->counts.size(); ++i) {
            total += h->counts[i];
            const std::string bound = i < h->bounds.size() ? fmt::format("{}", h->bounds[i]) : "+Inf";
            out += fmt::format("riptide_{}_bucket{{le=\"{}\"}} {}\n", h->name, bound, total);
        }
        out += fmt::format("riptide_{}_sum {}\nriptide_{}_count {}\n", h->name, h->sum, h->name, total);
    }
    return out;
}

}  // namespace riptide::server
