#include "server/api/anthropic/anthropic_reply.h"

#include <utility>

#include "base/json.h"
#include "server/api/api.h"

namespace riptide::server {

namespace {

/// Clients send thinking back only with a signature, and do not look into it.
constexpr std::string_view kSignature = "riptide";

void append_event(std::string& out, const json::object& event) {
    out += "event: ";
    out += std::string_view(event.at("type").get_string());
    out += '\n';
    append_data(out, json::serialize(event));
}

std::string_view stop_reason_of(const Done& done) {
    if (done.reason == FinishReason::length || done.reason == FinishReason::context) return "max_tokens";
    if (done.reason == FinishReason::stop_string) return "stop_sequence";
    return done.tool_calls > 0 ? "tool_use" : "end_turn";
}

}  // namespace

MessageReply::MessageReply(ReplyFacts facts, const GenerationRequest& request, const Tokenizer*)
    : facts_(std::move(facts)), stream_(request.stream), one_tool_call_(request.one_tool_call) {}

namespace {

json::object usage_of(int64_t prompt, int64_t cached, int64_t completion, int64_t version) {
    return {{"input_tokens", prompt - cached},
            {"cache_creation_input_tokens", 0},
            {"cache_read_input_tokens", cached},
            {"output_tokens", completion},
            {"weights_version", version}};
}

}  // namespace

json::object MessageReply::usage() const {
    json::object out = usage_of(usage_.prompt(), usage_.cached(), usage_.completion(), usage_.version());
    for (const auto& [key, value] : usage_.losses()) out[key] = value;
    return out;
}

json::object MessageReply::message(const json::array& content, json::object usage) const {
    return {{"id", facts_.id},           {"type", "message"},
            {"role", "assistant"},       {"model", facts_.model},
            {"content", content},        {"stop_reason", stop_reason_},
            {"usage", std::move(usage)}, {"stop_sequence", stop_sequence_}};
}

std::string MessageReply::opening() const {
    std::string out;
    heartbeat(out);
    return out;
}

void MessageReply::begin(const EventBody& first, std::string& out) {
    if (!stream_ || std::exchange(begun_, true)) return;
    int64_t prompt = usage_.prompt(), cached = usage_.cached();
    if (const auto* progress = std::get_if<PromptProgress>(&first)) {
        prompt = progress->total;
        cached = progress->cached;
    }
    append_event(out,
                 {{"type", "message_start"}, {"message", message({}, usage_of(prompt, cached, 0, facts_.version))}});
}

void MessageReply::heartbeat(std::string& out) const { append_event(out, {{"type", "ping"}}); }

void MessageReply::abort(const ApiError& error, std::string& out) const {
    out += "event: error\n";
    append_data(out, error_body(error, ErrorShape::anthropic));
}

void MessageReply::open(Block kind, const json::object& start, std::string& out) {
    if (block_ == kind && kind != Block::tool_use) return;
    close(out);
    block_ = kind;
    current_ = start;
    if (stream_) append_event(out, {{"type", "content_block_start"}, {"index", blocks_}, {"content_block", start}});
    ++blocks_;
}

/// More of the block that is open.
void MessageReply::add(std::string_view delta_type, std::string_view key, const std::string& text, std::string& out) {
    if (!stream_) {
        text_ += text;
        return;
    }
    const json::object delta = {{"type", delta_type}, {key, text}};
    append_event(out, {{"type", "content_block_delta"}, {"index", blocks_ - 1}, {"delta", delta}});
}

void MessageReply::close(std::string& out) {
    const Block kind = std::exchange(block_, Block::none);
    if (kind == Block::none) return;
    if (stream_) {
        if (kind == Block::thinking) add("signature_delta", "signature", std::string(kSignature), out);
        append_event(out, {{"type", "content_block_stop"}, {"index", blocks_ - 1}});
        return;
    }
    const std::string text = std::exchange(text_, {});
    if (kind == Block::text) current_["text"] = text;
    if (kind == Block::tool_use && !text.empty()) current_["input"] = parse_json(text, "the arguments of a tool call");
    if (kind == Block::thinking) {
        current_["thinking"] = text;
        current_["signature"] = kSignature;
    }
    content_.push_back(std::move(current_));
}

bool MessageReply::take(const Item& item, std::string& out) {
    const Event& event = item.event;
    usage_.add(item);
    if (std::holds_alternative<Failed>(event.body) || was_cancelled(event)) {
        error_ = error_of(event);
        if (stream_) abort(*error_, out);
        return true;
    }
    begin(event.body, out);
    if (const auto* text = std::get_if<TextDelta>(&event.body)) {
        open(Block::text, {{"type", "text"}, {"text", ""}}, out);
        add("text_delta", "text", text->text, out);
    } else if (const auto* thought = std::get_if<ReasoningDelta>(&event.body)) {
        open(Block::thinking, {{"type", "thinking"}, {"thinking", ""}, {"signature", ""}}, out);
        add("thinking_delta", "thinking", thought->text, out);
    } else if (const auto* call = std::get_if<ToolCallBegin>(&event.body)) {
        dropping_ = one_tool_call_ && call->index > 0;
        if (dropping_) return false;
        const std::string id = random_id("toolu_");  // agents keep results by id, across turns
        open(Block::tool_use, {{"type", "tool_use"}, {"id", id}, {"name", call->name}, {"input", json::object()}}, out);
    } else if (const auto* part = std::get_if<ToolCallArguments>(&event.body)) {
        if (!dropping_) add("input_json_delta", "partial_json", part->json_fragment, out);
    } else if (const auto* end = std::get_if<ToolCallEnd>(&event.body)) {
        if (!end->complete && !dropping_) text_.clear();  // what has come is no JSON: see the header
        if (!dropping_) close(out);
        dropping_ = false;
    } else if (const auto* done = std::get_if<Done>(&event.body)) {
        answer_ends(*done, out);
    }
    return usage_.complete();
}

void MessageReply::answer_ends(const Done& done, std::string& out) {
    close(out);
    stop_reason_ = stop_reason_of(done);
    if (done.reason == FinishReason::stop_string) stop_sequence_ = done.stop_string;
    if (!stream_) return;
    const json::object delta = {{"stop_reason", stop_reason_}, {"stop_sequence", stop_sequence_}};
    append_event(out, {{"type", "message_delta"}, {"delta", delta}, {"usage", usage()}});
    append_event(out, {{"type", "message_stop"}});
}

HttpReply MessageReply::finish() const {
    if (error_) return error_reply(*error_, ErrorShape::anthropic);
    return {200, json::serialize(message(content_, usage()))};
}

}  // namespace riptide::server
