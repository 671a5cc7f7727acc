// IQ1, IQ2, IQ3 and TQ1_0 against ggml's own reader.
#include <gtest/gtest.h>

#include <fstream>
#include <random>

#include "quant/codec.h"
#include "quant_data.h"
#include "random_weight.h"

namespace riptide {
namespace {

struct IqType {
    DType type;
    uint64_t hash;  // of what ggml's reader makes of made_blocks() (FNV-1a of the values' bytes); of TQ1_0, of ours
};

class CodecIq : public ::testing::TestWithParam<IqType> {};

constexpr int64_t kBlocks = 512;

/// Any bits but for the exponent of d, so that all values are finite.
std::vector<uint8_t> made_blocks(DType type) {
    const int64_t bytes = dtype_info(type).block_bytes;
    std::mt19937 random(7);
    std::vector<uint8_t> blocks(static_cast<size_t>(kBlocks * bytes));
    for (uint8_t& b : blocks) b = random() & 255;
    for (int64_t i = 0; i < kBlocks; ++i) {
        uint8_t* const block = blocks.data() + i * bytes;
        uint8_t& high = block[type == DType::iq1_m ? 55 : type == DType::tq1_0 ? 53 : 1];
        high = type == DType::iq1_m ? (high & 15) | 0x30 : (high & 0x8F) | 0x30;
    }
    return blocks;
}

TEST_P(CodecIq, any_bits_are_what_ggml_makes_of_them) {
    const std::vector<uint8_t> blocks = made_blocks(GetParam().type);
    std::vector<float> values(kBlocks * 256);
    dequantize(GetParam().type, blocks.data(), values.data(), std::ssize(values));
    uint64_t hash = 0xCBF29CE484222325u;
    for (const float value : values)
        for (int shift = 0; shift < 32; shift += 8)
            hash = (hash ^ (std::bit_cast<uint32_t>(value) >> shift & 255)) * 0x100000001B3u;
    EXPECT_EQ(hash, GetParam().hash);
}

/// u32 n, u32 nbytes, bytes, f32 values[n].
TEST_P(CodecIq, blocks_of_the_reference_decode_bit_for_bit) {
    const std::string path = conformance_dir() + "/quants/" + dtype_name(GetParam().type) + ".dec.bin";
    std::ifstream in(path, std::ios::binary);
    if (!in) GTEST_SKIP() << "no reference data: " << path;
    uint32_t counts[2] = {};
    in.read(reinterpret_cast<char*>(counts), sizeof counts);
    std::vector<uint8_t> bytes(counts[1]);
    std::vector<float> expected(counts[0]), values(counts[0]);
    in.read(reinterpret_cast<char*>(bytes.data()), std::ssize(bytes));
    in.read(reinterpret_cast<char*>(expected.data()), std::ssize(expected) * 4);
    ASSERT_TRUE(in.good());
    dequantize(GetParam().type, bytes.data(), values.data(), std::ssize(values));
    for (size_t i = 0; i < values.size(); ++i) ASSERT_TRUE(test::same_bits(values[i], expected[i])) << "value " << i;
}

TEST_P(CodecIq, random_weights_have_the_deviation_that_was_asked_for) {
    const int64_t n = 256 * 4096;
    std::vector<std::byte> bytes(static_cast<size_t>(row_bytes(GetParam().type, n)));
    random_fill(GetParam().type, bytes.data(), n, 0.02f, 3);
    std::vector<float> values(static_cast<size_t>(n));
    dequantize(GetParam().type, bytes.data(), values.data(), n);
    double squares = 0;
    for (const float v : values) squares += double{v} * v;
    EXPECT_NEAR(std::sqrt(squares / static_cast<double>(n)), 0.02, 0.001);
}

INSTANTIATE_TEST_SUITE_P(
    Types, CodecIq,
    ::testing::Values(IqType{DType::iq1_s, 0x4521cf75f10353c1}, IqType{DType::iq1_m, 0x28a6b682914ca294},
                      IqType{DType::iq2_xxs, 0x94cab77429172806}, IqType{DType::iq2_xs, 0x8e25f9c36375e32c},
                      IqType{DType::iq2_s, 0xd87852e1bae57257}, IqType{DType::iq3_xxs, 0x667d630bbbdb8ea7},
                      IqType{DType::iq3_s, 0x1a668dbd81e95bff}, IqType{DType::tq1_0, 0x76ea6ca993b2a400}),
    [](const auto& type) { return dtype_name(type.param.type); });

}  // namespace
}  // namespace riptide
