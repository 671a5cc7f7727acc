#include "apps/commands.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <new>
#include <numeric>
#include <string>
#include <system_error>
#include <vector>

#include "apps/terminal.h"
#include "base/error.h"

namespace riptide::apps {

namespace {

constexpr const char* kDescription =
    "Riptide runs Poolside's Laguna models and their siblings.\n"
    "MODEL is a GGUF file, a folder of safetensors, or left out for the small demo model inside this program.";

constexpr const char* kExamples =
    "Examples:\n"
    "  riptide run --prompt 'def fibonacci(n):' -n 64\n"
    "  riptide chat laguna-xs.2-q4_k_m.gguf --think\n"
    "  riptide serve laguna-xs.2-q4_k_m.gguf\n"
    "  riptide launch claude\n"
    "  riptide inspect laguna-xs.2-q4_k_m.gguf\n"
    "  riptide quantize ./Laguna-XS.2 laguna-q4_k_m.gguf --type q4_k_m\n"
    "Each command explains itself: riptide COMMAND --help";

/// Levenshtein distance.
size_t edit_distance(const std::string& a, const std::string& b) {
    std::vector<size_t> row(b.size() + 1);
    std::iota(row.begin(), row.end(), size_t{0});
    for (size_t i = 1; i <= a.size(); ++i) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= b.size(); ++j) {
            const size_t substitute = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
            diagonal = row[j];
            row[j] = std::min({row[j] + 1, row[j - 1] + 1, substitute});
        }
    }
    return row[b.size()];
}

/// " (did you mean X?)" if a known word is near `word`, else "".
std::string suggestion(const std::string& word, const std::vector<std::string>& known) {
    std::string best;
    size_t best_distance = std::max<size_t>(2, word.size() / 3) + 1;
    for (const std::string& candidate : known) {
        const size_t distance = edit_distance(word, candidate);
        if (distance < best_distance) {
            best_distance = distance;
            best = candidate;
        }
    }
    return best.empty() ? "" : " (did you mean " + best + "?)";
}

/// One line for what CLI11 could not place: the first unknown flag or word, with the nearest known one.
std::string explain_extras(const CLI::App& app) {
    const CLI::App* chosen = &app;
    for (const CLI::App* sub : app.get_subcommands()) chosen = sub;
    const std::vector<std::string> extras = app.remaining(true);
    const std::string word = extras.empty() ? "" : extras.front().substr(0, extras.front().find('='));
    std::vector<std::string> known;
    if (!word.empty() && word[0] == '-') {
        for (const CLI::Option* option : chosen->get_options()) {
            for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
            for (const std::string& name : option->get_snames()) known.push_back("-" + name);
        }
        return fmt::format("unknown flag {}{}; see riptide {} --help", word, suggestion(word, known),
                           chosen == &app ? "" : chosen->get_name());
    }
    if (chosen == &app) {
        for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; }))
            known.push_back(sub->get_name());
        return fmt::format("unknown command '{}'{}; see riptide --help", word, suggestion(word, known));
    }
    return fmt::format("unexpected argument '{}' for riptide {}", word, chosen->get_name());
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

int report(const std::string& message, ErrorKind kind) {
    std::string line = message;
    std::replace(line.begin(), line.end(), '\n', ' ');
    std::fprintf(stderr, "error: %s\n", line.c_str());
    return static_cast<int>(kind);
}

}  // namespace

void wide_help(CLI::App& command, size_t width) {
    auto format = std::make_shared<CLI::Formatter>();
    format->column_width(width);
    command.formatter(format);
}

namespace {

int run_command(int argc, const char* const* argv) {
    CLI::App app{kDescription, "riptide"};
    app.footer(kExamples);
    app.set_version_flag("--version", "riptide 0.1.0");
    app.require_subcommand(0, 1);
    Action action;
    add_run(app, action);
    add_chat(app, action);
    add_serve(app, action);
    add_launch(app, action);
    add_pull(app, action);
    add_ps(app, action);
    add_doctor(app, action);
    add_bench(app, action);
    add_ab(app, action);
    add_niah(app, action);
    add_ppl(app, action);
    add_inspect(app, action);
    add_tokenize(app, action);
    add_template(app, action);
    add_quantize(app, action);
    add_synth(app, action);
    add_trace(app, action);
    add_completion(app, action);
    try {
        std::vector<std::string> arguments = split_arguments(app, argc, argv);
        std::reverse(arguments.begin(), arguments.end());  // as CLI11 wants them
        app.parse(std::move(arguments));
        if (!action) {
            std::fputs(app.help().c_str(), stdout);
            return 0;
        }
        return action();
    } catch (const CLI::CallForHelp& e) {
        return app.exit(e);
    } catch (const CLI::CallForVersion& e) {
        return app.exit(e);
    } catch (const CLI::ExtrasError&) {
        return report(explain_extras(app), ErrorKind::usage);
    } catch (const CLI::ParseError& e) {
        return report(e.what(), ErrorKind::usage);
    } catch (const Error& e) {
        return report(e.what(), e.kind());
    } catch (const std::bad_alloc&) {
        return report("out of memory", ErrorKind::system);
    } catch (const std::system_error& e) {
        if (std::ferror(stdout) != 0) return 0;  // {fmt} throws where puts() does not; finish_output() says what it is
        return report(e.what(), ErrorKind::system);
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
