// Drawing on a GPU gives the tokens of Sampler: for the same logits, parameters, history and position.
#include "tests/engine/sample_world.h"

namespace riptide::testing {
namespace {

/// All settings side by side, for `steps` tokens each; returns the number of draws compared.
int64_t compare_draws(int64_t vocab, size_t steps, unsigned seed) {
    std::mt19937 random(seed);
    std::vector<SampledAnswer> answers;
    std::vector<int32_t> prompt(20);
    for (int32_t& token : prompt) token = static_cast<int32_t>(random() % static_cast<unsigned>(vocab));
    for (const SamplingParams& params : some_settings(vocab, {28, 0, 2, 1}))  // filter, greedy, all, few
        answers.emplace_back(params, prompt, vocab);
    const auto n = static_cast<int64_t>(answers.size());

    OpContext op(1, n * vocab * 24 + (1 << 20));
    ops::SampleSlots slots(*op.ctx.gpu, n, vocab);
    for (int64_t r = 0; r < n; ++r) slots.start(r, answers[static_cast<size_t>(r)].start());
    std::vector<float> logits(static_cast<size_t>(n * vocab));
    for (size_t step = 0; step < steps; ++step) {
        op.poison();
        std::vector<int32_t> positions(static_cast<size_t>(n));
        for (size_t r = 0; r < answers.size(); ++r) {
            positions[r] = static_cast<int32_t>(step * 1000003 + 17 * r);
            fill_logits({logits.data() + r * static_cast<size_t>(vocab), static_cast<size_t>(vocab)}, step + r / 24, random);
        }
        const Tensor rows = op.tensor(logits, {n, vocab});
        const Tensor at = op.int_tensor(positions, {n});
        const auto drawn = values_of<int32_t>(
            ops::sample(op.ctx, rows, slots.state(), {at.row<int32_t>(0), static_cast<size_t>(n)}));
        for (size_t r = 0; r < answers.size(); ++r) {
            const std::span<const float> row(logits.data() + r * static_cast<size_t>(vocab), static_cast<size_t>(vocab));
            const int32_t expected = answers[r].draw(row, positions[r] + 1);
            EXPECT_EQ(drawn[r], expected) << "vocabulary " << vocab << ", setting " << r << ", step " << step << ", seed "
                                          << seed;
            if (drawn[r] != expected) return 0;  // the histories differ from here on
            if (expected >= 0) answers[r].sampler.accept(expected);
        }
    }
    return n * static_cast<int64_t>(steps);
}

TEST(SampleCuda, draws_the_cpus_tokens_from_small_vocabularies) {
    RT_GPU_ONLY();
    int64_t draws = 0;
    for (const int64_t vocab : fewer<std::vector<int64_t>>({1, 3, 50, 64, 257, 512, 513, 1000, 1024, 5003}, {1, 257}))
        draws += compare_draws(vocab, fewer(vocab <= 1024 ? 48 : 24, 1), static_cast<unsigned>(vocab));
    EXPECT_GE(draws, fewer(20000, 90));
}

TEST(SampleCuda, draws_the_cpus_tokens_from_a_large_vocabulary) {
    RT_GPU_ONLY();
    EXPECT_GT(compare_draws(fewer(100352, 1300), fewer(30, 1), 1), 0);
    if (brief_counts()) return;
    EXPECT_GT(compare_draws(151937, 6, 2), 0);
    // Qwen3.5's: more than 48 KB of shared memory, static and dynamic together.
    EXPECT_GT(compare_draws(248320, 2, 3), 0);
}

struct Few {
    OpContext op;
    ops::SampleSlots slots;
    std::vector<std::vector<float>> rows;

