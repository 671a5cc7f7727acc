// Which function answers which route.
#include "server/api/api.h"

namespace riptide::server {

Outcome answer(const ApiContext& ctx, Route route, json::object body, std::string_view query) {
    switch (route) {
        case Route::chat:
            return post_chat(ctx, std::move(body));
        case Route::completions:
            return post_completion(ctx, std::move(body));
        case Route::embeddings:
            return post_embeddings(ctx, body);
        case Route::rerank:
            return post_rerank(ctx, body);
        case Route::render_chat:
            return post_render_chat(ctx, std::move(body));
        case Route::render_completion:
            return post_render_completion(ctx, std::move(body));
        case Route::responses:
        case Route::responses_socket:
            return post_responses(ctx, std::move(body));
        case Route::compact:
            return post_compact(ctx, body);
        case Route::messages:
            return post_messages(ctx, std::move(body));
        case Route::count_tokens:
            return post_count_tokens(ctx, std::move(body));
        case Route::ollama_chat:
            return post_ollama_chat(ctx, body);
        case Route::ollama_generate:
            return post_ollama_generate(ctx, body);
        case Route::ollama_embed:
            return post_ollama_embed(ctx, body);
        case Route::ollama_embeddings:
            return post_ollama_embeddings(ctx, body);
        case Route::ollama_show:
            return post_ollama_show(ctx, body);
        case Route::pause:
            return post_pause(ctx, body, query);
        case Route::resume:
            return post_resume(ctx);
        case Route::update_weights:
            return post_update_weights(ctx, body);
        case Route::flush_cache:
            return post_flush_cache(ctx);
        case Route::tokenize:
            return post_tokenize(ctx, std::move(body));
        case Route::detokenize:
            return post_detokenize(ctx, body);
        default:
            return post_apply_template(ctx, std::move(body));
    }
}

}  // namespace riptide::server
