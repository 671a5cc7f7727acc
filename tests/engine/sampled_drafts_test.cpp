// What is drawn for drafts and behind them follows the distribution that plain decoding has there.
#include <gtest/gtest.h>

#include "engine/sampling/sampler.h"
#include "engine/speculation/draft_tree.h"
#include "tests/engine/distribution.h"
#include "tests/engine/engine_world.h"

namespace riptide::testing {
namespace {

constexpr const char* kText =
    "〈|EOS|〉def merge(a, b):\n    \"\"\"Two sorted lists as one.\"\"\"\n    out = []\n    while a and b:\n        if "
    "a[0] < b[0]:\n"
    "            out.append(a.pop(0))\n        else:\n            out.append(b.pop(0))\n    return out + a + "
    "b\n\n\nclass "
    "Queue:\n    def __init__(self, items):\n        self.items = list(items)\n\n    def ";

SamplingParams params() {
    SamplingParams s;
    s.temperature = 0.7, s.top_k = 20, s.top_p = 0.95;
    s.repetition_penalty = 1.1, s.frequency_penalty = 0.2, s.presence_penalty = 0.1;
    s.seed = 4;
    return s;
}

/// The header's penalties, written down a second time.
std::vector<double> penalised(std::span<const float> logits, const SamplingParams& s, std::span<const int32_t> prompt,
                              std::span<const int32_t> answer) {
    std::vector<double> out(logits.begin(), logits.end());
    std::map<int32_t, int> counts;
    for (const int32_t token : answer) ++counts[token];
    for (size_t t = 0; t < out.size(); ++t) {
        const auto token = static_cast<int32_t>(t);
        const int count = counts.contains(token) ? counts[token] : 0;
        if (count > 0 || std::find(prompt.begin(), prompt.end(), token) != prompt.end())
            out[t] = out[t] > 0 ? out[t] / s.repetition_penalty : out[t] * s.repetition_penalty;
        if (count > 0) out[t] -= s.frequency_penalty * count + s.presence_penalty;
    }
    return out;
}

/// A row of a step: the logits behind prompt and answer.
struct Row {
    std::vector<float> logits;
    Sampler sampler;
    Distribution p, warmer, unpenalised;  // as defined; for a temperature of 0.73; without penalties
    std::map<int32_t, int> counts;
    int64_t draws = 0;

    Row(std::span<const float> row, std::span<const int32_t> prompt, std::span<const int32_t> answer)
        : logits(row.begin(), row.end()), sampler(params(), std::ssize(row), {}, prompt) {
        for (const int32_t token : answer) sampler.accept(token);
        SamplingParams s = params();
        const std::vector<double> values = penalised(logits, s, prompt, answer);
        p = exact(values, s);
        unpenalised = exact({logits.begin(), logits.end()}, s);
        s.temperature = 0.73;
        warmer = exact(values, s);
    }
    int32_t draw(int64_t position) {
        const int32_t token = sampler.sample(logits, position).token;
        ++counts[token];
        ++draws;
        return token;
    }
    std::vector<int32_t> likely(size_t n) const {
        std::vector<std::pair<double, int32_t>> order;
        for (const auto& [token, w] : p) order.emplace_back(-w, token);
        std::sort(order.begin(), order.end());
        std::vector<int32_t> tokens;
        for (size_t i = 0; i < std::min(n, order.size()); ++i) tokens.push_back(order[i].second);
        return tokens;
    }
};

/// 300,000 draws of steps that check a tree of three drafts, over rows of the demo model. At a level of 1e-4 the test
/// sees, with a probability above 0.99, draws that are off by 3 % (a root mean square of q / p - 1 over the rows), and
/// it does see a temperature of 0.73 for 0.7, and penalties that are forgotten.
TEST(SampledDrafts, draws_for_drafts_and_behind_them_follow_the_distribution) {
    if (kThreadSanitizer) GTEST_SKIP() << "one thread, and too few draws would say nothing";
    constexpr int64_t kDraws = 300'000;
    SessionOptions o;
    o.threads = 1, o.context = 512, o.k_dtype = o.v_dtype = DType::f32;
    if (Gpu* gpu = test_gpu()) o.gpu = gpu->options();
    const auto session = Session::open(demo_path(), o);
    EncodeOptions encode;
    encode.parse_special = true;
    const std::vector<int32_t> text =
        Tokenizer::from_gguf(session->checkpoint().metadata(), "demo").encode(kText, encode);

    // Steps at places where more than a few tokens are possible: row 0, then a row for each draft below it.
    struct Step {
        std::vector<Row> rows;
        DraftTree tree;
    };
    std::vector<Step> steps;
    for (size_t end = 12; end <= text.size() && steps.size() < 16; ++end) {
        const std::span<const int32_t> known(text.data(), end), prompt = known.first(8), answer = known.subspan(8);
        Step step;
        step.rows.emplace_back(session->prefill(known), prompt, answer);
        if (step.rows[0].p.size() < 5) continue;
        for (const int32_t draft : step.rows[0].likely(3)) {
            std::vector<int32_t> longer(known.begin(), known.end());
            longer.push_back(draft);
            step.tree.add(-1, {draft, -1.0f});
            step.rows.emplace_back(session->prefill(longer), prompt, std::span<const int32_t>(longer).subspan(8));
        }
        steps.push_back(std::move(step));
    }
    ASSERT_GE(steps.size(), 8u);
    int64_t draws = 0, accepted = 0;
    std::vector<int32_t> path;
    for (int64_t i = 0; draws < kDraws; ++i)
        for (Step& step : steps) {
            walk(step.tree, path,
                 [&](int32_t row) { return step.rows[static_cast<size_t>(row)].draw(2 * i + (row > 0 ? 1 : 0)); });
            draws += std::ssize(path);
            accepted += std::ssize(path) - 1;
        }
    EXPECT_GT(accepted, draws / 5);

    ChiSquare right, warmer, unpenalised;
    for (const Step& step : steps)
        for (const Row& row : step.rows) {
            for (const auto& [token, n] : row.counts) ASSERT_TRUE(row.p.contains(token)) << "token " << token;
            right.add(row.counts, row.p, row.draws);
            warmer.add(row.counts, row.warmer, row.draws);
            unpenalised.add(row.counts, row.unpenalised, row.draws);
        }
    EXPECT_LT(right.value, right.limit()) << right.df() << " degrees of freedom";
    EXPECT_GT(warmer.value, warmer.limit()) << "the test does not see another temperature";
    EXPECT_GT(unpenalised.value, unpenalised.limit()) << "the test does not see that penalties are missing";
    // Draws that are off by e add n e^2 to the statistic, whose deviation is then sqrt(2 (df + 2 n e^2)).
    const double off = static_cast<double>(draws) * 0.03 * 0.03;
    const double power = (right.df() + off - right.limit()) / std::sqrt(2 * (right.df() + 2 * off));
    EXPECT_GT(power, 2.33) << "the chance to miss draws that are 3 % off is above 1 %";
    fmt::print(
        "{} draws at {} places, {} of them behind drafts that were right: chi-square {:.0f} of {:.0f} allowed, {:.0f} "
        "degrees of freedom; {:.0f} for a temperature of 0.73, {:.0f} without penalties; 3 % off is {:.1f} deviations "
        "beyond the limit\n",
        draws, steps.size(), accepted, right.value, right.limit(), right.df(), warmer.value, unpenalised.value, power);
}

}  // namespace
}  // namespace riptide::testing
