// Which kernels attend: tests/ops/plan/attention-*.txt, and that what is chosen fits. See plan_test.cpp.
#include <gtest/gtest.h>

#include "ops/cuda/attention/fit.h"
#include "ops/cuda/attention/plan.h"
#include "tests/ops/plan_text.h"

namespace riptide::ops::cuda {
namespace {

constexpr NamedType kStored[] = {{"f16", DType::f16},   {"bf16", DType::bf16}, {"fp8", DType::f8_e4m3},
                                 {"q8_0", DType::q8_0}, {"q4_0", DType::q4_0}, {"tq3_0", DType::tq3_0},
                                 {"f32", DType::f32}};

struct AttentionLayer {
    const char* name;
    int64_t heads, kv_heads, head_dim, rotary_dim, window;
};
struct AttentionModel {
    const char* name;
    std::vector<AttentionLayer> layers;
};
const std::vector<AttentionModel>& attention_models() {
    static const std::vector<AttentionModel> models = {
        {"laguna-xs.2", {{"full", 48, 8, 128, 64, 0}, {"window", 64, 8, 128, 128, 512}}},
        {"qwen3.5-27b", {{"full", 24, 4, 256, 64, 0}}},
        {"qwen3.5-0.8b", {{"full", 8, 2, 256, 64, 0}}},
    };
    return models;
}

attn::Case case_of(const AttentionLayer& layer, DType stored, const Chip& chip, int64_t rows, bool together,
                   int64_t keys) {
    return {.family = family_for(rows),
            .rows = rows,
            .sequences = together ? 1 : rows,
            .heads = layer.heads,
            .kv_heads = layer.kv_heads,
            .head_dim = layer.head_dim,
            .rotary_dim = layer.rotary_dim,
            .k = stored,
            .v = stored,
            .window = layer.window,
            .most_keys = layer.window > 0 ? layer.window : keys,
            .chip = chip};
}

std::string attention_text(const AttentionLayer& layer, bool together, int64_t keys) {
    const auto text = [&](DType stored) {
        return by_chip([&](const Chip& chip) {
            return plan_runs([&](int64_t rows) {
                const attn::Choice choice = choose(case_of(layer, stored, chip, rows, together, keys));
                return attn::kernel_name(choice.kernel) + std::string(choice.apart ? " + decode_d128_sm80" : "");
            });
        });
    };
    return by_type(text, kStored);
}

std::string attention_text(const AttentionLayer& layer) {
    std::vector<std::pair<std::string, std::string>> parts;  // what has the same lines is one
    for (const bool together : {false, true})
        for (const int64_t keys : {4096, 131072}) {
            const std::string what = std::to_string(layer.window > 0 ? layer.window : keys) + " keys, " +
                                     (together ? "rows of one sequence" : "a row of each sequence");
            const std::string text = attention_text(layer, together, keys);
            const auto same = std::find_if(parts.begin(), parts.end(), [&](const auto& p) { return p.second == text; });
            if (same == parts.end()) parts.emplace_back(what, text);
            else if (same->first.find(what) == std::string::npos) same->first += "; " + what;
        }
    std::string all;
    for (const auto& [what, text] : parts) all += layer.name + std::string(" layers: ") + what + "\n" + text;
    return all;
}

TEST(PlanAttention, layers_are_those_of_the_tables) {
    for (const AttentionModel& model : attention_models()) {
        std::string text = "# " + std::string(model.name) +
                           ": which kernel attends for how many rows; to 256 the decode family, above prefill\n";
        for (const AttentionLayer& layer : model.layers) text += attention_text(layer);
        hold_plan(std::string("attention-") + model.name, text);
    }
}

TEST(PlanAttention, what_is_chosen_fits) {
    int wide = 0, others = 0;
    for (const AttentionModel& model : attention_models())
        for (const AttentionLayer& layer : model.layers)
            for (const NamedType& stored : kStored)
                for (int64_t kilobytes = 32; kilobytes <= 227; ++kilobytes)
                    for (const int major : {7, 8, 9, 12})
                        for (const int64_t rows : {1, 2, 8, 9, 256}) {
                            const Chip chip{major, 0, 100, kilobytes << 10};
                            const attn::Choice choice = choose(case_of(layer, stored.type, chip, rows, true, 100000));
                            SCOPED_TRACE(::testing::Message()
                                         << layer.head_dim << " " << stored.name << ", sm_" << major << "0, "
                                         << kilobytes << " KB, " << rows << " rows");
                            if (choice.wide()) {
                                ASSERT_LE(attn::wide_shared_bytes(stored.type, stored.type, 1), chip.shared_bytes);
                                ++wide;
                            } else {
                                ++others;
                            }
                            ASSERT_TRUE(major >= 8 || choice.kernel == attn::Kernel::decode_any);
                            ASSERT_TRUE(rows > 1 || choice.fused == (layer.head_dim == 128 && major >= 8 &&
                                                                     stored.type != DType::f32));
                        }
    EXPECT_GT(wide, 0);
    EXPECT_GT(others, 0);
}

TEST(PlanAttention, kernels_are_in_the_files_of_their_names) {
    for (int i = 0; i <= static_cast<int>(attn::Kernel::prefill_any); ++i) {
        const std::string path =
            source_dir() + "/src/ops/cuda/attention/" + attn::kernel_name(static_cast<attn::Kernel>(i)) + ".cu";
        EXPECT_TRUE(std::ifstream(path)) << path << " is not there";
    }
}

}  // namespace
}  // namespace riptide::ops::cuda
