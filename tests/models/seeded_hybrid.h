// A small hybrid (Qwen3.5) with the heads of the real ones, made at run time: the trained fixtures have linear heads of
// 16, which the kernels for heads of 128 do not take, so that no step of theirs runs ahead of the host on a GPU.
#pragma once

#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "io/checkpoint.h"
#include "io/gguf_writer.h"
#include "quant/quant_mix.h"
#include "quant/random_fill.h"

namespace riptide::testing {

/// Two layers of Gated DeltaNet and two of full attention, in turns.
struct SeededHybrid {
    static constexpr int64_t kVocab = 512, kHidden = 256, kLayers = 4, kFfn = 512;
    static constexpr int64_t kHeads = 4, kKvHeads = 1, kHeadDim = 256;          // of full attention
    static constexpr int64_t kKeyHeads = 2, kValueHeads = 4, kLinearDim = 128;  // of linear attention
    static constexpr int64_t kTaps = 4;                                         // of its convolution

    /// `type`: a mix of quantize (bf16, q4_k_m, ...). A pure function of it.
    static std::unique_ptr<Checkpoint> open(const std::string& type) {
        static std::map<std::string, std::vector<std::byte>> images;
        std::vector<std::byte>& image = images[type];
        if (image.empty()) write(type, image);
        return open_gguf_memory(image, "seeded hybrid, " + type);
    }

  private:
    struct Planned {
        std::string name;
        std::vector<int64_t> shape;
        DType type;
    };

    static std::vector<Planned> plan(const std::string& type) {
        std::vector<Planned> all;
        const auto add = [&](const std::string& name, std::vector<int64_t> shape, int64_t layer = -1) {
            const DType stored = quant_mix_type(type, name, shape, layer, kLayers);
            all.push_back({name, std::move(shape), stored});
        };
        constexpr int64_t q = kHeads * kHeadDim, kv = kKvHeads * kHeadDim, values = kValueHeads * kLinearDim,
                          channels = 2 * kKeyHeads * kLinearDim + values;
        add("token_embd.weight", {kVocab, kHidden});
        add("output_norm.weight", {kHidden});
        add("output.weight", {kVocab, kHidden});
        for (int64_t l = 0; l < kLayers; ++l) {
            const auto of_layer = [&](const char* name, std::vector<int64_t> shape) {
                add("blk." + std::to_string(l) + "." + name, std::move(shape), l);
            };
            of_layer("attn_norm.weight", {kHidden});
            of_layer("post_attention_norm.weight", {kHidden});
            if (l % 2 != 0) {
                of_layer("attn_q.weight", {2 * q, kHidden});
                of_layer("attn_k.weight", {kv, kHidden});
                of_layer("attn_v.weight", {kv, kHidden});
                of_layer("attn_output.weight", {kHidden, q});
                of_layer("attn_q_norm.weight", {kHeadDim});
                of_layer("attn_k_norm.weight", {kHeadDim});
            } else {
                of_layer("attn_qkv.weight", {channels, kHidden});
                of_layer("attn_gate.weight", {values, kHidden});
                of_layer("ssm_conv1d.weight", {channels, kTaps});
                of_layer("ssm_a", {kValueHeads});
                of_layer("ssm_alpha.weight", {kValueHeads, kHidden});
                of_layer("ssm_beta.weight", {kValueHeads, kHidden});
                of_layer("ssm_dt.bias", {kValueHeads});
                of_layer("ssm_norm.weight", {kLinearDim});
                of_layer("ssm_out.weight", {kHidden, values});
            }
            of_layer("ffn_gate.weight", {kFfn, kHidden});
            of_layer("ffn_up.weight", {kFfn, kHidden});
            of_layer("ffn_down.weight", {kHidden, kFfn});
        }
        return all;
    }

    static void write_facts(GgufWriter& w) {
        w.set_string("general.architecture", "qwen35");
        w.set_string("general.name", "seeded hybrid");
        const auto set = [&](const char* key, int64_t value) {
            w.set_u32(std::string("qwen35.") + key, static_cast<uint32_t>(value));
        };
        set("block_count", kLayers);
        set("context_length", 4096);
        set("embedding_length", kHidden);
        set("feed_forward_length", kFfn);
        set("vocab_size", kVocab);
        set("attention.head_count", kHeads);
        set("attention.head_count_kv", kKvHeads);
        set("attention.key_length", kHeadDim);
        set("attention.value_length", kHeadDim);
        w.set_f32("qwen35.attention.layer_norm_rms_epsilon", 1e-6f);
        set("rope.dimension_count", kHeadDim / 4);
        w.set_f32("qwen35.rope.freq_base", 1e7f);
        set("full_attention_interval", 2);
        set("ssm.conv_kernel", kTaps);
        set("ssm.state_size", kLinearDim);
        set("ssm.group_count", kKeyHeads);
        set("ssm.time_step_rank", kValueHeads);
        set("ssm.inner_size", kValueHeads * kLinearDim);
    }

    /// Norms about 1, states that fade slowly and fast, activations near unit size; embeddings of unit size.
    static void fill(const Planned& t, int64_t elements, uint64_t seed, std::byte* to) {
        const bool vector = t.shape.size() == 1;
        if (!vector) {
            const float sigma = t.name == "token_embd.weight" ? 1.0f : 1.0f / std::sqrt(static_cast<float>(t.shape[1]));
            return random_fill(t.type, to, elements, sigma, seed);
        }
        std::mt19937 random(static_cast<uint32_t>(seed));
        const bool decay = t.name.ends_with(".ssm_a"), bias = t.name.ends_with(".bias");
        for (int64_t i = 0; i < elements; ++i) {
            const float u = static_cast<float>(random() % 4096) / 4096;  // the same on every machine
            const float value = decay ? -0.02f - u : bias ? 2 * u - 1 : 0.5f + u;
            std::memcpy(to + i * int64_t{sizeof value}, &value, sizeof value);
        }
    }

    static void write(const std::string& type, std::vector<std::byte>& image) {
        GgufWriter writer(image);
        write_facts(writer);
        const std::vector<Planned> all = plan(type);
        for (const Planned& t : all) writer.add_tensor(t.name, t.type, t.shape);
        uint64_t seed = 1;
        for (const Planned& t : all) {
            int64_t elements = 1;
            for (const int64_t extent : t.shape) elements *= extent;
            std::vector<std::byte> bytes(static_cast<size_t>(row_bytes(t.type, elements)));
            fill(t, elements, seed++, bytes.data());
            writer.write_tensor(t.name, bytes);
        }
        writer.finish();
    }
};

}  // namespace riptide::testing
