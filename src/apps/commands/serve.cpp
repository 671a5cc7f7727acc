// riptide serve: the model over HTTP.
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <thread>

#include "apps/commands/commands.h"
#include "apps/commands/serve_engine.h"
#include "apps/flags/compress_flags.h"
#include "apps/flags/flags.h"
#include "apps/flags/model_flags.h"
#include "apps/flags/trace_flags.h"
#include "apps/support/demo_model.h"
#include "apps/support/log_writer.h"
#include "apps/support/model_list.h"
#include "apps/support/model_store.h"
#include "apps/support/systemd.h"
#include "apps/support/terminal.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "engine/engine.h"
#include "server/access.h"
#include "server/server.h"
#include "text/chat/chat_messages.h"

namespace riptide::apps {

namespace {

/// One key a line, without the white space round it, which no HTTP header can carry; empty lines and lines that begin
/// with # are skipped.
void read_keys(const std::string& path, std::vector<std::string>& keys) {
    const std::string text = read_file(path, 1 << 20);
    const std::size_t before = keys.size();
    for (std::size_t at = 0; at < text.size();) {
        const std::size_t end = std::min(text.find('\n', at), text.size());
        const std::size_t first = text.find_first_not_of(" \t\r\v\f", at);
        std::string line = first < end ? text.substr(first, end - first) : "";
        at = end + 1;
        line.erase(line.find_last_not_of(" \t\r\v\f") + 1);
        if (!line.empty() && line[0] != '#') keys.push_back(line);
    }
    RT_CHECK(keys.size() > before, "{}: no API key in it; expected one a line", path);
}

json::object template_kwargs(const std::string& text) {
    if (text.empty()) return {};
    try {
        const json::value value = parse_json(text, "--chat-template-kwargs");
        RT_CHECK(value.is_object(), "--chat-template-kwargs: expected a JSON object");
        check_template_kwargs(value.get_object());
        RT_CHECK(!value.get_object().contains("enable_thinking"),
                 "--chat-template-kwargs: enable_thinking is --reasoning on or off");
        return value.get_object();
    } catch (const Error& error) {
        throw Error(error.what(), ErrorKind::usage);
    }
}

server::ServerOptions server_options(const ServerFlags& o, LogWriter& log) {
    server::ServerOptions out = o.server;
    if (!o.key_file.empty()) read_keys(o.key_file, out.api_keys);
    RT_CHECK(
        server::is_loopback(out.http.host) || !out.http.unix_socket.empty() || !out.api_keys.empty() || o.allow_no_auth,
        ErrorKind::usage,
        "--host {} lets other machines in: give --api-key-file FILE, or --allow-no-auth if everybody may ask",
        out.http.host);
    out.page = !o.no_page;
    out.traces = trace_options(o.otlp_endpoint);
    for (const std::string& server : o.mcp) out.mcp.add(server);
    RT_CHECK(o.models.empty() || (o.model.model.empty() && out.model.empty()), ErrorKind::usage,
             "--models {} has the models and their names: leave out {}", o.models,
             out.model.empty() ? o.model.model : "--alias");
    RT_CHECK(!o.models.empty() || (o.models_memory_mib == 0 && o.keep_alive == 0), ErrorKind::usage,
             "--models-memory and --keep-alive need --models");
    if (out.model.empty()) out.model = default_name(o.model.model);
    out.defaults.template_kwargs = template_kwargs(o.template_kwargs);
    out.http.inflight_bytes = o.inflight_mib << 20;
    if (o.reasoning != "auto") out.defaults.thinking = o.reasoning == "on";
    out.defaults.sampling = usual_sampling();
    if (!o.quiet) out.log.write = [&log](const std::string& line) { log.write(line); };
    out.log.json = o.log_format == "json";
    try {
        check_sampling_params(settle_sampling(out.defaults.sampling, out.sampling, {}).params, INT32_MAX);
    } catch (const Error& error) {
        throw Error(error.what(), ErrorKind::usage);
    }
    return out;
}

std::string url_of(const server::HttpOptions& http, int port) {
    if (!http.unix_socket.empty()) return "unix:" + http.unix_socket;
    const bool v6 = http.host.find(':') != std::string::npos;
    return fmt::format("{}://{}:{}", http.tls_certificate.empty() ? "http" : "https",
                       v6 ? fmt::format("[{}]", http.host) : http.host, port);
}

/// "enable_thinking true (generation_config.json), ..."
std::string template_defaults(const server::RequestDefaults& defaults, const GenerationDefaults& makers) {
    const json::object own = server::template_variables(defaults, {});
    std::string out;
    for (const auto& [name, value] : server::template_variables(defaults, makers.template_kwargs))
        out += fmt::format("{}{} {} ({})", out.empty() ? "" : ", ", std::string_view(name), json::serialize(value),
                           own.contains(name) ? "command line" : makers.source);
    return out;
}

std::string management_line(const server::ServerOptions& options, int port) {
    server::HttpOptions where;
    where.host = options.management_host;
    return fmt::format("manage  {}: /health, /metrics, /v1/loads, ... without a key", url_of(where, port));
}

std::string access_line(const server::ServerOptions& options) {
    return options.api_keys.empty() ? "no API key: everybody who reaches the port" : "with an API key";
}

/// A request that shows what the model does.
std::pair<const char*, const char*> try_first(const EngineInfo& info) {
    if (info.model.task == Task::embed) return {"embeddings", R"({"input": "a text"})"};
    if (info.model.task == Task::rerank)
        return {"rerank", R"({"query": "capital of China", "documents": ["Beijing", "gravity"]})"};
    if (info.chat) return {"chat/completions", R"({"messages": [{"role": "user", "content": "What is 12 plus 30?"}]})"};
    return {"completions", R"({"prompt": "12 plus 30 is", "max_tokens": 16})"};
}

void announce(const EngineInfo& info, const server::ServerOptions& options, bool demo, int port, double seconds,
              LogWriter& log) {
    const auto say = [&log]<class... Args>(fmt::format_string<Args...> format, Args&&... args) {
        log.write(fmt::format(format, std::forward<Args>(args)...));
    };
    const std::string url = url_of(options.http, port);
    const std::string kv = info.k_dtype == info.v_dtype
                               ? dtype_name(info.k_dtype)
                               : fmt::format("{}/{}", dtype_name(info.k_dtype), dtype_name(info.v_dtype));
    say("model   {}  {:.2f}B parameters, {:.2f}B active  {}", options.model,
        static_cast<double>(info.model.parameters) / 1e9, static_cast<double>(info.model.active_parameters) / 1e9,
        human_bytes(info.model.weight_bytes));
    say("device  {}", info.device);
    say("fit     context {} tokens, K/V for {} tokens as {}, {} answers at a time", grouped(info.context_length),
        grouped(info.kv_tokens), kv, info.max_running);
    if (!info.memory.empty()) say("memory  {}", info.memory);
    if (!info.model.kv_scales.empty()) say("scales  {}", info.model.kv_scales);
    if (info.model.attention_window > 0) say("window  {}", window_sentence(info.model));
    const CompressionOptions& c = info.compression;
    if (!info.scorer.empty())
        say("scorer  {}: {} keep {} of what can be left out{}", info.scorer,
            c.mode == CompressMode::always      ? "prompts"
            : c.mode == CompressMode::automatic ? fmt::format("prompts above {} tokens", grouped(c.above))
                                                : "prompts that ask for it",
            c.keep_tokens > 0 ? grouped(c.keep_tokens) : fmt::format("{:.3g} %", 100 * c.keep),
            c.positions == KeptPositions::original ? ", at its original positions" : "");
    if (demo)
        say("note    this is the demo model, of {:.1f} million parameters: good for trying things out; riptide list "
            "--known "
            "names models to work with, e.g. riptide serve laguna-xs.2",
            static_cast<double>(info.model.parameters) / 1e6);
    say("draws   {}, where a request does not say",
        describe(settle_sampling(options.defaults.sampling, options.sampling, info.makers)));
    if (const std::string variables = template_defaults(options.defaults, info.makers); !variables.empty())
        say("chat    {} for the template, where a request does not say", variables);
    if (info.model.task != Task::generate) say("task    {}", task_name(info.model.task));
    if (!info.chat) say("chat    none: {}", info.no_chat);
    say("access  {}", access_line(options));
    say("ready   in {:.1f} s   {}/v1   metrics {}/metrics{}", seconds, url, url,
        options.page ? "   page " + url + "/" : "");
    if (!options.http.unix_socket.empty()) return;
    const auto [path, body] = try_first(info);
    say("try     curl {}/v1/{} -H 'Content-Type: application/json' -d '{}'", url, path, body);
}

/// The first lines of a server with several models.
void announce_several(const server::ServerOptions& options, int port, LogWriter& log) {
    const server::PoolOptions& several = options.several;
    std::string names;
    for (const auto& model : several.models) names += (names.empty() ? "" : ", ") + model.name;
    const std::string url = url_of(options.http, port);
    log.write(fmt::format("models  {}: loaded when asked for, {} of weights and K/V at most{}", names,
                          human_bytes(several.memory_bytes),
                          several.keep_alive.count() > 0
                              ? fmt::format(", gone after {} s unused", several.keep_alive / std::chrono::seconds(1))
                              : ""));
    log.write(fmt::format("default {}: for requests that name {}", several.models.front().name,
                          options.strict_model ? "no model" : "none of these"));
    log.write(fmt::format("access  {}", access_line(options)));
    log.write(
        fmt::format("ready   {}/v1   metrics {}/metrics{}", url, url, options.page ? "   page " + url + "/" : ""));
}

int serve(ServerFlags o) {
    o.model.model = resolve_model(o.model.model, o.model.hub);
    catch_interrupts();
    ::signal(SIGHUP, SIG_IGN);   // a terminal that closes is no reason to end
    ::signal(SIGPIPE, SIG_IGN);  // nor is a reader of the log that has gone
    const auto begun = std::chrono::steady_clock::now();
    LogWriter log;
    server::ServerOptions options = server_options(o, log);
    DiskWarnings warnings(log);  // hears of records that the engine cannot save as it ends
    std::unique_ptr<KvEvents> events;
    if (!o.models.empty()) options.several = several_models(o, warnings, log);
    server::Server server(options);
    if (options.management_port) log.write(management_line(options, server.management_port()));
    if (options.agent_port)
        log.write(fmt::format("agent   {} port {}, for HAProxy", options.management_host, server.agent_port()));
    if (const auto& collector = options.traces.url)
        log.write(fmt::format("traces  to {}{}", collector->authority, collector->target));
    if ((events = open_kv_events(o, options, server.port()))) {
        server.tell_kv_events(place_of(*events, o.events.topic));
        log.write(fmt::format("events  {} topic {}{}", events->endpoint(), o.events.topic,
                              events->replay().empty() ? "" : ", replay " + events->replay()));
    }
    if (o.models.empty()) {
        const auto open = [&] { return open_server_engine(o, warnings, log); };
        auto engine = open();
        const EngineInfo info = engine->info();
        if (info.shares_cache) log.write(shared_line(o));
        server.serve(std::move(engine), open);
        announce(info, options, o.model.model.empty(), server.port(),
                 std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count(), log);
    } else {
        if (!o.engine.shared_cache.empty()) log.write(shared_line(o));
        announce_several(options, server.port(), log);
    }
    Systemd systemd;
    systemd.ready(fmt::format("{} on port {}", o.models.empty() ? options.model : o.models, server.port()));
    while (!interrupted() && !server.engine_failed()) {
        systemd.alive();
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    systemd.stopping();
    if (server.engine_failed()) fail(ErrorKind::system, "the engine has failed; start riptide serve again");
    log.write(fmt::format("stopping: answers may take {} s more (Ctrl-C again ends at once)", o.grace_seconds));
    server.drain(std::chrono::seconds(o.grace_seconds));
    return 0;
}

/// Told by docs/fleet.md and --help-all.
void add_event_flags(Command& cmd, KvEventsOptions& o, std::string& form) {
    cmd.add_option("--kv-events", o.endpoint, "Tell routers over ZeroMQ what is cached, here: tcp://127.0.0.1:5557")
        ->group("");
    cmd.add_option("--kv-events-replay", o.replay, "And here what they have missed: tcp://127.0.0.1:5558")->group("");
    cmd.add_option("--kv-events-topic", o.topic, "Under this name; left out: kv@HOST:PORT@MODEL")->group("");
    cmd.add_option("--kv-events-format", form, "array, or map for routers that read events by name; left out: array")
        ->check(IsMember({"array", "map"}))
        ->group("");
    cmd.add_flag("--kv-events-disk", o.disk, "Tell what is on disk, too")->group("");
}

void add_server_flags(Command& cmd, ServerFlags& o) {
    cmd.add_option("--host", o.server.http.host, "Address to listen on")->capture_default_str();
    cmd.add_option("--port", o.server.http.port, "0: any that is free")->check(Range(0, 65535))->capture_default_str();
    cmd.add_option("--alias", o.server.model, "The model's name in the API; left out: the file's");
    cmd.add_option("--models", o.models,
                   "Several models, each loaded when asked for: a folder, or a JSON file (docs/server.md)");
    cmd.add_option("--task", o.task, "What it is for: generate | embed | rerank; auto: what its files say")
        ->check(IsMember({"auto", "generate", "embed", "rerank"}))
        ->capture_default_str();
    cmd.add_option("--models-memory", o.models_memory_mib,
                   "Of --models: MiB for weights and K/V of all; 0: what the GPU has free, or 3/4 of the machine's")
        ->check(Range(int64_t{0}, int64_t{1} << 32))
        ->capture_default_str();
    cmd.add_option("--keep-alive", o.keep_alive, "Of --models: seconds until an unused one is put away; 0: never")
        ->check(Range(int64_t{0}, int64_t{1} << 31))
        ->capture_default_str();
    cmd.add_flag("--strict-model", o.server.strict_model, "Refuse other names; else any name means this model");
    cmd.add_option("--api-key", o.server.api_keys, "Who asks must send this key (repeatable; others can see it in ps)")
        ->allow_extra_args(false);
    cmd.add_option("--api-key-file", o.key_file, "Keys, one a line");
    cmd.add_flag("--allow-no-auth", o.allow_no_auth, "Let other machines in without a key");
    cmd.add_option("--allowed-host", o.server.allowed_hosts, "A further name of this server (repeatable)")
        ->allow_extra_args(false);
    cmd.add_option("--socket", o.server.http.unix_socket, "Listen on this Unix socket, and on no port");
    cmd.add_option("--tls-cert", o.server.http.tls_certificate, "Speak TLS, with the certificate (chain) in this file");
    cmd.add_option("--tls-key", o.server.http.tls_key, "Its private key; left out: in the same file");
    cmd.add_option("--cors-origin", o.server.cors_origins, "Let web pages of this origin ask (repeatable)")
        ->allow_extra_args(false);
    cmd.add_option("--max-inflight", o.inflight_mib,
                   "MiB of memory for requests that are being read (32 times their size) and for replies; more get "
                   "status 503; 0: a quarter of the machine's")
        ->check(Range(int64_t{0}, int64_t{1} << 32))
        ->capture_default_str();
    cmd.add_option("--grace", o.grace_seconds, "Seconds that answers get to end on Ctrl-C or SIGTERM")
        ->check(Range(0, 86400))
        ->capture_default_str();
    cmd.add_flag("--quiet", o.quiet, "No line for each answer");
    cmd.add_option("--log-format", o.log_format, "Of the line for each answer: text | json")
        ->check(IsMember({"text", "json"}))
        ->capture_default_str();
    cmd.add_flag("--log-content", o.server.log.content, "Log what is asked and answered, too");
    cmd.add_flag("--no-ui", o.no_page, "Show browsers no page at /");
    cmd.add_option("--mcp", o.mcp, "NAME=URL: an MCP server whose tools the page may use (repeatable)")
        ->allow_extra_args(false);
    cmd.add_option("--management-port", o.server.management_port,
                   "A further port that tells health, load and metrics without a key; 0: any that is free")
        ->check(Range(0, 65535));
    cmd.add_option("--management-host", o.server.management_host, "Its address")->capture_default_str();
    cmd.add_option("--agent-port", o.server.agent_port, "One there for HAProxy's agent checks; 0: any that is free")
        ->check(Range(0, 65535));
    cmd.add_flag("--open-metrics", o.server.open_metrics, "/metrics needs no key");
    cmd.add_option("--otlp-endpoint", o.otlp_endpoint,
                   "Send traces to this collector, e.g. http://127.0.0.1:4318 (docs/fleet.md)");
    add_event_flags(cmd, o.events, o.events_form);
    cmd.add_flag("--admin", o.server.admin, "Let clients pause the engine and give it other weights");
}

void add_engine_flags(Command& cmd, ServerFlags& o) {
    cmd.add_option("--max-running", o.engine.max_running, "Answers made at a time; 0: 8 on the CPU, 32 on a GPU")
        ->check(Range(0, 256))
        ->capture_default_str();
    cmd.add_option("--max-queue", o.engine.max_queue, "Answers that may wait; more get status 429")
        ->check(Range(1, 1 << 20))
        ->capture_default_str();
    cmd.add_option("--rows-beside", o.engine.prefill_rows_beside,
                   "Prompt rows of a step while answers are made; 0: 64 on the CPU, 2048 or more on a GPU")
        ->check(Range(0, 65536))
        ->capture_default_str();
    cmd.add_option(
           "--slowdown", o.engine.slowdown,
           "How much longer a token may take while prompts are read; 2: they get half of the device; 0: 2 to 8, "
           "the more answers wait for each that is made")
        ->check(Range(0.0, 1e6))
        ->capture_default_str();
    cmd.add_option("--kv-tokens", o.engine.kv_tokens,
                   "K/V of all answers and of the cache, in tokens; 0: what fits on a GPU; on the CPU what 4 GiB hold, "
                   "one to four contexts")
        ->check(Sign::non_negative)
        ->capture_default_str();
    cmd.add_option("--cache-ram", o.cache_ram_mib,
                   "Prefix cache in main memory, MiB, beside 4 GiB for checkpoints; 0: none")
        ->check(Range(int64_t{0}, int64_t{1} << 32))
        ->capture_default_str();
    cmd.add_option("--cache-dir", o.engine.disk_cache, "Prefix cache on disk, in this folder");
    cmd.add_option("--cache-disk", o.cache_disk_gib, "Its size at most, GiB")
        ->check(Range(int64_t{1}, int64_t{1} << 22))
        ->capture_default_str();
    cmd.add_option("--shared-cache", o.engine.shared_cache,
                   "Prefix cache of a fleet: dir:/a/folder, redis://host:6379 or s3://bucket/prefix");
    cmd.add_option("--shared-cache-key", o.engine.shared_cache_key,
                   "File with the fleet's secret: openssl rand -hex 32");
    cmd.add_option("--shared-cache-size", o.cache_shared_gib, "Its size at most, GiB; of a folder")
        ->check(Range(int64_t{1}, int64_t{1} << 22))
        ->capture_default_str();
    cmd.add_flag("--deterministic", o.engine.deterministic, "The same tokens whether prefixes were cached or not");
    cmd.add_option("--reasoning", o.reasoning,
                   "Where a request does not say: on | off | auto (as the model's "
                   "generation_config.json has it, else its template)")
        ->check(IsMember({"on", "off", "auto"}))
        ->capture_default_str();
    cmd.add_option("--chat-template-kwargs", o.template_kwargs,
                   "Variables of the chat template, where a request does not set them: a JSON object, e.g. "
                   "'{\"preserve_thinking\": true}'");
    cmd.add_option("--reasoning-budget", o.server.defaults.thinking_budget,
                   "Tokens of thinking, where a request does not say; -1: no limit")
        ->check(Range(int64_t{-1}, int64_t{1} << 31))
        ->capture_default_str();
    add_sampling_choice(cmd, o.server.sampling);
    for (const char* flag : {"--temperature", "--top-k", "--top-p", "--min-p"}) {
        Flag* option = cmd.get_option(flag);
        option->description("Where a request does not say. " + option->description());
    }
}

}  // namespace

void add_serve(Command& app, Action& action) {
    Command* cmd = app.add_subcommand("serve", "Offer a model over HTTP, as OpenAI, Anthropic and Ollama do");
    auto options = std::make_shared<ServerFlags>();
    options->server.http.port = 8484;
    cmd->wide_help(52);
    add_model_flags(*cmd, options->model);
    add_tokenizer_flag(*cmd, options->model);
    add_template_flag(*cmd, options->model);
    add_server_flags(*cmd, *options);
    add_engine_flags(*cmd, *options);
    add_draft_flags(*cmd, options->draft);
    add_compress_flags(*cmd, options->compress);
    const auto hide = [&](std::initializer_list<const char*> flags) {
        for (const char* flag : flags) cmd->get_option(flag)->group("");
    };
    hide({"--portable", "--yarn-attention-factor", "--compress-above", "--repetition-penalty", "--min-p", "--chunk",
          "--draft-tree", "--tokenizer", "--log-content"});  // told by run, ppl, chat
    hide({"--models-memory", "--keep-alive", "--rows-beside", "--slowdown", "--log-format", "--management-port",
          "--management-host", "--agent-port", "--open-metrics", "--shared-cache", "--shared-cache-key",
          "--shared-cache-size", "--otlp-endpoint", "--reasoning-budget"});  // told by docs/
    cmd->footer(
        "Examples:\n  riptide serve laguna-xs.2-q4_k_m.gguf --cache-dir ~/.cache/riptide --host 0.0.0.0 --api-key-file "
        "keys");
    cmd->callback([options, &action] { action = [options] { return serve(*options); }; });
}

}  // namespace riptide::apps
