#include "ops/scoring/window_mass.h"

#include <algorithm>
#include <numeric>

#include "tests/ops/op_fixture.h"

namespace riptide {
namespace {

struct MassShape {
    int64_t heads, kv_heads, d;
};
constexpr MassShape kMassShapes[] = {{4, 2, 64}, {16, 8, 128}, {4, 4, 24}, {3, 1, 40}, {2, 2, 256}};

struct MassCase {
    int64_t n, begin, rows;
};
constexpr MassCase kMassCases[] = {{1, 0, 1}, {70, 62, 8}, {513, 100, 17}, {1000, 0, 33}, {2050, 2049, 1}};
std::span<const MassCase> mass_cases() { return std::span(kMassCases).first(fewer(std::size(kMassCases), size_t{3})); }

std::string mass_name(const MassShape& s, const MassCase& c) {
    return fmt::format("{}/{} heads of {}, window [{}, {}) of {}", s.heads, s.kv_heads, s.d, c.begin, c.begin + c.rows,
                       c.n);
}

struct MassWorld {
    explicit MassWorld(const MassShape& s, const MassCase& c, int threads = 2, float strength = 2)
        : op(threads), shape(s), window(c) {
        q = normals(static_cast<size_t>(c.rows * s.heads * s.d), 5, strength);
        k = normals(static_cast<size_t>(c.n * s.kv_heads * s.d), 6);
    }
    /// The mass, added to `before` times; keys stored in parts of `part` tokens.
    std::vector<float> run(int64_t part = 1 << 20, int times = 1) {
        op.poison();
        const int64_t width = shape.kv_heads * shape.d;
        Tensor keys = op.ctx.alloc(ops::score_key_dtype(op.ctx.gpu),
                                   {window.n + 3, shape.kv_heads, ops::score_key_columns(shape.d)});
        for (int64_t first = 0; first < window.n; first += part) {
            const int64_t rows = std::min(part, window.n - first);
            ops::store_score_keys(op.ctx,
                                  op.tensor({k.begin() + first * width, k.begin() + (first + rows) * width},
                                            {rows, shape.kv_heads, shape.d}),
                                  first, keys);
        }
        Tensor mass = op.tensor(std::vector<float>(static_cast<size_t>(window.n)), {window.n});
        const Tensor queries = op.tensor(q, {window.rows, shape.heads, shape.d});
        for (int i = 0; i < times; ++i)
            ops::add_window_mass(op.ctx, queries, keys, window.begin, window.n, scale(), mass);
        return values_of(mass);
    }
    std::vector<double> reference() const {
        std::vector<double> mass(static_cast<size_t>(window.n));
        ops::window_mass_ref<double>(q.data(), window.rows, shape.heads, k.data(), shape.kv_heads, shape.d,
                                     window.begin, window.n, scale(), mass.data());
        return mass;
    }
    float scale() const { return 1.0f / std::sqrt(static_cast<float>(shape.d)); }
    /// Relative: a score is off by the rounding of both operands to f16 on a GPU and by its sum; the largest score's
    /// error comes in too; then exponentials, sums over n keys and over the queries.
    double allowed() const {
        const auto largest = [&](const std::vector<float>& x) {
            double most = 0;
            for (auto at = x.begin(); at != x.end(); at += shape.d)
                most = std::max(most, std::sqrt(std::inner_product(at, at + shape.d, at, 0.0)));
            return most;
        };
        const double product = scale() * largest(q) * largest(k);
        const double half = op.ctx.gpu != nullptr ? 0x1p-10 + static_cast<double>(shape.d) * 0x1p-23 : 0;
        const double score = product * (half + kUnitF32 * (std::sqrt(static_cast<double>(shape.d)) + 4));
        return std::expm1(2 * score) + kUnitF32 * (20 + 3 * std::sqrt(static_cast<double>(window.n)) +
                                                   3 * std::sqrt(static_cast<double>(window.rows * shape.heads)));
    }

    OpContext op;
    MassShape shape;
    MassCase window;
    std::vector<float> q, k;
};

TEST(window_mass, stays_within_the_bound_of_the_double_reference) {
    std::vector<double> shares;
    for (const MassShape& shape : kMassShapes)
        for (const MassCase& c : mass_cases()) {
            MassWorld world(shape, c);
            const std::vector<float> mass = world.run();
            const std::vector<double> expected = world.reference();
            BoundCheck check;
            for (size_t j = 0; j < mass.size(); ++j)
                check.add(mass[j], expected[j], expected[j] * world.allowed() + 1e-37);
            EXPECT_LE(check.worst(), 1.0) << mass_name(shape, c);
            shares.push_back(check.worst());
            const double sum = std::accumulate(mass.begin(), mass.end(), 0.0),
                         rows = static_cast<double>(c.rows * shape.heads);
            EXPECT_NEAR(sum, rows, rows * world.allowed()) << mass_name(shape, c);  // each row and head gives away one
        }
    EXPECT_GE(*std::ranges::max_element(shares), 0.005) << "the bound is too loose";
}

TEST(window_mass, is_causal_inside_the_window_alone) {
    const MassShape shape{2, 1, 64};
    const MassCase c{300, 100, 4};
    MassWorld world(shape, c);
    const std::vector<float> before = world.run();
    // The last row's key is seen by the last row alone: with a key that draws everything, one row's worth of mass goes
    // there.
    for (int64_t e = 0; e < shape.d; ++e) world.k[static_cast<size_t>(103 * shape.d + e)] *= 1000;
    const std::vector<float> inside = world.run();
    EXPECT_LE(inside[103], 2 * (1 + world.allowed()));
    MassWorld behind(shape, c);
    for (int64_t h = 0; h < shape.heads; ++h)
        for (int64_t t = 0; t < c.rows; ++t)
            for (int64_t e = 0; e < shape.d; ++e)
                behind.q[static_cast<size_t>((t * shape.heads + h) * shape.d + e)] = 1;
    for (int64_t e = 0; e < shape.d; ++e) behind.k[static_cast<size_t>(200 * shape.d + e)] = 10;
    EXPECT_GT(behind.run()[200], 7.9f);  // all rows of all heads see what lies behind the window
}

TEST(window_mass, is_the_same_whatever_the_parts_and_threads) {
    for (const MassShape& shape : kMassShapes)
        for (const MassCase& c : mass_cases()) {
            const std::vector<float> whole = MassWorld(shape, c, 1).run();
            for (const int threads : thread_counts())
                expect_same_bits(MassWorld(shape, c, threads).run(77), whole, mass_name(shape, c).c_str());
        }
}

TEST(window_mass, adds_to_what_is_there) {
    MassWorld world(kMassShapes[0], kMassCases[2]);
    const std::vector<float> once = world.run(), twice = world.run(1 << 20, 2);
    for (size_t j = 0; j < once.size(); ++j)
        EXPECT_NEAR(twice[j], 2 * once[j],
                    2 * once[j] * kUnitF32 * static_cast<double>(world.window.rows * world.shape.heads + 1));
}

}  // namespace
}  // namespace riptide
