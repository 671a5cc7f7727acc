// Weights are found under every name and layout; what is missing, left over or misshaped is named.
#include "models/binder.h"

#include <gtest/gtest.h>

#include <cmath>

#include "models/similar_names.h"
#include "tensor/half.h"
#include "tests/models/expect_says.h"
#include "tests/models/fake_checkpoint.h"

namespace riptide::testing {
namespace {

TEST(Binder, each_format_has_its_names) {
    for (const auto format : {Checkpoint::Format::gguf, Checkpoint::Format::safetensors}) {
        FakeCheckpoint file(format);
        file.add<float>(format == Checkpoint::Format::gguf ? kQueryNames.gguf[0] : kQueryNames.hf[0], DType::f32,
                        {2, 3}, {1, 2, 3, 4, 5, 6});
        Binder bind(file);
        const Weight w = bind.matrix(kQueryNames, 2, 3);
        EXPECT_EQ(static_cast<const float*>(w.row(1))[2], 6);
        EXPECT_EQ(bind.parameters(), 6);
        EXPECT_EQ(bind.weight_bytes(), 24);
        bind.finish();
    }
}

TEST(Binder, the_first_of_several_names_counts_and_the_other_is_left_over) {
    FakeCheckpoint file(Checkpoint::Format::gguf);
    file.add<float>("b", DType::f32, {1, 1}, {2});
    const TensorNames names = {{"a", "b"}, {}};
    {
        Binder bind(file);
        EXPECT_EQ(*static_cast<const float*>(bind.matrix(names, 1, 1).data), 2);
        bind.finish();
    }
    file.add<float>("a", DType::f32, {1, 1}, {1});
    Binder bind(file);
    EXPECT_EQ(*static_cast<const float*>(bind.matrix(names, 1, 1).data), 1);
    EXPECT_SAYS(bind.finish(), "m.safetensors", "1 tensor ", "b [1, 1]");
}

TEST(Binder, a_missing_tensor_names_what_was_looked_for_and_what_is_similar) {
    FakeCheckpoint file(Checkpoint::Format::gguf);
    file.add_zeros("blk.0.attn_qq.weight", DType::f32, {1, 1});
    file.add_zeros("something.else", DType::f32, {1, 1});
    Binder bind(file);
    EXPECT_SAYS(bind.matrix({{"blk.0.attn_q.weight", "blk.0.wq.weight"}, {}}, 1, 1),
                "m.safetensors: missing tensor blk.0.attn_q.weight", "blk.0.wq.weight",
                "similar names in the file: blk.0.attn_qq.weight");
    EXPECT_EQ(message_of([&] { bind.matrix({{"zzz"}, {}}, 1, 1); }), "m.safetensors: missing tensor zzz");
}

TEST(Binder, a_misshaped_tensor_names_both_shapes) {
    FakeCheckpoint file(Checkpoint::Format::gguf);
    file.add_zeros("m", DType::f32, {2, 3});
    file.add_zeros("v", DType::f32, {5});
    file.add_zeros("i", DType::i32, {2, 3});
    file.add_zeros("e", DType::f32, {4, 2, 3});
    Binder bind(file);
    EXPECT_SAYS(bind.matrix({{"m"}, {}}, 3, 2), "tensor m has shape [2, 3], expected [3, 2]");
    EXPECT_SAYS(bind.vector({{"v"}, {}}, 4), "tensor v has shape [5], expected [4]");
    EXPECT_SAYS(bind.vector({{"m"}, {}}, 6), "tensor m has shape [2, 3], expected [6]");
    EXPECT_SAYS(bind.matrix({{"i"}, {}}, 2, 3), "tensor i is i32");
    EXPECT_SAYS(bind.experts({.gguf = "e", .hf_each = "", .hf_stack = ""}, 5, 2, 3),
                "tensor e has shape [4, 2, 3], expected [5, 2, 3]");
}

TEST(Binder, vectors_come_from_any_float_type_and_must_be_finite) {
    FakeCheckpoint file(Checkpoint::Format::gguf);
    file.add<float>("f", DType::f32, {2}, {1.5f, -2});
    file.add<uint16_t>("h", DType::f16, {2}, {f32_to_f16(1.5f), f32_to_f16(-2)});
    file.add<uint16_t>("b", DType::bf16, {2}, {f32_to_bf16(1.5f), f32_to_bf16(-2)});
    file.add<float>("n", DType::f32, {2}, {1, NAN});
    file.add_zeros("i", DType::i32, {2});
    Binder bind(file);
    const std::vector<float> expected = {1.5f, -2};
    for (const char* name : {"f", "h", "b"}) EXPECT_EQ(bind.vector({{name}, {}}, 2), expected) << name;
    EXPECT_SAYS(bind.vector({{"n"}, {}}, 2), "tensor n has the value nan at 1");
    EXPECT_SAYS(bind.vector({{"i"}, {}}, 2), "tensor i is i32, expected f32, f16 or bf16");
}

TEST(Binder, leftovers_are_errors_except_known_ones) {
    FakeCheckpoint file;
    for (const char* name :
         {"a.rotary_emb.inv_freq", "a.k_scale", "a.v_scale", "a.input_global_scale", "a.weight_shape"})
        file.add_zeros(name, DType::f32, {1});
    Binder(file).finish();
    EXPECT_EQ(Binder(file).ignored().size(), 5u);
    for (int i = 0; i < 9; ++i) file.add_zeros(fmt::format("x.{}", i), DType::f32, {7, 2});
    EXPECT_SAYS(Binder(file).finish(), "9 tensors", "x.0 [7, 2]", "and 4 more");
}

TEST(Binder, a_wrapped_language_model_is_found) {
    FakeCheckpoint file;
    file.add_zeros("language_model." + kQueryNames.hf[0], DType::bf16, {2, 3});
    Binder bind(file);
    EXPECT_TRUE(bind.matrix(kQueryNames, 2, 3));
    bind.finish();
}

TEST(Binder, experts_are_slices_of_a_stack_or_tensors_of_their_own) {
    const ExpertNames names = {.gguf = "g", .hf_each = "each.{}.weight", .hf_stack = "stack", .hf_half = -1};
    std::vector<float> values(2 * 3 * 4);
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
    FakeCheckpoint gguf(Checkpoint::Format::gguf), stacked, each;
    gguf.add("g", DType::f32, {2, 3, 4}, values);
    stacked.add("stack", DType::f32, {2, 3, 4}, values);
    each.add("each.0.weight", DType::f32, {3, 4}, std::vector<float>(values.begin(), values.begin() + 12));
    each.add("each.1.weight", DType::f32, {3, 4}, std::vector<float>(values.begin() + 12, values.end()));
    for (const FakeCheckpoint* file : {&gguf, &stacked, &each}) {
        Binder bind(*file);
        const std::vector<Weight> experts = bind.experts(names, 2, 3, 4);
        for (int64_t e = 0; e < 2; ++e)
            for (int64_t r = 0; r < 3; ++r)
                EXPECT_EQ(*static_cast<const float*>(experts[static_cast<size_t>(e)].row(r)),
                          static_cast<float>(e * 12 + r * 4));
        EXPECT_EQ(bind.parameters(), 24);
        bind.finish();
    }
    FakeCheckpoint none;
    none.add_zeros("each.1.weight", DType::f32, {3, 4});
    EXPECT_SAYS(Binder(none).experts(names, 2, 3, 4), "missing tensor each.0.weight", "stack", "each.1.weight");
}

TEST(Binder, gate_and_up_may_share_a_stack) {
    std::vector<float> values(2 * 4 * 2);  // 2 experts, 2 gate rows above 2 up rows, 2 columns
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
    FakeCheckpoint file;
    file.add("gate_up", DType::f32, {2, 4, 2}, values);
    Binder bind(file);
    const auto gate = bind.experts({.gguf = "", .hf_each = "{}", .hf_stack = "gate_up", .hf_half = 0}, 2, 2, 2);
    const auto up = bind.experts({.gguf = "", .hf_each = "{}", .hf_stack = "gate_up", .hf_half = 1}, 2, 2, 2);
    EXPECT_EQ(*static_cast<const float*>(gate[1].row(0)), 8);
    EXPECT_EQ(*static_cast<const float*>(up[0].row(1)), 6);
    EXPECT_EQ(*static_cast<const float*>(up[1].row(0)), 12);
    EXPECT_EQ(bind.parameters(), 16);
    EXPECT_EQ(bind.weight_bytes(), 64);
    bind.finish();
}

TEST(ForeignFormats, are_refused_by_name) {
    for (const auto& [method, name] : {std::pair{"gptq", "GPTQ"}, {"awq", "AWQ"}, {"bitsandbytes", "bitsandbytes"}}) {
        FakeCheckpoint file;
        file.metadata()["config"] = {{"quantization_config", {{"quant_method", method}}}};
        EXPECT_SAYS(Binder{file}, "m.safetensors: its weights are packed in " + std::string(name) + "'s format",
                    "quant_method is \"" + std::string(method) + "\"", "take a GGUF file");
    }
    for (const auto& [tensor, name] : {std::pair{"a.q_proj.g_idx", "GPTQ"},
                                       {"a.q_proj.qweight", "GPTQ or AWQ"},
                                       {"a.q_proj.weight.absmax", "bitsandbytes"},
                                       {"a.mlp.switch_mlp.up_proj.weight", "MLX"}}) {
        FakeCheckpoint file;
        file.add_zeros(tensor, DType::i32, {1});
        EXPECT_SAYS(Binder{file}, std::string(name) + "'s format (tensor " + tensor + ")", "take a GGUF file");
    }
    for (const char* method : {"compressed-tensors", "fp8", "modelopt"}) {
        FakeCheckpoint file;
        file.metadata()["config"] = {{"quantization_config", {{"quant_method", method}}}};
        Binder(file).finish();
    }
}

TEST(SimilarNames, nearest_first_and_nothing_far) {
    const std::vector<std::string> known = {"blk.1.attn_k.weight", "blk.0.attn_k.weight", "output.weight",
                                            "blk.0.attn_kk.weight"};
    EXPECT_EQ(similar_names("blk.0.attn_k.weigh", known, 2),
              (std::vector<std::string>{"blk.0.attn_k.weight", "blk.1.attn_k.weight"}));
    EXPECT_TRUE(similar_names("q", known, 3).empty());
}

}  // namespace
}  // namespace riptide::testing
