#include "server/api/responses/responses_reply.h"

#include <utility>

#include "base/json.h"
#include "server/api/api.h"
#include "server/api/responses/responses_tools.h"

namespace riptide::server {

namespace {

json::object text_part(std::string_view text) {
    return {{"type", "output_text"}, {"text", text}, {"annotations", json::array()}, {"logprobs", json::array()}};
}

json::object reasoning_part(std::string_view text) { return {{"type", "reasoning_text"}, {"text", text}}; }
json::object summary_part(std::string_view text) { return {{"type", "summary_text"}, {"text", text}}; }

/// How the API calls what went wrong.
std::string code_of(const ApiError& error) {
    if (!error.code().empty()) return error.code();
    if (error.status() == 503) return "server_is_overloaded";
    return error.status() < 500 ? "invalid_prompt" : "server_error";
}

}  // namespace

ResponseReply::ResponseReply(ReplyFacts facts, const ResponsesRequest& request, Keep keep)
    : facts_(std::move(facts)),
      echo_(request.echo),
      namespaces_(request.namespaces),
      custom_(request.generation.custom),
      keep_(std::move(keep)),
      stream_(request.generation.stream),
      one_tool_call_(request.generation.one_tool_call),
      summary_(request.summary),
      sealed_(request.sealed),
      store_(request.store),
      compact_(request.compact) {
    const SamplingParams& sampling = request.generation.prompts.at(0).sampling;
    temperature_ = sampling.temperature;
    top_p_ = sampling.top_p;
    if (keep_) input_ = request.conversation;
}

json::object ResponseReply::response(std::string_view status, const json::object& also) const {
    json::object out = {{"id", facts_.id},
                        {"object", "response"},
                        {"created_at", facts_.created},
                        {"status", status},
                        {"background", false},
                        {"error", nullptr},
                        {"incomplete_details", nullptr},
                        {"model", facts_.model},
                        {"output", output_},
                        {"service_tier", "default"},
                        {"store", store_},
                        {"temperature", temperature_},
                        {"top_logprobs", 0},
                        {"top_p", top_p_},
                        {"truncation", "disabled"},
                        {"usage", nullptr}};
    for (const auto& [key, value] : echo_) out[key] = value;
    for (const auto& [key, value] : also) out[key] = value;
    return out;
}

void ResponseReply::emit(std::string_view type, json::object fields, std::string& out) {
    if (!stream_) return;
    json::object event = {{"type", type}, {"sequence_number", sequence_++}};
    for (auto& [key, value] : fields) event[key] = std::move(value);
    out += "event: ";
    out += type;
    out += '\n';
    append_data(out, json::serialize(event));
}

std::string ResponseReply::opening() {
    std::string out;
    emit("response.created", {{"response", response("in_progress", {})}}, out);
    heartbeat(out);
    return out;
}

HttpReply ResponseReply::prepared() {
    std::string out = opening();
    Done done;
    done.reason = FinishReason::stop_id;
    done.version = facts_.version;
    take({0, {.body = done}}, out);
    return stream_ ? HttpReply{200, std::move(out), "text/event-stream; charset=utf-8"} : finish();
}

void ResponseReply::heartbeat(std::string& out) {
    emit("response.in_progress", {{"response", response("in_progress", {})}}, out);
}

void ResponseReply::abort(const ApiError& error, std::string& out) { fail(error, out); }

// Deltas are what each token costs: everything but text and number is made once for each item.

void ResponseReply::delta(const std::string& head, std::string_view text, std::string_view tail, std::string& out) {
    out += head;
    out += json::serialize(json::string_view(text.data(), text.size()));
    out += tail;
    out += fmt::format(",\"sequence_number\":{}}}\n\n", sequence_++);
}

namespace {

std::string delta_head(std::string_view type, const json::object& item, std::size_t index, std::string_view part) {
    std::string out = fmt::format("event: {}\ndata: {{\"type\":\"{}\",\"item_id\":{},\"output_index\":{}", type, type,
                                  json::serialize(item.at("id")), index);
    if (!part.empty()) out += fmt::format(",\"{}\":0", part);
    return out + ",\"delta\":";
}

}  // namespace

void ResponseReply::part_event(std::string_view type, std::string_view index_name, json::object fields,
                               std::string& out) {
    json::object event = {{"item_id", item_.at("id")}, {"output_index", output_.size()}};
    if (!index_name.empty()) event[index_name] = 0;
    for (auto& [key, value] : fields) event[key] = std::move(value);
    emit(type, std::move(event), out);
}

void ResponseReply::open(Kind kind, std::string& out) {
    if (kind_ == kind) return;
    close(true, out);
    kind_ = kind;
    text_.clear();
    const std::size_t index = output_.size();
    if (kind == Kind::message) {
        item_ = {{"id", random_id("msg_")},
                 {"type", "message"},
                 {"status", "in_progress"},
                 {"role", "assistant"},
                 {"content", json::array()}};
        delta_head_ = delta_head("response.output_text.delta", item_, index, "content_index");
    } else {
        item_ = {
            {"id", random_id("rs_")}, {"type", "reasoning"}, {"status", "in_progress"}, {"summary", json::array()}};
        item_["content"] = json::array();
        if (sealed_) item_["encrypted_content"] = nullptr;
        delta_head_ = delta_head("response.reasoning_text.delta", item_, index, "content_index");
        summary_head_ = delta_head("response.reasoning_summary_text.delta", item_, index, "summary_index");
    }
    emit("response.output_item.added", {{"output_index", index}, {"item", item_}}, out);
    open_parts(out);
}

void ResponseReply::open_parts(std::string& out) {
    if (kind_ == Kind::reasoning && summary_)
        part_event("response.reasoning_summary_part.added", "summary_index", {{"part", summary_part("")}}, out);
    const json::object part = kind_ == Kind::message ? text_part("") : reasoning_part("");
    part_event("response.content_part.added", "content_index", {{"part", part}}, out);
}

void ResponseReply::open_call(const ToolCallBegin& call, std::string& out) {
    close(true, out);
    const bool custom = custom_.contains(call.name);
    kind_ = custom ? Kind::custom_call : Kind::call;
    text_.clear();
    if (custom)
        item_ = {{"id", random_id("ctc_")},       {"type", "custom_tool_call"}, {"status", "in_progress"},
                 {"call_id", random_id("call_")}, {"name", call.name},          {"input", ""}};
    else
        item_ = {{"id", random_id("fc_")},        {"type", "function_call"}, {"status", "in_progress"},
                 {"call_id", random_id("call_")}, {"name", call.name},       {"arguments", ""}};
    if (const auto found = namespaces_.find(call.name); found != namespaces_.end()) item_["namespace"] = found->second;
    delta_head_ = delta_head("response.function_call_arguments.delta", item_, output_.size(), "");
    emit("response.output_item.added", {{"output_index", output_.size()}, {"item", item_}}, out);
}

void ResponseReply::close_message(std::string& out) {
    part_event("response.output_text.done", "content_index", {{"text", text_}, {"logprobs", json::array()}}, out);
    part_event("response.content_part.done", "content_index", {{"part", text_part(text_)}}, out);
    item_["content"] = json::array{text_part(text_)};
}

/// Its text comes in one piece, when the JSON that holds it is over.
void ResponseReply::close_custom_call(std::string& out) {
    const std::string input = text_of_input(text_);
    part_event("response.custom_tool_call_input.delta", "", {{"delta", input}}, out);
    part_event("response.custom_tool_call_input.done", "", {{"input", input}}, out);
    item_["input"] = input;
}

void ResponseReply::close_reasoning(std::string& out) {
    if (summary_) {
        part_event("response.reasoning_summary_text.done", "summary_index", {{"text", text_}}, out);
        part_event("response.reasoning_summary_part.done", "summary_index", {{"part", summary_part(text_)}}, out);
        item_["summary"] = json::array{summary_part(text_)};
    }
    part_event("response.reasoning_text.done", "content_index", {{"text", text_}}, out);
    part_event("response.content_part.done", "content_index", {{"part", reasoning_part(text_)}}, out);
    item_["content"] = json::array{reasoning_part(text_)};
    if (sealed_) item_["encrypted_content"] = seal(text_);
}

/// `complete` false: the answer ended inside the item.
void ResponseReply::close(bool complete, std::string& out) {
    if (kind_ == Kind::none) return;
    if (kind_ == Kind::message) close_message(out);
    if (kind_ == Kind::reasoning) close_reasoning(out);
    if (kind_ == Kind::custom_call) close_custom_call(out);
    if (kind_ == Kind::call) {
        item_["arguments"] = text_;
        part_event("response.function_call_arguments.done", "", {{"name", item_.at("name")}, {"arguments", text_}},
                   out);
    }
    item_["status"] = complete ? "completed" : "incomplete";
    emit("response.output_item.done", {{"output_index", output_.size()}, {"item", item_}}, out);
    output_.push_back(std::move(item_));
    item_ = {};
    kind_ = Kind::none;
}

bool ResponseReply::take(const Item& item, std::string& out) {
    usage_.add(item);
    if (std::holds_alternative<Failed>(item.event.body) || was_cancelled(item.event)) {
        fail(error_of(item.event), out);
        return true;
    }
    if (compact_) take_summary(item.event.body, out);
    else take_body(item.event.body, out);
    return usage_.complete();
}

void ResponseReply::take_body(const EventBody& body, std::string& out) {
    if (const auto* text = std::get_if<TextDelta>(&body)) {
        open(Kind::message, out);
        text_ += text->text;
        if (stream_) delta(delta_head_, text->text, ",\"logprobs\":[]", out);
    } else if (const auto* thought = std::get_if<ReasoningDelta>(&body)) {
        open(Kind::reasoning, out);
        text_ += thought->text;
        if (stream_ && summary_) delta(summary_head_, thought->text, "", out);
        if (stream_) delta(delta_head_, thought->text, "", out);
    } else if (const auto* call = std::get_if<ToolCallBegin>(&body)) {
        dropping_ = one_tool_call_ && call->index > 0;
        if (!dropping_) open_call(*call, out);
    } else if (const auto* part = std::get_if<ToolCallArguments>(&body)) {
        if (dropping_) return;
        text_ += part->json_fragment;
        if (stream_ && kind_ == Kind::call) delta(delta_head_, part->json_fragment, "", out);
    } else if (const auto* end = std::get_if<ToolCallEnd>(&body)) {
        if (!dropping_) close(end->complete, out);
        dropping_ = false;
    } else if (const auto* done = std::get_if<Done>(&body)) {
        answer_ends(*done, out);
    }
}

/// It comes whole, as an item that holds it.
void ResponseReply::take_summary(const EventBody& body, std::string& out) {
    if (const auto* text = std::get_if<TextDelta>(&body)) text_ += text->text;
    const auto* done = std::get_if<Done>(&body);
    if (done == nullptr) return;
    if (text_.find_first_not_of(" \t\r\n") == std::string::npos)
        return fail(ApiError(500, "the model wrote no summary; the conversation is as it was"), out);
    const json::object item = {{"id", random_id("cmp_")}, {"type", "compaction"}, {"encrypted_content", seal(text_)}};
    for (const char* type : {"response.output_item.added", "response.output_item.done"})
        emit(type, {{"output_index", 0}, {"item", item}}, out);
    output_.push_back(item);
    answer_ends(*done, out);
}

void ResponseReply::answer_ends(const Done& done, std::string& out) {
    const bool cut = done.reason == FinishReason::length || done.reason == FinishReason::context;
    close(!cut, out);
    json::object also = {{"usage", usage_.responses()}, {"weights_version", usage_.version()}};
    if (cut) also["incomplete_details"] = {{"reason", "max_output_tokens"}};
    last_ = response(cut ? "incomplete" : "completed", also);
    if (keep_) keep_(last_, input_);
    emit(cut ? "response.incomplete" : "response.completed", {{"response", last_}}, out);
}

void ResponseReply::fail(const ApiError& error, std::string& out) {
    error_ = error;
    const json::object inner = {{"code", code_of(error)}, {"message", error.what()}};
    emit("response.failed", {{"response", response("failed", {{"error", inner}})}}, out);
}

HttpReply ResponseReply::finish() const {
    if (error_) return error_reply(*error_, ErrorShape::openai);
    return {200, json::serialize(last_)};
}

}  // namespace riptide::server
