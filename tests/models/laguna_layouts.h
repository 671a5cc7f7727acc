// A small Laguna of the fixtures in other file layouts: its tensors under new names, as GGUF or as a folder.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>

#include "io/gguf_writer.h"
#include "base/json.h"
#include "io/safetensors_writer.h"
#include "tests/models/fixture.h"
#include "tests/models/laguna_metadata.h"

namespace riptide::testing {

/// Tensors of a fixture under new names, with their bytes.
struct Renamed {
    std::string name;
    DType dtype;
    std::vector<int64_t> shape;
    std::vector<std::byte> bytes;
};

/// Opens a folder of these tensors that is gone at once.
inline std::unique_ptr<Checkpoint> open_folder(const json::object& config, const std::vector<Renamed>& tensors) {
    const std::string folder = ::testing::TempDir() + "/riptide_layout_" + std::to_string(getpid());
    std::filesystem::create_directories(folder);
    std::vector<NamedTensor> named;
    for (const Renamed& tensor : tensors) named.push_back({tensor.name, tensor.dtype, tensor.shape, tensor.bytes});
    write_safetensors(folder + "/model.safetensors", named);
    write_file_atomic(folder + "/config.json", json::serialize(config));
    std::unique_ptr<Checkpoint> opened = open_checkpoint(folder);
    std::filesystem::remove_all(folder);  // what is mapped stays
    return opened;
}

class LayoutTest : public ::testing::Test {
  protected:
    explicit LayoutTest(const std::string& name = "laguna_xs2") : fixture(name) {}

    Fixture fixture;
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

    /// What stands in a GGUF file for a matrix of a feed-forward layer, and for the experts' matrices of one kind.
    virtual void add_matrix(std::vector<Renamed>& out, const std::string& from, const std::string& to) const {
        out.push_back(copy(from, to));
    }
    virtual void add_stack(std::vector<Renamed>& out, int64_t layer, const std::string& part,
                           const std::string& to) const {
        out.push_back(stacked(to, layer, {part}));
    }

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

inline std::vector<Renamed> LayoutTest::gguf_tensors(const std::string& gate_name) const {
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
            add_matrix(out, fmt::format("{}{}{}_proj.weight", hf, from, part),
                       fmt::format("{}ffn_{}{}", gguf, part, suffix));
            if (sparse(l))
                add_stack(out, l, fmt::format("{}_proj", part), fmt::format("{}ffn_{}_exps.weight", gguf, part));
        }
        if (!sparse(l)) continue;
        out.push_back(as_f32(hf + "mlp.gate.weight", gguf + "ffn_gate_inp.weight"));
        out.push_back(as_f32(hf + "mlp.experts.e_score_correction_bias", gguf + "exp_probs_b.bias"));
    }
    return out;
}

/// JSON values with the types that converters use.
inline void set_key(GgufWriter& writer, std::string_view key, const json::value& value) {
    if (value.is_array()) {
        const bool flags = value.as_array()[0].is_bool();
        writer.set_array(key, flags ? GgufType::boolean : GgufType::u32, value.as_array());
    } else if (value.is_string()) writer.set_string(key, value.as_string());
    else if (value.is_bool()) writer.set_bool(key, value.as_bool());
    else if (value.is_double()) writer.set_f32(key, static_cast<float>(value.as_double()));
    else writer.set_u32(key, static_cast<uint32_t>(value.as_int64()));
}

inline std::vector<std::byte> write_gguf(const json::object& metadata, const std::vector<Renamed>& tensors) {
    std::vector<std::byte> image;
    GgufWriter writer(image);
    for (const auto& [key, value] : metadata) set_key(writer, key, value);
    for (const Renamed& tensor : tensors) writer.add_tensor(tensor.name, tensor.dtype, tensor.shape);
    for (const Renamed& tensor : tensors) writer.write_tensor(tensor.name, tensor.bytes);
    writer.finish();
    return image;
}

}  // namespace riptide::testing
