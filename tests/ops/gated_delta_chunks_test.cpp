#include "tests/ops/delta_bound.h"

namespace riptide {
namespace {

TEST(gated_delta_chunks, probe) {
    RT_GPU_ONLY();
    for (const auto& [heads, rows, decay, gate] :
         {std::tuple(2, 64, 0.05f, 1.0f), std::tuple(2, 20, 0.05f, 1.0f), std::tuple(2, 1000, 0.05f, 1.0f), std::tuple(6, 3000, 1e-7f, 20.0f),
          std::tuple(6, 3000, 40.0f, 20.0f), std::tuple(2, 3000, 0.5f, 1.0f)}) {
        OpContext op(2, int64_t{512} << 20);
        op.ctx.family = Family::prefill;
        DeltaShape shape{.key_heads = 2, .value_heads = heads, .key_dim = 128, .value_dim = 128, .decay = decay, .gate = gate, .slots = 2, .stash_rows = 1};
        shape.by_chunks = true;
        DeltaWorld world(op, shape, 21);
        DeltaSequence s = world.sequence();
        const std::vector<uint64_t> ids = delta_ids(static_cast<size_t>(rows), 22);
        const DeltaRowsOut out = world.feed(s, ids, 2048);
        DeltaWorld::Columns columns = world.make_columns(ids);
        const ops::GatedDeltaInput in = world.host_input(columns, rows);
        std::vector<double> conv(static_cast<size_t>(world.view.conv_floats())), y(static_cast<size_t>(rows) * out[0].size());
        std::vector<double> state(static_cast<size_t>(world.view.state_elements()));
        ops::gated_delta_ref<double>(in, world.view, conv.data(), state.data(), y.data());
        double worst = 0, size = 0;
        for (size_t r = 0; r < out.size(); ++r)
            for (size_t e = 0; e < out[r].size(); ++e) {
                const double d = std::abs(out[r][e] - y[r * out[r].size() + e]);
                if (!(d <= worst)) worst = d;
                size = std::max(size, std::abs(y[r * out[r].size() + e]));
            }
        const std::vector<float> slot = world.slot_of(s);
        double off = 0, all = 0;
        for (size_t i = 0; i < state.size(); ++i) {
            off += std::pow(slot[static_cast<size_t>(world.view.conv_floats()) + i] - state[i], 2);
            all += state[i] * state[i];
        }
        fmt::print("{} heads {} rows decay {} gate {}: outputs off by {:.3g} of {:.3g}, state {:.3g}\n", heads, rows, decay, gate, worst, size, std::sqrt(off / all));
        EXPECT_LE(std::sqrt(off / all), 1e-3);
        EXPECT_LE(worst, 1e-2 * size);
    }
}

}  // namespace
}  // namespace riptide
