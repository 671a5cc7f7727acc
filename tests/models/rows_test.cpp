// A row's logits do not depend on what else is in its step: batches equal each sequence alone, trees equal chains, bit
// for bit. On a GPU this is the decode family, and graphs equal kernel by kernel.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "tests/models/fixture.h"

namespace riptide::testing {
namespace {

using Row = std::vector<float>;

struct RowCase {
    std::string fixture;
    DType kv;
    int32_t window = 0;  // ModelOptions::attention_window
};

std::string model_file(const std::string& name) {
    if (name == "demo") return source_dir() + "/models/demo/laguna-demo.gguf";  // Q4_K and Q6_K
    return fixture_path(name) + "/model.safetensors";
}

/// A model with room for several sequences.
class RowsTest : public ::testing::TestWithParam<RowCase> {
  protected:
    Gpu* const gpu = test_gpu();
    std::unique_ptr<Checkpoint> checkpoint = open_checkpoint(model_file(GetParam().fixture));
    std::unique_ptr<Model> model = load();
    ThreadPool threads{2};
    std::mt19937 random{7};

    std::unique_ptr<Model> load() const {
        ModelOptions options;
        options.gpu = gpu;
        options.attention_window = GetParam().window;
        return load_model(*checkpoint, options);
    }
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
    std::vector<Row> rows_of(const Tensor& logits) const {
        const std::vector<float> values = host_values(gpu, logits);
        const auto width = static_cast<size_t>(logits.row_elements());
        std::vector<Row> rows;
        for (size_t r = 0; r < values.size() / width; ++r) {
            const auto row = row_at(values, r, width);
            rows.emplace_back(row.begin(), row.end());
        }
        return rows;
    }
    /// The logits after every token, one step for each token.
    std::vector<Row> alone(std::span<const int32_t> tokens) {
        KvCache cache(model->state_specs(), cache_options(1), gpu);
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
                         ::testing::Values(RowCase{"laguna_xs2", DType::f32}, RowCase{"laguna_xs2", DType::f16},
                                           RowCase{"laguna_xs2", DType::q8_0}, RowCase{"laguna_m1", DType::bf16},
                                           RowCase{"laguna_odd", DType::f16}, RowCase{"laguna_int4", DType::f16},
                                           RowCase{"laguna_nvfp4", DType::f16}, RowCase{"laguna_fp8", DType::f8_e4m3},
                                           RowCase{"qwen3_tied", DType::f16}, RowCase{"qwen35_tied", DType::f16},
                                           RowCase{"qwen35_odd", DType::f32}, RowCase{"qwen35_moe", DType::q8_0},
                                           RowCase{"demo", DType::f16}, RowCase{"demo", DType::q4_0},
                                           RowCase{"laguna_xs2", DType::q8_0, 24}, RowCase{"laguna_m1", DType::f16, 24},
                                           RowCase{"qwen3_tied", DType::f32, 24}, RowCase{"qwen35_moe", DType::f16, 24},
                                           RowCase{"demo", DType::q8_0, 40}),
                         [](const auto& test) {
                             const RowCase& c = test.param;
                             return c.fixture + "_" + dtype_name(c.kv) + (c.window > 0 ? "_window" : "");
                         });

TEST_P(RowsTest, a_batch_equals_each_sequence_alone) {
    constexpr size_t kSequences = 5;
    KvCache cache(model->state_specs(), cache_options(kSequences), gpu);
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
    KvCache cache(model->state_specs(), cache_options(2), gpu);
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

/// A committed sequence, and what may follow it: a chain, and from each of its places (and from the start) a twig. The
/// logits of all of it were computed token by token.
struct Plant {
    static constexpr size_t kChain = 32, kTwig = 3;
    SequenceState state;
    std::vector<int32_t> chain;               // [kChain]
    std::vector<std::vector<int32_t>> twigs;  // [kChain + 1]: twig i leaves before chain[i]
    std::vector<Row> chain_rows;
    std::vector<std::vector<Row>> twig_rows;

    /// A node of a step's tree.
    struct Node {
        int32_t parent;  // node, or -1
        size_t twig;     // kOfChain: none
        size_t place;    // in chain or twig
    };
    static constexpr size_t kOfChain = kChain + 1;
    int32_t token(const Node& n) const { return n.twig == kOfChain ? chain[n.place] : twigs[n.twig][n.place]; }
    const Row& row(const Node& n) const {
        return n.twig == kOfChain ? chain_rows[n.place] : twig_rows[n.twig][n.place];
    }
};

/// `count` nodes in an order in which parents come first: the beginning of the chain, or a tree.
std::vector<Plant::Node> grow(size_t count, bool tree, std::mt19937& random) {
    struct Twig {
        size_t from, length;
        int32_t last;
    };
    std::vector<Plant::Node> nodes;
    std::vector<int32_t> chain;  // nodes of the chain
    std::vector<Twig> twigs;
    while (nodes.size() < count) {
        const auto self = static_cast<int32_t>(nodes.size());
        if (chain.size() < Plant::kChain && (!tree || random() % 2 == 0)) {
            nodes.push_back({chain.empty() ? -1 : chain.back(), Plant::kOfChain, chain.size()});
            chain.push_back(self);
            continue;
        }
        const size_t from = random() % (chain.size() + 1);
        const auto found = std::find_if(twigs.begin(), twigs.end(), [&](const Twig& t) { return t.from == from; });
        if (found == twigs.end()) {
            nodes.push_back({from == 0 ? -1 : chain[from - 1], from, 0});
            twigs.push_back({from, 1, self});
        } else if (found->length < Plant::kTwig) {
            nodes.push_back({found->last, from, found->length});
            *found = {from, found->length + 1, self};
        }
    }
    return nodes;
}

// Verification of drafts, decoding and everything between: 1 ... 64, 128 and 256 rows in one step, of any of eight
// sequences that end before, at and behind the borders of windows, in any order, as chains and as trees.
TEST_P(RowsTest, steps_of_any_size_have_the_bits_of_single_rows) {
    constexpr size_t kPlants = 8;
    KvCacheOptions options = cache_options(kPlants + 1);
    options.pages = 400;
    options.max_step_rows = Plant::kChain + 8;
    KvCache cache(model->state_specs(), options, gpu);
    Runner runner(*model, cache, &threads);
    const auto feed = [&](SequenceState& state, std::span<const int32_t> tokens) {
        const StepItem item{&state, tokens};
        const std::vector<Row> rows = rows_of(runner.step(std::span(&item, 1)));
        state.commit_prefix(std::ssize(tokens));
        return rows.back();
    };
    int32_t window = 0;
    for (const StateSpec& spec : model->state_specs()) window = std::max(window, spec.window);
    const int32_t lengths[kPlants] = {0,  1, std::max(0, window - 17), std::max(0, window - 1), window, window + 1,
                                      37, 60};
    std::vector<Plant> plants;
    for (const int32_t length : lengths) {
        Plant plant{SequenceState(cache), random_tokens(Plant::kChain), {}, {}, {}};
        const std::vector<int32_t> before = random_tokens(static_cast<size_t>(length));
        for (size_t at = 0; at < before.size(); at += 32)
            feed(plant.state, std::span(before).subspan(at, std::min<size_t>(32, before.size() - at)));
        SequenceState chain = plant.state.fork();
        for (size_t i = 0; i <= Plant::kChain; ++i) {
            plant.twigs.push_back(random_tokens(Plant::kTwig));
            plant.twig_rows.emplace_back();
            const SavedState root = chain.save();
            for (const int32_t& token : plant.twigs.back()) plant.twig_rows.back().push_back(feed(chain, {&token, 1}));
            chain.restore(root);
            if (i < Plant::kChain) plant.chain_rows.push_back(feed(chain, {&plant.chain[i], 1}));
        }
        plants.push_back(std::move(plant));
    }
    std::vector<size_t> sizes = {128, 256};
    for (size_t n = 1; n <= 64; ++n) sizes.push_back(n);
    for (const size_t n : sizes) {
        // The rows are dealt out to some of the sequences, no more than kChain to one.
        std::vector<size_t> order(kPlants);
        std::iota(order.begin(), order.end(), size_t{0});
        std::shuffle(order.begin(), order.end(), random);
        const size_t least = (n + Plant::kChain - 1) / Plant::kChain, most = std::min(n, kPlants);
        const size_t used = least + random() % (most - least + 1);
        std::vector<size_t> share(used, 1);
        for (size_t dealt = used; dealt < n;) {
            size_t& to = share[random() % used];
            if (to == Plant::kChain) continue;
            ++to;
            ++dealt;
        }
        std::vector<std::vector<Plant::Node>> nodes;
        std::vector<std::vector<int32_t>> tokens(used), parents(used);
        std::vector<StepItem> items;
        for (size_t i = 0; i < used; ++i) {
            const bool tree = random() % 2 == 0;
            nodes.push_back(grow(share[i], tree, random));
            for (const Plant::Node& node : nodes[i]) {
                tokens[i].push_back(plants[order[i]].token(node));
                if (tree) parents[i].push_back(node.parent);
            }
            items.push_back({&plants[order[i]].state, tokens[i], parents[i], StepRows::Logits::all, {}});
        }
        const std::vector<Row> rows = rows_of(runner.step(items));
        ASSERT_EQ(rows.size(), n);
        size_t at = 0;
        for (size_t i = 0; i < used; ++i) {
            for (const Plant::Node& node : nodes[i])
                expect_same_bits(rows[at++], plants[order[i]].row(node),
                                 fmt::format("step of {}, sequence of length {}", n, lengths[order[i]]));
            plants[order[i]].state.commit_prefix(0);
        }
    }
}

TEST_P(RowsTest, graphs_of_decode_steps_have_the_bits_of_their_kernels) {
    RT_GPU_ONLY();
    constexpr size_t kSequences = 16;
    KvCacheOptions options = cache_options(kSequences);
    options.pages = 400;
    KvCache cache(model->state_specs(), options, gpu), eager_cache(model->state_specs(), options, gpu);
    Runner runner(*model, cache, nullptr), eager(*model, eager_cache, nullptr);
    eager.context().tap = [](std::string_view, int, const Tensor&) {};
    std::vector<SequenceState> states, eager_states;
    for (size_t s = 0; s < kSequences; ++s) {
        states.emplace_back(cache);
        eager_states.emplace_back(eager_cache);
        const std::vector<int32_t> prompt = random_tokens(1 + s * 3 % 24);
        const StepItem mine{&states[s], prompt}, theirs{&eager_states[s], prompt};
        runner.step(std::span(&mine, 1));
        eager.step(std::span(&theirs, 1));
        states[s].commit_prefix(std::ssize(prompt));
        eager_states[s].commit_prefix(std::ssize(prompt));
    }
    for (int round = 0; round < 4; ++round)
        for (size_t n = 1; n <= kSequences; ++n) {
            std::vector<size_t> order(kSequences);
            std::iota(order.begin(), order.end(), size_t{0});
            std::shuffle(order.begin(), order.end(), random);
            const std::vector<int32_t> tokens = random_tokens(n);
            std::vector<StepItem> mine, theirs;
            for (size_t i = 0; i < n; ++i) {
                mine.push_back({&states[order[i]], std::span(tokens).subspan(i, 1)});
                theirs.push_back({&eager_states[order[i]], std::span(tokens).subspan(i, 1)});
            }
            const std::vector<Row> rows = rows_of(runner.step(mine)), expected = rows_of(eager.step(theirs));
            ASSERT_EQ(rows.size(), n);
            for (size_t i = 0; i < n; ++i) {
                expect_same_bits(rows[i], expected[i], fmt::format("round {}, row {} of {}", round, i, n));
                states[order[i]].commit_prefix(1);
                eager_states[order[i]].commit_prefix(1);
            }
        }
    EXPECT_EQ(runner.graphs(), static_cast<int64_t>(kSequences));
    EXPECT_EQ(eager.graphs(), 0);
}

TEST_P(RowsTest, a_step_that_fails_leaves_no_trace) {
    RT_CPU_ONLY("a GPU does not look at tokens; Session does");
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
