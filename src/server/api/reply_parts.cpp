#include "server/api/reply_parts.h"

#include <algorithm>
#include <ctime>

#include "base/json.h"
#include "text/utf8.h"

namespace riptide::server {

void UsageSum::add(const Item& item) {
    const Event& event = item.event;
    if (const auto* done = std::get_if<Done>(&event.body)) {
        --open_;
        completion_ += done->usage.completion;
        reasoning_ += done->usage.reasoning;
        version_ = done->version;
        drafted_ += done->usage.drafted;
        accepted_ += done->usage.accepted;
        decode_seconds_ = std::max(decode_seconds_, done->timings.decode);
        window_ = std::max<int64_t>(window_, done->attention_window);
        if (event.answer != 0) return;
        prompt_ += done->usage.prompt;
        cached_ += done->usage.cached;
        cache_note_ = done->cache_note;
        if (done->compression.original > 0) {
            original_ += done->compression.original;
            scored_ += done->compression.scored;
            shown_ += done->compression.shown;
        }
        scoring_seconds_ = std::max(scoring_seconds_, done->timings.scoring);
        prefill_seconds_ = std::max(prefill_seconds_, done->timings.prefill);
    } else if (std::holds_alternative<Failed>(event.body)) {
        --open_;
    }
}

json::object UsageSum::openai() const {
    json::object details = losses();
    details["cached_tokens"] = cached_;
    return {{"prompt_tokens", prompt_},
            {"completion_tokens", completion_},
            {"total_tokens", prompt_ + completion_},
            {"prompt_tokens_details", std::move(details)},
            {"completion_tokens_details", {{"reasoning_tokens", reasoning_}}}};
}

json::object UsageSum::responses() const {
    json::object details = losses();
    details["cached_tokens"] = cached_;
    return {{"input_tokens", prompt_},
            {"input_tokens_details", std::move(details)},
            {"output_tokens", completion_},
            {"output_tokens_details", {{"reasoning_tokens", reasoning_}}},
            {"total_tokens", prompt_ + completion_}};
}

json::object UsageSum::losses() const {
    json::object out;
    if (original_ > 0) out = {{"original_tokens", original_}, {"scored_tokens", scored_}};
    if (!shown_.empty()) out["shown"] = shown_;
    if (window_ > 0) out["attention_window"] = window_;
    return out;
}

json::object UsageSum::timings() const {
    const auto rate = [](int64_t count, double seconds) {
        return seconds > 0 ? static_cast<double>(count) / seconds : 0.0;
    };
    json::object out = {{"cache_n", cached_},
                        {"scoring_ms", 1000 * scoring_seconds_},
                        {"prompt_n", prompt_ - cached_},
                        {"prompt_ms", 1000 * prefill_seconds_},
                        {"prompt_per_second", rate(prompt_ - cached_, prefill_seconds_)},
                        {"predicted_n", completion_},
                        {"predicted_ms", 1000 * decode_seconds_},
                        {"predicted_per_second", rate(completion_, decode_seconds_)},
                        {"draft_n", drafted_},
                        {"draft_n_accepted", accepted_}};
    if (!cache_note_.empty()) out["cache_note"] = cache_note_;
    return out;
}

std::string_view openai_finish_reason(const Done& done) {
    if (done.reason == FinishReason::length || done.reason == FinishReason::context) return "length";
    if (done.reason == FinishReason::stop_id && done.tool_calls > 0) return "tool_calls";
    return "stop";
}

bool was_cancelled(const Event& event) {
    const auto* done = std::get_if<Done>(&event.body);
    return done != nullptr && done->reason == FinishReason::cancelled;
}

ApiError error_of(const Event& event) {
    if (const auto* failed = std::get_if<Failed>(&event.body)) return from_failure(*failed);
    return {503, "the answer was broken off: the request was cancelled"};  // by DELETE or pause: no use to try again
}

void append_data(std::string& out, std::string_view text) {
    out += "data: ";
    out += text;
    out += "\n\n";
}

std::string token_text(const Tokenizer* tokenizer, int32_t token) {
    std::string text;
    if (tokenizer == nullptr) return text;
    Utf8Stream stream;
    stream.push(tokenizer->piece(token), text);
    stream.finish(text);
    return text;
}

double json_logprob(float logprob) { return std::max(-9999.0, static_cast<double>(logprob)); }

json::object logprob_entry(const Tokenizer* tokenizer, int32_t token, float logprob) {
    json::array bytes;
    if (tokenizer != nullptr)
        for (const char c : tokenizer->piece(token)) bytes.push_back(static_cast<unsigned char>(c));
    return {{"token", token_text(tokenizer, token)}, {"logprob", json_logprob(logprob)}, {"bytes", std::move(bytes)}};
}

std::string utc_time(int64_t unix_time) {
    const std::time_t time = unix_time;
    std::tm parts{};
    char text[32] = "";
    if (::gmtime_r(&time, &parts) != nullptr) std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
    return text;
}

}  // namespace riptide::server
