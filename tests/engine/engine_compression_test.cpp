// Compressed prompts through the engine: the scorer's thread, the answers, who gets the whole prompt.
#include <random>
#include <thread>

#include "base/error.h"
#include "engine/compression/compressor.h"
#include "engine/prompt/model_text.h"
#include "tests/engine/engine_world.h"
#include "tests/engine/scorer_gate.h"

namespace riptide::testing {
namespace {

EngineOptions options_with(Gate& gate, CompressMode mode = CompressMode::always) {
    EngineOptions o = demo_options();
    o.scorer = gate.scorer();
    o.compression = {.mode = mode, .keep = 0.2, .least = 0, .above = 300};
    return o;
}

TEST(EngineCompression, an_answer_is_that_to_the_kept_tokens) {
    Gate gate;
    Engine engine(open_checkpoint(demo_path()), options_with(gate));
    const Heard heard = ask(engine, chat(short_pump_log(60) + "What is 12 plus 30?", 12));
    ASSERT_TRUE(heard.done);
    const CompressionReport& report = heard.done->compression;
    EXPECT_EQ(gate.calls, 1);
    EXPECT_GT(report.original, 600);
    EXPECT_EQ(heard.done->usage.prompt, report.kept);
    EXPECT_LE(report.kept, report.budget);
    EXPECT_GT(report.scored, 0);

    const auto checkpoint = open_checkpoint(demo_path());
    const ModelText text(*checkpoint);
    const EncodedPrompt prompt = text.encode(chat(short_pump_log(60) + "What is 12 plus 30?").prompt);
    const auto parts = text.parts(prompt);
    Gate other;
    Compressor compressor(*text.tokenizer(), text.fingerprint(), other.scorer());
    const auto plan = compressor.plan({prompt.tokens, parts, "", true}, options_with(gate).compression);
    ASSERT_TRUE(compressor.choose(*plan));
    Request plain;
    plain.prompt = kept_tokens(*plan);
    plain.sampling.temperature = 0;
    plain.sampling.max_tokens = 12;
    plain.compression.mode = CompressMode::off;
    const Heard alone = ask(engine, plain);
    EXPECT_EQ(alone.done->compression.original, 0);
    EXPECT_EQ(alone.done->usage.prompt, report.kept);
    EXPECT_EQ(alone.tokens, heard.tokens);
    const EngineStats stats = engine.stats();
    EXPECT_EQ(stats.compressed, 1);
    EXPECT_EQ(stats.dropped_tokens, report.original - report.kept);
    EXPECT_EQ(stats.scored_tokens, report.scored);
    EXPECT_EQ(stats.scoring, 0);
}

TEST(EngineCompression, the_next_turn_finds_the_kept_tokens_in_the_prefix_cache) {
    Gate gate;
    Engine engine(open_checkpoint(demo_path()), options_with(gate));
    Request request = chat(short_pump_log(60) + "What is 12 plus 30?", 12);
    const Heard first = ask(engine, request);
    auto& prompt = std::get<ChatPrompt>(request.prompt);
    prompt.messages.push_back({{"role", "assistant"}, {"content", first.text}});
    prompt.messages.push_back({{"role", "user"}, {"content", "And 5 more?"}});
    const Heard second = ask(engine, request);
    EXPECT_EQ(gate.calls, 1) << "nothing new to score";
    EXPECT_GT(second.done->compression.remembered, 0);
    EXPECT_GE(second.done->usage.cached, first.done->usage.prompt - 16) << second.done->cache_note;
}

TEST(EngineCompression, original_positions_are_another_answer_and_another_entry_of_the_cache) {
    Gate gate;
    const auto at = [&](KeptPositions positions) {
        Request request = chat(short_pump_log(60) + "What is 12 plus 30?", 12);
        request.compression.mode = CompressMode::always;
        request.compression.positions = positions;
        request.deterministic = true;  // the same bits on a hit and on a miss
        return request;
    };
    const auto alone = [&](const Request& request) {
        Engine engine(open_checkpoint(demo_path()), options_with(gate));
        return ask(engine, request);
    };
    const Heard original = alone(at(KeptPositions::original)), compact = alone(at(KeptPositions::compact));
    ASSERT_TRUE(original.done && compact.done);
    EXPECT_EQ(original.done->usage.prompt, compact.done->usage.prompt);

    Engine engine(open_checkpoint(demo_path()), options_with(gate));
    int64_t differ = 0;
    for (const KeptPositions positions : {KeptPositions::compact, KeptPositions::original, KeptPositions::compact,
                                          KeptPositions::original, KeptPositions::original}) {
        const bool is_original = positions == KeptPositions::original;
        const Heard heard = ask(engine, at(positions));
        EXPECT_EQ(heard.tokens, (is_original ? original : compact).tokens);
        differ += heard.done->usage.cached < heard.done->usage.prompt - 64;
    }
    EXPECT_EQ(differ, 2) << "each kind computes its prompt once";

    const auto checkpoint = open_checkpoint(demo_path());
    const ModelText text(*checkpoint);
    const EncodedPrompt prompt = text.encode(std::get<ChatPrompt>(at(KeptPositions::original).prompt));
    Compressor compressor(*text.tokenizer(), text.fingerprint(), gate.scorer());
    CompressionOptions options = options_with(gate).compression;
    options.positions = KeptPositions::original;
    const auto plan = compressor.plan({prompt.tokens, text.parts(prompt), "", false}, options);
    ASSERT_TRUE(compressor.choose(*plan));
    const ModelInfo model = engine.info().model;
    EXPECT_NE(kept_gaps(*plan, model.vocab_size, model.max_position_embeddings), nullptr);
    EXPECT_EQ(kept_gaps(*plan, model.vocab_size, std::ssize(prompt.tokens) - 1), nullptr) << "too few positions";
}

TEST(EngineCompression, the_next_turn_finds_what_stands_at_original_positions_too) {
    Gate gate;
    EngineOptions o = options_with(gate);
    o.compression.positions = KeptPositions::original;
    Engine engine(open_checkpoint(demo_path()), o);
    Request request = chat(short_pump_log(60) + "What is 12 plus 30?", 12);
    const Heard first = ask(engine, request);
    auto& prompt = std::get<ChatPrompt>(request.prompt);
    prompt.messages.push_back({{"role", "assistant"}, {"content", first.text}});
    prompt.messages.push_back({{"role", "user"}, {"content", "And 5 more?"}});
    const Heard second = ask(engine, request);
    EXPECT_GE(second.done->usage.cached, first.done->usage.prompt - 16) << second.done->cache_note;
}

TEST(EngineCompression, scoring_holds_nobody_up_and_can_be_cancelled) {
    Gate gate;
    Engine engine(open_checkpoint(demo_path()), options_with(gate));
    Listener listener;
    gate.close();
    Request slow = chat(short_pump_log(60), 8), behind = chat(short_pump_log(70), 8);
    slow.n = 2;
    const RequestId inside = engine.submit(slow, listener.sink(0, 2));
    const RequestId queued = engine.submit(behind, listener.sink(1));
    gate.wait_for_call();
    EXPECT_EQ(ask(engine, chat("What is 12 plus 30?", 8)).done->reason, FinishReason::length) << "others go on";
    EXPECT_EQ(engine.stats().scoring, 2);  // now also who asked before that one has reached the queue
    EXPECT_EQ(engine.stats().waiting, 3);
    for (const RequestId id : {inside, queued}) engine.cancel(id);
    for (const auto& [key, index] : {std::pair{0, 0}, {0, 1}, {1, 0}}) {
        const Heard heard = listener.answer(key, index);  // though the scorer is still busy
        ASSERT_TRUE(heard.done);
        EXPECT_EQ(heard.done->reason, FinishReason::cancelled);
    }
    EXPECT_EQ(engine.stats().scoring, 0);
    EXPECT_EQ(engine.stats().waiting, 0);
    gate.open();
    EXPECT_TRUE(ask(engine, chat(short_pump_log(80), 4)).done);
    engine.drain();
    EXPECT_EQ(engine.stats().cancelled, 3);
}

TEST(EngineCompression, a_drain_waits_for_the_scorer_and_the_end_does_not_wait_for_answers) {
    Gate gate;
    Listener listener;
    {
        Engine engine(open_checkpoint(demo_path()), options_with(gate));
        gate.close();
        engine.submit(chat(short_pump_log(60), 4), listener.sink(0));
        gate.wait_for_call();
        std::thread opener([&] { gate.open(); });
        engine.drain();
        EXPECT_TRUE(listener.answer(0).done);
        opener.join();
        engine.resume();
        gate.close();
        engine.submit(chat(short_pump_log(61), 4), listener.sink(1));
        gate.wait_for_call();
        opener = std::thread([&] {
            listener.answer(1);  // while the scorer is still inside
            gate.open();
        });
        opener.detach();
    }
    EXPECT_EQ(listener.answer(1).done->reason, FinishReason::cancelled);
}

TEST(EngineCompression, a_scorer_that_fails_fails_that_request_alone) {
    Gate gate;
    Engine engine(open_checkpoint(demo_path()), options_with(gate));
    gate.broken = true;
    const Heard heard = ask(engine, chat(short_pump_log(60), 4));
    ASSERT_TRUE(heard.failed);
    EXPECT_NE(heard.failed->message.find("the scorer is broken"), std::string::npos);
    gate.broken = false;
    EXPECT_TRUE(ask(engine, chat(short_pump_log(60), 4)).done);
    EXPECT_EQ(engine.stats().failed, 1);
    EXPECT_EQ(engine.stats().waiting, 0);
}

TEST(EngineCompression, prompts_beyond_the_context_fit_once_they_are_short) {
    Gate gate;
    Engine engine(open_checkpoint(demo_path()), options_with(gate));
    Request request = chat(short_pump_log(200), 4);
    const Heard heard = ask(engine, request);
    ASSERT_TRUE(heard.done);
    EXPECT_GT(heard.done->compression.original, 1024);
    request.compression.keep_tokens = 2000;
    EXPECT_THROW(engine.submit(request, [](const Event&) {}), PromptTooLong);
    request.compression = {.mode = CompressMode::off, .keep = {}, .keep_tokens = {}, .above = {}, .positions = {}};
    EXPECT_THROW(engine.submit(request, [](const Event&) {}), PromptTooLong);
}

TEST(EngineCompression, whoever_asks_for_exactness_gets_the_whole_prompt) {
    Gate gate;
    Engine engine(open_checkpoint(demo_path()), options_with(gate, CompressMode::automatic));
    const auto original = [&](const Request& request) { return ask(engine, request).done->compression.original; };
    const Request base = chat(short_pump_log(40), 4), brief = chat(short_pump_log(10), 4);
    EXPECT_GT(original(base), 0);
    EXPECT_EQ(original(brief), 0) << "below the threshold";
    Request request = base;
    request.deterministic = true;
    EXPECT_EQ(original(request), 0);
    request.compression.mode = CompressMode::always;
    EXPECT_GT(original(request), 0);
    const int calls = gate.calls;
    EXPECT_GT(original(request), 0);
    EXPECT_EQ(gate.calls, calls + 1) << "nothing is remembered for it";
    request = base;
    request.prompt_logprobs = true;
    EXPECT_EQ(original(request), 0);
    request.compression.mode = CompressMode::always;
    EXPECT_THROW(engine.submit(request, [](const Event&) {}), Error);
    request = base;
    request.compression.above = 100000;
    EXPECT_EQ(original(request), 0);
    const auto budget = [&](double keep) {
        request.compression = {.mode = {}, .keep = keep, .keep_tokens = {}, .above = {}, .positions = {}};
        return ask(engine, request).done->compression.budget;
    };
    EXPECT_NEAR(static_cast<double>(budget(0.75) - budget(0.5)), static_cast<double>(budget(0.5) - budget(0.25)), 1);
    EXPECT_GT(budget(0.5), original(base) / 2) << "a share of what can be left out";
    request.compression.keep = 1.5;
    EXPECT_THROW(engine.submit(request, [](const Event&) {}), Error);
    Request ids;
    ids.prompt = engine.tokenize(base.prompt);
    ids.sampling.max_tokens = 2;
    EXPECT_EQ(original(ids), 0);
    ids.compression.mode = CompressMode::always;
    EXPECT_GT(original(ids), 0);

    Engine plain(open_checkpoint(demo_path()), demo_options());
    EXPECT_TRUE(ask(plain, base).done);
    request = base;
    request.compression.mode = CompressMode::always;
    EXPECT_THROW(plain.submit(request, [](const Event&) {}), Error);
}

TEST(EngineCompression, threads_that_submit_and_cancel_disturb_nobody) {
    Gate gate;
    EngineOptions o = options_with(gate);
    o.max_queue = 1000;
    Engine engine(open_checkpoint(demo_path()), o);
    std::vector<std::vector<int32_t>> alone;
    const auto question = [](uint64_t i) {
        return chat(short_pump_log(static_cast<int>(40 + i)) + "What is 12 plus 30?", 2);
    };
    for (uint64_t i = 0; i < 3; ++i) alone.push_back(ask(engine, question(i)).tokens);
    std::atomic<int> wrong = 0, cancelled = 0;
    const auto client = [&](uint64_t seed) {
        std::mt19937_64 rng(seed);
        Listener listener;
        std::vector<uint64_t> asked;
        for (int i = 0; i < 12; ++i) {
            asked.push_back(rng() % 3);
            Request request = question(asked.back());
            request.priority = static_cast<int32_t>(rng() % 3);
            const RequestId id = engine.submit(request, listener.sink(i));
            if (rng() % 3 == 0) engine.cancel(id);
            if (rng() % 6 == 0) engine.pause();
            if (rng() % 3 == 0) engine.resume();
        }
        engine.resume();
        for (int i = 0; i < 12; ++i) {
            const Heard heard = listener.answer(i);
            if (!heard.done) ++wrong;
            else if (heard.done->reason == FinishReason::cancelled) ++cancelled;
            else wrong += heard.tokens != alone[asked[static_cast<size_t>(i)]];
        }
    };
    std::vector<std::thread> threads;
    for (uint64_t t = 0; t < 4; ++t) threads.emplace_back(client, t + 1);
    for (std::thread& thread : threads) thread.join();
    engine.drain();
    EXPECT_EQ(wrong, 0);
    EXPECT_GT(cancelled, 0);
    EXPECT_EQ(engine.stats().waiting, 0);
    EXPECT_EQ(engine.stats().scoring, 0);
}

}  // namespace
}  // namespace riptide::testing
