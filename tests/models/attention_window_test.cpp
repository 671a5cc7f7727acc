// A window over full-attention layers (ModelOptions::attention_window): what it hides, and what it leaves alone.
#include <algorithm>
#include <numeric>

#include "tests/models/fixture.h"

namespace riptide::testing {
namespace {

std::unique_ptr<Model> load(const Checkpoint& checkpoint, int32_t window) {
    ModelOptions options;
    options.attention_window = window;
    return load_model(checkpoint, options);
}

/// Logits of every token where rows of full layers see keys at positions > their own - window, by a model without such
/// windows: one token a step, pages of one token, and in full layers a step whose page table begins at the first key
/// that is seen. Its rows are then numbered from there, and rotated as if they were not (Batch::gaps).
std::vector<float> cut_logits(const Model& model, std::span<const int32_t> tokens, int32_t window) {
    KvCacheOptions options;
    options.k_dtype = options.v_dtype = DType::f32;
    options.page_rows = 1;
    options.pages = static_cast<int32_t>(std::ssize(tokens));
    KvCache cache(model.state_specs(), options);
    Arena arena(int64_t{64} << 20);
    Context ctx;
    ctx.arena = &arena;
    std::vector<int32_t> pages(tokens.size());
    std::iota(pages.begin(), pages.end(), 0);
    const std::vector<int32_t> zeros(1, 0), begin = {0, 1};
    std::vector<float> logits;
    for (int32_t r = 0; r < std::ssize(tokens); ++r) {
        arena.reset();
        const int32_t first = std::max(0, r + 1 - window), rank = r - first;
        const auto step = [&](const int32_t& position, const int32_t& left_out) {
            Batch batch;
            batch.tokens = tokens.subspan(static_cast<size_t>(r), 1);
            batch.positions = batch.committed = {&position, 1};
            batch.row_sequence = batch.state_slot = batch.logit_rows = zeros;
            batch.row_begin = begin;
            batch.page_table = std::span(pages).subspan(static_cast<size_t>(left_out));
            batch.max_pages = static_cast<int32_t>(batch.page_table.size());
            batch.gaps = {&left_out, 1};
            return batch;
        };
        const Batch whole = step(r, zeros[0]), cut = step(rank, first);
        Tensor x = model.embed(ctx, whole);
        for (int64_t l = 0; l < model.info().num_hidden_layers; ++l) {
            const bool full = model.state_specs()[static_cast<size_t>(l)].kind == StateSpec::Kind::paged;
            model.layer(ctx, l, x, full ? cut : whole, {cache.views(), cache.delta().views(), ops::DeltaMode::update});
        }
        const Tensor row = model.logits(ctx, x, whole);
        logits.insert(logits.end(), row.row(0), row.row(0) + row.row_elements());
    }
    return logits;
}

double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
    double most = 0;
    for (size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(double{a[i]} - double{b[i]}));
    return most;
}

class AttentionWindow : public ::testing::TestWithParam<std::string> {
  protected:
    Fixture fixture{GetParam()};
    std::unique_ptr<Checkpoint> checkpoint = open_checkpoint(fixture.model_path());
    const std::vector<int32_t> tokens = fixture.prompts.back().tokens;

    /// On the device that the tests run on.
    std::unique_ptr<Session> session(int64_t window, DType kv = DType::f32, int32_t chunk = 64) const {
        SessionOptions o = fixture.options(chunk);
        o.k_dtype = o.v_dtype = kv;
        o.model.attention_window = static_cast<int32_t>(window);
        return Session::open(fixture.model_path(), o);
    }
};
// Windows beside windows (Laguna), no page at all (dense Qwen3), beside recurrent state (Qwen3.5).
INSTANTIATE_TEST_SUITE_P(Fixtures, AttentionWindow,
                         ::testing::Values("laguna_xs2", "laguna_m1", "qwen3_tied", "qwen35_tied", "qwen35_moe"),
                         fixture_name);

// Bit for bit: on the CPU sums over keys begin at the first key that is seen.
TEST_P(AttentionWindow, equals_a_model_whose_page_table_is_cut) {
    RT_CPU_ONLY("the reference runs on the CPU; rows_test.cpp has the rows of a GPU");
    const auto plain = load(*checkpoint, 0);
    const std::vector<float> off = cut_logits(*plain, tokens, 4096);
    expect_bits(off, forward_pass(*plain, nullptr, tokens, Family::decode).logits, "a cut that hides nothing");
    for (const int32_t window : {1, 5, 16, 33, 100}) {
        const Pass pass = forward_pass(*load(*checkpoint, window), nullptr, tokens, Family::decode);
        const std::vector<float> expected = cut_logits(*plain, tokens, window);
        expect_bits(pass.logits, expected, fmt::format("a window of {}", window));
        EXPECT_GT(largest_difference(expected, off), 0.1) << window << ": it hides nothing";
    }
}

TEST_P(AttentionWindow, one_as_long_as_the_context_is_none) {
    const auto off = session(0), same = session(512), less = session(511);
    EXPECT_EQ(same->model().info().attention_window, 0);
    EXPECT_EQ(less->model().info().attention_window, 511);
    EXPECT_EQ(same->cache().bytes_per_token(), off->cache().bytes_per_token());
    EXPECT_EQ(less->cache().bytes_per_token(), 0) << "no layer has pages";
    expect_bits(all_logits(*same, tokens), all_logits(*off, tokens), "512 of 512");
    EXPECT_EQ(
        load(*checkpoint, static_cast<int32_t>(off->model().info().max_position_embeddings))->info().attention_window,
        0)
        << "nor are there positions for more";
}

TEST_P(AttentionWindow, windows_that_layers_have_stay_as_they_are) {
    const auto plain = load(*checkpoint, 0);
    for (const int32_t window : {3, 100}) {
        const auto model = load(*checkpoint, window);
        for (size_t l = 0; l < plain->state_specs().size(); ++l) {
            const StateSpec &was = plain->state_specs()[l], &is = model->state_specs()[l];
            const bool full = was.kind == StateSpec::Kind::paged;
            EXPECT_EQ(is.kind, full ? StateSpec::Kind::window : was.kind) << l;
            EXPECT_EQ(is.window, full ? window : was.window) << l;
            EXPECT_EQ(is.num_kv_heads, was.num_kv_heads) << l;
            EXPECT_EQ(is.head_dim, was.head_dim) << l;
        }
    }
}

TEST_P(AttentionWindow, chunks_of_a_prompt_change_nothing_with_any_type_of_kv) {
    for (const DType kv :
         {DType::f32, DType::f16, DType::bf16, DType::f8_e4m3, DType::q8_0, DType::q4_0, DType::tq3_0}) {
        const StateSpec full = load(*checkpoint, 0)->state_specs().back();
        if (full.head_dim % dtype_info(kv).block_elements != 0) continue;  // heads of whole blocks
        const auto one = session(24, kv, 150);
        const std::vector<float> logits = all_logits(*one, tokens);
        expect_bits(all_logits(*session(24, kv, 7), tokens), logits, dtype_name(kv));
        EXPECT_GT(largest_difference(all_logits(*session(0, kv, 150), tokens), logits), 0.01) << dtype_name(kv);
    }
}

}  // namespace
}  // namespace riptide::testing
