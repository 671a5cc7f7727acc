// Which blocks sparse attention reads.
#include <limits>
#include <numeric>

#include "tests/ops/sparse_world.h"

namespace riptide::sparse {
namespace {

// ---- the rule -------------------------------------------------------------------------------------------------------

std::vector<int32_t> choose(const std::vector<double>& mass, const SparseOptions& options) {
    std::vector<int32_t> list(mass.size(), -1);
    const auto m = std::ssize(mass) - 1;
    const int64_t count = ops::choose_blocks<double>(mass.data(), m, options, list.data());
    list.resize(static_cast<size_t>(count));
    return list;
}

using List = std::vector<int32_t>;

TEST(choose_blocks, keeps_sinks_window_and_what_comes_near_the_largest_mass) {
    SparseOptions o{.sink_blocks = 1, .window_blocks = 2, .alpha = 0.5f, .most_blocks = 8, .full_below = 0};
    EXPECT_EQ(choose({.1, .4, .19, .2, .05, .01}, o), (List{0, 1, 3, 4, 5}));
    EXPECT_EQ(choose({.9, .4, .45, .2, .05, .01}, o), (List{0, 2, 4, 5}));  // the sink's mass counts as largest
    o.sink_blocks = 0;
    EXPECT_EQ(choose({.1, .4, .19, .2, .05, .01}, o), (List{1, 3, 4, 5}));
    EXPECT_EQ(choose({1.0}, o), List{0});
}

TEST(choose_blocks, takes_the_largest_within_the_budget_and_of_equal_ones_the_first) {
    SparseOptions o{.sink_blocks = 1, .window_blocks = 1, .alpha = 0.0f, .most_blocks = 2, .full_below = 0};
    EXPECT_EQ(choose({.1, .1, .3, .2, .1, .2}, o), (List{0, 2, 3, 5}));
    EXPECT_EQ(choose({.2, .2, .2, .2, .2, .2}, o), (List{0, 1, 2, 5}));
    o.most_blocks = 0;
    EXPECT_EQ(choose({.2, .2, .2, .2, .2, .2}, o), (List{0, 5}));
}

TEST(choose_blocks, full_blocks_of_queries_read_everything) {
    const SparseOptions o{
        .sink_blocks = 0, .window_blocks = 1, .alpha = 1, .most_blocks = 0, .full_below = 2, .full_from = 4};
    for (const int64_t m : {0, 1, 2, 3, 4, 5}) {
        std::vector<double> mass(static_cast<size_t>(m + 1), 1.0 / static_cast<double>(m + 1));
        List all(mass.size());
        std::iota(all.begin(), all.end(), 0);
        EXPECT_EQ(choose(mass, o), m < 2 || m >= 4 ? all : List{static_cast<int32_t>(m)}) << m;
    }
}

TEST(choose_blocks, masses_that_are_no_numbers_choose_nothing) {
    const double nan = std::numeric_limits<double>::quiet_NaN();
    const SparseOptions o{.sink_blocks = 1, .window_blocks = 2, .alpha = 0.0f, .most_blocks = 9, .full_below = 0};
    EXPECT_EQ(choose({nan, nan, nan, nan, nan, nan}, o), (List{0, 4, 5}));
}

// ---- the choice on the device ---------------------------------------------------------------------------------------

/// Blocks whose keys look like some queries, so that masses differ by orders of magnitude, and blocks that do not.
void plant_needles(World& world, const Shape& shape, float strength) {
    for (int64_t m = 1; m < world.blocks(); m += 3)
        for (int64_t h = 0; h < shape.kv_heads; ++h)
            for (int64_t j = 0; j < world.rows_of_block(m); ++j) {
                const float* like =
                    world.query(std::min<int64_t>(m * 211 % (world.blocks() * 100), world.blocks() * 100 - 1), h);
                for (int64_t e = 0; e < shape.head_dim; ++e)
                    world.key(m * kSparseBlock + j, h)[e] += strength * like[e];
            }
}

/// One block of queries of one head, as the double reference has it.
struct Reference {
    std::vector<double> mass;
    List list;
    double query = 0, mean = 0, key = 0;  // largest norms

