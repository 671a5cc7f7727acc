// riptide bench: prefill and decode speed, and what share of the machine's roof they reach.
#include <fmt/core.h>

#include <cstdio>
#include <ctime>
#include <memory>
#include <optional>

#include "apps/bench/bench_draft.h"
#include "apps/bench/bench_plot.h"
#include "apps/bench/bench_rows.h"
#include "apps/bench/bench_scorer.h"
#include "apps/commands/bench_serve.h"
#include "apps/commands/commands.h"
#include "apps/flags/flags.h"
#include "apps/flags/model_flags.h"
#include "apps/support/svg.h"
#include "apps/support/terminal.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"

namespace riptide::apps {

namespace {

struct BenchFlags {
    ModelFlags model;
    BenchOptions bench;
    ServeFlags serve;
    ScorerFlags scorer;
    std::vector<int64_t> prompts = {512}, depths = {0}, batches, verify_rows;
    std::string frontier, drafter, plot;
    std::vector<std::string> plot_with;
    bool as_json = false, energy = false;
};

constexpr const char* kFrontiers = "128,1024,4096,16384,32768,65536,131072";

/// What speed is measured against; 0: unknown.
struct Roof {
    double bytes_per_second = 0;  // of reads, measured
    double flops_per_second = 0;  // dense bf16 of the tensor cores at the highest clock

