#include "apps/synth/random_checkpoint.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "apps/convert/convert_drafter.h"
#include "apps/support/demo_model.h"
#include "apps/synth/drafter_shapes.h"
#include "apps/synth/synth_shapes.h"
#include "apps/synth/synth_vocab.h"
#include "base/error.h"
#include "base/json.h"
#include "base/thread_pool.h"
#include "quant/quant_mix.h"
#include "quant/random_fill.h"
#include "tensor/half.h"

namespace riptide::apps {

namespace {

constexpr int64_t kFloat8Block = 128;
constexpr int64_t kStepBlocks = 32;         // between the beginnings of tensors: keeps every type aligned to 32 bytes
constexpr int64_t kRandomBlocks = 1 << 20;  // drawn; more repeat them
constexpr float kSigma = 0.0221f;           // 1 / sqrt(2048): keeps activations near unit size
constexpr float kLargeSigma = 64.0f;        // of embeddings that outweigh all that layers add to them
constexpr uint64_t kSeed = 1;

struct PlannedTensor {
    std::string name;
    std::vector<int64_t> shape;
    DType type;
    float value = 0;            // vectors and scales: of all their elements
    std::vector<float> values;  // a vector's own
    float sigma = kSigma;       // of a matrix
};

int64_t blocks_of(const PlannedTensor& t) {
    int64_t n = 1;
    for (const int64_t extent : t.shape) n *= extent;
    return n / dtype_info(t.type).block_elements;
}

bool is_float8(const LayoutTensor& t) {
    return t.shape.size() > 1 && t.name.find(".ffn_") != std::string::npos &&
           t.name.find("ffn_gate_inp") == std::string::npos;
}

/// -0.05 ln u for u in seeded places of (0, 1), in no order.
std::vector<float> skewed_bias(const LayoutTensor& t) {
    std::vector<float> values(static_cast<size_t>(t.shape[0]));
    for (size_t i = 0; i < values.size(); ++i) {
        uint64_t mixed = (i + 1) * 0x9E3779B97F4A7C15u + static_cast<uint64_t>(t.layer + 1) * 0xD1B54A32D192ED03u;
        mixed = (mixed ^ (mixed >> 31)) * 0xBF58476D1CE4E5B9u;
        const double u = (static_cast<double>((mixed ^ (mixed >> 29)) >> 11) + 0.5) * 0x1p-53;
        values[i] = static_cast<float>(-0.05 * std::log(u));
    }
    return values;
}

std::vector<PlannedTensor> plan_tensors(const GgufLayout& shape, const std::string& type, RandomRouting routing) {
    const bool float8 = type == "fp8";
    std::vector<PlannedTensor> planned;
    for (const LayoutTensor& t : layout_tensors(shape)) {
        if (float8 && is_float8(t)) {
            planned.push_back({t.name, t.shape, DType::f8_e4m3, 0, {}});
            std::vector<int64_t> blocks = t.shape;
            for (size_t i = blocks.size() - 2; i < blocks.size(); ++i)
                blocks[i] = (blocks[i] + kFloat8Block - 1) / kFloat8Block;
            planned.push_back({t.name + "_scale", blocks, DType::bf16, kSigma, {}});
            continue;
        }
        const DType stored = quant_mix_type(float8 ? "bf16" : type, t.name, t.shape, t.layer, shape.num_hidden_layers,
                                            shape.tie_word_embeddings);
        const bool norm = t.name.find("norm.weight") != std::string::npos;
        const float decay = t.name.ends_with(".ssm_a") ? -1.0f : 0.0f;  // of recurrent state: else it never fades
        planned.push_back({t.name, t.shape, stored, norm ? 1.0f : decay, {}});
        const bool skewed = routing == RandomRouting::skewed && t.name.ends_with("exp_probs_b.bias");
        if (skewed) planned.back().values = skewed_bias(t);
        if (routing != RandomRouting::alike && t.name == "token_embd.weight") planned.back().sigma = kLargeSigma;
    }
    return planned;
}

std::vector<std::byte> model_facts(const GgufLayout& shape) {
    std::vector<std::byte> image;
    GgufWriter writer(image);
    write_layout_metadata(shape, writer);
    writer.set_string("general.name", shape.name + " (random weights)");
    write_synth_vocabulary(writer, shape.vocab_size, demo_chat_template());
    writer.finish();
    return image;
}

// ---- Drafters.

/// As drafter_tensors() lists those of a folder.
std::vector<PlannedTensor> plan_drafter(const DrafterShape& drafter, const std::string& type) {
    const DflashConfig& c = drafter.config;
    std::vector<PlannedTensor> planned;
    const int64_t D = c.hidden_size, F = c.intermediate_size, d = c.head_dim, taps = std::ssize(c.taps);
    const int64_t q = c.num_attention_heads * d, kv = c.num_key_value_heads * d;
    const auto matrix = [&](const std::string& name, int64_t rows, int64_t cols, bool precise = false) {
        const std::vector<int64_t> shape = {rows, cols};
        const DType stored = quant_mix_type(type, name, shape, -1, c.num_hidden_layers);
        planned.push_back({name, shape, precise ? drafter_type(stored) : stored, 0, {}});
    };
    const auto norm = [&](const std::string& name, int64_t n) { planned.push_back({name, {n}, DType::f32, 1, {}}); };
    matrix("dflash.fc.weight", D, taps * D, true);
    for (int64_t i = 0; i < taps && drafter.has_tap_norms; ++i)
        norm("dflash.aux_hidden_norm." + std::to_string(i) + ".weight", D);
    norm("dflash.hidden_norm.weight", D);
    norm("output_norm.weight", D);
    if (drafter.owns_vocabulary) {
        matrix("token_embd.weight", c.vocab_size, D);
        matrix("output.weight", c.draft_vocab_size, D, true);
        PlannedTensor d2t{"dflash.d2t", {c.draft_vocab_size}, DType::i32, 0, {}};
        for (int64_t i = 0; i < c.draft_vocab_size; ++i) {
            const int64_t token = i * c.vocab_size / c.draft_vocab_size;
            d2t.values.push_back(static_cast<float>(token - i));
        }
        planned.push_back(std::move(d2t));
    }
    for (int64_t l = 0; l < c.num_hidden_layers; ++l) {
        const std::string blk = "blk." + std::to_string(l) + ".";
        norm(blk + "attn_norm.weight", D);
        matrix(blk + "attn_q.weight", q, D);
        matrix(blk + "attn_k.weight", kv, D);
        matrix(blk + "attn_v.weight", kv, D);
        matrix(blk + "attn_output.weight", D, q);
        if (drafter.has_gates) matrix(blk + "attn_gate.weight", c.num_attention_heads, D);
        norm(blk + "attn_q_norm.weight", d);
        norm(blk + "attn_k_norm.weight", d);
        norm(blk + "ffn_norm.weight", D);
        matrix(blk + "ffn_gate.weight", F, D);
        matrix(blk + "ffn_up.weight", F, D);
        matrix(blk + "ffn_down.weight", D, F);
    }
    return planned;
}

std::vector<std::byte> drafter_facts(const DflashConfig& c, const std::string& name) {
    std::vector<std::byte> image;
    GgufWriter writer(image);
    write_drafter_metadata(c, name + " drafter (random weights)", writer);
    writer.finish();
    return image;
}

class RandomCheckpoint : public Checkpoint {
  public:
    /// facts: a GGUF without tensors. threads: that draw the values; none: they stay zeros.
    RandomCheckpoint(std::vector<std::byte> facts, const std::vector<PlannedTensor>& planned, std::string name,
                     std::optional<int> threads)
        : path_(std::move(name)), image_(std::move(facts)) {
        facts_ = open_gguf_memory(image_, path_);
        make_pools(planned);
        if (threads) fill(*threads);
        tensors_.reserve(planned.size());
        for (const PlannedTensor& t : planned) {
            const int64_t each = dtype_info(t.type).block_bytes, bytes = blocks_of(t) * each;
            const std::byte* data = nullptr;
            if (is_constant(t)) {
                data = constant(t);
            } else {
                Pool& pool = pools_.at({t.type, t.sigma});
                data = pool.bytes.get() + pool.next * each;
                pool.next += kStepBlocks;
            }
            tensors_.push_back({t.name, t.type, t.shape, {data, static_cast<size_t>(bytes)}, path_});
        }
        for (size_t i = 0; i < tensors_.size(); ++i) index_[tensors_[i].name] = i;
    }

