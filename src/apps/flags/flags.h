// The command line: commands, their flags, what a flag may be, and taking a line apart. Stands in front of CLI11, which
// costs every file that sees it seconds to compile: only flags.cpp does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace riptide::apps {

/// Check: from `least` to `most`, both allowed. T: int, int64_t or double, whatever the flag's own type.
template <class T>
struct Range {
    Range(T from, T to) : least(from), most(to) {}
    T least, most;
};

/// Check: one of these words.
struct IsMember {
    IsMember(std::initializer_list<const char*> some) : words(some.begin(), some.end()) {}
    std::vector<std::string> words;
};

/// Check: numbers over 0, or from 0 on.
enum class Sign { positive, non_negative };

/// A flag or a positional argument of a command, which owns it. The setters return the flag itself.
class Flag {
  public:
    explicit Flag(CLI::Option* option) : option_(option) {}

    /// Refuses other values when the line is parsed. Of a list: each.
    Flag* check(const Range<int>& range);
    Flag* check(const Range<int64_t>& range);
    Flag* check(const Range<double>& range);
    Flag* check(const IsMember& member);
    Flag* check(Sign sign);
    /// Values that a shell completes, beside others that are allowed.
    Flag* suggest(std::initializer_list<const char*> words);
    /// The help shows the value that the variable has now.
    Flag* capture_default_str();
    /// The heading of the help that it stands under; "": only --help-all tells it.
    Flag* group(const std::string& name);
    /// Refuses the flag where the other is not given, or where it is.
    Flag* needs(const Flag* other);
    Flag* excludes(const Flag* other);
    /// Splits a value into several.
    Flag* delimiter(char separator);
    Flag* required();
    /// Exactly so many values.
    Flag* expected(int count);
    /// false: one value each time that it is given.
    Flag* allow_extra_args(bool value);
    Flag* description(const std::string& text);
    std::string description() const;
    /// "--name" and "-n"; none: an argument by position.
    std::vector<std::string> names() const;
    /// The words of check(IsMember) or suggest(); empty: none are known.
    const std::vector<std::string>& words() const { return words_; }
    /// Is a value one of them?
    bool only_words() const { return only_words_; }

  private:
    CLI::Option* option_;
    std::vector<std::string> words_;
    bool only_words_ = false;
};

/// A command, which is the whole program or one of its subcommands. Owns its flags and subcommands: pointers to them
/// stay valid as long as it lives. Variables that flags fill must live until parse() has returned. Not thread-safe.
class Command {
  public:
    Command(const std::string& description, const std::string& name);
    ~Command();
    Command(const Command&) = delete;
    Command& operator=(const Command&) = delete;

    /// `name`: "-n,--long-name", or "NAME" for an argument by position. Fills `value` if it is given. T: one of the
    /// types at the end of flags.cpp; others do not link.
    template <class T>
    Flag* add_option(const std::string& name, T& value, const std::string& help = "");
    /// A flag without a value.
    Flag* add_flag(const std::string& name, bool& value, const std::string& help);
    /// `name`: "--name{word}". Fills in the word, or what stands behind "--name=".
    Flag* add_flag(const std::string& name, std::string& value, const std::string& help);
    /// `name`: "--name,!--no-name". Calls with how often it was given, less how often its contrary.
    Flag* add_flag_function(const std::string& name, std::function<void(int64_t)> given, const std::string& help);
    Command* add_subcommand(const std::string& name, const std::string& description);

    /// Called by parse() if the command was chosen.
    void callback(std::function<void()> chosen);
    /// The end of the help.
    void footer(const std::string& text);
    /// Help with one line for each flag: what it does begins at column `width`.
    void wide_help(std::size_t width);
    void set_version_flag(const std::string& name, const std::string& version);
    void require_subcommand(std::size_t least, std::size_t most);

    /// The flag of that name, "--name" or "NAME". REQUIRES that there is one.
    Flag* get_option(const std::string& name);
    /// How many values the line gave it.
    std::size_t count(const std::string& name) const;
    std::string name() const;
    /// All subcommands, in the order in which they were added.
    std::vector<const Command*> subcommands() const;
    /// "--name" and "-n" of every flag, --help too, in the order in which they were added.
    std::vector<std::string> flag_names() const;
    /// The flags and arguments whose words() are known.
    std::vector<const Flag*> flags_with_words() const;

    /// Fills the variables from the words behind the program's name, and calls the callback of the subcommand that was
    /// chosen. Returns what to print instead of going on, if help or the version is asked for. Commands with flags that
    /// --help leaves out have --help-all, too, which the last line of their help names. Throws Error (usage) of one
    /// line that names the flag or the word that is wrong, and the known one that is nearest to it.
    std::optional<std::string> parse(int argc, const char* const* argv);
    std::string help() const;

  private:
    struct Impl;
    explicit Command(CLI::App* app);
    std::unique_ptr<Impl> impl_;
};

}  // namespace riptide::apps
