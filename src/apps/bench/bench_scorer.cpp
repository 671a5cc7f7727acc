#include "apps/bench/bench_scorer.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "apps/bench/bench_compressed.h"
#include "apps/flags/flags.h"
#include "apps/support/terminal.h"
#include "apps/synth/random_checkpoint.h"
#include "base/error.h"
#include "base/json.h"

namespace riptide::apps {

namespace {

/// A scorer and what it runs with.
struct Bench {
    Bench(const ModelFlags& model, const ScorerFlags& flags) {
        const SessionOptions options = session_options(model);
        if (options.gpu) gpu = Gpu::open(*options.gpu);
        checkpoint =
            model.random_weights.empty() ? open_model(model) : random_checkpoint(model.random_weights, model.threads);
        ScorerOptions wanted;
        wanted.score_layers = flags.layers;
        wanted.sparse.alpha = flags.alpha;
        wanted.sparse.most_blocks = flags.blocks;
        if (model.chunk > 0) wanted.chunk_rows = model.chunk;
        scorer = std::make_unique<Scorer>(*checkpoint, wanted, gpu.get());
        threads = std::make_unique<ThreadPool>(model.threads);
        arena = std::make_unique<Arena>(int64_t{1} << 20, gpu.get());
        context.gpu = gpu.get();
        context.threads = threads.get();
        context.arena = arena.get();
    }
    /// Seconds of one prompt.
    double score(std::span<const int32_t> tokens, int64_t question, ScoredPrefix* prefix) {
        const QueryWindow window{std::ssize(tokens) - question, std::ssize(tokens), 1};
        const auto start = std::chrono::steady_clock::now();
        scorer->score(context, tokens, {&window, 1}, prefix);
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    }

    std::unique_ptr<Gpu> gpu;
    std::unique_ptr<Checkpoint> checkpoint;
    std::unique_ptr<Scorer> scorer;
    std::unique_ptr<ThreadPool> threads;
    std::unique_ptr<Arena> arena;
    Context context;
};

struct ScorerRow {
    const char* what;
    int64_t tokens, fresh;  // of the prompt, and how many of them the prefix lacked
    std::vector<double> seconds;
    int64_t prefix_bytes = 0;
    std::vector<OpProfile::Line> ops;

