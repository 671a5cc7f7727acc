// One model in every file layout gives the same logits, bit for bit.
#include "tests/models/laguna_layouts.h"

#include "base/json.h"

namespace riptide::testing {
namespace {

class DialectLayoutTest : public LayoutTest, public ::testing::WithParamInterface<char> {};
INSTANTIATE_TEST_SUITE_P(All, DialectLayoutTest, ::testing::Values('U', 'B', 'O', 'F', 'I'));

TEST_P(DialectLayoutTest, every_gguf_dialect_equals_safetensors) {
    const std::vector<std::byte> image =
        write_gguf(gguf_metadata(GetParam(), config), gguf_tensors(GetParam() == 'O' ? "attn_g" : "attn_gate"));
    expect_same_bits(logits(open_gguf_memory(image, "m.gguf")), expected());
}

TEST_F(LayoutTest, an_early_file_without_dimension_count_rotates_half) {
    json::object keys = gguf_metadata('F', config);
    keys.erase("laguna.rope.dimension_count");
    const std::vector<std::byte> image = write_gguf(keys, gguf_tensors("attn_gate"));
    expect_same_bits(logits(open_gguf_memory(image, "m.gguf")), expected());
}

// Each of these keys reaches the forward pass.
TEST_F(LayoutTest, other_numbers_give_other_logits) {
    const std::vector<float> right = expected();
    const std::vector<std::pair<const char*, json::value>> changes = {{"rope.freq_base", 400000.0},
                                                                      {"rope.freq_base_swa", 9999.0},
                                                                      {"rope.dimension_count", 8},
                                                                      {"rope.dimension_count_swa", 16},
                                                                      {"rope.scaling.factor", 16.0},
                                                                      {"rope.scaling.original_context_length", 64},
                                                                      {"rope.scaling.attn_factor", 0.9},
                                                                      {"rope.scaling.type", "none"},
                                                                      {"rope.scaling.yarn_beta_fast", 500.0},
                                                                      {"rope.scaling.yarn_beta_slow", 8.0},
                                                                      {"expert_weights_scale", 2.0},
                                                                      {"expert_weights_norm", false},
                                                                      {"expert_used_count", 1},
                                                                      {"attention.sliding_window", 7},
                                                                      {"attention.layer_norm_rms_epsilon", 1e-4}};
    for (const auto& [key, value] : changes) {
        json::object keys = gguf_metadata('U', config);
        keys[fmt::format("laguna.{}", key)] = value;
        const std::vector<std::byte> image = write_gguf(keys, gguf_tensors("attn_gate"));
        EXPECT_NE(
            std::memcmp(logits(open_gguf_memory(image, "m.gguf")).data(), right.data(), right.size() * sizeof(float)),
            0)
            << key;
    }
}

TEST_F(LayoutTest, a_missing_output_is_the_embedding_table) {
    std::vector<Renamed> tensors = gguf_tensors("attn_gate");
    const auto output =
        std::find_if(tensors.begin(), tensors.end(), [](const Renamed& t) { return t.name == "output.weight"; });
    output->bytes = tensors[0].bytes;  // token_embd
    const std::vector<std::byte> twice = write_gguf(gguf_metadata('U', config), tensors);
    tensors.erase(output);
    const std::vector<std::byte> tied = write_gguf(gguf_metadata('U', config), tensors);
    expect_same_bits(logits(open_gguf_memory(tied, "m.gguf")), logits(open_gguf_memory(twice, "m.gguf")));
}

TEST_F(LayoutTest, a_gate_of_another_size_is_refused_in_words) {
    std::vector<Renamed> tensors = gguf_tensors("attn_gate");
    const auto gate = std::find_if(tensors.begin(), tensors.end(),
                                   [](const Renamed& t) { return t.name == "blk.1.attn_gate.weight"; });
    gate->shape[0] -= 1;
    gate->bytes.resize(gate->bytes.size() / static_cast<size_t>(gate->shape[0] + 1) *
                       static_cast<size_t>(gate->shape[0]));
    const std::vector<std::byte> image = write_gguf(gguf_metadata('U', config), tensors);
    try {
        logits(open_gguf_memory(image, "m.gguf"));
        FAIL() << "no error";
    } catch (const Error& error) {
        EXPECT_STREQ(error.what(),
                     "m.gguf: layer 1 has 5 attention gates, expected 6 (one per head) or 192 (one per element)");
    }
}

// What transformers holds in memory, and what repackers for vision models prefix.
TEST_F(LayoutTest, stacked_experts_and_other_names_equal_the_release) {
    std::vector<Renamed> tensors;
    for (const TensorInfo& tensor : source->tensors()) {
        std::string name = tensor.name;
        if (name.find(".mlp.experts.") != std::string::npos && name.ends_with("_proj.weight")) continue;
        if (const size_t at = name.find("shared_expert."); at != std::string::npos) name.insert(at + 13, "s");
        if (const size_t at = name.find("experts.e_score"); at != std::string::npos) name.replace(at, 7, "gate");
        tensors.push_back(copy(tensor.name, "language_model." + name));
    }
    for (int64_t l = 0; l < layers; ++l) {
        if (!sparse(l)) continue;
        const std::string mlp = fmt::format("language_model.model.layers.{}.mlp.experts.", l);
        tensors.push_back(stacked(mlp + "gate_up_proj", l, {"gate_proj", "up_proj"}));
        tensors.push_back(stacked(mlp + "down_proj", l, {"down_proj"}));
    }
    expect_same_bits(logits(open_folder(config, tensors)), expected());
}

}  // namespace
}  // namespace riptide::testing
