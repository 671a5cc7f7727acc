// The front door: what is refused, what an answer consists of, how requests end, pausing, draining, reloading.
#include "engine/engine.h"

#include "base/error.h"
#include "tests/engine/engine_world.h"

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

TEST_F(EngineTest, an_answer_is_what_a_session_gives) {
    SessionOptions options = demo_options();
    const auto session = Session::open(demo_path(), options);
    const std::vector<int32_t> prompt = engine->tokenize(TextPrompt{"The capital of France is"});
    GenerateRequest generate;
    generate.prompt = prompt;
    generate.sampling.max_tokens = 40;
    for (const double temperature : {0.0, 0.8}) {
        generate.sampling.temperature = temperature;
        generate.sampling.seed = 5;
        generate.tokenizer = engine->tokenizer();
        const GenerationResult expected = session->generate(generate);
        Request request = continuation(prompt, 40);
        request.sampling = generate.sampling;
        request.sampling.ignore_eos = true;
        const Heard heard = ask(*engine, request);
        ASSERT_TRUE(heard.done) << (heard.failed ? heard.failed->message : "");
        EXPECT_EQ(heard.tokens, expected.tokens);
        EXPECT_EQ(heard.text, expected.text);
        EXPECT_TRUE(heard.last);
        EXPECT_EQ(heard.done->reason, FinishReason::length);
        EXPECT_EQ(heard.done->usage.prompt, std::ssize(prompt));
        EXPECT_EQ(heard.done->usage.completion, 40);
        EXPECT_EQ(heard.done->version, 1);
        ASSERT_FALSE(heard.progress.empty());
        EXPECT_EQ(heard.progress.back().done, std::ssize(prompt));
    }
}

}  // namespace
}  // namespace riptide::testing
