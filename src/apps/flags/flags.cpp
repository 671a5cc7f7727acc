#include "apps/flags/flags.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <deque>
#include <utility>

#include "apps/support/nearest_word.h"
#include "base/error.h"

namespace riptide::apps {

namespace {

std::vector<std::string> names_of_flag(const CLI::Option& option) {
    std::vector<std::string> names;
    for (const std::string& name : option.get_lnames()) names.push_back("--" + name);
    for (const std::string& name : option.get_snames()) names.push_back("-" + name);
    return names;
}

/// "--name" and "-n" of every flag of a command.
std::vector<std::string> names_of_flags(const CLI::App& app) {
    std::vector<std::string> names;
    for (const CLI::Option* option : app.get_options())
        for (std::string& name : names_of_flag(*option)) names.push_back(std::move(name));
    return names;
}

}  // namespace

Flag* Flag::check(const Range<int>& range) {
    option_->check(CLI::Range(range.least, range.most));
    return this;
}

Flag* Flag::check(const Range<int64_t>& range) {
    option_->check(CLI::Range(range.least, range.most));
    return this;
}

Flag* Flag::check(const Range<double>& range) {
    option_->check(CLI::Range(range.least, range.most));
    return this;
}

Flag* Flag::check(const IsMember& member) {
    option_->check(CLI::IsMember(member.words));
    words_ = member.words;
    only_words_ = true;
    return this;
}

Flag* Flag::suggest(std::initializer_list<const char*> words) {
    words_.assign(words.begin(), words.end());
    return this;
}

Flag* Flag::check(Sign sign) {
    const bool positive = sign == Sign::positive;
    const auto problem = [positive](const std::string& text) {
        double value = 0;
        if (CLI::detail::lexical_cast(text, value) && (positive ? value > 0 : value >= 0)) return std::string();
        return fmt::format("{}: expected a number {}", text, positive ? "over 0" : "from 0 on");
    };
    option_->check(CLI::Validator(problem, positive ? "POSITIVE" : "NONNEGATIVE"));
    return this;
}

Flag* Flag::capture_default_str() {
    option_->capture_default_str();
    return this;
}

Flag* Flag::group(const std::string& name) {
    option_->group(name);
    return this;
}

Flag* Flag::needs(const Flag* other) {
    option_->needs(other->option_);
    return this;
}

Flag* Flag::excludes(const Flag* other) {
    option_->excludes(other->option_);
    return this;
}

Flag* Flag::delimiter(char separator) {
    option_->delimiter(separator);
    return this;
}

Flag* Flag::required() {
    option_->required();
    return this;
}

Flag* Flag::expected(int count) {
    option_->expected(count);
    return this;
}

Flag* Flag::allow_extra_args(bool value) {
    option_->allow_extra_args(value);
    return this;
}

Flag* Flag::description(const std::string& text) {
    option_->description(text);
    return this;
}

std::string Flag::description() const { return option_->get_description(); }

std::vector<std::string> Flag::names() const { return names_of_flag(*option_); }

struct Command::Impl {
    CLI::App* app = nullptr;
    std::unique_ptr<CLI::App> program;  // of a subcommand: null, for its parent's app owns it
    std::deque<Flag> flags;
    std::vector<std::unique_ptr<Command>> subcommands;

