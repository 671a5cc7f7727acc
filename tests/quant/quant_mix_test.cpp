// File-level mixes against the published sizes of Laguna's files.
#include "quant/quant_mix.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "quant/codec.h"

namespace riptide {

namespace {

struct NamedShape {
    std::string name;
    std::vector<int64_t> shape;
    int64_t layer;
};

/// The tensors of Laguna XS.2, as row-major shapes.
std::vector<NamedShape> laguna_xs2() {
    std::vector<NamedShape> tensors = {{"token_embd.weight", {100352, 2048}, -1},
                                       {"output_norm.weight", {2048}, -1},
                                       {"output.weight", {100352, 2048}, -1}};
    for (int64_t i = 0; i < 40; ++i) {
        const int64_t heads = i % 4 == 0 ? 48 : 64;
        const auto add = [&](const std::string& name, std::vector<int64_t> shape) {
            tensors.push_back({"blk." + std::to_string(i) + "." + name, std::move(shape), i});
        };
        add("attn_norm.weight", {2048});
        add("ffn_norm.weight", {2048});
        add("attn_q.weight", {heads * 128, 2048});
        add("attn_k.weight", {1024, 2048});
        add("attn_v.weight", {1024, 2048});
        add("attn_output.weight", {2048, heads * 128});
        add("attn_gate.weight", {heads, 2048});
        add("attn_q_norm.weight", {128});
        add("attn_k_norm.weight", {128});
        if (i == 0) {
            add("ffn_gate.weight", {8192, 2048});
            add("ffn_up.weight", {8192, 2048});
            add("ffn_down.weight", {2048, 8192});
            continue;
        }
        add("ffn_gate_inp.weight", {256, 2048});
        add("exp_probs_b.bias", {256});
        add("ffn_gate_exps.weight", {256, 512, 2048});
        add("ffn_up_exps.weight", {256, 512, 2048});
        add("ffn_down_exps.weight", {256, 2048, 512});
        add("ffn_gate_shexp.weight", {512, 2048});
        add("ffn_up_shexp.weight", {512, 2048});
        add("ffn_down_shexp.weight", {2048, 512});
    }
    return tensors;
}

int64_t bytes_of(const NamedShape& tensor, DType type) {
    int64_t rows = 1;
    for (size_t i = 0; i + 1 < tensor.shape.size(); ++i) rows *= tensor.shape[i];
    return rows * row_bytes(type, tensor.shape.back());
}

DType type_of(std::string_view mix, const std::string& name, const std::vector<int64_t>& shape, int64_t layer) {
    return quant_mix_type(mix, name, shape, layer, 40);
}

}  // namespace

TEST(QuantMix, half_of_forty_layers_get_more_bits) {
    const std::vector<int64_t> expected = {0, 1, 2, 3, 4, 7, 10, 13, 16, 19, 22, 25, 28, 31, 34, 35, 36, 37, 38, 39};
    std::vector<int64_t> found;
    for (int64_t i = 0; i < 40; ++i)
        if (quant_mix_more_bits(i, 40)) found.push_back(i);
    EXPECT_EQ(found, expected);
}

TEST(QuantMix, laguna_xs2_in_q4_k_m_has_the_published_size) {
    const std::vector<NamedShape> tensors = laguna_xs2();
    EXPECT_EQ(tensors.size(), 678u);
    int64_t total = 0;
    std::map<DType, int> counts;
    for (const NamedShape& tensor : tensors) {
        const DType type = type_of("q4_k_m", tensor.name, tensor.shape, tensor.layer);
        total += bytes_of(tensor, type);
        ++counts[type];
    }
    EXPECT_EQ(total, 20270574592);
    EXPECT_EQ(counts, (std::map<DType, int>{{DType::f32, 239}, {DType::q4_k, 379}, {DType::q6_k, 60}}));
}

TEST(QuantMix, laguna_xs2_in_bf16_has_the_published_size_plus_f32_routers) {
    int64_t total = 0, f32_elements = 0;
    for (const NamedShape& tensor : laguna_xs2()) {
        const DType type = type_of("bf16", tensor.name, tensor.shape, tensor.layer);
        total += bytes_of(tensor, type);
        if (type == DType::f32) f32_elements += bytes_of(tensor, type) / 4;
    }
    // 33,442,617,088 parameters; routers, biases and norms are f32 here.
    EXPECT_EQ(f32_elements, 20447232 + 9984 + 176128);
    EXPECT_EQ(total, 2 * int64_t{33442617088} + 2 * f32_elements);
}

TEST(QuantMix, q4_k_m_types_of_single_tensors) {
    EXPECT_EQ(type_of("q4_k_m", "token_embd.weight", {100352, 2048}, -1), DType::q4_k);
    EXPECT_EQ(type_of("Q4_K_M", "output.weight", {100352, 2048}, -1), DType::q6_k);
    EXPECT_EQ(type_of("q4_k_m", "blk.7.attn_v.weight", {1024, 2048}, 7), DType::q6_k);
    EXPECT_EQ(type_of("q4_k_m", "blk.6.attn_v.weight", {1024, 2048}, 6), DType::q4_k);
    EXPECT_EQ(type_of("q4_k_m", "blk.0.ffn_down.weight", {2048, 8192}, 0), DType::q6_k);
    EXPECT_EQ(type_of("q4_k_m", "blk.9.attn_gate.weight", {64, 2048}, 9), DType::q4_k);
    EXPECT_EQ(type_of("q4_k_m", "blk.9.ffn_gate_inp.weight", {256, 2048}, 9), DType::f32);
    EXPECT_EQ(type_of("q4_k_m", "blk.9.exp_probs_b.bias", {256}, 9), DType::f32);
    EXPECT_EQ(type_of("q4_k_m", "blk.9.ssm_conv1d.weight", {8192, 4}, 9), DType::f32);
    EXPECT_EQ(quant_mix_type("q4_k_m", "token_embd.weight", std::vector<int64_t>{1000, 512}, -1, 4, true), DType::q6_k);
}

TEST(QuantMix, other_mixes) {
    const std::vector<int64_t> shape = {1024, 2048};
    EXPECT_EQ(type_of("q5_k_m", "blk.7.attn_v.weight", shape, 7), DType::q6_k);
    EXPECT_EQ(type_of("q5_k_m", "blk.6.attn_v.weight", shape, 6), DType::q5_k);
    EXPECT_EQ(type_of("q5_k_s", "blk.0.attn_v.weight", shape, 0), DType::q5_k);
    EXPECT_EQ(type_of("q4_k_s", "blk.3.attn_v.weight", shape, 3), DType::q5_k);
    EXPECT_EQ(type_of("q4_k_s", "blk.4.attn_v.weight", shape, 4), DType::q4_k);
    EXPECT_EQ(type_of("q4_k_s", "blk.4.ffn_down_exps.weight", shape, 4), DType::q5_k);
    EXPECT_EQ(type_of("q4_k_s", "blk.5.ffn_down_exps.weight", shape, 5), DType::q4_k);
    EXPECT_EQ(type_of("q6_k", "output.weight", shape, -1), DType::q6_k);
    EXPECT_EQ(type_of("q8_0", "output.weight", shape, -1), DType::q8_0);
    EXPECT_EQ(type_of("q4_0", "output.weight", shape, -1), DType::q6_k);
    EXPECT_EQ(type_of("q4_0", "blk.0.attn_v.weight", shape, 0), DType::q4_0);
    EXPECT_EQ(type_of("f16", "blk.0.attn_v.weight", shape, 0), DType::f16);
    EXPECT_EQ(type_of("f32", "output.weight", shape, -1), DType::f32);
}

/// A usage error that names a mix which there is.
void expect_names_the_known(void (*ask)()) {
    try {
        ask();
        FAIL() << "no error";
    } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::usage);
        EXPECT_NE(std::string(error.what()).find("q4_k_m"), std::string::npos) << error.what();
    }
}

