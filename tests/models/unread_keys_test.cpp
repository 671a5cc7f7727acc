// config.json: what would change values is read or refused by name; what cannot change any is passed over.
#include "models/unread_keys.h"

#include <cmath>
#include <limits>

#include "base/json.h"
#include "models/dflash_config.h"
#include "models/laguna_config.h"
#include "models/qwen3.h"
#include "models/qwen35_config.h"
#include "tests/models/expect_says.h"
#include "tests/models/fixture.h"
#include "tests/models/laguna_metadata.h"

namespace riptide::testing {
namespace {

const std::vector<std::string> kFixtures = {"laguna_xs2",    "laguna_xs21",    "laguna_m1",         "laguna_odd",
                                            "laguna_fp8",    "qwen3_tied",     "qwen3_untied",      "qwen35_tied",
                                            "qwen35_odd",    "qwen35_moe",     "dflash_zlab",       "dflash_laguna",
                                            "dflash_hybrid", "dflash_grammar", "dflash_speculators"};

void parse_config(const std::string& fixture, const json::object& config) {
    const ConfigReader reader(config, "config.json");
    if (fixture.starts_with("laguna")) laguna_config_from_hf(reader);
    else if (fixture.starts_with("qwen35")) qwen35_config_from_hf(reader);
    else if (fixture.starts_with("qwen3")) qwen3_config_from_hf(reader);
    else dflash_config_from_hf(reader);
}

/// The objects of a config in which a key may stand, but for those that change nothing whatever they hold.
std::vector<std::string> places_in(const json::object& config) {
    std::vector<std::string> places = {""};
    for (const char* name : {"text_config", "dflash_config", "transformer_layer_config", "rope_parameters"})
        if (const json::value* inner = config.if_contains(name); inner != nullptr && inner->is_object())
            places.emplace_back(name);
    return places;
}

json::object with(json::object config, const std::string& place, const std::string& key, const json::value& value) {
    (place.empty() ? config : config.at(place).as_object())[key] = value;
    return config;
}

TEST(UnreadKeys, what_would_change_values_is_refused_by_name_wherever_it_stands) {
    const std::vector<std::pair<std::string, json::value>> changes = {
        {"causal_head", true},        {"input_embedding_scale", 45.25},
        {"output_multiplier", 0.5},   {"final_logit_softcapping", 30},
        {"logit_scale", 0.0625},      {"residual_multiplier", 0.22},
        {"projector_type", "domino"}, {"shift_label", true},
        {"a_key_of_next_year", 2}};
    for (const std::string& fixture : kFixtures) {
        const json::object config = fixture_config(fixture);
        EXPECT_EQ(message_of([&] { parse_config(fixture, config); }), "no error") << fixture;
        for (const std::string& place : places_in(config))
            for (const auto& change : changes) {
                const std::string name = place.empty() ? change.first : place + "." + change.first;
                EXPECT_SAYS(parse_config(fixture, with(config, place, change.first, change.second)),
                            "config.json: " + name);
            }
    }
}

TEST(UnreadKeys, what_changes_no_value_is_passed_over) {
    const std::vector<std::pair<std::string, json::value>> nothing = {{"causal_head", false},
                                                                      {"input_embedding_scale", 1.0},
                                                                      {"output_multiplier", 1},
                                                                      {"final_logit_softcapping", nullptr},
                                                                      {"torch_dtype", "float16"},
                                                                      {"attention_dropout", 0.1},
                                                                      {"_name_or_path", "/somewhere"},
                                                                      {"unsloth_fixed", true},
                                                                      {"vision_config", {{"depth", 3}}},
                                                                      {"a_key_of_next_year", nullptr}};
    for (const std::string& fixture : kFixtures)
        for (const auto& [key, value] : nothing) {
            const json::object config = with(fixture_config(fixture), "", key, value);
            EXPECT_EQ(message_of([&] { parse_config(fixture, config); }), "no error") << fixture << ", " << key;
        }
}

TEST(UnreadKeys, windows_and_rotations_that_would_be_passed_over_are_refused) {
    json::object config = fixture_config("qwen3_tied");
    config["layer_types"].as_array()[1] = "sliding_attention";
    EXPECT_SAYS(parse_config("qwen3_tied", config), "layer_types", "sliding_attention");
    config = fixture_config("qwen3_tied");
    config["rope_theta"] = 10000.0;  // beside rope_parameters.rope_theta, 1000000
    EXPECT_SAYS(parse_config("qwen3_tied", config), "rope_theta", "differ");
    config = fixture_config("dflash_zlab");
    config["rope_scaling"] = {{"rope_type", "default"}, {"factor", 4.0}};
    EXPECT_SAYS(parse_config("dflash_zlab", config), "rope_scaling.factor");
    config["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 2048}};
    EXPECT_EQ(message_of([&] { parse_config("dflash_zlab", config); }), "no error");
}

TEST(UnreadKeys, scales_in_gguf_are_refused_by_name) {
    for (const auto& [key, value] : std::vector<std::pair<std::string, json::value>>{{"final_logit_softcapping", 30.0},
                                                                                     {"logit_scale", 0.5},
                                                                                     {"embedding_scale", 12.0},
                                                                                     {"causal_head", true}}) {
        json::object keys = gguf_xs2('U');
        keys["laguna." + key] = value;
        EXPECT_SAYS(laguna_config_from_gguf(ConfigReader(keys, "m.gguf", "laguna.")), "laguna." + key);
    }
}

TEST(YarnFactor, is_finite_and_at_least_one_in_json_and_gguf) {
    const double inf = std::numeric_limits<double>::infinity();
    for (const double factor : {0.0, -0.0, -2.0, 0.5, inf, -inf, std::nan("")}) {
        json::object config = fixture_config("laguna_xs2");
        config["rope_parameters"].as_object()["full_attention"].as_object()["factor"] = factor;
        EXPECT_SAYS(parse_config("laguna_xs2", config), "full_attention.factor", "expected at least 1");
        json::object keys = gguf_xs2('U');
        keys["laguna.rope.scaling.factor"] = factor;
        EXPECT_SAYS(laguna_config_from_gguf(ConfigReader(keys, "m.gguf", "laguna.")), "rope.scaling.factor",
                    "expected at least 1");
        for (const char* key : {"original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow"}) {
            config = fixture_config("laguna_xs2");
            config["rope_parameters"].as_object()["full_attention"].as_object()[key] = factor == 0.5 ? 0.0 : factor;
            EXPECT_NE(message_of([&] { parse_config("laguna_xs2", config); }), "no error") << key << " " << factor;
        }
    }
    json::object keys = gguf_xs2('U');
    keys.erase("laguna.rope.scaling.type");  // a factor alone is linear
    EXPECT_SAYS(laguna_config_from_gguf(ConfigReader(keys, "m.gguf", "laguna.")), "rope.scaling.type", "factor 32");
}

TEST(ExpertLength, may_be_written_once_for_each_layer) {
    json::object keys = gguf_xs2('U');
    const json::value once = keys.at("laguna.expert_feed_forward_length");
    keys["laguna.expert_feed_forward_length"] = json::array(40, once);
    EXPECT_EQ(laguna_config_from_gguf(ConfigReader(keys, "m.gguf", "laguna.")).moe_intermediate_size,
              once.to_number<int64_t>());
    keys["laguna.expert_feed_forward_length"].as_array()[7] = 1;
    EXPECT_SAYS(laguna_config_from_gguf(ConfigReader(keys, "m.gguf", "laguna.")), "expert_feed_forward_length",
                "differs between layers");
    keys["laguna.expert_feed_forward_length"] = json::array(39, once);
    EXPECT_SAYS(laguna_config_from_gguf(ConfigReader(keys, "m.gguf", "laguna.")), "expert_feed_forward_length");
}

}  // namespace
}  // namespace riptide::testing
