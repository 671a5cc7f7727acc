// Replies with vectors and with scores.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "server/api/embeddings/embedding_request.h"
#include "server/api/reply_parts.h"

namespace riptide::server {

/// The embedding that a model's last state is: of unit length, or (all zeros) as it is. `dimensions`: of the state its
/// first so many, of unit length by themselves; 0: all.
std::vector<float> embedding_of(std::span<const float> state, int64_t dimensions);

/// What all of these replies hear: the usage, an error, and a row for each prompt.
class RowsHeard {
  public:
    RowsHeard(std::size_t prompts, ErrorShape shape) : usage_(static_cast<int64_t>(prompts)), shape_(shape) {}

    /// Calls `row` with the number of the prompt and what the model put out for it. True when the reply is complete.
    template <class Row>
    bool take(const Item& item, const Row& row) {
        usage_.add(item);
        if (std::holds_alternative<Failed>(item.event.body) || was_cancelled(item.event)) {
            error_ = error_of(item.event);
            return true;
        }
        if (const auto* read = std::get_if<RowRead>(&item.event.body))
            row(static_cast<std::size_t>(item.request), std::span(read->values));
        return usage_.complete();
    }
    /// In place of the reply, if something went wrong.
    std::optional<HttpReply> error() const {
        return error_ ? std::optional(error_reply(*error_, shape_)) : std::nullopt;
    }
    const UsageSum& usage() const { return usage_; }
    /// In OpenAI's names.
    json::object openai_usage() const;

  private:
    UsageSum usage_;
    ErrorShape shape_;
    std::optional<ApiError> error_;
};

/// Where the vectors stand: OpenAI's list of objects, Ollama's "embeddings", or its older "embedding".
enum class EmbeddingShape { openai, ollama, ollama_single };

/// A vector is written as it comes, for they are long, and many. Not thread-safe.
class EmbeddingReply {
  public:
    EmbeddingReply(ReplyFacts facts, const EmbeddingRequest& request, EmbeddingShape shape);

    bool take(const Item& item);
    HttpReply finish() const;

  private:
    ReplyFacts facts_;
    EmbeddingShape shape_;
    int64_t dimensions_;
    bool base64_;
    double begun_;  // seconds
    RowsHeard heard_;
    std::vector<std::string> vectors_;  // as JSON
};

/// Documents by the probability of "yes", the most likely first; of equal ones the first. Not thread-safe.
class RerankReply {
  public:
    RerankReply(ReplyFacts facts, RerankRequest request);

    bool take(const Item& item);
    HttpReply finish() const;

  private:
    ReplyFacts facts_;
    RerankRequest request_;
    RowsHeard heard_;
    std::vector<double> scores_;
};

}  // namespace riptide::server