    Format format() const override { return Format::gguf; }
    const std::string& path() const override { return path_; }
    std::span<const TensorInfo> tensors() const override { return tensors_; }
    const TensorInfo* find(std::string_view name) const override {
        const auto at = index_.find(name);
        return at == index_.end() ? nullptr : &tensors_[at->second];
    }
    const json::object& metadata() const override { return facts_->metadata(); }
    void check_intact() const override {}

  private:
    using Kind = std::pair<DType, float>;  // type and sigma
    struct Freed {
        void operator()(std::byte* bytes) const { std::free(bytes); }
    };
    struct Pool {
        std::unique_ptr<std::byte, Freed> bytes;
        int64_t blocks = 0, next = 0;
    };

    static bool is_constant(const PlannedTensor& t) { return t.shape.size() == 1 || t.value != 0; }

    /// Of zeros, whose pages the system makes when they are touched.
    void make_pools(const std::vector<PlannedTensor>& planned) {
        std::map<Kind, int64_t> count;
        for (const PlannedTensor& t : planned) {
            if (is_constant(t)) continue;
            Pool& pool = pools_[{t.type, t.sigma}];
            pool.blocks = std::max(pool.blocks, blocks_of(t));
            ++count[{t.type, t.sigma}];
        }
        for (auto& [kind, pool] : pools_) {
            pool.blocks += count[kind] * kStepBlocks;
            const int64_t each = dtype_info(kind.first).block_bytes;
            pool.bytes.reset(
                static_cast<std::byte*>(std::calloc(static_cast<size_t>(pool.blocks), static_cast<size_t>(each))));
            RT_CHECK(pool.bytes != nullptr, ErrorKind::system, "{}: no memory for {} bytes", path_, pool.blocks * each);
        }
    }

