#include "server/metrics.h"

#include <algorithm>
#include <concepts>
#include <ctime>
#include <functional>
#include <iterator>

namespace riptide::server {

namespace {

// Pages are asked for up to 200 times a second, beside answers: pieces are appended, nothing is formatted aside.

void add(std::string& out, std::string_view text) { out += text; }
void add(std::string& out, char letter) { out += letter; }
template <std::integral Number>
void add(std::string& out, Number number) {
    const fmt::format_int text(number);
    out.append(text.data(), text.size());
}
void add(std::string& out, double number) { fmt::format_to(std::back_inserter(out), "{}", number); }

template <class... Pieces>
void put(std::string& out, const Pieces&... pieces) {
    (add(out, pieces), ...);
}

/// `front`: of the name.
void put_head(std::string& out, std::string_view front, std::string_view name, std::string_view help,
              std::string_view type) {
    put(out, "# HELP ", front, name, ' ', help, "\n# TYPE ", front, name, ' ', type, '\n');
}

template <class Number>
void single(std::string& out, std::string_view name, std::string_view help, std::string_view type, Number value) {
    put_head(out, "riptide_", name, help, type);
    put(out, "riptide_", name, ' ', value, '\n');
}

/// model="..." and the like.
std::string label_of(std::string_view name, std::string_view value) {
    std::string out = std::string(name) + "=\"";
    for (const char c : value) {
        if (c == '"' || c == '\\') out += '\\';
        if (c == '\n') out += "\\n";
        else out += c;
    }
    return out + '"';
}

/// The families of engines: in each one sample an engine, told apart by `model` where a server may have several.
class EngineFamilies {
  public:
    EngineFamilies(std::string& out, const std::vector<EngineFacts>& engines) : out_(out), engines_(engines) {}

    void head(std::string_view name, std::string_view help, std::string_view type) {
        put_head(out_, "riptide_", name, help, type);
    }
    /// `more`: pieces of further labels, `slot="1"`.
    template <class Number, class... Pieces>
    void sample(std::string_view name, const EngineFacts& engine, Number value, const Pieces&... more) {
        constexpr bool kMore = sizeof...(more) > 0;
        put(out_, "riptide_", name);
        if (kMore || !engine.label.empty())
            put(out_, '{', engine.label, kMore && !engine.label.empty() ? "," : "", more..., '}');
        put(out_, ' ', value, '\n');
    }
    /// A family without labels of its own; `value`: a member of EngineFacts.
    template <class Member>
    void single(std::string_view name, std::string_view help, std::string_view type, Member value) {
        head(name, help, type);
        for (const EngineFacts& engine : engines_) sample(name, engine, std::invoke(value, engine));
    }
    /// One with a label, and what stands for each of its values.
    void labelled(std::string_view name, std::string_view help, std::string_view type, std::string_view label,
                  std::initializer_list<std::pair<std::string_view, int64_t EngineStats::*>> values) {
        head(name, help, type);
        for (const EngineFacts& engine : engines_)
            for (const auto& [word, value] : values) sample(name, engine, engine.*value, label, "=\"", word, '"');
    }
    void cache_config() {
        head("cache_config_info", "Sizes of K/V in its labels", "gauge");
        for (const EngineFacts& e : engines_)
            sample("cache_config_info", e, 1, "block_size=\"", e.page_rows, "\",num_gpu_blocks=\"", e.pages, '"');
    }
    void by_slot(std::string_view name, std::string_view help, int64_t EngineStats::DraftSlot::*count) {
        head(name, help, "counter");
        for (const EngineFacts& engine : engines_)
            for (size_t i = 0; i < engine.draft_slots.size(); ++i)
                sample(name, engine, engine.draft_slots[i].*count, "slot=\"", i + 1, '"');
    }

    const std::vector<EngineFacts>& engines() const { return engines_; }

