// Routes that generate.
#include <algorithm>
#include <chrono>
#include <ctime>

#include "base/json.h"
#include "server/access.h"
#include "server/api/anthropic/anthropic_reply.h"
#include "server/api/anthropic/anthropic_request.h"
#include "server/api/api.h"
#include "server/api/api_error.h"
#include "server/api/ollama/ollama_reply.h"
#include "server/api/ollama/ollama_request.h"
#include "server/api/openai/openai_chat.h"
#include "server/api/openai/openai_completion.h"
#include "server/api/responses/responses_reply.h"

namespace riptide::server {

namespace {

constexpr std::string_view kChatId = "chatcmpl-", kCompletionId = "cmpl-", kResponseId = "resp_", kMessageId = "msg_",
                           kOllamaId = "ollama-";

ReplyFacts new_facts(const std::string& model, std::string_view prefix) {
    return {random_id(prefix), model, static_cast<int64_t>(std::time(nullptr)), 0};
}

}  // namespace

ReplyFacts facts_of(const ApiContext& ctx, std::string_view id_prefix) {
    ReplyFacts out = ctx.early != nullptr ? *ctx.early : new_facts(ctx.model->name, id_prefix);
    out.version = ctx.engine.stats().version;
    return out;
}

RequestDefaults defaults_of(const ApiContext& ctx) {
    RequestDefaults out = ctx.defaults;
    out.sampling.seed = random_number();
    return out;
}

void check_model(const ApiContext& ctx, const std::string& name) {
    const std::string& ours = ctx.model->name;
    if (!ctx.options.strict_model || name.empty() || name == ours || name == ours + std::string(kLatest)) return;
    throw unknown_model(name, "'" + ours + "'");
}

ApiError unknown_model(std::string_view name, const std::string& known) {
    return {404, fmt::format("the model '{}' does not exist; this server has {}", name.substr(0, 80), known), "model",
            "model_not_found"};
}

ApiError too_long(const PromptTooLong& error, ErrorShape shape, const std::string& field) {
    if (shape == ErrorShape::anthropic)
        return {400,
                fmt::format("prompt is too long: {} tokens > {} maximum", error.prompt_tokens, error.context_length)};
    return {
        400,
        fmt::format("This model's maximum context length is {} tokens. However, your messages resulted in {} tokens.",
                    error.context_length, error.prompt_tokens),
        field, "context_length_exceeded"};
}

namespace {

/// What is told of a reply while it is made, beside the client.
class Follower {
  public:
    Follower(const ApiContext& ctx, std::shared_ptr<LiveRequest> live, const GenerationRequest& asked)
        : metrics_(ctx.metrics), log_(ctx.log), all_(ctx.live), model_(ctx.model), live_(std::move(live)) {
        if (ctx.trace) trace_.emplace(ctx.traces, *ctx.trace, asked, live_->model, live_->id, live_->session);
        subject_ = {live_->id, live_->request_id, live_->route, live_->session};
        all_.add(live_);
        log_.asked(subject_, ctx.body);
    }
    ~Follower() { all_.remove(live_->id); }
    Follower(const Follower&) = delete;
    Follower& operator=(const Follower&) = delete;

    void submitting() {
        if (trace_) trace_->submitting();
    }
    void submitted(RequestId id) {
        all_.submitted(*live_, id);
        if (trace_) trace_->submitted(id);
    }
    void hear(const Event& event) {
        all_.heard(*live_, event);
        if (trace_) trace_->hear(event);
        if (log_.content()) note(event);
        if (const auto* done = std::get_if<Done>(&event.body)) {
            metrics_.answered(*done);
            log_.answered(subject_, event, *done, said_[event.answer]);
        } else if (const auto* failed = std::get_if<Failed>(&event.body)) {
            log_.failed(subject_, event.id, failed->message);
        }
    }
    void ended(const ReplyEnding& ending) {
        using How = ReplyEnding::How;
        if (trace_) trace_->ended(ending);
        if (ending.how == How::complete) return;
        const RequestId id = live_->requests.empty() ? 0 : live_->requests.front();
        if (ending.how == How::client_gone) metrics_.abandoned();
        if (ending.how == How::client_gone) return log_.abandoned(subject_, id);
        if (ending.how == How::mistake) metrics_.mistaken();
        log_.failed(subject_, id, ending.why);
    }

  private:
    void note(const Event& event) {
        std::string& said = said_[event.answer];
        if (const auto* text = std::get_if<TextDelta>(&event.body)) said += text->text;
        if (const auto* thought = std::get_if<ReasoningDelta>(&event.body)) said += thought->text;
        if (const auto* call = std::get_if<ToolCallBegin>(&event.body)) said += "\n" + call->name + " ";
        if (const auto* part = std::get_if<ToolCallArguments>(&event.body)) said += part->json_fragment;
    }

