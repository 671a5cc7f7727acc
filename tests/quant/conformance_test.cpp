// Decoders and quantisers against data made by the reference implementation of the formats.
#include <gtest/gtest.h>

#include "quant/codec.h"
#include "quant_data.h"

namespace riptide {
namespace {

using test::ReferenceFile;

class Conformance : public ::testing::TestWithParam<DType> {
  protected:
    void SetUp() override {
        std::string reason;
        if (!test::read_reference(GetParam(), file_, reason)) GTEST_SKIP() << reason;
        ASSERT_EQ(static_cast<int64_t>(file_.bytes.size()),
                  row_bytes(file_.type, static_cast<int64_t>(file_.input.size())));
    }
    ReferenceFile file_;
};

TEST_P(Conformance, dequantised_values_are_bit_exact) {
    std::vector<float> values(file_.values.size(), NAN);
    dequantize(file_.type, file_.bytes.data(), values.data(), static_cast<int64_t>(values.size()));
    for (size_t i = 0; i < values.size(); ++i)
        ASSERT_TRUE(test::same_bits(values[i], file_.values[i]))
            << file_.name << " value " << i << ": " << values[i] << ", expected " << file_.values[i];
}

TEST_P(Conformance, unaligned_source_gives_the_same_values) {
    std::vector<uint8_t> shifted(file_.bytes.size() + 1);
    std::copy(file_.bytes.begin(), file_.bytes.end(), shifted.begin() + 1);
    std::vector<float> values(file_.values.size(), NAN);
    dequantize(file_.type, shifted.data() + 1, values.data(), static_cast<int64_t>(values.size()));
    for (size_t i = 0; i < values.size(); ++i)
        ASSERT_TRUE(test::same_bits(values[i], file_.values[i])) << file_.name << " value " << i;
}

class QuantiserConformance : public Conformance {};

TEST_P(QuantiserConformance, rms_error_is_at_most_that_of_the_reference) {
    const auto n = static_cast<int64_t>(file_.input.size());
    std::vector<uint8_t> bytes(file_.bytes.size());
    std::vector<float> values(file_.input.size(), NAN);
    quantize(file_.type, file_.input.data(), bytes.data(), n);
    dequantize(file_.type, bytes.data(), values.data(), n);
    const double ours = test::rms_error(values, file_.input), reference = test::rms_error(file_.values, file_.input);
    std::printf("%s: rms %.6g, reference %.6g, ratio %.4f\n", dtype_name(file_.type), ours, reference,
                ours / reference);
    EXPECT_LE(ours, 1.01 * reference) << file_.name;
}

std::string name_of(const ::testing::TestParamInfo<DType>& type) { return dtype_name(type.param); }

INSTANTIATE_TEST_SUITE_P(Types, Conformance, ::testing::ValuesIn(test::reference_types()), name_of);
INSTANTIATE_TEST_SUITE_P(Types, QuantiserConformance,
                         ::testing::Values(DType::q8_0, DType::q4_0, DType::q4_1, DType::q5_0, DType::q5_1, DType::q4_k,
                                           DType::q5_k, DType::q6_k, DType::mxfp4, DType::tq2_0),
                         name_of);

}  // namespace
}  // namespace riptide