    Reference(World& world, const Shape& shape, const SparseOptions& options, const std::vector<double>& means,
              int64_t m, int64_t h)
        : mass(static_cast<size_t>(m + 1)), list(mass.size()) {
        const int64_t d = shape.head_dim, rows = world.rows_of_block(m), kv_head = h / (shape.heads / shape.kv_heads);
        std::vector<float> q;
        for (int64_t j = 0; j < rows; ++j) {
            const float* row = world.query(m * kSparseBlock + j, h);
            q.insert(q.end(), row, row + d);
            query = std::max(query, norm_of(row, d));
        }
        for (int64_t n = 0; n <= m; ++n) {
            const std::vector<float> row(means.begin() + n * d, means.begin() + (n + 1) * d);
            mean = std::max(mean, norm_of(row.data(), d));
        }
        for (int64_t j = 0; j < m * kSparseBlock + rows; ++j) key = std::max(key, norm_of(world.key(j, kv_head), d));
        ops::block_mass_ref<double>(q.data(), rows, means.data(), m, d, world.scale(), mass.data());
        list.resize(static_cast<size_t>(ops::choose_blocks<double>(mass.data(), m, options, list.data())));
    }
    /// What decides: alpha times the largest mass, or that of the last one within the budget.
    double border(const SparseOptions& options) const {
        std::vector<double> others;
        for (int64_t n = options.sink_blocks; n < std::ssize(mass) - options.window_blocks; ++n)
            others.push_back(mass[static_cast<size_t>(n)]);
        std::ranges::sort(others, std::greater<>());
        const double least = options.alpha * *std::ranges::max_element(mass);
        if (options.most_blocks >= std::ssize(others)) return least;
        return std::max(least, others[static_cast<size_t>(std::max(0, options.most_blocks - 1))]);
    }
    /// How far the logarithms of two masses that are compared may be off: twice an exponent each. An exponent d is off
    /// by the rounding of q and of the mean, by its products' sum, and by the mean's sum of 128 keys.
    double allowed(const Shape& shape, float scale) const {
        const double sums = kUnitF32 * (std::sqrt(static_cast<double>(shape.head_dim)) + 4);
        const double off =
            scale * query * (mean * (2 * operand_rounding(shape) + sums) + key * kUnitF32 * std::sqrt(128.0));
        return 4 * off + 64 * kUnitF32;
    }
};

/// Each list is the double reference's, but for blocks whose mass is so near the border that rounding decides.
void expect_reference_lists(World& world, const Shape& shape, const SparseOptions& options, const World::Result& got) {
    world.set_batch(0, std::ssize(world.q) / (shape.heads * shape.head_dim));
    const KvView stored = world.host_view();
    std::vector<double> means(static_cast<size_t>(world.blocks() * shape.head_dim));
    int64_t different = 0;
    for (int64_t h = 0; h < shape.heads; ++h) {
        ops::block_means_ref<double>(stored, world.host_batch, h / (shape.heads / shape.kv_heads), means.data());
        for (int64_t m = 0; m < world.blocks(); ++m) {
            const Reference expected(world, shape, options, means, m, h);
            const List& list = got.lists[static_cast<size_t>(m * shape.heads + h)];
            ASSERT_TRUE(std::ranges::is_sorted(list)) << m;
            if (list == expected.list) continue;
            const double border = expected.border(options), allowed = expected.allowed(shape, world.scale());
            ASSERT_LE(allowed, 1) << "the bound says nothing";
            List changed;
            std::ranges::set_symmetric_difference(list, expected.list, std::back_inserter(changed));
            for (const int32_t n : changed)
                EXPECT_LE(std::abs(std::log(expected.mass[static_cast<size_t>(n)] / border)), allowed)
                    << name_of(shape) << ", head " << h << ", block " << m << " of queries, " << n << " of keys";
            ++different;
        }
    }
    EXPECT_LE(different, world.blocks() * shape.heads / 4) << name_of(shape);
}

TEST(sparse_attention, chooses_what_the_double_reference_chooses) {
    for (const Shape& shape : shapes())
        for (const float strength : brief<float>({0.2f, 0.0f, 1.0f}, 1)) {
            World world(shape, fewer(12, 8) * kSparseBlock + 37);
            if (strength > 0) plant_needles(world, shape, strength);
            for (SparseOptions options : {kTight, SparseOptions{.sink_blocks = 0,
                                                  .window_blocks = 1,
                                                  .alpha = 0.9f,
                                                  .most_blocks = 9,
                                                  .full_below = 0,
                                                  .full_from = 12}}) {
                const World::Result got = world.run(options);
                expect_reference_lists(world, shape, options, got);
            }
        }
}

TEST(sparse_attention, of_blocks_that_are_exactly_alike_the_first_are_read) {
    for (const Shape& shape : shapes()) {
        World world(shape, 9 * kSparseBlock);
        for (float& x : world.k) x = 0.5f;  // sums and means are exact
        const World::Result got = world.run(kTight);
        for (int64_t m = 0; m < world.blocks(); ++m)
            for (int64_t h = 0; h < shape.heads; ++h) {
                List expected = {0};
                for (int32_t n = 1; n <= m; ++n)
                    if (m < 2 || n <= 3 || m - n < 2) expected.push_back(n);
                EXPECT_EQ(got.lists[static_cast<size_t>(m * shape.heads + h)], expected) << name_of(shape) << ", " << m;
            }
    }
}

TEST(sparse_attention, lists_have_room_for_every_block) {
    for (const Shape& shape : shapes()) {
        World world(shape, 6 * kSparseBlock + 1);
        const World::Result got =
            world.run({.sink_blocks = 0, .window_blocks = 1, .alpha = 0, .most_blocks = 1000, .full_below = 0});
        for (int64_t m = 0; m < world.blocks(); ++m) {
            List all(static_cast<size_t>(m + 1));
            std::iota(all.begin(), all.end(), 0);
            for (int64_t h = 0; h < shape.heads; ++h)
                EXPECT_EQ(got.lists[static_cast<size_t>(m * shape.heads + h)], all) << name_of(shape) << ", " << m;
        }
    }
}

}  // namespace
}  // namespace riptide::sparse
