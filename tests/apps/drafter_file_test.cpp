// Drafters as GGUF files: the same drafter.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>

#include "apps/commands.h"
#include "cache/batch_builder.h"
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

}  // namespace
}  // namespace riptide
