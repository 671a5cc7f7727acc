// Routes of embedding models and of rerankers.
#include "base/json.h"
#include "server/api/api.h"
#include "server/api/embeddings/embedding_reply.h"
#include "server/api/embeddings/embedding_request.h"

namespace riptide::server {

namespace {

constexpr std::string_view kEmbeddingId = "embd-", kRerankId = "rerank-";

/// Throws ApiError(400) unless the model is there for it: what it is, and what to serve.
void need_task(const ApiContext& ctx, Task task) {
    const Task is = ctx.engine.info().model.task;
    if (is == task) return;
    const char* kind = is == Task::embed ? "an embedding model" : is == Task::rerank ? "a reranker" : "a chat model";
    if (task == Task::embed)
        refuse("model",
               "model: '{}' is {} and makes no embeddings: serve an embedding model, such as Qwen3-Embedding (riptide "
               "serve FOLDER; --task embed where its files do not say what it is)",
               ctx.model->name, kind);
    refuse("model",
           "model: '{}' is {} and ranks nothing: serve a reranker, such as Qwen3-Reranker (riptide serve FOLDER --task "
           "rerank)",
           ctx.model->name, kind);
}

/// What the context does not hold loses its end; of a text not what the tokenizer puts behind all texts.
void shorten(const ApiContext& ctx, GenerationRequest& asked) {
    const auto most = static_cast<std::size_t>(ctx.engine.info().context_length);
    for (Request& request : asked.prompts) {
        std::vector<int32_t> ids = ctx.engine.tokenize(request.prompt, &ctx.work), end;
        if (ids.size() > most && std::holds_alternative<TextPrompt>(request.prompt)) {
            end = ctx.engine.tokenizer()->encode("", {.add_special = true});
            if (ctx.engine.tokenizer()->adds_bos()) end.erase(end.begin());
        }
        if (ids.size() > most) ids.resize(most - std::min(most, end.size()));
        ids.insert(ids.end(), end.begin(), end.end());
        request.prompt = std::move(ids);
    }
}

template <class Reply>
Outcome follow(const ApiContext& ctx, std::shared_ptr<Reply> reply, GenerationRequest& asked, ErrorShape shape,
               const std::string& field, const ReplyFacts& facts) {
    if (ctx.session.empty()) asked.session = facts.id;  // a list has one share of the device
    PendingReply out;
    out.take = [reply](const Item& item, std::string&) { return reply->take(item); };
    out.finish = [reply] { return reply->finish(); };
    start(ctx, asked, shape, field, facts.id, out);
    return out;
}

Outcome embed(const ApiContext& ctx, EmbeddingRequest request, EmbeddingShape shape, const std::string& field) {
    check_model(ctx, request.asked.model);
    need_task(ctx, Task::embed);
    if (request.truncate) shorten(ctx, request.asked);
    const ReplyFacts facts = facts_of(ctx, kEmbeddingId);
    const auto reply = std::make_shared<EmbeddingReply>(facts, request, shape);
    if (request.asked.prompts.empty()) return reply->finish();
    return follow(ctx, reply, request.asked, shape == EmbeddingShape::openai ? ErrorShape::openai : ErrorShape::ollama,
                  field, facts);
}

}  // namespace

Outcome post_embeddings(const ApiContext& ctx, const json::object& body) {
    return embed(ctx, parse_embeddings(body, ctx.defaults, ctx.engine.info().model.hidden_size), EmbeddingShape::openai,
                 "input");
}

Outcome post_ollama_embed(const ApiContext& ctx, const json::object& body) {
    return embed(ctx, parse_ollama_embed(body, ctx.defaults, ctx.engine.info().model.hidden_size),
                 EmbeddingShape::ollama, "input");
}

Outcome post_ollama_embeddings(const ApiContext& ctx, const json::object& body) {
    return embed(ctx, parse_ollama_embeddings(body, ctx.defaults), EmbeddingShape::ollama_single, "prompt");
}

Outcome post_rerank(const ApiContext& ctx, const json::object& body) {
    RerankRequest request = parse_rerank(body, ctx.defaults);
    check_model(ctx, request.asked.model);
    need_task(ctx, Task::rerank);
    const Tokenizer* tokenizer = ctx.engine.tokenizer();
    const int32_t yes = tokenizer->id_of("yes"), no = tokenizer->id_of("no");
    if (yes < 0 || no < 0)
        refuse("model", "model: '{}' has no tokens \"yes\" and \"no\", so it is no reranker", ctx.model->name);
    const auto tokens = [&](std::string_view text, bool markup) {
        return tokenizer->encode(text, {.parse_special = markup, .work = &ctx.work});
    };
    const std::vector<int32_t> before = tokens(kBeforePair, true), behind = tokens(kBehindPair, true);
    GenerationRequest asked = request.asked;
    for (std::size_t i = 0; i < request.documents.size(); ++i) {
        TokenPrompt prompt = before;
        for (const auto& part : {tokens(pair_text(request, i), false), behind})
            prompt.insert(prompt.end(), part.begin(), part.end());
        Request& each = asked.prompts.emplace_back();
        each.read_row = each.side = true;
        each.row_columns = {yes, no};
        each.same_call = i > 0;
        each.prompt = std::move(prompt);
    }
    const ReplyFacts facts = facts_of(ctx, kRerankId);
    return follow(ctx, std::make_shared<RerankReply>(facts, std::move(request)), asked, ErrorShape::openai, "documents",
                  facts);
}

}  // namespace riptide::server
