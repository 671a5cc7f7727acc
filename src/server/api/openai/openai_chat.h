// Replies of POST /v1/chat/completions.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "server/api/generation_request.h"
#include "server/api/reply_parts.h"

namespace riptide::server {

/// Turns the engine's events into chunks of a stream, or into one JSON object: the same content either way. Reasoning
/// goes out as `reasoning_content` and `reasoning`. A tool call that the answer did not finish is there too, with
/// arguments that are the beginning of an object only, and finish_reason "length". Not thread-safe.
class ChatReply {
  public:
    /// `tokenizer`: for log-probabilities; may be null.
    ChatReply(ReplyFacts facts, const GenerationRequest& request, const Tokenizer* tokenizer);

    /// What a stream begins with: the role, so that the client sees life before the prompt is read.
    std::string opening() const;
    /// True: the reply is complete (or has failed).
    bool take(const Item& item, std::string& out);
    void heartbeat(std::string& out) const;
    void abort(const ApiError& error, std::string& out) const;
    HttpReply finish() const;

  private:
    struct Choice {
        std::string text, reasoning;
        json::array tool_calls;
        std::vector<std::string> arguments;  // of each call; of a stream: of one that takes free text
        json::array logprobs;                // of a stream: not sent yet
        bool custom = false;                 // the last call's tool takes free text
        bool dropping = false;               // inside a call that one_tool_call leaves out
        json::value finish_reason;
    };

    void send(int32_t index, const json::object& delta, std::string& out);
    void send_text(int32_t index, std::initializer_list<std::string_view> keys, const std::string& text,
                   std::string& out);
    void append_chunk(int32_t index, std::string_view delta, const json::value& logprobs,
                      const json::value& finish_reason, std::string& out) const;
    json::value logprobs_so_far(int32_t index);
    void drawn(Choice& choice, const TokensDrawn& tokens) const;
    void call_begins(Choice& choice, int32_t index, const ToolCallBegin& call, std::string& out);
    void call_goes_on(Choice& choice, int32_t index, const ToolCallArguments& part, std::string& out);
    void call_ends(Choice& choice, int32_t index, const ToolCallEnd& end, std::string& out);
    void answer_ends(Choice& choice, int32_t index, const Done& done, std::string& out);
    json::object message(const Choice& choice) const;

    ReplyFacts facts_;
    std::string chunk_head_;  // what all chunks begin with, up to the choice's index
    const Tokenizer* tokenizer_;
    bool stream_, include_usage_, one_tool_call_, logprobs_;
    CustomTools custom_;
    std::vector<Choice> choices_;
    UsageSum usage_;
    std::optional<ApiError> error_;
};

}  // namespace riptide::server
