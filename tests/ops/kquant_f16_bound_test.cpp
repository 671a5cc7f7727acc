// The bounds of kquant_f16_bound.h on the host: products as their definition says stay within them, wrong ones do not,
// and they are far below what x in int8 may cost.
#include "tests/ops/kquant_f16_bound.h"

#include <gtest/gtest.h>

#include <functional>

#include "tests/ops/kquant_f16_world.h"

namespace riptide {
namespace {

constexpr int64_t kTakenRows = 24;

std::vector<TakenRow> rows_of(DType type, int64_t cols, bool any) {
    const test::AnyWeight bits(type, kTakenRows, cols, 3);
    const test::RandomWeight codec(test::WeightKind{type}, kTakenRows, cols, 4);
    std::vector<TakenRow> rows;
    for (int64_t r = 0; r < kTakenRows; ++r) rows.emplace_back(any ? bits.w : codec.w, r);
    return rows;
}

TEST(KquantF16Bound, a_taken_row_is_the_row_of_the_file) {
    for (const DType type : {DType::q4_k, DType::q6_k}) {
        const test::AnyWeight m(type, 5, 768, 9);
        std::vector<float> w(768);
        for (int64_t r = 0; r < 5; ++r) {
            dequantize_row(m.w, r, w.data());
            const TakenRow row(m.w, r);
            for (size_t c = 0; c < w.size(); ++c) {
                const double size = std::abs(row.d[c / 256] * row.us[c]) + std::abs(row.dmin[c / 256] * row.m[c]);
                const double exact = row.d[c / 256] * row.us[c] - row.dmin[c / 256] * row.m[c];
                ASSERT_LE(std::abs(w[c] - exact), kUnitF32 * size) << dtype_name(type) << ' ' << c;
            }
        }
    }
}

TEST(KquantF16Bound, holds_for_the_definition) {
    for (const DType type : {DType::q4_k, DType::q6_k})
        for (const int64_t cols : {3072, 5120})
            for (const bool normed : {false, true}) {
                const test::AwkwardRows rows(cols, 5);
                const std::vector<float> norm = normals(static_cast<size_t>(cols), 6);
                BoundCheck check, sharp;
                for (const TakenRow& row : rows_of(type, cols, true)) {
                    const JudgeRow judge(row, Arithmetic::half);
                    for (int64_t r = 0; r < rows.count(); ++r) {
                        const TakenInput x(Arithmetic::half, rows.row(r), normed ? norm : std::vector<float>(), 1e-6f);
                        if (!x.finite || !x.normalisable) continue;
                        const Judged j = judge(x);
                        const double y =
                            test::half_product(row, x, normed ? test::rms_factor(rows.row(r), 1e-6f) : 1.0f);
                        ASSERT_LE(std::abs(y - j.exact), j.bound) << rows.names[static_cast<size_t>(r)];
                        ASSERT_LE(std::abs(y - j.sharp), j.sharp_bound) << rows.names[static_cast<size_t>(r)];
                        check.add(y, j.exact, j.bound);
                        sharp.add(y, j.sharp, j.sharp_bound);
                    }
                }
                fmt::print("{} {}{}: {:.3f} of the bound, {:.3f} of the sharp one\n", dtype_name(type), cols,
                           normed ? " normed" : "", check.worst(), sharp.worst());
                EXPECT_GE(check.worst(), 0.02) << "the bound is too loose";
                EXPECT_GE(sharp.worst(), 0.02) << "the sharp bound is too loose";
            }
}

/// Of rows of ordinary values, as worst cases: what x in f16 may be off by, of what x in int8 may be.
TEST(KquantF16Bound, is_far_below_that_of_int8) {
    for (const DType type : {DType::q4_k, DType::q6_k})
        for (const int64_t cols : {3072, 5120, 17408}) {
            const test::AwkwardRows rows(cols, 7);
            double least[3] = {1e9, 1e9, 1e9};
            for (const TakenRow& row : rows_of(type, cols, false))
                for (int64_t r = 0; r < 3; ++r) {  // ordinary, and with outliers
                    const TakenInput h(Arithmetic::half, rows.row(r)), i(Arithmetic::int8, rows.row(r));
                    const Judged half = JudgeRow(row, Arithmetic::half)(h), int8 = JudgeRow(row, Arithmetic::int8)(i);
                    double& to = least[r];
                    to = std::min(to, int8.bound / half.bound);
                    EXPECT_GT(half.bound, 8 * half.sharp_bound);
                }
            fmt::print("{} {}: int8 {:.1f}, {:.1f}, {:.1f} times as much\n", dtype_name(type), cols, least[0], least[1],
                       least[2]);
            for (const double times : least) EXPECT_GT(times, 8);
        }
}

/// What a kernel may do wrong, each time in one place: most products show it.
TEST(KquantF16Bound, wrong_products_break_it) {
    using Rows = std::pair<TakenRow, TakenInput>;
    struct Mutant {
        const char* name;
        bool loose;  // breaks the bound, too, not only the sharp one
        std::function<void(Rows&, std::mt19937&)> change;
    };
    const auto scaled = [](TakenRow& w, size_t begin, size_t width, double more) {
        for (size_t c = begin; c < begin + width; ++c) w.scale[c] += more;
        w.multiply();
    };
    const Mutant mutants[] = {
        {"one scale is one more", false,
         [&](Rows& p, std::mt19937& random) { scaled(p.first, random() % (p.first.us.size() / 32) * 32, 32, 1); }},
        {"scales of neighbours are swapped", false,
         [&](Rows& p, std::mt19937& random) {
             const size_t at = random() % (p.first.us.size() / 64) * 64;
             std::swap_ranges(p.first.scale.begin() + static_cast<ptrdiff_t>(at),
                              p.first.scale.begin() + static_cast<ptrdiff_t>(at) + 32,
                              p.first.scale.begin() + static_cast<ptrdiff_t>(at) + 32);
             p.first.multiply();
         }},
        {"a block's scales are those of its neighbour", true,
         [&](Rows& p, std::mt19937& random) {
             const size_t b = random() % (p.first.d.size() - 1);
             for (size_t c = 256 * b; c < 256 * b + 256; ++c) p.first.scale[c] = p.first.scale[c + 256];
             p.first.multiply();
         }},
        {"all minimums are left out", true,
         [](Rows& p, std::mt19937&) { std::fill(p.first.m.begin(), p.first.m.end(), 0.0); }},
        {"one minimum is left out", true,
         [](Rows& p, std::mt19937& random) {
             const size_t at = random() % (p.first.m.size() / 32) * 32;
             std::fill_n(p.first.m.begin() + static_cast<ptrdiff_t>(at), 32, 0.0);
         }},
        {"one column is missing", false,
         [](Rows& p, std::mt19937& random) { p.second.rounded[random() % p.second.rounded.size()] = 0; }},
        {"two columns are swapped", false,
         [](Rows& p, std::mt19937& random) {
             const size_t at = random() % (p.second.rounded.size() - 1);
             std::swap(p.second.rounded[at], p.second.rounded[at + 1]);
         }},
        {"a block's power of two is the next", true,
         [](Rows& p, std::mt19937& random) {
             const size_t b = random() % p.second.exponent.size();
             for (size_t c = 256 * b; c < 256 * b + 256; ++c) p.second.rounded[c] *= 2;
         }},
        {"x is cut off, not rounded", false,
         [](Rows& p, std::mt19937&) {
             for (size_t c = 0; c < p.second.exact.size(); ++c) {
                 const int unit = p.second.exact[c] == 0 ? 0 : std::ilogb(p.second.exact[c]) - 10;
                 p.second.rounded[c] = std::ldexp(std::trunc(std::ldexp(p.second.exact[c], -unit)), unit);
             }
         }},
        {"x is in int8", false,
         [](Rows& p, std::mt19937&) {
             std::vector<float> x(p.second.exact.begin(), p.second.exact.end());
             p.second.rounded = TakenInput(Arithmetic::int8, x).rounded;
         }},
    };
    for (const DType type : {DType::q4_k, DType::q6_k})
        for (const int64_t cols : {3072, 5120, 17408})
            for (const Mutant& mutant : mutants) {
                const bool minimum = std::string_view(mutant.name).find("minimum") != std::string_view::npos;
                if (minimum && type == DType::q6_k) continue;
                std::mt19937 random(11);
                const test::AwkwardRows rows(cols, 8);
                int broken = 0, loose = 0, all = 0;
                for (const TakenRow& row : rows_of(type, cols, true)) {
                    Rows pair{row, TakenInput(Arithmetic::half, rows.row(0))};
                    const Judged j = JudgeRow(row, Arithmetic::half)(pair.second);
                    mutant.change(pair, random);
                    const double y = test::half_product(pair.first, pair.second);
                    ++all;
                    broken += std::abs(y - j.sharp) > j.sharp_bound;
                    loose += std::abs(y - j.exact) > j.bound;
                }
                fmt::print("{} {}: {}: {} of {} products, {} by the loose bound\n", dtype_name(type), cols, mutant.name,
                           broken, all, loose);
                EXPECT_GE(4 * broken, 3 * all) << mutant.name;
                if (mutant.loose) {
                    EXPECT_GT(loose, 0) << mutant.name;
                }
            }
}

}  // namespace
}  // namespace riptide
