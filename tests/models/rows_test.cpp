// A row's logits do not depend on what else is in its step: batches equal each sequence alone, trees equal chains, bit
// for bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "tests/models/fixture.h"

namespace riptide::testing {
namespace {

using Row = std::vector<float>;

struct Case {
    std::string fixture;
    DType kv;
};

/// A model with room for several sequences.
class RowsTest : public ::testing::TestWithParam<Case> {
  protected:
    std::unique_ptr<Checkpoint> checkpoint = open_checkpoint(fixture_path(GetParam().fixture) + "/model.safetensors");
    std::unique_ptr<Model> model = load_model(*checkpoint);
    ThreadPool threads{2};
    std::mt19937 random{7};

    KvCacheOptions cache_options(int32_t sequences) const {
        KvCacheOptions o;
        o.k_dtype = o.v_dtype = GetParam().kv;
        o.page_rows = 16;
        o.pages = 64;
        o.max_sequences = sequences;
        o.max_step_rows = 24;
        return o;
    }
    std::vector<int32_t> random_tokens(size_t n) {
        std::vector<int32_t> tokens(n);
        for (int32_t& token : tokens)
            token = static_cast<int32_t>(random() % static_cast<uint32_t>(model->info().vocab_size));
        return tokens;
    }
    static std::vector<Row> rows_of(const Tensor& logits) {
        std::vector<Row> rows;
        for (int64_t r = 0; r < logits.rows(); ++r)
            rows.emplace_back(logits.row(r), logits.row(r) + logits.row_elements());
        return rows;
    }
    /// The logits after every token, one step for each token.
    std::vector<Row> alone(std::span<const int32_t> tokens) {
        KvCache cache(model->state_specs(), cache_options(1));
        Runner runner(*model, cache, nullptr);
        SequenceState sequence(cache);
        std::vector<Row> rows;
        for (const int32_t& token : tokens) {
            const StepItem item{&sequence, std::span(&token, 1)};
            rows.push_back(rows_of(runner.step(std::span(&item, 1)))[0]);
            sequence.commit_prefix(1);
        }
        return rows;
    }
    static void expect_same_bits(const Row& a, const Row& b, const std::string& what) {
        ASSERT_EQ(a.size(), b.size());
        EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)), 0) << what;
    }
};

INSTANTIATE_TEST_SUITE_P(All, RowsTest,
                         ::testing::Values(Case{"laguna_xs2", DType::f32}, Case{"laguna_xs2", DType::f16},
                                           Case{"laguna_xs2", DType::q8_0}, Case{"laguna_m1", DType::bf16},
                                           Case{"laguna_odd", DType::f16}, Case{"laguna_int4", DType::f16},
                                           Case{"laguna_nvfp4", DType::f16}, Case{"qwen3_tied", DType::f16}),
                         [](const auto& test) { return test.param.fixture + "_" + dtype_name(test.param.kv); });

TEST_P(RowsTest, a_batch_equals_each_sequence_alone) {
    constexpr size_t kSequences = 5;
    KvCache cache(model->state_specs(), cache_options(kSequences));
    Runner runner(*model, cache, &threads);
    std::vector<SequenceState> states;
    std::vector<std::vector<int32_t>> tokens;
    std::vector<std::vector<Row>> expected, seen(kSequences);
    for (size_t s = 0; s < kSequences; ++s) {
        states.emplace_back(cache);
        tokens.push_back(random_tokens(20 + 13 * s));
        expected.push_back(alone(tokens.back()));
    }
    // Every step feeds a random set of sequences, each with a random number of its next tokens, in random order.
    while (true) {
        std::vector<size_t> order;
        for (size_t s = 0; s < kSequences; ++s)
            if (seen[s].size() < tokens[s].size() && random() % 3 != 0) order.push_back(s);
        if (order.empty()) {
            if (std::all_of(tokens.begin(), tokens.end(),
                            [&](const auto& t) { return seen[&t - tokens.data()].size() == t.size(); }))
                break;
            continue;
        }
        std::shuffle(order.begin(), order.end(), random);
        std::vector<StepItem> items;
        for (const size_t s : order) {
            const size_t rows = std::min<size_t>(tokens[s].size() - seen[s].size(), 1 + random() % 24);
            items.push_back(
                {&states[s], std::span(tokens[s]).subspan(seen[s].size(), rows), {}, StepRows::Logits::all, {}});
        }
        const std::vector<Row> rows = rows_of(runner.step(items));
        size_t at = 0;
        for (size_t i = 0; i < order.size(); ++i) {
            for (size_t r = 0; r < items[i].tokens.size(); ++r) seen[order[i]].push_back(rows[at++]);
            states[order[i]].commit_prefix(std::ssize(items[i].tokens));
        }
        ASSERT_EQ(at, rows.size());
    }
    for (size_t s = 0; s < kSequences; ++s)
        for (size_t r = 0; r < tokens[s].size(); ++r)
            expect_same_bits(seen[s][r], expected[s][r], fmt::format("sequence {} token {}", s, r));
}

