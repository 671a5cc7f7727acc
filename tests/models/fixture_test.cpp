// Forward passes judged by transformers: on the CPU, and on a GPU with the kernels whose operands are those of the file
// (the decode family: float weights with f32 activations). What rounds its operands is judged in
// rounded_kernels_test.cpp.
//
// The bound is that of rounding.h; a logit is off by the share of x with |w_v| |x|, w_v the token's row of the head.
// Four standard deviations are allowed. The share that is used is printed: above 1 fails, and never above 0.02 would
// mean that the bound says nothing.
#include "tests/models/fixture.h"

namespace riptide::testing {
namespace {

constexpr double kFixtureDeviations = 4;

/// The largest share of the bound that any logit of the prompt uses.
double logits_share(Session& session, const Fixture& fixture, size_t prompt) {
    const std::vector<int32_t>& tokens = fixture.prompts[prompt].tokens;
    const Expected expected = fixture.get(fmt::format("logits.{}", prompt));
    Pass pass = forward_pass(session, tokens, Family::decode);
    EXPECT_EQ(pass.logits.size(), expected.f32.size());
    const Variance variance = Variance::of(session.checkpoint(), std::ssize(tokens));
    std::vector<double> w;
    for (const std::vector<float>& row : head_rows(session.checkpoint())) w.push_back(norm2(row));
    const auto D = static_cast<size_t>(session.model().info().hidden_size);
    double worst = 0;
    for (size_t r = 0; r < tokens.size(); ++r) {
        const double scale = kFixtureDeviations * std::sqrt(variance.head) * norm2(row_at(pass.taps["tap.norm"], r, D));
        for (size_t v = 0; v < w.size(); ++v) {
            const double off = std::abs(double{pass.logits[r * w.size() + v]} - expected.f32[r * w.size() + v]);
            worst = std::isfinite(off) ? std::max(worst, off / (scale * w[v])) : INFINITY;
        }
    }
    return worst;
}

class FixtureTest : public ::testing::TestWithParam<std::string> {
  protected:
    Fixture fixture{GetParam()};
    /// Whether the device rounds activations to int8 to multiply them with weights of this kind.
    bool rounds() const {
        return test_gpu() != nullptr && (fixture.name == "laguna_int4" || fixture.name == "laguna_nvfp4");
    }
};
#define RT_UNLESS_ROUNDING() \
    if (rounds()) GTEST_SKIP() << "int8 activations: rounded_kernels_test.cpp judges them"
INSTANTIATE_TEST_SUITE_P(All, FixtureTest, ::testing::ValuesIn(all_fixtures()), fixture_name);
class TapTest : public FixtureTest {};
INSTANTIATE_TEST_SUITE_P(All, TapTest, ::testing::ValuesIn(float_fixtures()), fixture_name);

TEST_P(FixtureTest, logits_are_those_of_transformers) {
    RT_UNLESS_ROUNDING();
    const auto session = fixture.session();
    double most = 0;
    for (size_t p = 0; p < fixture.prompts.size(); ++p) {
        const double share = logits_share(*session, fixture, p);
        EXPECT_LE(share, 1) << "prompt " << p;
        most = std::max(most, share);
    }
    fmt::print("{}: used {:.3f} of the bound on logits\n", fixture.name, most);
    if (test_gpu() == nullptr) {  // a property of the bound; kernels may well be more exact
        EXPECT_GT(most, 0.02) << "the bound is too loose to mean anything";
    }
}

TEST_P(TapTest, every_tap_is_that_of_transformers) {
    const auto session = fixture.session();
    const std::vector<int32_t>& tokens = fixture.prompts[fixture.tap_prompt].tokens;
    Pass pass = forward_pass(*session, tokens, Family::decode);
    const Variance variance = Variance::of(session->checkpoint(), std::ssize(tokens));
    double most = 0;
    int compared = 0;
    for (int64_t l = 0; l < session->model().info().num_hidden_layers; ++l) {
        const Expected residual = fixture.get(fmt::format("tap.{}.layer_out", l));
        for (const char* name : {"attn_out", "ffn_out", "layer_out"}) {
            const std::string key = fmt::format("tap.{}.{}", l, name);
            const Expected expected = fixture.get(key);
            ASSERT_EQ(pass.taps[key].size(), expected.f32.size()) << key;
            for (int64_t r = 0; r < expected.shape[0]; ++r) {
                const auto row = row_at(pass.taps[key], static_cast<size_t>(r), static_cast<size_t>(expected.shape[1]));
                const double share =
                    distance(row, expected.row(r)) /
                    (kFixtureDeviations * std::sqrt(variance.through[static_cast<size_t>(l)]) * norm2(residual.row(r)));
                ASSERT_LE(share, 1) << key << ", row " << r;
                most = std::max(most, share);
            }
            ++compared;
        }
    }
    EXPECT_EQ(compared, 3 * session->model().info().num_hidden_layers);
    EXPECT_EQ(pass.taps["tap.embed"], fixture.get("tap.embed").f32);  // no arithmetic: exact
    fmt::print("{}: used {:.3f} of the bound on {} taps\n", fixture.name, most, compared);
}

TEST_P(FixtureTest, routers_choose_the_experts_of_transformers) {
    RT_UNLESS_ROUNDING();
    const auto session = fixture.session();
    const Pass pass = forward_pass(*session, fixture.prompts[fixture.tap_prompt].tokens, Family::decode);
    for (int layer = 0; layer < session->model().info().num_hidden_layers; ++layer) {
        const std::string key = fmt::format("tap.{}.router_experts", layer);
        if (fixture.has(key)) {
            EXPECT_EQ(pass.experts(layer), fixture.get(key).i32) << key;
        }
    }
    const bool dense = fixture.name.starts_with("qwen3") && fixture.name != "qwen35_moe";
    EXPECT_EQ(pass.choices.empty(), dense);
}

TEST_P(FixtureTest, greedy_tokens_are_those_of_transformers) {
    const auto session = fixture.session();
    for (const Prompt& prompt : fixture.prompts) {
        EXPECT_EQ(draw_greedily(*session, prompt.tokens, std::ssize(prompt.greedy)).tokens, prompt.greedy);
    }
}

TEST_P(FixtureTest, chunks_of_any_size_give_the_same_bits) {
    const Prompt& longest = fixture.prompts.back();
    std::vector<Drawn> answers;
    std::vector<std::vector<float>> logits;
    for (const int32_t chunk : {1, 7, 64, 512}) {
        const auto session = fixture.session(chunk);
        logits.push_back(all_logits(*session, longest.tokens));
        session->clear();
        answers.push_back(draw_greedily(*session, longest.tokens, 16));
    }
    for (size_t i = 1; i < answers.size(); ++i) {
        EXPECT_EQ(answers[i].tokens, answers[0].tokens);
        EXPECT_EQ(answers[i].logits_hash, answers[0].logits_hash);
        EXPECT_EQ(std::memcmp(logits[i].data(), logits[0].data(), logits[0].size() * sizeof(float)), 0);
    }
}

TEST(RecurrentState, is_that_of_the_reference_behind_the_prompt) {
    for (const char* name : {"qwen35_tied", "qwen35_odd", "qwen35_moe"}) {
        const Fixture fixture(name);
        const auto session = fixture.session(7);
        const std::vector<int32_t>& tokens = fixture.prompts[fixture.tap_prompt].tokens;
        if (test_gpu() == nullptr) session->prefill(tokens);
        else  // prompts round their operands there
            for (const int32_t token : tokens) session->decode(token);
        const Variance variance = Variance::of(session->checkpoint(), std::ssize(tokens));
        const auto views = session->cache().delta().views();
        int compared = 0;
        for (size_t l = 0; l < views.size(); ++l) {
            const DeltaView& view = views[l];
            if (view.conv_width == 0) continue;
            const double bound = kFixtureDeviations * std::sqrt(variance.through[l]);
            const auto close = [&](const std::string& what, const std::vector<float>& got) {
                const Expected expected = fixture.get(fmt::format("state.{}.{}", l, what));
                EXPECT_LE(distance(got, expected.f32), bound * norm2(expected.f32))
                    << name << ", layer " << l << ", " << what;
                ++compared;
            };
            Gpu* const gpu = session->gpu();  // the only sequence has slot 0
            close("recurrent", host_values(gpu, Tensor(view.state, DType::f32, {view.state_elements()})));
            std::vector<float> conv;  // from the oldest input on
            for (int64_t p = std::ssize(tokens) - view.conv_width + 1; p < std::ssize(tokens); ++p) {
                const Tensor column(view.conv + view.conv_column(p) * view.channels(), DType::f32, {view.channels()});
                const std::vector<float> values = host_values(gpu, column);
                conv.insert(conv.end(), values.begin(), values.end());
            }
            close("conv", conv);
        }
        EXPECT_GT(compared, 0);
    }
}

// The release's attention_factor 1.0 is the final magnitude for transformers. The judge would notice the other reading.
TEST(YarnMagnitude, a_wrong_attention_factor_misses_the_bound) {
    const Fixture fixture("laguna_xs2_factor1");
    for (const double wrong : {1.3465735902799727, 1.001}) {
        SessionOptions options = fixture.options();
        options.model.yarn_attention_factor = wrong;
        Session session(open_checkpoint(fixture.model_path()), options);
        EXPECT_GT(logits_share(session, fixture, fixture.prompts.size() - 1), 1) << wrong;
    }
    SessionOptions options = fixture.options();
    options.model.yarn_attention_factor = 1.0;
    Session session(open_checkpoint(fixture.model_path()), options);
    EXPECT_LE(logits_share(session, fixture, fixture.prompts.size() - 1), 1);
}

}  // namespace
}  // namespace riptide::testing

#undef RT_UNLESS_ROUNDING
