// Which kernels sparse layers take: tests/ops/plan/moe-*.txt, and that what is chosen fits. See plan_test.cpp.
#include <gtest/gtest.h>

#include "ops/cuda/linear/shared/router_words.h"
#include "ops/cuda/moe/fit.h"
#include "ops/cuda/moe/plan.h"
#include "tests/ops/plan_text.h"

namespace riptide::ops::cuda {
namespace {

constexpr int64_t kSparseHidden = 2048;

/// A layer of Laguna XS.2: 256 experts of 512, 8 of them and a shared one.
struct SparseWorld {
    ExpertWeights experts;
    Weight router, gate, up, down;
    moe::Case c;

    SparseWorld(DType type, DType down_type, int64_t ff = 512, int64_t shared_ff = 512) {
        const auto stack = [](std::vector<Weight>& to, DType of, int64_t rows, int64_t cols) {
            const Weight first = plan_weight(of, rows, cols);
            for (int64_t e = 0; e < 256; ++e) {
                Weight w = first;
                for (const void** const p : {&w.data, &w.scales, &w.high})
                    if (*p != nullptr) *p = static_cast<const char*>(*p) + (e << 28);
                to.push_back(w);
            }
        };
        stack(experts.gate, type, ff, kSparseHidden);
        stack(experts.up, type, ff, kSparseHidden);
        stack(experts.down, down_type, kSparseHidden, ff);
        router = plan_weight(DType::bf16, 256, kSparseHidden);
        gate = plan_weight(type, shared_ff, kSparseHidden);
        up = plan_weight(type, shared_ff, kSparseHidden);
        down = plan_weight(down_type, kSparseHidden, shared_ff);
        c.router = &router;
        c.top_k = 8;
        c.experts = &experts;
        c.shared = {&gate, &up, &down};
    }
    SparseWorld(const SparseWorld&) = delete;
    SparseWorld& operator=(const SparseWorld&) = delete;

