// What a tool call gets as its result.
#pragma once

#include <string>

namespace riptide::apps {

/// Runs `program` with the tool's name as its only argument and the call's arguments (JSON) as its standard input, and
/// waits. Returns what it printed, stderr too; how it ended, if not well; the beginning, if it is more than 1 MiB.
/// Ctrl-C ends the program. Throws Error: it cannot be started.
std::string run_tool(const std::string& program, const std::string& name, const std::string& arguments);

}  // namespace riptide::apps
