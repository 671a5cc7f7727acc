#include "apps/chat/chat_turn.h"

#include "base/error.h"
#include "base/json.h"

namespace riptide::apps {

namespace {

/// Joins the events of an answer into an OpenAI-style message.
class MessageBuilder {
  public:
    void add(const EventBody& event) {
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

void require_chats(const Engine& engine) {
    const EngineInfo info = engine.info();
    RT_CHECK(engine.tokenizer() != nullptr, "{}: no tokenizer; use riptide run with --tokens", info.path);
    RT_CHECK(info.chat, "{}: {}; use riptide run", info.path, info.no_chat);
}

ChatAnswer ask_chat(Engine& engine, const json::array& messages, const json::array& tools, bool think,
                    const SamplingParams& params, const std::function<void(const EventBody&)>& hear) {
    ChatPrompt chat{messages, tools, {}};
    chat.options.enable_thinking = think;
    Request request;
    request.prompt = std::move(chat);
    request.sampling = params;
    request.session = "chat";
    request.hash_logits = true;
    MessageBuilder builder;
    ChatAnswer answer;
    answer.reply = ask(engine, std::move(request), [&](const EventBody& event) {
        builder.add(event);
        hear(event);
    });
    answer.message = builder.message();
    return answer;
}

}  // namespace riptide::apps
