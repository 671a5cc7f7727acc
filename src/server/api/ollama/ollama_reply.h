// Replies of Ollama's API: POST /api/chat and /api/generate.
#pragma once

#include <optional>
#include <string>

#include "server/api/generation_request.h"
#include "server/api/reply_parts.h"

namespace riptide::server {

/// Where an answer's text stands: in a message, or in "response".
enum class OllamaShape { chat, generate };

/// "application/x-ndjson": a stream is JSON objects, each in a line.
inline constexpr std::string_view kLines = "application/x-ndjson";

/// Turns the engine's events into lines of JSON, or into one object: the same answer either way. A tool call comes
/// whole; one that the answer did not finish (done_reason "length") is left out, for nothing in this API could say so.
/// Not thread-safe.
class OllamaReply {
  public:
    OllamaReply(ReplyFacts facts, const GenerationRequest& request, const Tokenizer* tokenizer, OllamaShape shape);

    /// Nothing: the first line is the first delta.
    std::string opening() const { return {}; }
    bool take(const Item& item, std::string& out);
    /// A line without text.
    void heartbeat(std::string& out) const;
    void abort(const ApiError& error, std::string& out) const;
    HttpReply finish() const;
    /// To a request without a prompt: the model is there.
    HttpReply loaded() const;

  private:
    /// What stands in a line, or in the whole answer.
    struct Part {
        std::string text, thinking;
        json::array calls, logprobs;
    };
    json::object object_of(const Part& part) const;
    void append_line(const json::object& object, std::string& out) const;
    void send(std::string& out);
    void call_ends(bool complete, std::string& out);
    void answer_ends(const Done& done, std::string& out);

    ReplyFacts facts_;
    const Tokenizer* tokenizer_;
    OllamaShape shape_;
    bool stream_, logprobs_;
    std::string created_at_;
    Part part_;                     // what has come since the last line; all of it, if there are no lines
    std::string name_, arguments_;  // of the tool call that is open
    json::object ending_;           // what the last line says of the answer
    std::optional<ApiError> error_;
};

}  // namespace riptide::server
