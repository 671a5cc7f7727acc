// What goes wrong with a request, as clients get to see it.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

#include "base/error.h"
#include "server/http/message.h"

namespace riptide::server {

/// The families of error bodies.
enum class ErrorShape { openai, anthropic, ollama };

/// A request that is answered with an error.
class ApiError : public std::runtime_error {
  public:
    /// `param`: the field that is wrong, as the client wrote it ("messages[2].content"), or "".
    ApiError(int status, const std::string& message, std::string param = "", std::string code = "")
        : std::runtime_error(message), status_(status), param_(std::move(param)), code_(std::move(code)) {}

    int status() const { return status_; }
    const std::string& param() const { return param_; }
    const std::string& code() const { return code_; }
    int64_t retry_after_us = 0;  // 0: no Retry-After header

  private:
    int status_;
    std::string param_, code_;
};

/// Throws ApiError(400).
template <class... Args>
[[noreturn]] void refuse(std::string param, fmt::format_string<Args...> format, Args&&... args) {
    throw ApiError(400, fmt::format(format, std::forward<Args>(args)...), std::move(param));
}

/// OpenAI: {"error": {"message", "type", "param", "code"}}.
/// Anthropic: {"type": "error", "error": {"type", "message"}}.
/// Ollama: {"error": message}.
std::string error_body(const ApiError& error, ErrorShape shape);
HttpReply error_reply(const ApiError& error, ErrorShape shape);

/// What the engine, the tokenizer or the chat template has thrown.
ApiError from_engine(const Error& error);
/// What an answer has ended with.
ApiError from_failure(const Failed& failure);

/// The field that an error of the engine speaks of: what its message begins with, if that is the name of a field.
std::string field_of(std::string_view message);

}  // namespace riptide::server
