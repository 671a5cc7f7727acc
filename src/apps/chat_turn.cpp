#include "apps/chat_turn.h"

#include "base/error.h"
#include "engine/loaded_text.h"
#include "text/dialect_laguna.h"

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

std::string require_template(const Checkpoint& checkpoint) {
    std::string source = chat_template_source(checkpoint);
    RT_CHECK(!source.empty(), "{}: no chat template; use riptide run for plain completion", checkpoint.path());
    return source;
}

std::string special_text(const Tokenizer& tokenizer, int32_t id) {
    return id < 0 ? "" : std::string(tokenizer.piece(id));
}

}  // namespace

ChatModel::ChatModel(std::unique_ptr<Session> session)
    : session_(std::move(session)),
      tokenizer_(load_tokenizer(session_->checkpoint())),
      template_(require_template(session_->checkpoint()), session_->checkpoint().path() + ": chat template",
                special_text(tokenizer_, tokenizer_.bos()), special_text(tokenizer_, tokenizer_.eos())),
      stop_ids_(stop_ids(session_->checkpoint(), tokenizer_)) {
    RT_CHECK(tokenizer_.id_of("<assistant>") >= 0 && tokenizer_.id_of("</think>") >= 0,
             "{}: chat knows Laguna's dialect, and this vocabulary has no <assistant> or </think>; use riptide run",
             session_->checkpoint().path());
}

std::vector<int32_t> ChatModel::encode(const jinja::Rendered& prompt) {
    EncodeOptions options;
    options.trusted = prompt.trusted;
    std::vector<int32_t> tokens = tokenizer_.encode(prompt.text, options);
    if (!shortener_ || !shortener_->on()) return tokens;
    const std::vector<ChatPart> parts = chat_parts(prompt, token_spans(tokenizer_, tokens, prompt.text));
    return shortener_->shorten(std::move(tokens), parts);
}

std::unique_ptr<StreamParser> ChatModel::make_parser(const jinja::Rendered& prompt, const json::array& tools) const {
    LagunaParserOptions options;
    options.thinking = ends_inside_thinking(prompt);
    options.newline_framing = template_.traits().newlines_in_tags;
    options.tools = ToolSchemas(tools);
    return make_laguna_parser(std::move(options));
}

ChatAnswer ChatModel::ask(const json::array& messages, const json::array& tools, bool think,
                          const SamplingParams& params, const std::function<void(const StreamEvent&)>& on_event,
                          const std::function<void(int64_t, int64_t)>& on_prefill, const std::atomic<bool>* cancel) {
    ChatOptions options;
    options.enable_thinking = think;
    const jinja::Rendered rendered = template_.render(messages, tools, options);
    const std::vector<int32_t> prompt = encode(rendered);
    if (prompt.empty()) {  // broken off while it was scored
        ChatAnswer none;
        none.message = MessageBuilder().message();
        none.result.reason = FinishReason::cancelled;
        return none;
    }
    const std::unique_ptr<StreamParser> parser = make_parser(rendered, tools);
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
    request.prompt = prompt;
    request.sampling = params;
    request.eos_ids = stop_ids_;
    request.tokenizer = &tokenizer_;
    request.cancel = cancel;
    request.on_prefill = on_prefill;
    request.on_token = [&](const Sampled& sampled) {
        parser->push_token(tokenizer_.piece(sampled.token), tokenizer_.is_added(sampled.token), events);
        deliver();
    };
    ChatAnswer answer;
    answer.result = session_->generate(request);
    parser->finish(events);
    deliver();
    answer.message = builder.message();
    if (shortener_ && shortener_->last() != nullptr) answer.compression = shortener_->last()->report;
    return answer;
}

}  // namespace riptide::apps