    moe::Choice choose(const Chip& chip, int64_t rows) {
        c.chip = chip;
        c.rows = rows;
        c.family = family_for(rows);
        return moe::choose(c);
    }
};

std::string text_of_layer(DType type, DType down_type) {
    SparseWorld world(type, down_type);
    return by_chip([&](const Chip& chip) {
        return plan_runs([&](int64_t rows) {
            const moe::Choice choice = world.choose(chip, rows);
            std::string text = moe::router_name(choice.router) + std::string(", ") + moe::experts_name(choice.up);
            return choice.down == choice.up ? text : text + ", " + moe::experts_name(choice.down);
        });
    });
}

TEST(PlanMoe, layers_are_those_of_the_tables) {
    hold_plan("moe-laguna-xs.2",
              "# laguna-xs.2: router, experts (gate and up, down if it is another) of a sparse layer\n" +
                  by_type([](DType type) { return text_of_layer(type, type); }) + "  q4_k, down q6_k\n" +
                  text_of_layer(DType::planes_q4_k, DType::planes_q6_k));
}

TEST(PlanMoe, what_is_chosen_fits_however_little_shared_memory_there_is) {
    const DType types[] = {DType::planes_q4_k, DType::planes_q5_k, DType::planes_q6_k};
    for (const DType type : types)
        for (const DType down : types) {
            SparseWorld world(type, down);
            bool grouped = false, others = false;
            for (int64_t kilobytes = 32; kilobytes <= 227; ++kilobytes)
                for (const int64_t rows : {1, 2, 4, 8, 9, 64, 256}) {
                    const Chip chip{8, 6, 82, kilobytes << 10};
                    const moe::Choice choice = world.choose(chip, rows);
                    const bool fits = decode::fit_groups(chip, rows, 8, type, down).has_value();
                    SCOPED_TRACE(::testing::Message() << kilobytes << " KB, " << rows << " rows");
                    if (choice.up == moe::Experts::grouped_sm80) {
                        ASSERT_TRUE(fits);
                    }
                    if (choice.up == moe::Experts::rows8) {
                        const decode::LayerFormats formats = decode::formats_of(*world.c.experts, world.c.shared);
                        ASSERT_TRUE(decode::fit_rows8(chip, std::min<int64_t>(rows, 8), 8, formats).has_value());
                    }
                    if (choice.router == moe::Router::rows_norm) {
                        ASSERT_TRUE(choice.up == moe::Experts::grouped_sm80 || choice.up == moe::Experts::rows8);
                    }
                    grouped = grouped || choice.up == moe::Experts::grouped_sm80;
                    others = others || (rows > 1 && choice.up == moe::Experts::any);
                }
            EXPECT_TRUE(grouped && others);
        }
}

/// Words are left for one row, and a few of Q4_K_M, of layers whose experts choose from words, and taken wherever they
/// are left.
TEST(PlanMoe, words_of_a_router_are_left_for_whom_takes_them) {
    SparseWorld fit(DType::planes_q4_k, DType::planes_q6_k), planes(DType::planes_q5_k, DType::planes_int8),
        other(DType::bf16, DType::bf16);
    const Weight o = plan_weight(DType::planes_q4_k, kSparseHidden, 8192),
                 o8 = plan_weight(DType::planes_int8, kSparseHidden, 8192);
    const Weight *const product = &o, *const product8 = &o8;
    for (const NamedChip& chip : kNamedChips)
        for (const int64_t rows : kPlanRows) {
            const moe::Choice choice = fit.choose(chip.chip, rows);
            const bool few = choice.up == moe::Experts::rows8 && rows <= decode::kMostWordRows;
            const bool fits = choice.words && (choice.up == moe::Experts::row1_sm90 || few);
            EXPECT_EQ(moe::takes_words(fit.c), fits) << chip.name << ", " << rows << " rows";
            planes.choose(chip.chip, rows);
            EXPECT_EQ(moe::takes_words(planes.c), rows == 1 && chip.chip.hopper()) << chip.name << ", " << rows;
            other.choose(chip.chip, rows);
            EXPECT_FALSE(moe::takes_words(other.c)) << chip.name << ", " << rows << " rows";
            linear::Case c{.family = fit.c.family,
                           .rows = rows,
                           .cols = o.cols,
                           .x = decode::ActKind::int8,
                           .residual = true,
                           .weights = {&product, 1},
                           .chip = chip.chip,
                           .router = moe::takes_words(fit.c)};
            if (fits && few && chip.chip.hopper()) {
                EXPECT_EQ(linear::choose(c)[0].kernel, linear::Kernel::kquant_i8_rows4_split_router);
            } else if (fits && chip.chip.hopper()) {
                EXPECT_EQ(linear::choose(c)[0].kernel, linear::Kernel::kquant_i8_split_router);
                linear::Case c8 = c;
                c8.weights = {&product8, 1};
                EXPECT_EQ(linear::choose(c8)[0].kernel, linear::Kernel::planes_i8_split_router);
            }
            c.router = false;
            EXPECT_FALSE(linear::leaves_words(linear::choose(c)[0].kernel));
        }
}

/// One law for all rows of a router.
TEST(PlanMoe, a_router_has_words_at_any_number_of_rows_or_at_none) {
    using moe::Router;
    int with = 0;
    for (const auto& named : kPlanTypes)
        for (const int64_t top_k : {8, 9}) {
            SparseWorld world(named.type, named.type);
            world.c.top_k = top_k;
            for (const NamedChip& chip : kNamedChips) {
                const bool words = world.choose(chip.chip, 1).words;
                with += words ? 1 : 0;
                for (const int64_t rows : {1, 2, 3, 8, 9, 64, 256}) {
                    const moe::Choice choice = world.choose(chip.chip, rows);
                    const bool can = choice.router == Router::words_row1 || choice.router == Router::rows_norm ||
                                     choice.router == Router::words_rows;
                    EXPECT_TRUE(choice.words == words && (can || !words))
                        << named.name << ", " << chip.name << ", " << rows << " rows";
                }
            }
        }
    EXPECT_GT(with, 0);
}

TEST(PlanMoe, a_shared_expert_of_another_width_goes_alone) {
    SparseWorld world(DType::planes_q4_k, DType::planes_q4_k, 512, 1024);
    for (const NamedChip& chip : kNamedChips)
        for (const int64_t rows : kPlanRows) {
            const moe::Choice choice = world.choose(chip.chip, rows);
            EXPECT_TRUE(choice.separate) << chip.name << ", " << rows << " rows";
            EXPECT_NE(choice.router, moe::Router::rows_norm) << chip.name << ", " << rows << " rows";
        }
}

/// Which sums a prompt's router has depends on the weight and the chip alone: prefill_router() sees no rows.
TEST(PlanMoe, a_router_of_prompts_is_that_of_its_weight_and_chip) {
    using moe::Router;
    const auto is = [](DType type, int64_t cols, const Chip& chip, Router router) {
        EXPECT_EQ(moe::prefill_router(chip, plan_weight(type, 256, cols)), router) << dtype_name(type) << " " << cols;
    };
    for (const NamedChip& named : kNamedChips) {
        SCOPED_TRACE(named.name);
        Chip chip = named.chip;
        const Router old = chip.major >= 8 ? Router::prefill_tensor : Router::prefill_any;
        is(DType::bf16, 2048, chip, chip.hopper() ? Router::prefill_sm90 : old);
        is(DType::bf16, 2048 + 32, chip, old);
        is(DType::f32, 2048, chip, old);
        is(DType::bf16, 2048 + 16, chip, Router::prefill_any);
        chip.portable = true;
        is(DType::bf16, 2048, chip, Router::prefill_any);
    }
}

}  // namespace
}  // namespace riptide::ops::cuda
