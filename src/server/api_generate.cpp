// Routes that generate.
#include <ctime>
#include <random>

#include "server/anthropic_reply.h"
#include "server/anthropic_request.h"
#include "server/api.h"
#include "server/openai_chat.h"
#include "server/openai_completion.h"

namespace riptide::server {

namespace {

uint64_t random_number() {
    thread_local std::mt19937_64 source = [] {
        std::random_device device;
        std::seed_seq seed{device(), device(), device(), device()};
        return std::mt19937_64(seed);
    }();
    return source();
}

std::string grouped(int64_t number) {
    std::string digits = std::to_string(number);
    for (int at = static_cast<int>(digits.size()) - 3; at > 0; at -= 3)
        digits.insert(static_cast<std::size_t>(at), 1, ',');
    return digits;
}

/// "req 17  in 52,310 (51,884 tokens from the cache; why not more)  first token 0.21 s  out 412 at 238.1 tok/s stop_id"
std::string log_line(const Event& event, const Done& done) {
    const double decode = done.timings.decode;
    const double rate = decode > 0 ? static_cast<double>(done.usage.completion) / decode : 0;
    const std::string answer = event.answer > 0 ? fmt::format(".{}", event.answer) : "";
    const std::string cached = done.cache_note.empty() ? fmt::format("{} cached", done.usage.cached) : done.cache_note;
    return fmt::format("req {}{}  in {} ({})  first token {:.2f} s  out {} at {:.1f} tok/s  {}", event.id, answer,
                       grouped(done.usage.prompt), cached, done.timings.queue + done.timings.prefill,
                       grouped(done.usage.completion), rate, finish_reason_name(done.reason));
}

ReplyFacts facts_of(const ApiContext& ctx, std::string_view prefix) {
    return {random_id(prefix), ctx.options.model, static_cast<int64_t>(std::time(nullptr))};
}

}  // namespace

std::string random_id(std::string_view prefix) {
    return fmt::format("{}{:016x}{:08x}", prefix, random_number(), static_cast<uint32_t>(random_number()));
}

void check_model(const ApiContext& ctx, const std::string& name) {
    if (!ctx.options.strict_model || name.empty() || name == ctx.options.model) return;
    throw ApiError(
        404, fmt::format("the model '{}' does not exist; this server has '{}'", name.substr(0, 80), ctx.options.model),
        "model", "model_not_found");
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

void start(const ApiContext& ctx, GenerationRequest& asked, ErrorShape shape, const std::string& field,
           PendingReply& reply) {
    reply.events = std::make_shared<EventQueue>();
    const auto ids = std::make_shared<std::vector<RequestId>>();
    reply.cancel = [&engine = ctx.engine, ids] {
        for (const RequestId id : *ids) engine.cancel(id);
    };
    reply.take = [take = std::move(reply.take), &metrics = ctx.metrics, &log = ctx.options.log](const Item& item,
                                                                                                std::string& out) {
        if (const auto* done = std::get_if<Done>(&item.event.body)) {
            metrics.answered(*done);
            if (log) log(log_line(item.event, *done));
        } else if (const auto* failed = std::get_if<Failed>(&item.event.body); failed != nullptr && log) {
            log(fmt::format("req {}  failed: {}", item.event.id, failed->message));
        }
        return take(item, out);
    };
    reply.ended = [ids, &metrics = ctx.metrics, &log = ctx.options.log](bool complete) {
        if (complete) return;
        metrics.abandoned();
        if (log) log(fmt::format("req {}  the client has gone", ids->empty() ? 0 : ids->front()));
    };
    try {
        for (std::size_t i = 0; i < asked.prompts.size(); ++i) {
            Request& request = asked.prompts[i];
            request.isolation = ctx.isolation;
            request.session = asked.session.empty() ? ctx.session : asked.session;
            ids->push_back(ctx.engine.submit(std::move(request), reply.events->sink(static_cast<int32_t>(i))));
        }
    } catch (const Error& error) {
        reply.events->close();
        reply.cancel();
        if (const auto* size = dynamic_cast<const PromptTooLong*>(&error)) throw too_long(*size, shape, field);
        throw from_engine(error);
    }
}

namespace {

template <class Reply>
Outcome generate(const ApiContext& ctx, GenerationRequest asked, ErrorShape shape, std::string_view id_prefix,
                 const std::string& field) {
    check_model(ctx, asked.model);
    auto reply = std::make_shared<Reply>(facts_of(ctx, id_prefix), asked, ctx.engine.tokenizer());
    PendingReply out = pending(std::move(reply), asked.stream);
    start(ctx, asked, shape, field, out);
    return out;
}

/// The defaults, with a seed of the request's own: a client that wants the same answer again says which.
RequestDefaults defaults_of(const ApiContext& ctx) {
    RequestDefaults out = ctx.options.defaults;
    out.sampling.seed = random_number();
    return out;
}

}  // namespace

Outcome post_chat(const ApiContext& ctx, const HttpRequest& request) {
    GenerationRequest asked = parse_chat(parse_body(request.body), defaults_of(ctx));
    return generate<ChatReply>(ctx, std::move(asked), ErrorShape::openai, "chatcmpl-", "messages");
}

Outcome post_completion(const ApiContext& ctx, const HttpRequest& request) {
    GenerationRequest asked = parse_completion(parse_body(request.body), defaults_of(ctx), ctx.engine.tokenizer());
    return generate<CompletionReply>(ctx, std::move(asked), ErrorShape::openai, "cmpl-", "prompt");
}

Outcome post_messages(const ApiContext& ctx, const HttpRequest& request) {
    GenerationRequest asked = parse_messages(parse_body(request.body), defaults_of(ctx));
    if (!ctx.session.empty()) asked.session.clear();  // the header knows better than metadata
    return generate<MessageReply>(ctx, std::move(asked), ErrorShape::anthropic, "msg_", "messages");
}

HttpReply post_count_tokens(const ApiContext& ctx, const HttpRequest& request) {
    const GenerationRequest asked = parse_messages(parse_body(request.body), ctx.options.defaults);
    const auto tokens = std::ssize(ctx.engine.tokenize(asked.prompts.at(0).prompt));
    return {200, json::serialize(json::object{{"input_tokens", tokens}})};
}

}  // namespace riptide::server
