#include "server/request_log.h"

#include "base/json.h"

namespace riptide::server {

namespace {

std::string grouped(int64_t number) {
    std::string digits = std::to_string(number);
    for (int at = static_cast<int>(digits.size()) - 3; at > 0; at -= 3)
        digits.insert(static_cast<std::size_t>(at), 1, ',');
    return digits;
}

double rate(const Done& done) {
    return done.timings.decode > 0 ? static_cast<double>(done.usage.completion) / done.timings.decode : 0;
}

std::string cache_words(const Done& done) {
    return done.cache_note.empty() ? fmt::format("{} cached", done.usage.cached) : done.cache_note;
}

/// "req 17  in 52,310 (51,884 tokens from the cache; why not more)  first token 0.21 s  out 412 at 238.1 tok/s stop_id"
std::string text_line(const Event& event, const Done& done) {
    const std::string answer = event.answer > 0 ? fmt::format(".{}", event.answer) : "";
    const std::string kept = done.compression.original > 0 ? done.compression.sentence() + "; " : "";
    const std::string window =
        done.attention_window > 0 ? fmt::format("window {}; ", grouped(done.attention_window)) : "";
    const double first = done.timings.scoring + done.timings.queue + done.timings.prefill;
    return fmt::format("req {}{}  in {} ({}{}{})  first token {:.2f} s  out {} at {:.1f} tok/s  {}", event.id, answer,
                       grouped(done.usage.prompt), kept, window, cache_words(done), first,
                       grouped(done.usage.completion), rate(done), finish_reason_name(done.reason));
}

json::object log_head(std::string_view event, const LogSubject& subject, RequestId id) {
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    json::object out = {{"time", std::chrono::duration<double>(now).count()},
                        {"event", event},
                        {"id", subject.id},
                        {"x_request_id", subject.request_id},
                        {"route", subject.route},
                        {"request", id}};
    if (!subject.session.empty()) out["session"] = subject.session;
    return out;
}

}  // namespace

void RequestLog::asked(const LogSubject& subject, const std::string& body) const {
    if (!content()) return;
    if (!options_.json) return options_.write(fmt::format("{} {}  asks {}", subject.route, subject.id, body));
    json::object line = log_head("asked", subject, 0);
    line["body"] = body;
    options_.write(json::serialize(line));
}

void RequestLog::answered(const LogSubject& subject, const Event& event, const Done& done,
                          const std::string& text) const {
    if (!options_.write) return;
    if (!options_.json) {
        options_.write(text_line(event, done));
        if (content()) options_.write(fmt::format("req {}  says {}", event.id, json::serialize(json::value(text))));
        return;
    }
    json::object line = log_head("answered", subject, event.id);
    const json::object facts = {{"answer", event.answer},
                                {"prompt_tokens", done.usage.prompt},
                                {"cached_tokens", done.usage.cached},
                                {"cache_note", done.cache_note},
                                {"completion_tokens", done.usage.completion},
                                {"reasoning_tokens", done.usage.reasoning},
                                {"tool_calls", done.tool_calls},
                                {"finish", finish_reason_name(done.reason)},
                                {"queue_seconds", done.timings.queue},
                                {"prefill_seconds", done.timings.prefill},
                                {"decode_seconds", done.timings.decode},
                                {"tokens_per_second", rate(done)},
                                {"weights_version", done.version}};
    for (const auto& [key, value] : facts) line[key] = value;
    if (done.compression.original > 0) line["compression"] = done.compression.facts();
    if (done.attention_window > 0) line["attention_window"] = done.attention_window;
    if (content()) line["text"] = text;
    options_.write(json::serialize(line));
}

void RequestLog::failed(const LogSubject& subject, RequestId id, const std::string& why) const {
    if (!options_.write) return;
    if (!options_.json) return options_.write(fmt::format("req {}  failed: {}", id, why));
    json::object line = log_head("failed", subject, id);
    line["error"] = why;
    options_.write(json::serialize(line));
}

void RequestLog::abandoned(const LogSubject& subject, RequestId id) const {
    if (!options_.write) return;
    if (!options_.json) return options_.write(fmt::format("req {}  the client has gone", id));
    options_.write(json::serialize(log_head("abandoned", subject, id)));
}

void RequestLog::mistake(std::string_view route, const std::string& what) const {
    if (!options_.write) return;
    if (!options_.json) return options_.write(fmt::format("{}: {}", route, what));
    options_.write(json::serialize(json::object{{"event", "mistake"}, {"route", route}, {"error", what}}));
}

}  // namespace riptide::server
