// The subcommands of `riptide`, one file each (commands/NAME.cpp).
#pragma once

#include <functional>

namespace riptide::apps {

class Command;

/// What a parsed subcommand does; returns the exit code.
using Action = std::function<int()>;

/// Each adds its subcommand to `app` and, when that is chosen, leaves what to do in `action`.
void add_run(Command& app, Action& action);
void add_chat(Command& app, Action& action);
void add_inspect(Command& app, Action& action);
void add_tokenize(Command& app, Action& action);
void add_template(Command& app, Action& action);
void add_quantize(Command& app, Action& action);
void add_imatrix(Command& app, Action& action);
void add_synth(Command& app, Action& action);
void add_bench(Command& app, Action& action);
void add_kernels(Command& app, Action& action);
void add_trace(Command& app, Action& action);
void add_ppl(Command& app, Action& action);
void add_ab(Command& app, Action& action);
void add_niah(Command& app, Action& action);
void add_serve(Command& app, Action& action);
void add_launch(Command& app, Action& action);
void add_fit(Command& app, Action& action);
void add_list(Command& app, Action& action);
void add_show(Command& app, Action& action);
void add_rm(Command& app, Action& action);
void add_pull(Command& app, Action& action);
void add_ps(Command& app, Action& action);
void add_doctor(Command& app, Action& action);
void add_completion(Command& app, Action& action);

/// --host, --port and --api-key of a server that runs.
struct ServerAddress;
void add_server_address(Command& command, ServerAddress& server);

/// The whole program: parses, runs, prints `error: ...` on one line of stderr. Returns the exit code (base/error.h).
int riptide_main(int argc, const char* const* argv);

}  // namespace riptide::apps
