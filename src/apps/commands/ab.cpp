// riptide ab: what speculative decoding gains, and that it changes nothing.
#include <fmt/format.h>

#include <cstdio>
#include <memory>

#include "apps/ab/ab_predict.h"
#include "apps/ab/ab_report.h"
#include "apps/commands/commands.h"
#include "apps/flags/flags.h"
#include "apps/flags/model_flags.h"
#include "apps/support/svg.h"
#include "apps/support/terminal.h"
#include "base/error.h"
#include "base/json.h"

namespace riptide::apps {

namespace {

struct AbFlags {
    ModelFlags model;
    std::string drafter, prompts, plot;
    std::vector<int32_t> widths = {1, 3, 7}, trees = {8, 16, 32};
    SamplingFlags sampling;
    int repeat = 1;
    int64_t most_prompts = 1000;
    bool as_json = false, host_rounds = false;
    std::string costs;
    double acceptance = 0.7, draft_ms = 0.35;
    std::vector<double> others;
};

int predict(const AbFlags& o) {
    const std::vector<StepCost> costs = read_costs(o.costs);
    tell("predicted, not measured: chains whose drafts are each right with probability {}, {} ms a draft\n\n{}",
         o.acceptance, o.draft_ms, Lines{prediction_table(costs, predict_chains(costs, o.acceptance, o.draft_ms))});
    if (o.others.empty()) return 0;
    std::vector<double> choices = {o.acceptance};
    choices.insert(choices.end(), o.others.begin(), o.others.end());
    double sum = 0;
    for (const double choice : choices) sum += choice;
    RT_CHECK(sum <= 1, ErrorKind::usage, "--acceptance and --other-choices add up to {}, expected at most 1", sum);
    tell("\ntrees, whose other choices are right with probability {}\n\n{}", fmt::join(o.others, ", "),
         Lines{prediction_table(costs, predict_trees(costs, choices, o.draft_ms))});
    return 0;
}

int ab(AbFlags o) {
    if (!o.costs.empty()) return predict(o);
    check_plot_name(o.plot);
    catch_interrupts();
    if (o.drafter.empty()) o.drafter = o.model.model.empty() ? "demo" : "ngram";
    std::vector<AbMode> modes = ab_modes(o.drafter, o.widths, o.trees);
    for (AbMode& mode : modes)
        if (mode.speculation && o.host_rounds) mode.speculation->rounds = SpeculationOptions::Rounds::host;
    EngineOptions how;
    how.speculation = *modes.back().speculation;  // the others have the same drafter
    how.prefix_cache = false;
    const auto engine = open_lone_engine(o.model, how);
    const EngineInfo info = engine->info();
    RT_CHECK(engine->tokenizer() != nullptr, "{}: no tokenizer to read prompts with", info.path);
    AbOptions options;
    options.sampling = sampling_params(o.sampling, {}, info.model.vocab_size, kDefaultTokens);
    options.repeat = o.repeat;
    std::vector<AbPrompt> prompts =
        ab_prompts(*engine->tokenizer(), engine->chat_template(), o.prompts, o.most_prompts);
    Progress progress("answers", "");
    const AbResult result = run_ab(
        *engine, std::move(prompts), std::move(modes), options,
        [&](int64_t done, int64_t total) { progress.update(done, total); }, interrupted());
    const std::string kv = kv_name(info.k_dtype, info.v_dtype);
    const std::string title = fmt::format("{}, {}, drafter {}, K/V {}, temperature {}", info.model.name, info.device,
                                          o.drafter, kv, options.sampling.temperature);
    if (o.as_json) {
        json::object out = {{"model", info.model.name},
                            {"device", info.device},
                            {"drafter", o.drafter},
                            {"kv", kv},
                            {"temperature", options.sampling.temperature}};
        for (auto& [key, value] : ab_json(result)) out[key] = value;
        tell("{}\n", json::serialize(out));
    } else {
        tell("{}, {} prompts\n\n{}", title, result.prompts.size(), Lines{ab_table(result)});
    }
    if (!o.plot.empty()) write_plot(o.plot, ab_svg(result, title));
    if (interrupted()) return 130;
    const int64_t mismatches = result.mismatches();
    if (mismatches > 0) say("error: {} tokens differ from plain decoding: this is a bug\n", mismatches);
    return mismatches > 0 ? 1 : 0;
}

}  // namespace

void add_ab(Command& app, Action& action) {
    Command* cmd = app.add_subcommand("ab", "Compare decoding with and without speculative decoding");
    auto options = std::make_shared<AbFlags>();
    options->sampling.params.temperature = 0;
    add_model_flags(*cmd, options->model);
    cmd->add_option(
        "--drafter", options->drafter,
        "Who drafts: ngram, demo (the demo model's own drafter), or a DFlash drafter's file or folder; left "
        "out: demo for the demo model, else ngram");
    cmd->add_option("--prompts", options->prompts,
                    "File with an object a line: messages, turns or prompt; left out: a few of our own");
    cmd->add_option("--most-prompts", options->most_prompts, "Prompts to take from the file at most")
        ->check(Sign::positive)
        ->capture_default_str();
    cmd->add_option("--widths", options->widths, "Chains to measure: drafts in a row")
        ->delimiter(',')
        ->capture_default_str();
    cmd->add_option("--trees", options->trees, "Trees to measure: drafts in a step")
        ->delimiter(',')
        ->capture_default_str();
    cmd->add_option("-n,--tokens-max", options->sampling.max_tokens, "Tokens of an answer; left out: 128");
    cmd->add_option("--temperature", options->sampling.params.temperature, "0: always the most likely token")
        ->capture_default_str();
    cmd->add_option("--top-k", options->sampling.params.top_k, "Draw from the k most likely; 0: all")
        ->capture_default_str();
    cmd->add_option("--top-p", options->sampling.params.top_p, "Draw from the smallest set with this probability")
        ->capture_default_str();
    cmd->add_option("--seed", options->sampling.params.seed)->capture_default_str();
    cmd->add_option("--repeat", options->repeat, "Answers to each prompt and mode; the fastest counts")
        ->check(Range(1, 100))
        ->capture_default_str();
    cmd->add_flag("--host-rounds", options->host_rounds,
                  "On a GPU: draft and check through the host, also with a DFlash drafter");
    cmd->add_flag("--json", options->as_json, "Print one JSON object");
    cmd->add_option("--plot", options->plot, "Write an SVG, or a PNG: speed-up by drafts, acceptance by slot");
    cmd->add_option("--costs", options->costs,
                    "Run nothing, predict: ROWS:MS,... as `bench --verify-rows` has measured them");
    cmd->add_option("--acceptance", options->acceptance, "With --costs: how often a draft is right")
        ->check(Range(0.0, 1.0))
        ->capture_default_str();
    cmd->add_option("--other-choices", options->others,
                    "With --costs: how often the second, third, ... choice for a token is right; predicts trees too")
        ->delimiter(',')
        ->check(Range(1e-6, 1.0));
    cmd->add_option("--draft-ms", options->draft_ms, "With --costs: what a draft takes")
        ->check(Sign::non_negative)
        ->capture_default_str();
    cmd->footer(
        "Every answer must be the one of plain decoding, token by token: else the exit code is 1.\n"
        "Examples:\n  riptide ab\n  riptide ab model.gguf --prompts prompts.jsonl --widths 1,2,3,5,7 --plot ab.svg");
    cmd->callback([options, &action] { action = [options] { return ab(*options); }; });
}

}  // namespace riptide::apps
