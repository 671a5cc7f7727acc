#include "apps/commands/agent_profile.h"

#include <algorithm>

#include "base/error.h"
#include "base/json.h"

namespace riptide::apps {

namespace {

AgentProfile claude(const AgentServer& s) {
    AgentProfile out{.program = "claude"};
    out.environment = {{"ANTHROPIC_BASE_URL", s.url},
                       {"ANTHROPIC_AUTH_TOKEN", s.key},
                       {"ANTHROPIC_API_KEY", ""},
                       {"CLAUDE_CODE_ATTRIBUTION_HEADER", "0"},  // it would change the head of each session's prompt
                       {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1"},
                       {"CLAUDE_CODE_MAX_CONTEXT_TOKENS", std::to_string(s.context)},
                       {"CLAUDE_CODE_MAX_OUTPUT_TOKENS", std::to_string(output_limit(s))},
                       {"API_TIMEOUT_MS", "1800000"}};
    for (const char* name : {"ANTHROPIC_MODEL", "ANTHROPIC_DEFAULT_OPUS_MODEL", "ANTHROPIC_DEFAULT_SONNET_MODEL",
                             "ANTHROPIC_DEFAULT_HAIKU_MODEL", "CLAUDE_CODE_SUBAGENT_MODEL"})
        out.environment.emplace_back(name, s.model);
    return out;
}

/// Everything by flags: a folder of its own (CODEX_HOME) would hide the user's history.
AgentProfile codex(const AgentServer& s) {
    AgentProfile out{.program = "codex"};
    const auto quoted = [](const std::string& text) { return json::serialize(json::value(text)); };
    const std::string provider = "model_providers.riptide.";
    const std::vector<std::string> settings = {"model=" + quoted(s.model),
                                               "model_provider=\"riptide\"",
                                               "model_context_window=" + std::to_string(s.context),
                                               provider + "name=\"riptide\"",
                                               provider + "base_url=" + quoted(s.url + "/v1"),
                                               provider + "wire_api=\"responses\"",
                                               provider + "env_key=\"RIPTIDE_KEY\"",
                                               provider + "stream_idle_timeout_ms=1800000"};
    for (const std::string& setting : settings) {
        out.arguments.emplace_back("-c");
        out.arguments.push_back(setting);
    }
    out.environment = {{"RIPTIDE_KEY", s.key}};
    return out;
}

AgentProfile opencode(const AgentServer& s) {
    AgentProfile out{.program = "opencode"};
    const json::object limit = {{"context", s.context}, {"output", output_limit(s)}};
    const json::object provider = {{"npm", "@ai-sdk/openai-compatible"},
                                   {"name", "riptide"},
                                   {"options", {{"baseURL", s.url + "/v1"}, {"apiKey", s.key}}},
                                   {"models", {{s.model, {{"name", s.model}, {"limit", limit}}}}}};
    const json::object config = {{"provider", {{"riptide", provider}}}, {"model", "riptide/" + s.model}};
    out.environment = {{"OPENCODE_CONFIG_CONTENT", json::serialize(config)}};
    return out;
}

AgentProfile pi(const AgentServer& s, const std::string& folder) {
    AgentProfile out{.program = "pi"};
    const json::object model = {{"id", s.model},
                                {"name", s.model},
                                {"reasoning", true},
                                {"input", json::array{"text"}},
                                {"contextWindow", s.context},
                                {"maxTokens", output_limit(s)},
                                {"cost", {{"input", 0}, {"output", 0}, {"cacheRead", 0}, {"cacheWrite", 0}}}};
    const json::object provider = {
        {"baseUrl", s.url + "/v1"}, {"api", "openai-completions"}, {"apiKey", s.key}, {"models", json::array{model}}};
    out.files = {{"models.json", json::serialize(json::object{{"providers", {{"riptide", provider}}}})}};
    out.environment = {{"PI_CODING_AGENT_DIR", folder}};
    out.arguments = {"--provider", "riptide", "--model", s.model};
    return out;
}

}  // namespace

int64_t output_limit(const AgentServer& server) { return std::min<int64_t>(32768, server.context / 2); }

AgentProfile agent_profile(const std::string& agent, const AgentServer& server, const std::string& folder) {
    if (agent == "claude") return claude(server);
    if (agent == "codex") return codex(server);
    if (agent == "opencode") return opencode(server);
    if (agent == "pi") return pi(server, folder);
    fail(ErrorKind::usage, "'{}' is not an agent that riptide knows: claude, codex, opencode or pi", agent);
}

int64_t own_prompt_tokens(const std::string& agent) {
    constexpr std::pair<const char*, int64_t> kMeasured[] = {
        {"claude", 24036}, {"codex", 11030}, {"opencode", 8851}, {"pi", 1711}};
    for (const auto& [name, tokens] : kMeasured)
        if (agent == name) return tokens;
    fail(ErrorKind::usage, "'{}' is not an agent that riptide knows", agent);
}

}  // namespace riptide::apps
