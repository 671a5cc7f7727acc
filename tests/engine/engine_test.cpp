// The front door: what is refused, what an answer consists of, how requests end, pausing, draining, reloading.
#include "engine/engine.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "tests/engine/engine_world.h"
#include "tests/models/fixture.h"

namespace riptide::testing {
namespace {

class EngineTest : public ::testing::Test {
  protected:
    std::unique_ptr<Engine> engine = Engine::open(demo_path(), demo_options());
    std::string refusal(Request request) {
        try {
            engine->submit(std::move(request), [](const Event&) {});
        } catch (const Error& error) {
            return error.what();
        }
        ADD_FAILURE() << "no error";
        return "";
    }
};

TEST_F(EngineTest, an_answer_is_what_is_drawn_from_a_lone_sequence) {
    SessionOptions options = demo_options();
    const auto session = Session::open(demo_path(), options);
    const std::vector<int32_t> prompt = engine->tokenize(TextPrompt{"The capital of France is"});
    for (const double temperature : {0.0, 0.8}) {
        Request request = continuation(prompt, 40);
        request.sampling.temperature = temperature;
        request.sampling.seed = 5;
        request.hash_logits = true;
        const Drawn expected = draw(*session, prompt, request.sampling);
        const Heard heard = ask(*engine, request);
        ASSERT_TRUE(heard.done) << (heard.failed ? heard.failed->message : "");
        EXPECT_EQ(heard.tokens, expected.tokens);
        EXPECT_EQ(heard.text, engine->tokenizer()->decode(expected.tokens));
        EXPECT_TRUE(heard.last);
        EXPECT_EQ(heard.done->reason, FinishReason::length);
        if (test_gpu() == nullptr) {  // there the device draws, and logits stay where they are
            EXPECT_EQ(heard.done->logits_hash, expected.logits_hash);
        }
        EXPECT_EQ(heard.done->usage.steps, 39) << "the last token is not fed";
        EXPECT_EQ(heard.done->usage.prompt, std::ssize(prompt));
        EXPECT_EQ(heard.done->usage.completion, 40);
        EXPECT_EQ(heard.done->version, 1);
        ASSERT_FALSE(heard.progress.empty());
        EXPECT_EQ(heard.progress.back().done, std::ssize(prompt));
    }
}

json::array tools() {
    return parse_json(read_file(source_dir() + "/examples/tools.json", 1 << 20), "tools.json").as_array();
}

TEST_F(EngineTest, a_chat_comes_as_reasoning_text_and_tool_calls) {
    Request think = chat("Hello, who are you?");
    std::get<ChatPrompt>(think.prompt).options.enable_thinking = true;
    const Heard thought = ask(*engine, think);
    EXPECT_FALSE(thought.reasoning.empty());
    EXPECT_FALSE(thought.text.empty());
    EXPECT_EQ(thought.done->reason, FinishReason::stop_id);
    EXPECT_GE(thought.done->stop_token, 0);

    Request request = chat("Please brew tea: kind darjeeling, cups 3.", 100);
    std::get<ChatPrompt>(request.prompt).tools = tools();
    const Heard call = ask(*engine, request);
    EXPECT_EQ(call.calls, std::vector<std::string>{"brew_tea"});
    ASSERT_EQ(call.arguments.size(), 1U);
    EXPECT_EQ(parse_json(call.arguments[0], "arguments"), (json::value{{"kind", "darjeeling"}, {"cups", 3}}));
    EXPECT_EQ(call.done->tool_calls, 1);
    EXPECT_EQ(call.text, "");
}

TEST_F(EngineTest, stop_strings_end_what_the_client_reads_and_are_not_part_of_it) {
    const Heard whole = ask(*engine, chat("Hello, who are you?"));
    ASSERT_GT(whole.text.size(), 20U);
    const std::string stop = whole.text.substr(9, 6);
    Request request = chat("Hello, who are you?");
    request.sampling.stop_strings = {"never said", stop};
    const Heard cut = ask(*engine, request);
    EXPECT_EQ(cut.text, whole.text.substr(0, whole.text.find(stop)));
    EXPECT_EQ(cut.done->reason, FinishReason::stop_string);
    EXPECT_EQ(cut.done->stop_string, stop);
    EXPECT_LT(cut.tokens.size(), whole.tokens.size());

    Request plain = continuation(engine->tokenize(TextPrompt{"The capital of France is"}), 40);
    const Heard text = ask(*engine, plain);
    plain.sampling.stop_strings = {text.text.substr(10, 4)};
    EXPECT_EQ(ask(*engine, plain).text, text.text.substr(0, text.text.find(plain.sampling.stop_strings[0])));
}

TEST_F(EngineTest, log_probabilities_come_with_tokens_and_change_none) {
    Request request = continuation(engine->tokenize(TextPrompt{"One two three"}), 20);
    const Heard plain = ask(*engine, request);
    request.sampling.logprobs = 3;
    const Heard told = ask(*engine, request);
    EXPECT_EQ(told.tokens, plain.tokens);
    for (const Sampled& s : told.sampled) {
        EXPECT_LT(s.logprob, 0);
        ASSERT_EQ(s.top.size(), 3U);
        EXPECT_EQ(s.top[0].token, s.token);
    }
}

TEST_F(EngineTest, an_answer_ends_with_the_context) {
    const std::vector<int32_t> prompt(1000, 100);
    const Heard heard = ask(*engine, continuation(prompt, 500));
    EXPECT_EQ(heard.tokens.size(), 24U);
    EXPECT_EQ(heard.done->reason, FinishReason::context);
    EXPECT_EQ(ask(*engine, continuation(prompt, 24)).done->reason, FinishReason::length);
}

TEST_F(EngineTest, what_cannot_be_answered_is_refused_with_value_and_limit) {
    const int64_t vocab = engine->info().model.vocab_size;
    const auto changed = [](auto change) {
        Request r = continuation({1, 2, 3}, 4);
        change(r);
        return r;
    };
    EXPECT_EQ(refusal(continuation({}, 4)), "the prompt is empty: it needs at least one token");
    EXPECT_EQ(refusal(continuation(std::vector<int32_t>(1024, 1), 4)),
              "the prompt has 1024 tokens, and the context holds 1024: no room for an answer");
    EXPECT_EQ(refusal(continuation({1, -1}, 4)),
              fmt::format("token 1 of the prompt is -1, expected 0 to {}", vocab - 1));
    EXPECT_EQ(refusal(continuation({1, 2}, 0)), "max_tokens is 0, expected 1 to 2147483647");
    EXPECT_EQ(refusal(changed([](Request& r) { r.n = 129; })), "n is 129, expected 1 to 128");
    EXPECT_EQ(refusal(changed([](Request& r) { r.priority = 3; })), "priority is 3, expected 0 to 2");
    EXPECT_EQ(refusal(changed([](Request& r) { r.sampling.temperature = -1; })),
              "temperature is -1, expected 0 to 100");
    EXPECT_EQ(refusal(changed([](Request& r) { r.deadline = std::chrono::milliseconds(0); })),
              "deadline is 0 ms, expected more than 0");
    EXPECT_EQ(refusal(changed([](Request& r) { r.thinking_budget = -2; })),
              "thinking_budget is -2, expected 0 or more");
    EXPECT_NE(refusal(changed([](Request& r) {
                  ChatPrompt bad;
                  bad.messages = {{{"role", "user"}, {"content", 5}}};
                  r.prompt = bad;
              })).find("messages[0].content"),
              std::string::npos);
    EXPECT_EQ(engine->stats().submitted, 0);
}

TEST_F(EngineTest, thinking_ends_where_its_budget_does_and_the_answer_goes_on) {
    Request free = chat("What is 12 plus 30?");
    std::get<ChatPrompt>(free.prompt).options.enable_thinking = true;
    const Heard thought = ask(*engine, free);
    const int64_t length = thought.done->usage.reasoning;
    ASSERT_GT(length, 3);
    const int32_t marker = engine->tokenizer()->id_of("</think>");
    EXPECT_EQ(std::find(thought.tokens.begin(), thought.tokens.end(), marker) - thought.tokens.begin(), length);
    for (const int64_t budget : {int64_t{0}, int64_t{1}, int64_t{3}, length, length + 1}) {
        Request r = free;
        r.thinking_budget = budget;
        const Heard heard = ask(*engine, r);
        const int64_t kept = std::min(budget, length);
        EXPECT_EQ(heard.done->usage.reasoning, kept);
        EXPECT_TRUE(std::equal(heard.tokens.begin(), heard.tokens.begin() + kept, thought.tokens.begin()))
            << "what comes before is what the model says";
        EXPECT_EQ(heard.tokens.at(static_cast<size_t>(kept)), marker);
        EXPECT_FALSE(heard.text.empty());
        if (budget >= length) {
            EXPECT_EQ(heard.tokens, thought.tokens);
        }
        r.sampling.logprobs = 0;
        EXPECT_LT(ask(*engine, r).sampled.at(static_cast<size_t>(kept)).logprob, 0) << "the model's own probability";
    }
}

TEST_F(EngineTest, a_prompts_own_probabilities_are_those_of_the_session_whatever_is_cached) {
    std::vector<int32_t> prompt;
    for (int i = 0; i < 300; ++i) prompt.push_back(5 + i * 7 % 900);
    Session session(open_checkpoint(demo_path()), [] {
        SessionOptions o = demo_options();
        o.threads = 1;
        return o;
    }());
    std::vector<float> expected;
    session.score(prompt, [&](int64_t begin, const Tensor& logits) {
        for (int64_t i = 0; i < logits.rows() && begin + i + 1 < std::ssize(prompt); ++i) {
            const std::span<const float> row(logits.row(i), static_cast<size_t>(logits.row_elements()));
            expected.push_back(score_token(row, prompt[static_cast<size_t>(begin + i + 1)], 0).logprob);
        }
    });
    const Heard plain = ask(*engine, continuation(prompt, 4));  // and it is in the cache now
    Request r = continuation(prompt, 4);
    r.prompt_logprobs = true;
    r.sampling.logprobs = 2;
    const Heard heard = ask(*engine, r);
    EXPECT_EQ(heard.tokens, plain.tokens);
    EXPECT_EQ(heard.done->usage.cached, 0);
    ASSERT_EQ(heard.scored.size(), prompt.size());
    EXPECT_TRUE(std::isnan(heard.scored[0].logprob));
    for (size_t i = 0; i < prompt.size(); ++i) EXPECT_EQ(heard.scored[i].token, prompt[i]);
    for (size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(heard.scored[i + 1].logprob, expected[i]) << i;
    EXPECT_EQ(heard.scored[1].top.size(), 2u);
    EXPECT_EQ(ask(*engine, continuation({5}, 1)).scored.size(), 0u);
    r.prompt = std::vector<int32_t>{5};
    EXPECT_EQ(ask(*engine, r).scored.size(), 1u) << "one token, and no probability";
}

TEST_F(EngineTest, several_answers_read_the_prompt_once_and_draw_as_each_would_alone) {
    Request request = continuation(std::vector<int32_t>(400, 77), 12);
    for (size_t i = 0; i < 400; ++i) std::get<TokenPrompt>(request.prompt)[i] += static_cast<int32_t>(i % 50);
    request.sampling.temperature = 1;
    request.sampling.seed = 10;
    request.n = 5;
    request.deterministic = true;
    Listener listener;
    const int64_t rows = engine->stats().prefill_rows;
    engine->submit(request, listener.sink(0, 5));
    std::vector<Heard> heard;
    for (int i = 0; i < 5; ++i) heard.push_back(listener.answer(0, i));
    EXPECT_EQ(std::count_if(heard.begin(), heard.end(), [](const Heard& h) { return h.last; }), 1);
    EXPECT_EQ(engine->stats().prefill_rows - rows, 400 + 4);
    EngineOptions alone = demo_options();
    alone.prefix_cache = false;
    const auto other = Engine::open(demo_path(), alone);
    request.n = 1;
    for (size_t i = 0; i < 5; ++i) {
        request.sampling.seed = 10 + i;
        EXPECT_EQ(heard[i].tokens, ask(*other, request).tokens) << i;
        EXPECT_EQ(heard[i].done->usage.cached, i == 0 ? 0 : 399);
    }
}

TEST_F(EngineTest, cancelling_ends_a_request_while_it_reads_and_while_it_writes) {
    Listener listener;
    const std::vector<int32_t> prompt(900, 5);
    const RequestId reading = engine->submit(continuation(prompt, 100), listener.sink(0));
    listener.wait(0, [](const Heard& h) { return !h.progress.empty(); });
    engine->cancel(reading);
    Heard heard = listener.answer(0);
    ASSERT_TRUE(heard.done);
    EXPECT_EQ(heard.done->reason, FinishReason::cancelled);
    const RequestId writing = engine->submit(continuation({1, 2, 3}, 1000), listener.sink(1));
    listener.wait(1, [](const Heard& h) { return h.tokens.size() > 3; });
    engine->cancel(writing);
    heard = listener.answer(1);
    EXPECT_EQ(heard.done->reason, FinishReason::cancelled);
    EXPECT_EQ(heard.done->usage.completion, std::ssize(heard.tokens));
    engine->cancel(writing);
    engine->cancel(12345);
    engine->pause();
    const RequestId paused = engine->submit(continuation({1, 2, 3}, 10), listener.sink(2, 3));
    engine->cancel(paused);
    EXPECT_EQ(listener.answer(2).done->reason, FinishReason::cancelled) << "also while the engine is paused";
    engine->resume();
    ask(*engine, continuation(std::vector<int32_t>(20, 7), 10));  // what is kept of it ends within a page
    engine->drain();
    const EngineStats stats = engine->stats();
    EXPECT_EQ(stats.cancelled, 3);
    EXPECT_EQ(stats.running, 0);
    EXPECT_GT(stats.cached_pages, 0);
    EXPECT_EQ(stats.used_pages, 0) << "what only the cache holds is nobody's";
    EXPECT_EQ(stats.free_pages + stats.cached_pages, stats.pages) << "no page has leaked";
}

TEST_F(EngineTest, a_sink_that_throws_loses_its_own_request_only) {
    Listener listener;
    int calls = 0;
    Request two = continuation({9, 8, 7}, 200);
    two.n = 2;
    engine->submit(two, [&calls](const Event& event) {
        if (std::holds_alternative<TokensDrawn>(event.body) && ++calls == 3) throw std::runtime_error("gone");
        ASSERT_LE(calls, 3) << "called again";
    });
    engine->submit(continuation({1, 2, 3}, 30), listener.sink(0));
    const Heard other = listener.answer(0);
    EXPECT_EQ(other.tokens, ask(*engine, continuation({1, 2, 3}, 30)).tokens);
    engine->drain();
    EXPECT_EQ(calls, 3);
    EXPECT_EQ(engine->stats().cancelled, 2);
}

TEST_F(EngineTest, a_sink_may_submit_and_cancel_but_not_wait) {
    Listener listener;
    RequestId first = 0;
    std::string refused;
    bool asked = false;
    std::mutex known;
    known.lock();
    listener.also = [&](const Event& event) {
        const std::lock_guard lock(known);
        if (event.id != first || asked || !std::holds_alternative<TokensDrawn>(event.body)) return;
        asked = true;
        engine->submit(continuation({4, 5}, 5), listener.sink(1));
        engine->cancel(first);
        try {
            engine->drain();
        } catch (const Error& error) {
            refused = error.what();
        }
    };
    first = engine->submit(continuation({1, 2, 3}, 1000), listener.sink(0));
    known.unlock();
    EXPECT_EQ(listener.answer(0).done->reason, FinishReason::cancelled);
    EXPECT_EQ(listener.answer(1).tokens.size(), 5U);
    engine->drain();  // the sinks have returned
    EXPECT_NE(refused.find("not drain"), std::string::npos) << refused;
}

TEST_F(EngineTest, a_deadline_fails_a_request_that_waits_or_runs) {
    Listener listener;
    engine->pause();
    Request late = continuation({1, 2, 3}, 1000);
    late.deadline = std::chrono::milliseconds(1);
    engine->submit(late, listener.sink(0));
    const auto begin = std::chrono::steady_clock::now();
    while (std::chrono::steady_clock::now() - begin < std::chrono::milliseconds(2)) {
    }
    engine->resume();
    const Heard heard = listener.answer(0);
    ASSERT_TRUE(heard.failed);
    EXPECT_EQ(heard.failed->message, "the deadline of 1 ms has passed");
    EXPECT_EQ(heard.failed->kind, ErrorKind::unavailable);
    late.sampling.max_tokens = 1000;
    late.deadline = std::chrono::milliseconds(20);
    const Heard running = ask(*engine, late);
    ASSERT_TRUE(running.failed) << "1000 tokens in 20 ms";
    EXPECT_LT(running.tokens.size(), 1000U);
}

TEST_F(EngineTest, a_deadline_ends_the_compiling_of_a_form) {
    Request late = continuation({1, 2, 3}, 10);
    late.sampling.max_tokens = 10;
    late.format = {.kind = AnswerFormat::Kind::grammar, .text = "root ::= \"a\""};  // long
    for (int i = 0; i < 10'000; ++i) late.format.text += fmt::format(" | \"word {} of {}\"", i * 7919 % 100'003, i);
    late.deadline = std::chrono::milliseconds(2);
    WorkBudget work(WorkBudget::kUnlimited);
    Listener listener;
    EXPECT_THROW(engine->submit(late, listener.sink(0), &work), WorkLate);
    EXPECT_EQ(ask(*engine, continuation({1, 2, 3}, 5)).tokens.size(), 5U);
}

TEST(Engine, a_full_queue_refuses_with_a_time) {
    EngineOptions o = demo_options();
    o.max_queue = 3;
    const auto engine = Engine::open(demo_path(), o);
    engine->pause();
    Listener listener;
    Request two = continuation({1, 2}, 3);
    two.n = 2;
    engine->submit(two, listener.sink(0, 2));
    EXPECT_THROW(engine->submit(two, listener.sink(1, 2)), QueueFull);
    engine->submit(continuation({1, 2}, 3), listener.sink(2));
    try {
        engine->submit(continuation({1, 2}, 3), listener.sink(3));
        ADD_FAILURE() << "no error";
    } catch (const QueueFull& full) {
        EXPECT_GE(full.retry_after_us, 1000);
        EXPECT_EQ(std::string(full.what()).find("3 answers wait already, of at most 3; try again in"), 0U)
            << full.what();
    }
    EXPECT_EQ(engine->stats().waiting, 3);
    EXPECT_EQ(engine->stats().refused, 2);
    engine->resume();
    EXPECT_TRUE(listener.answer(0, 0).done && listener.answer(0, 1).done && listener.answer(2).done);
    engine->submit(continuation({1, 2}, 3), listener.sink(4));
    EXPECT_TRUE(listener.answer(4).done);
    EXPECT_EQ(engine->stats().waiting, 0);
}

TEST_F(EngineTest, a_pause_changes_no_token_and_draining_refuses_until_resumed) {
    const std::vector<int32_t> expected = ask(*engine, continuation({1, 2, 3}, 200)).tokens;
    Listener listener;
    engine->submit(continuation({1, 2, 3}, 200), listener.sink(0));
    listener.wait(0, [](const Heard& h) { return h.tokens.size() > 5; });
    engine->pause();
    const int64_t steps = engine->stats().steps;
    EXPECT_TRUE(engine->stats().paused);
    EXPECT_EQ(engine->stats().steps, steps);
    engine->resume();
    EXPECT_EQ(listener.answer(0).tokens, expected);
    engine->pause();
    engine->submit(continuation({1, 2, 3}, 20), listener.sink(1));
    engine->drain();
    EXPECT_TRUE(listener.answer(1).done);
    EXPECT_EQ(refusal(continuation({1}, 2)), "the engine takes no more requests: it is being drained");
    engine->resume();
    EXPECT_TRUE(ask(*engine, continuation({1}, 2)).done);
}

TEST(Engine, its_end_ends_all_requests) {
    Listener listener;
    auto engine = Engine::open(demo_path(), demo_options());
    for (int i = 0; i < 20; ++i) engine->submit(continuation({1, 2, i}, 900), listener.sink(i));
    listener.wait(0, [](const Heard& h) { return !h.tokens.empty(); });
    engine.reset();
    for (int i = 0; i < 20; ++i) EXPECT_TRUE(listener.answer(i).done) << i;
    EXPECT_EQ(listener.answer(19).done->reason, FinishReason::cancelled);
}

/// The demo model with other values in one matrix.
class ChangedDemo {
  public:
    explicit ChangedDemo(const std::string& name) : path_(::testing::TempDir() + name) {
        std::string bytes = read_file(demo_path(), int64_t{1} << 30);
        const auto checkpoint = open_checkpoint(demo_path());
        const TensorInfo* matrix = checkpoint->find("output_norm.weight");
        RT_CHECK(matrix != nullptr, "the demo model has no output_norm.weight");
        const std::string_view held(reinterpret_cast<const char*>(matrix->bytes.data()), matrix->bytes.size());
        const size_t at = bytes.find(held);
        for (size_t i = 0; i + 8 <= held.size(); i += 8)
            std::swap_ranges(&bytes[at + i], &bytes[at + i + 4], &bytes[at + i + 4]);
        std::ofstream(path_, std::ios::binary) << bytes;
    }
    ~ChangedDemo() { std::filesystem::remove(path_); }
    const std::string& path() const { return path_; }

  private:
    std::string path_;
};

TEST_F(EngineTest, reload_swaps_weights_behind_running_answers_and_forgets_the_cache) {
    const ChangedDemo changed("riptide_reload.gguf");
    const Request request = continuation(std::vector<int32_t>(300, 21), 60);
    const Heard before = ask(*engine, request);
    EXPECT_EQ(ask(*engine, request).done->usage.cached, 299);
    std::vector<int32_t> fresh;
    {
        const auto other = Engine::open(changed.path(), demo_options());
        fresh = ask(*other, request).tokens;
    }
    ASSERT_NE(fresh, before.tokens);
    Listener listener;
    engine->submit(request, listener.sink(0));
    listener.wait(0, [](const Heard& h) { return !h.tokens.empty(); });
    engine->pause();
    engine->submit(request, listener.sink(1));
    EXPECT_EQ(engine->reload(changed.path()), 2);
    EXPECT_EQ(listener.answer(0).tokens, before.tokens) << "what ran has ended with the old weights";
    EXPECT_EQ(listener.answer(0).done->version, 1);
    EXPECT_EQ(engine->stats().waiting_tokens, 300) << "none of it is cached any more";
    engine->resume();
    const Heard after = listener.answer(1);
    EXPECT_EQ(after.tokens, fresh);
    EXPECT_EQ(after.done->usage.cached, 0);
    EXPECT_EQ(after.done->version, 2);
    EXPECT_EQ(engine->info().version, 2);
    EXPECT_EQ(engine->info().path, changed.path());

    EXPECT_THROW(engine->reload(source_dir() + "/tests/fixtures/laguna_xs2/model.safetensors"), Error);
    EXPECT_EQ(ask(*engine, request).tokens, fresh) << "a reload that fails changes nothing";
    EXPECT_EQ(engine->reload(demo_path()), 3);
    EXPECT_EQ(ask(*engine, request).tokens, before.tokens);
}

TEST_F(EngineTest, a_follow_up_reads_only_what_is_new_and_says_why_not_less) {
    Request request = chat("Please brew tea: kind darjeeling, cups 3.", 100);
    auto& prompt = std::get<ChatPrompt>(request.prompt);
    prompt.tools = tools();
    request.session = "a";
    const Heard first = ask(*engine, request);
    EXPECT_EQ(first.done->usage.cached, 0);
    const Heard again = ask(*engine, request);
    EXPECT_GT(again.done->usage.cached, again.done->usage.prompt - 12);
    EXPECT_EQ(again.tokens, first.tokens);
    prompt.messages[0].as_object()["content"] = "Please brew coffee.";
    const Heard edited = ask(*engine, request);
    EXPECT_GT(edited.done->usage.cached, 280) << "system prompt and tools stay";
    EXPECT_NE(edited.done->cache_note.find("message 1 differs"), std::string::npos) << edited.done->cache_note;
    request.isolation = "somebody else";
    EXPECT_EQ(ask(*engine, request).done->usage.cached, 0);
}

}  // namespace
}  // namespace riptide::testing
