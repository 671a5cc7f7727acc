#include "ops/embed.h"

#include "quant/codec.h"
#include "tests/ops/op_fixture.h"

namespace riptide {
namespace {

Weight table_of(const std::vector<char>& data, DType type, int64_t rows, int64_t cols) {
    Weight w;
    w.data = data.data();
    w.dtype = type;
    w.rows = rows;
    w.cols = cols;
    w.row_bytes = row_bytes(type, cols);
    return w;
}

TEST(embed, rows_are_the_dequantised_table_in_any_order) {
    const std::vector<float> values = normals(50 * 256, 1);
    for (const DType type : {DType::f32, DType::bf16, DType::q8_0, DType::q4_k}) {
        OpContext op(3);
        std::vector<char> data(static_cast<size_t>(50 * row_bytes(type, 256)));
        quantize(type, values.data(), data.data(), 50 * 256);
        const Weight table = table_of(data, type, 50, 256);
        const std::vector<int32_t> tokens{49, 0, 0, 17};
        const Tensor y = ops::embed(op.ctx, table, tokens);
        EXPECT_EQ(y.shape[1], 256);
        for (size_t r = 0; r < tokens.size(); ++r) {
            std::vector<float> expected(256);
            dequantize_row(table, tokens[r], expected.data());
            EXPECT_TRUE(same_bits(y.row(static_cast<int64_t>(r)), expected.data(), 256))
                << dtype_name(type) << " " << r;
        }
    }
}

TEST(embed, a_token_outside_the_vocabulary_is_an_error) {
    OpContext op;
    const std::vector<char> data(4 * 8 * sizeof(float));
    const Weight table = table_of(data, DType::f32, 4, 8);
    for (const int32_t token : {-1, 4, INT32_MAX})
        EXPECT_THROW(ops::embed(op.ctx, table, std::vector<int32_t>{0, token}), Error) << token;
}

TEST(embed, gather_rows_picks_rows) {
    OpContext op;
    const std::vector<float> x = normals(10 * 6, 2);
    for (const bool heads : {false, true}) {
        const Tensor t = heads ? op.tensor(x, {10, 2, 3}) : op.tensor(x, {10, 6});
        const Tensor y = ops::gather_rows(op.ctx, t, std::vector<int32_t>{9, 0, 9});
        EXPECT_EQ(y.rank, t.rank);
        const size_t source[] = {9, 0, 9};
        for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(same_bits(y.row(static_cast<int64_t>(i)), &x[source[i] * 6], 6));
    }
    EXPECT_EQ(ops::gather_rows(op.ctx, op.tensor(x, {10, 6}), {}).rows(), 0);
}

}  // namespace
}  // namespace riptide
