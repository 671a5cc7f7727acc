// Replies of POST /v1/completions.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "server/api/generation_request.h"
#include "server/api/reply_parts.h"

namespace riptide::server {

/// As ChatReply, for text. Answer a of prompt p is choice p * n + a. Log-probabilities come in the old form: parallel
/// arrays of tokens, their logprobs, alternatives and offsets (in characters) in the text; with echo, of the prompt's
/// tokens too. Not thread-safe.
class CompletionReply {
  public:
    CompletionReply(ReplyFacts facts, const GenerationRequest& request, const Tokenizer* tokenizer);

    /// The echoed prompts, unless their probabilities are wanted too.
    std::string opening();
    bool take(const Item& item, std::string& out);
    void heartbeat(std::string& out) const;
    void abort(const ApiError& error, std::string& out) const;
    HttpReply finish() const;

  private:
    struct Choice {
        std::string text;
        std::vector<Sampled> drawn;  // of a stream: not sent yet
        int64_t offset = 0;          // characters of text that the tokens so far spell
        json::value finish_reason;
    };

    json::object envelope() const;
    json::value logprobs(Choice& choice, std::span<const Sampled> before = {}, std::string_view echo = {}) const;
    void send(std::size_t index, std::string_view text, const json::value& finish_reason, std::string& out,
              std::span<const Sampled> before = {});
    void send_echo(std::size_t prompt, std::string& out);

    ReplyFacts facts_;
    std::string chunk_head_;  // what all chunks begin with, up to the choice's index
    const Tokenizer* tokenizer_;
    bool stream_, include_usage_, logprobs_;
    int32_t n_;
    std::vector<std::string> echo_;
    std::vector<std::vector<Sampled>> prompts_;  // with their probabilities, if they are echoed so
    mutable std::vector<Choice> choices_;
    UsageSum usage_;
    std::optional<ApiError> error_;
};

}  // namespace riptide::server
