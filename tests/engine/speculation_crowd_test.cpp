// Greedy answers in crowds of the Engine with drafts of every width and every size of tree, by drafters that are
// right, wrong, random or repeat themselves: none may differ from plain decoding of that answer alone. --full: 200,000
// tokens with each type of K/V, a million in all. Crowds are as large as the rows of a step allow: on a GPU a step of
// 256 rows takes little longer than one of ten, so that the tokens in a step decide how long this takes.
#include <chrono>
#include <random>
#include <thread>

#include "engine/scheduler/schedule.h"
#include "tests/engine/engine_world.h"
#include "tests/engine/solo.h"
#include "tests/engine/test_drafters.h"
#include "tests/models/fixture.h"

namespace riptide::testing {
namespace {

/// An answer of plain decoding, alone. The prompt's first two tokens are no other's.
struct Truth {
    std::vector<int32_t> prompt, whole;
};

/// A way to draft, for a crowd of `running` answers, and then for one of `few`.
struct Way {
    int32_t width = 1, tree = 0, running = 1, few = 1;
};

/// Of those in all_ways(), in a usual run.
constexpr size_t kSomeWays = kThreadSanitizer ? 4 : 16;

/// What a drafter does for an answer.
enum class Manner { right, often_right, second, random, repeating, wrong };

class SpeculationCrowd : public ::testing::TestWithParam<ModelAndKv> {
  protected:
    std::string path() const {
        const std::string& name = GetParam().model;
        return name == "demo" ? demo_path() : fixture_path(name) + "/model.safetensors";
    }
    EngineOptions options(int32_t running) const {
        EngineOptions o = demo_options();
        o.choose_kv = false;
        o.k_dtype = o.v_dtype = GetParam().kv;
        o.context = 512;
        o.max_running = running;
        o.kv_tokens = running * o.context;
        o.prefix_cache = false;
        return o;
    }
    std::vector<Truth> plain(std::span<const std::vector<int32_t>> prompts, int64_t tokens) const {
        const auto engine = Engine::open(path(), options(1));
        std::vector<Truth> truths;
        for (const std::vector<int32_t>& prompt : prompts) {
            truths.push_back({prompt, prompt});
            const Heard heard = ask(*engine, continuation(prompt, tokens));
            EXPECT_EQ(std::ssize(heard.tokens), tokens);
            truths.back().whole.insert(truths.back().whole.end(), heard.tokens.begin(), heard.tokens.end());
        }
        return truths;
    }
    std::vector<std::vector<int32_t>> make_prompts(int32_t count) const {
        const auto checkpoint = open_checkpoint(path());
        const auto vocab = static_cast<uint32_t>(load_model(*checkpoint)->info().vocab_size);
        std::vector<int32_t> text;
        if (GetParam().model == "demo") {
            EncodeOptions encode;
            encode.parse_special = true;
            text =
                Tokenizer::from_gguf(checkpoint->metadata(), "demo")
                    .encode(
                        "〈|EOS|〉import json\n\n\ndef read_lines(path):\n    \"\"\"The lines of a file.\"\"\"\n    "
                        "with "
                        "open(path) as file:\n        return [line.strip() for line in file]\n\n\nclass Counter:\n    "
                        "def __init__(self):\n        self.counts = {}\n\n    def add(self, word):\n        ",
                        encode);
        } else text = Fixture(GetParam().model).prompts.back().tokens;
        std::mt19937 random(7);
        std::vector<std::vector<int32_t>> prompts;
        for (int32_t i = 0; i < count; ++i) {
            std::vector<int32_t> prompt = {1 + i / 50, 1 + i % 50};
            const size_t end = 1 + random() % text.size(), begin = random() % end;
            prompt.insert(prompt.end(), text.begin() + static_cast<ptrdiff_t>(begin),
                          text.begin() + static_cast<ptrdiff_t>(end));
            if (i % 3 == 0)
                for (uint32_t n = random() % 8; n > 0; --n) prompt.push_back(static_cast<int32_t>(random() % vocab));
            prompts.push_back(std::move(prompt));
        }
        return prompts;
    }

