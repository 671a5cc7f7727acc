// Replies of POST /v1/messages.
#pragma once

#include <optional>
#include <string>

#include "server/api/generation_request.h"
#include "server/api/reply_parts.h"

namespace riptide::server {

/// Turns the engine's events into the events of a stream, or into one message: the same blocks either way. A tool call
/// that the answer did not finish (stop_reason "max_tokens") is the last tool_use block, which is where Anthropic's
/// clients look for it. Its input must not look as if it could be used: in a stream its JSON is not finished, and in a
/// message, where it must be an object, it is empty. Not thread-safe.
class MessageReply {
  public:
    MessageReply(ReplyFacts facts, const GenerationRequest& request, const Tokenizer* tokenizer);

    /// A ping: message_start says how long the prompt is and how much of it was cached, so it comes with the first
    /// event, when the beginning of the prompt has been read.
    std::string opening() const;
    bool take(const Item& item, std::string& out);
    void heartbeat(std::string& out) const;
    void abort(const ApiError& error, std::string& out) const;
    HttpReply finish() const;

  private:
    enum class Block { none, thinking, text, tool_use };

    json::object message(const json::array& content, json::object usage) const;
    json::object usage() const;
    void begin(const EventBody& first, std::string& out);
    void open(Block kind, const json::object& start, std::string& out);
    void add(std::string_view delta_type, std::string_view key, const std::string& text, std::string& out);
    void close(std::string& out);
    void answer_ends(const Done& done, std::string& out);

    ReplyFacts facts_;
    bool stream_, one_tool_call_;
    bool begun_ = false;  // the stream's message
    Block block_ = Block::none;
    bool dropping_ = false;  // inside a call that one_tool_call leaves out
    int64_t blocks_ = 0;     // opened so far
    json::object current_;   // the block that is open
    std::string text_;       // of it
    json::array content_;    // blocks that are closed; not for a stream
    json::value stop_reason_, stop_sequence_;
    UsageSum usage_{1};
    std::optional<ApiError> error_;
};

}  // namespace riptide::server
