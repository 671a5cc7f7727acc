// Drafters as GGUF files: the same drafter.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>

#include "apps/commands/commands.h"
#include "base/json.h"
#include "cache/batch_builder.h"
#include "io/gguf_writer.h"
#include "models/dflash.h"
#include "tests/source_dir.h"

namespace riptide {
namespace {

std::string fixture(const std::string& name) { return source_dir() + "/tests/fixtures/" + name; }

/// What the drafter proposes behind eleven tokens whose features are a pattern.
std::vector<float> drafts_of(const std::string& path) {
    const auto target_file = open_checkpoint(fixture("laguna_xs2") + "/model.safetensors"),
               file = open_checkpoint(path);
    const auto target = load_model(*target_file);
    const auto drafter = load_drafter(*file, *target);
    KvCache cache(drafter->state_specs(),
                  {.k_dtype = DType::f32, .v_dtype = DType::f32, .page_rows = 16, .pages = 4, .max_step_rows = 16});
    SequenceState state(cache);
    Arena arena(int64_t{16} << 20, nullptr);
    Context ctx;
    ctx.arena = &arena;
    BatchBuilder builder;
    const std::vector<int32_t> tokens(11, 0);
    EXPECT_TRUE(state.try_reserve(11));
    const StepRows rows{&state, tokens, {}, StepRows::Logits::none, {}};
    Tensor features = ctx.alloc(DType::f32, {11, drafter->feature_columns()});
    for (int64_t i = 0; i < features.elements(); ++i) features.row(0)[i] = std::sin(static_cast<float>(i));
    drafter->append(ctx, features, builder.build({&rows, 1}), States{cache.views()});
    state.commit_prefix(11);
    std::vector<int32_t> block(static_cast<size_t>(drafter->block_size()), drafter->mask_token_id());
    block[0] = 3;
    EXPECT_TRUE(state.try_reserve(std::ssize(block)));
    const StepRows drafting{&state, block, {}, StepRows::Logits::all, {}};
    const Tensor logits = drafter->draft(ctx, builder.build({&drafting, 1}), States{cache.views()});
    return {logits.row(0), logits.row(0) + logits.elements()};
}

TEST(drafter_file, gguf_in_bf16_drafts_the_same_bits_and_smaller_types_about_the_same) {
    for (const char* dialect : {"dflash_zlab", "dflash_speculators", "dflash_laguna"}) {
        const std::vector<float> expected = drafts_of(fixture(dialect) + "/model.safetensors");
        double size = 0;
        for (const float x : expected) size += double{x} * x;
        for (const auto& [type, most] : {std::pair("bf16", 0.0), std::pair("q8_0", 0.05), std::pair("q4_k_m", 0.4)}) {
            const std::string out =
                (std::filesystem::temp_directory_path() / fmt::format("{}-{}.gguf", dialect, type)).string();
            const std::string in = fixture(dialect);
            const char* const arguments[] = {"riptide", "quantize", in.c_str(), out.c_str(), "--type", type};
            ASSERT_EQ(apps::riptide_main(6, arguments), 0);
            const std::vector<float> got = drafts_of(out);
            ASSERT_EQ(got.size(), expected.size());
            double off = 0;
            for (size_t i = 0; i < got.size(); ++i)
                off += (double{got[i]} - expected[i]) * (double{got[i]} - expected[i]);
            EXPECT_LE(std::sqrt(off / size), most) << dialect << " " << type;
            std::filesystem::remove(out);
        }
    }
}

/// The drafter of a file that `riptide quantize` wrote, with the keys and names that llama.cpp's converter gives it.
void write_as_llama(const std::string& path, const std::string& out, bool laguna) {
    const auto file = open_checkpoint(path);
    const ConfigReader old = gguf_config(*file, "dflash-draft.");
    GgufWriter w(out);
    w.set_string("general.architecture", "dflash");
    for (const char* key :
         {"block_count", "context_length", "embedding_length", "feed_forward_length", "attention.head_count",
          "attention.head_count_kv", "attention.key_length", "attention.value_length", "attention.sliding_window"})
        if (old.has(key)) w.set_u32(fmt::format("dflash.{}", key), static_cast<uint32_t>(old.get<int64_t>(key)));
    for (const char* key : {"attention.layer_norm_rms_epsilon", "rope.freq_base"})
        w.set_f32(fmt::format("dflash.{}", key), static_cast<float>(old.get<double>(key)));
    if (old.has("attention.sliding_window_pattern"))
        w.set_array("dflash.attention.sliding_window_pattern", GgufType::boolean,
                    old.raw("attention.sliding_window_pattern").as_array());
    w.set_u32("dflash.block_size", static_cast<uint32_t>(old.get<int64_t>("dflash.block_size")));
    w.set_u32("tokenizer.ggml.mask_token_id", static_cast<uint32_t>(old.get<int64_t>("dflash.mask_token_id")));
    json::array layers;
    for (const int64_t tap : old.get<std::vector<int64_t>>("dflash.target_layer_ids")) layers.push_back(tap + 1);
    w.set_array("dflash.target_layers", GgufType::u32, layers);
    if (laguna) w.set_string("dflash.decoder_arch", "laguna");

    std::vector<std::byte> norms;  // of taps, one above the other
    std::vector<std::pair<TensorInfo, std::vector<std::byte>>> tensors;
    for (const TensorInfo& t : file->tensors()) {
        TensorInfo named = t;
        std::vector<std::byte> bytes(t.bytes.begin(), t.bytes.end());
        if (t.name == "dflash.fc.weight") named.name = "fc.weight";
        if (t.name == "dflash.hidden_norm.weight") named.name = "enc.output_norm.weight";
        if (t.name == "dflash.d2t") {
            named.name = "d2t";
            auto* const words = reinterpret_cast<int32_t*>(bytes.data());
            ASSERT_EQ(t.dtype, DType::i32);
            for (int64_t i = 0; i < t.shape[0]; ++i) words[i] += static_cast<int32_t>(i);
        }
        if (t.name.starts_with("dflash.aux_hidden_norm.")) norms.insert(norms.end(), bytes.begin(), bytes.end());
        else tensors.emplace_back(named, std::move(bytes));
    }
    if (!norms.empty()) {
        TensorInfo all;
        all.name = "enc.aux_norm.weight", all.dtype = DType::f32;
        all.shape = {std::ssize(layers), static_cast<int64_t>(norms.size()) / 4 / std::ssize(layers)};
        tensors.emplace_back(all, norms);
    }
    for (const auto& [t, bytes] : tensors) w.add_tensor(t.name, t.dtype, t.shape);
    for (const auto& [t, bytes] : tensors) w.write_tensor(t.name, bytes);
    w.finish();
}

TEST(drafter_file, llama_cpps_form_drafts_the_same_bits) {
    for (const char* dialect : {"dflash_zlab", "dflash_speculators", "dflash_laguna"}) {
        const std::string folder = std::filesystem::temp_directory_path(), in = fixture(dialect);
        const std::string ours = fmt::format("{}/{}-ours.gguf", folder, dialect),
                          llama = fmt::format("{}/{}-llama.gguf", folder, dialect);
        const char* const arguments[] = {"riptide", "quantize", in.c_str(), ours.c_str(), "--type", "bf16"};
        ASSERT_EQ(apps::riptide_main(6, arguments), 0);
        write_as_llama(ours, llama, std::string_view(dialect) == "dflash_laguna");
        EXPECT_EQ(drafts_of(llama), drafts_of(fixture(dialect) + "/model.safetensors")) << dialect;
        std::filesystem::remove(ours);
        std::filesystem::remove(llama);
    }
}

}  // namespace
}  // namespace riptide
