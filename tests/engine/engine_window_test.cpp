// Engines with a window over full-attention layers: what they answer, keep, share and say.
#include <filesystem>
#include <thread>

#include "base/file.h"
#include "tests/engine/engine_world.h"
#include "tests/engine/solo.h"
#include "tests/engine/test_drafters.h"
#include "tests/models/fixture.h"

namespace riptide::testing {
namespace {

namespace fs = std::filesystem;

EngineOptions window_options(int32_t window) {
    EngineOptions o = demo_options();
    o.model.attention_window = window;
    return o;
}

std::string path_of(const std::string& name) {
    return name == "demo" ? demo_path() : fixture_path(name) + "/model.safetensors";
}

/// Tokens that repeat themselves, so that an n-gram drafter finds some; below 128, the fixtures' vocabulary.
std::vector<int32_t> recurring(int32_t seed, size_t count) {
    std::vector<int32_t> tokens;
    for (size_t i = 0; i < count; ++i) tokens.push_back(3 + (seed + static_cast<int32_t>(i * i % 37)) % 120);
    return tokens;
}

class EngineWindow : public ::testing::TestWithParam<std::string> {
  protected:
    static constexpr int32_t kWindow = 40;

    std::unique_ptr<Engine> open(EngineOptions o) const { return Engine::open(path_of(GetParam()), o); }
    /// What an engine says that has one request and keeps nothing.
    std::vector<int32_t> alone(const Request& request, int32_t window = kWindow) const {
        EngineOptions o = window_options(window);
        o.max_running = 1;
        o.prefix_cache = false;
        return ask(*open(o), request).tokens;
    }
};
// Windows beside windows, no page at all, beside recurrent state.
INSTANTIATE_TEST_SUITE_P(Models, EngineWindow, ::testing::Values("demo", "qwen3_tied", "qwen35_tied"), fixture_name);

TEST_P(EngineWindow, it_changes_what_follows_a_longer_text_and_is_named_there) {
    Request request = continuation(recurring(1, 200), 24), brief = continuation(recurring(1, 12), 8);
    request.hash_logits = brief.hash_logits = true;
    const auto engine = open(window_options(kWindow)), off = open(window_options(0));
    EXPECT_EQ(engine->info().model.attention_window, kWindow);
    const Heard cut = ask(*engine, request), whole = ask(*off, request);
    EXPECT_EQ(cut.done->attention_window, kWindow);
    EXPECT_EQ(whole.done->attention_window, 0);
    const Heard within = ask(*engine, brief);
    EXPECT_EQ(within.done->attention_window, 0) << "prompt and answer are within it";
    EXPECT_EQ(within.tokens, ask(*off, brief).tokens);
    if (test_gpu() == nullptr) {
        EXPECT_NE(cut.done->logits_hash, whole.done->logits_hash);
    }
}

TEST_P(EngineWindow, in_a_crowd_each_gets_the_tokens_of_a_lone_run) {
    EngineOptions o = window_options(kWindow);
    o.max_running = 3;
    const auto engine = open(o);
    Listener listener;
    std::vector<Request> all;
    for (int i = 0; i < 8; ++i) all.push_back(continuation(recurring(i, 90 + 17 * static_cast<size_t>(i)), 20));
    for (size_t i = 0; i < all.size(); ++i) engine->submit(all[i], listener.sink(static_cast<int>(i)));
    for (size_t i = 0; i < all.size(); ++i) EXPECT_EQ(listener.answer(static_cast<int>(i)).tokens, alone(all[i])) << i;
    const EngineStats stats = engine->stats();
    EXPECT_EQ(stats.free_pages, stats.pages) << "no layer has pages";
    EXPECT_GT(stats.checkpoints, 0);
}

TEST_P(EngineWindow, a_next_turn_from_the_cache_says_what_a_cold_one_says) {
    EngineOptions o = window_options(kWindow);
    o.checkpoint_every = 64;
    const auto engine = open(o);
    std::vector<int32_t> text = recurring(5, 150);
    for (int turn = 0; turn < 3; ++turn) {
        Request request = continuation(text, 16);
        request.deterministic = test_gpu() != nullptr;
        const Heard heard = ask(*engine, request);
        EXPECT_EQ(heard.tokens, alone(request)) << turn;
        if (turn > 0) {
            EXPECT_GT(heard.done->usage.cached, std::ssize(text) / 2);
        }
        text.insert(text.end(), heard.tokens.begin(), heard.tokens.end());
        const std::vector<int32_t> more = recurring(9 + turn, 50);
        text.insert(text.end(), more.begin(), more.end());
    }
}

TEST_P(EngineWindow, drafts_in_chains_and_trees_change_nothing) {
    SessionOptions o = window_options(kWindow);
    const Question question = greedily(recurring(3, 120), 60);
    Solo engine(open_checkpoint(path_of(GetParam())), o);
    const Answered plain = engine.answer(question);
    std::vector<int32_t> whole = question.prompt;
    whole.insert(whole.end(), plain.tokens.begin(), plain.tokens.end());
    for (const int32_t tree : {0, 24}) {
        SpeculationOptions drafts;
        drafts.width = 6, drafts.tree = tree, drafts.adaptive = false;
        const auto right = [](int32_t slot) { return slot % 4 == 3 ? 1 : 0; };  // the second choice: a tree's alone
        engine.speculate(std::make_shared<TestDrafter>(6, oracle(whole, engine.info().vocab_size, right)), drafts);
        engine.forget();
        const Answered drafted = engine.answer(question);
        EXPECT_EQ(drafted.tokens, plain.tokens) << tree;
        EXPECT_EQ(drafted.logits_hash, plain.logits_hash) << tree;
        EXPECT_LT(drafted.decode_steps, tree > 0 ? 15 : 30);
    }
}

TEST_P(EngineWindow, records_on_disk_are_one_windows) {
    std::string folder = ::testing::TempDir() + "/riptide-window-XXXXXX";
    ASSERT_NE(::mkdtemp(folder.data()), nullptr);
    const Request request = [&] {
        Request r = continuation(recurring(2, 300), 12);
        r.deterministic = true;
        return r;
    }();
    const auto cached = [&](int32_t window) {
        EngineOptions o = window_options(window);
        o.host_cache_bytes = 0;
        o.disk_cache = folder + "/tier";
        const Heard heard = ask(*open(o), request);
        EXPECT_EQ(heard.tokens, alone(request, window)) << window;
        return heard.done->usage.cached;
    };
    for (const int32_t window : {0, kWindow, 2 * kWindow}) EXPECT_EQ(cached(window), 0) << window;
    for (const int32_t window : {0, kWindow, 2 * kWindow}) EXPECT_GT(cached(window), 200) << window;
    EXPECT_GT(cached(1024), 200) << "as long as the context: what was computed without one";
    fs::remove_all(folder);
}

TEST(EngineWindowOptions, a_negative_one_is_refused) {
    try {
        Engine::open(demo_path(), window_options(-3));
        FAIL() << "nothing is wrong";
    } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::usage);
        EXPECT_STREQ(error.what(), "attention_window is -3, expected 0 to 2147483647");
    }
}

}  // namespace
}  // namespace riptide::testing
