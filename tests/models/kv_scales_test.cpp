// Scales for FP8 K/V: found, checked, and folded into weights without changing what a model says.
#include "models/kv_scales.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/models/expect_says.h"
#include "tests/models/fake_checkpoint.h"
#include "tests/models/fixture.h"

namespace riptide::testing {
namespace {

const std::string kAttention = "model.layers.0.self_attn";

/// What is folded into, and one scale.
FakeCheckpoint one_layer(const std::string& name, const std::vector<float>& values, std::vector<int64_t> shape = {1},
                         DType matrices = DType::bf16) {
    FakeCheckpoint file;
    for (const char* matrix : {".v_proj.weight", ".o_proj.weight"})
        file.add_zeros(kAttention + matrix, matrices, {4, 4});
    file.add<float>(kAttention + name, DType::f32, std::move(shape), values);
    return file;
}

/// Of a layer with two K/V heads.
KvScale read(const FakeCheckpoint& file, std::string& said, bool v = true) {
    WeightStore store;
    WeightLoader bind(file, store);
    KvScales scales(file, {.fp8_k = true, .fp8_v = v});
    const KvScale scale = scales.next(
        bind, {{kAttention}, 2, {{}, {kAttention + ".v_proj.weight"}}, {{}, {kAttention + ".o_proj.weight"}}});
    said = scales.text();
    return scale;
}

TEST(KvScales, each_name_is_found_and_rounded_up_to_a_power_of_two) {
    std::string said;
    for (const char* name : {".{}_scale", ".{}_proj.{}_scale", ".attn.{}_scale", ".{}_proj.output_scale"}) {
        const auto of = [&](char part) { return fmt::format(fmt::runtime(name), part, part); };
        EXPECT_EQ(read(one_layer(of('k'), {0.3f}, {}), said).k, 0.5f) << name;
        EXPECT_EQ(read(one_layer(of('k'), {4}), said).k, 4) << name;
        EXPECT_EQ(read(one_layer(of('v'), {0.25f, 1.5f}, {2, 1}), said).v, 2) << name;  // the largest head's
    }
    EXPECT_EQ(said, "the checkpoint's K/V scales, rounded up to powers of two: K in 0, V in 1 of 1 layers");
}

TEST(KvScales, what_no_scale_can_be_is_named) {
    const auto says = [](const std::vector<float>& values, const std::vector<int64_t>& shape) {
        const FakeCheckpoint file = one_layer(".v_scale", values, shape);
        std::string said;
        EXPECT_EQ(read(file, said, false).v, 1);  // V is not FP8: nobody asks
        return message_of([&] { read(file, said); });
    };
    const std::string tensor = "m.safetensors: tensor model.layers.0.self_attn.v_scale ";
    const std::string range = ", expected positive numbers, from 2^-64 to 2^64";
    EXPECT_EQ(says({1, NAN}, {2}), tensor + "holds nan" + range);
    EXPECT_EQ(says({0}, {}), tensor + "holds 0" + range);
    EXPECT_EQ(says({INFINITY}, {1}), tensor + "holds inf" + range);
    EXPECT_EQ(says({-2}, {1}), tensor + "holds -2" + range);
    EXPECT_EQ(says({1, 1, 1}, {3}), tensor + "is f32 [3], expected one floating-point value or 2 of them");
}

TEST(KvScales, what_would_not_be_exact_is_left_out_in_words) {
    std::string said;
    EXPECT_EQ(read(one_layer(".v_scale", {8}, {1}, DType::f16), said).v, 1);
    EXPECT_TRUE(said.ends_with("V in 0 of 1 layers; not V in 1 layer, where v_proj is f16")) << said;
    FakeCheckpoint four = one_layer(".k_scale", {8});
    four.metadata()["config"] = {{"quantization_config", {{"kv_cache_scheme", {{"num_bits", 4}, {"type", "float"}}}}}};
    EXPECT_EQ(read(four, said).k, 1);
    EXPECT_EQ(said, "the checkpoint's K/V scales are not used: its kv_cache_scheme has num_bits 4, not 8-bit floats");
}

// ---- whole models ---------------------------------------------------------------------------------------------------

/// A fixture with these scales (0: none), K and V `times` as large, a power of two, and what reads them as much
/// smaller.
std::unique_ptr<Checkpoint> scaled(const std::string& name, float k, float v, float times = 1) {
    const auto file = open_checkpoint(fixture_path(name) + "/model.safetensors");
    auto made = std::make_unique<FakeCheckpoint>();
    made->metadata() = file->metadata();
    for (const TensorInfo& t : file->tensors()) {
        const auto ends = [&](const char* a, const char* b) { return t.name.ends_with(a) || t.name.ends_with(b); };
        if (ends("k_scale", "v_scale")) continue;  // of published layouts
        const float up = ends("k_norm.weight", "v_proj.weight") ? times : 1;
        const float factor = ends("q_norm.weight", "o_proj.weight") ? 1 / times : up;
        std::vector<std::byte> bytes(t.bytes.begin(), t.bytes.end());
        for (size_t i = 0; factor != 1 && i < bytes.size(); i += 2) {
            uint16_t half;
            std::memcpy(&half, &bytes[i], 2);
            half = f32_to_bf16(bf16_to_f32(half) * factor);
            std::memcpy(&bytes[i], &half, 2);
        }
        made->add(t.name, t.dtype, t.shape, bytes);
        const size_t attention = t.name.find("o_proj.weight");
        if (attention == std::string::npos || k == 0) continue;
        made->add<float>(t.name.substr(0, attention) + "k_scale", DType::f32, {1}, {k});
        made->add<float>(t.name.substr(0, attention) + "v_proj.v_scale", DType::f32, {1}, {v});
    }
    return made;
}

class FoldedScales : public ::testing::TestWithParam<std::string> {};

// F16 has fewer bits below 2^-14. On the CPU: kernels of a GPU may round queries.
TEST_P(FoldedScales, change_no_bit_of_the_logits) {
    const Fixture fixture(GetParam());
    const auto plain_file = scaled(GetParam(), 0, 0), file = scaled(GetParam(), 0.011f, 5);
    const auto plain = load_model(*plain_file), model = load_model(*file, {.fp8_k = true, .fp8_v = true});
    EXPECT_NE(model->info().kv_scales, "");
    const auto logits = [&](const Model& m, DType kv) {
        const std::vector<int32_t>& tokens = fixture.prompts[fixture.tap_prompt].tokens;
        return forward_pass(m, nullptr, tokens, Family::decode, nullptr, kv).logits;
    };
    const auto first_choices = [&](const Model& m) {
        const std::vector<float> all = logits(m, DType::f16);
        std::vector<int64_t> out;
        for (auto row = all.begin(); row != all.end(); row += m.info().vocab_size)
            out.push_back(std::max_element(row, row + m.info().vocab_size) - row);
        return out;
    };
    expect_bits(logits(*model, DType::f32), logits(*plain, DType::f32), GetParam());
    EXPECT_EQ(first_choices(*model), first_choices(*plain));
}

INSTANTIATE_TEST_SUITE_P(Fixtures, FoldedScales, ::testing::ValuesIn(all_fixtures()), fixture_name);

// K is then up to some thousands, where e4m3 ends at 448.
TEST(KvScales, values_beyond_fp8_are_right_with_their_scales_and_wrong_without) {
    const std::string name = "laguna_xs2";
    const Fixture fixture(name);
    const auto answer = [&](std::unique_ptr<Checkpoint> file, DType kv) {
        SessionOptions options = fixture.options();
        options.k_dtype = options.v_dtype = kv;
        Session session(std::move(file), options);
        return all_logits(session, fixture.prompts[fixture.tap_prompt].tokens);
    };
    const auto exact = answer(scaled(name, 0, 0), DType::f32), small = answer(scaled(name, 0, 0), DType::f8_e4m3);
    const auto with = answer(scaled(name, 1000, 600, 1024), DType::f8_e4m3);
    const auto without = answer(scaled(name, 0, 0, 1024), DType::f8_e4m3);
    expect_bits(with, small, "stored values are those of the model as it was");
    expect_bits(answer(scaled(name, 1000, 600), DType::f32), exact, "other types do not look at scales");
    const auto error = [&](const std::vector<float>& logits) {
        double sum = 0;
        for (size_t i = 0; i < logits.size(); ++i) sum += std::pow(double{logits[i]} - double{exact[i]}, 2);
        return std::sqrt(sum / static_cast<double>(logits.size()));
    };
    EXPECT_GT(error(without), 5 * error(with));
}

}  // namespace
}  // namespace riptide::testing
