// Drawing from allowed tokens only: the same as from logits that are -infinity for all others, on the host and on a
// GPU.
#include <cstring>
#include <optional>

#include "tests/engine/sample_world.h"

namespace riptide::testing {
namespace {

constexpr size_t kMaskKinds = 8;
constexpr int64_t kNoMask = -1;

/// Masks of kMaskKinds kinds in turn; bits beyond the vocabulary are set, and mean nothing.
std::vector<uint64_t> make_mask(int64_t vocab, size_t kind, std::mt19937& random) {
    std::vector<uint64_t> words(static_cast<size_t>(ops::SampleMasks::words_of(vocab)));
    const auto set = [&](int64_t token) { words[static_cast<size_t>(token) / 64] |= uint64_t{1} << (token % 64); };
    const auto some = [&] { return static_cast<int64_t>(random() % static_cast<unsigned>(vocab)); };
    const int64_t few[] = {1, 3, 40, 600};
    switch (kind % kMaskKinds) {
        case 0:  // nearly all: inside a string
            for (int64_t t = 0; t < vocab; ++t)
                if (random() % 50 != 0) set(t);
            break;
        case 1:
        case 2:
        case 3:
        case 4:
            for (int64_t i = 0; i < few[kind % kMaskKinds - 1]; ++i) set(some());
            break;
        case 5:
            for (int64_t t = 0; t < vocab; ++t)
                if (random() % 2 != 0) set(t);
            break;
        case 6:  // the last token, and neighbours
            for (int64_t t = std::max<int64_t>(0, vocab - 70); t < vocab; ++t) set(t);
            break;
        default:  // none
            break;
    }
    for (int64_t t = vocab; t < std::ssize(words) * 64; ++t) set(t);
    return words;
}

/// The tokens of a step, by the device under test: ops::sample, or the sampler of the host with logits that are
/// -infinity for tokens outside the mask.
class Drawer {
  public:
    Drawer(std::vector<SampledAnswer>& answers, int64_t vocab)
        : answers_(answers), vocab_(vocab), op_(1, std::ssize(answers) * vocab * 26 + (2 << 20)) {
        if (op_.ctx.gpu == nullptr) return;
        slots_.emplace(*op_.ctx.gpu, std::ssize(answers), vocab);
        for (int64_t r = 0; r < std::ssize(answers); ++r) slots_->start(r, answers[static_cast<size_t>(r)].start());
    }
    /// Row r has mask of_row[r] of `masks`, one behind the other. Nothing joins a history unless `accept`.
    std::vector<int32_t> draw(const std::vector<float>& logits, const std::vector<int32_t>& positions,
                              const std::vector<uint64_t>& masks, const std::vector<int32_t>& of_row, bool accept) {
        const auto n = static_cast<int64_t>(positions.size());
        if (op_.ctx.gpu == nullptr) return draw_here(logits, positions, masks, of_row);
        op_.poison();
        std::vector<int32_t> halves(2 * masks.size());
        std::memcpy(halves.data(), masks.data(), masks.size() * sizeof(uint64_t));
        const Tensor words = op_.int_tensor(halves, {std::ssize(halves)});
        const ops::SampleMasks allowed{static_cast<const uint64_t*>(words.data), op_.ints(of_row)};
        return values_of<int32_t>(ops::sample(op_.ctx, op_.tensor(logits, {n, vocab_}), slots_->state(),
                                              op_.ints(positions), {}, accept, allowed));
    }

  private:
    std::vector<int32_t> draw_here(const std::vector<float>& logits, const std::vector<int32_t>& positions,
                                   const std::vector<uint64_t>& masks, const std::vector<int32_t>& of_row) {
        std::vector<int32_t> drawn;
        const int64_t words = ops::SampleMasks::words_of(vocab_);
        for (size_t r = 0; r < positions.size(); ++r) {
            std::vector<float> row(logits.begin() + static_cast<int64_t>(r) * vocab_,
                                   logits.begin() + static_cast<int64_t>(r + 1) * vocab_);
            for (int64_t t = 0; t < vocab_ && of_row[r] >= 0; ++t)
                if ((masks[static_cast<size_t>(of_row[r] * words + t / 64)] >> (t % 64) & 1) == 0 &&
                    row[static_cast<size_t>(t)] < kInf)
                    row[static_cast<size_t>(t)] = -kInf;
            drawn.push_back(answers_[r].draw(row, positions[r] + 1));
        }
        return drawn;
    }

