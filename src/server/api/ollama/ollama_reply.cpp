#include "server/api/ollama/ollama_reply.h"

#include <utility>

#include "base/json.h"

namespace riptide::server {

namespace {

int64_t nanoseconds(double seconds) { return static_cast<int64_t>(seconds * 1e9); }

json::object token_entry(const Tokenizer* tokenizer, const Sampled& sampled) {
    json::object out = logprob_entry(tokenizer, sampled.token, sampled.logprob);
    json::array top;
    for (const TokenLogprob& other : sampled.top) top.push_back(logprob_entry(tokenizer, other.token, other.logprob));
    if (!top.empty()) out["top_logprobs"] = std::move(top);
    return out;
}

}  // namespace

OllamaReply::OllamaReply(ReplyFacts facts, const GenerationRequest& request, const Tokenizer* tokenizer,
                         OllamaShape shape)
    : facts_(std::move(facts)),
      tokenizer_(tokenizer),
      shape_(shape),
      stream_(request.stream),
      logprobs_(request.logprobs),
      created_at_(utc_time(facts_.created)) {}

json::object OllamaReply::object_of(const Part& part) const {
    json::object out = {{"model", facts_.model}, {"created_at", created_at_}};
    json::object message = {{"role", "assistant"}, {"content", part.text}};
    const bool chat = shape_ == OllamaShape::chat;
    if (!part.thinking.empty()) (chat ? message : out)["thinking"] = part.thinking;
    if (!part.calls.empty()) message["tool_calls"] = part.calls;
    if (chat) out["message"] = std::move(message);
    else out["response"] = part.text;
    if (!part.logprobs.empty()) out["logprobs"] = part.logprobs;
    out["done"] = false;
    return out;
}

void OllamaReply::append_line(const json::object& object, std::string& out) const {
    out += json::serialize(object);
    out += '\n';
}

void OllamaReply::send(std::string& out) {
    if (stream_) append_line(object_of(std::exchange(part_, {})), out);
}

bool OllamaReply::take(const Item& item, std::string& out) {
    const Event& event = item.event;
    if (std::holds_alternative<Failed>(event.body) || was_cancelled(event)) {
        error_ = error_of(event);
        if (stream_) abort(*error_, out);
        return true;
    }
    if (const auto* text = std::get_if<TextDelta>(&event.body)) {
        part_.text += text->text;
        send(out);
    } else if (const auto* thought = std::get_if<ReasoningDelta>(&event.body)) {
        part_.thinking += thought->text;
        send(out);
    } else if (const auto* tokens = std::get_if<TokensDrawn>(&event.body)) {
        if (!logprobs_) return false;
        for (const Sampled& sampled : tokens->tokens) part_.logprobs.push_back(token_entry(tokenizer_, sampled));
    } else if (const auto* call = std::get_if<ToolCallBegin>(&event.body)) {
        name_ = call->name;
        arguments_.clear();
    } else if (const auto* more = std::get_if<ToolCallArguments>(&event.body)) {
        arguments_ += more->json_fragment;
    } else if (const auto* end = std::get_if<ToolCallEnd>(&event.body)) {
        call_ends(end->complete, out);
    } else if (const auto* done = std::get_if<Done>(&event.body)) {
        answer_ends(*done, out);
        return true;
    }
    return false;
}

void OllamaReply::call_ends(bool complete, std::string& out) {
    if (!complete) return;
    const json::value arguments =
        arguments_.empty() ? json::object() : parse_json(arguments_, "the arguments of a tool call");
    const json::object function = {{"name", name_}, {"arguments", arguments}};
    part_.calls.push_back(json::object{{"function", function}});
    send(out);
}

void OllamaReply::answer_ends(const Done& done, std::string& out) {
    const bool cut = done.reason == FinishReason::length || done.reason == FinishReason::context;
    const Timings& took = done.timings;
    ending_ = {{"done", true},
               {"done_reason", cut ? "length" : "stop"},
               {"total_duration", nanoseconds(took.scoring + took.queue + took.prefill + took.decode)},
               {"load_duration", 0},
               {"prompt_eval_count", done.usage.prompt},
               {"prompt_eval_duration", nanoseconds(took.prefill)},
               {"eval_count", done.usage.completion},
               {"eval_duration", nanoseconds(took.decode)}};
    if (!stream_) return;
    json::object last = object_of(part_);
    for (const auto& [key, value] : ending_) last[key] = value;
    append_line(last, out);
}

void OllamaReply::heartbeat(std::string& out) const { append_line(object_of({}), out); }

void OllamaReply::abort(const ApiError& error, std::string& out) const {
    out += error_body(error, ErrorShape::ollama) + "\n";
}

HttpReply OllamaReply::finish() const {
    if (error_) return error_reply(*error_, ErrorShape::ollama);
    json::object out = object_of(part_);
    for (const auto& [key, value] : ending_) out[key] = value;
    return {200, json::serialize(out)};
}

HttpReply OllamaReply::loaded() const {
    json::object out = object_of({});
    out["done"] = true;
    out["done_reason"] = "load";
    if (!stream_) return {200, json::serialize(out)};
    return {200, json::serialize(out) + "\n", std::string(kLines)};
}

}  // namespace riptide::server
