#include "ops/capture.h"

#include "ops/norm.h"
#include "tests/ops/op_fixture.h"

namespace riptide {
namespace {

TEST(copy_columns, writes_its_columns_and_nothing_else) {
    for (const int64_t d : {64, 63})
        for (const int64_t column : {int64_t{0}, int64_t{1}, d, 2 * d}) {
            OpContext op;
            const std::vector<float> x = normals(static_cast<size_t>(5 * d), 1),
                                     before = normals(static_cast<size_t>(15 * d), 2);
            Tensor out = op.tensor(before, {5, 3 * d});
            ops::copy_columns(op.ctx, op.tensor(x, {5, d}), out, column);
            const std::vector<float> after = values_of(out);
            for (int64_t r = 0; r < 5; ++r)
                for (int64_t c = 0; c < 3 * d; ++c) {
                    const bool inside = c >= column && c < column + d;
                    const float expected = inside ? x[static_cast<size_t>(r * d + c - column)]
                                                  : before[static_cast<size_t>(r * 3 * d + c)];
                    ASSERT_EQ(after[static_cast<size_t>(r * 3 * d + c)], expected)
                        << d << " " << column << " " << r << " " << c;
                }
        }
}

TEST(rms_norm_parts, has_the_bits_of_the_norm_of_each_part) {
    for (const int64_t d : {64, 40, 2048}) {
        OpContext op;
        constexpr int64_t kParts = 3, kRows = 7;
        const std::vector<float> x = normals(static_cast<size_t>(kRows * kParts * d), 3, 50.0f),
                                 w = normals(static_cast<size_t>(kParts * d), 4);
        const std::vector<float> all =
            values_of(ops::rms_norm_parts(op.ctx, op.tensor(x, {kRows, kParts * d}), op.floats(w), kParts, 1e-6f));
        for (int64_t part = 0; part < kParts; ++part) {
            std::vector<float> piece;
            for (int64_t r = 0; r < kRows; ++r)
                piece.insert(piece.end(), x.begin() + (r * kParts + part) * d, x.begin() + (r * kParts + part + 1) * d);
            const std::vector<float> weight(w.begin() + part * d, w.begin() + (part + 1) * d);
            const std::vector<float> expected =
                values_of(ops::rms_norm(op.ctx, op.tensor(piece, {kRows, d}), op.floats(weight), 1e-6f));
            for (int64_t r = 0; r < kRows; ++r)
                ASSERT_TRUE(
                    same_bits(all.data() + (r * kParts + part) * d, expected.data() + r * d, static_cast<size_t>(d)))
                    << d << ", row " << r << ", part " << part;
        }
    }
}

}  // namespace
}  // namespace riptide
