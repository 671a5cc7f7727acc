#include "apps/bench/bench_compressed.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <future>
#include <random>

#include "apps/support/chat_message.h"
#include "apps/support/demo_model.h"
#include "apps/support/terminal.h"
#include "apps/synth/random_checkpoint.h"
#include "base/error.h"
#include "base/json.h"
#include "engine/compression/model_scorer.h"
#include "engine/engine.h"

namespace riptide::apps {

namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kAnswer = 16;  // tokens of each answer

double since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

/// A file, a folder, or SHAPE:TYPE with random weights.
std::unique_ptr<Checkpoint> open_any(const std::string& what, int threads) {
    if (what.find(':') != std::string::npos && !std::filesystem::exists(what)) return random_checkpoint(what, threads);
    return open_model_or_demo(what);
}

/// Lines of words of three letters, which differ for every seed: about `tokens` of them.
std::string made_up_text(const Tokenizer& tokenizer, int64_t tokens, uint64_t seed) {
    std::mt19937_64 rng(seed);
    const auto words = [&](int64_t count) {
        std::string out;
        for (int64_t i = 0; i < count; ++i) {
            uint64_t number = rng();
            for (int c = 0; c < 3; ++c, number /= 26) out += static_cast<char>('a' + number % 26);
            out += i % 16 == 15 ? ".\n" : " ";
        }
        return out;
    };
    constexpr int64_t kSample = 4096;
    const auto sample = std::ssize(tokenizer.encode(words(kSample)));
    return words(std::max<int64_t>(1, tokens * kSample / sample));
}

/// One answer.
struct Turn {
    double first = 0, submit = 0, scoring = 0, prefill = 0;  // seconds; first: from before submit to the first token
    Usage usage;
    CompressionReport compression;
    std::string text;
};

Turn timed_turn(Engine& engine, const json::array& messages, const CompressionRequest& compression) {
    struct TurnReply {
        std::promise<void> over;
        double first = -1;
        std::string text;
        std::optional<Done> done;
        std::optional<Failed> failed;
    };
    Request request;
    request.prompt = ChatPrompt{messages, {}, {}};
    request.sampling.temperature = 0;
    request.sampling.max_tokens = kAnswer;
    request.sampling.ignore_eos = true;
    request.want_tokens = true;
    request.compression = compression;
    const auto reply = std::make_shared<TurnReply>();
    const auto start = Clock::now();
    engine.submit(std::move(request), [reply, start](const Event& event) {
        if (std::holds_alternative<TokensDrawn>(event.body) && reply->first < 0) reply->first = since(start);
        if (const auto* text = std::get_if<TextDelta>(&event.body)) reply->text += text->text;
        if (const auto* done = std::get_if<Done>(&event.body)) reply->done = *done;
        if (const auto* failed = std::get_if<Failed>(&event.body)) reply->failed = *failed;
        if (event.last) reply->over.set_value();
    });
    Turn turn;
    turn.submit = since(start);
    reply->over.get_future().wait();
    if (reply->failed) throw Error("a prompt has failed: " + reply->failed->message, reply->failed->kind);
    turn.first = reply->first;
    turn.scoring = reply->done->timings.scoring;
    turn.prefill = reply->done->timings.prefill;
    turn.usage = reply->done->usage;
    turn.compression = reply->done->compression;
    turn.text = reply->text;
    return turn;
}

/// One kind of line of the table: repeats of the same.
struct CompressedRow {
    std::string what;
    int64_t tokens = 0;
    std::vector<Turn> turns;

