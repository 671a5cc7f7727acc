#include "apps/bench/bench_serve.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <thread>

#include "apps/bench/load_driver.h"
#include "apps/support/terminal.h"
#include "base/error.h"

namespace riptide::apps {

namespace {

/// Tokens of each answer before a measurement: graphs are recorded the second time that a number of rows comes up.
constexpr int64_t kWarm = 8;
/// Tokens between a long prompt's end and the next stretch.
constexpr int64_t kSettle = 4;
/// Tool results have at least so many tokens; side requests have so many, and so long answers.
constexpr int64_t kLeastResult = 16, kSidePrompt = 600, kSideAnswer = 32, kSideEvery = 3;

void check_room(const Engine& engine, const char* what, int64_t tokens) {
    const int64_t context = engine.info().context_length;
    RT_CHECK(tokens <= context, ErrorKind::usage, "{} need {} tokens, and the context holds {}", what, tokens, context);
}

/// Asks for `count` answers at once that go on until the context is full. False after Ctrl-C.
bool begin_answers(LoadDriver& driver, int64_t count, int64_t prompt) {
    std::vector<std::vector<int32_t>> prompts;
    for (int64_t i = 0; i < count; ++i) prompts.push_back(driver.fresh_prompt(prompt));
    for (std::vector<int32_t>& tokens : prompts) driver.submit(std::move(tokens), -1);
    const bool begun = driver.wait([](const auto& requests) {
        return std::all_of(requests.begin(), requests.end(),
                           [](const auto& r) { return r->over || !r->times.empty(); });
    });
    return begun && driver.wait_for_tokens(0, static_cast<size_t>(count), kWarm);
}

/// When every answer has had a token at or behind `from`.
double all_seen(std::span<const TokenTimes> answers, double from) {
    double seen = from;
    for (const TokenTimes& times : answers) {
        const auto first = std::lower_bound(times.begin(), times.end(), from);
        if (first != times.end()) seen = std::max(seen, *first);
    }
    return seen;
}

double mean_context(std::span<const TokenTimes> answers, int64_t prompt, double at) {
    double tokens = 0;
    for (const TokenTimes& times : answers)
        tokens += static_cast<double>(std::upper_bound(times.begin(), times.end(), at) - times.begin());
    return static_cast<double>(prompt) + tokens / static_cast<double>(std::ssize(answers));
}

void check_unfinished(const LoadDriver& driver, int64_t sequences) {
    for (int64_t s = 0; s < sequences; ++s)
        RT_CHECK(
            !driver.get(static_cast<size_t>(s)).over, ErrorKind::usage,
            "an answer has filled its context before the measurement was over: shorter prompts, or a larger --ctx, "
            "leave more room");
}

}  // namespace

ClosedLoad bench_closed(Engine& engine, const LoadOptions& o, int64_t prompt, int64_t sequences) {
    ClosedLoad load{.sequences = sequences, .prompt = prompt};
    check_room(engine, "prompt and answer", prompt + kWarm + o.repeat * o.gen + 2);
    LoadDriver driver(engine, o.temperature);
    const int64_t preempted = engine.stats().preempted;
    if (!begin_answers(driver, sequences, prompt)) return load;
    const EngineStats before = driver.settled_stats();
    const double from = driver.now();
    const auto count = static_cast<size_t>(sequences);
    if (driver.wait_for_tokens(0, count, o.repeat * o.gen + 2)) check_unfinished(driver, sequences);
    const EngineStats after = driver.settled_stats();

    const std::vector<TokenTimes> answers = driver.times(0, count);
    const double start = all_seen(answers, from), end = driver.now();
    load.rates = steady_rates(answers, from, o.gen, o.repeat);
    load.gaps = percentiles(gaps(answers, start, end));
    load.context = mean_context(answers, prompt, (start + end) / 2);
    std::vector<double> ttft;
    for (size_t s = 0; s < count; ++s) ttft.push_back(driver.get(s).ttft());
    load.ttft = percentiles(std::move(ttft));
    load.steps = after.steps - before.steps;
    if (load.steps > 0) {
        load.step_seconds = (after.step_seconds - before.step_seconds) / static_cast<double>(load.steps);
        load.host_seconds = (after.host_seconds - before.host_seconds) / static_cast<double>(load.steps);
    }
    load.preempted = after.preempted - preempted;
    return load;
}

OpenLoad bench_open(Engine& engine, const LoadOptions& o, const std::vector<int64_t>& prompts, double rate,
                    int64_t requests) {
    OpenLoad load{.rate = rate};
    for (const int64_t prompt : prompts) check_room(engine, "prompt and answer", prompt + o.gen);
    LoadDriver driver(engine, o.temperature);
    const int64_t preempted = engine.stats().preempted;
    const std::vector<double> arrivals = poisson_arrivals(rate, requests, o.seed);
    std::mt19937_64 rng(o.seed);
    std::vector<std::vector<int32_t>> fed;
    for (int64_t i = 0; i < requests; ++i) fed.push_back(driver.fresh_prompt(prompts[rng() % prompts.size()]));

    Progress progress("arrivals", "requests");
    const double start = driver.now();
    for (size_t i = 0; i < fed.size(); ++i) {
        const double due = start + arrivals[i];
        for (double left = due - driver.now(); left > 0 && !interrupted(); left = due - driver.now())
            std::this_thread::sleep_for(std::chrono::duration<double>(std::min(left, 0.05)));
        if (!driver.wait([](const auto&) { return true; })) break;
        try {
            driver.submit(std::move(fed[i]), o.gen);
            ++load.requests;
        } catch (const QueueFull&) {
            ++load.refused;
        }
        progress.update(static_cast<int64_t>(i) + 1, requests);
    }
    driver.wait([](const auto& all) { return std::all_of(all.begin(), all.end(), [](auto& r) { return r->over; }); });

    std::vector<double> ttft, queue;
    std::vector<std::pair<double, double>> spans;
    double end = start;
    for (int64_t i = 0; i < load.requests; ++i) {
        const LoadRequest request = driver.get(static_cast<size_t>(i));
        if (request.times.empty()) continue;  // after Ctrl-C
        ttft.push_back(request.ttft());
        spans.emplace_back(request.submitted, request.times.back());
        end = std::max(end, request.times.back());
        load.answer_tokens += std::ssize(request.times);
        if (!request.done) continue;
        queue.push_back(request.done->timings.queue);
        load.prompt_tokens += request.done->usage.prompt;
    }
    load.gaps = percentiles(gaps(driver.times(0, static_cast<size_t>(load.requests)), start, end));
    load.ttft = percentiles(std::move(ttft));
    load.queue = percentiles(std::move(queue));
    load.most_at_once = most_at_once(spans);
    load.seconds = end - start;
    load.preempted = engine.stats().preempted - preempted;
    return load;
}

BesideLoad bench_beside(Engine& engine, const LoadOptions& o, int64_t prompt, int64_t sequences, int64_t beside) {
    BesideLoad load{.sequences = sequences, .prompt = prompt, .beside = beside};
    check_room(engine, "prompt and answer", prompt + kWarm + o.repeat * (o.gen + kSettle));
    check_room(engine, "the long prompt and its answer", beside + 1);
    LoadDriver driver(engine, o.temperature);
    if (!begin_answers(driver, sequences, prompt)) return load;
    const auto count = static_cast<size_t>(sequences);
    std::vector<double> alone, together;
    for (int r = 0; r < o.repeat; ++r) {
        const double from = driver.now();
        if (!driver.wait_for_tokens(0, count, o.gen)) break;
        const std::vector<double> quiet = gaps(driver.times(0, count), from, driver.now());
        const int64_t parts = engine.stats().prompt_parts;
        const size_t reader = driver.submit(driver.fresh_prompt(beside), 1);
        if (!driver.wait_for_end(reader)) break;
        load.parts = driver.settled_stats().prompt_parts - parts;
        const LoadRequest read = driver.get(reader);
        const std::vector<double> busy = gaps(driver.times(0, count), read.submitted, read.times.front());
        check_unfinished(driver, sequences);
        alone.insert(alone.end(), quiet.begin(), quiet.end());
        together.insert(together.end(), busy.begin(), busy.end());
        if (!busy.empty()) load.ratios.add(percentiles(busy).p99 / percentiles(quiet).p99);
        load.ttft.add(read.ttft());
        if (!driver.wait_for_tokens(0, count, kSettle)) break;
    }
    load.alone = percentiles(std::move(alone));
    load.together = percentiles(std::move(together));
    return load;
}

double AgentLoad::known_share() const {
    int64_t cached = 0, known = 0;
    for (size_t t = 1; t < turns.size(); ++t) cached += turns[t].cached, known += turns[t].known;
    return known == 0 ? 0 : static_cast<double>(cached) / static_cast<double>(known);
}

double AgentLoad::prompt_share() const {
    int64_t cached = 0, prompt = 0;
    for (size_t t = 1; t < turns.size(); ++t) cached += turns[t].cached, prompt += turns[t].prompt;
    return prompt == 0 ? 0 : static_cast<double>(cached) / static_cast<double>(prompt);
}

Repeats AgentLoad::ttft() const {
    Repeats times;
    for (size_t t = 1; t < turns.size(); ++t) times.add(turns[t].ttft);
    return times;
}

AgentLoad bench_agent(Engine& engine, const LoadOptions& o, int64_t turns, int64_t tokens) {
    AgentLoad load{.side_prompt = std::min(kSidePrompt, tokens / 8)};
    check_room(engine, "the last turn's prompt and answer", tokens + o.gen);
    const int64_t first = std::max<int64_t>(1, tokens / 8), rest = tokens - first - (turns - 1) * o.gen;
    RT_CHECK(turns >= 2 && load.side_prompt > 0 && rest >= (turns - 1) * kLeastResult, ErrorKind::usage,
             "--agent {},{}: {} turns need more tokens, with answers of {} (--gen) and tool results of at least {}",
             turns, tokens, turns, o.gen, kLeastResult);
    const std::vector<int64_t> results = uneven_sizes(rest, turns - 1, kLeastResult, o.seed);
    LoadDriver driver(engine, o.temperature);
    std::vector<int32_t> talk = driver.fresh_prompt(first);
    Progress progress("agent", "turns");
    int64_t known = 0;
    for (int64_t t = 0; t < turns; ++t) {
        const size_t turn = driver.submit(talk, o.gen, "agent");
        if (!driver.wait_for_end(turn)) return load;
        const LoadRequest answer = driver.get(turn);
        load.turns.push_back({std::ssize(talk), answer.done->usage.cached, known, answer.ttft()});
        progress.update(t + 1, turns);
        if (t % kSideEvery == kSideEvery - 1) {
            const size_t side = driver.submit(driver.fresh_prompt(load.side_prompt), kSideAnswer, "", true);
            if (!driver.wait_for_end(side)) return load;
            load.side_ttft.add(driver.get(side).ttft());
        }
        if (t + 1 == turns) break;
        known = std::ssize(talk) + std::ssize(answer.tokens) - 1;  // the last token was never fed
        talk.insert(talk.end(), answer.tokens.begin(), answer.tokens.end());
        const std::vector<int32_t> result = driver.fresh_prompt(results[static_cast<size_t>(t)]);
        talk.insert(talk.end(), result.begin(), result.end());
    }
    for (int r = 0; r < o.repeat; ++r) {
        const size_t again = driver.submit(talk, 1, "agent");
        if (!driver.wait_for_end(again)) return load;
        const LoadRequest answer = driver.get(again);
        load.again.add(answer.ttft());
        load.again_new = std::max(load.again_new, std::ssize(talk) - answer.done->usage.cached);
    }
    return load;
}

}  // namespace riptide::apps
