#include "server/api/responses/responses_compact.h"

#include <array>

#include "server/api/api.h"
#include "server/api/responses/responses_reply.h"
#include "server/api/responses/responses_tools.h"

namespace riptide::server {

namespace {

/// What is read of the body: what the model reads as in the conversation itself, so that it finds that in its cache.
constexpr std::array<std::string_view, 10> kRead = {
    "model",       "instructions",     "previous_response_id", "tools",  "reasoning", "max_output_tokens",
    "temperature", "prompt_cache_key", "cache_salt",           "timeout"};

/// The body of POST /v1/responses that does the same.
json::object summary_body(const json::object& asked) {
    json::object out = {{"store", false}};
    for (const std::string_view key : kRead)
        if (const json::value* value = asked.if_contains(key)) out[key] = *value;
    json::array input;
    const json::value* given = asked.if_contains("input");
    if (given != nullptr && given->is_string()) input.push_back({{"role", "user"}, {"content", *given}});
    else if (const json::array* items = Fields(asked).array("input")) input = *items;
    if (input.empty() && !Fields(asked).string("previous_response_id"))
        refuse("input", "input: expected at least one item, or previous_response_id");
    input.push_back(json::object{{"type", "compaction_trigger"}});
    out["input"] = std::move(input);
    return out;
}

/// A response whose output is the summary, as this route has it.
HttpReply compacted(const HttpReply& reply, json::array output) {
    if (reply.status != 200) return reply;
    const json::value response = parse_json(reply.body, "a response");
    for (const json::value& item : response.at("output").as_array()) output.push_back(item);
    return {200, json::serialize(json::object{{"id", response.at("id")},
                                              {"object", "response.compaction"},
                                              {"created_at", response.at("created_at")},
                                              {"output", std::move(output)},
                                              {"usage", response.at("usage")}})};
}

}  // namespace

json::array users_messages(const json::array& items) {
    json::array out;
    for (const json::value& value : items) {
        const json::object& item = value.as_object();
        if (item_type(item) != "message" || string_of(item, "role") != "user") continue;
        json::object message = item;
        message["type"] = "message";
        if (!message.contains("id")) message["id"] = random_id("msg_");
        if (json::value& content = message["content"]; content.is_string())
            content = json::array{{{"type", "input_text"}, {"text", json::value(content)}}};
        message["status"] = "completed";
        out.push_back(std::move(message));
    }
    return out;
}

Outcome post_compact(const ApiContext& ctx, const json::object& body) {
    const Stored stored{ctx.responses, ctx.isolation, ""};
    ResponsesRequest asked = parse_responses(summary_body(body), defaults_of(ctx), &stored);
    check_model(ctx, asked.generation.model);
    const ReplyFacts facts = facts_of(ctx, "resp_");
    PendingReply out = pending(std::make_shared<ResponseReply>(facts, asked, nullptr), false);
    out.finish = [finish = std::move(out.finish), kept = std::move(asked.conversation)] {
        return compacted(finish(), kept);
    };
    start_response(ctx, asked, facts.id, out);
    return out;
}

}  // namespace riptide::server
