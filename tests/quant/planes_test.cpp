// Weights as GPUs hold them: the planes give the file's values.
#include "quant/planes.h"

#include <gtest/gtest.h>

#include <cstring>

#include "base/error.h"
#include "placed_weight.h"

namespace riptide {

using namespace test;

TEST(Planes, hold_exactly_the_values_of_the_file) {
    for (const WeightKind& kind : kinds()) {
        const RandomWeight random = scrambled(kind, 7, 512, 11);
        const HostPlacement placed(random.w);
        std::vector<float> expected = random.dequantized();
        if (!placed.plan.converted.empty())
            for (float& value : expected) value = f16_to_f32(f32_to_f16(value));
        expect_same_values(decoded(placed.w), expected, kind.name());
        EXPECT_EQ(placed_bytes(placed.w), static_cast<int64_t>(plane_bytes(placed.plan, placed.memory).size()));
    }
}

TEST(Planes, every_type_of_a_checkpoint_has_its_placement) {
    const std::pair<DType, DType> expected[] = {{DType::q4_k, DType::planes_q4_k},
                                                {DType::q5_k, DType::planes_q5_k},
                                                {DType::q6_k, DType::planes_q6_k},
                                                {DType::q8_0, DType::planes_int8},
                                                {DType::q4_0, DType::planes_int4},
                                                {DType::iq4_nl, DType::planes_levels},
                                                {DType::iq4_xs, DType::planes_levels},
                                                {DType::mxfp4, DType::planes_levels},
                                                {DType::nvfp4, DType::planes_levels},
                                                {DType::f32, DType::f32},
                                                {DType::f16, DType::f16},
                                                {DType::bf16, DType::bf16},
                                                {DType::f8_e4m3, DType::f8_e4m3},
                                                {DType::q2_k, DType::planes_q2_k},
                                                {DType::q3_k, DType::planes_q6_k},
                                                {DType::q4_1, DType::f16},
                                                {DType::q5_0, DType::planes_int8},
                                                {DType::q5_1, DType::f16},
                                                {DType::tq2_0, DType::planes_int4},
                                                {DType::tq1_0, DType::planes_int4},
                                                {DType::iq1_s, DType::planes_levels},
                                                {DType::iq1_m, DType::planes_levels},
                                                {DType::iq2_xxs, DType::planes_levels},
                                                {DType::iq2_xs, DType::planes_levels},
                                                {DType::iq2_s, DType::planes_levels},
                                                {DType::iq3_xxs, DType::planes_levels},
                                                {DType::iq3_s, DType::planes_levels}};
    for (const auto& [from, to] : expected) {
        const RandomWeight random({from}, 3, 256, 5);
        const Placement plan = plan_placement(random.w, {.bf16 = false});  // these f32 values bf16 can hold
        EXPECT_EQ(plan.w.dtype, to) << dtype_name(from);
        EXPECT_EQ(plan.converted.empty(), from == to || is_planes(to)) << dtype_name(from);
        EXPECT_EQ(is_planes(plan.w.dtype), plan.w.dtype >= DType::planes_q4_k);
    }
}

TEST(Planes, rows_of_floats_are_padded_to_16_bytes) {
    const WeightKind floats[] = {{DType::f32},
                                 {DType::f16},
                                 {DType::bf16},
                                 {DType::f8_e4m3},
                                 {DType::f8_e4m3, DType::f32, 3, 7, 0.7f},
                                 {DType::f8_e4m3, DType::bf16, 128, 128}};
    for (const WeightKind& kind : floats)
        for (const int64_t cols : {1, 37, 100, 131}) {
            const RandomWeight random(kind, 5, cols, 3);
            const HostPlacement placed(random.w, {.bf16 = false});
            EXPECT_EQ(placed.w.row_bytes % 16, 0);
            EXPECT_EQ(placed.w.row_bytes, (random.w.row_bytes + 15) / 16 * 16);
            expect_same_values(decoded(placed.w), random.dequantized(), kind.name());
            for (int64_t i = random.w.row_bytes; i < placed.w.row_bytes; ++i)
                EXPECT_EQ(placed.memory[static_cast<size_t>(i)], std::byte{0});
        }
}

TEST(Planes, a_matrix_of_f32_that_bf16_can_hold_becomes_bf16) {
    std::vector<float> values(3 * 2048);
    for (size_t i = 0; i < values.size(); ++i) values[i] = bf16_to_f32(static_cast<uint16_t>(0x3F00 + i % 97));
    Weight w{.data = values.data(), .dtype = DType::f32, .rows = 3, .cols = 2048, .row_bytes = 8192};
    HostPlacement placed(w);
    EXPECT_EQ(placed.w.dtype, DType::bf16);
    expect_same_values(decoded(placed.w), values, "bf16");
    values.back() = std::nextafter(1.0f, 2.0f);
    EXPECT_EQ(plan_placement(w).w.dtype, DType::f32);
    values.back() = 1.0f;
    EXPECT_EQ(plan_placement(w, {.bf16 = false}).w.dtype, DType::f32);
}

TEST(Planes, every_code_of_the_small_scales_is_exact) {
    std::vector<uint8_t> data(256 * sizeof(BlockMxfp4));
    for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<uint8_t>(37 * i);
    for (size_t e = 0; e < 256; ++e) data[e * sizeof(BlockMxfp4)] = static_cast<uint8_t>(e);
    Weight w{.data = data.data(), .dtype = DType::mxfp4, .rows = 256, .cols = 32, .row_bytes = sizeof(BlockMxfp4)};
    std::vector<float> expected(256 * 64);
    dequantize(w.dtype, data.data(), expected.data(), 256 * 32);
    expected.resize(256 * 32);
    expect_same_values(decoded(HostPlacement(w).w), expected, "mxfp4");

    data.resize(256 * sizeof(BlockNvfp4));
    for (size_t i = 0; i < data.size(); ++i)
        data[i] = static_cast<uint8_t>(i % sizeof(BlockNvfp4) < 4 ? i / sizeof(BlockNvfp4) + 64 * (i % 4) : 37 * i);
    w = {.data = data.data(), .dtype = DType::nvfp4, .rows = 256, .cols = 64, .row_bytes = sizeof(BlockNvfp4)};
    expected.resize(256 * 64);
    dequantize(w.dtype, data.data(), expected.data(), 256 * 64);
    expect_same_values(decoded(HostPlacement(w).w), expected, "nvfp4");
}

TEST(Planes, a_folded_scale_is_one_rounding_away) {
    const RandomWeight random({DType::f4_pack, DType::f8_e4m3, 1, 16, 0.0123f}, 4, 128, 9);
    const HostPlacement placed(random.w, {.fold_scale = true});
    EXPECT_EQ(placed.w.scale, 1.0f);
    EXPECT_EQ(placed.w.scale_dtype, DType::f32);
    const std::vector<float> expected = random.dequantized(), got = decoded(placed.w);
    for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], expected[i], std::abs(expected[i]) * 0x1p-23f) << i;

    const RandomWeight blocks({.type = DType::nvfp4, .scale = 0.0123f}, 4, 128, 9);
    const HostPlacement apart(blocks.w, {.fold_scale = true});
    EXPECT_EQ(apart.w.scale, 1.0f);
    const std::vector<float> exact = blocks.dequantized(), close = decoded(apart.w);
    for (size_t i = 0; i < close.size(); ++i) EXPECT_NEAR(close[i], exact[i], std::abs(exact[i]) * 0x1p-23f) << i;

    const RandomWeight eight({.type = DType::f8_e4m3, .scale = 0.37f}, 5, 48, 9);
    expect_same_values(decoded(HostPlacement(eight.w, {.fold_scale = true}).w), eight.dequantized(), "f8_e4m3");
}

