#include "apps/commands/bench_serve.h"

#include <algorithm>
#include <cstdio>

#include "apps/bench/load_report.h"
#include "apps/flags/flags.h"
#include "apps/support/demo_model.h"
#include "apps/support/terminal.h"
#include "base/error.h"
#include "base/json.h"

namespace riptide::apps {

namespace {

EngineOptions load_engine_options(const ServeFlags& flags, const std::vector<int64_t>& batches) {
    EngineOptions options;
    int64_t running = 0;
    if (!batches.empty()) running = *std::max_element(batches.begin(), batches.end());
    if (!flags.beside.empty()) running = std::max(running, flags.beside[0] + 1);
    options.max_running = static_cast<int32_t>(running);
    options.prefill_rows_beside = flags.prompt_rows;
    options.slowdown = flags.slowdown;
    options.deterministic = flags.deterministic;
    options.prefix_cache = !flags.no_prefix_cache;
    options.max_queue = 4096;
    return options;
}

}  // namespace

void add_serve_flags(Command& cmd, ServeFlags& f) {
    constexpr const char* kGroup = "Load on an engine (--serve)";
    f.option = cmd.add_flag("--serve", f.serve,
                            "Load on an engine: --batch answers that decode together, behind --prompt tokens each; or "
                            "what the flags below say");
    const auto serves = [&](Flag* option) { return option->group(kGroup)->needs(f.option); };
    serves(cmd.add_option("--rate", f.rate,
                          "Requests a second that arrive at random, with --gen tokens each, prompts "
                          "drawn from the lengths of --prompt"))
        ->check(Sign::positive);
    serves(cmd.add_option("--requests", f.requests, "How many, with --rate"))
        ->check(Range(1, 1000000))
        ->capture_default_str();
    serves(cmd.add_option("--beside", f.beside, "N,TOKENS: N answers decode while a prompt of TOKENS is read"))
        ->delimiter(',')
        ->expected(2)
        ->check(Sign::positive);
    serves(cmd.add_option("--agent", f.agent,
                          "TURNS,TOKENS: a conversation that grows to TOKENS, with tool results and "
                          "side requests"))
        ->delimiter(',')
        ->expected(2)
        ->check(Sign::positive);
    serves(cmd.add_option("--rows-beside", f.prompt_rows,
                          "Prompt rows of a step beside decoding answers; 0: 64 on the CPU, 2048 or more on a GPU"))
        ->check(Range(0, 65536))
        ->capture_default_str();
    serves(
        cmd.add_option("--slowdown", f.slowdown,
                       "How much longer a token may take while a prompt is read, some layers at a time; 0: as `serve`"))
        ->check(Range(0.0, 1e6))
        ->capture_default_str();
    serves(cmd.add_option("--temperature", f.temperature, "Of the answers; 0: the most likely token"))
        ->check(Range(0.0, 100.0))
        ->capture_default_str();
    serves(cmd.add_option("--load-seed", f.seed, "Of arrivals, drawn lengths and sizes of tool results"))
        ->capture_default_str();
    serves(cmd.add_flag("--deterministic", f.deterministic, "Keep of an answer only what prefill computes"));
    serves(cmd.add_flag("--no-prefix-cache", f.no_prefix_cache, "Keep nothing of prompts and answers"));
}

int bench_serve(const ModelFlags& model, const ServeFlags& flags, const LoadOptions& load,
                const std::vector<int64_t>& prompts, std::vector<int64_t> batches, bool as_json) {
    const bool closed = flags.rate == 0 && flags.beside.empty() && flags.agent.empty();
    RT_CHECK(flags.beside.empty() || flags.beside[0] < 256, ErrorKind::usage, "--beside {},{}: at most 255 answers",
             flags.beside[0], flags.beside[1]);
    if (closed && batches.empty()) {
        batches = {1, 2, 4, 8};
        if (session_options(model).gpu) batches.insert(batches.end(), {16, 32, 64, 128});
    }
    const auto engine = open_engine(model, load_engine_options(flags, batches));
    json::array results;
    const auto show = [&](const auto& result) {
        if (as_json) results.push_back(to_json(result));
        else print(result);
        std::fflush(stdout);
    };
    if (!as_json) print_engine(engine->info());
    if (closed && !as_json) print_closed_header();
    for (const int64_t prompt : closed ? prompts : std::vector<int64_t>{})
        for (const int64_t sequences : batches)
            if (!interrupted()) show(bench_closed(*engine, load, prompt, sequences));
    if (flags.rate > 0 && !interrupted()) show(bench_open(*engine, load, prompts, flags.rate, flags.requests));
    if (!flags.beside.empty() && !interrupted())
        show(bench_beside(*engine, load, prompts[0], flags.beside[0], flags.beside[1]));
    if (!flags.agent.empty() && !interrupted()) show(bench_agent(*engine, load, flags.agent[0], flags.agent[1]));
    if (as_json) {
        const EngineInfo info = engine->info();
        const json::object out = {{"model", info.model.name},
                                  {"device", info.device},
                                  {"kv", kv_name(info.k_dtype, info.v_dtype)},
                                  {"kv_tokens", info.kv_tokens},
                                  {"context", info.context_length},
                                  {"chunk", info.chunk_rows},
                                  {"gen", load.gen},
                                  {"repeat", load.repeat},
                                  {"seed", load.seed},
                                  {"temperature", load.temperature},
                                  {"results", results}};
        tell("{}\n", json::serialize(out));
    } else if (closed) {
        tell(
            "tok/s, gaps (inter-token times), step and host/step: while all answers decode, {} stretches of {} tokens; "
            "context: the mean there. TTFT: all prompts at once.\n",
            load.repeat, load.gen);
    }
    return interrupted() ? 130 : 0;
}

}  // namespace riptide::apps
