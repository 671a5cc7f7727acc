// Settings of agents and editors that read them from files of their own: printed for the user to put there.
#pragma once

#include <cstdint>
#include <string>

#include "apps/commands/agent_profile.h"

namespace riptide::apps {

struct AgentSettings {
    std::string place;          // where `text` belongs, in words
    std::string text;           // a file, a part of one, or commands
    int64_t least_context = 0;  // the agent refuses models with less; 0: not known to
};

/// The agent cannot be told for one run, so it is not started.
bool only_printed(const std::string& agent);

/// `agent`: one that is only printed, or one of agent_profile()'s, whose variables and command it then is. Throws Error
/// (usage) for others.
AgentSettings agent_settings(const std::string& agent, const AgentServer& server);

}  // namespace riptide::apps
