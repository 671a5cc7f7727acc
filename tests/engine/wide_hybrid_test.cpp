// A hybrid whose matrices are as wide as those of Qwen3.5-27B, so that Hopper multiplies all of them in half precision:
// a step's company changes nothing, and logits are those of the exact weights but for what rounding x does to them.
#include <set>

#include "tests/engine/ahead_world.h"
#include "tests/engine/state_hash.h"
#include "tests/models/rounding.h"
#include "tests/ops/kquant_f16_bound.h"

namespace riptide::testing {
namespace {

constexpr size_t kVocab = SeededHybrid::kVocab;

/// A greedy answer, token by token: what is fed, the logits behind each, and K/V and state behind each.
struct Plain {
    std::vector<int32_t> prompt = some_tokens(5, 1), tokens;
    std::vector<std::vector<float>> logits;
    std::vector<uint64_t> states;

    Plain(AheadWorld& world, size_t length) {
        SequenceState s(world.cache());
        int32_t next = begin(world, s);
        for (size_t i = 0; i < length; ++i) {
            tokens.push_back(next);
            logits.push_back(world.feed(s, next));
            states.push_back(state_hash(s));
            next = largest(logits.back());
        }
    }
    /// Feeds the prompt; says what comes behind it.
    int32_t begin(AheadWorld& world, SequenceState& s) const {
        int32_t next = 0;
        for (const int32_t token : prompt) next = largest(world.feed(s, token));
        return next;
    }
};

class WideHybrid : public ::testing::Test {
  protected:
    AheadWorld world{"wide"};
    Plain plain{world, fewer<size_t>(kThreadSanitizer ? 10 : 26, 5)};