    Flag* flag_of(CLI::Option* option) { return &flags.emplace_back(option); }
};

Command::Command(const std::string& description, const std::string& name) : impl_(std::make_unique<Impl>()) {
    impl_->program = std::make_unique<CLI::App>(description, name);
    impl_->app = impl_->program.get();
}

Command::Command(CLI::App* app) : impl_(std::make_unique<Impl>()) { impl_->app = app; }

Command::~Command() = default;

template <class T>
Flag* Command::add_option(const std::string& name, T& value, const std::string& help) {
    return impl_->flag_of(impl_->app->add_option(name, value, help));
}

Flag* Command::add_flag(const std::string& name, bool& value, const std::string& help) {
    return impl_->flag_of(impl_->app->add_flag(name, value, help));
}

Flag* Command::add_flag(const std::string& name, std::string& value, const std::string& help) {
    return impl_->flag_of(impl_->app->add_flag(name, value, help));
}

Flag* Command::add_flag_function(const std::string& name, std::function<void(int64_t)> given, const std::string& help) {
    return impl_->flag_of(impl_->app->add_flag_function(name, std::move(given), help));
}

Command* Command::add_subcommand(const std::string& name, const std::string& description) {
    CLI::App* app = impl_->app->add_subcommand(name, description);
    return impl_->subcommands.emplace_back(new Command(app)).get();
}

void Command::callback(std::function<void()> chosen) { impl_->app->callback(std::move(chosen)); }

void Command::footer(const std::string& text) { impl_->app->footer(text); }

void Command::wide_help(std::size_t width) {
    auto format = std::make_shared<CLI::Formatter>();
    format->column_width(width);
    impl_->app->formatter(format);
}

void Command::set_version_flag(const std::string& name, const std::string& version) {
    impl_->app->set_version_flag(name, version);
}

void Command::require_subcommand(std::size_t least, std::size_t most) { impl_->app->require_subcommand(least, most); }

Flag* Command::get_option(const std::string& name) { return impl_->flag_of(impl_->app->get_option(name)); }

std::size_t Command::count(const std::string& name) const { return impl_->app->count(name); }

std::string Command::name() const { return impl_->app->get_name(); }

std::vector<const Command*> Command::subcommands() const {
    std::vector<const Command*> all;
    for (const auto& command : impl_->subcommands) all.push_back(command.get());
    return all;
}

std::vector<std::string> Command::flag_names() const { return names_of_flags(*impl_->app); }

std::vector<const Flag*> Command::flags_with_words() const {
    std::vector<const Flag*> all;
    for (const Flag& flag : impl_->flags)
        if (!flag.words().empty()) all.push_back(&flag);
    return all;
}

std::string Command::help() const { return impl_->app->help(); }

namespace {

/// One line for what CLI11 could not place: the first unknown flag or word, with the nearest known one.
std::string explain_extras(const CLI::App& app) {
    const CLI::App* chosen = &app;
    for (const CLI::App* sub : app.get_subcommands()) chosen = sub;
    const std::vector<std::string> extras = app.remaining(true);
    const std::string word = extras.empty() ? "" : extras.front().substr(0, extras.front().find('='));
    if (!word.empty() && word[0] == '-') {
        return fmt::format("unknown flag {}{}; see riptide {} --help", word,
                           did_you_mean(word, names_of_flags(*chosen)), chosen == &app ? "" : chosen->get_name());
    }
    if (chosen == &app) {
        std::vector<std::string> known;
        for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; }))
            known.push_back(sub->get_name());
        return fmt::format("unknown command '{}'{}; see riptide --help", word, did_you_mean(word, known));
    }
    return fmt::format("unexpected argument '{}' for riptide {}", word, chosen->get_name());
}

/// Those that --help leaves out, of subcommands too. Commands that have some get --help-all.
std::vector<CLI::Option*> hidden_flags(CLI::App& app) {
    std::vector<CLI::Option*> out;
    for (CLI::Option* option : app.get_options())
        if (option->get_group().empty()) out.push_back(option);
    if (!out.empty()) app.set_help_all_flag("--help-all", "This, with further flags")->group("");
    for (CLI::App* sub : app.get_subcommands([](CLI::App*) { return true; }))
        for (CLI::Option* option : hidden_flags(*sub)) out.push_back(option);
    return out;
}

/// Of the command that was chosen, with its hidden flags under `group`.
std::string help_with(const CLI::App& app, const std::vector<CLI::Option*>& hidden, const char* group) {
    for (CLI::Option* flag : hidden) flag->group(group);
    std::string text = app.help();
    // CLI11 leaves more than one empty line round a group that it does not tell.
    for (size_t gap; (gap = text.find("\n\n\n")) != std::string::npos;) text.erase(gap, 1);
    return text;
}

