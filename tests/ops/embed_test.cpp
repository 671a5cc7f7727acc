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
    for (const DType type : {DType::f32, DType::f16, DType::bf16, DType::f8_e4m3, DType::q4_0, DType::q8_0, DType::q4_k,
                             DType::q5_k, DType::q6_k}) {
        OpContext op(3);
        std::vector<char> data(static_cast<size_t>(50 * row_bytes(type, 256)));
        quantize(type, values.data(), data.data(), 50 * 256);
        const Weight table = table_of(data, type, 50, 256);
        const std::vector<int32_t> tokens{49, 0, 0, 17};
        const Tensor y = ops::embed(op.ctx, op.weight(table), op.ints(tokens));
        EXPECT_EQ(y.shape[1], 256);
        const std::vector<float> found = values_of(y);
        for (size_t r = 0; r < tokens.size(); ++r) {
            std::vector<float> expected(256);
            dequantize_row(table, tokens[r], expected.data());
            EXPECT_TRUE(same_bits(&found[r * 256], expected.data(), 256)) << dtype_name(type) << " " << r;
        }
    }
}

TEST(embed, tables_of_any_width) {
    for (const int64_t cols : {1, 8, 17, 40, 129}) {
        OpContext op;
        const std::vector<float> values = normals(static_cast<size_t>(7 * cols), 1);
        std::vector<char> data(static_cast<size_t>(7 * row_bytes(DType::bf16, cols)));
        quantize(DType::bf16, values.data(), data.data(), 7 * cols);
        const Weight table = table_of(data, DType::bf16, 7, cols);
        const std::vector<int32_t> tokens{6, 2};
        const std::vector<float> found = values_of(ops::embed(op.ctx, op.weight(table), op.ints(tokens)));
        std::vector<float> expected(static_cast<size_t>(2 * cols));
        for (int64_t r = 0; r < 2; ++r)
            dequantize_row(table, tokens[static_cast<size_t>(r)], &expected[static_cast<size_t>(r * cols)]);
        expect_same_bits(found, expected, "table");
    }
}

TEST(embed, a_token_outside_the_vocabulary_is_nan_on_a_gpu) {
    RT_GPU_ONLY();
    OpContext op;
    const std::vector<char> data(4 * 8 * sizeof(float));
    const std::vector<float> y = values_of(ops::embed(op.ctx, op.weight(table_of(data, DType::f32, 4, 8)),
                                                      op.ints(std::vector<int32_t>{-1, 3, 4, INT32_MAX})));
    for (size_t i = 0; i < y.size(); ++i) EXPECT_EQ(std::isnan(y[i]), i / 8 != 1) << i;
}

TEST(embed, a_token_outside_the_vocabulary_is_an_error) {
    RT_CPU_ONLY("a GPU's tokens are known to the device alone");
    OpContext op;
    const std::vector<char> data(4 * 8 * sizeof(float));
    const Weight table = table_of(data, DType::f32, 4, 8);
    for (const int32_t token : {-1, 4, INT32_MAX})
        EXPECT_THROW(ops::embed(op.ctx, table, std::vector<int32_t>{0, token}), Error) << token;
}

TEST(embed, wanted_rows_that_are_all_rows_are_x_itself) {
    OpContext op;
    const std::vector<float> x = normals(10 * 6, 4);
    const Tensor t = op.tensor(x, {10, 6});
    const std::vector<int32_t> all = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
    EXPECT_EQ(ops::wanted_rows(op.ctx, t, op.ints(all)).data, t.data);
    const Tensor some = ops::wanted_rows(op.ctx, t, op.ints(std::span(all).subspan(3, 4)));
    EXPECT_EQ(values_of(some), std::vector<float>(x.begin() + 18, x.begin() + 42));
}

TEST(embed, gather_rows_picks_rows) {
    OpContext op;
    const std::vector<float> x = normals(10 * 6, 2);
    for (const bool heads : {false, true}) {
        const Tensor t = heads ? op.tensor(x, {10, 2, 3}) : op.tensor(x, {10, 6});
        const Tensor y = ops::gather_rows(op.ctx, t, op.ints(std::vector<int32_t>{9, 0, 9}));
        const std::vector<float> found = values_of(y);
        EXPECT_EQ(y.rank, t.rank);
        const size_t source[] = {9, 0, 9};
        for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(same_bits(&found[i * 6], &x[source[i] * 6], 6));
    }
    EXPECT_EQ(ops::gather_rows(op.ctx, op.tensor(x, {10, 6}), {}).rows(), 0);
}

}  // namespace
}  // namespace riptide
