// riptide launch: a coding agent that talks to a riptide server, in one command.
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <thread>

#include "apps/commands/agent_profile.h"
#include "apps/commands/agent_settings.h"
#include "apps/commands/commands.h"
#include "apps/flags/flags.h"
#include "apps/support/child_process.h"
#include "apps/support/environment.h"
#include "apps/support/local_http.h"
#include "apps/support/model_store.h"
#include "apps/support/temporary_folder.h"
#include "apps/support/terminal.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"

namespace riptide::apps {

namespace {

struct LaunchFlags {
    std::string agent, model;
    ServerAddress server;
    bool any_context = false, print = false;
    std::vector<std::string> rest;
};

constexpr std::chrono::minutes kLoadTime{30};
constexpr int64_t kRoomForWork = 4096;  // tokens: a question, a file that is read, an answer

std::string last_line(const std::string& path) {
    std::string text = read_file(path, 1 << 20);
    while (text.ends_with('\n')) text.pop_back();
    const std::size_t line = text.rfind('\n');
    return line == std::string::npos ? text : text.substr(line + 1);
}

bool ready(const ServerAddress& server) {
    const auto reply = get_local(server, "/health", 2);
    return reply && reply->status == 200;
}

/// The server, if there is none yet.
std::unique_ptr<ChildProcess> start_server(const LaunchFlags& o, const std::string& log) {
    std::unique_ptr<ChildProcess> server;
    if (!get_local(o.server, "/health", 2)) {
        std::error_code ec;
        const std::string self = std::filesystem::read_symlink("/proc/self/exe", ec).string();
        RT_CHECK(!ec, ErrorKind::system, "/proc/self/exe: {}", ec.message());
        std::vector<std::string> command = {self, "serve"};
        if (!o.model.empty()) command.push_back(o.model);
        for (const std::string& more : {std::string("--port"), std::to_string(o.server.port)}) command.push_back(more);
        say("starting the server; its log is {}\n", log);
        server = std::make_unique<ChildProcess>(ChildProcess::Start{command, {}, log, true});
    } else if (!o.model.empty()) {
        say("a server runs on port {}: taking its model\n", o.server.port);
    }
    const auto until = std::chrono::steady_clock::now() + kLoadTime;
    while (!ready(o.server)) {
        if (server && !server->running()) fail(ErrorKind::unavailable, "the server has ended: {}", last_line(log));
        if (std::chrono::steady_clock::now() > until)
            fail(ErrorKind::unavailable, "the server on port {} does not get ready", o.server.port);
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    return server;
}

/// What /props says. A server of several models loads its first one when it is asked.
json::object facts_of_server(const ServerAddress& server) {
    const auto until = std::chrono::steady_clock::now() + kLoadTime;
    for (bool asked = false;; asked = true) {
        const auto reply = get_local(server, "/props");
        RT_CHECK(reply && (reply->status == 200 || reply->status == 503), ErrorKind::unavailable,
                 "the server on port {} does not say what it runs (status {}): --api-key?", server.port,
                 reply ? reply->status : 0);
        const json::object body = parse_json(reply->body, "/props").as_object();
        if (reply->status == 200) return body;
        const json::object& error = body.at("error").as_object();
        const std::string why(error.at("message").as_string());
        // The first reply may tell of an attempt before ours.
        if ((asked && error.at("code") == "model_not_loaded") || std::chrono::steady_clock::now() > until)
            fail(ErrorKind::unavailable, "the server on port {}: {}", server.port, why);
        if (!asked) say("the server on port {}: {}\n", server.port, why);
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
}

AgentServer agent_server(const LaunchFlags& o) {
    const json::object props = facts_of_server(o.server);
    AgentServer out;
    out.url = fmt::format("http://{}:{}", o.server.host, o.server.port);
    out.key = o.server.key.empty() ? "riptide" : o.server.key;
    out.model = props.at("model").as_string();
    out.context = props.at("context_length").to_number<int64_t>();
    return out;
}

/// An agent whose own prompt leaves no room would only fail at its first question.
void check_context(const LaunchFlags& o, const AgentServer& server) {
    const int64_t own = own_prompt_tokens(o.agent), wanted = own + kRoomForWork;
    if (server.context >= wanted || o.any_context) return;
    fail(ErrorKind::usage,
         "{} begins with some {} tokens of its own prompt and tools, and {} has a context of {}: expected {} or more; "
         "serve a model with a longer one, or with more --ctx (riptide list --known names some), or give --any-context "
         "if your settings make its prompt shorter",
         o.agent, grouped(own), server.model, grouped(server.context), grouped(wanted));
}

/// Nothing is started, and no file touched.
int print_settings(const LaunchFlags& o) {
    RT_CHECK(
        get_local(o.server, "/health", 2), ErrorKind::unavailable,
        "--print: no server runs on port {}, and the settings name its model and context: start riptide serve first",
        o.server.port);
    const AgentServer facts = agent_server(o);
    const AgentSettings settings = agent_settings(o.agent, facts);
    say("{}:\n", settings.place);
    if (facts.context < settings.wanted_context)
        say("{} wants a context of more than {}, and {} has {}: serve a model with more (--ctx)\n", o.agent,
            grouped(settings.wanted_context), facts.model, grouped(facts.context));
    put_text(settings.text);
    return 0;
}

int launch(LaunchFlags o) {
    if (o.print) return print_settings(o);
    RT_CHECK(!only_printed(o.agent), ErrorKind::usage,
             "{} takes its settings from files of its own, and is not started: riptide launch --print {} shows them",
             o.agent, o.agent);
    const std::string program = find_program(agent_profile(o.agent, {}, "").program);
    RT_CHECK(!program.empty(), ErrorKind::unavailable, "{} is not on PATH: install it first", o.agent);
    if (!o.model.empty() && !get_local(o.server, "/health", 2)) o.model = resolve_model(o.model);
    const TemporaryFolder folder;
    std::unique_ptr<ChildProcess> server = start_server(o, folder.path() + "/server.log");
    const AgentServer facts = agent_server(o);
    check_context(o, facts);
    const AgentProfile profile = agent_profile(o.agent, facts, folder.path());
    for (const auto& [name, contents] : profile.files) std::ofstream(folder.path() + "/" + name) << contents;
    std::vector<std::string> command = {program};
    command.insert(command.end(), profile.arguments.begin(), profile.arguments.end());
    command.insert(command.end(), o.rest.begin(), o.rest.end());
    ::signal(SIGINT, SIG_IGN);  // Ctrl-C is the agent's
    ChildProcess agent({command, profile.environment, "", false});
    return agent.wait();
}

}  // namespace

void add_launch(Command& app, Action& action) {
    Command* cmd =
        app.add_subcommand("launch", "Run a coding agent on a riptide server; starts the server if none runs");
    auto options = std::make_shared<LaunchFlags>();
    cmd->add_option(
           "AGENT", options->agent,
           "claude | codex | opencode | pi; with --print also hermes | openclaw | qwen-code | cline | continue | zed")
        ->required()
        ->check(IsMember(
            {"claude", "codex", "opencode", "pi", "hermes", "openclaw", "qwen-code", "cline", "continue", "zed"}));
    cmd->add_option("ARGUMENTS", options->rest, "For the agent, behind --");
    cmd->add_option("--model", options->model,
                    "What to serve, if no server runs: a file, a name or an alias; left out: the demo model");
    cmd->add_flag("--print", options->print,
                  "Start nothing: print what the agent needs to use the server that runs, to put it there yourself");
    cmd->add_flag("--any-context", options->any_context,
                  "Start the agent, though the context may not hold its own prompt and tools");
    add_server_address(*cmd, options->server);
    cmd->footer(
        "The agent's own settings stay as they are: it gets variables, flags and a temporary folder.\n"
        "Examples:\n  riptide launch claude --model laguna-xs.2\n  riptide launch codex -- exec 'fix the "
        "tests'");
    cmd->callback([options, &action] { action = [options] { return launch(*options); }; });
}

}  // namespace riptide::apps
