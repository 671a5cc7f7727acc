// Greedy answers in crowds of the Engine with guesses of every width and every size of tree, by drafters that are
// right, wrong, random or repeat themselves: none may differ from plain decoding of that answer alone. --full: 200,000
// tokens with each type of K/V, a million in all.
#include <random>
#include <thread>

#include "tests/engine/engine_world.h"
#include "tests/engine/test_drafters.h"
#include "tests/models/fixture.h"

namespace riptide::testing {
namespace {

struct Case {
    std::string model;
    DType kv;
};

std::string case_name(const ::testing::TestParamInfo<Case>& info) {
    return info.param.model + "_" + dtype_name(info.param.kv);
}

/// An answer of plain decoding, alone. The prompt's first two tokens are no other's.
struct Truth {
    std::vector<int32_t> prompt, whole;
};

/// A way to guess; `name` for messages.
struct Way {
    int32_t width = 1, tree = 0, running = 1;
};

/// What a drafter does for an answer.
enum class Manner { right, often_right, second, random, repeating, wrong };

class SpeculationCrowd : public ::testing::TestWithParam<Case> {
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
        int64_t answers = 0, tokens = 0, different = 0, accepted = 0, drafted = 0;
        void add(const Tally& other) {
            answers += other.answers, tokens += other.tokens, different += other.different;
            accepted += other.accepted, drafted += other.drafted;
        }
    };
    /// What a drafter of some manner says for a slot behind `tokens`.
    std::vector<Guess> guesses(const std::vector<int32_t>& whole, Manner manner, const std::vector<int32_t>& tokens,
                               int32_t slot, int32_t choices, std::mt19937& chance) const {
        const size_t at = tokens.size() + static_cast<size_t>(slot);
        const int32_t truth = at < whole.size() ? whole[at] : 0;
        const auto dice = [&](int64_t n) { return static_cast<int32_t>(chance() % static_cast<uint64_t>(n)); };
        switch (manner) {
            case Manner::right:
                return guesses_with(truth, 0, choices, vocab_);
            case Manner::often_right:
                return guesses_with(truth, dice(8) == 0 ? 1 : 0, choices, vocab_);
            case Manner::second:
                return guesses_with(truth, dice(2), choices, vocab_);
            case Manner::random:
                return guesses_with(dice(vocab_), 0, std::min(dice(4), choices), vocab_);
            case Manner::repeating:
                return guesses_with(tokens.back(), 0, choices, vocab_);
            case Manner::wrong:
                break;
        }
        return guesses_with(truth, choices, choices, vocab_);
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
    /// Each width and each size of tree once.
    static std::vector<Way> all_ways() {
        std::vector<Way> ways;
        constexpr int32_t kTogether[] = {16, 5, 12, 2, 8, 1};
        for (int32_t tree = 0; tree <= 64; ++tree) {
            const int32_t running = kTogether[static_cast<size_t>(tree) % std::size(kTogether)];
            ways.push_back({1 + tree % 15, 0, running});
            if (tree > 0) ways.push_back({1 + tree * 7 % 15, tree, running});
        }
        if (!full_counts()) {  // some of them
            std::mt19937 random(5);
            std::shuffle(ways.begin(), ways.end(), random);
            ways.resize(16);
        }
        return ways;
    }

    /// Answers of a crowd with guesses, compared token by token.
    Tally crowd(const std::vector<Truth>& truths, const Way& way, int32_t answers, uint32_t seed) const {
        std::mt19937 random(seed);
        std::map<std::pair<int32_t, int32_t>, std::pair<size_t, Manner>> who;  // by a prompt's first two tokens
        std::vector<std::pair<size_t, int64_t>> asked;
        for (int32_t i = 0; i < answers; ++i) {
            const size_t which = (random() % truths.size() + static_cast<size_t>(i)) % truths.size();
            const Truth& t = truths[which];
            const auto key = std::pair(t.prompt[0], t.prompt[1]);
            if (who.contains(key)) continue;
            const Manner manner = manner_of(seed + static_cast<uint32_t>(i));
            who[key] = {which, manner};
            const int64_t all = std::ssize(t.whole) - std::ssize(t.prompt);
            asked.emplace_back(which, wasteful(manner) ? all / 6 : all - static_cast<int64_t>(random() % 10));
        }
        EngineOptions o = options(way.running);
        o.speculation.width = way.width, o.speculation.tree = way.tree, o.speculation.adaptive = false;
        o.speculation.make = [&] {
            return std::make_unique<TestDrafter>(
                way.width, [&, chance = std::mt19937(seed)](const std::vector<int32_t>& tokens, int32_t slot,
                                                            int32_t choices) mutable {
                    const auto [which, manner] = who.at({tokens[0], tokens[1]});
                    return guesses(truths[which].whole, manner, tokens, slot, choices, chance);
                });
        };
        Tally tally;
        const auto engine = Engine::open(path(), o);
        Listener listener;
        for (size_t i = 0; i < asked.size(); ++i)
            engine->submit(continuation(truths[asked[i].first].prompt, asked[i].second),
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
        EXPECT_EQ(tally.different, 0) << "width " << way.width << ", tree " << way.tree << ", " << way.running
                                      << " at a time, seed " << seed;
        tally.accepted = engine->stats().accepted_rows;
        tally.drafted = engine->stats().drafted_rows;
        return tally;
    }

    int64_t vocab_ = 0;
};

INSTANTIATE_TEST_SUITE_P(All, SpeculationCrowd,
                         ::testing::Values(Case{"demo", DType::f32}, Case{"demo", DType::f16},
                                           Case{"demo", DType::f8_e4m3}, Case{"demo", DType::q8_0},
                                           Case{"demo", DType::q4_0}, Case{"qwen35_tied", DType::f32},
                                           Case{"qwen35_moe", DType::q8_0}),
                         case_name);

TEST_P(SpeculationCrowd, every_width_and_tree_says_what_each_says_alone) {
    const bool full = full_counts(), demo = GetParam().model == "demo";
    const int64_t wanted = !full ? 2'000 : demo ? 200'000 : 500'000;
    const int workers = test_jobs();  // each with engines of its own
    {
        const auto checkpoint = open_checkpoint(path());
        vocab_ = load_model(*checkpoint)->info().vocab_size;
    }
    const std::vector<std::vector<int32_t>> prompts = make_prompts(full ? 64 : 12);
    const int64_t tokens = full ? 220 : 60;
    std::vector<std::vector<Truth>> parts(static_cast<size_t>(workers));
    std::vector<std::thread> threads;
    for (size_t w = 0; w < parts.size(); ++w)
        threads.emplace_back([&, w] {
            const size_t begin = prompts.size() * w / parts.size(), end = prompts.size() * (w + 1) / parts.size();
            parts[w] = plain(std::span(prompts).subspan(begin, end - begin), tokens);
        });
    for (std::thread& thread : threads) thread.join();
    threads.clear();
    std::vector<Truth> truths;
    for (const std::vector<Truth>& part : parts) truths.insert(truths.end(), part.begin(), part.end());

    const std::vector<Way> ways = all_ways();  // and again until there are enough tokens
    std::atomic<size_t> next = 0;
    std::mutex mutex;
    Tally all;
    std::atomic<bool> enough = false;
    const auto work = [&] {
        for (size_t i = next++; (i < ways.size() || !enough) && !HasFatalFailure(); i = next++) {
            const Way& way = ways[i % ways.size()];
            // Chains feed few rows for a token, trees many.
            const int32_t answers = !full ? 4 : way.tree == 0 ? 14 : 3 + 64 / (way.tree + 6);
            const Tally tally = crowd(truths, way, answers, static_cast<uint32_t>(i));
            const std::lock_guard lock(mutex);
            all.add(tally);
            enough = all.tokens >= wanted;
            if (full && (i + 1) % 16 == 0) {
                fmt::print("{} {}: {} ways, {} tokens, {} different\n", GetParam().model, dtype_name(GetParam().kv),
                           i + 1, all.tokens, all.different);
                std::fflush(stdout);
            }
        }
    };
    for (int w = 0; w < workers; ++w) threads.emplace_back(work);
    for (std::thread& thread : threads) thread.join();
    fmt::print(
        "{} {}: {} answers, {} tokens of plain decoding, {} with guesses ({} of {} guesses right), {} "
        "different\n",
        GetParam().model, dtype_name(GetParam().kv), all.answers, static_cast<int64_t>(truths.size()) * tokens,
        all.tokens, all.accepted, all.drafted, all.different);
    EXPECT_GE(all.tokens, wanted);
    EXPECT_EQ(all.different, 0);
    EXPECT_GT(all.accepted, all.tokens / 4);
    EXPECT_GT(all.drafted, all.accepted);
}

/// A session has a step of one sequence recorded for each number of rows, and on a GPU draws for all rows at once.
TEST_P(SpeculationCrowd, in_a_session_every_width_and_tree_says_what_plain_decoding_says) {
    const bool full = full_counts();
    const int64_t wanted = !full ? 1'000 : GetParam().model == "demo" ? 200'000 : 500'000, tokens = full ? 220 : 60;
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
        const auto session = Session::open(path(), o);
        const auto answer = [&](const std::vector<int32_t>& prompt, int64_t most) {
            GenerateRequest r;
            r.prompt = prompt;
            r.sampling.temperature = 0;
            r.sampling.max_tokens = most;
            session->clear();
            return session->generate(r);
        };
        std::vector<Truth> truths;  // every worker has answers of its own
        for (size_t i = worker; i < prompts.size(); i += static_cast<size_t>(test_jobs())) {
            truths.push_back({prompts[i], prompts[i]});
            const GenerationResult plain = answer(prompts[i], tokens);
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
                session->speculate(std::make_unique<TestDrafter>(
                                       way.width,
                                       [&](const std::vector<int32_t>& known, int32_t slot, int32_t choices) {
                                           return guesses(truth.whole, manner, known, slot, choices, chance);
                                       }),
                                   s);
                const GenerationResult drafted = answer(truth.prompt, wasteful(manner) ? tokens / 6 : tokens - a);
                EXPECT_EQ(std::ssize(drafted.tokens), wasteful(manner) ? tokens / 6 : tokens - a);
                for (size_t t = 0; t < drafted.tokens.size(); ++t)
                    different += drafted.tokens[t] != truth.whole.at(truth.prompt.size() + t);
                all_tokens += std::ssize(drafted.tokens);
                accepted += drafted.speculation.accepted;
            }
            session->speculate(nullptr, {});
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
    fmt::print("{} {}: {} tokens of plain decoding, {} with guesses ({} of them guessed), {} different\n",
               GetParam().model, dtype_name(GetParam().kv), plain_tokens.load(), all_tokens.load(), accepted.load(),
               different.load());
    EXPECT_GE(all_tokens, wanted);
    EXPECT_EQ(different, 0);
    EXPECT_GT(accepted, all_tokens / 4);
}

}  // namespace
}  // namespace riptide::testing
