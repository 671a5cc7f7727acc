// riptide niah: questions about long texts whose answers are known, from whole prompts and from compressed ones.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>

#include "apps/commands/commands.h"
#include "apps/flags/compress_flags.h"
#include "apps/flags/flags.h"
#include "apps/flags/model_flags.h"
#include "apps/niah/niah_report.h"
#include "apps/support/svg.h"
#include "apps/support/terminal.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"

namespace riptide::apps {

namespace {

constexpr int64_t kMaxAnswers = int64_t{256} << 20;

struct NiahFlags {
    ModelFlags model;
    std::vector<std::string> tasks, lengths = {"1K", "2K", "4K", "8K"}, keeps = {"dense"};
    NiahOptions niah;
    CompressFlags compress;
    std::string json_file, plot;
    bool resume = false;
    NiahFlags() { niah.depths = {0, 25, 50, 75, 100}; }
};

/// "4K", "4096"
int64_t length_of(const std::string& text) {
    const bool thousands = text.ends_with('K') || text.ends_with('k');
    const std::string digits = text.substr(0, text.size() - (thousands ? 1 : 0));
    RT_CHECK(!digits.empty() && digits.size() < 10 && digits.find_first_not_of("0123456789") == std::string::npos,
             ErrorKind::usage, "--lengths {}: expected numbers of tokens such as 4096 or 4K", text);
    return std::stoll(digits) * (thousands ? 1024 : 1);
}

double keep_of(const std::string& text) {
    if (text == "dense") return 1;
    size_t used = 0;
    double value = -1;
    try {
        value = std::stod(text, &used);
    } catch (const std::exception&) {
    }
    RT_CHECK(used == text.size() && value > 0 && value <= 1, ErrorKind::usage,
             "--keep {}: expected dense, or shares over 0 and up to 1 such as 0.1", text);
    return value;
}

NiahTask wanted_task(const std::string& name) {
    std::string known;
    for (const NiahTask task : kNiahTasks) {
        if (niah_task_name(task) == name) return task;
        known += (known.empty() ? "" : ", ") + std::string(niah_task_name(task));
    }
    fail(ErrorKind::usage, "--tasks {}: expected some of {}", name, known);
}

template <class T>
void add_new(std::vector<T>& list, T value) {
    if (std::find(list.begin(), list.end(), value) == list.end()) list.push_back(value);
}

NiahOptions niah_options(const NiahFlags& o) {
    NiahOptions out = o.niah;
    for (const std::string& name : o.tasks) add_new(out.tasks, wanted_task(name));
    if (out.tasks.empty()) out.tasks.assign(std::begin(kNiahTasks), std::end(kNiahTasks));
    for (const std::string& text : o.lengths) add_new(out.lengths, length_of(text));
    for (const std::string& text : o.keeps) add_new(out.keeps, keep_of(text));
    const bool compressed = std::any_of(out.keeps.begin(), out.keeps.end(), [](double keep) { return keep < 1; });
    RT_CHECK(!compressed || !o.compress.scorer.empty(), ErrorKind::usage,
             "--keep below 1 needs --scorer FILE: the model that says what of a prompt matters");
    RT_CHECK(!o.resume || !o.json_file.empty(), ErrorKind::usage, "--resume needs --json FILE: what to go on with");
    return out;
}

int niah(const NiahFlags& o) {
    check_plot_name(o.plot);
    catch_interrupts();
    const NiahOptions options = niah_options(o);
    EngineOptions engine_options;
    engine_options.max_running = 1;
    engine_options.prefix_cache = false;  // each prompt is read in full: times to the first token are comparable
    engine_options.scorer = open_scorer(o.compress, o.model);
    engine_options.compression.positions = compression_options(o.compress).positions;
    const std::unique_ptr<Engine> engine = open_engine(o.model, engine_options);
    const EngineInfo info = engine->info();
    const std::string kv =
        kv_name(info.k_dtype, info.v_dtype) +
        (info.model.attention_window > 0 ? fmt::format(", attention window {}", info.model.attention_window) : "");
    const json::object settings = niah_settings({{"model", info.model.name},
                                                 {"device", info.device},
                                                 {"kv", kv},
                                                 {"scorer", o.compress.scorer},
                                                 {"positions", o.compress.positions},
                                                 {"score_layers", json::value_from(o.compress.score_layers)},
                                                 {"alpha", o.compress.alpha},
                                                 {"blocks", o.compress.blocks}},
                                                options);
    std::vector<NiahAnswer> answers;
    if (o.resume && std::filesystem::exists(o.json_file))
        answers = niah_answers(parse_json(read_file(o.json_file, kMaxAnswers), o.json_file), settings, o.json_file);
    const std::vector<NiahAnswer> known = answers;
    {
        Progress progress("questions", "questions");
        run_niah(
            *engine, options, known,
            [&](NiahAnswer answer, int64_t done, int64_t total) {
                answers.push_back(std::move(answer));
                progress.update(done, total);
            },
            interrupted());
    }
    const std::string title = fmt::format("{}, {}, K/V {}", info.model.name, info.device, kv);
    tell("{}\n\n{}", title, Lines{niah_table(answers, options)});
    if (!o.json_file.empty())
        write_file_atomic(o.json_file, json::serialize(niah_json(settings, answers, options)) + "\n");
    if (!o.plot.empty()) write_plot(o.plot, niah_svg(answers, options, title));
    return interrupted() ? 130 : 0;
}

}  // namespace

void add_niah(Command& app, Action& action) {
    Command* cmd = app.add_subcommand("niah", "Ask about facts in long texts, with whole and with compressed prompts");
    auto options = std::make_shared<NiahFlags>();
    add_model_flags(*cmd, options->model);
    const auto list = [&](const char* name, auto& values, const char* help) {
        return cmd->add_option(name, values, help)->delimiter(',');
    };
    list("--tasks", options->tasks, "single, multi-key, multi-value, variables, counting, code, tool; left out: all");
    list("--lengths", options->lengths, "Tokens of prompt and answer together")->capture_default_str();
    list("--depths", options->niah.depths, "Where what answers stands, in percent of the text")
        ->check(Range(0, 100))
        ->capture_default_str();
    list("--keep", options->keeps, "Share of the prompt that the model reads; dense: all of it")->capture_default_str();
    cmd->add_option("--scorer", options->compress.scorer,
                    "The model that says what of a prompt matters (GGUF or folder; demo: the demo model's own)");
    add_positions_flag(*cmd, options->compress);
    add_scoring_flags(*cmd, options->compress);
    cmd->add_option("--count", options->niah.count, "Questions of each task, length and depth")
        ->check(Range(1, 10000))
        ->capture_default_str();
    cmd->add_option("-n,--tokens-max", options->niah.max_tokens, "Tokens of an answer at most")
        ->check(Range(1, 1 << 20))
        ->capture_default_str();
    cmd->add_option("--seed", options->niah.seed, "Other texts and questions")->capture_default_str();
    cmd->add_flag("--think", options->niah.think, "Let the model reason first; give it room with -n");
    cmd->add_option("--json", options->json_file, "Write everything, each answer too, to this file");
    cmd->add_flag("--resume", options->resume, "Take the answers that the --json file has already");
    cmd->add_option("--plot", options->plot,
                    "Write an SVG, or a PNG: a heat map of lengths and depths for each task and share");
    cmd->footer(
        "Texts are made up (prose, code, logs), questions are asked greedily one at a time, nothing is cached between\n"
        "them. Ctrl-C ends with what is there; --resume goes on.\n"
        "Examples:\n  riptide niah --tasks single,multi-key --lengths 1K,4K\n"
        "  riptide niah model.gguf --scorer scorer.gguf --lengths 8K,32K,128K --keep dense,0.3,0.1 --json n.json "
        "--plot n.svg");
    cmd->callback([options, &action] { action = [options] { return niah(*options); }; });
}

}  // namespace riptide::apps