TEST(QuantMix, small_mixes_keep_more_of_what_counts) {
    const std::vector<int64_t> shape = {1024, 2048};
    const auto expect = [&](const char* mix, const char* part, int64_t layer, DType type) {
        EXPECT_EQ(type_of(mix, "blk." + std::to_string(layer) + "." + part + ".weight", shape, layer), type)
            << mix << " " << part << " " << layer;
    };
    expect("q2_k", "attn_q", 0, DType::q2_k);
    expect("q2_k", "attn_v", 39, DType::q4_k);
    expect("q2_k", "ffn_down_exps", 39, DType::q3_k);
    expect("q2_k", "attn_output", 0, DType::q3_k);
    expect("q3_k_m", "attn_v", 1, DType::q5_k);
    expect("q3_k_m", "attn_v", 2, DType::q4_k);
    expect("q3_k_m", "ffn_down", 1, DType::q5_k);
    expect("q3_k_m", "ffn_down", 2, DType::q4_k);
    expect("q3_k_m", "ffn_up", 0, DType::q3_k);
    expect("iq4_xs", "attn_v", 39, DType::q5_k);
    expect("iq4_xs", "ffn_down_shexp", 4, DType::q5_k);
    expect("iq4_xs", "ffn_down_shexp", 5, DType::iq4_xs);
    expect("iq4_nl", "attn_k", 0, DType::iq4_nl);
    expect("iq3_s", "attn_output", 0, DType::iq3_s);
    expect("iq3_m", "attn_output", 0, DType::q4_k);
    expect("iq3_m", "ffn_gate", 0, DType::iq3_s);
    expect("iq2_s", "ffn_down", 4, DType::iq3_s);
    expect("iq2_s", "ffn_down", 5, DType::iq2_s);
    expect("iq3_xxs", "ffn_down", 4, DType::q4_k);
    expect("iq3_xxs", "attn_output", 39, DType::iq3_s);
    expect("iq2_xs", "attn_v", 39, DType::q4_k);
    expect("iq2_xs", "ffn_down_exps", 4, DType::iq3_xxs);
    expect("iq2_xs", "ffn_down_exps", 5, DType::iq2_xs);
    expect("iq2_xxs", "attn_output", 0, DType::iq2_s);
    expect("iq1_m", "ffn_down_shexp", 0, DType::iq2_xs);
    expect("iq1_s", "attn_output", 0, DType::iq2_xxs);
    for (const char* mix : {"iq3_xxs", "iq2_xs", "iq2_xxs", "iq1_m", "iq1_s", "mxfp4", "tq2_0", "tq1_0"})
        expect(mix, "attn_q", 0, *dtype_from_name(mix));
    EXPECT_EQ(type_of("iq1_s", "token_embd.weight", shape, -1), DType::iq2_s);
    EXPECT_EQ(type_of("iq1_s", "output.weight", shape, -1), DType::q5_k);
    EXPECT_EQ(type_of("tq1_0", "token_embd.weight", shape, -1), DType::q4_k);
    EXPECT_EQ(type_of("mxfp4", "output.weight", shape, -1), DType::q6_k);
    EXPECT_EQ(type_of("iq2_s", "token_embd.weight", shape, -1), DType::iq3_s);
    EXPECT_EQ(type_of("iq2_s", "output.weight", shape, -1), DType::q5_k);
    EXPECT_EQ(type_of("q2_k", "output.weight", shape, -1), DType::q6_k);
    EXPECT_EQ(type_of("q2_k", "token_embd.weight", shape, -1), DType::q2_k);
}

