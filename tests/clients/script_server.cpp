// riptide's server in front of a model that recites (script_model.h), for tests with real clients.
// usage: script_server CHECKPOINT SCRIPT.json [--name value ...], with the names below, or --mcp NAME=URL. CHECKPOINT lends tokenizer and
// template. SCRIPT.json: [{"has": [...], "lacks": [...], "anywhere": false, "reasoning": "...", "answer": "...",
// "numbers": 0}, ...]; see ScriptLine.
// Says "port N" on stdout; a line on stderr for each answer. Ends on SIGTERM.
#include <csignal>
#include <cstdio>
#include <map>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "engine/prompt/loaded_text.h"
#include "server/server.h"
#include "tests/clients/script_model.h"

namespace riptide::testing {
namespace {

std::vector<std::string> strings(const json::object& line, const char* key) {
    std::vector<std::string> out;
    if (const json::value* list = line.if_contains(key))
        for (const json::value& text : list->as_array()) out.emplace_back(text.as_string());
    return out;
}

std::vector<ScriptLine> read_script(const std::string& path) {
    std::vector<ScriptLine> out;
    const json::value script = parse_json(read_file(path, 1 << 20), path);
    for (const json::value& value : script.as_array()) {
        const json::object& line = value.as_object();
        const auto text = [&](const char* key) {
            const json::value* found = line.if_contains(key);
            return found != nullptr ? std::string(found->as_string()) : std::string();
        };
        out.push_back({strings(line, "has"), strings(line, "lacks"),
                       line.contains("anywhere") && line.at("anywhere").as_bool(), text("reasoning"), text("answer"),
                       line.contains("numbers") ? line.at("numbers").to_number<int64_t>() : 0});
    }
    return out;
}

int run(int argc, char** argv) {
    RT_CHECK(argc >= 3 && argc % 2 == 1, ErrorKind::usage,
             "usage: script_server CHECKPOINT SCRIPT.json [--name value]");
    std::map<std::string, int64_t> set = {
        {"--port", 0},        {"--ctx", 32768},     {"--row-us", 0},    {"--step-us", 0}, {"--load-ms", 0},
        {"--max-running", 8}, {"--max-queue", 512}, {"--kv-tokens", 0}, {"--log", 1},     {"--cache", 1}};
    server::McpServers mcp;
    for (int i = 3; i + 1 < argc; i += 2) {
        if (argv[i] == std::string_view("--mcp")) {
            mcp.add(argv[i + 1]);
            continue;
        }
        RT_CHECK(set.contains(argv[i]), ErrorKind::usage, "{}: no such setting", argv[i]);
        set[argv[i]] = std::stoll(argv[i + 1]);
    }
    const std::unique_ptr<Checkpoint> text = open_checkpoint(argv[1]);
    const Tokenizer tokenizer = load_tokenizer(*text);
    ScriptOptions script;
    script.lines = read_script(argv[2]);
    script.context = set["--ctx"];
    script.row_time = std::chrono::microseconds(set["--row-us"]);
    script.step_time = std::chrono::microseconds(set["--step-us"]);

    EngineOptions engine_options;
    engine_options.threads = 1;
    engine_options.k_dtype = engine_options.v_dtype = DType::f32;
    engine_options.chunk_rows = 512;
    engine_options.max_running = static_cast<int32_t>(set["--max-running"]);
    engine_options.max_queue = static_cast<int32_t>(set["--max-queue"]);
    engine_options.prefix_cache = set["--cache"] != 0;
    engine_options.kv_tokens = set["--kv-tokens"] > 0 ? set["--kv-tokens"] : 4 * script.context;

    server::ServerOptions options;
    options.http.port = static_cast<int>(set["--port"]);
    options.model = "script";
    options.mcp = mcp;
    if (set["--log"] != 0)
        options.log = {[](const std::string& line) { std::fprintf(stderr, "%s\n", line.c_str()); }, true, false};

    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    pthread_sigmask(SIG_BLOCK, &signals, nullptr);
    std::signal(SIGPIPE, SIG_IGN);
    std::unique_ptr<Engine> engine;  // outlives the server
    server::Server server(options);
    std::printf("port %d\n", server.port());
    std::fflush(stdout);
    std::this_thread::sleep_for(std::chrono::milliseconds(set["--load-ms"]));
    engine = std::make_unique<Engine>(std::make_unique<ScriptModel>(tokenizer, script), engine_options, text.get());
    server.serve(*engine);
    int signal = 0;
    sigwait(&signals, &signal);
    server.drain(std::chrono::seconds(1));
    return 0;
}

}  // namespace
}  // namespace riptide::testing

int main(int argc, char** argv) {
    try {
        return riptide::testing::run(argc, argv);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "error: %s\n", error.what());
        return 1;
    }
}