    std::vector<SampledAnswer>& answers_;
    int64_t vocab_;
    OpContext op_;
    std::optional<ops::SampleSlots> slots_;
};

/// All settings side by side, with masks and without, for `steps` tokens each.
int64_t compare_masked_draws(int64_t vocab, size_t steps, unsigned seed) {
    std::mt19937 random(seed);
    std::vector<SampledAnswer> answers;
    // With kinds of masks in turn: filters of nearly all (by min_p) and of 40; greedy, all and few.
    for (const SamplingParams& params : some_settings(vocab, {30, 0, 2, 4, 1}))
        answers.emplace_back(params, std::vector<int32_t>{0}, vocab);
    const size_t n = answers.size(), row_size = static_cast<size_t>(vocab);
    const auto words = static_cast<size_t>(ops::SampleMasks::words_of(vocab));
    Drawer drawer(answers, vocab);
    std::vector<float> logits(n * row_size);
    int64_t possible = 0;
    for (size_t step = 0; step < steps; ++step) {
        std::vector<int32_t> positions(n), of_row(n, kNoMask);
        std::vector<uint64_t> masks;
        for (size_t r = 0; r < n; ++r) {
            positions[r] = static_cast<int32_t>(step * 1000003 + 17 * r);
            fill_logits({logits.data() + r * row_size, row_size}, step / 2 + r / 24, random);
            if ((step + r) % (kMaskKinds + 1) == kMaskKinds) continue;
            const std::vector<uint64_t> mask = make_mask(vocab, step + r, random);
            of_row[r] = static_cast<int32_t>(masks.size() / words);
            masks.insert(masks.end(), mask.begin(), mask.end());
        }
        const std::vector<int32_t> drawn = drawer.draw(logits, positions, masks, of_row, true);
        for (size_t r = 0; r < n; ++r) {
            std::span<const uint64_t> allowed;
            if (of_row[r] >= 0) allowed = std::span(masks).subspan(static_cast<size_t>(of_row[r]) * words, words);
            const int32_t expected =
                answers[r].draw({logits.data() + r * row_size, row_size}, positions[r] + 1, allowed);
            EXPECT_EQ(drawn[r], expected) << "vocabulary " << vocab << ", setting " << r << ", step " << step;
            if (drawn[r] != expected) return 0;  // the histories differ from here on
            if (expected < 0) continue;
            ++possible;
            if (!allowed.empty()) {
                EXPECT_TRUE(allowed[static_cast<size_t>(expected) / 64] >> (expected % 64) & 1);
            }
            answers[r].sampler.accept(expected);
        }
    }
    return possible;
}

TEST(SampleMask, masked_logits_are_impossible_in_small_vocabularies) {
    int64_t draws = 0;
    for (const int64_t vocab : fewer<std::vector<int64_t>>({1, 3, 31, 32, 33, 64, 65, 257, 513, 1000, 5003}, {33, 257}))
        draws += compare_masked_draws(vocab, fewer(vocab <= 1000 ? 36 : 18, 1), static_cast<unsigned>(vocab));
    EXPECT_GE(draws, fewer(10000, 25));
}

TEST(SampleMask, masked_logits_are_impossible_in_a_large_vocabulary) {
    EXPECT_GT(compare_masked_draws(fewer(100352, 2003), fewer(3, 1), 1), fewer(60, 4));
    if (!brief_counts()) {
        EXPECT_GT(compare_masked_draws(151937, 1, 2), 20);
        EXPECT_GT(compare_masked_draws(248320, 1, 3), 20);
    }
}

TEST(SampleMask, no_allowed_token_or_a_damaged_logit_is_no_token_and_leaves_other_rows_alone) {
    const int64_t vocab = 1000;
    const auto words = static_cast<size_t>(ops::SampleMasks::words_of(vocab));
    const auto all = settings(vocab);
    // Greedy, few, all, filter; with penalties. A filter of min_p alone (30) is two exchanges of a cluster.
    for (const size_t setting : fewer<std::vector<size_t>>({0, 1, 2, 4, 28}, {0, 2, 30})) {
        std::vector<SampledAnswer> answers(5, SampledAnswer(all[setting], {}, vocab));
        Drawer drawer(answers, vocab);
        std::vector<uint64_t> masks(3 * words);  // none, one, half (or an eighth: each is compared with each)
        masks[words + 700 / 64] = uint64_t{1} << (700 % 64);
        std::fill(masks.begin() + static_cast<int64_t>(2 * words), masks.end(),
                  fewer<uint64_t>(0x5555555555555555, 0x0101010101010101));
        std::vector<float> logits = normals(5 * 1000, 7, 2);
        const std::vector<int32_t> positions = {4, 4, 4, 4, 4}, of_row = {0, 1, 2, 2, -1};
        const auto good = drawer.draw(logits, positions, masks, of_row, false);
        EXPECT_EQ(good[0], -1);
        EXPECT_EQ(good[1], 700);
        EXPECT_GE(good[2], 0);
        EXPECT_GE(good[4], 0);
        logits[2 * 1000 + 1] = std::numeric_limits<float>::quiet_NaN();  // of tokens that are not allowed
        logits[3 * 1000 + 3] = kInf;
        const auto drawn = drawer.draw(logits, positions, masks, of_row, false);
        EXPECT_EQ(drawn, (std::vector<int32_t>{-1, 700, -1, -1, good[4]})) << "setting " << setting;
    }
}

}  // namespace
}  // namespace riptide::testing
