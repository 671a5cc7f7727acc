#include "apps/random_checkpoint.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "apps/demo_model.h"
#include "apps/synth_shapes.h"
#include "apps/synth_vocab.h"
#include "base/error.h"
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
constexpr uint64_t kSeed = 1;

struct PlannedTensor {
    std::string name;
    std::vector<int64_t> shape;
    DType type;
    float value = 0;  // vectors and scales: of all their elements
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

std::vector<PlannedTensor> plan_tensors(const GgufLayout& shape, const std::string& type) {
    const bool float8 = type == "fp8";
    std::vector<PlannedTensor> planned;
    for (const LayoutTensor& t : layout_tensors(shape)) {
        if (float8 && is_float8(t)) {
            planned.push_back({t.name, t.shape, DType::f8_e4m3});
            std::vector<int64_t> blocks = t.shape;
            for (size_t i = blocks.size() - 2; i < blocks.size(); ++i)
                blocks[i] = (blocks[i] + kFloat8Block - 1) / kFloat8Block;
            planned.push_back({t.name + "_scale", blocks, DType::bf16, kSigma});
            continue;
        }
        const DType stored = quant_mix_type(float8 ? "bf16" : type, t.name, t.shape, t.layer, shape.num_hidden_layers,
                                            shape.tie_word_embeddings);
        const bool norm = t.name.find("norm.weight") != std::string::npos;
        const float decay = t.name.ends_with(".ssm_a") ? -1.0f : 0.0f;  // of recurrent state: else it never fades
        planned.push_back({t.name, t.shape, stored, norm ? 1.0f : decay});
    }
    return planned;
}

class RandomCheckpoint : public Checkpoint {
  public:
    RandomCheckpoint(const GgufLayout& shape, const std::string& type, std::string name, int threads)
        : path_(std::move(name)) {
        GgufWriter writer(image_);
        write_layout_metadata(shape, writer);
        writer.set_string("general.name", shape.name + " (random weights)");
        write_synth_vocabulary(writer, shape.vocab_size, demo_chat_template());
        writer.finish();
        facts_ = open_gguf_memory(image_, path_);
        const std::vector<PlannedTensor> planned = plan_tensors(shape, type);
        fill(planned, threads);
        tensors_.reserve(planned.size());
        for (const PlannedTensor& t : planned) {
            const int64_t each = dtype_info(t.type).block_bytes, bytes = blocks_of(t) * each;
            const std::byte* data = nullptr;
            if (t.shape.size() == 1 || t.value != 0) {
                data = constant(t);
            } else {
                Pool& pool = pools_.at(t.type);
                data = pool.bytes.data() + pool.next * each;
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
    struct Pool {
        std::vector<std::byte> bytes;
        int64_t blocks = 0, next = 0;
    };

    void fill(const std::vector<PlannedTensor>& planned, int threads) {
        std::map<DType, int64_t> count;
        for (const PlannedTensor& t : planned) {
            if (t.shape.size() == 1 || t.value != 0) continue;
            Pool& pool = pools_[t.type];
            pool.blocks = std::max(pool.blocks, blocks_of(t));
            ++count[t.type];
        }
        ThreadPool workers(threads);
        for (auto& [type, pool] : pools_) {
            pool.blocks += count[type] * kStepBlocks;
            const DTypeInfo& info = dtype_info(type);
            const int64_t each = info.block_bytes, drawn = std::min(pool.blocks, kRandomBlocks), piece = 4096;
            pool.bytes.resize(static_cast<size_t>(pool.blocks * each));
            std::byte* const to = pool.bytes.data();
            const float sigma = type == DType::f8_e4m3 ? 1.0f : kSigma;
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
        RT_ASSERT(t.type == DType::f32 || t.type == DType::bf16);
        std::vector<std::byte>& bytes = constants_.emplace_back(n * (t.type == DType::f32 ? 4 : 2));
        const uint16_t half = f32_to_bf16(t.value);
        for (size_t i = 0; i < n; ++i) {
            if (t.type == DType::f32) std::memcpy(bytes.data() + 4 * i, &t.value, 4);
            else std::memcpy(bytes.data() + 2 * i, &half, 2);
        }
        return bytes.data();
    }

    std::string path_;
    std::vector<std::byte> image_;
    std::unique_ptr<Checkpoint> facts_;
    std::map<DType, Pool> pools_;
    std::vector<std::vector<std::byte>> constants_;
    std::vector<TensorInfo> tensors_;
    std::map<std::string, size_t, std::less<>> index_;
};

}  // namespace

std::unique_ptr<Checkpoint> random_checkpoint(const std::string& what, int threads) {
    const size_t colon = what.find(':');
    const std::string type = colon == std::string::npos ? "q4_k_m" : what.substr(colon + 1);
    if (type != "fp8") quant_mix_file_type(type);  // throws for unknown ones
    return std::make_unique<RandomCheckpoint>(find_synth_shape(what.substr(0, colon)), type, "random:" + what, threads);
}

}  // namespace riptide::apps