    struct Tally {
        int64_t answers = 0, tokens = 0, different = 0, accepted = 0, drafted = 0, steps = 0, rows = 0;
        double opening = 0, stepping = 0, host = 0;  // seconds of all engines; host: of their steps, not in the model
        void add(const Tally& other) {
            answers += other.answers, tokens += other.tokens, different += other.different;
            accepted += other.accepted, drafted += other.drafted, steps += other.steps, rows += other.rows;
            opening += other.opening, stepping += other.stepping, host += other.host;
        }
    };
    /// What a drafter of some manner says for a slot behind `tokens`.
    std::vector<DraftToken> drafts(const std::vector<int32_t>& whole, Manner manner, const std::vector<int32_t>& tokens,
                                   int32_t slot, int32_t choices, std::mt19937& chance) const {
        const size_t at = tokens.size() + static_cast<size_t>(slot);
        const int32_t truth = at < whole.size() ? whole[at] : 0;
        const auto dice = [&](int64_t n) { return static_cast<int32_t>(chance() % static_cast<uint64_t>(n)); };
        switch (manner) {
            case Manner::right:
                return drafts_with(truth, 0, choices, vocab_);
            case Manner::often_right:
                return drafts_with(truth, dice(8) == 0 ? 1 : 0, choices, vocab_);
            case Manner::second:
                return drafts_with(truth, dice(2), choices, vocab_);
            case Manner::random:
                return drafts_with(dice(vocab_), 0, std::min(dice(4), choices), vocab_);
            case Manner::repeating:
                return drafts_with(tokens.back(), 0, choices, vocab_);
            case Manner::wrong:
                break;
        }
        return drafts_with(truth, choices, choices, vocab_);
    }
    static Manner manner_of(uint32_t i) {
        static constexpr Manner kManners[] = {Manner::right,  Manner::often_right, Manner::right,  Manner::second,
                                              Manner::random, Manner::often_right, Manner::right,  Manner::repeating,
                                              Manner::right,  Manner::often_right, Manner::second, Manner::wrong};
        return kManners[i % std::size(kManners)];
    }
    static bool wasteful(Manner manner) {
        return manner == Manner::random || manner == Manner::repeating || manner == Manner::wrong;
    }
    /// Each width and each size of tree once, for as many answers as a step has rows for. --full on a GPU: the demo
    /// model has them all with K/V in f32, every second one with each other type, taking turns.
    static std::vector<Way> all_ways() {
        constexpr int32_t kFew[] = {16, 5, 12, 2, 8, 1}, kMost = 64;
        std::vector<Way> ways;
        const auto add = [&](int32_t width, int32_t tree) {
            const int32_t few = kFew[ways.size() % std::size(kFew)];
            const int32_t fit = std::min(kMost, SchedulerOptions().decode_rows / (1 + (tree > 0 ? tree : width)));
            ways.push_back({width, tree, full_counts() ? fit : few, few});
        };
        for (int32_t width = 1; width <= 15; ++width) add(width, 0);
        for (int32_t tree = 1; tree <= 64; ++tree) add(1 + tree * 7 % 15, tree);
        if (full_counts() && halved()) {
            const size_t odd = GetParam().kv == DType::f16 || GetParam().kv == DType::q8_0 ? 0 : 1;
            std::vector<Way> half;
            for (size_t i = odd; i < ways.size(); i += 2) half.push_back(ways[i]);
            return half;
        }
        if (!full_counts()) {  // some of them
            std::mt19937 random(5);
            std::shuffle(ways.begin(), ways.end(), random);
            ways.resize(kSomeWays);
        }
        return ways;
    }

    /// Who drafts for whom, by a prompt's first two tokens.
    using Manners = std::map<std::pair<int32_t, int32_t>, std::pair<size_t, Manner>>;

