// Routes of Ollama's API that tell about the model, and those that this server refuses.
#include <fmt/format.h>

#include "base/json.h"
#include "server/api/api.h"
#include "server/api/ollama/ollama_reply.h"
#include "server/api/ollama/ollama_request.h"

namespace riptide::server {

namespace {

/// Clients ask for a least release of Ollama before they use thinking, tools and log-probabilities: the one whose API
/// this is.
constexpr const char* kOllamaApi = "0.12.11";
constexpr const char* kNever = "9999-12-31T23:59:59Z";  // a model stays until others need its memory

HttpReply ollama_answer(const json::object& body) { return {200, json::serialize(body)}; }

/// "30.5B", "494M"
std::string parameter_size(int64_t parameters) {
    const auto count = static_cast<double>(parameters);
    return count >= 1e9 ? fmt::format("{:.1f}B", count / 1e9) : fmt::format("{:.0f}M", count / 1e6);
}

json::object details_of(const EngineInfo& info) {
    return {{"parent_model", ""},
            {"format", info.path.ends_with(".gguf") ? "gguf" : "safetensors"},
            {"family", info.model.architecture},
            {"families", json::array{info.model.architecture}},
            {"parameter_size", parameter_size(info.model.parameters)},
            {"quantization_level", "unknown"}};
}

/// What tags and ps both say of a model: of one that has not been loaded its name. It has no digest: files are not
/// hashed to be served.
json::object listed(const ModelStatus& status) {
    json::object out = {{"name", status.name}, {"model", status.name}, {"size", 0}, {"digest", ""}};
    out["details"] = details_of(status.info.value_or(EngineInfo()));
    if (status.info) out["size"] = status.info->model.weight_bytes;
    return out;
}

json::array capabilities_of(const EngineInfo& info) {
    if (info.model.task == Task::embed) return {"embedding"};
    json::array out = {"completion"};
    if (info.chat && info.chat_traits.tools) out.emplace_back("tools");
    if (info.chat && info.chat_traits.thinking) out.emplace_back("thinking");
    return out;
}

}  // namespace

HttpReply get_ollama_tags(const std::vector<ModelStatus>& models) {
    json::array out;
    for (const ModelStatus& status : models) {
        json::object entry = listed(status);
        entry["modified_at"] = utc_time(0);
        out.push_back(std::move(entry));
    }
    return ollama_answer({{"models", std::move(out)}});
}

HttpReply get_ollama_ps(const std::vector<ModelStatus>& models) {
    json::array out;
    for (const ModelStatus& status : models) {
        if (status.state != ModelState::ready || !status.info) continue;
        json::object entry = listed(status);
        entry["expires_at"] = kNever;
        entry["size_vram"] = status.info->model.device_bytes;
        entry["context_length"] = status.info->context_length;
        out.push_back(std::move(entry));
    }
    return ollama_answer({{"models", std::move(out)}});
}

HttpReply post_ollama_show(const ApiContext& ctx, const json::object& body) {
    check_model(ctx, ollama_model(Fields(body)));
    const EngineInfo info = ctx.engine.info();
    const std::string& kind = info.model.architecture;
    const json::object facts = {{"general.architecture", kind},
                                {"general.basename", info.model.name},
                                {"general.parameter_count", info.model.parameters},
                                {kind + ".context_length", info.context_length},  // what clients may fill
                                {kind + ".block_count", info.model.num_hidden_layers},
                                {kind + ".embedding_length", info.model.hidden_size},
                                {kind + ".vocab_size", info.model.vocab_size}};
    return ollama_answer({{"modelfile", ""},
                          {"parameters", ""},
                          {"template", ""},
                          {"details", details_of(info)},
                          {"model_info", facts},
                          {"capabilities", capabilities_of(info)},
                          {"modified_at", utc_time(0)}});
}

HttpReply get_ollama_version() { return ollama_answer({{"version", kOllamaApi}}); }

void refuse_ollama(std::string_view path) {
    if (path == "/api/delete") throw ApiError(403, "clients cannot remove models here: use riptide rm NAME");
    if (path == "/api/pull") throw ApiError(403, "clients cannot fetch models here: use riptide pull NAME");
    throw ApiError(403, fmt::format("there is no {} here: riptide pull and riptide rm are what changes the models of "
                                    "this machine",
                                    path));
}

}  // namespace riptide::server
