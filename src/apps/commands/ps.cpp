// riptide ps: what a server does now.
#include <cstdio>
#include <memory>

#include "apps/commands/commands.h"
#include "apps/flags/flags.h"
#include "apps/support/local_http.h"
#include "apps/support/terminal.h"
#include "base/error.h"
#include "base/json.h"

namespace riptide::apps {

namespace {

struct PsFlags {
    ServerAddress server;
    bool as_json = false;
};

json::object ask_server(const ServerAddress& server, const std::string& path) {
    const auto reply = get_local(server, path);
    if (!reply)
        fail(ErrorKind::unavailable, "no server answers on {} port {}: start one with riptide serve", server.host,
             server.port);
    if (reply->status == 401)
        fail(ErrorKind::permission, "the server on port {} wants an API key: give --api-key", server.port);
    if (reply->status == 503) fail(ErrorKind::unavailable, "the server on port {} is not ready", server.port);
    RT_CHECK(reply->status == 200, "{} port {}: status {} for {}: is it riptide?", server.host, server.port,
             reply->status, path);
    return parse_json(reply->body, path).as_object();
}

int ps(const PsFlags& o) {
    const json::object props = ask_server(o.server, "/props"), live = ask_server(o.server, "/v1/requests");
    const json::array& requests = live.at("data").as_array();
    if (o.as_json) {
        tell("{}\n", json::serialize(json::object{{"server", props}, {"requests", requests}}));
        return 0;
    }
    const auto count = [](const json::value& value) { return grouped(value.to_number<int64_t>()); };
    tell("{}  on {}  context {}  {} of {} answers running, {} waiting\n", props.at("model").as_string().c_str(),
         props.at("device").as_string().c_str(), count(props.at("context_length")),
         count(props.at("now").at("running")), count(props.at("max_running")), count(props.at("now").at("waiting")));
    if (requests.empty()) return 0;
    tell("{:<34} {:<10} {:>8} {:>16} {:>10} {:>8}  {}\n", "REQUEST", "STATE", "SECONDS", "PROMPT READ", "CACHED",
         "PIECES", "SESSION");
    for (const json::value& request : requests)
        tell("{:<34} {:<10} {:>8.1f} {:>16} {:>10} {:>8}  {}\n", request.at("id").as_string().c_str(),
             request.at("state").as_string().c_str(), request.at("seconds").to_number<double>(),
             count(request.at("prompt_read")) + "/" + count(request.at("prompt_tokens")),
             count(request.at("prompt_cached")), count(request.at("pieces")),
             request.at("session").as_string().c_str());
    return 0;
}

}  // namespace

void add_server_address(Command& cmd, ServerAddress& server) {
    cmd.add_option("--host", server.host, "Where the server listens")->capture_default_str();
    cmd.add_option("--port", server.port, "And its port")->check(Range(1, 65535))->capture_default_str();
    cmd.add_option("--api-key", server.key, "The server's key, if it wants one");
}

void add_ps(Command& app, Action& action) {
    Command* cmd = app.add_subcommand("ps", "Show what a running server does");
    auto options = std::make_shared<PsFlags>();
    add_server_address(*cmd, options->server);
    cmd->add_option("--tls-ca", options->server.tls_ca, "File with its certificate, or who signed it: speak TLS");
    cmd->add_flag("--json", options->as_json, "For scripts");
    cmd->footer("Examples:\n  riptide ps\n  riptide ps --port 8485 --json\n  riptide ps --tls-ca cert.pem");
    cmd->callback([options, &action] { action = [options] { return ps(*options); }; });
}

}  // namespace riptide::apps
