#include "apps/bench/load_report.h"

#include <fmt/core.h>

#include "apps/flags/model_flags.h"
#include "apps/support/terminal.h"
#include "base/json.h"

namespace riptide::apps {

namespace {

/// "0.85 ms", "12.3 ms", "4.21 s"
std::string time(double seconds) {
    if (seconds >= 1) return fmt::format("{:.2f} s", seconds);
    return seconds >= 0.01 ? fmt::format("{:.1f} ms", seconds * 1e3) : fmt::format("{:.2f} ms", seconds * 1e3);
}

std::string times(const Percentiles& p) {
    return fmt::format("P50 {:>8}   P90 {:>8}   P99 {:>8}   most {:>8}   of {}", time(p.p50), time(p.p90), time(p.p99),
                       time(p.most), grouped(p.count));
}

std::string note_preempted(int64_t preempted) {
    return preempted == 0 ? ""
                          : fmt::format("  {} answers were preempted: K/V for fewer sequences than were asked for\n",
                                        grouped(preempted));
}

double ratio(double a, double b) { return b > 0 ? a / b : 0; }

json::object figures_json(const Percentiles& p) {
    return {{"count", p.count}, {"p50", p.p50}, {"p90", p.p90}, {"p99", p.p99}, {"most", p.most}};
}

json::object figures_json(const Repeats& r) {
    return {{"median", r.median()}, {"spread", r.spread()}, {"values", json::array(r.values.begin(), r.values.end())}};
}

}  // namespace

void print_engine(const EngineInfo& info) {
    tell(
        "{} · {} · {} weights ({} a token) · K/V {} for {} tokens · context {} · up to {} requests · {} prompt rows a "
        "step · {}\n",
        info.model.name, info.model.architecture, human_bytes(info.model.weight_bytes),
        human_bytes(info.model.bytes_per_token), kv_name(info.k_dtype, info.v_dtype), grouped(info.kv_tokens),
        grouped(info.context_length), info.max_running, info.chunk_rows, info.device);
}

void print_closed_header() {
    tell("{:<20} {:>12} {:>7} {:>8} | {:>9} {:>9} {:>9} | {:>9} {:>9} {:>9} | {:>9} {:>10}\n", "", "tok/s median",
         "spread", "context", "TTFT P50", "P90", "P99", "gap P50", "P90", "P99", "step", "host/step");
}

void print(const ClosedLoad& load) {
    if (load.rates.values.empty()) return;
    tell("{:<20} {:>12.1f} {:>6.1f}% {:>8} | {:>9} {:>9} {:>9} | {:>9} {:>9} {:>9} | {:>9} {:>7.1f} us\n{}",
         fmt::format("{} x {}", load.sequences, load.prompt), load.rates.median(), 100 * load.rates.spread(),
         grouped(static_cast<int64_t>(load.context)), time(load.ttft.p50), time(load.ttft.p90), time(load.ttft.p99),
         time(load.gaps.p50), time(load.gaps.p90), time(load.gaps.p99), time(load.step_seconds),
         load.host_seconds * 1e6, Lines{note_preempted(load.preempted)});
}

void print(const OpenLoad& load) {
    tell(
        "{} requests at {} a second ({} refused), {:.1f} s: {:.1f} answer tok/s, {:.1f} prompt tok/s, at most {} at a "
        "time\n  TTFT         {}\n  inter-token  {}\n  queued       {}\n{}",
        load.requests, load.rate, load.refused, load.seconds,
        ratio(static_cast<double>(load.answer_tokens), load.seconds),
        ratio(static_cast<double>(load.prompt_tokens), load.seconds), load.most_at_once, times(load.ttft),
        times(load.gaps), times(load.queue), Lines{note_preempted(load.preempted)});
}

void print(const BesideLoad& load) {
    if (load.ratios.values.empty()) return;
    tell(
        "{} answers (prompts of {} tokens), and a prompt of {} tokens read beside them\n  inter-token alone   {}\n"
        "  inter-token beside  {}\n  P99 beside / alone  {:.2f} (median of {}, {:.2f} to {:.2f})\n"
        "  TTFT of the prompt  {}, {:.0f} tok/s, in {} parts\n",
        load.sequences, load.prompt, load.beside, times(load.alone), times(load.together), load.ratios.median(),
        load.ratios.values.size(), load.ratios.values.front(), load.ratios.values.back(), time(load.ttft.median()),
        ratio(static_cast<double>(load.beside), load.ttft.median()), load.parts);
}

void print(const AgentLoad& load) {
    if (load.turns.empty()) return;
    tell("{:>5} {:>9} {:>9} {:>9} {:>12} {:>12} {:>10}\n", "turn", "prompt", "new", "cached", "of known", "of prompt",
         "TTFT");
    for (size_t t = 0; t < load.turns.size(); ++t) {
        const AgentTurn& turn = load.turns[t];
        const auto percent = [&](int64_t of) {
            return of == 0 ? std::string("-")
                           : fmt::format("{:.2f} %",
                                         100 * ratio(static_cast<double>(turn.cached), static_cast<double>(of)));
        };
        tell("{:>5} {:>9} {:>9} {:>9} {:>12} {:>12} {:>10}\n", t + 1, grouped(turn.prompt),
             grouped(turn.prompt - turn.cached), grouped(turn.cached), percent(turn.known), percent(turn.prompt),
             time(turn.ttft));
    }
    const Repeats ttft = load.ttft();
    if (ttft.values.empty()) return;
    tell(
        "from turn 2: cached {:.2f} % of what was computed before, {:.2f} % of the prompts; TTFT median {}, worst "
        "{}\n",
        100 * load.known_share(), 100 * load.prompt_share(), time(ttft.median()), time(ttft.values.back()));
    if (!load.again.values.empty())
        tell("the last prompt again ({} tokens not cached): TTFT median {}, worst {}\n", load.again_new,
             time(load.again.median()), time(load.again.values.back()));
    if (!load.side_ttft.values.empty())
        tell("{} side requests of {} tokens: TTFT median {}, worst {}\n", load.side_ttft.values.size(),
             load.side_prompt, time(load.side_ttft.median()), time(load.side_ttft.values.back()));
}

json::object to_json(const ClosedLoad& load) {
    return {{"kind", "closed"},
            {"sequences", load.sequences},
            {"prompt", load.prompt},
            {"tok_s", figures_json(load.rates)},
            {"context", load.context},
            {"ttft", figures_json(load.ttft)},
            {"inter_token", figures_json(load.gaps)},
            {"steps", load.steps},
            {"step_seconds", load.step_seconds},
            {"host_seconds", load.host_seconds},
            {"preempted", load.preempted}};
}

json::object to_json(const OpenLoad& load) {
    return {{"kind", "open"},
            {"rate", load.rate},
            {"requests", load.requests},
            {"refused", load.refused},
            {"seconds", load.seconds},
            {"prompt_tokens", load.prompt_tokens},
            {"answer_tokens", load.answer_tokens},
            {"ttft", figures_json(load.ttft)},
            {"inter_token", figures_json(load.gaps)},
            {"queue", figures_json(load.queue)},
            {"most_at_once", load.most_at_once},
            {"preempted", load.preempted}};
}

json::object to_json(const BesideLoad& load) {
    return {{"kind", "beside"},
            {"sequences", load.sequences},
            {"prompt", load.prompt},
            {"beside", load.beside},
            {"alone", figures_json(load.alone)},
            {"together", figures_json(load.together)},
            {"p99_ratio", figures_json(load.ratios)},
            {"ttft", figures_json(load.ttft)},
            {"parts", load.parts}};
}

json::object to_json(const AgentLoad& load) {
    json::array turns;
    for (const AgentTurn& turn : load.turns)
        turns.push_back({{"prompt", turn.prompt}, {"cached", turn.cached}, {"known", turn.known}, {"ttft", turn.ttft}});
    return {{"kind", "agent"},
            {"turns", std::move(turns)},
            {"cached_share_of_known", load.known_share()},
            {"cached_share_of_prompts", load.prompt_share()},
            {"ttft", figures_json(load.ttft())},
            {"again_ttft", figures_json(load.again)},
            {"again_new", load.again_new},
            {"side_ttft", figures_json(load.side_ttft)},
            {"side_prompt", load.side_prompt}};
}

}  // namespace riptide::apps
