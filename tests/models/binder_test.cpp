// Weights are found under every name and layout; what is missing, left over or misshaped is named.
#include "models/binder.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "models/similar_names.h"
#include "tensor/half.h"
#include "tests/models/fake_checkpoint.h"

namespace riptide::testing {
namespace {

template <class F>
std::string message_of(const F& action) {
    try {
        action();
    } catch (const Error& error) {
        return error.what();
    }
    return "no error";
}

#define EXPECT_SAYS(action, ...)                                                                      \
    do {                                                                                              \
        const std::string message = message_of([&] { action; });                                      \
        for (const std::string part : std::initializer_list<std::string>{__VA_ARGS__})                \
            EXPECT_NE(message.find(part), std::string::npos) << "\"" << part << "\" in: " << message; \
    } while (0)

const TensorNames kName = {{"blk.0.attn_q.weight"}, {"model.layers.0.self_attn.q_proj.weight"}};
const std::string kStem = "model.layers.0.self_attn.q_proj";

TEST(Binder, each_format_has_its_names) {
    for (const auto format : {Checkpoint::Format::gguf, Checkpoint::Format::safetensors}) {
        FakeCheckpoint file(format);
        file.add<float>(format == Checkpoint::Format::gguf ? kName.gguf[0] : kName.hf[0], DType::f32, {2, 3},
                        {1, 2, 3, 4, 5, 6});
        Binder bind(file);
        const Weight w = bind.matrix(kName, 2, 3);
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
    file.add_zeros("language_model." + kName.hf[0], DType::bf16, {2, 3});
    Binder bind(file);
    EXPECT_TRUE(bind.matrix(kName, 2, 3));
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

// ---- compressed-tensors
// -----------------------------------------------------------------------------------------------------

/// Binds q_proj as [rows, cols] and checks that nothing is left over.
Weight bind_packed(const FakeCheckpoint& file, int64_t rows, int64_t cols) {
    Binder bind(file);
    const Weight w = bind.matrix(kName, rows, cols);
    bind.finish();
    EXPECT_EQ(bind.parameters(), rows * cols);
    return w;
}

TEST(PackedWeights, fp8_with_blocks_rows_or_one_scale) {
    const auto make = [](std::vector<int64_t> shape, const std::vector<float>& scales) {
        FakeCheckpoint file;
        file.add_zeros(kStem + ".weight", DType::f8_e4m3, {200, 256});
        file.add(kStem + ".weight_scale", DType::f32, std::move(shape), scales);
        return file;
    };
    const FakeCheckpoint blocks = make({2, 2}, {1, 2, 3, 4});
    Weight w = bind_packed(blocks, 200, 256);
    EXPECT_EQ(w.dtype, DType::f8_e4m3);
    EXPECT_EQ(w.plane_scale(127, 128), 2);
    EXPECT_EQ(w.plane_scale(128, 127), 3);
    std::vector<float> by_row(200);
    for (size_t i = 0; i < 200; ++i) by_row[i] = static_cast<float>(i);
    for (const std::vector<int64_t>& shape : {std::vector<int64_t>{200, 1}, std::vector<int64_t>{200}}) {
        const FakeCheckpoint rows = make(shape, by_row);
        w = bind_packed(rows, 200, 256);
        EXPECT_EQ(w.plane_scale(150, 255), 150);
    }
    const FakeCheckpoint one = make({1}, {0.5f});
    w = bind_packed(one, 200, 256);
    EXPECT_EQ(w.scales, nullptr);
    EXPECT_EQ(w.scale, 0.5f);
    EXPECT_SAYS(bind_packed(make({3, 3}, std::vector<float>(9, 1)), 200, 256), "q_proj.weight_scale has shape [3, 3]");
    FakeCheckpoint none;
    none.add_zeros(kStem + ".weight", DType::f8_e4m3, {200, 256});
    EXPECT_SAYS(bind_packed(none, 200, 256), "q_proj.weight needs", "q_proj.weight_scale, which is missing");
}

TEST(PackedWeights, a_stack_of_fp8_experts_has_blocks) {
    const auto make = [](std::vector<int64_t> shape, const std::vector<float>& scales) {
        FakeCheckpoint file;
        file.add_zeros("stack", DType::f8_e4m3, {2, 200, 128});
        file.add("stack_scale", DType::f32, std::move(shape), scales);
        return file;
    };
    const ExpertNames names = {.gguf = "", .hf_each = "{}", .hf_stack = "stack", .hf_half = -1};
    const FakeCheckpoint file = make({2, 2, 1}, {1, 2, 3, 4});
    Binder bind(file);
    const std::vector<Weight> experts = bind.experts(names, 2, 200, 128);
    bind.finish();
    EXPECT_EQ(bind.parameters(), 2 * 200 * 128);
    EXPECT_EQ(experts[0].plane_scale(127, 5), 1);
    EXPECT_EQ(experts[0].plane_scale(128, 5), 2);
    EXPECT_EQ(experts[1].plane_scale(199, 127), 4);
    const FakeCheckpoint wrong = make({2, 2, 2}, std::vector<float>(8, 1));
    EXPECT_SAYS(Binder(wrong).experts(names, 2, 200, 128), "stack_scale is f32 [2, 2, 2]", "[2, 2, 1]");
}

TEST(PackedWeights, integers_of_4_or_8_bits_by_their_width) {
    for (const int64_t bits : {4, 8}) {
        FakeCheckpoint file;
        file.add_zeros(kStem + ".weight_packed", DType::i32, {6, 256 * bits / 32});
        std::vector<uint16_t> scales;
        for (int i = 0; i < 12; ++i) scales.push_back(f32_to_bf16(static_cast<float>(i)));
        file.add(kStem + ".weight_scale", DType::bf16, {6, 2}, scales);
        file.add<int64_t>(kStem + ".weight_shape", DType::i64, {2}, {6, 256});
        const Weight w = bind_packed(file, 6, 256);
        EXPECT_EQ(w.dtype, bits == 4 ? DType::i4_pack : DType::i8_pack);
        EXPECT_EQ(w.row_bytes, 256 * bits / 8);
        EXPECT_EQ(w.plane_scale(5, 127), 10);
        EXPECT_EQ(w.plane_scale(5, 128), 11);
        EXPECT_EQ(bytes_read(w), 6 * 256 * bits / 8 + 24);
    }
    FakeCheckpoint wrong;
    wrong.add_zeros(kStem + ".weight_packed", DType::i32, {6, 24});
    EXPECT_SAYS(bind_packed(wrong, 6, 256),
                "q_proj.weight_packed is i32 [6, 24], expected i32 [6, 32 or 64] or u8 [6, 128]");
}

TEST(PackedWeights, nvfp4_divides_by_the_global_scale) {
    const auto make = [](float global, std::vector<int64_t> scale_shape) {
        FakeCheckpoint file;
        file.add_zeros(kStem + ".weight_packed", DType::u8, {4, 32});
        file.add_zeros(kStem + ".weight_scale", DType::f8_e4m3, std::move(scale_shape));
        file.add<float>(kStem + ".weight_global_scale", DType::f32, {1}, {global});
        file.add<float>(kStem + ".input_global_scale", DType::f32, {1}, {3});
        return file;
    };
    const FakeCheckpoint file = make(8, {4, 4});
    const Weight w = bind_packed(file, 4, 64);
    EXPECT_EQ(w.dtype, DType::f4_pack);
    EXPECT_EQ(w.scale, 0.125f);
    EXPECT_EQ(w.scale_cols, 16);
    EXPECT_SAYS(bind_packed(make(8, {4, 2}), 4, 64), "q_proj.weight_scale is f8_e4m3 [4, 2], expected f8_e4m3 [4, 4]");
    EXPECT_SAYS(bind_packed(make(0, {4, 4}), 4, 64), "weight_global_scale is 0, expected a positive number");
    EXPECT_SAYS(bind_packed(make(NAN, {4, 4}), 4, 64), "weight_global_scale is nan");
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
