#include "server/api/openai/openai_chat.h"

#include <utility>

#include "base/json.h"
#include "server/api/api.h"

namespace riptide::server {

namespace {

/// One token of logprobs.content, with its alternatives.
json::object content_entry(const Tokenizer* tokenizer, const Sampled& sampled) {
    json::object entry = logprob_entry(tokenizer, sampled.token, sampled.logprob);
    json::array top;
    for (const TokenLogprob& other : sampled.top) top.push_back(logprob_entry(tokenizer, other.token, other.logprob));
    entry["top_logprobs"] = std::move(top);
    return entry;
}

}  // namespace

ChatReply::ChatReply(ReplyFacts facts, const GenerationRequest& request, const Tokenizer* tokenizer)
    : facts_(std::move(facts)),
      tokenizer_(tokenizer),
      stream_(request.stream),
      include_usage_(request.include_usage),
      one_tool_call_(request.one_tool_call),
      logprobs_(request.logprobs),
      custom_(request.custom),
      choices_(static_cast<std::size_t>(request.prompts.at(0).n)),
      usage_(request.prompts.at(0).n) {
    const json::object head = {
        {"id", facts_.id}, {"object", "chat.completion.chunk"}, {"created", facts_.created}, {"model", facts_.model}};
    chunk_head_ = json::serialize(head);
    chunk_head_.back() = ',';  // goes on
    chunk_head_ += "\"choices\":[{\"index\":";
}

/// Written by hand: this is what each token costs. `delta` is JSON.
void ChatReply::append_chunk(int32_t index, std::string_view delta, const json::value& logprobs,
                             const json::value& finish_reason, std::string& out) const {
    out += "data: ";
    out += chunk_head_;
    out += std::to_string(index);
    out += ",\"delta\":";
    out += delta;
    if (logprobs_) out += ",\"logprobs\":" + json::serialize(logprobs);
    if (finish_reason.is_null()) out += ",\"finish_reason\":null";
    else out += ",\"finish_reason\":" + json::serialize(finish_reason);
    out += include_usage_ ? "}],\"usage\":null}\n\n" : "}]}\n\n";
}

std::string ChatReply::opening() const {
    std::string out;
    for (int32_t i = 0; i < std::ssize(choices_); ++i)
        append_chunk(i, R"({"role":"assistant","content":""})", nullptr, nullptr, out);
    return out;
}

/// Of the tokens since the last delta.
json::value ChatReply::logprobs_so_far(int32_t index) {
    Choice& choice = choices_[static_cast<std::size_t>(index)];
    if (choice.logprobs.empty()) return nullptr;
    return json::object{{"content", std::exchange(choice.logprobs, {})}};
}

void ChatReply::send(int32_t index, const json::object& delta, std::string& out) {
    if (stream_) append_chunk(index, json::serialize(delta), logprobs_so_far(index), nullptr, out);
}

/// A delta that has the same text under each key.
void ChatReply::send_text(int32_t index, std::initializer_list<std::string_view> keys, const std::string& text,
                          std::string& out) {
    if (!stream_) return;
    const std::string quoted = json::serialize(json::string_view(text));
    std::string delta = "{";
    for (const std::string_view key : keys) {
        if (delta.size() > 1) delta += ',';
        delta += '"';
        delta += key;
        delta += "\":";
        delta += quoted;
    }
    delta += '}';
    append_chunk(index, delta, logprobs_so_far(index), nullptr, out);
}

bool ChatReply::take(const Item& item, std::string& out) {
    const Event& event = item.event;
    Choice& choice = choices_.at(static_cast<std::size_t>(event.answer));
    usage_.add(item);
    if (std::holds_alternative<Failed>(event.body) || was_cancelled(event)) {
        error_ = error_of(event);
        if (stream_) abort(*error_, out);
        return true;
    }
    if (const auto* text = std::get_if<TextDelta>(&event.body)) {
        if (!stream_) choice.text += text->text;
        send_text(event.answer, {"content"}, text->text, out);
    } else if (const auto* thought = std::get_if<ReasoningDelta>(&event.body)) {
        if (!stream_) choice.reasoning += thought->text;
        send_text(event.answer, {"reasoning_content", "reasoning"}, thought->text, out);
    } else if (const auto* tokens = std::get_if<TokensDrawn>(&event.body)) {
        drawn(choice, *tokens);
    } else if (const auto* call = std::get_if<ToolCallBegin>(&event.body)) {
        call_begins(choice, event.answer, *call, out);
    } else if (const auto* part = std::get_if<ToolCallArguments>(&event.body)) {
        call_goes_on(choice, event.answer, *part, out);
    } else if (const auto* end = std::get_if<ToolCallEnd>(&event.body)) {
        call_ends(choice, event.answer, *end, out);
    } else if (const auto* done = std::get_if<Done>(&event.body)) {
        answer_ends(choice, event.answer, *done, out);
    }
    return usage_.complete();
}

void ChatReply::drawn(Choice& choice, const TokensDrawn& tokens) const {
    if (!logprobs_) return;
    for (const Sampled& sampled : tokens.tokens) choice.logprobs.push_back(content_entry(tokenizer_, sampled));
}

void ChatReply::call_begins(Choice& choice, int32_t index, const ToolCallBegin& call, std::string& out) {
    choice.dropping = one_tool_call_ && call.index > 0;
    if (choice.dropping) return;
    const std::string id = random_id("call_");  // agents keep results by id, across turns
    choice.custom = custom_.contains(call.name);
    json::object begun = {{"id", id}};
    if (choice.custom) {
        begun["type"] = "custom";
        begun["custom"] = {{"name", call.name}, {"input", ""}};
    } else {
        begun["type"] = "function";
        begun["function"] = {{"name", call.name}, {"arguments", ""}};
    }
    if (!stream_) choice.tool_calls.push_back(begun);
    if (!stream_ || choice.custom) choice.arguments.emplace_back();
    begun["index"] = call.index;
    send(index, {{"tool_calls", json::array{begun}}}, out);
}

void ChatReply::call_goes_on(Choice& choice, int32_t index, const ToolCallArguments& part, std::string& out) {
    if (choice.dropping) return;
    if (!stream_ || choice.custom) choice.arguments.back() += part.json_fragment;
    if (choice.custom) return;
    const json::object delta = {{"index", part.index}, {"function", {{"arguments", part.json_fragment}}}};
    send(index, {{"tool_calls", json::array{delta}}}, out);
}

/// Free text goes out in one piece, when the JSON that holds it is over.
void ChatReply::call_ends(Choice& choice, int32_t index, const ToolCallEnd& end, std::string& out) {
    if (choice.dropping || !choice.custom) return;
    choice.custom = false;
    const std::string input = text_of_input(choice.arguments.back());
    if (!stream_) choice.tool_calls.back().at("custom").as_object()["input"] = input;
    send(index, {{"tool_calls", json::array{{{"index", end.index}, {"custom", {{"input", input}}}}}}}, out);
}

void ChatReply::answer_ends(Choice& choice, int32_t index, const Done& done, std::string& out) {
    choice.finish_reason = openai_finish_reason(done);
    if (!stream_) return;
    append_chunk(index, "{}", logprobs_so_far(index), choice.finish_reason, out);
    if (!usage_.complete()) return;
    if (include_usage_) {
        const json::object last = {{"id", facts_.id},
                                   {"object", "chat.completion.chunk"},
                                   {"created", facts_.created},
                                   {"model", facts_.model},
                                   {"choices", json::array()},
                                   {"usage", usage_.openai()},
                                   {"timings", usage_.timings()},
                                   {"weights_version", usage_.version()}};
        append_data(out, json::serialize(last));
    }
    append_data(out, "[DONE]");
}

void ChatReply::heartbeat(std::string& out) const { append_chunk(0, "{}", nullptr, nullptr, out); }

void ChatReply::abort(const ApiError& error, std::string& out) const {
    append_data(out, error_body(error, ErrorShape::openai));
}

json::object ChatReply::message(const Choice& choice) const {
    json::object out = {{"role", "assistant"}, {"content", choice.text}};
    if (choice.text.empty() && !choice.tool_calls.empty()) out["content"] = nullptr;
    if (!choice.reasoning.empty()) {
        out["reasoning_content"] = choice.reasoning;
        out["reasoning"] = choice.reasoning;
    }
    if (choice.tool_calls.empty()) return out;
    json::array calls = choice.tool_calls;
    for (std::size_t i = 0; i < calls.size(); ++i)
        if (json::value* function = calls[i].as_object().if_contains("function"))
            function->as_object()["arguments"] = choice.arguments[i];
    out["tool_calls"] = std::move(calls);
    return out;
}

HttpReply ChatReply::finish() const {
    if (error_) return error_reply(*error_, ErrorShape::openai);
    json::array choices;
    for (std::size_t i = 0; i < choices_.size(); ++i) {
        const Choice& choice = choices_[i];
        json::object entry = {{"index", i}, {"message", message(choice)}};
        entry["logprobs"] = logprobs_ ? json::value(json::object{{"content", choice.logprobs}}) : json::value();
        entry["finish_reason"] = choice.finish_reason;
        choices.push_back(std::move(entry));
    }
    const json::object out = {{"id", facts_.id},
                              {"object", "chat.completion"},
                              {"created", facts_.created},
                              {"model", facts_.model},
                              {"choices", std::move(choices)},
                              {"usage", usage_.openai()},
                              {"timings", usage_.timings()},
                              {"weights_version", usage_.version()}};
    return {200, json::serialize(out)};
}

}  // namespace riptide::server