TEST_P(RowsTest, tree_rows_equal_the_chains_that_lead_to_them) {
    KvCache cache(model->state_specs(), cache_options(2));
    Runner runner(*model, cache, &threads);
    SequenceState sequence(cache), neighbour(cache);
    const std::vector<int32_t> other = random_tokens(6);
    std::vector<int32_t> committed = random_tokens(21);
    const StepItem prompt{&sequence, committed};
    runner.step(std::span(&prompt, 1));
    sequence.commit_prefix(std::ssize(committed));

    for (int round = 0; round < 4; ++round) {
        constexpr size_t kNodes = 14;
        const std::vector<int32_t> tokens = random_tokens(kNodes);
        std::vector<int32_t> parents;
        for (size_t i = 0; i < kNodes; ++i) parents.push_back(static_cast<int32_t>(random() % (i + 1)) - 1);
        // A neighbour in the same step, fed as a chain, must not matter either.
        const std::vector<StepItem> items = {{&neighbour, other, {}, StepRows::Logits::none, {}},
                                             {&sequence, tokens, parents, StepRows::Logits::all, {}}};
        const std::vector<Row> rows = rows_of(runner.step(items));
        ASSERT_EQ(rows.size(), kNodes);
        neighbour.commit_prefix(round % 2 == 0 ? 6 : 0);
        std::vector<int32_t> deepest;
        for (size_t i = 0; i < kNodes; ++i) {
            std::vector<int32_t> path;
            for (auto node = static_cast<int32_t>(i); node >= 0; node = parents[static_cast<size_t>(node)])
                path.insert(path.begin(), node);
            std::vector<int32_t> chain = committed;
            for (const int32_t node : path) chain.push_back(tokens[static_cast<size_t>(node)]);
            expect_same_bits(rows[i], alone(chain).back(),
                             fmt::format("round {} node {} at depth {}", round, i, path.size()));
            if (path.size() > deepest.size()) deepest = path;
        }
        sequence.commit(deepest);  // later rounds read what this keeps
        for (const int32_t node : deepest) committed.push_back(tokens[static_cast<size_t>(node)]);
        ASSERT_EQ(sequence.length(), std::ssize(committed));
    }
}

TEST_P(RowsTest, a_step_that_fails_leaves_no_trace) {
    KvCache cache(model->state_specs(), cache_options(2));
    Runner runner(*model, cache, &threads);
    SequenceState first(cache), second(cache);
    const std::vector<int32_t> good = random_tokens(10);
    const std::vector<int32_t> bad = {1, static_cast<int32_t>(model->info().vocab_size)};
    const int32_t free = cache.pool().free_count();
    const std::vector<StepItem> items = {{&first, good}, {&second, bad}};
    EXPECT_THROW(runner.step(items), Error);
    EXPECT_EQ(first.length(), 0);
    EXPECT_EQ(first.reserved(), 0);
    EXPECT_EQ(second.reserved(), 0);
    EXPECT_EQ(cache.pool().free_count(), free);
    const StepItem item{&first, good};
    expect_same_bits(rows_of(runner.step(std::span(&item, 1)))[0], alone(good).back(), "after the failure");
}

TEST(Runner, a_full_cache_is_an_error_that_names_the_numbers) {
    const auto checkpoint = open_checkpoint(fixture_path("qwen3_tied") + "/model.safetensors");
    const auto model = load_model(*checkpoint);
    KvCacheOptions options;
    options.page_rows = 4;
    options.pages = 2;
    options.max_step_rows = 16;
    KvCache cache(model->state_specs(), options);
    Runner runner(*model, cache, nullptr);
    SequenceState sequence(cache);
    const std::vector<int32_t> tokens(9, 3);
    const StepItem item{&sequence, tokens};
    try {
        runner.step(std::span(&item, 1));
        FAIL() << "no error";
    } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::unavailable);
        EXPECT_STREQ(error.what(), "the K/V cache is full: 9 more tokens need 3 pages of 4, and 2 are free");
    }
    EXPECT_EQ(cache.pool().free_count(), 2);
}

}  // namespace
}  // namespace riptide::testing