    double share(const BenchRow& row) const {
        if (row.seconds() == 0) return 0;
        if (row.kind != BenchRow::Kind::prefill)
            return bytes_per_second == 0 ? 0 : row.bytes / row.seconds() / bytes_per_second;
        return flops_per_second == 0 ? 0 : row.flops / row.seconds() / flops_per_second;
    }
};

/// FLOPs of a clock and SM, from NVIDIA's data sheets of A100 (312 TFLOP/s) and H100 (989 TFLOP/s); others are left
/// out.
Roof roof_of(Session& session) {
    Roof roof{.bytes_per_second = session.memory_bandwidth()};
    if (session.gpu() == nullptr) return roof;
    const GpuInfo& gpu = session.gpu()->info();
    const double each = gpu.major == 9 ? 4096 : gpu.major == 8 && gpu.minor == 0 ? 2048 : 0;
    roof.flops_per_second = each * gpu.sm_count * gpu.clock_hz;
    return roof;
}

std::vector<int64_t> frontiers(const std::string& list, int64_t context) {
    std::vector<int64_t> result;
    std::string_view rest = list == "all" ? kFrontiers : std::string_view(list);
    while (!rest.empty()) {
        const std::string entry(rest.substr(0, rest.find(',')));
        rest.remove_prefix(std::min(rest.size(), entry.size() + 1));
        const bool digits =
            !entry.empty() && entry.size() < 10 && entry.find_first_not_of("0123456789") == std::string::npos;
        const int64_t tokens = digits ? std::stoll(entry) : 0;
        RT_CHECK(tokens > 0, ErrorKind::usage, "--frontier={}: expected lengths such as 128,4096", list);
        if (tokens <= context) result.push_back(tokens);
        else say("frontier {} left out: the context holds {} tokens\n", tokens, context);
    }
    return result;
}

void print_header(Session& session, const Roof& roof) {
    const ModelInfo& info = session.model().info();
    const Gpu* gpu = session.gpu();
    tell("{} · {} · {} weights ({} a token) · K/V {} · {} · {:.1f} GB/s read bandwidth measured{}\n", info.name,
         info.architecture, human_bytes(info.weight_bytes), human_bytes(info.bytes_per_token), kv_name(session),
         gpu != nullptr ? gpu->info().name : fmt::format("{} threads", session.threads()), roof.bytes_per_second * 1e-9,
         roof.flops_per_second > 0 ? fmt::format(" · {:.0f} TFLOP/s of bf16 tensor cores at {:.0f} MHz",
                                                 roof.flops_per_second * 1e-12, gpu->info().clock_hz * 1e-6)
                                   : "");
    tell("{:<22} {:>7} {:>12} {:>8} {:>11} {:>11} {:>9} {:>9} {:>8}\n", "", "tokens", "tok/s median", "spread", "time",
         "read", "GB/s", "TFLOP/s", "of roof");
}

constexpr double kLeastSeconds = 1;  // of a repeat whose energy is measured

std::string duration(double seconds) {
    return seconds < 1e-2 ? fmt::format("{:.1f} us", seconds * 1e6) : fmt::format("{:.1f} ms", seconds * 1e3);
}

void print_row(const BenchRow& row, const Roof& roof) {
    const double seconds = row.seconds();
    if (seconds == 0) return;
    const double share = roof.share(row);
    tell("{:<22} {:>7} {:>12.1f} {:>7.1f}% {:>11} {:>11} {:>9.1f} {:>9.2f} {:>8}\n", row.name(), row.tokens,
         row.median(), 100 * row.spread(), duration(seconds), human_bytes(static_cast<int64_t>(row.bytes)),
         row.bytes / seconds * 1e-9, row.flops / seconds * 1e-12, share > 0 ? fmt::format("{:.0f}%", 100 * share) : "");
    if (row.experts > 0) tell("  {:.1f} different experts a layer\n", row.experts);
    if (!row.joules.empty())
        tell("  energy: {:.4g} J a token ({:.4g} .. {:.4g}), {:.0f} W{}\n", row.joules_each(), row.joules.front(),
             row.joules.back(), row.joules_each() * row.median(),
             static_cast<double>(row.tokens) / row.median() < kLeastSeconds
                 ? "; repeats of less than a second say little, because the driver counts in steps"
                 : "");
    std::fflush(stdout);
}

void print_profile(const BenchRow& row) {
    if (row.ops.empty()) return;
    tell("  {:<18} {:<34} {:>5} {:>11} {:>7} {:>9} {:>9}{}\n", "op", "", "calls",
         row.kind == BenchRow::Kind::prefill ? "per prompt" : "per step", "share", "GB/s", "TFLOP/s",
         row.ops.front().kernels.empty() ? "" : "  kernels");
    for (const OpProfile::Line& line : row.ops) {
        std::string kernels;
        for (const std::string& kernel : line.kernels) kernels += " " + kernel;
        tell("  {:<18} {:<34} {:>5} {:>11} {:>6.1f}% {:>9.1f} {:>9.2f} {}\n", line.op, line.shape, line.calls,
             duration(line.seconds), 100 * line.seconds / row.ops_seconds, line.bytes() / line.seconds * 1e-9,
             line.flops / line.seconds * 1e-12, kernels);
    }
    tell("  {:<59} {:>11}; without the profile {}\n\n", "all ops, one after the other", duration(row.ops_seconds),
         duration(row.seconds()));
}

json::object bench_row_json(const BenchRow& row, const Roof& roof) {
    const double seconds = row.seconds();
    json::object out = {{"what", row.name()},
                        {"kind", row.kind == BenchRow::Kind::prefill  ? "prefill"
                                 : row.kind == BenchRow::Kind::verify ? "verify"
                                                                      : "decode"},
                        {"tokens", row.tokens},
                        {"depth", row.depth},
                        {"sequences", row.sequences},
                        {"rows", row.rows},
                        {"tok_s", json::value_from(row.rates)},
                        {"median", row.median()},
                        {"spread", row.spread()},
                        {"seconds", seconds},
                        {"bytes", row.bytes},
                        {"flops", row.flops},
                        {"gb_s", seconds > 0 ? row.bytes / seconds * 1e-9 : 0},
                        {"tflop_s", seconds > 0 ? row.flops / seconds * 1e-12 : 0},
                        {"roof_share", roof.share(row)}};
    if (row.experts > 0) out["experts"] = row.experts;
    if (!row.joules.empty()) out["joules"] = json::value_from(row.joules);
    if (row.ops.empty()) return out;
    json::array ops;
    for (const OpProfile::Line& line : row.ops)
        ops.push_back({{"op", line.op},
                       {"shape", line.shape},
                       {"calls", line.calls},
                       {"seconds", line.seconds},
                       {"weight_bytes", line.weight_bytes},
                       {"kv_bytes", line.kv_bytes},
                       {"flops", line.flops},
                       {"kernels", json::value_from(line.kernels)}});
    out["ops"] = std::move(ops);
    out["ops_seconds"] = row.ops_seconds;
    return out;
}

void print_bench_json(Session& session, const Roof& roof, const std::vector<BenchRow>& rows,
                      const std::optional<DraftBench>& drafts) {
    json::array list;
    for (const BenchRow& row : rows) list.push_back(bench_row_json(row, roof));
    json::object out = {{"model", session.model().info().name},
                        {"device", session.gpu() != nullptr ? session.gpu()->info().name : "cpu"},
                        {"threads", session.threads()},
                        {"kv", kv_name(session)},
                        {"chunk", session.options().chunk_rows},
                        {"context", session.context_length()},
                        {"bytes_per_token", session.model().info().bytes_per_token},
                        {"read_bandwidth_gb_s", roof.bytes_per_second * 1e-9},
                        {"tensor_tflop_s", roof.flops_per_second * 1e-12},
                        {"rows", list}};
    if (drafts) out["drafter"] = draft_json(*drafts);
    tell("{}\n", json::serialize(out));
}

/// Of NAME=FILE, each.
std::vector<BenchSeries> others_figures(const std::vector<std::string>& list) {
    std::vector<BenchSeries> others;
    for (const std::string& entry : list) {
        const size_t equals = entry.find('=');
        RT_CHECK(equals != std::string::npos && equals > 0, ErrorKind::usage, "--plot-with {}: expected NAME=FILE.json",
                 entry);
        const std::string file = entry.substr(equals + 1);
        others.push_back(bench_series(entry.substr(0, equals), read_file(file, int64_t{64} << 20), file));
    }
    return others;
}

std::string plot_of(Session& session, const BenchFlags& o, std::span<const BenchRow> rows,
                    std::vector<BenchSeries> others) {
    others.insert(others.begin(), bench_series("Riptide", rows));
    char date[16];
    const std::time_t now = std::time(nullptr);
    std::tm day{};
    std::strftime(date, sizeof(date), "%Y-%m-%d", ::gmtime_r(&now, &day));
    return bench_svg(others, session.model().info().name,
                     fmt::format("{}{} · K/V {} · medians of {} · riptide {} · {}",
                                 o.model.random_weights.empty() ? "" : "random weights · ",
                                 session.gpu() != nullptr ? session.gpu()->info().name
                                                          : fmt::format("{} threads of a CPU", session.threads()),
                                 kv_name(session), o.bench.repeat, RIPTIDE_VERSION, date));
}

int bench(const BenchFlags& o) {
    RT_CHECK(o.bench.repeat >= 1 && o.bench.gen >= 2, ErrorKind::usage,
             "--repeat {} --gen {}: expected at least 1 and at least 2", o.bench.repeat, o.bench.gen);
    check_plot_name(o.plot);
    catch_interrupts();
    if (o.scorer.scorer) return bench_scorer(o.model, o.scorer, o.bench, o.prompts, o.as_json);
    if (o.serve.serve) {
        const LoadOptions load{o.bench.gen, o.bench.repeat, o.serve.seed, o.serve.temperature};
        return bench_serve(o.model, o.serve, load, o.prompts, o.batches, o.as_json);
    }
    const std::vector<BenchSeries> others = others_figures(o.plot_with);
    const auto session = open_session(o.model);
    std::optional<GpuEnergy> energy;
    BenchOptions how = o.bench;
    if (o.energy) {
        RT_CHECK(session->gpu() != nullptr, ErrorKind::usage, "--energy is measured on a GPU: use --device cuda");
        how.energy = &energy.emplace(*session->gpu());
    }
    const std::vector<int64_t> batches = o.batches.empty() ? std::vector<int64_t>{1} : o.batches;
    std::vector<int64_t> prompts = o.prompts, depths = o.depths;
    if (!o.frontier.empty()) prompts = depths = frontiers(o.frontier, session->context_length());
    const Roof roof = roof_of(*session);
    std::vector<BenchRow> rows;
    const auto show = [&](BenchRow row) {
        if (!o.as_json) {
            print_row(row, roof);
            print_profile(row);
        }
        rows.push_back(std::move(row));
    };
    if (!o.as_json) print_header(*session, roof);
    for (const int64_t prompt : prompts)
        if (!interrupted()) show(bench_prefill(*session, how, prompt));
    for (const int64_t depth : depths)
        for (const int64_t sequences : batches) {
            if (interrupted()) break;
            show(sequences == 1 ? bench_decode(*session, how, depth)
                                : bench_batch(*session, how, std::max<int64_t>(1, depth), sequences));
        }
    for (const int64_t depth : depths)
        for (const int64_t n : o.verify_rows)
            if (!interrupted()) show(bench_verify(*session, how, std::max<int64_t>(1, depth), n));
    std::optional<DraftBench> drafts;
    if (!o.drafter.empty() && !interrupted()) {
        auto drafter = open_drafter(o.drafter, o.model.random_weights, o.model.threads);
        const std::vector<int64_t> all = {int64_t{1} << 20};
        drafts = bench_draft(*session, how, std::move(drafter), depths, o.verify_rows.empty() ? all : o.verify_rows);
        if (!o.as_json) print_draft(*drafts);
    }
    if (!o.plot.empty()) write_plot(o.plot, plot_of(*session, o, rows, others));
    if (o.as_json) print_bench_json(*session, roof, rows, drafts);
    else if (o.bench.profile)
        tell(
            "Ops: from the start of one to the start of the next; programmatic launches overlap inside an op, not "
            "between ops{}.\n",
            session->gpu() != nullptr ? ", and kernels are launched one by one, not as a graph" : "");
    return interrupted() ? 130 : 0;
}

}  // namespace

void add_bench(Command& app, Action& action) {
    Command* cmd = app.add_subcommand("bench", "Measure prefill and decode speed, alone or under load");
    auto options = std::make_shared<BenchFlags>();
    cmd->wide_help(72);
    add_model_flags(*cmd, options->model);
    cmd->add_option("--prompt", options->prompts, "Prompt lengths to prefill")
        ->delimiter(',')
        ->check(Sign::positive)
        ->capture_default_str();
    Flag* depth = cmd->add_option("--depth", options->depths, "Contexts to decode at")
                      ->delimiter(',')
                      ->check(Sign::non_negative)
                      ->capture_default_str();
    Flag* frontier = cmd->add_flag("--frontier{all}", options->frontier,
                                   "Prompts and depths of 0.1K, 1K, 4K, 16K, 32K, 64K and 128K, or --frontier=LIST");
    cmd->add_option(
           "--batch", options->batches,
           "Sequences that decode together; left out: 1, with --serve 1, 2, 4 ... 8 on the CPU or 128 on a GPU")
        ->delimiter(',')
        ->check(Range(1, 256));
    Flag* verify =
        cmd->add_option(
               "--verify-rows", options->verify_rows,
               "Rows of one sequence in a step, as a verification of drafts has them: time a step of each, such as "
               "1,2,4,8,16,24,32")
            ->delimiter(',')
            ->check(Range(1, 256));
    cmd->add_option("--gen", options->bench.gen, "Tokens to decode, each sequence")->capture_default_str();
    cmd->add_option("--repeat", options->bench.repeat, "Repeats; the median is shown")->capture_default_str();
    Flag* drafter =
        cmd->add_option("--drafter", options->drafter,
                        "Time a drafter's pass in the rounds that a GPU runs by itself, with each of --verify-rows: "
                        "random (a full-size "
                        "one for the model, in q8_0), random:SHAPE:TYPE, demo, or a DFlash drafter's file or folder");
    Flag* routing = cmd->add_option("--routing", options->model.random_routing,
                                    "How rows of --random-weights choose experts: alike (rows of a text choose "
                                    "much the same) | uniform (each by itself) | skewed (so too, some experts "
                                    "more often, as trained routers do)")
                        ->check(IsMember({"alike", "uniform", "skewed"}))
                        ->capture_default_str();
    Flag* profile = cmd->add_flag("--profile", options->bench.profile, "Show the time, GB/s and TFLOP/s of each op");
    Flag* energy = cmd->add_flag("--energy", options->energy,
                                 "Show the joules of a token by the driver's count for the whole GPU; "
                                 "repeats should take a second or more (--gen)");
    cmd->add_flag("--json", options->as_json, "Print JSON");
    Flag* plot = cmd->add_option("--plot", options->plot, "Write an SVG, or a PNG: bars of decoding, prefill and first tokens");
    Flag* plot_with = cmd->add_option("--plot-with", options->plot_with,
                                      "NAME=FILE: bars of another program or run beside them, from the output of "
                                      "`llama-bench -o json` or `riptide bench --json`");
    plot_with->needs(plot);
    Flag* random = cmd->add_option(
        "--random-weights", options->model.random_weights,
        "Instead of MODEL: SHAPE:TYPE as `riptide synth` names them (laguna-xs.2:bf16), without a file; "
        "TYPE also fp8");
    random->excludes(cmd->get_option("MODEL"));
    random->excludes(cmd->get_option("--weights"));  // TYPE says it
    routing->needs(random);
    add_serve_flags(*cmd, options->serve);
    for (Flag* option : {depth, frontier, profile, random, verify, drafter, energy, plot})
        options->serve.option->excludes(option);
    add_scorer_flags(*cmd, options->scorer);
    for (Flag* option : {depth, frontier, verify, drafter, energy, plot, options->serve.option})
        options->scorer.option->excludes(option);
    for (const char* flag : {"--portable", "--yarn-attention-factor", "--question", "--turn", "--no-dense", "--load-seed",
                             "--alpha", "--blocks", "--rows-beside", "--deterministic", "--no-prefix-cache"})
        cmd->get_option(flag)->group("");  // help is one screen
    cmd->get_option("--delta")->group("Options");
    cmd->footer(
        "Examples:\n  riptide bench model.gguf --frontier --gen 128 --profile\n"
        "  riptide bench model.gguf --prompt 512,4096 --plot speed.svg --plot-with llama.cpp=llama-bench.json\n"
        "  riptide bench model.gguf --serve --beside 8,32768 --agent 30,60000\n"
        "  riptide bench --random-weights qwen3-0.6b:bf16 --scorer --target laguna-xs.2:q4_k_m --prompt 131072\n"
        "Prompts and the tokens fed while decoding are made-up ids; decoding finds each most likely token all the "
        "same. "
        "\"read\" is weights and K/V, of a prompt or a step.");
    cmd->callback([options, &action] { action = [options] { return bench(*options); }; });
}

}  // namespace riptide::apps
