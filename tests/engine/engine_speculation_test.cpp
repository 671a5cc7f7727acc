// The engine with drafters: drafts in a crowd change no answer.
#include <random>

#include "tests/engine/engine_world.h"
#include "tests/engine/fake_model.h"
#include "tests/engine/loop_world.h"
#include "tests/engine/test_drafters.h"

namespace riptide::testing {
namespace {

/// Right about half of the time for the fake model, somewhere among the choices; knows nothing of the prompts.
TestDrafter::Rule fake_drafts(uint32_t seed) {
    return [random = std::mt19937(seed), seen = std::vector<int32_t>(), drafted = std::vector<int32_t>()](
               const std::vector<int32_t>& tokens, int32_t slot, int32_t choices) mutable {
        if (slot == 0) seen = tokens;
        const int32_t truth = FakeModel::next(seen);
        seen.push_back(truth);
        return drafts_with(truth, static_cast<int32_t>(random() % 3), choices, FakeModel::kVocab);
    };
}

SpeculationOptions with(int32_t width, int32_t tree, bool adaptive, std::function<TestDrafter::Rule()> rule) {
    SpeculationOptions o;
    o.width = width, o.tree = tree, o.adaptive = adaptive;
    o.make = [=] { return std::make_unique<TestDrafter>(width, rule()); };
    return o;
}

/// A crowd over few pages, with shared prompts, edits, priorities, cancellations and preemption.
void crowd(const SpeculationOptions& speculation, int requests, EngineStats& stats) {
    EngineOptions o;
    o.threads = 1;
    o.context = 256;
    o.kv_tokens = 512;
    o.k_dtype = o.v_dtype = DType::f32;
    o.page_rows = 4;
    o.chunk_rows = 24;
    o.max_running = 6;
    o.checkpoint_every = 32;
    o.speculation = speculation;
    Engine engine(std::make_unique<FakeModel>(), o);
    std::mt19937_64 rng(3);
    const auto pick = [&](size_t n) { return static_cast<size_t>(rng() % n); };
    Listener listener;
    std::vector<std::vector<int32_t>> prompts(static_cast<size_t>(requests));
    std::vector<int64_t> most(prompts.size());
    std::vector<char> cancelled(prompts.size(), 0);
    std::vector<int32_t> past;
    for (int i = 0; i < requests; ++i) {
        const auto at = static_cast<size_t>(i);
        if (past.size() > 90 || pick(4) == 0) past.clear();
        for (size_t n = 1 + pick(20); n > 0; --n) past.push_back(static_cast<int32_t>(1 + pick(FakeModel::kVocab - 1)));
        prompts[at] = past;
        most[at] = static_cast<int64_t>(1 + pick(40));
        Request r = continuation(past, most[at]);
        r.sampling.stop_ids = {FakeModel::kEnd};
        r.priority = static_cast<int32_t>(pick(3));
        if (pick(4) == 0) r.sampling.logprobs = 1;
        const RequestId id = engine.submit(std::move(r), listener.sink(i));
        if (pick(20) == 0) cancelled[at] = 1, engine.cancel(id);
        const std::vector<int32_t> said = FakeModel::answer(past, most[at]);
        past.insert(past.end(), said.begin(), said.end());
        if (i < 30) continue;
        listener.wait(i - 30, [](const Heard& h) { return h.over(); });
    }
    for (int i = 0; i < requests; ++i) {
        const auto at = static_cast<size_t>(i);
        const Heard heard = listener.answer(i);
        ASSERT_TRUE(heard.done) << heard.failed->message;
        std::vector<int32_t> alone = FakeModel::answer(prompts[at], most[at]);
        if (cancelled[at] != 0 && heard.done->reason == FinishReason::cancelled)
            alone.resize(std::min(alone.size(), heard.tokens.size()));
        ASSERT_EQ(heard.tokens, alone) << "request " << i;
    }
    engine.drain();
    stats = engine.stats();
    EXPECT_EQ(stats.failed, 0);
}

TEST(EngineSpeculation, in_a_crowd_each_gets_the_tokens_of_a_lone_run) {
    RT_CPU_ONLY("the fake model is host code");
    const int requests = full_counts() ? 4000 : 250;
    EngineStats stats;
    for (const int32_t tree : {0, 12}) {
        crowd(with(5, tree, false, [] { return fake_drafts(1); }), requests, stats);
        EXPECT_GT(stats.drafted_rows, requests);
        EXPECT_GT(stats.accepted_rows, requests / 4);
        EXPECT_GT(stats.preempted, 0);
    }
    crowd(with(7, 20, false, [] { return random_drafts(2, FakeModel::kVocab); }), requests, stats);
    EXPECT_GT(stats.drafted_rows, requests);
    crowd(with(6, 0, false, [] { return repeating(FakeModel::kVocab); }), requests, stats);
    crowd(with(6, 16, true, [] { return fake_drafts(4); }), requests, stats);
    SpeculationOptions ngram;
    ngram.drafter = "ngram";
    crowd(ngram, requests, stats);
}

TEST(EngineSpeculation, the_demo_model_says_the_same_with_drafts) {
    EngineOptions o = demo_options();
    o.prefix_cache = false;
    std::vector<Request> requests;
    for (int i = 0; i < 6; ++i) {
        Request r = continuation(std::vector<int32_t>(static_cast<size_t>(3 + 5 * i), 20 + i), 40);
        if (i % 2 == 1) r.sampling.temperature = 0.7, r.sampling.top_k = 20, r.sampling.seed = static_cast<uint64_t>(i);
        if (i == 3) r.sampling.repetition_penalty = 1.2;
        if (i == 4) r.sampling.logprobs = 1;
        requests.push_back(r);
    }
    std::vector<Heard> truths;
    {
        const auto engine = Engine::open(demo_path(), o);
        for (const Request& r : requests) truths.push_back(ask(*engine, r));
    }
    for (const int32_t tree : {0, 10}) {
        // Each answer's truth is known by the first tokens of its prompt.
        const auto rule = [&] {
            return [&, slots = std::vector<TestDrafter::Rule>()](const std::vector<int32_t>& tokens, int32_t slot,
                                                                 int32_t choices) {
                const auto which = static_cast<size_t>(tokens[0] - 20);
                std::vector<int32_t> whole(3 + 5 * which, tokens[0]);
                whole.insert(whole.end(), truths[which].tokens.begin(), truths[which].tokens.end());
                return oracle(whole, 8192, [](int32_t s) { return s == 2 ? 1 : 0; })(tokens, slot, choices);
            };
        };
        o.speculation = with(5, tree, false, rule);
        const auto engine = Engine::open(demo_path(), o);
        Listener listener;
        // First those that a device can draw for, drafts included; then with some that need the host beside them.
        for (const bool all : {false, true}) {
            const auto asked = [all](int i) { return all || (i != 3 && i != 4); };
            const int first = all ? 0 : 6;
            for (int i = 0; i < 6; ++i)
                if (asked(i)) engine->submit(requests[static_cast<size_t>(i)], listener.sink(first + i));
            for (int i = 0; i < 6; ++i) {
                if (!asked(i)) continue;
                const Heard heard = listener.answer(first + i);
                ASSERT_TRUE(heard.done);
                const Heard& truth = truths[static_cast<size_t>(i)];
                EXPECT_EQ(heard.tokens, truth.tokens) << i;
                EXPECT_EQ(heard.text, truth.text) << i;
                ASSERT_EQ(heard.sampled.size(), truth.sampled.size());
                for (size_t t = 0; t < heard.sampled.size(); ++t)
                    EXPECT_EQ(heard.sampled[t].logprob, truth.sampled[t].logprob);
            }
        }
        EXPECT_GT(engine->stats().accepted_rows, 100);
    }
}

/// Drafts that are sometimes right and seldom pay: now they are checked, now the engine rests from them, and one step
/// may bring what makes it rest.
TEST(EngineSpeculation, each_step_of_an_answer_is_counted_once) {
    int64_t drafted = 0, rested = 0;
    for (const int32_t tree : {0, 12})
        for (uint32_t seed = 1; seed <= 6; ++seed) {
            LoopWorld world;
            SlowModel& model = world.model();
            model.decode_us = 1;
            std::mt19937 random(seed);
            model.on_layer = [&](Family family, int64_t l, const Batch& batch) {
                if (family == Family::decode && l == 0)
                    world.now_us += batch.rows() * static_cast<int64_t>(3 + random() % 8);
            };
            const SpeculationOptions o = with(5, tree, true, [&] { return fake_drafts(seed); });
            auto made = std::make_unique<Speculator>(o.make(), o);
            const Speculator& speculator = *made;
            world.loop.speculate(std::move(made));
            const RequestId id = world.ask(LoopWorld::prompt(8, 300), 300);
            world.run();
            const Heard heard = world.heard(id);
            const Usage& usage = heard.done->usage;
            EXPECT_EQ(usage.completion, 300);
            EXPECT_EQ(speculator.stats().steps, usage.steps) << "tree " << tree << ", seed " << seed;
            EXPECT_EQ(speculator.stats().drafted, usage.drafted);
            EXPECT_EQ(speculator.stats().accepted, usage.accepted);
            drafted += usage.drafted;
            rested += usage.steps - usage.drafted;
        }
    EXPECT_GT(drafted, 100);
    EXPECT_GT(rested, 100);
}

}  // namespace
}  // namespace riptide::testing
