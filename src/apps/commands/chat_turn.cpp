#include "apps/commands/chat_turn.h"

#include "base/error.h"
#include "base/json.h"

namespace riptide::apps {

namespace {

/// Joins the events of an answer into an OpenAI-style message.
class MessageBuilder {
  public:
    void add(const StreamEvent& event) {
        if (const auto* text = std::get_if<TextDelta>(&event)) content_ += text->text;
        if (const auto* thought = std::get_if<ReasoningDelta>(&event)) reasoning_ += thought->text;
        if (const auto* call = std::get_if<ToolCallBegin>(&event)) calls_.push_back({call->id, call->name, ""});
        if (const auto* part = std::get_if<ToolCallArguments>(&event)) calls_.back().arguments += part->json_fragment;
        if (const auto* end = std::get_if<ToolCallEnd>(&event); end != nullptr && !end->complete) {
            incomplete_.push_back({{"name", calls_.back().name}, {"arguments", calls_.back().arguments}});
            calls_.pop_back();
        }
    }

    json::object message() const {
        json::object out = {{"role", "assistant"}, {"content", content_}};
        if (!reasoning_.empty()) out["reasoning_content"] = reasoning_;
        if (!incomplete_.empty()) out["incomplete_tool_calls"] = incomplete_;
        if (calls_.empty()) return out;
        json::array& list = out["tool_calls"].emplace_array();
        for (const Call& call : calls_)
            list.push_back({{"id", call.id},
                            {"type", "function"},
                            {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
        return out;
    }

  private:
    struct Call {
        std::string id, name, arguments;
    };
    std::string content_, reasoning_;
    std::vector<Call> calls_;
    json::array incomplete_;
};

}  // namespace

ChatModel::ChatModel(std::unique_ptr<Session> session) : session_(std::move(session)), text_(session_->checkpoint()) {
    RT_CHECK(text_.tokenizer() != nullptr, "{}: no tokenizer; use riptide run with --tokens",
             session_->checkpoint().path());
    try {
        text_.require_chats();
    } catch (const Error& error) {
        throw Error(fmt::format("{}: {}; use riptide run", session_->checkpoint().path(), error.what()));
    }
}

ChatAnswer ChatModel::ask(const json::array& messages, const json::array& tools, bool think,
                          const SamplingParams& params, const std::function<void(const StreamEvent&)>& on_event,
                          const std::function<void(int64_t, int64_t)>& on_prefill, const std::atomic<bool>* cancel) {
    ChatPrompt chat{messages, tools, {}};
    chat.options.enable_thinking = think;
    const EncodedPrompt prompt = text_.encode(chat);
    std::vector<int32_t> tokens = prompt.tokens;
    if (shortener_ && shortener_->on()) tokens = shortener_->shorten(std::move(tokens), text_.parts(prompt));
    if (tokens.empty()) {  // broken off while it was scored
        ChatAnswer none;
        none.message = MessageBuilder().message();
        none.result.reason = FinishReason::cancelled;
        return none;
    }
    const std::unique_ptr<StreamParser> parser = prompt.make_parser();
    const Tokenizer& tokenizer = *text_.tokenizer();
    MessageBuilder builder;
    StreamEvents events;
    const auto deliver = [&] {
        for (const StreamEvent& event : events) {
            builder.add(event);
            if (on_event) on_event(event);
        }
        events.clear();
    };
    GenerateRequest request;
    request.prompt = tokens;
    if (shortener_) request.gaps = shortener_->gaps(session_->model().info());
    request.sampling = params;
    request.eos_ids = text_.stop_ids();
    request.tokenizer = &tokenizer;
    request.cancel = cancel;
    request.on_prefill = on_prefill;
    request.on_token = [&](const Sampled& sampled) {
        parser->push_token(tokenizer.piece(sampled.token), tokenizer.is_added(sampled.token), events);
        deliver();
    };
    ChatAnswer answer;
    answer.result = session_->generate(request);
    if (answer.result.reason == FinishReason::stop_id) parser->end_turn(events);
    parser->finish(events);
    deliver();
    answer.message = builder.message();
    if (shortener_ && shortener_->last() != nullptr) answer.compression = shortener_->last()->report;
    return answer;
}

}  // namespace riptide::apps