/// The arguments behind the program's name, with "--option=" as the two words "--option" and "": CLI11 takes the next
/// argument for the value of an option with nothing behind its "=". Throws Error where nothing is no value.
std::vector<std::string> split_arguments(const CLI::App& app, int argc, const char* const* argv) {
    const std::vector<std::string> given(argv + 1, argv + argc);
    std::vector<std::string> out;
    const CLI::App* command = &app;
    for (size_t i = 0; i < given.size(); ++i) {
        const std::string& word = given[i];
        if (word == "--") {  // the rest is not ours
            out.insert(out.end(), given.begin() + static_cast<std::ptrdiff_t>(i), given.end());
            break;
        }
        const std::string name = word.substr(0, word.find('='));
        const CLI::Option* option = word.starts_with('-') ? command->get_option_no_throw(name) : nullptr;
        out.push_back(word);
        if (command == &app && option == nullptr)
            for (const CLI::App* sub : app.get_subcommands([&](const CLI::App* s) { return s->get_name() == word; }))
                command = sub;
        if (option == nullptr || option->get_items_expected_min() == 0) continue;
        const bool apart = name == word;
        if (apart && i + 1 < given.size()) {
            out.push_back(given[++i]);
        } else if (name + "=" == word && name.starts_with("--")) {
            out.back() = name;
            out.emplace_back();
        }
        RT_CHECK(!out.back().empty() || option->get_type_name().starts_with("TEXT"), ErrorKind::usage,
                 "{}: a value is missing", name);
    }
    return out;
}

}  // namespace

std::optional<std::string> Command::parse(int argc, const char* const* argv) {
    const CLI::App& app = *impl_->app;
    const std::vector<CLI::Option*> hidden = hidden_flags(*impl_->app);
    for (CLI::Option* flag : hidden) flag->group("hidden");  // else an error would not tell its name
    std::vector<std::string> words = split_arguments(app, argc, argv);
    std::reverse(words.begin(), words.end());  // as CLI11 wants them
    try {
        impl_->app->parse(std::move(words));
        return std::nullopt;
    } catch (const CLI::CallForHelp&) {
        std::string text = help_with(app, hidden, "");
        for (const CLI::App* sub : app.get_subcommands())
            if (sub->get_help_all_ptr() != nullptr)
                text += fmt::format("Further flags: riptide {} --help-all\n", sub->get_name());
        return text;
    } catch (const CLI::CallForAllHelp&) {
        return help_with(app, hidden, "Further flags");
    } catch (const CLI::CallForVersion& e) {
        return e.what() + std::string("\n");
    } catch (const CLI::ExtrasError&) {
        throw Error(explain_extras(app), ErrorKind::usage);
    } catch (const CLI::ParseError& e) {
        // The value of an unknown flag may have been taken for an argument, and then be what is complained of.
        const std::vector<std::string> extras = app.remaining(true);
        const bool unknown = !extras.empty() && extras.front().starts_with('-');
        throw Error(unknown ? explain_extras(app) : e.what(), ErrorKind::usage);
    }
}

template Flag* Command::add_option(const std::string&, std::string&, const std::string&);
template Flag* Command::add_option(const std::string&, int32_t&, const std::string&);
template Flag* Command::add_option(const std::string&, int64_t&, const std::string&);
template Flag* Command::add_option(const std::string&, uint64_t&, const std::string&);
template Flag* Command::add_option(const std::string&, float&, const std::string&);
template Flag* Command::add_option(const std::string&, double&, const std::string&);
template Flag* Command::add_option(const std::string&, std::optional<int64_t>&, const std::string&);
template Flag* Command::add_option(const std::string&, std::optional<double>&, const std::string&);
template Flag* Command::add_option(const std::string&, std::vector<std::string>&, const std::string&);
template Flag* Command::add_option(const std::string&, std::vector<int32_t>&, const std::string&);
template Flag* Command::add_option(const std::string&, std::vector<int64_t>&, const std::string&);
template Flag* Command::add_option(const std::string&, std::vector<double>&, const std::string&);

}  // namespace riptide::apps