    double median() const { return seconds[seconds.size() / 2]; }
};

ScorerRow measure_scoring(Bench& bench, const ScorerFlags& flags, const BenchOptions& o,
                          std::span<const int32_t> tokens, bool turn) {
    const int64_t n = std::ssize(tokens), before = std::max(flags.question + 1, n - flags.turn);
    ScorerRow row{.what = turn ? "turn" : "whole", .tokens = n, .fresh = n};
    const auto run = [&] {
        if (!turn) return bench.score(tokens, flags.question, nullptr);
        ScoredPrefix prefix(*bench.scorer);
        bench.score(tokens.first(static_cast<size_t>(before)), flags.question, &prefix);
        row.fresh = n - prefix.length();
        const double seconds = bench.score(tokens, flags.question, &prefix);
        row.prefix_bytes = prefix.bytes();
        return seconds;
    };
    run();  // the arena grows
    for (int i = 0; i < o.repeat && !interrupted(); ++i) row.seconds.push_back(run());
    std::ranges::sort(row.seconds);
    if (o.profile && !turn && !interrupted()) {
        OpProfile profile(bench.context, OpProfile::Mode::time);
        profile.start(0);
        run();
        row.ops = profile.lines();
    }
    return row;
}

void print_scorer_row(const ScorerRow& row) {
    tell("{:<6} {:>8} {:>8} {:>10.1f} ms {:>12.0f} {:>7.1f}% {:>12}\n", row.what, row.tokens, row.fresh,
         1e3 * row.median(), static_cast<double>(row.fresh) / row.median(),
         100 * (row.seconds.back() - row.seconds.front()) / row.median(),
         row.prefix_bytes > 0 ? human_bytes(row.prefix_bytes) : "");
    double all = 0;
    for (const OpProfile::Line& line : row.ops) all += line.seconds;
    for (const OpProfile::Line& line : row.ops)
        tell("  {:<20} {:<34} {:>5} {:>9.1f} ms {:>6.1f}% {:>9.1f} TFLOP/s\n", line.op, line.shape, line.calls,
             1e3 * line.seconds, 100 * line.seconds / all, line.flops / line.seconds * 1e-12);
    std::fflush(stdout);
}

json::object scorer_row_json(const ScorerRow& row) {
    return {{"what", row.what},       {"tokens", row.tokens},
            {"computed", row.fresh},  {"seconds", json::value_from(row.seconds)},
            {"median", row.median()}, {"prefix_bytes", row.prefix_bytes}};
}

}  // namespace

int bench_scorer(const ModelFlags& model, const ScorerFlags& flags, const BenchOptions& options,
                 const std::vector<int64_t>& prompts, bool as_json) {
    if (!flags.target.empty()) return bench_compressed(model, flags, options, prompts, as_json);
    for (const int64_t prompt : prompts)
        RT_CHECK(prompt > flags.question, ErrorKind::usage, "--prompt {} --question {}: expected a longer prompt",
                 prompt, flags.question);
    Bench bench(model, flags);
    const ModelInfo& info = bench.scorer->info();
    json::array rows;
    if (!as_json)
        tell(
            "{} as scorer{} · {} of {} layers score, the last is {} · at most {} blocks of keys, alpha {} · {}\n"
            "{:<6} {:>8} {:>8} {:>13} {:>12} {:>8} {:>12}\n",
            info.name, model.random_weights.empty() ? "" : " (random weights)",
            bench.scorer->options().score_layers.size(), info.num_hidden_layers,
            bench.scorer->options().score_layers.back(), flags.blocks, flags.alpha,
            bench.gpu ? bench.gpu->info().name : fmt::format("{} threads", bench.threads->size()), "", "tokens",
            "computed", "time", "tok/s", "spread", "prefix");
    for (const int64_t prompt : prompts) {
        const std::vector<int32_t> tokens = made_up_tokens(prompt, info.vocab_size);
        for (const bool turn : {false, true}) {
            if (interrupted()) return 130;
            const ScorerRow row = measure_scoring(bench, flags, options, tokens, turn);
            if (row.seconds.empty()) return 130;
            if (as_json) rows.push_back(scorer_row_json(row));
            else print_scorer_row(row);
        }
    }
    if (as_json)
        tell("{}\n", json::serialize(json::object{{"model", info.name},
                                                  {"random_weights", !model.random_weights.empty()},
                                                  {"device", bench.gpu ? bench.gpu->info().name : "cpu"},
                                                  {"rows", rows}}));
    return 0;
}

void add_scorer_flags(Command& cmd, ScorerFlags& flags) {
    flags.option = cmd.add_flag("--scorer", flags.scorer,
                                "Measure a Qwen3 model that scores prompts for compression: whole prompts, and turns "
                                "behind what is kept");
    const auto add = [&](const char* name, auto& value, const char* help) {
        return cmd.add_option(name, value, help)
            ->capture_default_str()
            ->needs(flags.option)
            ->group("Scoring prompts (--scorer)");
    };
    add("--score-layers", flags.layers, "Layers that score, 0-based; left out: all. Those behind the last do not run")
        ->delimiter(',');
    add("--alpha", flags.alpha, "Blocks of keys are read from this share of the largest mass on")
        ->check(Range(0.0, 1.0));
    add("--blocks", flags.blocks, "Blocks of 128 keys that a block of queries reads besides sinks and window")
        ->check(Sign::non_negative);
    add("--question", flags.question, "Tokens at the end that ask")->check(Sign::positive);
    add("--turn", flags.turn, "New tokens of a turn")->check(Sign::positive);
    Flag* target = add("--target", flags.target,
                       "The model that answers (file, folder or SHAPE:TYPE with random weights): measure an "
                       "engine with both, from the request to the first token, and a second turn");
    add("--keep", flags.keep, "With --target: the share of a prompt that is read")->needs(target);
    cmd.add_flag("--no-dense", flags.no_dense, "With --target: do not measure whole prompts beside")
        ->needs(target)
        ->group("Scoring prompts (--scorer)");
}

}  // namespace riptide::apps