    explicit Few(int64_t count, int64_t vocab) : op(1, 64 << 20), slots(*op.ctx.gpu, count, vocab) {
        for (int64_t r = 0; r < count; ++r) rows.push_back(normals(static_cast<size_t>(vocab), static_cast<uint64_t>(r + 1), 2));
    }
    void start(int64_t slot, const SamplingParams& params) {
        slots.start(slot, SampledAnswer(params, {}, slots.state().vocab).start());
    }
    std::vector<int32_t> draw(const std::vector<int32_t>& positions, const std::vector<int32_t>& slot_of = {},
                              bool accept = true) {
        std::vector<float> all;
        for (const auto& row : rows) all.insert(all.end(), row.begin(), row.end());
        const auto n = static_cast<int64_t>(rows.size());
        return values_of<int32_t>(ops::sample(op.ctx, op.tensor(all, {n, slots.state().vocab}), slots.state(),
                                              op.ints(positions), op.ints(slot_of), accept));
    }
};

TEST(SampleCuda, reports_rows_without_a_possible_token_and_leaves_the_others_alone) {
    RT_GPU_ONLY();
    const int64_t vocab = fewer(3000, 1300);
    const auto all = settings(vocab);
    // Greedy, few, all, filter; with penalties. A filter of min_p alone (30) is two exchanges of a cluster.
    for (const size_t setting : fewer<std::vector<size_t>>({0, 1, 2, 4, 28}, {0, 2, 30})) {
        Few few(6, vocab);
        for (int64_t r = 0; r < 6; ++r) few.start(r, all[setting]);
        const auto good = few.draw(std::vector<int32_t>(6, 100), {}, false);
        few.rows[0][1234] = std::numeric_limits<float>::quiet_NaN();
        few.rows[1].back() = kInf;
        std::fill(few.rows[2].begin(), few.rows[2].end(), -kInf);
        few.rows[3][0] = -std::numeric_limits<float>::quiet_NaN();
        const auto drawn = few.draw(std::vector<int32_t>(6, 100), {}, false);
        for (size_t r = 0; r < 6; ++r) {
            EXPECT_GE(good[r], 0);
            EXPECT_EQ(drawn[r], r < 4 ? -1 : good[r]) << "setting " << setting << ", row " << r;
        }
    }
}

TEST(SampleCuda, rows_use_the_slots_they_name_and_only_accepted_tokens_count) {
    RT_GPU_ONLY();
    const int64_t vocab = 2000;
    Few few(3, vocab);
    std::vector<SampledAnswer> answers;
    for (int64_t slot = 0; slot < 3; ++slot) {
        SamplingParams params = settings(vocab)[static_cast<size_t>(25 + slot)];
        params.presence_penalty = 2;
        params.seed = static_cast<uint64_t>(slot);
        few.start(slot, params);
        answers.emplace_back(params, std::vector<int32_t>{}, vocab);
    }
    const std::vector<int32_t> slot_of = {2, 0, 1};
    for (int32_t step = 0; step < fewer(8, 2); ++step) {
        few.op.poison();
        const bool accept = step % 2 == 1;
        const auto drawn = few.draw({step, step, step}, slot_of, accept);
        for (size_t r = 0; r < 3; ++r) {
            SampledAnswer& answer = answers[static_cast<size_t>(slot_of[r])];
            EXPECT_EQ(drawn[r], answer.draw(few.rows[r], step + 1)) << "row " << r << ", step " << step;
            if (accept) answer.sampler.accept(drawn[r]);
        }
    }
}

TEST(SampleCuda, a_recorded_draw_follows_the_parameters_in_device_memory) {
    RT_GPU_ONLY();
    const int64_t vocab = fewer(100352, 2003);
    Few few(1, vocab);
    const Tensor logits = few.op.tensor(few.rows[0], {1, vocab});
    const auto positions = few.op.ints(std::vector<int32_t>{41});
    Tensor tokens;
    const auto step = [&] { tokens = ops::sample(few.op.ctx, logits, few.slots.state(), positions); };
    const auto all = settings(vocab);
    few.start(0, all[0]);
    step();
    GpuGraph graph(*few.op.ctx.gpu, step);
    for (size_t i = 0; i < all.size(); i += fewer<size_t>(1, 8)) {
        few.start(0, all[i]);
        graph.launch();
        SampledAnswer answer(all[i], {}, vocab);
        EXPECT_EQ(values_of<int32_t>(tokens)[0], answer.draw(few.rows[0], 42)) << "setting " << i;
    }
}

TEST(SampleCuda, an_answer_may_begin_with_tokens_drawn_elsewhere) {
    RT_GPU_ONLY();
    const int64_t vocab = 300;
    Few few(1, vocab);
    SamplingParams params;
    params.temperature = 0;
    params.frequency_penalty = 0.5;
    params.min_tokens = 3;
    SampledAnswer answer(params, {}, vocab);
    ops::SampleStart start = answer.start();
    const auto best = static_cast<int32_t>(std::max_element(few.rows[0].begin(), few.rows[0].end()) - few.rows[0].begin());
    const std::vector<int32_t> before = {best, best, 7};
    start.answer = before;
    for (const int32_t token : before) answer.sampler.accept(token);
    few.slots.start(0, start);
    for (int32_t step = 0; step < fewer(10, 3); ++step) {
        const int32_t expected = answer.draw(few.rows[0], step + 1);
        EXPECT_EQ(few.draw({step})[0], expected) << step;
        answer.sampler.accept(expected);
    }
}

}  // namespace
}  // namespace riptide::testing
