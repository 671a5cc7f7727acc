// Draft trees: what is in them, in which order, and the way through.
#include "engine/speculation/draft_tree.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <set>

namespace riptide {
namespace {

Draft random_draft(std::mt19937& random, size_t slots, size_t choices) {
    std::uniform_real_distribution<float> uniform(0.01f, 1);
    Draft draft;
    for (size_t d = 0; d < slots; ++d) {
        std::vector<float> p(choices);
        for (float& x : p) x = uniform(random);
        std::sort(p.rbegin(), p.rend());
        draft.slots.emplace_back();
        for (size_t c = 0; c < choices; ++c)
            draft.slots[d].push_back({static_cast<int32_t>(10 * d + c), std::log(p[c] / static_cast<float>(choices))});
    }
    return draft;
}

double way(const DraftTree& tree, int32_t node) {
    double sum = 0;
    for (; node >= 0; node = tree.parents[static_cast<size_t>(node)]) sum += tree.logprobs[static_cast<size_t>(node)];
    return sum;
}

/// What a tree expects to have accepted, were the draft's probabilities true.
double expected(const DraftTree& tree) {
    double sum = 0;
    for (int32_t i = 0; i < tree.size(); ++i) sum += std::exp(way(tree, i));
    return sum;
}

TEST(DraftTree, no_tree_of_so_many_nodes_expects_more) {
    std::mt19937 random(3);
    for (int round = 0; round < 200; ++round) {
        const auto wide = 1 + random() % 4, deep = 1 + random() % 4;
        const Draft draft = random_draft(random, deep, wide);
        std::vector<double> all;  // the probability of every prefix: the best n of them are a tree
        std::vector<double> prefixes = {0};
        for (const auto& slot : draft.slots) {
            std::vector<double> longer;
            for (const double p : prefixes)
                for (const DraftToken& g : slot) longer.push_back(p + double{g.logprob});
            all.insert(all.end(), longer.begin(), longer.end());
            prefixes = longer;
        }
        std::sort(all.rbegin(), all.rend());
        double best = 0;
        DraftTree tree;
        for (size_t n = 1; n <= all.size(); ++n) {
            best += std::exp(all[n - 1]);
            build_tree(draft, static_cast<int64_t>(n), 0, tree);
            ASSERT_EQ(tree.size(), static_cast<int64_t>(n));
            EXPECT_NEAR(expected(tree), best, 1e-9 * best);
        }
        build_tree(draft, 1 << 20, 0, tree);
        EXPECT_EQ(tree.size(), std::ssize(all)) << "a budget beyond the draft takes all of it";
    }
}

TEST(DraftTree, parents_come_first_and_siblings_differ_with_any_seed) {
    std::mt19937 random(4);
    for (int round = 0; round < 500; ++round) {
        const size_t slots = 1 + random() % 6;
        const Draft draft = random_draft(random, slots, 1 + random() % 5);
        const auto budget = static_cast<int64_t>(1 + random() % 40), seed = static_cast<int64_t>(random() % 9);
        DraftTree tree;
        build_tree(draft, budget, seed, tree);
        EXPECT_LE(tree.size(), budget);
        std::set<std::pair<int32_t, int32_t>> seen;
        for (size_t i = 0; i < tree.tokens.size(); ++i) {
            EXPECT_LT(tree.parents[i], static_cast<int32_t>(i));
            EXPECT_EQ(tree.depths[i], tree.parents[i] < 0 ? 0 : tree.depths[static_cast<size_t>(tree.parents[i])] + 1);
            EXPECT_TRUE(seen.emplace(tree.parents[i], tree.tokens[i]).second);
            EXPECT_EQ(tree.child(tree.parents[i], tree.tokens[i]), static_cast<int32_t>(i));
        }
        const auto chain = static_cast<size_t>(std::min<int64_t>({seed, budget, static_cast<int64_t>(slots)}));
        for (size_t d = 0; d < chain; ++d) {
            EXPECT_EQ(tree.tokens[d], draft.slots[d][0].token);
            EXPECT_EQ(tree.parents[d], static_cast<int32_t>(d) - 1);
        }
        const int64_t size = tree.size();
        DraftTree whole;
        build_tree(draft, 1 << 20, seed, whole);
        whole.shorten(size);
        if (chain == static_cast<size_t>(std::min<int64_t>(seed, static_cast<int64_t>(slots)))) {
            EXPECT_EQ(whole.parents, tree.parents) << "a smaller budget is the beginning of a larger one";
            EXPECT_EQ(whole.tokens, tree.tokens);
        }
    }
}

TEST(DraftTree, a_chain_is_the_first_draft_of_each_slot) {
    std::mt19937 random(5);
    const Draft draft = random_draft(random, 5, 3);
    DraftTree tree;
    std::vector<int32_t> parents;
    for (int64_t width = 0; width < 8; ++width) {
        build_chain(draft, width, tree);
        EXPECT_EQ(tree.size(), std::min<int64_t>(width, 5));
        EXPECT_TRUE(tree.is_chain());
        row_parents(tree, parents);
        EXPECT_TRUE(parents.empty());
    }
    build_tree(draft, 7, 2, tree);
    EXPECT_FALSE(tree.is_chain());
    row_parents(tree, parents);
    ASSERT_EQ(std::ssize(parents), 8);
    EXPECT_EQ(parents[0], -1);
    for (size_t i = 0; i < 7; ++i) EXPECT_EQ(parents[i + 1], tree.parents[i] + 1);
    build_chain({}, 4, tree);
    EXPECT_TRUE(tree.empty());
    Draft gap = random_draft(random, 4, 2);
    gap.slots[2].clear();
    build_tree(gap, 100, 4, tree);
    EXPECT_EQ(*std::max_element(tree.depths.begin(), tree.depths.end()), 1) << "nothing below an empty slot";
}

TEST(DraftTree, a_draft_that_is_no_number_or_impossible_is_left_out) {
    Draft draft;
    draft.slots = {{{1, -0.1f}, {2, std::nanf("")}}, {{3, -INFINITY}, {4, -INFINITY}}};
    DraftTree tree;
    build_tree(draft, 100, 0, tree);
    EXPECT_EQ(tree.tokens, (std::vector<int32_t>{1}));
}

TEST(DraftTree, a_walk_goes_where_the_tree_has_drafted_what_is_drawn) {
    DraftTree tree;
    const int32_t a = tree.add(-1, {7, 0}), b = tree.add(a, {8, 0});
    tree.add(-1, {9, 0});
    const int32_t c = tree.add(a, {5, 0}), d = tree.add(c, {6, 0});
    std::vector<int32_t> path;
    const auto go = [&](std::vector<int32_t> drawn) {
        size_t next = 0;
        walk(tree, path, [&](int32_t) { return drawn.at(next++); });
        EXPECT_EQ(next, path.size()) << "one token is drawn for each row of the way, and no other";
        return path;
    };
    EXPECT_EQ(go({1}), (std::vector<int32_t>{0}));
    EXPECT_EQ(go({-1}), (std::vector<int32_t>{0}));
    EXPECT_EQ(go({7, 8, 0}), (std::vector<int32_t>{0, a + 1, b + 1}));
    EXPECT_EQ(go({7, 5, 6, 3}), (std::vector<int32_t>{0, a + 1, c + 1, d + 1}));
    EXPECT_EQ(go({7, 5, -1}), (std::vector<int32_t>{0, a + 1, c + 1}));
    EXPECT_EQ(go({9, 8}), (std::vector<int32_t>{0, 3})) << "8 is below 7, not below 9";
}

}  // namespace
}  // namespace riptide
