// Routes that tell about the model, and about tokens.
#include <fmt/format.h>

#include <ctime>
#include <filesystem>

#include "base/json.h"
#include "server/api/api.h"
#include "server/api/reply_parts.h"
#include "server/openapi/openapi.h"
#include "text/utf8.h"

namespace riptide::server {

namespace {

HttpReply reply_of(const json::object& body) { return {200, json::serialize(body)}; }

/// The checkpoint's name, without the folders of this machine.
std::string root_of(const ModelStatus& status) {
    const std::string name = status.info ? std::filesystem::path(status.info->path).filename().string() : "";
    return name.empty() ? status.name : name;
}

json::object model_entry(const ModelStatus& status, int64_t started) {
    json::object out = {{"id", status.name},
                        {"object", "model"},
                        {"created", started},
                        {"owned_by", "riptide"},
                        {"root", root_of(status)},
                        {"parent", nullptr},
                        {"type", "model"},
                        {"display_name", status.info ? status.info->model.name : status.name},
                        {"created_at", utc_time(started)},
                        {"state", model_state_name(status.state)}};
    if (!status.reason.empty()) out["reason"] = status.reason;
    if (!status.info) return out;
    const EngineInfo& info = *status.info;
    out["context_length"] = info.context_length;
    out["max_model_len"] = info.context_length;
    out["task"] = task_name(info.model.task);
    out["meta"] = {{"architecture", info.model.architecture},
                   {"n_ctx", info.context_length},
                   {"n_ctx_train", info.model.max_position_embeddings},
                   {"n_vocab", info.model.vocab_size},
                   {"n_params", info.model.parameters},
                   {"n_active_params", info.model.active_parameters},
                   {"size", info.model.weight_bytes}};
    return out;
}

const Tokenizer& need_tokenizer(const ApiContext& ctx) {
    const Tokenizer* tokenizer = ctx.engine.tokenizer();
    if (tokenizer == nullptr) throw ApiError(400, "this model has no tokenizer");
    return *tokenizer;
}

/// The text of /tokenize, under any of the names that other servers have for it.
std::optional<std::string_view> text_field(const Fields& fields) {
    for (const char* key : {"content", "prompt", "text"})
        if (const auto text = fields.string(key)) return text;
    return std::nullopt;
}

/// Null without a scorer.
json::value describe_compression(const EngineInfo& info) {
    if (info.scorer.empty()) return nullptr;
    const CompressionOptions& o = info.compression;
    return {{"scorer", info.scorer},
            {"mode", o.mode == CompressMode::off      ? "off"
                     : o.mode == CompressMode::always ? "always"
                                                      : "auto"},
            {"keep", o.keep},
            {"keep_tokens", o.keep_tokens},
            {"above", o.above},
            {"positions", o.positions == KeptPositions::original ? "original" : "compact"}};
}

/// The values in force, and who said each.
void describe_defaults(const ApiContext& ctx, const GenerationDefaults& makers, json::object& out) {
    json::object sampling, from;
    for (const auto& [name, value, source] :
         settle_sampling(ctx.options.defaults.sampling, ctx.options.sampling, makers).values) {
        if (name == "top_k") sampling[name] = static_cast<int64_t>(value);
        else sampling[name] = value;
        from[name] = source;
    }
    out["default_sampling"] = std::move(sampling);
    out["default_sampling_from"] = std::move(from);
    const json::object own = template_variables(ctx.defaults, {});
    json::object variables = template_variables(ctx.defaults, makers.template_kwargs), variables_from;
    for (const auto& [name, value] : variables)
        variables_from[name] = own.contains(name) ? "command line" : makers.source;
    out["default_chat_template_kwargs"] = std::move(variables);
    out["default_chat_template_kwargs_from"] = std::move(variables_from);
}

/// As JSON.
void append_quoted(std::string_view text, std::string& out) {
    json::serializer serializer;
    serializer.reset(text);
    for (char piece[4096]; !serializer.done();) out += serializer.read(piece);
}

void append_ids(std::span<const int32_t> ids, std::string& out) {
    out += '[';
    for (const int32_t id : ids) fmt::format_to(std::back_inserter(out), "{},", id);
    if (!ids.empty()) out.pop_back();
    out += ']';
}

/// Written at once: a tree of values would take many times the memory. With the tokens' texts if there is a tokenizer.
std::string tokens_reply(std::span<const int32_t> ids, const Tokenizer* tokenizer, const ApiContext& ctx) {
    constexpr int64_t kBytesOfWork = 16;  // of each
    std::string out;
    // Room once: while a text of 100 MB grows and moves, whoever else needs memory waits. What is not used costs
    // nothing.
    out.reserve(128 + ids.size() * (tokenizer != nullptr ? 24 : 8));
    out += "{\"tokens\":";
    append_ids(ids, out);
    out += fmt::format(",\"count\":{},\"max_model_len\":{}", ids.size(), ctx.engine.info().context_length);
    if (tokenizer != nullptr) {
        out += ",\"pieces\":[";
        for (const int32_t id : ids) {
            ctx.work.spend_bytes(kBytesOfWork);
            append_quoted(token_text(tokenizer, id), out);
            out += ',';
        }
        if (!ids.empty()) out.pop_back();
        out += ']';
    }
    out += '}';
    return out;
}

std::string rendered(const Prompt& prompt, const ApiContext& ctx) {
    std::string out = "{\"token_ids\":";
    append_ids(ctx.engine.tokenize(prompt, &ctx.work), out);
    return out + '}';
}

}  // namespace

HttpReply get_models(const std::vector<ModelStatus>& models, int64_t started) {
    json::array data;
    for (const ModelStatus& status : models) data.push_back(model_entry(status, started));
    return reply_of({{"object", "list"},
                     {"data", std::move(data)},
                     {"has_more", false},
                     {"first_id", models.front().name},
                     {"last_id", models.back().name}});
}

HttpReply get_model(const std::vector<ModelStatus>& models, std::string_view id, int64_t started) {
    std::string known;
    for (const ModelStatus& status : models) {
        if (status.name == id) return reply_of(model_entry(status, started));
        known += (known.empty() ? "'" : ", '") + status.name + "'";
    }
    throw unknown_model(id, known);
}

HttpReply get_version() { return reply_of({{"version", program_version()}}); }

HttpReply get_server_info(const ModelStatus& model, const KvEventsAt& events) {
    json::object out = {{"model_path", root_of(model)},
                        {"served_model_name", model.name},
                        {"version", program_version()},
                        {"tp_size", 1},
                        {"dp_size", 1}};
    if (!model.info) return reply_of(out);
    const EngineInfo& info = *model.info;
    out["context_length"] = info.context_length;
    out["max_total_tokens"] = info.kv_tokens;
    out["max_running_requests"] = info.max_running;
    out["weight_version"] = std::to_string(info.version);
    if (events.port > 0)
        out["kv_events"] = {
            {"publisher", "zmq"},    {"endpoint_host", events.host}, {"endpoint_port_base", events.port},
            {"topic", events.topic}, {"block_size", info.page_rows}, {"dp_size", 1}};
    return reply_of(out);
}

HttpReply get_loads(const EngineFacts& all) {
    const auto share = [](int64_t part, int64_t whole) {
        return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0.0;
    };
    const json::object load = {{"dp_rank", 0},
                               {"num_running_reqs", all.running},
                               {"num_waiting_reqs", all.waiting},
                               {"num_waiting_uncached_tokens", all.waiting_tokens},
                               {"num_total_reqs", all.running + all.waiting},
                               {"num_used_tokens", all.used_pages * all.page_rows},
                               {"max_total_num_tokens", all.pages * all.page_rows},
                               {"token_usage", all.kv_usage()},
                               {"gen_throughput", all.answer_rate},
                               {"cache_hit_rate", share(all.cached_tokens, all.prompt_tokens)},
                               {"utilization", share(all.running, all.max_running)},
                               {"max_running_requests", all.max_running}};
    return reply_of({{"timestamp", utc_time(std::time(nullptr))}, {"dp_rank_count", 1}, {"loads", json::array{load}}});
}

HttpReply get_props(const ApiContext& ctx) {
    const EngineInfo info = ctx.engine.info();
    const EngineStats stats = ctx.engine.stats();
    json::object out = {{"model", ctx.model->name},
                        {"context_length", info.context_length},
                        {"kv_tokens", info.kv_tokens},
                        {"kv_type", {{"k", dtype_name(info.k_dtype)}, {"v", dtype_name(info.v_dtype)}}},
                        {"attention_window", info.model.attention_window},
                        {"max_running", info.max_running},
                        {"device", info.device},
                        {"weights_version", info.version},
                        {"chat",
                         {{"template", info.chat},
                          {"dialect", info.chat_dialect},
                          {"tools", info.chat_traits.tools},
                          {"thinking", info.chat_traits.thinking},
                          {"laguna_version", info.chat_traits.laguna_version}}},
                        {"compression", describe_compression(info)},
                        {"stop_ids", json::value_from(info.stop_ids)},
                        {"now", {{"waiting", stats.waiting}, {"running", stats.running}}},
                        {"mcp_servers", json::array()}};
    for (const auto& [name, url] : ctx.options.mcp.named) out["mcp_servers"].as_array().emplace_back(name);
    describe_defaults(ctx, info.makers, out);
    return reply_of(out);
}

HttpReply post_tokenize(const ApiContext& ctx, json::object body) {
    const Tokenizer& tokenizer = need_tokenizer(ctx);
    const Fields fields(body);
    std::vector<int32_t> ids;
    if (fields.find("messages") != nullptr) {
        ids = ctx.engine.tokenize(parse_chat(body, ctx.defaults).prompts.at(0).prompt, &ctx.work);
    } else {
        const auto text = text_field(fields);
        if (!text) refuse("content", "content: missing (a string; or messages)");
        TextPrompt prompt{.text = std::string(*text)};
        prompt.add_special = fields.boolean("add_special").value_or(false);
        prompt.parse_special = fields.boolean("parse_special").value_or(true);
        if (!prompt.text.empty()) ids = ctx.engine.tokenize(prompt, &ctx.work);
    }
    const bool pieces = fields.boolean("with_pieces").value_or(false);
    return {200, tokens_reply(ids, pieces ? &tokenizer : nullptr, ctx)};
}

HttpReply post_render_chat(const ApiContext& ctx, json::object body) {
    const GenerationRequest asked = parse_chat(std::move(body), ctx.defaults);
    check_model(ctx, asked.model);
    return {200, rendered(asked.prompts.at(0).prompt, ctx)};
}

HttpReply post_render_completion(const ApiContext& ctx, json::object body) {
    const GenerationRequest asked = parse_completion(std::move(body), ctx.defaults, ctx.engine.tokenizer());
    check_model(ctx, asked.model);
    std::string out = "[";
    for (const Request& each : asked.prompts) out += rendered(each.prompt, ctx) + ",";
    out.back() = ']';
    return {200, std::move(out)};
}

HttpReply post_detokenize(const ApiContext& ctx, const json::object& body) {
    const Tokenizer& tokenizer = need_tokenizer(ctx);
    const json::array* list = Fields(body).array("tokens");
    if (list == nullptr) refuse("tokens", "tokens: missing");
    const std::size_t most = (std::size_t{8} << 20) + 4 * ctx.body.size();
    std::string text;
    Utf8Stream stream;
    for (std::size_t i = 0; i < list->size(); ++i) {
        const json::value& id = (*list)[i];
        if (!id.is_int64() || id.get_int64() < 0 || id.get_int64() >= tokenizer.vocab_size())
            refuse("tokens", "tokens[{}] is {}, expected 0 to {}", i, json::serialize(id).substr(0, 40),
                   tokenizer.vocab_size() - 1);
        const std::string_view piece = tokenizer.piece(static_cast<int32_t>(id.get_int64()));
        ctx.work.spend_bytes(static_cast<int64_t>(piece.size()) + 16);
        stream.push(piece, text);
        if (text.size() > most) refuse("tokens", "tokens: the first {} spell more than {} bytes", i + 1, most);
    }
    stream.finish(text);
    std::string out = "{\"content\":";
    const std::size_t begin = out.size();
    append_quoted(text, out);
    text = {};
    const std::size_t size = out.size() - begin;
    out += ",\"prompt\":";
    out.append(out, begin, size);
    out += '}';
    return {200, std::move(out)};
}

HttpReply post_apply_template(const ApiContext& ctx, json::object body) {
    const ChatTemplate* chat = ctx.engine.chat_template();
    if (chat == nullptr) throw ApiError(400, ctx.engine.info().no_chat);
    GenerationRequest asked = parse_chat(std::move(body), ctx.defaults);
    const auto& prompt = std::get<ChatPrompt>(asked.prompts.at(0).prompt);
    return reply_of({{"prompt", chat->render(prompt.messages, prompt.tools, prompt.options, &ctx.work).text}});
}

}  // namespace riptide::server