TEST(QuantMix, every_writable_mix_has_quantisers_for_all_its_types) {
    const std::string names = quant_mix_names() + ",";
    for (size_t at = 0, end; (end = names.find(',', at)) != std::string::npos; at = end + 2) {
        const std::string mix = names.substr(at, end - at);
        EXPECT_NO_THROW(check_mix_writable(mix)) << mix;
        for (const int64_t cols : {2048, 96, 100})
            for (int64_t layer = 0; layer < 40; ++layer)
                for (const char* part : {"attn_q", "attn_v", "attn_output", "ffn_down", "ffn_up_exps", "token_embd"})
                    EXPECT_TRUE(can_quantize(quant_mix_type(mix, std::string("blk.0.") + part + ".weight",
                                                            std::vector<int64_t>{8, cols}, layer, 40)))
                        << mix << " " << part << " " << layer;
    }
}

TEST(QuantMix, random_weights_have_mixes_that_nobody_quantises) {
    const std::vector<int64_t> shape = {1024, 2048};
    EXPECT_EQ(type_of("q3_k", "blk.7.attn_v.weight", shape, 7), DType::q3_k);
    EXPECT_EQ(type_of("q3_k", "output.weight", shape, -1), DType::q6_k);
    std::set<DType> types;
    for (int64_t layer = 0; layer < 40; ++layer)
        for (const char* part : {"attn_q", "ffn_down_exps"})
            types.insert(type_of("mixed", "blk." + std::to_string(layer) + "." + part + ".weight", shape, layer));
    EXPECT_EQ(types.size(), 15u);
    EXPECT_EQ(type_of("mixed", "blk.1.ffn_gate_inp.weight", {256, 2048}, 1), DType::f32);
    EXPECT_EQ(quant_mix_names().find("mixed"), std::string::npos);
    EXPECT_NE(quant_mix_names(true).find("mixed"), std::string::npos);
    EXPECT_NO_THROW(check_mix_writable("Q4_K_M"));
    for (const char* mix : {"mixed", "q3_k"}) {
        SCOPED_TRACE(mix);
        EXPECT_THROW(check_mix_writable(mix), Error);
    }
    expect_names_the_known([] { check_mix_writable("mixed"); });
}

