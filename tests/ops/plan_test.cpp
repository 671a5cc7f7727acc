// Which kernels are launched: the tables of tests/ops/plan/*.txt, and laws that hold on every chip. After a change that
// is meant: RIPTIDE_WRITE_PLANS=1 test_ops --gtest_filter='Plan*', and read the difference.
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "tests/ops/plan_text.h"

namespace riptide::ops::cuda {
namespace {

using decode::ActKind;
using linear::Case;
using linear::Choice;
using linear::Kernel;

/// The kernels of a choice, each once.
std::string names(const Choice& choice) {
    std::string text;
    std::set<Kernel> seen;
    for (const linear::Launch& launch : choice)
        if (seen.insert(launch.kernel).second)
            text += (text.empty() ? "" : " + ") + std::string(linear::kernel_name(launch.kernel));
    return text;
}

std::vector<const Weight*> pointers(const std::vector<Weight>& weights) {
    std::vector<const Weight*> all;
    for (const Weight& w : weights) all.push_back(&w);
    return all;
}

/// The choice, or that there is none.
std::string names_or_none(const Case& c) {
    try {
        return names(linear::choose(c));
    } catch (const Error&) {
        return "none";
    }
}

std::string text_of(const PlanOp& op) {
    return by_type([&](DType type) {
        std::vector<Weight> weights;
        for (const int64_t rows : op.rows) weights.push_back(plan_weight(type, rows, op.cols));
        for (const int64_t rows : op.floats) weights.push_back(plan_weight(DType::f32, rows, op.cols));
        const auto all = pointers(weights);
        return by_chip([&](const Chip& chip) {
            const bool int8 = is_planes(type) && !linear::f16_weight(chip, weights[0]);
            const ActKind x = op.normed ? ActKind::norm : int8 ? ActKind::int8 : ActKind::plain;
            return plan_runs([&](int64_t rows) {
                return names_or_none({family_for(rows), rows, op.cols, x, true, !op.normed, all, chip});
            });
        });
    });
}

/// Gate, up and down of a dense layer: "pair, down".
std::string text_of_ffn(int64_t hidden, int64_t ff) {
    return by_type([&](DType type) {
        const std::vector<Weight> weights = {plan_weight(type, ff, hidden), plan_weight(type, ff, hidden)};
        const Weight down = plan_weight(type, hidden, ff);
        const auto both = pointers(weights);
        const Weight* const last[] = {&down};
        return by_chip([&](const Chip& chip) {
            return plan_runs([&](int64_t rows) {
                Case c{family_for(rows), rows, hidden, ActKind::norm, true, false, both, chip};
                const Choice pair = c.family == Family::prefill ? Choice{} : linear::choose_pair(c, down);
                const std::string up = pair.empty() ? names_or_none(c) + ", swiglu" : names(pair);
                const bool eight = !pair.empty() && pair[0].kernel == Kernel::q8_i8_sm80;
                const bool staged = pair.empty() && rows > 1 && linear::q8_weight(chip, down);
                const ActKind x = eight ? ActKind::int8 : staged ? ActKind::staged : ActKind::plain;
                return up + ", " + names_or_none({c.family, rows, ff, x, true, true, last, chip});
            });
        });
    });
}

TEST(Plan, products_are_those_of_the_tables) {
    for (const PlanModel& model : plan_models()) {
        std::string text = "# " + std::string(model.name) +
                           ": which kernel multiplies how many rows of x; to 256 the decode family, above prefill\n";
        for (const PlanOp& op : model.groups) text += op.name + std::string("\n") + text_of(op);
        text += "gate and up, down\n" + text_of_ffn(model.hidden, model.ff);
        hold_plan(std::string("linear-") + model.name, text);
    }
}

TEST(Plan, kernels_are_in_the_files_that_the_plan_names) {
    std::set<std::string> known;
    for (int i = 0; i <= static_cast<int>(Kernel::gemm_bf16_sm80); ++i) {
        const auto kernel = static_cast<Kernel>(i);
        EXPECT_TRUE(known.insert(linear::kernel_name(kernel)).second) << linear::kernel_name(kernel);
        const std::string path = source_dir() + "/src/ops/cuda/linear/" + linear::kernel_file(kernel);
        EXPECT_TRUE(std::ifstream(path)) << path << " is not there";
    }
}

/// A group of some matrices and rows, of any types and widths, and a chip, from a seed.
struct SomeCase {
    std::vector<Weight> weights;
    std::vector<const Weight*> all;
    Case c;

