// One model in every file layout gives the same logits, bit for bit.
#include <gtest/gtest.h>

#include <filesystem>
#include <map>

#include "io/gguf_writer.h"
#include "io/safetensors_writer.h"
#include "tests/models/fixture.h"
#include "tests/models/laguna_metadata.h"

namespace riptide::testing {
namespace {

/// Tensors of a fixture under new names, with their bytes.
struct Renamed {
    std::string name;
    DType dtype;
    std::vector<int64_t> shape;
    std::vector<std::byte> bytes;
};

class LayoutTest : public ::testing::Test {
  protected:
    Fixture fixture{"laguna_xs2"};
    std::unique_ptr<Checkpoint> source = open_checkpoint(fixture.model_path());
    json::object config = source->metadata().at("config").as_object();
    int64_t layers = config.at("num_hidden_layers").as_int64();
    int64_t experts = config.at("num_experts").as_int64();

    Renamed copy(const std::string& from, const std::string& to) const {
        const TensorInfo* tensor = source->find(from);
        RT_CHECK(tensor != nullptr, "the fixture has no {}", from);
        return {to, tensor->dtype, tensor->shape, {tensor->bytes.begin(), tensor->bytes.end()}};
    }
    /// GGUF files store vectors and the router as f32.
    Renamed as_f32(const std::string& from, const std::string& to) const {
        Renamed out = copy(from, to);
        if (out.dtype == DType::f32) return out;
        std::vector<std::byte> wide(out.bytes.size() * 2);
        for (size_t i = 0; i < out.bytes.size() / 2; ++i) {
            uint16_t half;
            std::memcpy(&half, out.bytes.data() + 2 * i, 2);
            const float value = bf16_to_f32(half);
            std::memcpy(wide.data() + 4 * i, &value, 4);
        }
        return {to, DType::f32, out.shape, wide};
    }
    Renamed stacked(const std::string& to, int64_t layer, const std::vector<std::string>& parts) const {
        Renamed out{to, DType::bf16, {}, {}};
        for (int64_t e = 0; e < experts; ++e) {
            for (const std::string& part : parts) {
                const Renamed one = copy(fmt::format("model.layers.{}.mlp.experts.{}.{}.weight", layer, e, part), "");
                out.bytes.insert(out.bytes.end(), one.bytes.begin(), one.bytes.end());
                out.shape = {experts, one.shape[0] * std::ssize(parts), one.shape[1]};
            }
        }
        return out;
    }
    bool sparse(int64_t l) const { return config.at("mlp_layer_types").as_array()[static_cast<size_t>(l)] == "sparse"; }

    std::vector<Renamed> gguf_tensors(const std::string& gate_name) const;
    std::vector<float> logits(std::unique_ptr<Checkpoint> checkpoint) const {
        Session session(std::move(checkpoint), fixture.options());
        return all_logits(session, fixture.prompts.back().tokens);
    }
    std::vector<float> expected() const { return logits(open_checkpoint(fixture.model_path())); }
    static void expect_same_bits(const std::vector<float>& a, const std::vector<float>& b) {
        ASSERT_EQ(a.size(), b.size());
        EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)), 0);
    }
};

std::vector<Renamed> LayoutTest::gguf_tensors(const std::string& gate_name) const {
    std::vector<Renamed> out;
    out.push_back(copy("model.embed_tokens.weight", "token_embd.weight"));
    out.push_back(as_f32("model.norm.weight", "output_norm.weight"));
    out.push_back(copy("lm_head.weight", "output.weight"));
    for (int64_t l = 0; l < layers; ++l) {
        const std::string hf = fmt::format("model.layers.{}.", l), gguf = fmt::format("blk.{}.", l);
        out.push_back(as_f32(hf + "input_layernorm.weight", gguf + "attn_norm.weight"));
        out.push_back(as_f32(hf + "post_attention_layernorm.weight", gguf + "ffn_norm.weight"));
        for (const char* part : {"q", "k"})
            out.push_back(as_f32(fmt::format("{}self_attn.{}_norm.weight", hf, part),
                                 fmt::format("{}attn_{}_norm.weight", gguf, part)));
        for (const char* part : {"q", "k", "v"})
            out.push_back(
                copy(fmt::format("{}self_attn.{}_proj.weight", hf, part), fmt::format("{}attn_{}.weight", gguf, part)));
        out.push_back(copy(hf + "self_attn.o_proj.weight", gguf + "attn_output.weight"));
        out.push_back(copy(hf + "self_attn.g_proj.weight", gguf + gate_name + ".weight"));
        const std::string from = sparse(l) ? "mlp.shared_expert." : "mlp.",
                          suffix = sparse(l) ? "_shexp.weight" : ".weight";
        for (const char* part : {"gate", "up", "down"}) {
            out.push_back(
                copy(fmt::format("{}{}{}_proj.weight", hf, from, part), fmt::format("{}ffn_{}{}", gguf, part, suffix)));
            if (sparse(l))
                out.push_back(
                    stacked(fmt::format("{}ffn_{}_exps.weight", gguf, part), l, {fmt::format("{}_proj", part)}));
        }
        if (!sparse(l)) continue;
        out.push_back(as_f32(hf + "mlp.gate.weight", gguf + "ffn_gate_inp.weight"));
        out.push_back(as_f32(hf + "mlp.experts.e_score_correction_bias", gguf + "exp_probs_b.bias"));
    }
    return out;
}

/// JSON values with the types that converters use.
void set_key(GgufWriter& writer, std::string_view key, const json::value& value) {
    if (value.is_array()) {
        const bool flags = value.as_array()[0].is_bool();
        writer.set_array(key, flags ? GgufType::boolean : GgufType::u32, value.as_array());
    } else if (value.is_string()) writer.set_string(key, value.as_string());
    else if (value.is_bool()) writer.set_bool(key, value.as_bool());
    else if (value.is_double()) writer.set_f32(key, static_cast<float>(value.as_double()));
    else writer.set_u32(key, static_cast<uint32_t>(value.as_int64()));
}

std::vector<std::byte> write_gguf(const json::object& metadata, const std::vector<Renamed>& tensors) {
    std::vector<std::byte> image;
    GgufWriter writer(image);
    for (const auto& [key, value] : metadata) set_key(writer, key, value);
    for (const Renamed& tensor : tensors) writer.add_tensor(tensor.name, tensor.dtype, tensor.shape);
    for (const Renamed& tensor : tensors) writer.write_tensor(tensor.name, tensor.bytes);
    writer.finish();
    return image;
}

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
    const std::string folder = ::testing::TempDir() + "/riptide_layout_" + std::to_string(getpid());
    std::filesystem::create_directories(folder);
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
    std::vector<NamedTensor> named;
    for (const Renamed& tensor : tensors) named.push_back({tensor.name, tensor.dtype, tensor.shape, tensor.bytes});
    write_safetensors(folder + "/model.safetensors", named);
    write_file_atomic(folder + "/config.json", json::serialize(config));
    expect_same_bits(logits(open_checkpoint(folder)), expected());
    std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace riptide::testing
