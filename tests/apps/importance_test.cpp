// What riptide imatrix adds up, and the types that --tensor asks for.
#include <gtest/gtest.h>

#include <cmath>

#include "apps/convert/input_squares.h"
#include "apps/convert/tensor_rules.h"
#include "base/error.h"
#include "io/gguf.h"
#include "io/gguf_writer.h"

namespace riptide::apps {

namespace {

/// A matrix [3, 2], a stack of two [2, 4] and a vector, as a file.
std::vector<std::byte> three_tensors() {
    std::vector<std::byte> image;
    GgufWriter writer(image);
    writer.add_tensor("q.weight", DType::f32, std::vector<int64_t>{3, 2});
    writer.add_tensor("exps.weight", DType::f32, std::vector<int64_t>{2, 2, 4});
    writer.add_tensor("norm.weight", DType::f32, std::vector<int64_t>{4});
    writer.write_tensor("q.weight", std::vector<std::byte>(24));
    writer.write_tensor("exps.weight", std::vector<std::byte>(64));
    writer.write_tensor("norm.weight", std::vector<std::byte>(16));
    writer.finish();
    return image;
}

Weight part_of(const TensorInfo& tensor, int64_t first_row, int64_t rows) {
    Weight w;
    w.dtype = DType::f32;
    w.cols = tensor.shape.back();
    w.rows = rows;
    w.row_bytes = 4 * w.cols;
    w.data = tensor.bytes.data() + first_row * w.row_bytes;
    return w;
}

Tensor rows_of(std::vector<float>& values, int64_t cols) {
    return Tensor(values.data(), DType::f32, {std::ssize(values) / cols, cols});
}

void expect_usage(const std::vector<std::string>& rules, const std::string& part) {
    try {
        TensorRules(rules).check_all_used();
        FAIL() << "no error about " << part;
    } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::usage);
        EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
}

}  // namespace

TEST(InputSquares, sums_are_by_tensor_expert_and_column) {
    const std::vector<std::byte> image = three_tensors();
    const auto file = GgufFile::from_memory(image, "m.gguf");
    Context ctx;
    std::vector<float> two = {1, 2, -3, 0}, four = {1, 2, 3, 4};
    {
        InputSquares squares(*file, ctx);
        ctx.on_input(part_of(*file->find("q.weight"), 0, 3), rows_of(two, 2));
        ctx.on_input(part_of(*file->find("q.weight"), 0, 3), rows_of(two, 2));
        ctx.on_input(part_of(*file->find("exps.weight"), 2, 2), rows_of(four, 4));  // the second expert
        std::vector<float> elsewhere(8);
        Weight copy = part_of(*file->find("q.weight"), 0, 3);
        copy.data = elsewhere.data();
        ctx.on_input(copy, rows_of(two, 2));
        const ImportanceMatrix matrix = squares.result();
        ASSERT_EQ(matrix.entries.size(), 2u);
        EXPECT_EQ(matrix.entries.at("q.weight").sums, (std::vector<float>{20, 8}));
        EXPECT_EQ(matrix.entries.at("q.weight").counts, (std::vector<float>{4}));
        EXPECT_EQ(matrix.entries.at("exps.weight").sums, (std::vector<float>{0, 0, 0, 0, 1, 4, 9, 16}));
        EXPECT_EQ(matrix.entries.at("exps.weight").counts, (std::vector<float>{0, 1}));
    }
    EXPECT_FALSE(ctx.on_input);
}

TEST(InputSquares, inputs_that_are_not_finite_name_the_tensor) {
    const std::vector<std::byte> image = three_tensors();
    const auto file = GgufFile::from_memory(image, "m.gguf");
    Context ctx;
    const InputSquares squares(*file, ctx);
    std::vector<float> bad = {1, NAN};
    try {
        ctx.on_input(part_of(*file->find("q.weight"), 0, 3), rows_of(bad, 2));
        FAIL();
    } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find("column 1 of q.weight"), std::string::npos) << error.what();
    }
}

TEST(TensorRules, the_first_pattern_that_is_found_counts) {
    TensorRules rules(std::vector<std::string>{"blk\\.[01]\\.attn_q=q4_k", "attn_[qk]=Q8_0", "^a=b=f16"});
    EXPECT_EQ(rules.find("blk.0.attn_q.weight"), DType::q4_k);
    EXPECT_EQ(rules.find("blk.2.attn_q.weight"), DType::q8_0);
    EXPECT_EQ(rules.find("blk.0.attn_k.weight"), DType::q8_0);
    EXPECT_EQ(rules.find("a=b"), DType::f16);
    EXPECT_EQ(rules.find("blk.0.attn_v.weight"), std::nullopt);
    EXPECT_EQ(rules.find("attn_q\xFF"), std::nullopt);
    EXPECT_NO_THROW(rules.check_all_used());
}

TEST(TensorRules, wrong_ones_are_named) {
    expect_usage({"attn_q"}, "REGEX=TYPE");
    expect_usage({"=q4_k"}, "REGEX=TYPE");
    expect_usage({"attn_q=q9_z"}, "q9_z");
    expect_usage({"attn_q=nvfp4"}, "no quantiser");
    expect_usage({"attn_q=f8_e4m3"}, "GGUF has no type f8_e4m3");
    expect_usage({"attn_q=tq3_0"}, "GGUF has no type tq3_0");
    expect_usage({"attn_(q=q4_k"}, "--tensor attn_(q=q4_k");
    expect_usage({"nothing=q4_k"}, "--tensor nothing=q4_k");
}

}  // namespace riptide::apps
