#include "apps/commands/commands.h"

#include <algorithm>
#include <cstdio>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/flags/flags.h"
#include "apps/support/terminal.h"
#include "base/error.h"

namespace riptide::apps {

namespace {

constexpr const char* kDescription =
    "Riptide runs Poolside's Laguna models and their siblings.\n"
    "MODEL is a GGUF file, a folder of safetensors, OWNER/NAME[:VARIANT] or an alias (riptide list --known);\n"
    "left out, it is the small demo model inside this program.";

constexpr const char* kExamples =
    "Examples:\n"
    "  riptide run --prompt 'def fibonacci(n):' -n 64\n"
    "  riptide chat laguna-xs.2 --think\n"
    "  riptide serve laguna-xs.2-q4_k_m.gguf\n"
    "  riptide launch claude\n"
    "  riptide inspect laguna-xs.2-q4_k_m.gguf\n"
    "  riptide quantize ./Laguna-XS.2 laguna-q4_k_m.gguf --type q4_k_m\n"
    "Each command explains itself: riptide help COMMAND";

int report(const std::string& message, ErrorKind kind) {
    std::string line = message;
    std::replace(line.begin(), line.end(), '\n', ' ');
    say("error: {}\n", line);
    return static_cast<int>(kind);
}

/// `riptide help`, `riptide help COMMAND` and `riptide version` as the flags that they stand for.
std::vector<const char*> without_words(const Command& app, int argc, const char* const* argv) {
    std::vector<const char*> out(argv, argv + argc);
    const std::string_view first = argc > 1 ? argv[1] : "";
    if (first == "version" && argc == 2) out[1] = "--version";
    if (first != "help") return out;
    out.erase(out.begin() + 1);
    bool known = argc == 2;
    for (const Command* sub : app.subcommands()) known = known || (argc > 2 && sub->name() == out[1]);
    if (known) out.insert(out.begin() + (argc > 2 ? 2 : 1), "--help");
    return out;
}

int run_command(int argc, const char* const* argv) {
    Command app(kDescription, "riptide");
    app.footer(kExamples);
    app.set_version_flag("--version", "riptide " RIPTIDE_VERSION);
    app.require_subcommand(0, 1);
    Action action;
    add_run(app, action);
    add_chat(app, action);
    add_serve(app, action);
    add_launch(app, action);
    add_pull(app, action);
    add_fit(app, action);
    add_list(app, action);
    add_show(app, action);
    add_rm(app, action);
    add_ps(app, action);
    add_doctor(app, action);
    add_bench(app, action);
    add_kernels(app, action);
    add_ab(app, action);
    add_niah(app, action);
    add_ppl(app, action);
    add_inspect(app, action);
    add_tokenize(app, action);
    add_template(app, action);
    add_quantize(app, action);
    add_imatrix(app, action);
    add_synth(app, action);
    add_trace(app, action);
    add_completion(app, action);
    try {
        const std::vector<const char*> words = without_words(app, argc, argv);
        std::optional<std::string> text = app.parse(static_cast<int>(words.size()), words.data());
        if (!text && !action) text = app.help();
        if (!text) return action();
        std::fputs(text->c_str(), stdout);
        return 0;
    } catch (const Error& e) {
        return report(e.what(), e.kind());
    } catch (const std::bad_alloc&) {
        return report("out of memory", ErrorKind::system);
    } catch (const std::exception& e) {
        return report(e.what(), ErrorKind::system);
    }
}

}  // namespace

int riptide_main(int argc, const char* const* argv) {
    open_standard_streams();
    const int code = run_command(argc, argv);
    if (code != 0) return code;
    try {
        finish_output();
    } catch (const Error& e) {
        return report(e.what(), e.kind());
    }
    return 0;
}

}  // namespace riptide::apps
