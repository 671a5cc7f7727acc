// The engine with the demo model's DFlash drafter.
#include "base/error.h"
#include "engine/speculation/dflash_drafter.h"
#include "tests/engine/engine_world.h"

namespace riptide::testing {
namespace {

std::string demo_drafter_path() { return source_dir() + "/models/demo/laguna-demo-dflash.gguf"; }

using Rounds = SpeculationOptions::Rounds;

EngineOptions drafting(int32_t width, int32_t tree, bool adaptive = false, Rounds rounds = Rounds::choose) {
    EngineOptions o = demo_options();
    o.speculation.drafter = demo_drafter_path();
    o.speculation.width = width, o.speculation.tree = tree, o.speculation.adaptive = adaptive;
    o.speculation.rounds = rounds;
    return o;
}

std::vector<int32_t> encoded(const Engine& engine, const std::string& text) {
    return engine.tokenizer()->encode(text, {.add_special = true});
}

/// Prompts with common beginnings, of very different lengths.
std::vector<Request> code_requests(const Engine& engine) {
    const std::string long_code =
        "import math\n\n\ndef area(radius):\n    return math.pi * radius ** 2\n\n\ndef volume(radius):\n"
        "    return 4 / 3 * math.pi * radius ** 3\n\n\nclass Stack:\n    def __init__(self):\n        self.items = "
        "[]\n\n"
        "    def push(self, item):\n        self.items.append(item)\n\n    def pop(self):\n        return "
        "self.items.pop()\n\n\n";
    const std::string starts[] = {"def fibonacci(n):\n",
                                  long_code + "def main():\n",
                                  long_code + "class Queue:\n",
                                  "def quicksort(values):\n    if len(values) <= 1:\n        return values\n",
                                  long_code + long_code + "def perimeter(radius):\n",
                                  "def fibonacci(n):\n    if n"};
    std::vector<Request> all;
    for (const std::string& text : starts) {
        Request r = continuation(encoded(engine, text), 48);
        const auto i = all.size();
        if (i % 3 == 1) r.sampling.temperature = 0.7, r.sampling.top_k = 20, r.sampling.seed = i;
        if (i == 3) r.sampling.repetition_penalty = 1.2;
        if (i == 4) r.sampling.logprobs = 1;
        all.push_back(r);
    }
    return all;
}

TEST(EngineDflash, in_a_crowd_each_gets_the_tokens_of_a_lone_run) {
    EngineOptions plain = demo_options();
    plain.prefix_cache = false;
    std::vector<Heard> truths;
    std::vector<Request> asked;
    {
        const auto engine = Engine::open(demo_path(), plain);
        asked = code_requests(*engine);
        for (const Request& r : asked) truths.push_back(ask(*engine, r));
    }
    for (const auto& [width, tree, adaptive, rounds] :
         {std::tuple(4, 0, false, Rounds::host), std::tuple(7, 12, false, Rounds::device),
          std::tuple(15, 0, true, Rounds::host), std::tuple(15, 0, true, Rounds::device)}) {
        if (kThreadSanitizer && tree == 0 && !adaptive) continue;
        EngineOptions o = drafting(width, tree, adaptive, rounds);
        o.prefix_cache = false;
        const auto engine = Engine::open(demo_path(), o);
        Listener listener;
        const int count = static_cast<int>(asked.size()) * 2;
        for (int i = 0; i < count; ++i) engine->submit(asked[static_cast<size_t>(i) % asked.size()], listener.sink(i));
        int64_t drafted = 0, accepted = 0;
        for (int i = 0; i < count; ++i) {
            const Heard heard = listener.answer(i);
            ASSERT_TRUE(heard.done) << heard.failed->message;
            const Heard& truth = truths[static_cast<size_t>(i) % truths.size()];
            EXPECT_EQ(heard.tokens, truth.tokens) << i;
            ASSERT_EQ(heard.sampled.size(), truth.sampled.size());
            for (size_t t = 0; t < heard.sampled.size(); ++t)
                EXPECT_EQ(heard.sampled[t].logprob, truth.sampled[t].logprob);
            drafted += heard.done->usage.drafted, accepted += heard.done->usage.accepted;
        }
        engine->drain();
        const EngineStats stats = engine->stats();
        EXPECT_EQ(stats.drafted_rows, drafted);
        EXPECT_EQ(stats.accepted_rows, accepted);
        if (rounds == Rounds::host) {
            EXPECT_EQ(stats.rounds, 0);
        }
        EXPECT_EQ(std::ssize(stats.draft_slots), std::min(width, 7)) << "it fills seven";
        if (adaptive) continue;
        EXPECT_GT(accepted, count * 10) << "the drafter knows what it drafts for";
        EXPECT_GT(stats.draft_slots[0].accepted, stats.draft_slots[0].reached / 4);
    }
}

/// One answer decodes in rounds of the device until another comes, and again when it is alone.
TEST(EngineDflash, rounds_end_where_others_come_and_begin_again_when_they_have_gone) {
    EngineOptions plain = demo_options();
    plain.prefix_cache = false;
    EngineOptions o = drafting(5, 0, false, Rounds::device);
    o.prefix_cache = false;
    const auto judge = Engine::open(demo_path(), plain), engine = Engine::open(demo_path(), o);
    Request long_one = continuation(encoded(*engine, "def fibonacci(n):\n"), 300);
    const Request short_one = continuation(encoded(*engine, "class Stack:\n    def push(self, item):\n"), 12);
    const Heard long_truth = ask(*judge, long_one), short_truth = ask(*judge, short_one);
    Listener listener;
    engine->submit(long_one, listener.sink(0));
    int64_t rounds = 0;
    for (int i = 1; i <= 4; ++i) {
        listener.wait(0, [&](const Heard& h) { return h.over() || std::ssize(h.tokens) >= 60 * i - 40; });
        const int64_t before = engine->stats().rounds;
        EXPECT_TRUE(i == 1 || before >= rounds);
        rounds = before;
        engine->submit(short_one, listener.sink(i));
        EXPECT_EQ(listener.answer(i).tokens, short_truth.tokens) << i;
    }
    EXPECT_EQ(listener.answer(0).tokens, long_truth.tokens);
    engine->drain();
    const EngineStats stats = engine->stats();
    EXPECT_GT(stats.rounds, 20);
    EXPECT_LT(stats.rounds, stats.steps);
}

/// Features come from the prompt's step, in parts beside decoding answers too.
class EngineDflashRounds : public ::testing::TestWithParam<Rounds> {};
INSTANTIATE_TEST_SUITE_P(All, EngineDflashRounds, ::testing::Values(Rounds::host, Rounds::device),
                         [](const auto& test) { return test.param == Rounds::host ? "host" : "device"; });

TEST_P(EngineDflashRounds, a_conversation_is_drafted_from_where_the_cache_has_it) {
    const auto plain = Engine::open(demo_path(), demo_options());
    const auto engine = Engine::open(demo_path(), drafting(5, 0, false, GetParam()));
    std::vector<int32_t> text = encoded(*engine, "def add(a, b):\n    return a + b\n\n\ndef subtract(a, b):\n");
    std::vector<int32_t> twin = text;
    for (int turn = 0; turn < 4; ++turn) {
        Request r = continuation(text, 40);
        r.session = "talk";
        const Heard truth = ask(*plain, r), heard = ask(*engine, r);
        EXPECT_EQ(heard.tokens, truth.tokens) << turn;
        EXPECT_EQ(heard.done->usage.cached > 0, turn > 0);
        EXPECT_EQ(heard.done->usage.cached, truth.done->usage.cached);
        EXPECT_GT(heard.done->usage.drafted, 20) << "turn " << turn << ": what the cache had, the drafter had too";
        EXPECT_GT(heard.done->usage.accepted, 0) << turn;
        text.insert(text.end(), heard.tokens.begin(), heard.tokens.end());
        const std::vector<int32_t> more = encoded(*engine, "\n\ndef multiply(a, b):\n");
        text.insert(text.end(), more.begin() + 1, more.end());
    }
    // Several answers to one prompt: the others restore what the first keeps.
    Request r = continuation(text, 30);
    r.n = 3;
    r.sampling.temperature = 0.8, r.sampling.seed = 5;
    Listener listener, truths;
    plain->submit(r, truths.sink(0, 3));
    engine->submit(r, listener.sink(0, 3));
    for (int i = 0; i < 3; ++i) {
        const Heard heard = listener.answer(0, i);
        ASSERT_TRUE(heard.done);
        EXPECT_EQ(heard.tokens, truths.answer(0, i).tokens) << i;
        EXPECT_GT(heard.done->usage.drafted, 10) << i;
    }
}

TEST(EngineDflash, what_the_drafter_does_not_know_is_not_drafted_from) {
    EngineOptions o = drafting(5, 0);
    o.max_running = 1;  // the drafter keeps one ended text
    const auto plain = Engine::open(demo_path(), demo_options());
    const auto engine = Engine::open(demo_path(), o);
    std::vector<int32_t> text = encoded(*engine, "def add(a, b):\n    return a + b\n\n\ndef subtract(a, b):\n");
    const Heard first = ask(*engine, continuation(text, 30));
    EXPECT_EQ(ask(*plain, continuation(text, 30)).tokens, first.tokens);
    EXPECT_GT(first.done->usage.drafted, 0);
    text.insert(text.end(), first.tokens.begin(), first.tokens.end());
    text.push_back(30);
    for (int other = 0; other < 2; ++other)
        ask(*engine, continuation(std::vector<int32_t>(static_cast<size_t>(30 + other), 40 + other), 20));
    const Heard cold = ask(*engine, continuation(text, 30));
    EXPECT_EQ(cold.tokens, ask(*plain, continuation(text, 30)).tokens);
    EXPECT_GT(cold.done->usage.cached, 0);
    EXPECT_EQ(cold.done->usage.drafted, 0) << "no layer has run for the prompt's beginning";
}

TEST(EngineDflash, weights_may_be_replaced) {
    const auto engine = Engine::open(demo_path(), drafting(5, 0));
    Request r = continuation(encoded(*engine, "def fibonacci(n):\n"), 40);
    const Heard before = ask(*engine, r);
    engine->reload(demo_path());
    const Heard after = ask(*engine, r);
    EXPECT_EQ(before.tokens, after.tokens);
    EXPECT_GT(before.done->usage.accepted, 0);
    EXPECT_GT(after.done->usage.accepted, 0);
    EXPECT_THROW(engine->reload(source_dir() + "/tests/fixtures/laguna_xs2/model.safetensors"), Error);
    const Heard again = ask(*engine, r);
    EXPECT_EQ(again.tokens, before.tokens);
    EXPECT_GT(again.done->usage.accepted, 0);
}

}  // namespace
}  // namespace riptide::testing
