// `riptide ab` on the trained hybrids of tests/fixtures: a text form of their grammar, drafters that draft, no token
// that differs.
#include <gtest/gtest.h>

#include "apps/ab/ab_run.h"
#include "base/file.h"
#include "base/json.h"
#include "engine/prompt/model_text.h"
#include "tests/source_dir.h"
#include "tests/test_device.h"

namespace riptide::apps {
namespace {

std::string folder(const std::string& fixture) { return source_dir() + "/tests/fixtures/" + fixture; }

AbResult short_ab(const std::string& model, const std::string& drafter) {
    EngineOptions o;
    o.threads = 1;
    o.context = 1024;
    o.k_dtype = o.v_dtype = DType::f32;
    if (Gpu* gpu = test_gpu()) o.gpu = gpu->options();
    const std::vector<AbMode> modes = ab_modes(drafter, {3, 7}, {8});
    o.speculation = *modes.back().speculation;
    o.max_running = 1;
    const auto engine = Engine::open(folder(model) + "/model.safetensors", o);
    AbOptions options;
    options.sampling.temperature = 0;
    options.sampling.max_tokens = 200;  // a cycle of the grammar has 122
    const std::atomic<bool> never = false;
    return run_ab(
        *engine, ab_prompts(*engine->tokenizer(), engine->chat_template(), folder(model) + "/ab.jsonl", 8), modes,
        options, [](int64_t, int64_t) {}, never);
}

TEST(AbHybrid, drafts_of_repeated_text_help_and_change_nothing) {
    for (const char* model : {"qwen35_tied", "qwen35_moe"}) {
        const AbResult result = short_ab(model, "ngram");
        ASSERT_EQ(result.prompts.size(), 8u);
        ASSERT_EQ(result.modes.size(), 5u);
        EXPECT_EQ(result.mismatches(), 0) << model;
        for (size_t mode = 0; mode < result.modes.size(); ++mode) EXPECT_GE(result.total(mode).tokens, 8 * 190);
        EXPECT_GT(result.total(3).speculation.tokens_per_step(), 1.2) << result.modes[3].name;
    }
}

/// Its own drafter, trained on the same grammar (python/fixtures/train_hybrid_drafter.py).
TEST(AbHybrid, a_trained_drafter_is_nearly_always_right_and_changes_nothing) {
    const AbResult result = short_ab("qwen35_tied", folder("dflash_grammar"));
    EXPECT_EQ(result.mismatches(), 0);
    ASSERT_EQ(result.modes[3].name, "chain 7");
    EXPECT_GT(result.total(3).speculation.tokens_per_step(), 6);
}

TEST(AbHybrid, prompts_as_text_are_the_tokens_that_prompts_json_has) {
    const auto checkpoint = open_checkpoint(folder("qwen35_tied") + "/model.safetensors");
    const ModelText text(*checkpoint);
    const auto read = [&](const std::string& path) {
        return ab_prompts(*text.tokenizer(), text.chat_template(), path, 100);
    };
    const std::vector<AbPrompt> prompts = read(folder("qwen35_tied") + "/ab.jsonl");
    const json::value parsed = parse_json(read_file(folder("qwen35_tied") + "/prompts.json", 1 << 20), "prompts.json");
    const json::array& asked = parsed.at("prompts").as_array();
    EXPECT_EQ(prompts.at(0).tokens, std::vector<int32_t>{3});
    EXPECT_EQ(prompts.at(5).tokens, json::value_to<std::vector<int32_t>>(asked.at(3).at("tokens")));
    EXPECT_EQ(prompts.at(7).tokens.size(), prompts.at(5).tokens.size() + 1);
    // The program's own prompts have no character that it lacks, and chats have a template.
    for (const AbPrompt& prompt : read("")) EXPECT_FALSE(prompt.tokens.empty()) << prompt.id;
}

}  // namespace
}  // namespace riptide::apps
