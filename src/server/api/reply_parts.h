// What the replies of all dialects are made of.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/json_fwd.h"
#include "server/api/api_error.h"
#include "server/http/event_queue.h"
#include "text/tokenizer/tokenizer.h"

namespace riptide::server {

struct ReplyFacts {
    std::string id;       // "chatcmpl-..."
    std::string model;    // as this server calls it
    int64_t created = 0;  // Unix time
    int64_t version = 0;  // of the weights, when the request came
};

/// What all answers of a reply have used. A prompt counts once, however many answers it has.
class UsageSum {
  public:
    explicit UsageSum(int64_t answers) : open_(answers) {}
    /// Takes each Done and Failed.
    void add(const Item& item);
    bool complete() const { return open_ == 0; }
    json::object openai() const;
    /// In the names of /v1/responses.
    json::object responses() const;
    /// What of its prompt an answer was made without. Of prompts that were compressed: original_tokens and
    /// scored_tokens, and shown if asked for. Of texts longer than the window that the server has for full-attention
    /// layers: attention_window. Else nothing.
    json::object losses() const;
    /// Speeds, in the fields that llama.cpp's clients read: prompt_n, cache_n, prompt_ms, predicted_n, draft_n, ...;
    /// and cache_note, why not more of the (last) prompt was cached.
    json::object timings() const;
    int64_t prompt() const { return prompt_; }
    int64_t cached() const { return cached_; }
    int64_t completion() const { return completion_; }
    int64_t reasoning() const { return reasoning_; }
    /// Of the weights that the answers are from (the last of them).
    int64_t version() const { return version_; }

  private:
    int64_t open_;
    int64_t prompt_ = 0, cached_ = 0, completion_ = 0, reasoning_ = 0, version_ = 0;
    double prefill_seconds_ = 0, decode_seconds_ = 0, scoring_seconds_ = 0;
    int64_t original_ = 0, scored_ = 0, window_ = 0;
    int64_t drafted_ = 0, accepted_ = 0;
    std::string shown_, cache_note_;
};

/// "stop", "length" or "tool_calls". An answer that is cut short is "length", whatever it holds.
std::string_view openai_finish_reason(const Done& done);
/// A Done that is no answer: somebody has cancelled it.
bool was_cancelled(const Event& event);
/// Of an event that ends a reply with an error: Failed, or a Done with reason cancelled.
ApiError error_of(const Event& event);

/// "data: ...\n\n"
void append_data(std::string& out, std::string_view text);

/// A token as the API shows it: {"token", "logprob", "bytes"}. Bytes that are no UTF-8 become U+FFFD in "token" only.
json::object logprob_entry(const Tokenizer* tokenizer, int32_t token, float logprob);
std::string token_text(const Tokenizer* tokenizer, int32_t token);
/// A logarithm that JSON can hold.
double json_logprob(float logprob);
/// "2026-01-31T12:00:00Z"
std::string utc_time(int64_t unix_time);

}  // namespace riptide::server
