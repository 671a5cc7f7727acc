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
#include "quant/codec.h"
#include "quant/quant_mix.h"
#include "quant/random_fill.h"

namespace riptide::testing {

/// What a seeded hybrid is made of: layers of Gated DeltaNet and of full attention in turns.
struct HybridShape {
    std::string mix;  // of quantize: bf16, q4_k_m, ...
    int64_t layers = 4, hidden = 256, ffn = 512;
    int64_t heads = 4, kv_heads = 1;         // of full attention
    int64_t key_heads = 2, value_heads = 4;  // of linear attention
    bool codec = false;                      // weights quantised from normal values, not codes drawn at random
    bool exact = false;                      // the values of the mix, in f32

    /// A mix; or "wide": two layers of Q4_K_M whose matrices all have more than 2,048 columns, so that a Hopper chip
    /// multiplies them in half precision; or "wide exact": its values in f32.
    static HybridShape of(const std::string& name) {
        HybridShape s;
        s.mix = name;
        if (!name.starts_with("wide")) return s;
        s.mix = "q4_k_m";
        s.layers = 2, s.hidden = 3072, s.ffn = 3072;
        s.heads = 12, s.kv_heads = 2, s.key_heads = 8, s.value_heads = 24;  // half as many as in Qwen3.5-27B
        s.codec = true;
        s.exact = name == "wide exact";
        return s;
    }
};

struct SeededHybrid {
    static constexpr int64_t kVocab = 512;
    static constexpr int64_t kHeadDim = 256, kLinearDim = 128;
    static constexpr int64_t kTaps = 4;  // of the convolution

    /// `name`: see HybridShape::of. A pure function of it.
    static std::unique_ptr<Checkpoint> open(const std::string& name) {
        static std::map<std::string, std::vector<std::byte>> images;
        std::vector<std::byte>& image = images[name];
        if (image.empty()) write(HybridShape::of(name), image);
        return open_gguf_memory(image, "seeded hybrid, " + name);
    }

  private:
    struct Planned {
        std::string name;
        std::vector<int64_t> shape;
        DType type;
    };

    static std::vector<Planned> plan(const HybridShape& h) {
        std::vector<Planned> all;
        const auto add = [&](const std::string& name, std::vector<int64_t> shape, int64_t layer = -1) {
            const DType stored = quant_mix_type(h.mix, name, shape, layer, h.layers);
            all.push_back({name, std::move(shape), stored});
        };
        const int64_t q = h.heads * kHeadDim, kv = h.kv_heads * kHeadDim, values = h.value_heads * kLinearDim,
                      channels = 2 * h.key_heads * kLinearDim + values;
        add("token_embd.weight", {kVocab, h.hidden});
        add("output_norm.weight", {h.hidden});
        add("output.weight", {kVocab, h.hidden});
        for (int64_t l = 0; l < h.layers; ++l) {
            const auto of_layer = [&](const char* name, std::vector<int64_t> shape) {
                add("blk." + std::to_string(l) + "." + name, std::move(shape), l);
            };
            of_layer("attn_norm.weight", {h.hidden});
            of_layer("post_attention_norm.weight", {h.hidden});
            if (l % 2 != 0) {
                of_layer("attn_q.weight", {2 * q, h.hidden});
                of_layer("attn_k.weight", {kv, h.hidden});
                of_layer("attn_v.weight", {kv, h.hidden});
                of_layer("attn_output.weight", {h.hidden, q});
                of_layer("attn_q_norm.weight", {kHeadDim});
                of_layer("attn_k_norm.weight", {kHeadDim});
            } else {
                of_layer("attn_qkv.weight", {channels, h.hidden});
                of_layer("attn_gate.weight", {values, h.hidden});
                of_layer("ssm_conv1d.weight", {channels, kTaps});
                of_layer("ssm_a", {h.value_heads});
                of_layer("ssm_alpha.weight", {h.value_heads, h.hidden});
                of_layer("ssm_beta.weight", {h.value_heads, h.hidden});
                of_layer("ssm_dt.bias", {h.value_heads});
                of_layer("ssm_norm.weight", {kLinearDim});
                of_layer("ssm_out.weight", {h.hidden, values});
            }
            of_layer("ffn_gate.weight", {h.ffn, h.hidden});
            of_layer("ffn_up.weight", {h.ffn, h.hidden});
            of_layer("ffn_down.weight", {h.hidden, h.ffn});
        }
        return all;
    }