// What scales of an FP8 K/V cache make of a matrix (models/kv_scales.h).
TEST(Planes, a_power_of_two_goes_into_values_and_planes_that_hold_it_exactly) {
    const auto expect = [](WeightKind kind, float scale, bool inside) {
        kind.scale = scale;
        const RandomWeight random(kind, 5, 256, 17);
        const HostPlacement placed(random.w);
        EXPECT_EQ(placed.w.scale, inside ? 1.0f : scale) << kind.name();
        expect_same_values(decoded(placed.w), random.dequantized(), kind.name());
    };
    for (const float scale : {0x1p-9f, 0x1p12f}) {
        for (const DType type : {DType::f32, DType::bf16}) expect({type}, scale, true);
        for (const DType type : {DType::f16, DType::f8_e4m3}) expect({type}, scale, false);
        for (const DType plane : {DType::f32, DType::bf16}) expect({DType::f8_e4m3, plane, 128, 128}, scale, true);
        expect({DType::i4_pack, DType::bf16, 1, 64}, scale, true);
        expect({DType::i8_pack, DType::f16, 1, 128}, scale, false);
        expect({DType::f4_pack, DType::f8_e4m3, 1, 16}, scale, false);
    }
    expect({DType::bf16}, 0.3f, false);
}

// So what is tested of the one form on a GPU holds for the other.
TEST(Planes, nvfp4_in_blocks_and_in_rows_give_the_same_bytes) {
    constexpr int64_t kRows = 5, kCols = 192;
    RandomWeight blocks = scrambled({.type = DType::nvfp4, .scale = 0.0123f}, kRows, kCols, 21);
    RandomWeight rows({DType::f4_pack, DType::f8_e4m3, 1, 16, 0.0123f}, kRows, kCols, 22);
    auto* block = reinterpret_cast<BlockNvfp4*>(blocks.data.data());
    std::fill(rows.data.begin(), rows.data.end(), std::byte{0});
    for (size_t i = 0; i < kRows * kCols; ++i) {
        BlockNvfp4& b = block[i / 64];
        const size_t g = i % 64 / 16, j = i % 16;
        b.d[g] &= 0x77;  // neither negative nor the code for NaN
        const int code = b.qs[8 * g + j % 8] >> (j < 8 ? 0 : 4) & 15;
        rows.data[i / 2] |= static_cast<std::byte>(code << (i % 2 * 4));
        rows.plane[i / 16] = static_cast<std::byte>(b.d[g]);
    }
    for (const bool fold : {false, true}) {
        const HostPlacement a(blocks.w, {.fold_scale = fold}), b(rows.w, {.fold_scale = fold});
        EXPECT_EQ(a.w.scale, fold ? 1.0f : 0.0123f);
        EXPECT_EQ(a.w.scale, b.w.scale);
        EXPECT_EQ(a.w.scale_dtype, b.w.scale_dtype);
        if (fold) {
            EXPECT_TRUE(same_layout(a.plan, b.plan));
        }
        EXPECT_EQ(plane_bytes(a.plan, a.memory), plane_bytes(b.plan, b.memory));
    }
}

TEST(Planes, a_value_too_large_for_f16_is_an_error) {
    RandomWeight random({DType::q4_1}, 2, 64, 1);
    const uint16_t large = f32_to_f16(60000.0f);
    std::memcpy(random.data.data(), &large, 2);
    std::memcpy(random.data.data() + 4, "\xFF\xFF\xFF\xFF", 4);
    try {
        HostPlacement placed(random.w);
        FAIL() << "no error";
    } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find("q4_1 holds"), std::string::npos) << error.what();
    }
}

}  // namespace riptide
