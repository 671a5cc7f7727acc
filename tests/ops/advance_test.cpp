#include "ops/advance.h"

#include "ops/topk.h"
#include "tests/ops/op_fixture.h"

namespace riptide {
namespace {

/// The arrays of some steps behind each other, one row for each sequence, and where the device reports tokens.
struct Steps {
    static constexpr int64_t kSize = 4;  // of the ring
    OpContext& op;
    int64_t n;
    std::vector<int32_t> tokens, positions, committed, held;
    Batch batch;
    std::span<const int32_t> held_now;
    PinnedMemory entries;
    ops::TokenRing ring;

    Steps(OpContext& where, int64_t rows, std::span<const int32_t> forced)
        : op(where), n(rows), entries(*where.ctx.gpu, kSize * rows * 8) {
        for (int32_t r = 0; r < static_cast<int32_t>(n); ++r) {
            tokens.push_back(7 * r);
            positions.push_back(100 + r);
            committed.push_back(90 + 2 * r);
            held.push_back(-5);
        }
        batch.tokens = op.ints(tokens);
        batch.positions = op.ints(positions);
        batch.committed = op.ints(committed);
        held_now = op.ints(held);
        std::memset(entries.data(), 0, static_cast<size_t>(entries.bytes()));
        const auto size = static_cast<int64_t>(forced.size());
        ring = {reinterpret_cast<uint64_t*>(entries.data()), kSize, upload<int64_t>(op, {0}),
                size > 0 ? op.ints(forced).data() : nullptr, upload<int64_t>(op, {size})};
    }
    std::vector<int32_t> on_device(std::span<const int32_t> values) const {
        std::vector<int32_t> host(values.size());
        op.ctx.gpu->to_host(host.data(), values.data(), std::ssize(values) * 4);
        return host;
    }
    /// Checks what the device has behind step `step`, which chose `chosen` and feeds `fed`.
    void expect(int64_t step, std::span<const int32_t> chosen, const std::vector<int32_t>& fed, bool follows) {
        for (size_t r = 0; r < static_cast<size_t>(n); ++r) {
            held[r] = follows ? committed[r] : -5;
            ++positions[r], ++committed[r];
        }
        EXPECT_EQ(on_device(batch.tokens), fed);
        EXPECT_EQ(on_device(batch.positions), positions);
        EXPECT_EQ(on_device(batch.committed), committed);
        EXPECT_EQ(on_device(held_now), held);
        int64_t steps = 0;
        op.ctx.gpu->to_host(&steps, ring.step, 8);
        EXPECT_EQ(steps, step + 1);
        for (int64_t r = 0; r < n; ++r)
            EXPECT_EQ(ring.entries[step % kSize * n + r],
                      static_cast<uint64_t>(step + 1) << 32 | static_cast<uint32_t>(chosen[static_cast<size_t>(r)]));
    }
};

/// Rows of which some are damaged and some have many largest entries.
std::vector<float> hard_rows(int64_t n, int64_t m, std::mt19937_64& rng) {
    std::vector<float> x(static_cast<size_t>(n * m));
    for (int64_t r = 0; r < n; ++r) {
        const auto kind = rng() % 6;
        for (int64_t i = 0; i < m; ++i)
            x[static_cast<size_t>(r * m + i)] =
                kind < 3 ? static_cast<float>(rng() % 1000) : std::normal_distribution<float>()(rng);
        if (kind == 5) x[static_cast<size_t>(r * m) + rng() % static_cast<size_t>(m)] = rng() % 2 == 0 ? NAN : INFINITY;
    }
    return x;
}

TEST(advance, with_the_choice_in_one_kernel_does_what_choice_and_advance_do) {
    if (test_gpu() == nullptr) GTEST_SKIP() << "for a GPU";
    std::mt19937_64 rng(6);
    const int32_t forced[] = {5, 9, 2};
    for (const auto& [n, m] :
         brief<std::pair<int64_t, int64_t>>({{1, 248320}, {3, 1025}, {1, 1}, {2, 100352}, {64, 5003}, {300, 2100}}, 2))
        for (const bool force : {false, true}) {
            OpContext op(2, 4 * n * m + (int64_t{1} << 20));
            Steps steps(op, n, std::span(forced).first(force ? 3 : 0));
            const bool follows = rng() % 2 == 0;
            for (int64_t step = 0; step < 6; ++step) {
                const ArenaScope scope(*op.ctx.arena);
                const Tensor logits = op.tensor(hard_rows(n, m, rng), {n, m});
                const std::vector<int32_t> chosen = values_of<int32_t>(ops::most_likely(op.ctx, logits));
                std::vector<int32_t> fed;
                for (const int32_t token : chosen) fed.push_back(force ? forced[step % 3] : std::max(token, 0));
                const auto held = follows ? steps.held_now : std::span<const int32_t>();
                if (step % 3 == 2)
                    ops::advance(op.ctx, ops::most_likely(op.ctx, logits), steps.batch, steps.ring, held);
                else ops::advance_most_likely(op.ctx, logits, steps.batch, steps.ring, held);
                op.ctx.gpu->synchronize();
                steps.expect(step, chosen, fed, follows);
                ASSERT_FALSE(HasFailure()) << n << " x " << m << " step " << step;
            }
        }
}

}  // namespace
}  // namespace riptide
