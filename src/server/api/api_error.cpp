#include "server/api/api_error.h"

#include <algorithm>
#include <array>

#include "base/json.h"
#include "text/dialects/response_format.h"
#include "text/jinja/template.h"

namespace riptide::server {

namespace {

constexpr std::string_view kQueueFull = "queue_full";

std::string_view openai_type(int status) {
    switch (status) {
        case 401:
            return "authentication_error";
        case 403:
            return "permission_error";
        case 404:
            return "not_found_error";
        case 429:
            return "rate_limit_error";
        case 503:
            return "unavailable_error";
        default:
            return status >= 500 ? "server_error" : "invalid_request_error";
    }
}

std::string_view anthropic_type(int status) {
    switch (status) {
        case 401:
            return "authentication_error";
        case 403:
            return "permission_error";
        case 404:
            return "not_found_error";
        case 413:
            return "request_too_large";
        case 429:
            return "rate_limit_error";
        case 503:
        case 529:
            return "overloaded_error";
        default:
            return status >= 500 ? "api_error" : "invalid_request_error";
    }
}

/// Anthropic says of a full server that it is overloaded; 429 is for clients that ask too much.
int status_in(ErrorShape shape, const ApiError& error) {
    return shape == ErrorShape::anthropic && error.code() == kQueueFull ? 529 : error.status();
}

json::value or_null(const std::string& text) { return text.empty() ? json::value() : json::value(text); }

/// Fields whose names can stand at the beginning of an error.
constexpr std::array kFields = std::to_array<std::string_view>({"messages",
                                                                "compress",
                                                                "tools",
                                                                "chat_template_kwargs",
                                                                "temperature",
                                                                "top_k",
                                                                "top_p",
                                                                "min_p",
                                                                "repetition_penalty",
                                                                "frequency_penalty",
                                                                "presence_penalty",
                                                                "logprobs",
                                                                "max_tokens",
                                                                "min_tokens",
                                                                "logit_bias",
                                                                "n",
                                                                "stop_ids",
                                                                "stop",
                                                                "prompt",
                                                                "seed",
                                                                "response_format",
                                                                "regex",
                                                                "grammar",
                                                                "json_schema",
                                                                "guided_json",
                                                                "guided_regex",
                                                                "guided_choice",
                                                                "guided_grammar",
                                                                "structured_outputs",
                                                                "output_config",
                                                                "tool_choice"});

}  // namespace

std::string error_body(const ApiError& error, ErrorShape shape) {
    if (shape == ErrorShape::ollama) return json::serialize(json::object{{"error", error.what()}});
    json::object inner;
    if (shape == ErrorShape::anthropic) {
        inner = {{"type", anthropic_type(status_in(shape, error))}, {"message", error.what()}};
        return json::serialize(json::object{{"type", "error"}, {"error", inner}});
    }
    inner = {{"message", error.what()},
             {"type", openai_type(error.status())},
             {"param", or_null(error.param())},
             {"code", or_null(error.code())}};
    return json::serialize(json::object{{"error", inner}});
}

HttpReply error_reply(const ApiError& error, ErrorShape shape) {
    const int status = status_in(shape, error);
    HttpReply reply{status, error_body(error, shape)};
    reply.refusal = error.what();
    if (error.retry_after_us > 0) {
        const int64_t seconds = (error.retry_after_us + 999'999) / 1'000'000;
        reply.headers.emplace_back("Retry-After", std::to_string(std::clamp<int64_t>(seconds, 1, 3600)));
    }
    if (status == 401) reply.headers.emplace_back("WWW-Authenticate", "Bearer");
    return reply;
}

ApiError from_engine(const Error& error) {
    if (const auto* full = dynamic_cast<const QueueFull*>(&error)) {
        ApiError out(429, error.what(), "", std::string(kQueueFull));
        out.retry_after_us = std::max<int64_t>(1, full->retry_after_us);
        return out;
    }
    if (const auto* raised = dynamic_cast<const jinja::RaisedError*>(&error))
        return {400, raised->template_message(), "messages"};
    if (const auto* form = dynamic_cast<const FormError*>(&error)) return {400, form->what(), form->field};
    return from_failure({error.kind(), error.what()});
}

ApiError from_failure(const Failed& failure) {
    if (failure.kind == ErrorKind::data || failure.kind == ErrorKind::usage)
        return {400, failure.message, field_of(failure.message)};
    if (failure.kind == ErrorKind::unavailable) {
        ApiError out(503, failure.message);
        out.retry_after_us = 1'000'000;
        return out;
    }
    return {500, failure.message};
}

std::string field_of(std::string_view message) {
    for (const std::string_view article :
         {"a token of ", "a value of ", "the number of ", "the length of a string of "})
        if (message.starts_with(article)) message.remove_prefix(article.size());
    const std::size_t end =
        std::min(message.find_first_not_of("abcdefghijklmnopqrstuvwxyz_0123456789.[]"), message.size());
    std::string_view field = message.substr(0, end);
    while (field.ends_with('.')) field.remove_suffix(1);
    if (field == "stop_strings") return "stop";
    const std::string_view root = field.substr(0, field.find_first_of(".["));
    const bool known = std::find(kFields.begin(), kFields.end(), root) != kFields.end();
    return known ? std::string(field) : std::string();
}

}  // namespace riptide::server
