#include "server/api/embeddings/embedding_reply.h"

#include <openssl/evp.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <numeric>

#include "base/json.h"

namespace riptide::server {

namespace {

double steady_seconds() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// The shortest numbers that are these f32.
std::string numbers_json(std::span<const float> values) {
    std::string out = "[";
    for (const float value : values) fmt::format_to(std::back_inserter(out), "{},", value);
    out.back() = ']';
    return out;
}

std::string base64_json(std::span<const float> values) {
    static_assert(std::endian::native == std::endian::little);
    const std::span<const std::byte> bytes = std::as_bytes(values);
    std::string out((bytes.size() + 2) / 3 * 4 + 3, '"');  // quotes, and the zero that OpenSSL writes
    EVP_EncodeBlock(reinterpret_cast<unsigned char*>(out.data() + 1),
                    reinterpret_cast<const unsigned char*>(bytes.data()), static_cast<int>(bytes.size()));
    out.pop_back();
    out.back() = '"';
    return out;
}

std::string joined(const std::vector<std::string>& parts, const char* between = ",") {
    std::string out;
    std::size_t bytes = 0;
    for (const std::string& part : parts) bytes += part.size() + 1;
    out.reserve(bytes);
    for (const std::string& part : parts) (out += out.empty() ? "" : between) += part;
    return out;
}

}  // namespace

std::vector<float> embedding_of(std::span<const float> state, int64_t dimensions) {
    if (dimensions > 0) state = state.first(static_cast<std::size_t>(dimensions));
    double squares = 0;
    for (const float value : state) squares += double{value} * value;
    const double scale = squares > 0 ? 1 / std::sqrt(squares) : 1;
    std::vector<float> out;
    out.reserve(state.size());
    for (const float value : state) out.push_back(static_cast<float>(value * scale));
    return out;
}

json::object RowsHeard::openai_usage() const {
    return {{"prompt_tokens", usage_.prompt()},
            {"total_tokens", usage_.prompt()},
            {"prompt_tokens_details", {{"cached_tokens", usage_.cached()}}}};
}

EmbeddingReply::EmbeddingReply(ReplyFacts facts, const EmbeddingRequest& request, EmbeddingShape shape)
    : facts_(std::move(facts)),
      shape_(shape),
      dimensions_(request.dimensions),
      base64_(request.base64),
      begun_(steady_seconds()),
      heard_(request.asked.prompts.size(), shape == EmbeddingShape::openai ? ErrorShape::openai : ErrorShape::ollama),
      vectors_(request.asked.prompts.size()) {}

bool EmbeddingReply::take(const Item& item) {
    return heard_.take(item, [&](std::size_t prompt, std::span<const float> state) {
        const std::vector<float> vector = embedding_of(state, dimensions_);
        std::string& out = vectors_.at(prompt);
        out = base64_ ? base64_json(vector) : numbers_json(vector);
        if (shape_ == EmbeddingShape::openai)
            out = fmt::format(R"({{"object":"embedding","index":{},"embedding":{}}})", prompt, out);
    });
}

HttpReply EmbeddingReply::finish() const {
    if (auto error = heard_.error()) return *error;
    const std::string vectors = joined(vectors_), model = json::serialize(json::string(facts_.model));
    if (shape_ == EmbeddingShape::ollama_single)
        return {200, fmt::format(R"({{"embedding":{}}})", vectors.empty() ? "[]" : vectors)};
    if (shape_ == EmbeddingShape::openai)
        return {200, fmt::format(R"({{"object":"list","data":[{}],"model":{},"usage":{}}})", vectors, model,
                                 json::serialize(heard_.openai_usage()))};
    const auto took = static_cast<int64_t>(1e9 * (steady_seconds() - begun_));
    return {200, fmt::format(R"({{"model":{},"embeddings":[{}],"total_duration":{},"load_duration":0,)"
                             R"("prompt_eval_count":{}}})",
                             model, vectors, took, heard_.usage().prompt())};
}

RerankReply::RerankReply(ReplyFacts facts, RerankRequest request)
    : facts_(std::move(facts)),
      request_(std::move(request)),
      heard_(request_.documents.size(), ErrorShape::openai),
      scores_(request_.documents.size()) {}

bool RerankReply::take(const Item& item) {
    return heard_.take(item, [&](std::size_t prompt, std::span<const float> logits) {
        scores_.at(prompt) = 1 / (1 + std::exp(double{logits[1]} - logits[0]));  // softmax of "yes" and "no"
    });
}

HttpReply RerankReply::finish() const {
    if (auto error = heard_.error()) return *error;
    std::vector<std::size_t> order(scores_.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return scores_[a] > scores_[b]; });
    order.resize(std::min(order.size(), request_.top));
    json::array results;
    for (const std::size_t i : order) {
        json::object result = {{"index", i}, {"relevance_score", scores_[i]}};
        if (request_.with_documents) result["document"] = {{"text", request_.documents[i]}};
        results.push_back(std::move(result));
    }
    return {200, json::serialize(json::object{{"id", facts_.id},
                                              {"model", facts_.model},
                                              {"results", std::move(results)},
                                              {"usage", heard_.openai_usage()}})};
}

}  // namespace riptide::server
