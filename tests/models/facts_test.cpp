// The counts that a model reports about itself are those of the published checkpoints.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <set>

#include "base/error.h"
#include "models/laguna.h"
#include "models/model.h"
#include "tests/models/fake_checkpoint.h"
#include "tests/models/fixture.h"
#include "tests/models/laguna_metadata.h"

namespace riptide::testing {
namespace {

/// Address space that reads as zeros, for tensors whose values do not matter.
class Zeros {
  public:
    explicit Zeros(size_t bytes) : bytes_(bytes) {
        data_ = mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        RT_CHECK(data_ != MAP_FAILED, "no address space for {} bytes", bytes);
    }
    ~Zeros() { munmap(data_, bytes_); }
    Zeros(const Zeros&) = delete;
    Zeros& operator=(const Zeros&) = delete;
    std::span<const std::byte> first(int64_t bytes) const {
        RT_CHECK(bytes <= static_cast<int64_t>(bytes_), "a tensor of {} bytes is too large for this test", bytes);
        return {static_cast<const std::byte*>(data_), static_cast<size_t>(bytes)};
    }

  private:
    void* data_;
    size_t bytes_;
};

/// The official Laguna-XS-2.1-Q4_K_M.gguf without its values: 678 tensors, all in one shared stretch of zeros.
class FullSizeXs : public ::testing::Test {
  protected:
    Zeros zeros{size_t{1} << 30};
    FakeCheckpoint file{Checkpoint::Format::gguf};
    int64_t tensors = 0, bytes = 0;

    void add(const std::string& name, DType type, const std::vector<int64_t>& shape) {
        int64_t size = row_bytes(type, shape.back());
        for (size_t i = 0; i + 1 < shape.size(); ++i) size *= shape[i];
        file.add_view(name, type, shape, zeros.first(size));
        ++tensors;
        bytes += size;
    }
    void add_layer(int64_t l) {
        const std::set<int64_t> finer = {0, 1, 2, 3, 4, 7, 10, 13, 16, 19, 22, 25, 28, 31, 34, 35, 36, 37, 38, 39};
        const DType more = finer.contains(l) ? DType::q6_k : DType::q4_k, q4 = DType::q4_k;
        const std::string p = fmt::format("blk.{}.", l);
        const int64_t heads = l % 4 == 0 ? 48 : 64;
        for (const char* norm : {"attn_norm", "ffn_norm"}) add(p + norm + ".weight", DType::f32, {2048});
        for (const char* norm : {"attn_q_norm", "attn_k_norm"}) add(p + norm + ".weight", DType::f32, {128});
        add(p + "attn_q.weight", q4, {heads * 128, 2048});
        add(p + "attn_k.weight", q4, {1024, 2048});
        add(p + "attn_v.weight", more, {1024, 2048});
        add(p + "attn_output.weight", q4, {2048, heads * 128});
        add(p + "attn_gate.weight", q4, {heads, 2048});
        if (l == 0) {
            for (const char* up : {"ffn_gate", "ffn_up"}) add(p + up + ".weight", q4, {8192, 2048});
            add(p + "ffn_down.weight", DType::q6_k, {2048, 8192});
            return;
        }
        add(p + "ffn_gate_inp.weight", DType::f32, {256, 2048});
        add(p + "exp_probs_b.bias", DType::f32, {256});
        for (const char* up : {"ffn_gate_exps", "ffn_up_exps"}) add(p + up + ".weight", q4, {256, 512, 2048});
        add(p + "ffn_down_exps.weight", more, {256, 2048, 512});
        for (const char* up : {"ffn_gate_shexp", "ffn_up_shexp"}) add(p + up + ".weight", q4, {512, 2048});
        add(p + "ffn_down_shexp.weight", more, {2048, 512});
    }
    void SetUp() override {
        file.metadata() = gguf_metadata('U', hf_xs21());
        add("token_embd.weight", DType::q4_k, {100352, 2048});
        add("output_norm.weight", DType::f32, {2048});
        add("output.weight", DType::q6_k, {100352, 2048});
        for (int64_t l = 0; l < 40; ++l) add_layer(l);
    }
};

TEST_F(FullSizeXs, counts_are_the_published_ones) {
    EXPECT_EQ(tensors, 678);
    EXPECT_EQ(bytes, 20270574592);
    const auto model = load_model(file);
    const ModelInfo& info = model->info();
    EXPECT_EQ(info.architecture, "laguna");
    EXPECT_EQ(info.parameters, 33442617088);
    EXPECT_EQ(info.weight_bytes, 20270574592);
    EXPECT_EQ(info.active_parameters, 2811614976 + 2048);  // the published count leaves out the embedding row
    EXPECT_EQ(info.bytes_per_token, 1766813824 - 39 * 256 * 2048 * 2);  // routers are read as bf16
    EXPECT_EQ(info.max_position_embeddings, 262144);
    ASSERT_EQ(model->state_specs().size(), 40u);
    EXPECT_EQ(model->state_specs()[0].kind, StateSpec::Kind::paged);
    EXPECT_EQ(model->state_specs()[1].kind, StateSpec::Kind::window);
    EXPECT_EQ(model->state_specs()[1].window, 512);
    EXPECT_EQ(model->state_specs()[39].num_kv_heads, 8);
}

TEST_F(FullSizeXs, a_tensor_too_many_is_named) {
    add("blk.7.attn_sinks.weight", DType::f32, {64});
    try {
        load_model(file);
        FAIL() << "no error";
    } catch (const Error& error) {
        EXPECT_STREQ(error.what(),
                     "m.safetensors: 1 tensor that this model does not use: blk.7.attn_sinks.weight [64]");
    }
}

TEST(Facts, a_tied_head_counts_once) {
    const auto tied = open_checkpoint(fixture_path("qwen3_tied") + "/model.safetensors");
    const auto model = load_model(*tied);
    int64_t stored = 0;
    for (const TensorInfo& tensor : tied->tensors()) stored += std::ssize(tensor.bytes) / 2;
    EXPECT_EQ(model->info().parameters, stored);
    EXPECT_EQ(model->info().weight_bytes, tied->tensor_bytes());
    EXPECT_GT(model->info().active_parameters, stored);  // the table counts as the head, and one row as the embedding
}

TEST(Registry, an_unknown_architecture_lists_the_known_ones) {
    FakeCheckpoint file(Checkpoint::Format::gguf);
    file.metadata()["general.architecture"] = "llama\n";
    try {
        load_model(file);
        FAIL() << "no error";
    } catch (const Error& error) {
        EXPECT_STREQ(error.what(),
                     "m.safetensors: the architecture is \"llama\\x0a\"; supported are laguna, qwen3, qwen35, qwen35moe, "
                     "qwen3_5, qwen3_5_text, qwen3_5_moe, qwen3_5_moe_text");
    }
    file.metadata()["general.architecture"] = "clip";
    try {
        load_model(file);
        FAIL() << "no error";
    } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find("mmproj"), std::string::npos) << error.what();
    }
    file.metadata().clear();
    EXPECT_THROW(load_model(file), Error);
}

TEST(Registry, the_yarn_override_is_checked) {
    const auto file = open_checkpoint(fixture_path("laguna_xs2") + "/model.safetensors");
    ModelOptions options;
    for (const double bad : {0.0, 101.0, static_cast<double>(INFINITY)}) {
        options.yarn_attention_factor = bad;
        EXPECT_THROW(load_model(*file, options), Error) << bad;
    }
}

}  // namespace
}  // namespace riptide::testing
