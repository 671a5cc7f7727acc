// Requests for vectors and for scores: /v1/embeddings, /v1/rerank, and Ollama's /api/embed and /api/embeddings.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "server/api/generation_request.h"

namespace riptide::server {

/// Of one call.
inline constexpr std::size_t kMostInputs = 2048;

struct EmbeddingRequest {
    GenerationRequest asked;  // a prompt for each input
    int64_t dimensions = 0;   // of each vector its first so many; 0: all
    bool base64 = false;      // vectors as the bytes of their f32, little-endian
    bool truncate = false;    // inputs that are too long lose their end
};

/// POST /v1/embeddings. `size`: of the model's vectors. Throws ApiError.
EmbeddingRequest parse_embeddings(const json::object& body, const RequestDefaults& defaults, int64_t size);
/// POST /api/embed. No prompts if there is no input: the client only wants the model loaded. Throws ApiError.
EmbeddingRequest parse_ollama_embed(const json::object& body, const RequestDefaults& defaults, int64_t size);
/// POST /api/embeddings, the older one: one text, in `prompt`. Throws ApiError.
EmbeddingRequest parse_ollama_embeddings(const json::object& body, const RequestDefaults& defaults);

struct RerankRequest {
    GenerationRequest asked;  // without prompts: pair_text() says what they are
    std::string query, instruction;
    std::vector<std::string> documents;
    std::size_t top = 0;  // results, at most
    bool with_documents = false;
};

/// POST /v1/rerank, as Jina, Cohere and vLLM have it. Throws ApiError.
RerankRequest parse_rerank(const json::object& body, const RequestDefaults& defaults);

/// The prompt of Qwen3-Reranker's model card, in three parts. Round the client's words stands markup; they themselves
/// are text whatever they spell, so that no document can end its turn and answer for the model.
inline constexpr std::string_view kBeforePair =
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    "provided. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n<|im_start|>user\n";
std::string pair_text(const RerankRequest& request, std::size_t document);
inline constexpr std::string_view kBehindPair = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";

}  // namespace riptide::server
