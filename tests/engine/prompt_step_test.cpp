// A step of prompts in parts, on both devices.
#include "engine/execution/prefill_step.h"

#include <gtest/gtest.h>

#include "tests/engine/engine_world.h"

namespace riptide::testing {
namespace {

std::vector<float> on_host(const Tensor& logits) {
    std::vector<float> values(static_cast<size_t>(logits.elements()));
    const int64_t bytes = logits.elements() * int64_t{sizeof(float)};
    if (Gpu* gpu = test_gpu()) gpu->to_host(values.data(), logits.data, bytes);
    else std::memcpy(values.data(), logits.data, static_cast<size_t>(bytes));
    return values;
}

std::vector<int32_t> patterned_tokens(int32_t count, int32_t seed) {
    std::vector<int32_t> tokens;
    for (int32_t i = 0; i < count; ++i) tokens.push_back((i * 37 + seed * 101) % 250 + 1);
    return tokens;
}

struct DemoModel {
    std::unique_ptr<Checkpoint> checkpoint = open_checkpoint(demo_path());
    std::unique_ptr<Model> model = load_model(*checkpoint, {.gpu = test_gpu()});
    KvCache cache{model->state_specs(),
                  {.k_dtype = DType::f16,
                   .v_dtype = DType::f16,
                   .page_rows = 16,
                   .pages = 64,
                   .max_sequences = 4,
                   .max_step_rows = 64},
                  test_gpu()};
    Runner runner{*model, cache, nullptr};
    PromptStep prompts{runner, cache, 0, [] { return 0; }};

    /// One token of a sequence by itself; from the second time on a GPU launches a graph.
    std::vector<float> decode(SequenceState& sequence, int32_t token) {
        EXPECT_TRUE(sequence.try_reserve(1));
        const StepItem item{&sequence, std::span(&token, 1)};
        std::vector<float> logits = on_host(runner.step(std::span(&item, 1)));
        sequence.commit_prefix(1);
        return logits;
    }
    std::vector<float> read(SequenceState& sequence, std::span<const int32_t> tokens) {
        EXPECT_TRUE(sequence.try_reserve(std::ssize(tokens)));
        const StepItem item{&sequence, tokens};
        std::vector<float> logits = on_host(runner.step(std::span(&item, 1), Family::prefill));
        sequence.commit_prefix(std::ssize(tokens));
        return logits;
    }
};

TEST(PromptStep, keeps_what_layers_put_out_as_a_whole_step_does) {
    DemoModel demo;
    const std::vector<int32_t> layers = {-1, 0, 2, static_cast<int32_t>(demo.model->info().num_hidden_layers) - 1};
    const std::vector<int32_t> tokens = patterned_tokens(40, 3);
    demo.runner.capture(layers);
    demo.prompts.capture(layers);
    SequenceState a(demo.cache), b(demo.cache);
    demo.read(a, tokens);
    const std::vector<float> whole = on_host(demo.runner.captured());
    EXPECT_EQ(std::ssize(whole), 40 * 4 * demo.model->info().hidden_size);
    ASSERT_TRUE(b.try_reserve(40));
    const StepItem item{&b, tokens};
    demo.prompts.begin(std::span(&item, 1));
    while (!demo.prompts.complete()) {
        demo.prompts.run(1);
        demo.decode(a, 7);  // others use the arena meanwhile
    }
    demo.prompts.finish();
    EXPECT_EQ(on_host(demo.prompts.captured()), whole);
    b.commit_prefix(40);
}

TEST(PromptStep, in_parts_between_steps_of_others_it_has_the_bits_of_whole_steps) {
    DemoModel demo;
    const int64_t layers = demo.model->info().num_hidden_layers;
    const std::vector<int32_t> talk = patterned_tokens(20, 1), said = patterned_tokens(40, 2),
                               first = patterned_tokens(64, 3), second = patterned_tokens(50, 4),
                               other = patterned_tokens(14, 5);
    std::vector<std::vector<float>> words, reads;
    {
        SequenceState a(demo.cache), b(demo.cache), c(demo.cache);
        words.push_back(demo.read(a, talk));
        for (const int32_t token : said) words.push_back(demo.decode(a, token));
        for (const auto& tokens : {first, second}) reads.push_back(demo.read(b, tokens));
        reads.push_back(demo.read(c, other));
    }
    for (int64_t part = 1; part <= layers; part += 2) {
        SequenceState a(demo.cache), b(demo.cache), c(demo.cache);
        size_t word = 0;
        EXPECT_EQ(demo.read(a, talk), words[word++]);
        int64_t parts = 0;
        for (int step = 0; step < 2; ++step) {
            ASSERT_TRUE(b.try_reserve(step == 0 ? 64 : 50));
            std::vector<StepItem> items = {{&b, step == 0 ? first : second}};
            if (step == 1) {  // two prompts in one step
                ASSERT_TRUE(c.try_reserve(14));
                items.insert(items.begin(), {&c, other});
            }
            demo.prompts.begin(items);
            while (!demo.prompts.complete()) {
                EXPECT_EQ(demo.decode(a, said[word - 1]), words[word]) << "token " << word;
                ++word;
                demo.prompts.run(part);
                ++parts;
                const auto time = demo.prompts.time(0);
                ASSERT_TRUE(time);
                EXPECT_EQ(time->rows, 64);
                EXPECT_LE(time->layers, part);
            }
            EXPECT_EQ(demo.decode(a, said[word - 1]), words[word]) << "token " << word;
            ++word;
            std::vector<float> expected = step == 1 ? reads[2] : std::vector<float>();
            expected.insert(expected.end(), reads[static_cast<size_t>(step)].begin(),
                            reads[static_cast<size_t>(step)].end());
            EXPECT_EQ(on_host(demo.prompts.finish()), expected) << "parts of " << part << " layers";
            for (const StepItem& item : items) item.sequence->commit_prefix(std::ssize(item.tokens));
        }
        EXPECT_EQ(parts, 2 * ((layers + part - 1) / part));
        EXPECT_EQ(demo.decode(a, said[word - 1]), words[word]);
    }
}

TEST(PromptStep, one_that_is_dropped_leaves_room_for_the_next) {
    DemoModel demo;
    const std::vector<int32_t> first = patterned_tokens(64, 3), second = patterned_tokens(50, 4);
    SequenceState a(demo.cache), b(demo.cache);
    const std::vector<float> expected = demo.read(a, second);
    ASSERT_TRUE(b.try_reserve(64));
    const StepItem given_up{&b, first};
    demo.prompts.begin(std::span(&given_up, 1));
    demo.prompts.run(1);
    demo.prompts.drop();
    b.commit_prefix(0);
    ASSERT_TRUE(b.try_reserve(50));
    const StepItem item{&b, second};
    demo.prompts.begin(std::span(&item, 1));
    demo.prompts.run(INT64_MAX);
    EXPECT_EQ(on_host(demo.prompts.finish()), expected);
}

}  // namespace
}  // namespace riptide::testing
