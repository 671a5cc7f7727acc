// Qwen3.5 as GGUF files: the same model, though its value heads lie in another order.
#include <gtest/gtest.h>

#include <filesystem>

#include "apps/commands/commands.h"
#include "apps/synth/random_checkpoint.h"
#include "tests/models/fixture.h"

namespace riptide::testing {
namespace {

std::string converted(const std::string& name, const std::string& type) {
    const std::string in = fixture_path(name);
    const std::string out = (std::filesystem::temp_directory_path() / fmt::format("{}-{}.gguf", name, type)).string();
    const char* const arguments[] = {"riptide", "quantize", in.c_str(), out.c_str(), "--type", type.c_str()};
    EXPECT_EQ(apps::riptide_main(6, arguments), 0);
    return out;
}

TEST(hybrid_file, gguf_in_bf16_has_the_tokens_of_transformers_and_the_same_logits_but_for_the_order_of_sums) {
    RT_CPU_ONLY("a GPU multiplies with other kernels");
    for (const char* name : {"qwen35_tied", "qwen35_odd", "qwen35_moe"}) {
        const Fixture fixture(name);
        const std::string file = converted(name, "bf16");
        const auto original = fixture.session(), session = Session::open(file, fixture.options());
        const Prompt& prompt = fixture.prompts.back();
        const std::vector<float> expected = all_logits(*original, prompt.tokens),
                                 got = all_logits(*session, prompt.tokens);
        const Variance variance = Variance::of(original->checkpoint(), std::ssize(prompt.tokens));
        ASSERT_EQ(got.size(), expected.size());
        EXPECT_LE(distance(got, expected), 4 * std::sqrt(2 * variance.head) * norm2(expected)) << name;
        session->clear();
        EXPECT_EQ(draw_greedily(*session, prompt.tokens, std::ssize(prompt.greedy)).tokens, prompt.greedy) << name;
        EXPECT_EQ(session->model().info().parameters, original->model().info().parameters);
        std::filesystem::remove(file);
    }
}

TEST(hybrid_file, gguf_has_value_heads_in_tiled_order) {
    RT_CPU_ONLY("about a file");
    const Fixture fixture("qwen35_odd");  // 6 value heads of 2 key heads
    const std::string file = converted(fixture.name, "f32");
    const auto session = Session::open(file, fixture.options());
    EXPECT_EQ(session->model().state_specs()[0].delta.heads, DeltaHeads::tiled);
    EXPECT_EQ(fixture.session()->model().state_specs()[0].delta.heads, DeltaHeads::grouped);
    std::filesystem::remove(file);
}

TEST(hybrid_file, random_weights_are_a_model_that_runs) {
    for (const char* type : {"bf16", "q4_k_m"}) {
        SessionOptions o;
        o.threads = 2;
        o.context = 64;
        if (Gpu* gpu = test_gpu()) o.gpu = gpu->options();
        Session session(apps::random_checkpoint(std::string("qwen3.5-tiny:") + type, 2), o);
        const std::vector<int32_t> tokens(20, 300);
        for (const float v : session.prefill(tokens)) ASSERT_TRUE(std::isfinite(v)) << type;
    }
}

}  // namespace
}  // namespace riptide::testing
