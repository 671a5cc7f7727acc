// Requests of Ollama's API.
#pragma once

#include "server/api/generation_request.h"

namespace riptide::server {

/// POST /api/chat. No prompts, if there are no messages: the client only wants the model loaded. A last message of the
/// assistant is what the answer begins with. Throws ApiError.
GenerationRequest parse_ollama_chat(const json::object& body, const RequestDefaults& defaults);

/// POST /api/generate: the prompt as it is (`raw`), or as a message of the user behind the system message. No prompts,
/// if `prompt` is empty. Throws ApiError.
GenerationRequest parse_ollama_generate(const json::object& body, const RequestDefaults& defaults);

/// The model of a request that is only about it: `model`, or `name`, as older clients have it.
std::string ollama_model(const Fields& fields);

}  // namespace riptide::server