    explicit SomeCase(uint64_t seed) {
        std::mt19937_64 rng(seed);
        const auto pick = [&](const auto& list) {
            return *(std::begin(list) + static_cast<int64_t>(rng() % std::size(list)));
        };
        const int64_t some_cols[] = {512, 1024, 2048, 3072, 5120, 6144, 8192, 17408};
        const int64_t some_rows[] = {1, 2, 48, 64, 512, 2048, 5120, 17408, 100352};
        c.cols = pick(some_cols);
        c.rows = pick(std::vector<int64_t>{1, 2, 3, 4, 5, 8, 9, 16, 24, 25, 64, 200, 256});
        c.family = rng() % 4 == 0 ? Family::draft : Family::decode;
        c.x = pick(std::vector{ActKind::plain, ActKind::norm});
        c.aligned = rng() % 8 != 0;
        c.chip = pick(kNamedChips).chip;
        c.chip.portable = rng() % 8 == 0;
        const auto count = static_cast<size_t>(1 + rng() % 10);
        const DType type = pick(kPlanTypes).type;
        for (size_t i = 0; i < count; ++i)
            weights.push_back(plan_weight(rng() % 3 == 0 ? pick(kPlanTypes).type : type, pick(some_rows), c.cols));
        all = pointers(weights);
        c.weights = all;
    }
};

TEST(Plan, every_row_is_multiplied_by_every_weight_once) {
    for (uint64_t seed = 0; seed < 4000; ++seed) {
        SCOPED_TRACE(seed);
        const SomeCase some(seed);
        std::map<size_t, int64_t> next;  // row of a weight
        Choice choice;
        try {
            choice = linear::choose(some.c);
        } catch (const Error&) {
            continue;  // rows too long
        }
        for (const linear::Launch& launch : choice) {
            ASSERT_GT(launch.rows, 0);
            for (const size_t i : launch.weights) {
                ASSERT_EQ(next[i], launch.row);
                next[i] += launch.rows;
            }
        }
        ASSERT_EQ(next.size(), some.weights.size());
        for (const auto& [i, rows] : next) ASSERT_EQ(rows, some.c.rows) << i;
    }
}

TEST(Plan, a_kernel_for_later_chips_is_never_chosen) {
    for (uint64_t seed = 0; seed < 4000; ++seed) {
        const SomeCase some(seed);
        const std::string chosen = names_or_none(some.c);
        const bool portable = some.c.chip.portable;
        if (some.c.chip.major < 9 || portable) {
            EXPECT_EQ(chosen.find("sm90"), std::string::npos) << seed;
        }
        if (some.c.chip.major != 9) {
            for (const char* const only : {"draft_f16", "kquant_f16"})
                EXPECT_EQ(chosen.find(only), std::string::npos) << seed;
        }
        if (some.c.chip.major < 8 || portable) {
            EXPECT_EQ(chosen.find("sm80"), std::string::npos) << seed;
        }
    }
}

TEST(Plan, rows_of_half_precision_have_it_in_any_company) {
    for (const NamedChip& chip : kNamedChips)
        for (const int64_t cols : {3072, 5120, 6144, 17408}) {
            const Weight w = plan_weight(DType::planes_q4_k, 5120, cols);
            const Weight* const all[] = {&w};
            for (const int64_t rows : kPlanRows) {
                if (rows > 256) continue;
                const std::string chosen =
                    names_or_none({Family::decode, rows, cols, ActKind::plain, true, false, all, chip.chip});
                EXPECT_EQ(chosen.find("kquant_f16") != std::string::npos, linear::f16_weight(chip.chip, w))
                    << chip.name << ", " << rows << " rows of " << cols << ": " << chosen;
            }
        }
}

}  // namespace
}  // namespace riptide::ops::cuda