    Metrics& metrics_;
    const RequestLog& log_;
    LiveRequests& all_;
    const ModelLease model_;  // as long as the request is live
    std::shared_ptr<LiveRequest> live_;
    LogSubject subject_;
    std::optional<RequestTrace> trace_;
    std::map<int32_t, std::string> said_;  // by each answer, if it is logged
};

/// At least a millisecond: what is late already is found out by the engine.
std::chrono::milliseconds time_until(std::chrono::steady_clock::time_point end) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
    return std::max(left, std::chrono::milliseconds(1));
}

}  // namespace

void start(const ApiContext& ctx, GenerationRequest& asked, ErrorShape shape, const std::string& field,
           const std::string& id, PendingReply& reply) {
    reply.events = std::make_shared<EventQueue>();
    auto live = std::make_shared<LiveRequest>();
    live->id = id;
    live->request_id = ctx.request_id;
    live->model = ctx.model->name;
    live->engine = &ctx.engine;
    live->route = ctx.route;
    live->isolation = ctx.isolation;
    live->session = asked.session.empty() ? ctx.session : asked.session;
    live->stream = asked.stream;
    live->answers = std::ssize(asked.prompts) * asked.prompts.at(0).n;
    const auto follower = std::make_shared<Follower>(ctx, live, asked);
    const auto ids = std::make_shared<std::vector<RequestId>>();
    reply.cancel = [model = ctx.model, ids] {
        for (const RequestId each : *ids) model->engine->cancel(each);
    };
    reply.take = [take = std::move(reply.take), follower](const Item& item, std::string& out) {
        follower->hear(item.event);
        return take(item, out);
    };
    reply.refusal = [shape](int status, const std::string& message) {
        return error_reply(ApiError(status, message), shape);
    };
    reply.ended = [follower](const ReplyEnding& ending) { follower->ended(ending); };
    try {
        for (std::size_t i = 0; i < asked.prompts.size(); ++i) {
            Request& request = asked.prompts[i];
            request.isolation = salted(ctx.isolation, asked.cache_salt);
            request.session = live->session;
            if (asked.until) request.deadline = time_until(*asked.until);
            follower->submitting();
            ids->push_back(
                ctx.engine.submit(std::move(request), reply.events->sink(static_cast<int32_t>(i)), &ctx.work));
            follower->submitted(ids->back());
        }
    } catch (const Error& error) {
        reply.events->close();
        reply.cancel();
        if (const auto* size = dynamic_cast<const PromptTooLong*>(&error)) throw too_long(*size, shape, field);
        if (const auto* tool = dynamic_cast<const ToolError*>(&error))
            if (const auto named = grammar_error(*tool, asked.custom)) throw ApiError(*named);
        throw from_engine(error);
    }
}

namespace {

template <class Reply>
Outcome generate(const ApiContext& ctx, GenerationRequest asked, ErrorShape shape, std::string_view id_prefix,
                 const std::string& field) {
    check_model(ctx, asked.model);
    const ReplyFacts facts = facts_of(ctx, id_prefix);
    PendingReply out = pending(std::make_shared<Reply>(facts, asked, ctx.engine.tokenizer()), asked.stream);
    start(ctx, asked, shape, field, facts.id, out);
    return out;
}

}  // namespace

Outcome post_chat(const ApiContext& ctx, json::object body) {
    GenerationRequest asked = parse_chat(std::move(body), defaults_of(ctx));
    return generate<ChatReply>(ctx, std::move(asked), ErrorShape::openai, kChatId, "messages");
}

Outcome post_completion(const ApiContext& ctx, json::object body) {
    GenerationRequest asked = parse_completion(std::move(body), defaults_of(ctx), ctx.engine.tokenizer());
    return generate<CompletionReply>(ctx, std::move(asked), ErrorShape::openai, kCompletionId, "prompt");
}

void start_response(const ApiContext& ctx, ResponsesRequest& asked, const std::string& id, PendingReply& reply) {
    try {
        start(ctx, asked.generation, ErrorShape::openai, "input", id, reply);
    } catch (const ApiError& error) {
        throw in_its_words(error, asked.origins);
    }
}

