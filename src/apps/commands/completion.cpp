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

std::string words_joined(const std::vector<std::string>& words, const char* between) {
    std::string out;
    for (const std::string& word : words) out += (out.empty() ? "" : between) + word;
    return out;
}

/// The part of a command's case: its flags, and what may stand behind the word before.
std::string bash_case(const Command& command) {
    std::string words = words_of(command), values;
    for (const Flag* flag : command.flags_with_words()) {
        if (flag->names().empty()) words += " " + words_joined(flag->words(), " ");
        else
            values += fmt::format("      {}) values=\"{}\"{} ;;\n", words_joined(flag->names(), "|"),
                                  words_joined(flag->words(), " "), flag->only_words() ? "" : " files=1");
    }
    return fmt::format("    {}) words=\"{}\"\n      case $before in\n{}      esac ;;\n", command.name(), words, values);
}

/// For bash; zsh reads it too, through bashcompinit. In `--flag=value` the sign is a word of its own.
std::string bash_script(const Command& app) {
    std::string cases;
    for (const Command* sub : app.subcommands()) cases += bash_case(*sub);
    return fmt::format(
        "_riptide() {{\n"
        "  local current=${{COMP_WORDS[COMP_CWORD]}} words= values= files=\n"
        "  if [ \"$COMP_CWORD\" -eq 1 ]; then\n"
        "    COMPREPLY=($(compgen -W \"{} help version --help --version\" -- \"$current\"))\n"
        "    return\n"
        "  fi\n"
        "  local before=${{COMP_WORDS[COMP_CWORD-1]}}\n"
        "  [ \"$before\" = = ] && before=${{COMP_WORDS[COMP_CWORD-2]}}\n"
        "  [ \"$current\" = = ] && current=\n"
        "  case ${{COMP_WORDS[1]}} in\n{}  esac\n"
        "  if [ -n \"$values\" ]; then\n"
        "    COMPREPLY=($(compgen -W \"$values\" -- \"$current\"))\n"
        "    [ -n \"$files\" ] && COMPREPLY+=($(compgen -f -- \"$current\"))\n"
        "    return\n"
        "  fi\n"
        "  COMPREPLY=($(compgen -W \"$words\" -- \"$current\") $(compgen -f -- \"$current\"))\n"
        "}}\n"
        "complete -o filenames -F _riptide riptide\n",
        names_of(app), cases);
}

/// What fish should say behind a flag, if it has words: "-x": these alone, "-r": files, too.
std::string fish_values(const Command& command, const std::string& name) {
    for (const Flag* flag : command.flags_with_words())
        for (const std::string& known : flag->names())
            if (known == name)
                return fmt::format(" {} -a '{}'", flag->only_words() ? "-x" : "-r", words_joined(flag->words(), " "));
    return "";
}

std::string fish_script(const Command& app) {
    std::string out =
        fmt::format("complete -c riptide -n __fish_use_subcommand -f -a '{} help version'\n", names_of(app));
    for (const Command* sub : app.subcommands()) {
        const std::string begin = fmt::format("complete -c riptide -n '__fish_seen_subcommand_from {}'", sub->name());
        for (const std::string& name : long_names(*sub))
            out += fmt::format("{} -l {}{}\n", begin, name.substr(2), fish_values(*sub, name));
        for (const Flag* flag : sub->flags_with_words())
            if (flag->names().empty()) out += fmt::format("{} -a '{}'\n", begin, words_joined(flag->words(), " "));
    }
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
