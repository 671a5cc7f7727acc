// Every released spelling of Laguna's hyper-parameters gives the right numbers, and contradictions are refused in
// words.
#include "models/laguna_config.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <numeric>

#include "base/error.h"
#include "base/json.h"
#include "ops/rope.h"
#include "tests/models/expect_says.h"
#include "tests/models/laguna_metadata.h"

namespace riptide::testing {
namespace {

LagunaConfig from_hf(const json::object& config) { return laguna_config_from_hf(ConfigReader(config, "config.json")); }
LagunaConfig laguna_from_gguf(const json::object& keys) {
    return laguna_config_from_gguf(ConfigReader(keys, "m.gguf", "laguna."));
}

void expect_error(const std::function<void()>& action, const std::vector<std::string>& parts) {
    const std::string message = message_of(action);
    for (const std::string& part : parts)
        EXPECT_NE(message.find(part), std::string::npos) << "\"" << part << "\" in: " << message;
}

int64_t count(const std::vector<char>& flags) { return std::accumulate(flags.begin(), flags.end(), int64_t{0}); }

void expect_xs_shape(const LagunaConfig& c) {
    EXPECT_EQ(c.hidden_size, 2048);
    EXPECT_EQ(c.num_hidden_layers, 40);
    EXPECT_EQ(c.num_key_value_heads, 8);
    EXPECT_EQ(c.head_dim, 128);
    EXPECT_EQ(c.vocab_size, 100352);
    EXPECT_EQ(count(c.is_sliding), 30);
    for (size_t l = 0; l < 40; ++l) {
        EXPECT_EQ(c.is_sliding[l], l % 4 != 0);
        EXPECT_EQ(c.num_attention_heads_per_layer[l], l % 4 == 0 ? 48 : 64);
    }
    EXPECT_EQ(c.sliding_window, 512);
    EXPECT_EQ(count(c.is_sparse), 39);
    EXPECT_FALSE(c.is_sparse[0]);
    EXPECT_EQ(c.intermediate_size, 8192);
    EXPECT_EQ(c.num_experts, 256);
    EXPECT_EQ(c.num_experts_per_tok, 8);
    EXPECT_EQ(c.moe_intermediate_size, 512);
    EXPECT_EQ(c.shared_expert_intermediate_size, 512);
    EXPECT_DOUBLE_EQ(c.moe_routed_scaling_factor, 2.5);
    EXPECT_TRUE(c.norm_topk_prob);
    EXPECT_NEAR(c.rms_norm_eps, 1e-6, 1e-13);
    EXPECT_EQ(c.rope_full.rotary_dim, 64);
    EXPECT_DOUBLE_EQ(c.rope_full.theta, 500000);
    EXPECT_DOUBLE_EQ(c.rope_full.beta_fast, 64);
    EXPECT_DOUBLE_EQ(c.rope_full.beta_slow, 1);
    EXPECT_EQ(c.rope_sliding.rotary_dim, 128);
    EXPECT_DOUBLE_EQ(c.rope_sliding.theta, 10000);
    EXPECT_FALSE(c.rope_sliding.yarn());
    EXPECT_DOUBLE_EQ(c.rope_sliding.magnitude, 1);
}

void expect_yarn(const LagunaConfig& c, double factor, double original, double magnitude) {
    EXPECT_DOUBLE_EQ(c.rope_full.factor, factor);
    EXPECT_DOUBLE_EQ(c.rope_full.original_context, original);
    EXPECT_NEAR(c.rope_full.magnitude, magnitude, 1e-6);
}

TEST(LagunaConfigHf, xs2_revision_a) {
    const LagunaConfig c = from_hf(hf_xs2());
    expect_xs_shape(c);
    EXPECT_EQ(c.max_position_embeddings, 131072);
    expect_yarn(c, 32, 4096, 1.0);  // transformers' reading: attention_factor is final
    const ops::Rope rope = make_rope(c.rope_full);
    const std::vector<std::pair<size_t, double>> table = {
        {6, 0.0778763}, {10, 0.0092682}, {15, 2.54281e-4}, {31, 9.41831e-8}};
    for (const auto& [i, value] : table) EXPECT_NEAR(rope.inv_freq[i] / value, 1, 1e-5) << i;
}

TEST(LagunaConfigHf, xs2_revision_b) {
    const LagunaConfig c = from_hf(hf_xs2_b());
    expect_xs_shape(c);
    EXPECT_EQ(c.max_position_embeddings, 262144);
    expect_yarn(c, 64, 4096, 1.0);
    const ops::Rope rope = make_rope(c.rope_full);
    const std::vector<std::pair<size_t, double>> table = {
        {6, 0.077755}, {10, 0.00915058}, {15, 2.2401e-4}, {31, 4.70915e-8}};
    for (const auto& [i, value] : table) EXPECT_NEAR(rope.inv_freq[i] / value, 1, 1e-5) << i;
}

TEST(LagunaConfigHf, xs21) {
    const LagunaConfig c = from_hf(hf_xs21());
    expect_xs_shape(c);
    expect_yarn(c, 32, 8192, 1.3465735902799727);
    const ops::Rope rope = make_rope(c.rope_full);
    const std::vector<std::pair<size_t, double>> table = {
        {6, 0.0853971}, {10, 0.0121851}, {15, 6.29649e-4}, {31, 9.41831e-8}};
    for (const auto& [i, value] : table) EXPECT_NEAR(rope.inv_freq[i] / value, 1, 1e-5) << i;
}

TEST(LagunaConfigHf, s21) {
    const LagunaConfig c = from_hf(hf_s21());
    EXPECT_EQ(c.hidden_size, 3072);
    EXPECT_EQ(c.num_hidden_layers, 48);
    EXPECT_EQ(c.num_attention_heads_per_layer[1], 72);
    EXPECT_EQ(count(c.is_sliding), 36);
    EXPECT_EQ(c.num_experts_per_tok, 10);
    EXPECT_EQ(c.intermediate_size, 12288);
    EXPECT_DOUBLE_EQ(c.rope_full.beta_fast, 32);
    expect_yarn(c, 128, 8192, 1.4852030263919618);
}

TEST(LagunaConfigHf, m1) {
    const LagunaConfig c = from_hf(hf_m1());
    EXPECT_EQ(c.num_hidden_layers, 70);
    EXPECT_EQ(c.num_attention_heads_per_layer, std::vector<int64_t>(70, 64));
    EXPECT_FALSE(c.has_sliding());
    EXPECT_EQ(c.sliding_window, 0);
    EXPECT_EQ(count(c.is_sparse), 67);
    EXPECT_FALSE(c.is_sparse[2]);
    EXPECT_TRUE(c.is_sparse[3]);
    EXPECT_EQ(c.num_experts_per_tok, 16);
    EXPECT_DOUBLE_EQ(c.moe_routed_scaling_factor, 1.0);
    EXPECT_EQ(c.rope_full.rotary_dim, 128);
    expect_yarn(c, 64, 4096, 0.1 * std::log(64.0) + 1);  // no attention_factor in the file
}

TEST(LagunaConfigHf, top_level_partial_rotary_factor_stays_off_the_sliding_layers) {
    json::object config = hf_xs2();
    json::object& rope = config["rope_parameters"].as_object();
    rope["full_attention"].as_object().erase("partial_rotary_factor");
    rope["sliding_attention"].as_object().erase("partial_rotary_factor");
    const LagunaConfig c = from_hf(config);
    EXPECT_EQ(c.rope_full.rotary_dim, 64);
    EXPECT_EQ(c.rope_sliding.rotary_dim, 128);
}

TEST(LagunaConfigHf, one_number_of_heads_may_stand_for_all_layers) {
    json::object config = hf_xs2();
    config.erase("num_attention_heads_per_layer");
    EXPECT_EQ(from_hf(config).num_attention_heads_per_layer, std::vector<int64_t>(40, 48));
}

TEST(LagunaConfigHf, dense_layers_may_be_listed_or_counted) {
    json::object config = hf_xs2();
    config.erase("mlp_layer_types");
    config["mlp_only_layers"] = json::array{0, 5};
    EXPECT_EQ(count(from_hf(config).is_sparse), 38);
    config.erase("mlp_only_layers");
    config["first_k_dense_replace"] = 3;
    EXPECT_EQ(count(from_hf(config).is_sparse), 37);
    config.erase("first_k_dense_replace");
    expect_error([&] { from_hf(config); }, {"config.json", "missing key mlp_layer_types"});
    config = hf_xs2();
    config["mlp_only_layers"] = json::array{0, 5};
    expect_error([&] { from_hf(config); }, {"mlp_only_layers", "mlp_layer_types", "different dense layers"});
}

TEST(LagunaConfigHf, every_required_key_is_missed_by_name) {
    for (const char* key : {"vocab_size", "hidden_size", "num_hidden_layers", "num_key_value_heads", "head_dim",
                            "max_position_embeddings", "intermediate_size", "moe_intermediate_size",
                            "shared_expert_intermediate_size", "num_experts", "num_experts_per_tok",
                            "moe_routed_scaling_factor", "rms_norm_eps", "rope_parameters", "sliding_window"}) {
        json::object config = hf_xs2();
        config.erase(key);
        expect_error([&] { from_hf(config); }, {"config.json", "missing key", key});
        config[key] = "many";
        expect_error([&] { from_hf(config); }, {"config.json", key, "expected"});
    }
    for (const char* key : {"rope_theta", "factor", "original_max_position_embeddings"}) {
        json::object config = hf_xs2();
        config["rope_parameters"].as_object()["full_attention"].as_object().erase(key);
        expect_error([&] { from_hf(config); }, {"rope_parameters.full_attention", key});
    }
}

TEST(LagunaConfigHf, what_is_not_computed_is_refused) {
    const std::vector<std::pair<const char*, json::value>> cases = {{"attention_bias", true},
                                                                    {"swa_attention_sink_enabled", true},
                                                                    {"use_bidirectional_attention", true},
                                                                    {"moe_apply_router_weight_on_input", true},
                                                                    {"moe_router_logit_softcapping", 30.0},
                                                                    {"moe_router_score_func", "sqrtsoftplus"},
                                                                    {"moe_router_use_sigmoid", false},
                                                                    {"norm_topk_prob", false},
                                                                    {"hidden_act", "gelu"},
                                                                    {"qk_norm_type", "layernorm"},
                                                                    {"decoder_sparse_step", 2}};
    for (const auto& [key, value] : cases) {
        json::object config = hf_xs2();
        config[key] = value;
        expect_error([&] { from_hf(config); }, {"config.json", key, "not supported"});
    }
    json::object config = hf_xs2();
    config["rope_parameters"].as_object()["full_attention"].as_object()["rope_type"] = "longrope";
    expect_error([&] { from_hf(config); }, {"rope_type", "longrope", "default and yarn"});
}

TEST(LagunaConfigHf, sizes_out_of_range_are_refused) {
    const std::vector<std::pair<const char*, json::value>> cases = {{"vocab_size", 0},
                                                                    {"hidden_size", -1},
                                                                    {"num_hidden_layers", 0},
                                                                    {"num_hidden_layers", 1000000000},
                                                                    {"head_dim", 0},
                                                                    {"num_key_value_heads", 0},
                                                                    {"num_key_value_heads", 7},
                                                                    {"sliding_window", 0},
                                                                    {"rms_norm_eps", 0.0},
                                                                    {"num_experts_per_tok", 257},
                                                                    {"num_experts_per_tok", 0},
                                                                    {"moe_intermediate_size", -5},
                                                                    {"hidden_size", int64_t{1} << 40},
                                                                    {"max_position_embeddings", int64_t{1} << 33},
                                                                    {"moe_routed_scaling_factor", -1.0},
                                                                    {"num_experts", int64_t{1} << 20}};
    for (const auto& [key, value] : cases) {
        json::object config = hf_xs2();
        config[key] = value;
        EXPECT_NE(message_of([&] { from_hf(config); }), "no error") << key << " = " << value;
    }
    for (const char* key : {"layer_types", "mlp_layer_types", "num_attention_heads_per_layer"}) {
        json::object config = hf_xs2();
        config[key].as_array().pop_back();
        expect_error([&] { from_hf(config); }, {key, "39", "40"});
    }
}

// ---- GGUF
// -------------------------------------------------------------------------------------------------------------------

class DialectTest : public ::testing::TestWithParam<char> {};
INSTANTIATE_TEST_SUITE_P(All, DialectTest, ::testing::Values('U', 'B', 'O', 'F', 'I'));

TEST_P(DialectTest, all_dialects_say_the_same) {
    const LagunaConfig c = laguna_from_gguf(gguf_xs2(GetParam()));
    expect_xs_shape(c);
    EXPECT_EQ(c.max_position_embeddings, 131072);
    expect_yarn(c, 32, 4096, 0.1 * std::log(32.0) + 1);
}

TEST(LagunaConfigGguf, dimension_counts_may_be_missing) {
    json::object keys = gguf_xs2('F');
    keys.erase("laguna.rope.dimension_count");
    keys.erase("laguna.rope.dimension_count_swa");
    const LagunaConfig c = laguna_from_gguf(keys);
    EXPECT_EQ(c.rope_full.rotary_dim, 64);
    EXPECT_EQ(c.rope_sliding.rotary_dim, 128);
}

TEST(LagunaConfigGguf, attn_factor_multiplies_unless_it_is_already_the_whole) {
    json::object keys = gguf_xs2('U');
    const double derived = 0.1 * std::log(32.0) + 1;
    keys["laguna.rope.scaling.yarn_attn_factor"] = 1.3465735;  // no engine reads it
    EXPECT_NEAR(laguna_from_gguf(keys).rope_full.magnitude, derived, 1e-12);
    keys["laguna.rope.scaling.attn_factor"] = 0.5;
    EXPECT_NEAR(laguna_from_gguf(keys).rope_full.magnitude, 0.5 * derived, 1e-12);
    keys["laguna.rope.scaling.attn_factor"] = static_cast<double>(1.3465736f);
    EXPECT_NEAR(laguna_from_gguf(keys).rope_full.magnitude, 1.3465736, 1e-6);
}

TEST(LagunaConfigGguf, m1_has_no_windows) {
    json::object keys = gguf_xs2('U');
    for (const char* key : {"attention.sliding_window", "rope.freq_base_swa", "rope.dimension_count_swa"})
        keys.erase(fmt::format("laguna.{}", key));
    keys["laguna.attention.head_count"] = 64;
    keys["laguna.rope.dimension_count"] = 128;
    const LagunaConfig c = laguna_from_gguf(keys);
    EXPECT_FALSE(c.has_sliding());
    EXPECT_EQ(c.rope_full.rotary_dim, 128);
}

TEST(LagunaConfigGguf, the_pattern_and_the_head_counts_must_agree) {
    json::object keys = gguf_xs2('U');
    keys["laguna.attention.head_count"].as_array()[5] = 48;
    expect_error([&] { laguna_from_gguf(keys); }, {"head_count", "48 in layer 5", "64 in layer 1", "every 4 layers"});
    keys = gguf_xs2('U');
    keys["laguna.attention.sliding_window_pattern"] = 5;
    expect_error([&] { laguna_from_gguf(keys); }, {"head_count", "every 5 layers"});
    keys = gguf_xs2('O');
    keys["laguna.attention.sliding_window_pattern"].as_array()[1] = false;
    expect_error([&] { laguna_from_gguf(keys); }, {"layer_types", "sliding_window_pattern", "different"});
    keys = gguf_xs2('O');
    keys["laguna.attention.layer_types"].as_array()[1] = 2;
    expect_error([&] { laguna_from_gguf(keys); }, {"layer_types[1]", "2", "0 or 1"});
    keys = gguf_xs2('O');
    keys["laguna.attention.layer_types"].as_array().pop_back();
    expect_error([&] { laguna_from_gguf(keys); }, {"layer_types", "40 layers"});
}

TEST(LagunaConfigGguf, every_required_key_is_missed_by_name) {
    for (const char* key :
         {"block_count", "embedding_length", "context_length", "feed_forward_length", "attention.head_count",
          "attention.head_count_kv", "attention.key_length", "attention.layer_norm_rms_epsilon", "expert_count",
          "expert_used_count", "expert_feed_forward_length", "expert_shared_feed_forward_length",
          "expert_weights_scale", "leading_dense_block_count", "rope.freq_base", "rope.freq_base_swa",
          "rope.scaling.factor", "rope.scaling.original_context_length"}) {
        json::object keys = gguf_xs2('U');
        keys.erase(fmt::format("laguna.{}", key));
        expect_error([&] { laguna_from_gguf(keys); }, {"m.gguf", "missing key", fmt::format("laguna.{}", key)});
    }
}

TEST(LagunaConfigGguf, betas_of_yarn_are_32_and_1_unless_given) {
    json::object keys = gguf_xs2('U');
    for (const char* key : {"beta_fast", "beta_slow"}) keys.erase(fmt::format("laguna.rope.scaling.yarn_{}", key));
    EXPECT_EQ(laguna_from_gguf(keys).rope_full.beta_fast, 32);
    EXPECT_EQ(laguna_from_gguf(keys).rope_full.beta_slow, 1);
    keys["laguna.rope.scaling.beta_fast"] = 64;  // older files
    EXPECT_EQ(laguna_from_gguf(keys).rope_full.beta_fast, 64);
}

TEST(LagunaConfigGguf, what_is_not_computed_is_refused) {
    const std::vector<std::pair<const char*, json::value>> cases = {{"attention.sink_enabled", true},
                                                                    {"attention.qk_norm", false},
                                                                    {"decoder_sparse_step", 2},
                                                                    {"expert_gating_func", 1},
                                                                    {"expert_shared_count", 2},
                                                                    {"attention.value_length", 64},
                                                                    {"rope.scaling.type", "longrope"},
                                                                    {"attention.head_count_kv", json::array{1, 2}},
                                                                    {"block_count", 0},
                                                                    {"block_count", int64_t{1} << 40},
                                                                    {"attention.head_count_kv", 5},
                                                                    {"vocab_size", -1},
                                                                    {"leading_dense_block_count", 41},
                                                                    {"attention.sliding_window", -1},
                                                                    {"rope.dimension_count", 63},
                                                                    {"rope.dimension_count", 130},
                                                                    {"rope.freq_base", 0.0}};
    for (const auto& [key, value] : cases) {
        json::object keys = gguf_xs2('U');
        keys[fmt::format("laguna.{}", key)] = value;
        EXPECT_NE(message_of([&] { laguna_from_gguf(keys); }).find("m.gguf"), std::string::npos)
            << key << " = " << value;
    }
}

}  // namespace
}  // namespace riptide::testing
