// How a coding agent is told to use a riptide server, without touching its own settings.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace riptide::apps {

struct AgentServer {
    std::string url;  // "http://127.0.0.1:8484"
    std::string key;  // a word if the server wants none
    std::string model;
    int64_t context = 0;
};

struct AgentProfile {
    std::string program;
    std::vector<std::string> arguments;                            // in front of the user's own
    std::vector<std::pair<std::string, std::string>> environment;  // set for it
    std::vector<std::pair<std::string, std::string>> files;        // name in `folder`, contents
};

/// Tokens of one answer: half of a small context stays for the prompt.
int64_t output_limit(const AgentServer& server);

/// `agent`: claude, codex, opencode or pi. `folder`: exists while the agent runs. Throws Error (usage) for others.
AgentProfile agent_profile(const std::string& agent, const AgentServer& server, const std::string& folder);

/// Tokens of what the agent asks before it is asked anything: its own prompt and all of its tools, as
/// docs/results/server.md has them. `agent` as above.
int64_t own_prompt_tokens(const std::string& agent);

}  // namespace riptide::apps
