// The subcommands of `riptide`, one file each (cmd_NAME.cpp).
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace riptide::apps {

/// What a parsed subcommand does; returns the exit code.
using Action = std::function<int()>;

/// Each adds its subcommand to `app` and, when that is chosen, leaves what to do in `action`.
void add_run(CLI::App& app, Action& action);
void add_chat(CLI::App& app, Action& action);
void add_inspect(CLI::App& app, Action& action);
void add_tokenize(CLI::App& app, Action& action);
void add_template(CLI::App& app, Action& action);
void add_quantize(CLI::App& app, Action& action);
void add_synth(CLI::App& app, Action& action);
void add_bench(CLI::App& app, Action& action);
void add_trace(CLI::App& app, Action& action);
void add_ppl(CLI::App& app, Action& action);
void add_ab(CLI::App& app, Action& action);
void add_niah(CLI::App& app, Action& action);
void add_serve(CLI::App& app, Action& action);
void add_launch(CLI::App& app, Action& action);
void add_pull(CLI::App& app, Action& action);
void add_ps(CLI::App& app, Action& action);
void add_doctor(CLI::App& app, Action& action);
void add_completion(CLI::App& app, Action& action);

/// --host, --port and --api-key of a server that runs.
struct ServerAddress;
void add_server_address(CLI::App& command, ServerAddress& server);

/// Help with one line for each flag: what it does begins at column `width`.
void wide_help(CLI::App& command, size_t width);

/// The whole program: parses, runs, prints `error: ...` on one line of stderr. Returns the exit code (base/error.h).
int riptide_main(int argc, const char* const* argv);

}  // namespace riptide::apps
