// Hyper-parameters of drafters: dialects become one convention, gaps and contradictions are named.
#include "models/dflash_config.h"

#include "base/json.h"
#include "tests/models/expect_says.h"
#include "tests/models/fixture.h"

namespace riptide::testing {
namespace {

DflashConfig parsed(const json::object& config) { return dflash_config_from_hf(HfConfig(config, "config.json")); }

TEST(dflash_config, reads_the_dialects_into_one_convention) {
    const DflashConfig zlab = parsed(fixture_config("dflash_zlab")),
                       speculators = parsed(fixture_config("dflash_speculators")),
                       laguna = parsed(fixture_config("dflash_laguna"));
    EXPECT_EQ(zlab.taps, (std::vector<int32_t>{0, 2, 4}));
    EXPECT_EQ(zlab.is_sliding, (std::vector<char>{1, 0}));
    EXPECT_EQ(zlab.is_causal, (std::vector<char>{1, 0}));
    EXPECT_FALSE(zlab.norms_context);
    EXPECT_EQ(speculators.taps, (std::vector<int32_t>{0, 3}));  // aux ids 1 and 4: one more
    EXPECT_EQ(speculators.draft_vocab_size, 72);
    EXPECT_EQ(speculators.is_causal, (std::vector<char>{0, 0}));
    EXPECT_EQ(speculators.rope.theta, 500000.0);
    EXPECT_EQ(laguna.taps, (std::vector<int32_t>{1, 2, 4}));
    EXPECT_TRUE(laguna.norms_context);
    EXPECT_EQ(laguna.block_size, 8);
    EXPECT_EQ(laguna.is_causal, (std::vector<char>{1, 1}));
}

TEST(dflash_config, explicit_causality_comes_first) {
    json::object config = fixture_config("dflash_zlab");
    config["dflash_config"].as_object()["causal"] = false;
    EXPECT_EQ(parsed(config).is_causal, (std::vector<char>{0, 0}));
    config["is_causal"] = true;
    EXPECT_EQ(parsed(config).is_causal, (std::vector<char>{1, 1}));
    json::object windows = fixture_config("dflash_zlab");
    windows["sliding_window_non_causal"] = true;
    EXPECT_EQ(parsed(windows).is_causal, (std::vector<char>{0, 0}));
}

TEST(dflash_config, contradictions_and_gaps_are_named) {
    const auto without = [](const char* key) {
        json::object config = fixture_config("dflash_zlab");
        config.erase(key);
        return message_of([&] { parsed(config); });
    };
    const auto with = [](const char* name, const char* key, const json::value& value) {
        json::object config = fixture_config(name);
        config[key] = value;
        return message_of([&] { parsed(config); });
    };
    EXPECT_NE(without("block_size").find("block_size"), std::string::npos);
    EXPECT_NE(without("rope_theta").find("rope_theta"), std::string::npos);
    EXPECT_NE(without("layer_types").find("no error"), std::string::npos);  // use_sliding_window is true: all slide
    EXPECT_NE(with("dflash_laguna", "eagle_aux_hidden_state_layer_ids", {1, 2, 4}).find("different layers"),
              std::string::npos);
    EXPECT_NE(with("dflash_zlab", "mask_token_id", 13).find("differ"), std::string::npos);
    EXPECT_NE(with("dflash_speculators", "mask_token_id", 128).find("mask_token_id is 128"), std::string::npos);
    EXPECT_NE(with("dflash_speculators", "aux_hidden_state_layer_ids", {-1}).find("no layer"), std::string::npos);
    EXPECT_NE(with("dflash_zlab", "block_size", 1).find("block_size is 1"), std::string::npos);
    EXPECT_NE(with("dflash_zlab", "is_neox_style", false).find("is_neox_style"), std::string::npos);
    json::object ambiguous = fixture_config("dflash_laguna");
    ambiguous.erase("layer_types");
    EXPECT_NE(message_of([&] { parsed(ambiguous); }).find("for which layers"), std::string::npos);
}

/// Keys of a GGUF file: those that every drafter has, then `own` (of the drafting itself), all under the prefix.
DflashConfig drafter_from_gguf(const std::string& prefix, const std::vector<std::pair<std::string, json::value>>& own) {
    json::object keys;
    const std::vector<std::pair<std::string, json::value>> common = {
        {"context_length", 4096},     {"embedding_length", 64},       {"block_count", 3},
        {"feed_forward_length", 96},  {"attention.head_count", 4},    {"attention.head_count_kv", 2},
        {"attention.key_length", 32}, {"attention.value_length", 32}, {"attention.layer_norm_rms_epsilon", 1e-6},
        {"rope.freq_base", 1e7}};
    for (const auto* part : {&common, &own})
        for (const auto& [key, value] : *part) {
            const std::string name = key.starts_with("tokenizer.") ? key : prefix + key;
            if (value.is_null()) keys.erase(name);
            else keys[name] = value;
        }
    return dflash_config_from_gguf(ConfigReader(keys, "d.gguf", prefix), ConfigReader(keys, "d.gguf"));
}

TEST(dflash_config, reads_gguf_files_of_two_schools) {
    const DflashConfig lucebox =
        drafter_from_gguf("qwen35-dflash-draft.", {{"dflash.block_size", 16},
                                                   {"dflash.mask_token_id", 12},
                                                   {"dflash.n_target_layers", 2},
                                                   {"dflash.target_layer_ids", {1, 16}},
                                                   {"dflash.context_kv_layer_norm", true},
                                                   {"attention.sliding_window", 512},
                                                   {"attention.sliding_window_pattern", {true, true, false}}});
    EXPECT_EQ(lucebox.taps, (std::vector<int32_t>{1, 16}));
    EXPECT_EQ(lucebox.block_size, 16);
    EXPECT_TRUE(lucebox.norms_context);
    EXPECT_EQ(lucebox.is_sliding, (std::vector<char>{1, 1, 0}));
    EXPECT_EQ(lucebox.is_causal, (std::vector<char>{1, 1, 0}));
    EXPECT_EQ(lucebox.rope.rotary_dim, 32);
    EXPECT_FALSE(lucebox.d2t_is_absolute);
    // Converters of this school write attention.causal as false for any drafter.
    EXPECT_EQ(drafter_from_gguf("dflash-draft.", {{"dflash.block_size", 16},
                                                  {"dflash.mask_token_id", 12},
                                                  {"dflash.target_layer_ids", {1, 16}},
                                                  {"attention.causal", false},
                                                  {"attention.sliding_window", 512},
                                                  {"attention.sliding_window_pattern", {true, true, false}}})
                  .is_causal,
              (std::vector<char>{1, 1, 0}));
}

/// As llama.cpp's converter writes them; of Qwen3.6-27B's drafter but for sizes.
DflashConfig from_llama(std::vector<std::pair<std::string, json::value>> own) {
    own.insert(own.begin(),
               {{"block_size", 16}, {"tokenizer.ggml.mask_token_id", 248070}, {"target_layers", {2, 17, 32}}});
    return drafter_from_gguf("dflash.", own);
}

TEST(dflash_config, reads_what_llama_cpp_writes) {
    const DflashConfig qwen =
        from_llama({{"attention.sliding_window", 2048}, {"attention.sliding_window_pattern", {true, true, false}}});
    EXPECT_EQ(qwen.taps, (std::vector<int32_t>{1, 16, 31}));  // target_layers name what enters a layer
    EXPECT_EQ(qwen.block_size, 16);
    EXPECT_EQ(qwen.mask_token_id, 248070);
    EXPECT_EQ(qwen.is_sliding, (std::vector<char>{1, 1, 0}));
    EXPECT_EQ(qwen.is_causal, (std::vector<char>{1, 1, 0}));
    EXPECT_FALSE(qwen.norms_context);
    EXPECT_TRUE(qwen.d2t_is_absolute);

    const DflashConfig laguna = from_llama({{"decoder_arch", "laguna"}});
    EXPECT_TRUE(laguna.norms_context);
    EXPECT_FALSE(laguna.has_sliding());
    EXPECT_EQ(laguna.is_causal, (std::vector<char>{1, 1, 1}));

    EXPECT_EQ(from_llama({{"attention.causal", true}}).is_causal, (std::vector<char>{1, 1, 1}));
    EXPECT_EQ(from_llama({{"attention.causal", false}, {"decoder_arch", "laguna"}}).is_causal,
              (std::vector<char>{0, 0, 0}));
    EXPECT_EQ(from_llama({{"target_layers", {0, 3}}}).taps, (std::vector<int32_t>{-1, 2}));  // 0: the embedding
}

TEST(dflash_config, gguf_gaps_are_named) {
    const auto with = [](const char* key, const json::value& value) {
        return message_of([&] {
            drafter_from_gguf("dflash-draft.", {{"dflash.block_size", 8},
                                                {"dflash.mask_token_id", 12},
                                                {"dflash.target_layer_ids", {1, 4}},
                                                {key, value}});
        });
    };
    EXPECT_EQ(with("vocab_size", 128), "no error");
    EXPECT_NE(with("rope.freq_base", nullptr).find("rope.freq_base"), std::string::npos);
    EXPECT_NE(with("dflash.mask_token_id", nullptr).find("mask_token_id"), std::string::npos);
    EXPECT_NE(with("vocab_size", 12).find("mask_token_id is 12"), std::string::npos);
    EXPECT_NE(with("dflash.n_target_layers", 3).find("2 layers are named"), std::string::npos);
    EXPECT_EQ(with("dspark.enabled", false), "no error");
    EXPECT_NE(with("dspark.enabled", true).find("DSpark"), std::string::npos);
    EXPECT_NE(message_of([] { from_llama({{"markov_rank", 64}}); }).find("DSpark"), std::string::npos);
    EXPECT_NE(message_of([] { from_llama({{"selector_rank", 64}}); }).find("DFlash2"), std::string::npos);
    EXPECT_NE(message_of([] {
                  from_llama({{"tokenizer.ggml.mask_token_id", nullptr}});
              }).find("mask_token_id"),
              std::string::npos);
    EXPECT_NE(with("attention.sliding_window", 512).find("sliding_window_pattern"), std::string::npos);
    EXPECT_NE(with("dflash.target_layer_ids", {INT64_MIN}).find("no layer"), std::string::npos);
}

}  // namespace
}  // namespace riptide::testing
