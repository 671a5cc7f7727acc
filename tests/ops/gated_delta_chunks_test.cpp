// Prompts in chunks of 64 rows: near the formulas, by the bound that chunks have; and the bits that are promised.
#include "tests/ops/delta_bound.h"

namespace riptide {
namespace {

DeltaShape chunked(DeltaShape shape) {
    shape.key_dim = 128;
    shape.slots = 4;
    shape.stash_rows = 1;
    shape.by_chunks = true;
    return shape;
}

/// Largest shares of the bounds over a chain of `rows`, fed in steps of 2,048.
void expect_bounds(const DeltaShape& shape, size_t rows) {
    OpContext op(2, int64_t{256} << 20);
    op.ctx.family = Family::prefill;
    DeltaWorld world(op, shape, 21);
    DeltaSequence s = world.sequence();
    const std::vector<uint64_t> ids = delta_ids(rows, 22);
    const DeltaRowsOut out = world.feed(s, ids, 2048);
    DeltaWorld::Columns columns = world.make_columns(ids);
    const ops::GatedDeltaInput in = world.host_input(columns, static_cast<int64_t>(rows));
    DeltaBound bound(in, world.view, 64);
    BoundCheck outputs, states;
    for (const std::vector<float>& row : out) {
        const std::vector<Near> near = bound.next();
        for (size_t e = 0; e < near.size(); ++e) outputs.add(row[e], near[e].value, near[e].error);
    }
    const std::vector<float> slot = world.slot_of(s);
    const float* stored = slot.data() + world.view.conv_floats();
    for (int64_t h = 0; h < shape.value_heads; ++h)
        for (int64_t j = 0; j < shape.value_dim; ++j) {
            double squares = 0;
            for (int64_t i = 0; i < shape.key_dim; ++i)
                squares += std::pow(stored[(h * shape.key_dim + i) * shape.value_dim + j] - bound.state(h, i, j), 2);
            states.add(std::sqrt(squares), 0, bound.state_error(h, j));
        }
    fmt::print("{}: {} rows in chunks use {:.3f} of the bound on outputs, {:.4f} of that on the state\n",
               shape_name(shape), rows, outputs.worst(), states.worst());
    EXPECT_LE(outputs.worst(), 1.0) << shape_name(shape);
    EXPECT_LE(states.worst(), 1.0) << shape_name(shape);
    if (rows >= 64) {
        EXPECT_GE(outputs.worst(), 0.002) << "the bound is too loose: " << shape_name(shape);
    }
}

TEST(gated_delta_chunks, outputs_and_state_stay_within_the_bounds_of_the_formulas) {
    RT_GPU_ONLY();
    const DeltaShape small = chunked({.key_heads = 1, .value_heads = 2, .value_dim = 64});
    for (const size_t rows : fewer<std::vector<size_t>>({64, 65, 127, 128, 500, 2111}, {64, 65}))
        expect_bounds(small, rows);
    for (DeltaShape shape : brief(
             std::vector<DeltaShape>{{.key_heads = 2, .value_heads = 6, .value_dim = 128},
                                     {.key_heads = 2, .value_heads = 4, .value_dim = 128, .heads = DeltaHeads::tiled}},
             1)) {
        expect_bounds(chunked(shape), fewer<size_t>(200, 130));
    }
}

/// Gates drawn at random, and such that nothing is ever forgotten, everything at once, little over tens of thousands of
/// rows; that take all or nothing of a row, or half.
TEST(gated_delta_chunks, long_chains_stay_within_the_bounds) {
    RT_GPU_ONLY();
    const size_t rows = full_counts() ? 131'072 : brief_counts() ? 200 : 3'000;
    for (const auto& [decay, gate] :
         brief(std::vector{std::pair(0.5f, 1.0f), std::pair(1e-7f, 20.0f), std::pair(1e-7f, 0.01f),
                           std::pair(3e-5f, 20.0f), std::pair(40.0f, 20.0f), std::pair(0.05f, 4.0f)},
               1))
        expect_bounds(chunked({.key_heads = 1, .value_heads = 2, .value_dim = 64, .decay = decay, .gate = gate}), rows);
}

/// Rows of several sequences of one step, of one chunk or many, some beginning and some with a state.
TEST(gated_delta_chunks, a_row_does_not_depend_on_its_company) {
    RT_GPU_ONLY();
    OpContext op(2, int64_t{256} << 20);
    op.ctx.family = Family::prefill;
    DeltaShape shape = chunked({.key_heads = fewer(2, 1), .value_heads = fewer(4, 2), .value_dim = 128});
    shape.slots = 16;
    DeltaWorld world(op, shape, 5);
    const std::vector<size_t> lengths = {70, 1, 64, fewer<size_t>(600, 130)};
    std::vector<DeltaSequence> together, alone;
    std::vector<DeltaSequence*> all;
    for (size_t i = 0; i < lengths.size(); ++i) {
        together.push_back(world.sequence());
        alone.push_back(world.sequence());
    }
    for (DeltaSequence& s : together) all.push_back(&s);
    for (const uint64_t turn : {1, 2}) {
        std::vector<std::vector<DeltaToken>> fed;
        for (size_t i = 0; i < lengths.size(); ++i)
            fed.push_back(delta_chain(delta_ids(lengths[i] + turn, 10 * turn + i)));
        const DeltaRowsOut rows = world.step(all, fed, ops::DeltaMode::update);
        size_t at = 0;
        for (size_t i = 0; i < lengths.size(); ++i) {
            // Steps of fewer rows go row by row: these sequences have company of the same kind.
            DeltaSequence other = world.copy(alone[i]);
            const DeltaRowsOut lone =
                world.step({&alone[i], &other}, {fed[i], delta_chain(delta_ids(64, 77))}, ops::DeltaMode::update);
            for (size_t r = 0; r < fed[i].size(); ++r, ++at)
                ASSERT_TRUE(same_bits(lone[r].data(), rows[at].data(), lone[r].size()))
                    << "sequence " << i << ", row " << r;
            expect_same_bits(world.slot_of(alone[i]), world.slot_of(together[i]), "state");
            world.drop(other);
        }
    }
}

}  // namespace
}  // namespace riptide
