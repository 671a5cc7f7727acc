// riptide completion: what a shell needs to complete commands and flags, made from the commands themselves.
#include <cstdio>
#include <memory>

#include "apps/commands.h"
#include "base/error.h"

namespace riptide::apps {

namespace {

std::string words_of(const CLI::App& command) {
    std::string out;
    for (const CLI::Option* option : command.get_options())
        for (const std::string& name : option->get_lnames()) out += (out.empty() ? "--" : " --") + name;
    return out;
}

std::string names_of(const CLI::App& app) {
    std::string out;
    for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; }))
        out += (out.empty() ? "" : " ") + sub->get_name();
    return out;
}

/// For bash; zsh reads it too, through bashcompinit.
std::string bash_script(const CLI::App& app) {
    std::string cases;
    for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; })) {
        std::string words = words_of(*sub);
        if (sub->get_name() == "launch") words += " claude codex opencode pi";
        cases += fmt::format("    {}) words=\"{}\" ;;\n", sub->get_name(), words);
    }
    return fmt::format(
        "_riptide() {{\n"
        "  local current=${{COMP_WORDS[COMP_CWORD]}} words=\n"
        "  if [ \"$COMP_CWORD\" -eq 1 ]; then\n"
        "    COMPREPLY=($(compgen -W \"{} --help --version\" -- \"$current\"))\n"
        "    return\n"
        "  fi\n"
        "  case ${{COMP_WORDS[1]}} in\n{}  esac\n"
        "  COMPREPLY=($(compgen -W \"$words\" -- \"$current\") $(compgen -f -- \"$current\"))\n"
        "}}\n"
        "complete -o filenames -F _riptide riptide\n",
        names_of(app), cases);
}

std::string fish_script(const CLI::App& app) {
    std::string out = fmt::format("complete -c riptide -n __fish_use_subcommand -f -a '{}'\n", names_of(app));
    for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; }))
        for (const CLI::Option* option : sub->get_options())
            for (const std::string& name : option->get_lnames())
                out += fmt::format("complete -c riptide -n '__fish_seen_subcommand_from {}' -l {}\n", sub->get_name(),
                                   name);
    return out;
}

}  // namespace

void add_completion(CLI::App& app, Action& action) {
    CLI::App* cmd = app.add_subcommand("completion", "Print a script that completes riptide's commands in a shell");
    auto shell = std::make_shared<std::string>();
    cmd->add_option("SHELL", *shell, "bash | zsh | fish")->required()->check(CLI::IsMember({"bash", "zsh", "fish"}));
    cmd->footer("Examples:\n  source <(riptide completion bash)\n  riptide completion fish | source");
    cmd->callback([shell, &app, &action] {
        action = [shell, &app] {
            const std::string begin = *shell == "zsh" ? "autoload -U +X bashcompinit && bashcompinit\n" : "";
            const std::string text = *shell == "fish" ? fish_script(app) : begin + bash_script(app);
            std::fputs(text.c_str(), stdout);
            return 0;
        };
    });
}

}  // namespace riptide::apps