    EngineOptions drafting(const Way& way, const std::vector<Truth>& truths, const Manners& who, uint32_t seed) const {
        EngineOptions o = options(std::max(way.running, way.few));
        o.speculation.width = way.width, o.speculation.tree = way.tree, o.speculation.adaptive = false;
        o.speculation.make = [&truths, &who, this, way, seed] {
            return std::make_unique<TestDrafter>(
                way.width, [&truths, &who, this, chance = std::mt19937(seed)](const std::vector<int32_t>& tokens,
                                                                              int32_t slot, int32_t choices) mutable {
                    const auto [which, manner] = who.at({tokens[0], tokens[1]});
                    return drafts(truths[which].whole, manner, tokens, slot, choices, chance);
                });
        };
        return o;
    }

    /// Answers that run together, compared token by token.
    Tally crowd(Engine& engine, const std::vector<Truth>& truths, Manners& who, int32_t answers, uint32_t seed) const {
        std::mt19937 random(seed);
        std::vector<std::pair<size_t, int64_t>> asked;
        who.clear();
        const auto begin = static_cast<size_t>(random() % truths.size());
        for (size_t i = 0; i < std::min(static_cast<size_t>(answers), truths.size()); ++i) {
            const size_t which = (begin + i) % truths.size();
            const Truth& t = truths[which];
            const Manner manner = manner_of(seed + static_cast<uint32_t>(i));
            who[{t.prompt[0], t.prompt[1]}] = {which, manner};
            const int64_t all = std::ssize(t.whole) - std::ssize(t.prompt);
            asked.emplace_back(which, wasteful(manner) ? all / 6 : all - static_cast<int64_t>(random() % 10));
        }
        Tally tally;
        Listener listener;
        for (size_t i = 0; i < asked.size(); ++i)
            engine.submit(continuation(truths[asked[i].first].prompt, asked[i].second),
                          listener.sink(static_cast<int>(i)));
        for (size_t i = 0; i < asked.size(); ++i) {
            const Heard heard = listener.answer(static_cast<int>(i));
            const Truth& truth = truths[asked[i].first];
            const size_t first = truth.prompt.size();
            EXPECT_TRUE(heard.done) << (heard.failed ? heard.failed->message : "");
            EXPECT_EQ(std::ssize(heard.tokens), asked[i].second);
            for (size_t t = 0; t < heard.tokens.size(); ++t)
                tally.different += heard.tokens[t] != truth.whole.at(first + t);
            tally.tokens += std::ssize(heard.tokens);
            ++tally.answers;
        }
        return tally;
    }

    /// A large crowd and a small one in an engine that drafts in one way.
    Tally crowds(const std::vector<Truth>& truths, const Way& way, uint32_t seed) const {
        Manners who;  // outlives the engine
        const auto start = std::chrono::steady_clock::now();
        const auto engine = Engine::open(path(), drafting(way, truths, who, seed));
        Tally tally;
        tally.opening = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        if (full_counts()) tally.add(crowd(*engine, truths, who, std::max(6, way.running), seed));
        engine->drain();
        engine->resume();
        tally.add(crowd(*engine, truths, who, full_counts() ? way.few : 4, seed + 1000));
        const EngineStats stats = engine->stats();
        tally.accepted = stats.accepted_rows, tally.drafted = stats.drafted_rows;
        tally.steps = stats.steps, tally.rows = stats.decode_rows;
        tally.stepping = stats.step_seconds, tally.host = stats.host_seconds;
        EXPECT_EQ(tally.different, 0) << "width " << way.width << ", tree " << way.tree << ", " << way.running
                                      << " and " << way.few << " at a time, seed " << seed;
        return tally;
    }

    static bool halved() { return test_gpu() != nullptr && GetParam().model == "demo" && GetParam().kv != DType::f32; }
    /// --full: a million with all types of K/V, and half a million with each hybrid, of which a GPU, whose time is
    /// dear, has a fifth.
    static int64_t wanted_tokens(int64_t usual) {
        if (!full_counts()) return usual;
        if (GetParam().model == "demo") return halved() ? 100'000 : 200'000;
        return test_gpu() != nullptr ? 100'000 : 500'000;
    }

