// Quantised weights in every published layout mean what their publishers say, number for number.
#include <gtest/gtest.h>

#include <cmath>

#include "models/binder.h"
#include "quant/codec.h"
#include "tensor/half.h"
#include "tests/models/expect_says.h"
#include "tests/models/fake_checkpoint.h"

namespace riptide::testing {
namespace {

const std::string kStem = "model.layers.0.self_attn.q_proj";

/// Binds q_proj as [rows, cols] and checks that nothing is left over.
Weight bind_packed(const FakeCheckpoint& file, int64_t rows, int64_t cols) {
    Binder bind(file);
    const Weight w = bind.matrix(kQueryNames, rows, cols);
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
    EXPECT_SAYS(bind_packed(none, 200, 256), "q_proj.weight needs", "q_proj.weight_scale, which is missing",
                "so is model.layers.0.self_attn.q_proj.weight_scale_inv");
}

/// All values of a matrix, row after row.
std::vector<float> values_of(const Weight& w) {
    std::vector<float> values(static_cast<size_t>(w.rows * w.cols));
    for (int64_t r = 0; r < w.rows; ++r) dequantize_row(w, r, values.data() + r * w.cols);
    return values;
}

// 0x38 is 1, 0x30 is 0.5, 0xC0 is -2.
TEST(PackedWeights, fp8_with_ragged_blocks_is_multiplied_by_what_is_called_inverse) {
    const int64_t N = 130, K = 300;  // blocks of 128 and 2 rows, of 128, 128 and 44 columns
    std::vector<uint8_t> codes(static_cast<size_t>(N * K), 0x38);
    codes[static_cast<size_t>(127 * K + 255)] = 0x30;
    codes.back() = 0xC0;
    const std::vector<float> scales = {4, 8, 16, 32, 64, 128};
    std::vector<uint16_t> halves;
    for (const float scale : scales) halves.push_back(f32_to_bf16(scale));
    for (const DType type : {DType::f32, DType::bf16}) {
        FakeCheckpoint file;
        file.add(kStem + ".weight", DType::f8_e4m3, {N, K}, codes);
        if (type == DType::f32) file.add(kStem + ".weight_scale_inv", type, {2, 3}, scales);
        else file.add(kStem + ".weight_scale_inv", type, {2, 3}, halves);
        const std::vector<float> w = values_of(bind_packed(file, N, K));
        const auto at = [&](int64_t r, int64_t c) { return w[static_cast<size_t>(r * K + c)]; };
        EXPECT_EQ(at(0, 0), 4);
        EXPECT_EQ(at(127, 255), 0.5f * 8);
        EXPECT_EQ(at(127, 256), 16);
        EXPECT_EQ(at(128, 127), 32);
        EXPECT_EQ(at(129, 298), 128);
        EXPECT_EQ(at(129, 299), -2 * 128);
    }
    for (const std::vector<int64_t>& shape : {std::vector<int64_t>{1, 2}, {3, 2}}) {  // rounded down, turned
        FakeCheckpoint file;
        file.add(kStem + ".weight", DType::f8_e4m3, {N, K}, codes);
        file.add_zeros(kStem + ".weight_scale_inv", DType::f32, shape);
        EXPECT_SAYS(bind_packed(file, N, K),
                    "q_proj.weight_scale_inv has shape " + fmt::format("{}", shape[0] == 1 ? "[1, 2]" : "[3, 2]"));
    }
    FakeCheckpoint both;
    both.add(kStem + ".weight", DType::f8_e4m3, {N, K}, codes);
    for (const char* name : {".weight_scale", ".weight_scale_inv"}) both.add(kStem + name, DType::f32, {2, 3}, scales);
    EXPECT_SAYS(bind_packed(both, N, K), "q_proj.weight has two scales", "q_proj.weight_scale and",
                "q_proj.weight_scale_inv");
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

TEST(PackedWeights, a_stack_of_fp8_gate_and_up_shares_its_scales) {
    const auto names = [](int half) {
        return ExpertNames{.gguf = "", .hf_each = "{}", .hf_stack = "gate_up", .hf_half = half};
    };
    const auto make = [](int64_t rows) {
        FakeCheckpoint file;
        file.add_zeros("gate_up", DType::f8_e4m3, {2, 2 * rows, 200});
        std::vector<float> scales(static_cast<size_t>(2 * ((2 * rows + 127) / 128) * 2));
        for (size_t i = 0; i < scales.size(); ++i) scales[i] = static_cast<float>(i);
        file.add("gate_up_scale_inv", DType::f32, {2, (2 * rows + 127) / 128, 2}, scales);
        return file;
    };
    const FakeCheckpoint file = make(256);  // of each expert two blocks of gate above two of up, two blocks wide
    Binder bind(file);
    const std::vector<Weight> gate = bind.experts(names(0), 2, 256, 200), up = bind.experts(names(1), 2, 256, 200);
    bind.finish();
    EXPECT_EQ(gate[0].plane_scale(255, 199), 3);
    EXPECT_EQ(up[0].plane_scale(0, 0), 4);
    EXPECT_EQ(gate[1].plane_scale(0, 0), 8);
    EXPECT_EQ(up[1].plane_scale(255, 199), 15);
    const FakeCheckpoint shared = make(192);
    EXPECT_SAYS(Binder(shared).experts(names(0), 2, 192, 200), "gate_up has gate and up of 192 rows each",
                "a multiple of 128");
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

// E2M1 codes 1 to 7 are 0.5, 1, 1.5, 2, 3, 4, 6, with 8 added negative; E4M3 0x38 is 1 and 0x40 is 2.
TEST(PackedWeights, nvfp4_of_modelopt_multiplies_by_its_second_scale) {
    std::vector<uint8_t> codes(16, 0);
    codes[0] = 0x21;  // columns 0 and 1: 0.5 and 1
    codes[7] = 0xF7;  // columns 14 and 15: 6 and -6
    codes[8] = 0x0B;  // columns 16 and 17: -1.5 and 0
    const auto make = [&](const char* weight, const char* second, std::vector<int64_t> shape) {
        FakeCheckpoint file;
        file.add(kStem + weight, DType::u8, {1, 16}, codes);
        file.add<uint8_t>(kStem + ".weight_scale", DType::f8_e4m3, {1, 2}, {0x38, 0x40});
        file.add<float>(kStem + second, DType::f32, std::move(shape), {0.25f});
        file.add<float>(kStem + ".input_scale", DType::f32, {}, {3});
        return file;
    };
    for (const std::vector<int64_t>& shape : {std::vector<int64_t>{}, std::vector<int64_t>{1}}) {
        const FakeCheckpoint modelopt = make(".weight", ".weight_scale_2", shape);
        const FakeCheckpoint compressed = make(".weight_packed", ".weight_global_scale", shape);
        std::vector<float> w = values_of(bind_packed(modelopt, 1, 32));
        EXPECT_EQ(w[0], 0.125f);  // 0.5 * 1 * 0.25
        EXPECT_EQ(w[1], 0.25f);
        EXPECT_EQ(w[14], 1.5f);
        EXPECT_EQ(w[15], -1.5f);
        EXPECT_EQ(w[16], -0.75f);  // -1.5 * 2 * 0.25
        w = values_of(bind_packed(compressed, 1, 32));
        EXPECT_EQ(w[0], 2);  // 0.5 * 1 / 0.25
        EXPECT_EQ(w[15], -24);
        EXPECT_EQ(w[16], -12);
    }
    const FakeCheckpoint divisor = make(".weight", ".weight_global_scale", {1});
    EXPECT_SAYS(bind_packed(divisor, 1, 32), "q_proj.weight needs", "q_proj.weight_scale_2, which is missing");
}

TEST(PackedWeights, nvfp4_in_gguf_may_have_a_factor_beside_it) {
    const auto make = [](DType type, std::vector<int64_t> shape, const std::vector<float>& factors) {
        FakeCheckpoint file(Checkpoint::Format::gguf);
        file.add_zeros("blk.0.ffn_up.weight", type, std::move(shape));
        file.add("blk.0.ffn_up.scale", DType::f32, {std::ssize(factors)}, factors);
        file.add("blk.0.ffn_up.input_scale", DType::f32, {std::ssize(factors)}, factors);
        return file;
    };
    const TensorNames one = {{"blk.0.ffn_up.weight"}, {}};
    const ExpertNames stack = {.gguf = "blk.0.ffn_up.weight", .hf_each = "", .hf_stack = ""};
    {
        const FakeCheckpoint file = make(DType::nvfp4, {3, 64}, {0.3f});
        Binder bind(file);
        EXPECT_EQ(bind.matrix(one, 3, 64).scale, 0.3f);
        bind.finish();
        EXPECT_EQ(bind.parameters(), 3 * 64);
    }
    {
        const FakeCheckpoint file = make(DType::nvfp4, {2, 3, 64}, {0.3f, 0.7f});
        Binder bind(file);
        const std::vector<Weight> experts = bind.experts(stack, 2, 3, 64);
        EXPECT_EQ(experts[0].scale, 0.3f);
        EXPECT_EQ(experts[1].scale, 0.7f);
        bind.finish();
    }
    const FakeCheckpoint few = make(DType::nvfp4, {2, 3, 64}, {0.3f});
    EXPECT_SAYS(Binder(few).experts(stack, 2, 3, 64), "blk.0.ffn_up.scale is f32 [1], expected f32 [2]");
    const FakeCheckpoint zero = make(DType::nvfp4, {3, 64}, {0});
    EXPECT_SAYS(Binder(zero).matrix(one, 3, 64), "blk.0.ffn_up.scale holds 0");
    const FakeCheckpoint other = make(DType::q8_0, {3, 64}, {0.3f});
    EXPECT_SAYS(Binder(other).matrix(one, 3, 64), "blk.0.ffn_up.scale multiplies the product with blk.0.ffn_up.weight",
                "which is q8_0", "for nvfp4 alone");
}

}  // namespace
}  // namespace riptide::testing