    double median(double Turn::*value) const {
        std::vector<double> all;
        for (const Turn& turn : turns) all.push_back(turn.*value);
        std::ranges::sort(all);
        return all[all.size() / 2];
    }
    double spread() const {
        const auto [least, most] = std::ranges::minmax(turns, {}, &Turn::first);
        return (most.first - least.first) / median(&Turn::first);
    }
};

void print_compressed_row(const CompressedRow& row) {
    const Turn& last = row.turns.back();
    tell("{:<18} {:>8} {:>8} {:>8} {:>8} {:>10.1f} {:>9.1f} {:>9.1f} {:>9.1f} {:>7.1f}%\n", row.what, row.tokens,
         last.compression.scored, last.usage.prompt, last.usage.cached, 1e3 * row.median(&Turn::first),
         1e3 * row.median(&Turn::submit), 1e3 * row.median(&Turn::scoring), 1e3 * row.median(&Turn::prefill),
         100 * row.spread());
    std::fflush(stdout);
}

json::object compressed_row_json(const CompressedRow& row) {
    json::array first;
    for (const Turn& turn : row.turns) first.push_back(turn.first);
    const Turn& last = row.turns.back();
    return {{"what", row.what},
            {"tokens", row.tokens},
            {"scored_tokens", last.compression.scored},
            {"read_tokens", last.usage.prompt},
            {"cached_tokens", last.usage.cached},
            {"first_token_s", std::move(first)},
            {"median_s", row.median(&Turn::first)},
            {"submit_s", row.median(&Turn::submit)},
            {"scoring_s", row.median(&Turn::scoring)},
            {"prefill_s", row.median(&Turn::prefill)}};
}

/// The first turn about a text, and the second. Repeats are other texts, so that nothing is cached of them. The first
/// `warm_up` are not counted.
void measure_turns(Engine& engine, const ScorerFlags& flags, int repeat, int warm_up, int64_t tokens,
                   const CompressionRequest& how, CompressedRow& first, CompressedRow& second) {
    static uint64_t texts = 0;
    for (int i = 0; i < repeat + warm_up && !interrupted(); ++i) {
        const std::string question = "\n\nWhich of these words is the last one?";
        json::array messages = {
            chat_message("user", made_up_text(*engine.tokenizer(), tokens - flags.question, ++texts) + question)};
        const Turn one = timed_turn(engine, messages, how);
        messages.push_back(chat_message("assistant", one.text));
        messages.push_back(chat_message("user", made_up_text(*engine.tokenizer(), flags.turn, ++texts) + question));
        const Turn two = timed_turn(engine, messages, how);
        if (i < warm_up) continue;
        first.tokens = one.compression.original > 0 ? one.compression.original : one.usage.prompt;
        second.tokens = two.compression.original > 0 ? two.compression.original : two.usage.prompt;
        first.turns.push_back(one);
        second.turns.push_back(two);
    }
}

}  // namespace

int bench_compressed(const ModelFlags& model, const ScorerFlags& flags, const BenchOptions& bench,
                     const std::vector<int64_t>& prompts, bool as_json) {
    EngineOptions options;
    static_cast<SessionOptions&>(options) = session_options(model);
    options.max_running = 1;
    ModelScorerOptions wanted;
    wanted.gpu = options.gpu;
    wanted.threads = options.threads;
    wanted.scorer.score_layers = flags.layers;
    wanted.scorer.sparse.alpha = flags.alpha;
    wanted.scorer.sparse.most_blocks = flags.blocks;
    options.scorer = open_scorer(
        model.random_weights.empty() ? open_model(model) : random_checkpoint(model.random_weights, model.threads),
        wanted);
    const PromptScorer scorer = options.scorer;
    Engine engine(open_any(flags.target, model.threads), options);
    const EngineInfo info = engine.info();
    CompressionRequest compressed, whole;
    compressed.mode = CompressMode::always;
    compressed.keep = flags.keep;
    whole.mode = CompressMode::off;
    if (!as_json)
        tell(
            "{} scores, {} answers · keep {} · context {} · {}\n{}\n{:<18} {:>8} {:>8} {:>8} {:>8} {:>10} {:>9} "
            "{:>9} {:>9} {:>8}\n",
            scorer.name, info.model.name, flags.keep, info.context_length, info.device, info.memory, "ms", "tokens",
            "scored", "read", "cached", "1st token", "(submit", "scoring", "prefill)", "spread");
    std::vector<CompressedRow> rows;
    for (const int64_t tokens : prompts)
        for (const bool dense : {false, true}) {
            if (interrupted()) return 130;
            if (dense && (flags.no_dense || tokens > info.context_length)) continue;
            const int64_t most = info.context_length - 2 * flags.turn;  // a whole prompt, its answer and the turn
            CompressedRow first{dense ? "whole" : "compressed", 0, {}},
                second{dense ? "whole, turn" : "compressed, turn", 0, {}};
            measure_turns(engine, flags, dense ? 1 : bench.repeat, dense ? 0 : 1,
                          dense ? std::min(tokens, most) : tokens, dense ? whole : compressed, first, second);
            if (first.turns.empty()) return 130;
            for (CompressedRow* row : {&first, &second}) {
                if (!as_json) print_compressed_row(*row);
                rows.push_back(std::move(*row));
            }
        }
    const int64_t scorer_peak = scorer.device_bytes ? scorer.device_bytes() : 0, peak = engine.stats().device_peak;
    if (!as_json) {
        if (peak > 0) tell("most device memory: scorer {}, model {}\n", human_bytes(scorer_peak), human_bytes(peak));
        return 0;
    }
    json::array list;
    for (const CompressedRow& row : rows) list.push_back(compressed_row_json(row));
    tell("{}\n", json::serialize(json::object{{"scorer", scorer.name},
                                              {"model", info.model.name},
                                              {"device", info.device},
                                              {"keep", flags.keep},
                                              {"memory", info.memory},
                                              {"scorer_peak_bytes", scorer_peak},
                                              {"model_peak_bytes", peak},
                                              {"rows", std::move(list)}}));
    return 0;
}

}  // namespace riptide::apps