  private:
    std::string& out_;
    const std::vector<EngineFacts>& engines_;
};

void draft_part(EngineFamilies& f) {
    f.single("drafted_tokens_total", "Drafted tokens that were checked", "counter", &EngineStats::drafted_rows);
    f.single("accepted_tokens_total", "Of them, accepted", "counter", &EngineStats::accepted_rows);
    f.by_slot("draft_slot_reached_total", "Steps with a drafted token in this place, and all before it accepted",
              &EngineStats::DraftSlot::reached);
    f.by_slot("draft_slot_accepted_total", "Of them, steps in which it was accepted too",
              &EngineStats::DraftSlot::accepted);
}

void shared_part(EngineFamilies& f) {
    f.single("shared_ready", "1: the weights' digest is known and the shared tier answers", "gauge",
             &EngineStats::shared_ready);
    f.single("shared_fetching", "Requests whose state is looked for in the shared tier", "gauge",
             &EngineStats::fetching);
    f.labelled("shared_requests_total", "Requests whose state might lie there", "counter", "result",
               {{"fetched", &EngineStats::shared_fetched},
                {"late", &EngineStats::shared_late},
                {"slower", &EngineStats::shared_slower}});
    f.single("shared_tokens_total", "Tokens of prompts whose state came from there", "counter",
             &EngineStats::shared_tokens);
    f.labelled("shared_records_total", "Records of the shared tier", "counter", "result",
               {{"hit", &EngineStats::shared_hits},
                {"miss", &EngineStats::shared_misses},
                {"error", &EngineStats::shared_errors},
                {"rejected", &EngineStats::shared_rejected},
                {"written", &EngineStats::shared_written},
                {"dropped", &EngineStats::shared_dropped}});
    f.labelled("shared_bytes_total", "Bytes of its records", "counter", "way",
               {{"read", &EngineStats::shared_read_bytes}, {"written", &EngineStats::shared_written_bytes}});
}

void kv_events_part(EngineFamilies& f) {
    f.single("kv_events_total", "Pages of the cache that routers were told of: stored, moved or removed", "counter",
             &EngineStats::kv_events);
    f.single("kv_events_lost_total", "Times that more had changed than could wait, so that all is told anew", "counter",
             &EngineStats::kv_events_lost);
    f.single("kv_event_epochs_total", "Times that all was told anew, the start too", "counter",
             &EngineStats::kv_event_epochs);
}

void engine_part(EngineFamilies& f, bool drafts) {
    f.single("requests_waiting", "Answers that wait for their turn", "gauge", &EngineStats::waiting);
    f.single("requests_running", "Answers that are being made", "gauge", &EngineStats::running);
    f.single("requests_running_limit", "Answers that can be made at a time", "gauge", &EngineInfo::max_running);
    f.single("requests_submitted_total", "Requests that the engine has taken", "counter", &EngineStats::submitted);
    f.single("requests_refused_total", "Requests that found the queue full", "counter", &EngineStats::refused);
    f.single("answers_finished_total", "Answers that are complete", "counter", &EngineStats::finished);
    f.single("answers_cancelled_total", "Answers that nobody waited for", "counter", &EngineStats::cancelled);
    f.single("answers_failed_total", "Answers that went wrong", "counter", &EngineStats::failed);
    f.single("prompt_tokens_total", "Tokens of prompts", "counter", &EngineStats::prompt_tokens);
    f.single("prompt_cached_tokens_total", "Tokens of prompts that the prefix cache held", "counter",
             &EngineStats::cached_tokens);
    f.single("requests_scoring", "Requests whose prompts are with the scorer", "gauge", &EngineStats::scoring);
    f.single("prompts_compressed_total", "Prompts of which only a part was read", "counter", &EngineStats::compressed);
    f.single("prompt_scored_tokens_total", "Tokens that the scorer read for them", "counter",
             &EngineStats::scored_tokens);
    f.single("prompt_dropped_tokens_total", "Tokens that were left out", "counter", &EngineStats::dropped_tokens);
    f.single("answer_tokens_total", "Tokens of answers", "counter", &EngineStats::answer_tokens);
    f.single("formed_rows_total", "Rows of structured output that the device drew for", "counter",
             &EngineStats::formed_rows);
    f.single("masks_aside_total", "Masks that took so long that another thread found them out", "counter",
             &EngineStats::masks_aside);
    f.single("mask_steps_most", "Most work on masks in one step on the engine's thread", "gauge",
             &EngineStats::most_mask_steps);
    f.single("preemptions_total", "Times that an answer had to give up its K/V", "counter", &EngineStats::preempted);
    f.single("recomputed_rows_total", "Rows computed again after that", "counter", &EngineStats::recomputed_rows);
    f.single("kv_pages", "Pages of K/V", "gauge", &EngineStats::pages);
    f.single("kv_pages_free", "Pages of K/V that nobody uses", "gauge", &EngineStats::free_pages);
    f.single("kv_pages_cached", "Pages of K/V that the prefix cache holds, partly filled ones too", "gauge",
             &EngineStats::cached_pages);
    f.single("kv_pages_used", "Pages of K/V that answers need", "gauge", &EngineStats::used_pages);
    f.single("kv_usage_ratio", "Share of K/V that answers need; what only the prefix cache holds is free", "gauge",
             &EngineFacts::kv_usage);
    f.cache_config();
    f.labelled("cache_tier_bytes", "Bytes of the prefix cache", "gauge", "tier",
               {{"checkpoints", &EngineStats::checkpoint_bytes},
                {"host", &EngineStats::host_tier_bytes},
                {"disk", &EngineStats::disk_tier_bytes}});
    f.single("cache_damaged_records_total", "Records of the disk tier that were damaged", "counter",
             &EngineStats::damaged_records);
    f.single("cache_failed_writes_total", "Records that could not be written to the disk tier", "counter",
             &EngineStats::failed_writes);
    if (std::any_of(f.engines().begin(), f.engines().end(), [](const EngineFacts& e) { return e.shares_cache; }))
        shared_part(f);
    f.single("steps_total", "Steps of the engine", "counter", &EngineStats::steps);
    f.labelled("rows_total", "Rows of steps", "counter", "kind",
               {{"decode", &EngineStats::decode_rows}, {"prefill", &EngineStats::prefill_rows}});
    if (drafts) draft_part(f);
    f.single("step_seconds_total", "Time of all steps", "counter", &EngineStats::step_seconds);
    f.single("step_host_seconds_total", "Of it, on the host", "counter", &EngineStats::host_seconds);
    f.single("context_tokens", "Tokens that a prompt and its answer may have", "gauge", &EngineInfo::context_length);
    f.single("weights_version", "1, and one more with each reload", "gauge", &EngineStats::version);
}

/// The names under which routers look in a fleet of vLLM's: each typed, and with one series, since they take the first.
void vllm_part(std::string& out, const EngineFacts& all, const std::string& labels) {
    const auto told = [&](std::string_view name, std::string_view own, std::string_view type, auto value,
                          const auto&... more) {
        put_head(out, "vllm:", name, own, type);
        put(out, "vllm:", name, '{', labels, more..., "} ", value, '\n');
    };
    told("num_requests_waiting", "As riptide_requests_waiting", "gauge", all.waiting);
    told("num_requests_running", "As riptide_requests_running", "gauge", all.running);
    for (const char* name : {"kv_cache_usage_perc", "gpu_cache_usage_perc"})
        told(name, "As riptide_kv_usage_ratio", "gauge", all.kv_usage());
    told("cache_config_info", "As riptide_cache_config_info", "gauge", 1, ",block_size=\"", all.page_rows,
         "\",num_gpu_blocks=\"", all.pages, '"');
    told("lora_requests_info", "Nothing: there are no adapters; the time now", "gauge", std::time(nullptr),
         R"(,max_lora="0",running_lora_adapters="",waiting_lora_adapters="")");
    for (const char* name : {"prefix_cache_queries_total", "gpu_prefix_cache_queries_total", "prompt_tokens_total"})
        told(name, "As riptide_prompt_tokens_total", "counter", all.prompt_tokens);
    for (const char* name : {"prefix_cache_hits_total", "gpu_prefix_cache_hits_total"})
        told(name, "As riptide_prompt_cached_tokens_total", "counter", all.cached_tokens);
    told("generation_tokens_total", "As riptide_answer_tokens_total", "counter", all.answer_tokens);
    told("num_preemptions_total", "As riptide_preemptions_total", "counter", all.preempted);
}

}  // namespace

Metrics::Metrics() {
    const auto prepare = [](Histogram& h, const char* name, const char* help, std::vector<double> bounds) {
        h = {name, help, std::move(bounds), {}, {}, 0};
        h.counts.resize(h.bounds.size() + 1);
        for (const double bound : h.bounds) h.words.push_back(fmt::format("{}", bound));
        h.words.emplace_back("+Inf");
    };
    prepare(first_token_, "time_to_first_token_seconds", "From the request to its first token",
            {0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120});
    prepare(between_tokens_, "time_per_output_token_seconds", "Mean time between the tokens of an answer",
            {0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1});
    prepare(queue_, "queue_seconds", "From the request to its first step",
            {0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 120});
    const std::vector<double> of_answers = {0.01, 0.05, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600};
    prepare(prefill_, "prefill_seconds", "From a request's first step to its first token", of_answers);
    prepare(decode_, "decode_seconds", "From the first token to the last", of_answers);
    prepare(answer_, "answer_seconds", "From the request to its last token", of_answers);
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
    const double first = done.timings.scoring + done.timings.queue + done.timings.prefill;
    first_token_.add(first);
    prefill_.add(done.timings.prefill);
    decode_.add(done.timings.decode);
    answer_.add(first + done.timings.decode);
    if (done.usage.completion > 1)
        between_tokens_.add(done.timings.decode / static_cast<double>(done.usage.completion - 1));
}

double EngineFacts::kv_usage() const {
    const int64_t used = pages > 0 ? used_pages : running, most = pages > 0 ? pages : max_running;
    return most > 0 ? static_cast<double>(used) / static_cast<double>(most) : 0;
}

EngineFacts engine_facts(const ModelLease& model, bool labelled) {
    EngineFacts facts{{model->engine->stats()}, {model->engine->info()}, ""};
    if (labelled) facts.label = label_of("model", model->name);
    return facts;
}

EngineFacts total_of(const std::vector<EngineFacts>& engines) {
    EngineFacts all;
    for (const EngineFacts& one : engines) {
        for (const auto count : {&EngineStats::waiting, &EngineStats::running, &EngineStats::pages,
                                 &EngineStats::used_pages, &EngineStats::prompt_tokens, &EngineStats::cached_tokens,
                                 &EngineStats::answer_tokens, &EngineStats::preempted, &EngineStats::waiting_tokens})
            all.*count += one.*count;
        all.answer_rate += one.answer_rate;
        all.max_running += one.max_running;
        all.page_rows = one.page_rows;
    }
    return all;
}

std::string Metrics::page(bool ready, const std::vector<EngineFacts>& engines, int64_t connections,
                          const TraceCounts& traces, const std::string& model) const {
    std::string out;
    out.reserve(size_t{32} << 10);
    single(out, "ready", "1 once requests can be answered", "gauge", ready ? 1 : 0);
    single(out, "connections", "Open connections", "gauge", connections);
    single(out, "trace_spans_sent_total", "Spans of traces that the collector has taken", "counter", traces.sent);
    single(out, "trace_spans_dropped_total", "Spans that it did not take, or that found the queue full", "counter",
           traces.dropped);
    EngineFamilies families(out, engines);
    const auto drafts = [](const EngineFacts& engine) { return !engine.draft_slots.empty(); };
    if (!engines.empty()) engine_part(families, std::any_of(engines.begin(), engines.end(), drafts));
    if (std::any_of(engines.begin(), engines.end(), [](const EngineFacts& one) { return one.tells_kv_events; }))
        kv_events_part(families);
    const std::lock_guard lock(mutex_);
    put_head(out, "riptide_", "http_replies_total", "Replies by route and status", "counter");
    for (const auto& [key, count] : replies_)
        put(out, "riptide_http_replies_total{route=\"", key.first, "\",status=\"", key.second, "\"} ", count, '\n');
    single(out, "http_abandoned_total", "Replies whose client left before they were complete", "counter", abandoned_);
    single(out, "http_failed_total", "Replies that a mistake of the server ended", "counter", mistaken_);
    put_head(out, "riptide_", "answers_total", "Answers by what ended them", "counter");
    for (const auto& [reason, count] : reasons_)
        put(out, "riptide_answers_total{reason=\"", reason, "\"} ", count, '\n');
    for (const Histogram* h :
         {&first_token_, &between_tokens_, &queue_, &prefill_, &decode_, &answer_, &prompt_tokens_})
        h->write(out, "riptide_" + h->name, h->help, "");
    if (!ready) return out;
    const std::string labels = label_of("model_name", model) + ",engine=\"0\"";
    vllm_part(out, total_of(engines), labels);
    vllm_histograms(out, labels);
    return out;
}

/// What dashboards made for vLLM draw, as far as it is the same.
void Metrics::vllm_histograms(std::string& out, const std::string& labels) const {
    const std::initializer_list<std::pair<const char*, const Histogram*>> same = {
        {"vllm:time_to_first_token_seconds", &first_token_},
        {"vllm:request_time_per_output_token_seconds", &between_tokens_},
        {"vllm:request_queue_time_seconds", &queue_},
        {"vllm:request_prefill_time_seconds", &prefill_},
        {"vllm:request_decode_time_seconds", &decode_},
        {"vllm:e2e_request_latency_seconds", &answer_}};
    for (const auto& [name, histogram] : same) histogram->write(out, name, "As riptide_" + histogram->name, labels);
}

void Metrics::Histogram::write(std::string& out, std::string_view full, std::string_view meaning,
                               std::string_view labels) const {
    put_head(out, "", full, meaning, "histogram");
    int64_t total = 0;
    for (std::size_t i = 0; i < counts.size(); ++i) {
        total += counts[i];
        put(out, full, "_bucket{", labels, labels.empty() ? "" : ",", "le=\"", words[i], "\"} ", total, '\n');
    }
    const std::string all = labels.empty() ? " " : "{" + std::string(labels) + "} ";
    put(out, full, "_sum", all, sum, '\n', full, "_count", all, total, '\n');
}

}  // namespace riptide::server