    void expect_row(const std::vector<float>& logits, size_t row, size_t token, const std::string& what) {
        const std::span<const float> got = row_at(logits, row, kVocab);
        ASSERT_TRUE(same_bits(got.data(), plain.logits[token].data(), kVocab)) << what << ", token " << token;
    }
};

TEST_F(WideHybrid, chains_of_any_length_are_tokens_one_by_one) {
    EXPECT_GT(std::set<int32_t>(plain.tokens.begin(), plain.tokens.end()).size(), plain.tokens.size() / 3);
    for (const size_t length : fewer<std::vector<size_t>>({2, 4, 8, 9, 16, 17, 24, 25}, {3})) {
        if (length >= plain.tokens.size()) break;
        SequenceState s(world.cache());
        plain.begin(world, s);
        std::vector<int32_t> tokens(plain.tokens.begin(), plain.tokens.begin() + static_cast<ptrdiff_t>(length));
        tokens.push_back((plain.tokens[length] + 1) % static_cast<int32_t>(kVocab));  // and a wrong one
        const StepItem item{&s, tokens, {}, StepRows::Logits::all, {}};
        const std::vector<float> logits = world.step(std::span(&item, 1));
        const auto what = fmt::format("a chain of {}", length);
        for (size_t i = 0; i < length; ++i) expect_row(logits, i, i, what);
        s.commit_prefix(static_cast<int64_t>(length));
        ASSERT_EQ(state_hash(s), plain.states[length - 1]) << what;
        ASSERT_EQ(world.feed(s, plain.tokens[length]), plain.logits[length]) << what;
    }
}

TEST_F(WideHybrid, trees_hold_what_tokens_one_by_one_hold) {
    for (const size_t depth : fewer<std::vector<size_t>>({2, 4, 8, 12, 20}, {3})) {
        if (depth >= plain.tokens.size()) break;
        SequenceState s(world.cache());
        plain.begin(world, s);
        std::vector<int32_t> tokens = {plain.tokens[0]}, parents = {-1}, path = {0};
        for (size_t i = 1; i < depth; ++i)  // a wrong draft beside each right one, in front of it or behind
            for (const bool right : {i % 2 == 0, i % 2 != 0}) {
                parents.push_back(path[i - 1]);
                tokens.push_back(right ? plain.tokens[i] : (plain.tokens[i] + 7) % static_cast<int32_t>(kVocab));
                if (right) path.push_back(static_cast<int32_t>(std::ssize(tokens)) - 1);
            }
        const StepItem item{&s, tokens, parents, StepRows::Logits::all, {}};
        const std::vector<float> logits = world.step(std::span(&item, 1));
        const auto what = fmt::format("a tree of {}", tokens.size());
        for (size_t i = 0; i < depth; ++i) expect_row(logits, static_cast<size_t>(path[i]), i, what);
        s.commit(path);
        ASSERT_EQ(state_hash(s), plain.states[depth - 1]) << what;
        ASSERT_EQ(world.feed(s, plain.tokens[depth]), plain.logits[depth]) << what;
    }
}

/// Three sequences at once, at other places of the answer each, with drafts and without; and steps ahead of the host.
TEST_F(WideHybrid, company_and_steps_ahead_change_nothing) {
    std::vector<SequenceState> all;
    for (int i = 0; i < 3; ++i) {
        all.emplace_back(world.cache());
        EXPECT_EQ(plain.begin(world, all.back()), plain.tokens[0]);
    }
    size_t at[3] = {};
    for (size_t turn = 0; turn < fewer<size_t>(6, 2); ++turn) {
        std::vector<StepItem> items;
        size_t counts[3];
        for (size_t i = 0; i < 3; ++i) {
            counts[i] = std::min(1 + (turn + i) % 3 * i, plain.tokens.size() - at[i]);
            items.push_back(
                {&all[i], std::span(plain.tokens).subspan(at[i], counts[i]), {}, StepRows::Logits::all, {}});
        }
        const std::vector<float> logits = world.step(items);
        for (size_t i = 0, row = 0; i < 3; ++i) {
            for (size_t k = 0; k < counts[i]; ++k) expect_row(logits, row++, at[i]++, fmt::format("turn {}", turn));
            all[i].commit_prefix(static_cast<int64_t>(counts[i]));
            ASSERT_EQ(state_hash(all[i]), plain.states[at[i] - 1]) << "turn " << turn << ", sequence " << i;
        }
    }
    ASSERT_TRUE(world.follows());
    const size_t left = plain.tokens.size() - at[0] - 1;
    const std::vector<int32_t> drawn = world.ahead(all[0], plain.tokens[at[0]], static_cast<int64_t>(left), true);
    EXPECT_TRUE(std::ranges::equal(drawn, std::span(plain.tokens).subspan(at[0] + 1, left)));
    EXPECT_EQ(state_hash(all[0]), plain.states[plain.tokens.size() - 2]);
}

/// Against a pass on the CPU in f32 with the values of the same weights: within the bounds of rounding.h.
TEST(WideHybridLogits, are_those_of_the_exact_weights_but_for_rounding) {
    if (brief_counts() || kThreadSanitizer) GTEST_SKIP() << "half a gigabyte of weights";
    const auto judge_of = SeededHybrid::open("wide exact"), stored = SeededHybrid::open("wide");
    const std::vector<int32_t> tokens = some_tokens(24, 9);
    const Pass exact = forward_pass(*load_model(*judge_of), nullptr, tokens, Family::decode);
    const HybridShape shape = HybridShape::of("wide");
    const std::vector<std::vector<float>> head = head_rows(*judge_of);
    /// The largest logit's error in units of its bound, and the errors' norm.
    const auto judge = [&](const Pass& pass, const OperandRounding& rounding) {
        const Variance variance({static_cast<double>(shape.value_heads), static_cast<double>(shape.heads)},
                                static_cast<double>(shape.hidden), SeededHybrid::kHeadDim,
                                static_cast<double>(shape.ffn), static_cast<double>(tokens.size()), rounding);
        double share = 0;
        for (size_t r = 0; r < tokens.size(); ++r) {
            const double x = norm2(row_at(exact.taps.at("tap.norm"), r, static_cast<size_t>(shape.hidden)));
            for (size_t v = 0; v < kVocab; ++v) {
                const size_t i = r * kVocab + v;
                const double allowed =
                    6 * x * std::sqrt(variance.head) * norm2(head[v]) / std::sqrt(static_cast<double>(shape.hidden));
                share = std::max(share, std::abs(double{pass.logits[i]} - exact.logits[i]) / allowed);
            }
        }
        return std::pair(share, distance(pass.logits, exact.logits) / norm2(exact.logits));
    };
    const auto on_cpu =
        judge(forward_pass(*load_model(*stored), nullptr, tokens, Family::decode), OperandRounding::int8());
    fmt::print("x in int8 on the CPU: {:.3f} of the bound, relative error {:.2e}\n", on_cpu.first, on_cpu.second);
    EXPECT_LE(on_cpu.first, 1);
    EXPECT_GE(on_cpu.first, 0.02) << "the bound is too loose";
    if (test_gpu() == nullptr) return;
    ModelOptions options;
    options.gpu = test_gpu();
    const Weight wide = Binder(*stored).matrix({{"output.weight"}, {}}, kVocab, shape.hidden);
    const bool half = expected_arithmetic(test_gpu(), wide) == Arithmetic::half;
    const double f16 = 0x1p-11 / std::sqrt(3.0);
    const OperandRounding rounding = half ? OperandRounding{f16, f16 / 2, f16} : OperandRounding::int8();
    const auto device =
        judge(forward_pass(*load_model(*stored, options), test_gpu(), tokens, Family::decode), rounding);
    fmt::print("on the GPU: {:.3f} of the bound, relative error {:.2e}\n", device.first, device.second);
    EXPECT_LE(device.first, 1);
    EXPECT_GE(device.first, 0.02) << "the bound is too loose";
    if (half) {
        EXPECT_LT(8 * device.second, on_cpu.second) << "eleven bits for each value, not seven for 32";
    }
}

}  // namespace
}  // namespace riptide::testing
