// riptide completion: what a shell needs to complete commands and flags, made from the commands themselves.
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "apps/commands/commands.h"
#include "apps/flags/flags.h"
#include "base/error.h"

namespace riptide::apps {

namespace {

/// The flags of a command but for those of one letter.
std::vector<std::string> long_names(const Command& command) {
    std::vector<std::string> names = command.flag_names();
    std::erase_if(names, [](const std::string& name) { return !name.starts_with("--"); });
    return names;
}

std::string words_of(const Command& command) {
    std::string out;
    for (const std::string& name : long_names(command)) out += (out.empty() ? "" : " ") + name;
    return out;
}

std::string names_of(const Command& app) {
    std::string out;
    for (const Command* sub : app.subcommands()) out += (out.empty() ? "" : " ") + sub->name();
    return out;
}

/// For bash; zsh reads it too, through bashcompinit.
std::string bash_script(const Command& app) {
    std::string cases;
    for (const Command* sub : app.subcommands()) {
        std::string words = words_of(*sub);
        if (sub->name() == "launch") words += " claude codex opencode pi";
        cases += fmt::format("    {}) words=\"{}\" ;;\n", sub->name(), words);
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

std::string fish_script(const Command& app) {
    std::string out = fmt::format("complete -c riptide -n __fish_use_subcommand -f -a '{}'\n", names_of(app));
    for (const Command* sub : app.subcommands())
        for (const std::string& name : long_names(*sub))
            out += fmt::format("complete -c riptide -n '__fish_seen_subcommand_from {}' -l {}\n", sub->name(),
                               name.substr(2));
    return out;
}

}  // namespace

void add_completion(Command& app, Action& action) {
    Command* cmd = app.add_subcommand("completion", "Print a script that completes riptide's commands in a shell");
    auto shell = std::make_shared<std::string>();
    cmd->add_option("SHELL", *shell, "bash | zsh | fish")->required()->check(IsMember({"bash", "zsh", "fish"}));
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
