// Rows of weights whose scales lie in planes of their own.
#include <gtest/gtest.h>

#include "quant/blocks.h"
#include "quant/codec.h"
#include "quant_data.h"
#include "tensor/half.h"

namespace riptide {

namespace {

std::vector<uint8_t> random_bytes(int64_t n, uint32_t seed) {
    std::mt19937 engine(seed);
    std::vector<uint8_t> bytes(static_cast<size_t>(n));
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(engine());
    return bytes;
}

Weight make_weight(const std::vector<uint8_t>& data, DType type, int64_t rows, int64_t cols) {
    Weight w;
    w.data = data.data();
    w.dtype = type;
    w.rows = rows;
    w.cols = cols;
    w.row_bytes = row_bytes(type, cols);
    return w;
}

std::vector<uint16_t> bf16_scales(int64_t n) {
    std::vector<uint16_t> scales;
    for (int64_t i = 0; i < n; ++i) scales.push_back(f32_to_bf16(0.01f * static_cast<float>(i + 1)));
    return scales;
}

}  // namespace

TEST(WeightRow, f8_with_128_by_128_blocks_ragged_at_the_edges) {
    const int64_t rows = 130, cols = 200;  // 2 x 2 blocks
    std::vector<uint8_t> data = random_bytes(rows * cols, 1);
    for (uint8_t& byte : data) byte = (byte & 0x7F) == 0x7F ? 0 : byte;  // no NaN
    Weight w = make_weight(data, DType::f8_e4m3, rows, cols);
    const std::vector<float> scales = {0.5f, 3.0f, 0.01f, 7.0f};
    w.scales = scales.data();
    w.scale_rows = w.scale_cols = 128;
    w.scale = 0.3f;
    std::vector<float> row(static_cast<size_t>(cols));
    for (int64_t r : {0, 1, 127, 128, 129}) {
        dequantize_row(w, r, row.data());
        for (int64_t c = 0; c < cols; ++c) {
            const float stored = f8_e4m3_to_f32(data[static_cast<size_t>(r * cols + c)]);
            const float plane = scales[static_cast<size_t>(r / 128 * 2 + c / 128)];
            EXPECT_EQ(row[static_cast<size_t>(c)], stored * plane * 0.3f) << r << ", " << c;
        }
    }
}

TEST(WeightRow, f8_per_channel_and_per_tensor) {
    const std::vector<uint8_t> data(48, 0x38);  // 1.0
    Weight w = make_weight(data, DType::f8_e4m3, 3, 16);
    w.scale = 0.25f;
    float row[16];
    dequantize_row(w, 2, row);
    for (float v : row) EXPECT_EQ(v, 0.25f);
    const std::vector<uint16_t> scales = bf16_scales(3);
    w.scales = scales.data();
    w.scale_dtype = DType::bf16;
    w.scale_cols = 16;
    w.scale = 1;
    dequantize_row(w, 2, row);
    for (float v : row) EXPECT_EQ(v, bf16_to_f32(scales[2]));
}

TEST(WeightRow, i4_pack_is_offset_binary_in_little_endian_words) {
    const int64_t rows = 2, cols = 256;
    std::vector<uint32_t> words(static_cast<size_t>(rows * cols / 8));
    const auto value = [](int64_t r, int64_t c) { return static_cast<int>((r * 5 + c * 7 + c / 16) % 16) - 8; };
    for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < cols; ++c)
            words[static_cast<size_t>(r * cols / 8 + c / 8)] |= static_cast<uint32_t>(value(r, c) + 8) << (4 * (c % 8));
    std::vector<uint8_t> data(words.size() * 4);
    std::memcpy(data.data(), words.data(), data.size());
    Weight w = make_weight(data, DType::i4_pack, rows, cols);
    const std::vector<uint16_t> scales = bf16_scales(rows * cols / 128);
    w.scales = scales.data();
    w.scale_dtype = DType::bf16;
    w.scale_cols = 128;
    std::vector<float> row(static_cast<size_t>(cols));
    for (int64_t r = 0; r < rows; ++r) {
        dequantize_row(w, r, row.data());
        for (int64_t c = 0; c < cols; ++c)
            EXPECT_EQ(row[static_cast<size_t>(c)],
                      static_cast<float>(value(r, c)) * bf16_to_f32(scales[static_cast<size_t>(r * 2 + c / 128)]));
    }
}

TEST(WeightRow, i8_pack_is_offset_binary_in_little_endian_words) {
    const int64_t cols = 128;
    std::vector<uint32_t> words(static_cast<size_t>(cols / 4));
    const auto value = [](int64_t c) { return static_cast<int>(c * 37 % 256) - 128; };
    for (int64_t c = 0; c < cols; ++c)
        words[static_cast<size_t>(c / 4)] |= static_cast<uint32_t>(value(c) + 128) << (8 * (c % 4));
    std::vector<uint8_t> data(words.size() * 4);
    std::memcpy(data.data(), words.data(), data.size());
    Weight w = make_weight(data, DType::i8_pack, 1, cols);
    const std::vector<uint16_t> scales = bf16_scales(1);
    w.scales = scales.data();
    w.scale_dtype = DType::bf16;
    w.scale_cols = 128;
    float row[128];
    dequantize_row(w, 0, row);
    for (int64_t c = 0; c < cols; ++c) EXPECT_EQ(row[c], static_cast<float>(value(c)) * bf16_to_f32(scales[0]));
}

TEST(WeightRow, f4_pack_with_f8_scales_and_a_global_divisor) {
    const int64_t rows = 2, cols = 64;
    const std::vector<uint8_t> data = random_bytes(rows * cols / 2, 3);
    std::vector<uint8_t> scales;
    for (int i = 0; i < rows * cols / 16; ++i) scales.push_back(f32_to_f8_e4m3(0.5f * static_cast<float>(i + 1)));
    Weight w = make_weight(data, DType::f4_pack, rows, cols);
    w.scales = scales.data();
    w.scale_dtype = DType::f8_e4m3;
    w.scale_cols = 16;
    w.scale = 1.0f / 3.0f;
    std::vector<float> row(static_cast<size_t>(cols));
    for (int64_t r = 0; r < rows; ++r) {
        dequantize_row(w, r, row.data());
        for (int64_t c = 0; c < cols; ++c) {
            const int code = data[static_cast<size_t>((r * cols + c) / 2)] >> (c % 2 * 4) & 15;
            const float plane = f8_e4m3_to_f32(scales[static_cast<size_t>(r * 4 + c / 16)]);
            EXPECT_EQ(row[static_cast<size_t>(c)], 0.5f * kE2M1Doubled[code] * plane * w.scale) << r << ", " << c;
        }
    }
}

TEST(WeightRow, float_and_block_rows_are_dequantize_times_scale) {
    for (DType type : {DType::f32, DType::f16, DType::bf16, DType::q4_k, DType::q6_k, DType::q8_0, DType::nvfp4}) {
        if (!can_quantize(type)) continue;
        const std::vector<float> source = test::gaussian(3 * 256, 11);
        std::vector<uint8_t> data(static_cast<size_t>(3 * row_bytes(type, 256)));
        quantize(type, source.data(), data.data(), 3 * 256);
        Weight w = make_weight(data, type, 3, 256);
        w.scale = 1.5f;
        float row[256], expected[256];
        dequantize_row(w, 1, row);
        dequantize(type, w.row(1), expected, 256);
        for (int c = 0; c < 256; ++c) EXPECT_EQ(row[c], expected[c] * 1.5f) << dtype_name(type);
    }
}

}  // namespace riptide