    int64_t vocab_ = 0;
};

std::vector<ModelAndKv> crowd_cases() {
    if (kThreadSanitizer) return {{"demo", DType::q8_0}, {"qwen35_tied", DType::f32}, {"qwen35_moe", DType::q8_0}};
    return {{"demo", DType::f32},  {"demo", DType::f16},        {"demo", DType::f8_e4m3},   {"demo", DType::q8_0},
            {"demo", DType::q4_0}, {"qwen35_tied", DType::f32}, {"qwen35_moe", DType::q8_0}};
}
INSTANTIATE_TEST_SUITE_P(All, SpeculationCrowd, ::testing::ValuesIn(crowd_cases()), model_and_kv_name);

TEST_P(SpeculationCrowd, every_width_and_tree_says_what_each_says_alone) {
    const int64_t wanted = wanted_tokens(kThreadSanitizer ? 500 : 2'000);
    const int workers = test_jobs();  // each with engines of its own
    {
        const auto checkpoint = open_checkpoint(path());
        vocab_ = load_model(*checkpoint)->info().vocab_size;
    }
    const std::vector<std::vector<int32_t>> prompts = make_prompts(full_counts() ? 64 : 12);
    const int64_t tokens = full_counts() ? (halved() ? 160 : 220) : 60;
    std::vector<std::vector<Truth>> parts(static_cast<size_t>(workers));
    std::vector<std::thread> threads;
    const auto start = std::chrono::steady_clock::now();
    const auto seconds = [&] {
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    };
    for (size_t w = 0; w < parts.size(); ++w)
        threads.emplace_back([&, w] {
            const size_t begin = prompts.size() * w / parts.size(), end = prompts.size() * (w + 1) / parts.size();
            if (begin < end) parts[w] = plain(std::span(prompts).subspan(begin, end - begin), tokens);
        });
    for (std::thread& thread : threads) thread.join();
    threads.clear();
    std::vector<Truth> truths;
    for (const std::vector<Truth>& part : parts) truths.insert(truths.end(), part.begin(), part.end());
    const double plain_seconds = seconds();

    const std::vector<Way> ways = all_ways();  // and again until there are enough tokens
    std::atomic<size_t> next = 0;
    std::mutex mutex;
    Tally all;
    std::atomic<bool> enough = false;
    const auto work = [&] {
        for (size_t i = next++; (i < ways.size() || !enough) && !HasFatalFailure(); i = next++) {
            const Tally tally = crowds(truths, ways[i % ways.size()], static_cast<uint32_t>(i));
            const std::lock_guard lock(mutex);
            all.add(tally);
            enough = all.tokens >= wanted;
            if (full_counts() && (i + 1) % 16 == 0) {
                fmt::print("{} {}: {} ways, {} tokens, {} different, {:.1f} s\n", GetParam().model,
                           dtype_name(GetParam().kv), i + 1, all.tokens, all.different, seconds());
                std::fflush(stdout);
            }
        }
    };
    for (int w = 0; w < workers; ++w) threads.emplace_back(work);
    for (std::thread& thread : threads) thread.join();
    fmt::print("{} {}: {} answers, {} tokens of plain decoding, {} with drafts ({} of {} drafts right), {} different\n",
               GetParam().model, dtype_name(GetParam().kv), all.answers, static_cast<int64_t>(truths.size()) * tokens,
               all.tokens, all.accepted, all.drafted, all.different);
    fmt::print(
        "  {:.1f} s of plain decoding, then {:.1f} s; of {} workers: {:.1f} s in opening engines, {:.1f} s in {} "
        "steps of {:.0f} rows, {:.1f} s of that on the host\n",
        plain_seconds, seconds() - plain_seconds, workers, all.opening, all.stepping, all.steps,
        static_cast<double>(all.rows) / static_cast<double>(all.steps), all.host);
    EXPECT_GE(all.tokens, wanted);
    EXPECT_EQ(all.different, 0);
    EXPECT_GT(all.accepted, all.tokens / 4);
    EXPECT_GT(all.drafted, all.accepted);
}

/// A step of one sequence is recorded for each number of rows.
TEST_P(SpeculationCrowd, alone_every_width_and_tree_says_what_plain_decoding_says) {
    if (kThreadSanitizer) GTEST_SKIP() << "one thread";
    const bool full = full_counts();
    const int64_t wanted = wanted_tokens(1'000), tokens = full ? 220 : 60;
    {
        const auto checkpoint = open_checkpoint(path());
        vocab_ = load_model(*checkpoint)->info().vocab_size;
    }
    const std::vector<std::vector<int32_t>> prompts = make_prompts(full ? 64 : 6);
    const std::vector<Way> ways = all_ways();
    std::atomic<size_t> next = 0;
    std::atomic<int64_t> all_tokens = 0, different = 0, accepted = 0, plain_tokens = 0;
    const auto work = [&](size_t worker) {
        SessionOptions o;
        o.threads = 1;
        o.context = 512;
        o.k_dtype = o.v_dtype = GetParam().kv;
        o.chunk_rows = 128;
        if (Gpu* gpu = test_gpu()) o.gpu = gpu->options();
        Solo solo(open_checkpoint(path()), o);
        const auto answer = [&](const std::vector<int32_t>& prompt, int64_t most) {
            solo.forget();
            return solo.answer(prompt, most);
        };
        std::vector<Truth> truths;  // every worker has answers of its own
        for (size_t i = worker; i < prompts.size(); i += static_cast<size_t>(test_jobs())) {
            truths.push_back({prompts[i], prompts[i]});
            const Answered plain = answer(prompts[i], tokens);
            truths.back().whole.insert(truths.back().whole.end(), plain.tokens.begin(), plain.tokens.end());
            plain_tokens += tokens;
        }
        for (size_t i = next++; i < ways.size() || all_tokens < wanted; i = next++) {
            const Way& way = ways[i % ways.size()];
            SpeculationOptions s;
            s.width = way.width, s.tree = way.tree, s.adaptive = false;
            std::mt19937 chance(static_cast<uint32_t>(i));
            for (uint32_t a = 0; a < (full ? 8 : 2); ++a) {
                const Truth& truth = truths[(i + a) % truths.size()];
                const Manner manner = manner_of(static_cast<uint32_t>(i) + a);
                solo.speculate(std::make_unique<TestDrafter>(
                                       way.width,
                                       [&](const std::vector<int32_t>& known, int32_t slot, int32_t choices) {
                                           return drafts(truth.whole, manner, known, slot, choices, chance);
                                       }),
                                   s);
                const Answered drafted = answer(truth.prompt, wasteful(manner) ? tokens / 6 : tokens - a);
                EXPECT_EQ(std::ssize(drafted.tokens), wasteful(manner) ? tokens / 6 : tokens - a);
                for (size_t t = 0; t < drafted.tokens.size(); ++t)
                    different += drafted.tokens[t] != truth.whole.at(truth.prompt.size() + t);
                all_tokens += std::ssize(drafted.tokens);
                accepted += drafted.speculation.accepted;
            }
            solo.speculate(nullptr, {});
            if (full && (i + 1) % 32 == 0) {
                fmt::print("{} {}: {} ways, {} tokens, {} different\n", GetParam().model, dtype_name(GetParam().kv),
                           i + 1, all_tokens.load(), different.load());
                std::fflush(stdout);
            }
        }
    };
    std::vector<std::thread> threads;
    for (int w = 0; w < test_jobs(); ++w) threads.emplace_back(work, static_cast<size_t>(w));
    for (std::thread& thread : threads) thread.join();
    fmt::print("{} {}: {} tokens of plain decoding, {} with drafts ({} of them drafted), {} different\n",
               GetParam().model, dtype_name(GetParam().kv), plain_tokens.load(), all_tokens.load(), accepted.load(),
               different.load());
    EXPECT_GE(all_tokens, wanted);
    EXPECT_EQ(different, 0);
    EXPECT_GT(accepted, all_tokens / 4);
}

}  // namespace
}  // namespace riptide::testing
