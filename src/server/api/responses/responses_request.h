// POST /v1/responses: what is asked.
#pragma once

#include <map>
#include <string>

#include "server/api/custom_tools.h"
#include "server/api/generation_request.h"
#include "server/api/responses/response_store.h"
#include "server/api/responses/responses_origins.h"

namespace riptide::server {

struct ResponsesRequest {
    GenerationRequest generation;
    /// What the reply repeats: instructions, tools, reasoning, ... as they were sent.
    json::object echo;
    std::map<std::string, std::string, std::less<>> namespaces;  // of functions that came in one: name -> namespace
    bool summary = false;                                        // the reasoning is wanted as a summary too
    bool sealed = false;                                         // and as encrypted_content
    bool store = true;                                           // later requests may refer to this one
    bool generate = true;                                        // false: and that is all that is wanted
    /// All input items, those of earlier responses first; of a request that asks for a summary the user's messages.
    json::array conversation;
    bool compact = false;  // the answer is to be a summary of the conversation
    ChatOrigins origins;   // of the chat in `generation`
};

/// Turns the body into one of /v1/chat/completions, and reads that as parse_chat does: `input` (a string, or items:
/// messages, reasoning, function calls and their outputs, references to stored items) and `instructions` become
/// messages, where what the model said in one go is one message again. Items and tools of types that are of no use to a
/// local model are left out; functions in a namespace are functions, custom tools functions of one text. `stored` may
/// be null: then references are refused. Throws ApiError that names the field.
ResponsesRequest parse_responses(json::object body, const RequestDefaults& defaults, const Stored* stored);

/// Reasoning, or a summary, as encrypted_content, for clients that send nothing else back. It is not secret: a mark and
/// the text.
std::string seal(std::string_view text);
/// The text; "" if it was not sealed here.
std::string unseal(std::string_view sealed);

}  // namespace riptide::server