TEST(QuantMix, rows_that_do_not_divide_fall_back) {
    const std::string name = "blk.6.attn_q.weight";
    EXPECT_EQ(type_of("q4_k_m", name, {64, 96}, 6), DType::q5_0);
    EXPECT_EQ(type_of("q5_k_m", name, {64, 96}, 6), DType::q5_1);
    EXPECT_EQ(type_of("q6_k", name, {64, 96}, 6), DType::q8_0);
    for (const char* mix : {"q2_k", "q3_k_m", "iq1_s", "iq2_xxs", "iq2_s", "iq3_xxs", "iq3_s", "iq4_xs", "tq1_0"})
        EXPECT_EQ(type_of(mix, name, {64, 96}, 6), DType::iq4_nl);
    for (const char* mix : {"q4_k_m", "q5_k_m", "q6_k", "q8_0", "q4_0"})
        EXPECT_EQ(type_of(mix, name, {64, 100}, 6), DType::f16);
    EXPECT_EQ(type_of("bf16", name, {64, 100}, 6), DType::bf16);
    EXPECT_EQ(quant_mix_asks("q4_k_m", name, std::vector<int64_t>{64, 96}, 6, 40), DType::q4_k);
    EXPECT_EQ(quant_mix_asks("q4_k_m", "blk.7.attn_v.weight", std::vector<int64_t>{64, 100}, 7, 40), DType::q6_k);
    EXPECT_EQ(quant_mix_fit(DType::q4_k, 512), DType::q4_k);
    EXPECT_EQ(quant_mix_fit(DType::f32, 3), DType::f32);
}

TEST(QuantMix, unknown_mixes_are_errors_that_name_the_known_ones) {
    EXPECT_EQ(quant_mix_file_type("q4_k_m"), 15u);
    EXPECT_EQ(quant_mix_file_type("bf16"), 32u);
    expect_names_the_known([] { quant_mix_file_type("q4_k_xl"); });
    expect_names_the_known([] { quant_mix_name("q3"); });
}

TEST(QuantMix, a_mix_has_one_name_however_it_is_spelled) {
    EXPECT_EQ(quant_mix_name("Q4_K"), "q4_k_m");
    EXPECT_EQ(quant_mix_name("q5_k"), "q5_k_m");
    EXPECT_EQ(quant_mix_name("Q5_K_S"), "q5_k_s");
    EXPECT_EQ(quant_mix_file_type("q5_k"), 17u);
}

}  // namespace riptide