    static void write_facts(GgufWriter& w, const HybridShape& h) {
        w.set_string("general.architecture", "qwen35");
        w.set_string("general.name", "seeded hybrid");
        const auto set = [&](const char* key, int64_t value) {
            w.set_u32(std::string("qwen35.") + key, static_cast<uint32_t>(value));
        };
        set("block_count", h.layers);
        set("context_length", 4096);
        set("embedding_length", h.hidden);
        set("feed_forward_length", h.ffn);
        set("vocab_size", kVocab);
        set("attention.head_count", h.heads);
        set("attention.head_count_kv", h.kv_heads);
        set("attention.key_length", kHeadDim);
        set("attention.value_length", kHeadDim);
        w.set_f32("qwen35.attention.layer_norm_rms_epsilon", 1e-6f);
        set("rope.dimension_count", kHeadDim / 4);
        w.set_f32("qwen35.rope.freq_base", 1e7f);
        set("full_attention_interval", 2);
        set("ssm.conv_kernel", kTaps);
        set("ssm.state_size", kLinearDim);
        set("ssm.group_count", h.key_heads);
        set("ssm.time_step_rank", h.value_heads);
        set("ssm.inner_size", h.value_heads * kLinearDim);
    }

    /// Norms about 1, states that fade slowly and fast, activations near unit size; embeddings of unit size.
    static void fill(const Planned& t, const HybridShape& h, int64_t elements, uint64_t seed, std::byte* to) {
        const bool vector = t.shape.size() == 1;
        if (!vector) {
            const float sigma = t.name == "token_embd.weight" ? 1.0f : 1.0f / std::sqrt(static_cast<float>(t.shape[1]));
            if (h.codec && dtype_info(t.type).block_elements > 1) return deal_blocks(t.type, sigma, elements, seed, to);
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

    /// Blocks that the codec made of normal values, dealt out at random: to quantise each of them takes seconds.
    static void deal_blocks(DType type, float sigma, int64_t elements, uint64_t seed, std::byte* to) {
        constexpr int64_t kBlocks = 1024;
        static std::map<std::pair<DType, float>, std::vector<std::byte>> pools;
        const int64_t size = dtype_info(type).block_elements, bytes = dtype_info(type).block_bytes;
        std::vector<std::byte>& pool = pools[{type, sigma}];
        if (pool.empty()) {
            std::vector<float> values(static_cast<size_t>(kBlocks * size));
            std::mt19937 random(77);
            for (float& v : values) {  // the sum of twelve uniform values: the same on every machine
                v = -6;
                for (int i = 0; i < 12; ++i) v += static_cast<float>(random() >> 8) * 0x1p-24f;
                v *= sigma;
            }
            pool.resize(static_cast<size_t>(kBlocks * bytes));
            quantize(type, values.data(), pool.data(), std::ssize(values));
        }
        std::mt19937 random(static_cast<uint32_t>(seed));
        for (int64_t i = 0; i < elements / size; ++i)
            std::memcpy(to + i * bytes, pool.data() + static_cast<int64_t>(random() % kBlocks) * bytes,
                        static_cast<size_t>(bytes));
    }

    static void write(const HybridShape& h, std::vector<std::byte>& image) {
        GgufWriter writer(image);
        write_facts(writer, h);
        const std::vector<Planned> all = plan(h);
        for (const Planned& t : all) writer.add_tensor(t.name, h.exact ? DType::f32 : t.type, t.shape);
        uint64_t seed = 1;
        for (const Planned& t : all) {
            int64_t elements = 1;
            for (const int64_t extent : t.shape) elements *= extent;
            std::vector<std::byte> bytes(static_cast<size_t>(row_bytes(t.type, elements)));
            fill(t, h, elements, seed++, bytes.data());
            if (h.exact) {
                std::vector<std::byte> floats(static_cast<size_t>(elements) * sizeof(float));
                dequantize(t.type, bytes.data(), reinterpret_cast<float*>(floats.data()), elements);
                bytes = std::move(floats);
            }
            writer.write_tensor(t.name, bytes);
        }
        writer.finish();
    }
};

}  // namespace riptide::testing
