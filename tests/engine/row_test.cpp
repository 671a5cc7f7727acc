// Requests that want what the model puts out behind their prompt, in place of an answer.
#include "tests/engine/engine_world.h"
#include "tests/models/expect_says.h"

namespace riptide::testing {
namespace {

Request row_of(std::vector<int32_t> prompt, std::vector<int32_t> columns) {
    Request r;
    r.prompt = std::move(prompt);
    r.read_row = true;
    r.row_columns = std::move(columns);
    return r;
}

std::vector<int32_t> numbered(int32_t count) {
    std::vector<int32_t> out;
    for (int32_t i = 0; i < count; ++i) out.push_back(20 + i * 7 % 200);
    return out;
}

std::string embedding_fixture() { return source_dir() + "/tests/fixtures/qwen3_embed"; }

TEST(EngineRow, columns_are_the_logits_that_a_draw_sees) {
    const auto engine = Engine::open(demo_path(), demo_options());
    Request drawn = continuation(numbered(70), 1);
    drawn.sampling.logprobs = 2;
    const Heard answer = ask(*engine, drawn);
    const std::vector<TokenLogprob>& top = answer.sampled.at(0).top;
    const Heard read = ask(*engine, row_of(numbered(70), {top.at(0).token, top.at(1).token}));
    ASSERT_EQ(read.row.size(), 2u);
    // Log-probabilities are the logits less one number: both are rounded to f32, once each.
    const double magnitude = std::abs(double{read.row[0]}) + std::abs(double{read.row[1]}) +
                             std::abs(double{top[0].logprob}) + std::abs(double{top[1].logprob});
    EXPECT_NEAR(double{read.row[0]} - read.row[1], double{top[0].logprob} - top[1].logprob, magnitude * 0x1p-22);
    ASSERT_TRUE(read.done);
    EXPECT_EQ(read.done->reason, FinishReason::length);
    EXPECT_EQ(read.done->usage.prompt, 70);
    EXPECT_EQ(read.done->usage.completion, 0);
    EXPECT_TRUE(read.text.empty() && read.tokens.empty());
}

TEST(EngineRow, it_takes_the_whole_context_and_no_more) {
    const auto engine = Engine::open(demo_path(), demo_options());
    EXPECT_EQ(ask(*engine, row_of(numbered(1024), {5})).row.size(), 1u);
    EXPECT_THROW(ask(*engine, row_of(numbered(1025), {5})), PromptTooLong);
}

TEST(EngineRow, a_model_that_writes_text_shows_logits_only) {
    const auto engine = Engine::open(demo_path(), demo_options());
    const auto vocab = static_cast<int32_t>(engine->info().model.vocab_size);
    EXPECT_SAYS(ask(*engine, row_of({5}, {})), "makes no embeddings", "Qwen3-Embedding");
    EXPECT_SAYS(ask(*engine, row_of({5}, {vocab})), "a logit of token", "expected 0 to");
    EXPECT_SAYS(ask(*engine, row_of({5}, {-1})), "a logit of token -1");
    EXPECT_EQ(ask(*engine, continuation({5}, 3)).tokens.size(), 3u);
}

TEST(EngineRow, a_model_that_embeds_writes_no_text) {
    const auto engine = Engine::open(embedding_fixture(), demo_options());
    EXPECT_EQ(engine->info().model.task, Task::embed);
    EXPECT_FALSE(engine->info().chat);
    EXPECT_SAYS(ask(*engine, continuation({5}, 3)), "embedding model", "/v1/embeddings");
    EXPECT_SAYS(ask(*engine, row_of({5}, {3})), "embedding model");
    EXPECT_EQ(std::ssize(ask(*engine, row_of({5}, {})).row), engine->info().model.hidden_size);
    EngineOptions drafted = demo_options();
    drafted.speculation.drafter = "ngram";
    EXPECT_SAYS(Engine::open(embedding_fixture(), drafted), "embedding model", "--drafter");
    EXPECT_SAYS(Session::open(embedding_fixture(), demo_options()), "embedding model", "riptide serve");
}

TEST(EngineRow, only_qwen3_embeds) {
    EngineOptions options = demo_options();
    options.model.task = Task::embed;
    EXPECT_SAYS(Engine::open(demo_path(), options), "--task embed", "qwen3", "laguna");
}

TEST(EngineRow, the_queue_that_had_room_for_one_call_has_it_for_all_of_it) {
    EngineOptions options = demo_options();
    options.max_queue = 2;
    const auto engine = Engine::open(demo_path(), options);
    Listener listener;
    engine->pause();  // nothing leaves the queue
    for (int i = 0; i < 20; ++i) {
        Request each = row_of(numbered(30 + i), {5});
        each.same_call = i > 0;
        engine->submit(std::move(each), listener.sink(i));
    }
    EXPECT_THROW(engine->submit(row_of({5}, {5}), listener.sink(99)), QueueFull);
    engine->resume();
    for (int i = 0; i < 20; ++i) EXPECT_EQ(listener.answer(i).row.size(), 1u) << i;
}

TEST(EngineRow, cancelled_or_late_it_ends_as_any_request) {
    const auto engine = Engine::open(embedding_fixture(), demo_options());
    Listener listener;
    engine->pause();  // nothing is computed
    const RequestId id = engine->submit(row_of(numbered(40), {}), listener.sink(0));
    Request late = row_of(numbered(41), {});
    late.deadline = std::chrono::milliseconds(1);
    engine->submit(std::move(late), listener.sink(1));
    engine->cancel(id);
    const Heard cancelled = listener.answer(0), over = listener.answer(1);
    EXPECT_TRUE(cancelled.done && cancelled.done->reason == FinishReason::cancelled && cancelled.row.empty());
    EXPECT_TRUE(over.failed && over.failed->kind == ErrorKind::unavailable && over.row.empty());
    engine->resume();
    EXPECT_EQ(ask(*engine, row_of(numbered(40), {})).row.size(), 64u);
}

}  // namespace
}  // namespace riptide::testing
