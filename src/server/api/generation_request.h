// What a client asks for, in any dialect, ready for the engine.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/work_budget.h"
#include "engine/request.h"
#include "server/api/custom_tools.h"
#include "server/api/fields.h"
#include "text/tokenizer/tokenizer.h"

namespace riptide::server {

/// What requests get that do not say. Variables of the template that are not here are as the model's makers have them.
struct RequestDefaults {
    SamplingParams sampling;
    std::optional<bool> thinking;  // enable_thinking of the template
    int64_t thinking_budget = -1;  // Request::thinking_budget
    json::object template_kwargs;  // of the template, where a request does not set them: ChatOptions::template_kwargs
    WorkBudget* work = nullptr;    // of one request: counts what reading it takes, and stops it; or null
    std::chrono::steady_clock::time_point received = std::chrono::steady_clock::now();  // `timeout` counts from here
};

struct GenerationRequest {
    std::vector<Request> prompts;   // one, or a completion's several; each with n answers
    std::vector<std::string> echo;  // of each prompt, what stands in front of its answers; or empty
    std::string model;              // as the client calls it; may be empty
    std::string session;            // from the body; may be empty
    std::string cache_salt;         // requests with another one share no cache; may be empty
    CustomTools custom;             // tools of a chat that take free text
    std::optional<std::chrono::steady_clock::time_point> until;  // `timeout`: then all of it fails that is not over
    bool stream = false;
    bool include_usage = false;  // a last chunk of a stream with the usage
    bool one_tool_call = false;  // further calls of an answer are dropped
    bool logprobs = false;
};

/// The variables that the template gets for a request that says nothing: the makers', and over them those of
/// `defaults`.
json::object template_variables(const RequestDefaults& defaults, json::object makers);

/// temperature, top_p, ... in OpenAI's names, and those that vLLM and llama.cpp have added. Throws ApiError.
SamplingParams parse_sampling(const Fields& fields, const RequestDefaults& defaults);

/// How many tokens an answer may have by the last of the fields that are there; -1: until the context ends. Throws
/// ApiError.
std::optional<int64_t> parse_max_tokens(const Fields& fields, std::initializer_list<const char*> keys);

/// `timeout`: how many seconds from defaults.received on the request may take. defaults.work (or null) hears of it.
/// LiteLLM's proxy has the same field, and the clients that are made for it send it. Throws ApiError; WorkLate, if that
/// time has passed while the request waited for a worker.
std::optional<std::chrono::steady_clock::time_point> parse_timeout(const Fields& fields,
                                                                   const RequestDefaults& defaults);

/// `compress`: what is to become of a long prompt (engine/compression/compression.h). A mode ("off", "auto", "always"),
/// or an object with mode, keep, keep_tokens, above, positions ("compact", "original"), show (replies have the prompt
/// with what was left out in marks). This server's own field. Throws ApiError.
CompressionRequest parse_compression(const Fields& fields);

/// Tokens of thinking for the efforts that the APIs know; -1 (no limit) for "high" and more. Throws ApiError naming
/// `field` for other words.
int64_t budget_of_effort(std::string_view effort, const std::string& field);

/// An effort is also a variable of the template, which may know it or not: `reasoning_effort`.
void tell_effort(std::string_view effort, ChatOptions& options);

/// The tools that are functions; others (web_search, ...) are of no use to a local model and are left out.
/// Throws ApiError.
json::array prepare_tools(const json::array& tools);

/// POST /v1/chat/completions. Throws ApiError.
GenerationRequest parse_chat(json::object body, const RequestDefaults& defaults);
/// POST /v1/completions; the tokenizer is for `echo` of token ids, and may be null. Throws ApiError.
GenerationRequest parse_completion(json::object body, const RequestDefaults& defaults, const Tokenizer* tokenizer);

}  // namespace riptide::server
