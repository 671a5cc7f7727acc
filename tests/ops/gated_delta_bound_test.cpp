#include "tests/ops/delta_bound.h"

namespace riptide {
namespace {

struct Worst {
    double output = 0, state = 0;
};

/// The largest shares of the bounds over a chain from nothing, fed in steps of `chunk` rows.
Worst worst_of(const DeltaShape& shape, size_t rows, Family family, size_t chunk = SIZE_MAX) {
    OpContext op(2, int64_t{16} << 20);
    op.ctx.family = family;
    DeltaWorld world(op, shape, 21);
    DeltaSequence s = world.sequence();
    const std::vector<uint64_t> ids = delta_ids(rows, 22);
    const DeltaRowsOut out = world.feed(s, ids, std::min(chunk, rows));
    DeltaWorld::Columns columns = world.make_columns(ids);
    const auto n = static_cast<int64_t>(rows);
    const ops::GatedDeltaInput in = world.host_input(columns, n);
    std::vector<double> conv(static_cast<size_t>(world.view.conv_floats())), y(rows * out[0].size());
    std::vector<double> state(static_cast<size_t>(world.view.state_elements()));
    ops::gated_delta_ref<double>(in, world.view, conv.data(), state.data(), y.data());
    DeltaBound bound(in, world.view);
    BoundCheck outputs, states;
    for (size_t r = 0; r < rows; ++r) {
        const std::vector<Near> near = bound.next();
        for (size_t e = 0; e < near.size(); ++e) {
            const double expected = y[r * near.size() + e];
            // The bound's own arithmetic is that of the contract, not of the reference: they must agree.
            EXPECT_NEAR(near[e].value, expected, 1e-9 * std::max(1.0, std::abs(expected)));
            outputs.add(out[r][e], expected, near[e].error);
        }
    }
    const std::vector<float> slot = world.slot_of(s);
    const float* stored = slot.data() + world.view.conv_floats();
    for (int64_t h = 0; h < shape.value_heads; ++h)
        for (int64_t j = 0; j < shape.value_dim; ++j) {
            double squares = 0;
            for (int64_t i = 0; i < shape.key_dim; ++i) {
                const auto at = static_cast<size_t>((h * shape.key_dim + i) * shape.value_dim + j);
                squares += std::pow(stored[at] - state[at], 2);
            }
            states.add(std::sqrt(squares), 0, bound.state_error(h, j));
        }
    return {outputs.worst(), states.worst()};
}

TEST(gated_delta, outputs_and_state_stay_within_the_bounds_of_the_double_reference) {
    std::vector<DeltaShape> shapes = {
        {},
        {.key_dim = 16, .value_dim = 24, .heads = DeltaHeads::tiled},
        {.key_heads = 3, .value_heads = 3, .key_dim = 20, .value_dim = 7, .conv_width = 3},
        {.key_heads = 1, .value_heads = 3, .key_dim = 64, .value_dim = 40, .conv_width = 1},
        {.key_heads = 1, .value_heads = 2, .key_dim = 128, .value_dim = 128, .decay = 0.01f},
        {.decay = 1e-7f, .gate = 20.0f},
        {.decay = 40.0f, .gate = 20.0f},
    };
    shapes = brief(std::move(shapes), 4);
    for (const Family family : test_families())
        for (const DeltaShape& shape : shapes)
            for (const size_t rows : fewer<std::vector<size_t>>({1, 4, 30, 200}, {4, 40})) {
                const Worst worst = worst_of(shape, rows, family);
                const std::string what = fmt::format("{}, {} rows, {}", shape_name(shape), rows, family_name(family));
                EXPECT_LE(worst.output, 1.0) << what;
                EXPECT_LE(worst.state, 1.0) << what;
                // One row may meet no large error, and roundings of a long memory cancel.
                if (rows >= 30) {
                    EXPECT_GE(worst.output, 0.02) << "the bound is too loose: " << what;
                }
                if (rows <= 4) {
                    EXPECT_GE(worst.state, 0.02) << "the bound is too loose: " << what;
                }
            }
}

TEST(gated_delta, the_sizes_of_real_models_stay_within_the_bounds) {
    for (const Family family : test_families())
        for (const int64_t times : {1, 3}) {
            const int64_t key_heads = fewer(16, 2);
            const Worst worst = worst_of({.key_heads = key_heads,
                                          .value_heads = times * key_heads,
                                          .key_dim = 128,
                                          .value_dim = 128,
                                          .decay = 0.05f,
                                          .slots = 1},
                                         5, family);
            EXPECT_LE(worst.output, 1.0);
            EXPECT_LE(worst.state, 1.0);
        }
}

/// Gates drawn at random, and such that nothing is ever forgotten, everything at once, little over tens of thousands of
/// rows; that take all or nothing of a row, or half.
std::vector<DeltaShape> long_shapes() {
    const DeltaShape small = {.key_heads = 1, .value_heads = 2, .key_dim = 16, .value_dim = 16, .stash_rows = 1};
    std::vector<DeltaShape> shapes;
    for (const auto& [decay, gate] : {std::pair(0.5f, 1.0f), std::pair(1e-7f, 20.0f), std::pair(1e-7f, 0.01f),
                                      std::pair(3e-5f, 20.0f), std::pair(40.0f, 20.0f), std::pair(0.05f, 4.0f)}) {
        shapes.push_back(small);
        shapes.back().decay = decay;
        shapes.back().gate = gate;
    }
    return brief(std::move(shapes), 3);
}

TEST(gated_delta, long_chains_in_chunks_stay_within_the_bounds) {
    const size_t rows = full_counts() ? 131'072 : fewer(6'000, 300);
    for (const DeltaShape& shape : long_shapes()) {
        const Worst worst = worst_of(shape, rows, Family::prefill, fewer<size_t>(4096, 130));
        fmt::print("{}: {} rows use {:.3f} of the bound on outputs, {:.4f} of that on the state\n", shape_name(shape),
                   rows, worst.output, worst.state);
        EXPECT_LE(worst.output, 1.0) << shape_name(shape);
        EXPECT_LE(worst.state, 1.0) << shape_name(shape);
        EXPECT_GE(worst.output, 0.02) << "the bound is too loose: " << shape_name(shape);
    }
}

TEST(gated_delta, long_chains_in_chunks_have_the_bits_of_rows_fed_one_by_one) {
    const size_t rows = full_counts() ? 131'072 : fewer(3'000, 60);
    const std::vector<uint64_t> ids = delta_ids(rows, 23);
    for (const DeltaShape& shape : long_shapes()) {
        OpContext op(1, int64_t{1} << 20);
        DeltaWorld world(op, shape, 24);
        DeltaSequence chunks = world.sequence(), lone = world.sequence();
        size_t at = 0;
        for (size_t begin = 0, n = 1; begin < rows; begin += n, n = n * 7 % 1021) {
            n = std::min(n, rows - begin);
            const std::vector<uint64_t> part(ids.begin() + static_cast<ptrdiff_t>(begin),
                                             ids.begin() + static_cast<ptrdiff_t>(begin + n));
            const DeltaRowsOut together = world.feed(chunks, part, n);
            for (const DeltaRowsOut alone = world.feed(lone, part, 1); const auto& row : alone) {
                const std::vector<float>& other = together[at++ - begin];
                ASSERT_TRUE(same_bits(row.data(), other.data(), row.size())) << shape_name(shape) << ", row " << at - 1;
            }
        }
        expect_same_bits(world.slot_of(chunks), world.slot_of(lone), shape_name(shape).c_str());
    }
}

}  // namespace
}  // namespace riptide
