// Drafts that are all right, all wrong, random or repeating: at every commit K/V and recurrent state are those that
// plain decoding has at that length. --full: over 4,096 tokens.
#include <thread>

#include "tests/engine/engine_world.h"
#include "tests/engine/solo.h"
#include "tests/engine/state_hash.h"
#include "tests/engine/test_drafters.h"
#include "tests/models/fixture.h"

namespace riptide::testing {
namespace {

/// Calls `seen` whenever a step is about to be drafted for: everything before it is committed then.
class WatchingDrafter final : public TestDrafter {
  public:
    WatchingDrafter(int32_t slots, Rule rule, std::function<void()> seen)
        : TestDrafter(slots, std::move(rule)), seen_(std::move(seen)) {}
    void propose(std::span<const DraftRequest> requests, std::span<Draft> out) override {
        seen_();
        TestDrafter::propose(requests, out);
    }

  private:
    std::function<void()> seen_;
};

class SpeculationState : public ::testing::TestWithParam<ModelAndKv> {};
std::vector<ModelAndKv> state_cases() {
    std::vector<ModelAndKv> all = {{"qwen35_tied", DType::f32}, {"qwen35_moe", DType::q8_0}};
    if (!kThreadSanitizer) all.insert(all.begin(), {{"demo", DType::f32}, {"demo", DType::q8_0}});
    return all;
}
INSTANTIATE_TEST_SUITE_P(All, SpeculationState, ::testing::ValuesIn(state_cases()), model_and_kv_name);

/// At every commit what a step may have changed (newest_hash), and now and then every page.
TEST_P(SpeculationState, at_every_commit_it_is_that_of_plain_decoding) {
    const int64_t count = full_counts() ? 4096 : 160, all_pages_every = full_counts() ? 64 : 1;
    const bool demo = GetParam().model == "demo";
    SessionOptions o;
    o.threads = 1;
    o.context = count + 256;
    o.k_dtype = o.v_dtype = GetParam().kv;
    o.chunk_rows = 300;
    o.page_rows = full_counts() ? 128 : 16;
    if (Gpu* gpu = test_gpu()) o.gpu = gpu->options();
    const auto open = [&] {
        return std::make_unique<Solo>(
            open_checkpoint(demo ? demo_path() : fixture_path(GetParam().model) + "/model.safetensors"), o);
    };
    const auto first = open();
    const int64_t vocab = first->info().vocab_size;
    std::vector<int32_t> prompt = {1};
    for (int32_t i = 0; i < 60; ++i) prompt.push_back((i * 37 + 11) % static_cast<int32_t>(vocab));
    const Question request = greedily(prompt, count);
    const Answered truth = first->answer(request);
    ASSERT_EQ(std::ssize(truth.tokens), count);
    std::vector<int32_t> whole = prompt;
    whole.insert(whole.end(), truth.tokens.begin(), truth.tokens.end());

    const auto run = [&](Solo& solo, int32_t width, int32_t tree, TestDrafter::Rule rule,
                         const std::function<void()>& seen) {
        SpeculationOptions s;
        s.width = width, s.tree = tree, s.adaptive = false;
        solo.speculate(std::make_shared<WatchingDrafter>(width, std::move(rule), seen), s);
        solo.forget();
        return solo.answer(request);
    };
    std::map<int64_t, uint64_t> plain;  // newest_hash by length
    const auto none = [](const auto&, int32_t, int32_t) { return std::vector<DraftToken>(); };
    const Answered watched =
        run(*first, 1, 0, none, [&] {
            const SequenceState& state = *first->loop().lone_state();
            plain[state.length()] = newest_hash(state);
        });
    ASSERT_EQ(watched.tokens, truth.tokens);
    ASSERT_EQ(std::ssize(plain), count - 1);
    std::vector<uint64_t> plain_pages;
    first->look_at_kept(prompt, watched, [&](const SequenceState& state) { plain_pages = page_hashes(state); });

    std::mt19937 random(3);
    struct Kind {
        const char* name;
        int32_t width, tree;
        TestDrafter::Rule rule;
        int64_t least, most;  // accepted drafts
    };
    const auto any = [](int64_t) { return INT64_MAX; };
    const std::vector<Kind> kinds = {
        {"all wrong, in trees", 4, 12, oracle(whole, vocab, [](int32_t) { return 99; }), 0, 0},
        {"all wrong", 7, 0, oracle(whole, vocab, [](int32_t) { return 9; }), 0, 0},
        {"random", 6, 10, random_drafts(5, vocab), 0, any(0)},
        {"repeating", 8, 0, repeating(vocab), 0, any(0)},
        {"right at times, in trees", 9, 40,
         oracle(whole, vocab, [&](int32_t) { return static_cast<int32_t>(random() % 4); }), count / 8, INT64_MAX},
        {"the last of each step is wrong", 5, 0, oracle(whole, vocab, [](int32_t slot) { return slot == 4 ? 1 : 0; }),
         count * 3 / 5, count * 4 / 5},
        {"all right, in trees", 7, 24, oracle(whole, vocab, [](int32_t) { return 0; }), count * 6 / 8, INT64_MAX},
        {"all right", 15, 0, oracle(whole, vocab, [](int32_t) { return 0; }), count * 14 / 16, INT64_MAX},
    };
    std::atomic<int64_t> commits = 0, pages_seen = 0;
    const auto check = [&](Solo& solo, const Kind& kind) {
        int64_t wrong = 0, looked = 0;
        const auto look_at_pages = [&](const SequenceState& state) {
            const std::vector<uint64_t> pages = page_hashes(state);
            wrong += pages.size() > plain_pages.size() || !std::equal(pages.begin(), pages.end(), plain_pages.begin());
            pages_seen += std::ssize(pages);
        };
        const auto start = std::chrono::steady_clock::now();
        const Answered drafted = run(solo, kind.width, kind.tree, kind.rule, [&] {
            const SequenceState& sequence = *solo.loop().lone_state();
            wrong += newest_hash(sequence) != plain.at(sequence.length());
            if (looked++ % all_pages_every == 0) look_at_pages(sequence);
        });
        const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
        solo.look_at_kept(prompt, drafted, look_at_pages);
        EXPECT_EQ(drafted.tokens, truth.tokens) << kind.name;
        EXPECT_EQ(drafted.logits_hash, truth.logits_hash) << kind.name;
        EXPECT_EQ(wrong, 0) << kind.name << ": of " << looked << " commits";
        EXPECT_EQ(looked, drafted.decode_steps) << kind.name;
        EXPECT_GE(drafted.speculation.accepted, kind.least) << kind.name;
        EXPECT_LE(drafted.speculation.accepted, kind.most) << kind.name;
        commits += looked;
        if (!full_counts()) return;
        fmt::print("{}: {} tokens, {} commits, {} wrong, {:.1f} s\n", kind.name, drafted.tokens.size(), looked, wrong,
                   seconds.count());
        std::fflush(stdout);
    };
    std::atomic<size_t> next = 0;
    const auto work = [&](Solo& solo) {
        for (size_t k = next++; k < kinds.size(); k = next++) check(solo, kinds[k]);
    };
    std::vector<std::thread> others;
    for (int w = 1; w < test_jobs(); ++w) others.emplace_back([&] { work(*open()); });
    work(*first);
    for (std::thread& other : others) other.join();
    fmt::print("{} tokens with each of {} drafters, {} commits and {} full pages compared\n", count, kinds.size(),
               commits.load(), pages_seen.load());
}

/// Random tokens in random trees, of which a random way is kept: for a hybrid, state is replayed, not truncated.
class RandomTrees : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(All, RandomTrees, ::testing::Values("qwen35_tied", "qwen35_odd", "qwen35_moe", "laguna_xs2"),
                         fixture_name);

TEST_P(RandomTrees, behind_each_commit_state_and_logits_are_those_of_plain_decoding) {
    const int trees = full_counts() ? 10'000 : 150;
    const Fixture fixture(GetParam());
    const auto session = fixture.session();  // its model
    const int64_t vocab = session->model().info().vocab_size;
    KvCacheOptions options;
    options.k_dtype = options.v_dtype = DType::f32;
    options.page_rows = 16;
    options.pages = 2 * 40;
    options.max_sequences = 2;
    options.max_step_rows = 64;
    ThreadPool threads(1);
    KvCache cache(session->model().state_specs(), options, session->gpu(), &threads);
    Runner runner(session->model(), cache, &threads);
    std::mt19937 random(17);
    const auto any = [&](int64_t n) { return static_cast<int32_t>(random() % static_cast<uint64_t>(n)); };
    const auto logits_of = [&](const Tensor& logits, int64_t row) {
        const std::vector<float> all = host_values(session->gpu(), logits);
        const auto at = all.begin() + row * vocab;
        return std::vector<float>(at, at + vocab);
    };
    std::optional<SequenceState> kept, plain;
    int64_t rows = 0, fed = 0;
    for (int round = 0; round < trees; ++round) {
        if (!kept || kept->length() > 500) {
            kept.reset(), plain.reset();
            kept.emplace(cache), plain.emplace(cache);
        }
        std::vector<int32_t> tokens, parents, path;
        const int32_t n = 1 + any(round % 10 == 0 ? 64 : 16), deep = any(10);
        for (int32_t i = 0; i < n; ++i) {
            tokens.push_back(any(vocab));
            parents.push_back(i == 0 ? -1 : any(10) < deep ? i - 1 : any(i));
        }
        for (int32_t node = any(n); node >= 0; node = parents[static_cast<size_t>(node)])
            path.insert(path.begin(), node);
        if (round % 7 == 0) path.resize(path.size() - static_cast<size_t>(any(std::ssize(path))));
        const StepItem tree{&*kept, tokens, parents, StepRows::Logits::all, {}};
        const std::vector<float> seen = logits_of(runner.step({&tree, 1}), path.back());
        kept->commit(path);
        std::vector<float> expected;
        for (const int32_t node : path) {
            const StepItem one{&*plain, {&tokens[static_cast<size_t>(node)], 1}, {}, StepRows::Logits::all, {}};
            const Tensor logits = runner.step({&one, 1});
            if (node == path.back()) expected = logits_of(logits, 0);
            plain->commit_prefix(1);
        }
        ASSERT_EQ(kept->length(), plain->length());
        ASSERT_EQ(seen, expected) << "tree " << round;
        ASSERT_EQ(state_hash(*kept), state_hash(*plain)) << "tree " << round << " of " << n;
        rows += n, fed += std::ssize(path);
    }
    fmt::print("{}: {} trees of {} rows, {} of them kept\n", GetParam(), trees, rows, fed);
}

}  // namespace
}  // namespace riptide::testing