Outcome post_responses(const ApiContext& ctx, json::object body) {
    const Stored stored{ctx.responses, ctx.isolation, ctx.socket != nullptr ? ctx.socket->key() : ""};
    ResponsesRequest asked = parse_responses(std::move(body), defaults_of(ctx), &stored);
    check_model(ctx, asked.generation.model);
    ResponseReply::Keep keep;
    if (asked.store)
        keep = [&store = ctx.responses, isolation = ctx.isolation](
                   const json::object& response, const json::array& input) { store.put(isolation, response, input); };
    else if (ctx.socket != nullptr)
        keep = [socket = ctx.socket](const json::object& response, const json::array& input) {
            socket->put(response, input);
        };
    const ReplyFacts facts = facts_of(ctx, kResponseId);
    const auto reply = std::make_shared<ResponseReply>(facts, asked, std::move(keep));
    if (!asked.generate) return reply->prepared();
    PendingReply out = pending(reply, asked.generation.stream);
    start_response(ctx, asked, facts.id, out);
    return out;
}

Outcome post_messages(const ApiContext& ctx, json::object body) {
    GenerationRequest asked = parse_messages(std::move(body), defaults_of(ctx), MessagesFor::answering);
    if (!ctx.session.empty()) asked.session.clear();  // the header knows better than metadata
    return generate<MessageReply>(ctx, std::move(asked), ErrorShape::anthropic, kMessageId, "messages");
}

HttpReply post_count_tokens(const ApiContext& ctx, json::object body) {
    const GenerationRequest asked = parse_messages(std::move(body), ctx.defaults, MessagesFor::counting);
    const auto tokens = std::ssize(ctx.engine.tokenize(asked.prompts.at(0).prompt, &ctx.work));
    return {200, json::serialize(json::object{{"input_tokens", tokens}})};
}

namespace {

Outcome generate_ollama(const ApiContext& ctx, GenerationRequest asked, OllamaShape shape) {
    check_model(ctx, asked.model);
    const ReplyFacts facts = facts_of(ctx, kOllamaId);
    const auto reply = std::make_shared<OllamaReply>(facts, asked, ctx.engine.tokenizer(), shape);
    if (asked.prompts.empty()) return reply->loaded();
    PendingReply out = pending(reply, asked.stream);
    out.stream_type = kLines;
    start(ctx, asked, ErrorShape::ollama, shape == OllamaShape::chat ? "messages" : "prompt", facts.id, out);
    return out;
}

}  // namespace

Outcome post_ollama_chat(const ApiContext& ctx, const json::object& body) {
    return generate_ollama(ctx, parse_ollama_chat(body, defaults_of(ctx)), OllamaShape::chat);
}

Outcome post_ollama_generate(const ApiContext& ctx, const json::object& body) {
    return generate_ollama(ctx, parse_ollama_generate(body, defaults_of(ctx)), OllamaShape::generate);
}

std::optional<EarlyStream> early_stream(Route route, json::object& body, const RequestDefaults& defaults,
                                        const ResponseStore& store, const std::string& isolation,
                                        const std::string& model) {
    const Fields fields(body);
    const bool ollama = route == Route::ollama_chat || route == Route::ollama_generate;
    if (!fields.boolean("stream").value_or(ollama)) return std::nullopt;
    const auto with = [&](std::string_view prefix, const auto& make) {
        EarlyStream out{new_facts(model, prefix), {}};
        out.reply = pending(make(out.facts), true);
        return out;
    };
    switch (route) {
        case Route::chat:
            return with(kChatId, [&](const ReplyFacts& facts) {
                return std::make_shared<ChatReply>(facts, parse_chat(std::move(body), defaults), nullptr);
            });
        case Route::completions:
            if (fields.boolean("echo").value_or(false)) return std::nullopt;  // what begins with the model's words
            return with(kCompletionId, [&](const ReplyFacts& facts) {
                return std::make_shared<CompletionReply>(facts, parse_completion(std::move(body), defaults, nullptr),
                                                         nullptr);
            });
        case Route::responses:
            if (!fields.boolean("generate").value_or(true)) return std::nullopt;  // it is complete at once
            return with(kResponseId, [&](const ReplyFacts& facts) {
                const Stored stored{store, isolation, ""};
                const ResponsesRequest asked = parse_responses(std::move(body), defaults, &stored);
                return std::make_shared<ResponseReply>(facts, asked, ResponseReply::Keep());
            });
        case Route::messages:
            return with(kMessageId, [&](const ReplyFacts& facts) {
                return std::make_shared<MessageReply>(
                    facts, parse_messages(std::move(body), defaults, MessagesFor::answering), nullptr);
            });
        case Route::ollama_chat:
        case Route::ollama_generate: {
            const bool chat = route == Route::ollama_chat;
            auto out = with(kOllamaId, [&](const ReplyFacts& facts) {
                return std::make_shared<OllamaReply>(
                    facts, chat ? parse_ollama_chat(body, defaults) : parse_ollama_generate(body, defaults), nullptr,
                    chat ? OllamaShape::chat : OllamaShape::generate);
            });
            out.reply.stream_type = kLines;
            return out;
        }
        default:
            return std::nullopt;
    }
}

}  // namespace riptide::server