    void fill(int threads) {
        ThreadPool workers(threads);
        for (auto& [kind, pool] : pools_) {
            const DType type = kind.first;
            const DTypeInfo& info = dtype_info(type);
            const int64_t each = info.block_bytes, drawn = std::min(pool.blocks, kRandomBlocks), piece = 4096;
            std::byte* const to = pool.bytes.get();
            const float sigma = type == DType::f8_e4m3 ? 1.0f : kind.second;
            const int64_t elements = info.block_elements;
            workers.parallel_for((drawn + piece - 1) / piece, 1, [&](int64_t begin, int64_t end, int) {
                for (int64_t p = begin; p < end; ++p)
                    random_fill(type, to + p * piece * each, std::min(piece, drawn - p * piece) * elements, sigma,
                                kSeed + static_cast<uint64_t>(p) * 0x9E37u);
            });
            for (int64_t at = drawn; at < pool.blocks; at += drawn)
                std::memcpy(to + at * each, to, static_cast<size_t>(std::min(drawn, pool.blocks - at) * each));
        }
    }

    const std::byte* constant(const PlannedTensor& t) {
        const auto n = static_cast<size_t>(blocks_of(t));
        RT_ASSERT(t.type == DType::f32 || t.type == DType::bf16 || t.type == DType::i32);
        std::vector<std::byte>& bytes = constants_.emplace_back(n * (t.type == DType::bf16 ? 2 : 4));
        for (size_t i = 0; i < n; ++i) {
            const float value = t.values.empty() ? t.value : t.values[i];
            const uint16_t half = f32_to_bf16(value);
            const auto whole = static_cast<int32_t>(value);
            if (t.type == DType::bf16) std::memcpy(bytes.data() + 2 * i, &half, 2);
            else if (t.type == DType::f32) std::memcpy(bytes.data() + 4 * i, &value, 4);
            else std::memcpy(bytes.data() + 4 * i, &whole, 4);
        }
        return bytes.data();
    }

    std::string path_;
    std::vector<std::byte> image_;
    std::unique_ptr<Checkpoint> facts_;
    std::map<Kind, Pool> pools_;
    std::vector<std::vector<std::byte>> constants_;
    std::vector<TensorInfo> tensors_;
    std::map<std::string, size_t, std::less<>> index_;
};

}  // namespace

namespace {

std::unique_ptr<Checkpoint> made_up(const std::string& what, std::optional<int> threads, RandomRouting routing) {
    const size_t colon = what.find(':');
    const std::string type = colon == std::string::npos ? "q4_k_m" : what.substr(colon + 1);
    if (type != "fp8") quant_mix_file_type(type);  // throws for unknown ones
    const GgufLayout& shape = find_synth_shape(what.substr(0, colon));
    RT_CHECK(routing != RandomRouting::skewed || shape.architecture == "laguna", ErrorKind::usage,
             "skewed routing: {} has no routers with biases", shape.name);
    return std::make_unique<RandomCheckpoint>(model_facts(shape), plan_tensors(shape, type, routing), "random:" + what,
                                              threads);
}

}  // namespace

std::unique_ptr<Checkpoint> random_checkpoint(const std::string& what, int threads, RandomRouting routing) {
    return made_up(what, threads, routing);
}

std::unique_ptr<Checkpoint> checkpoint_without_values(const std::string& what) {
    return made_up(what, std::nullopt, RandomRouting::alike);
}

std::unique_ptr<Checkpoint> random_drafter(const std::string& what, int threads) {
    const size_t colon = what.find(':');
    const std::string shape = what.substr(0, colon),
                      type = colon == std::string::npos ? "q8_0" : what.substr(colon + 1);
    quant_mix_file_type(type);
    const DrafterShape drafter = find_drafter_shape(shape);
    return std::make_unique<RandomCheckpoint>(drafter_facts(drafter.config, shape), plan_drafter(drafter, type),
                                              "random drafter:" + what, threads);
}

}  // namespace riptide::apps
