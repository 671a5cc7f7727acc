// Settings of agents and editors that read them from files of their own: printed for the user to put there.
#pragma once

#include <cstdint>
#include <string>

#include "apps/commands/agent_profile.h"

namespace riptide::apps {

struct AgentSettings {
    std::string place;  // where `text` belongs, in words
    std::string text;   // a file, a part of one, or commands
    /// What the agent says that it needs, or what its own prompt and tools took when they were measured; 0: not known.
    int64_t wanted_context = 0;
};

/// The agent cannot be told for one run, so it is not started.
bool only_printed(const std::string& agent);

/// `agent`: one that is only printed, or one of agent_profile()'s, whose variables and command it then is. Throws Error
/// (usage) for others.
AgentSettings agent_settings(const std::string& agent, const AgentServer& server);

}  // namespace riptide::apps
