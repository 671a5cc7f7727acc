// Each op that a model calls tells Context::on_op of itself once, whatever ops it is made of.
#include "ops/op_cost.h"

#include <deque>

#include "ops/elementwise.h"
#include "ops/matmul.h"
#include "ops/moe.h"
#include "ops/norm.h"
#include "tests/ops/op_fixture.h"

namespace riptide {
namespace {

class OpCostTest : public ::testing::Test {
  protected:
    static constexpr int64_t kWidth = 64, kRows = 3;

    OpCostTest() {
        op.ctx.on_op = [this](const OpCost& cost) { told.push_back({std::string(cost.name), cost.weight_bytes}); };
    }
    Weight square(uint64_t seed) {
        values.push_back(normals(kWidth * kWidth, seed));
        Weight w;
        w.data = values.back().data();
        w.rows = w.cols = kWidth;
        w.row_bytes = kWidth * int64_t{sizeof(float)};
        return w;
    }
    Tensor rows(uint64_t seed) { return op.tensor(normals(kRows * kWidth, seed), {kRows, kWidth}); }

    struct Told {
        std::string name;
        double weight_bytes;
        bool operator==(const Told&) const = default;
    };
    OpContext op{2, int64_t{4} << 20, nullptr};
    std::deque<std::vector<float>> values;
    std::vector<Told> told;
    const double each = kWidth * kWidth * sizeof(float);
};

TEST_F(OpCostTest, compositions_tell_of_themselves_alone) {
    const std::vector<float> ones(kWidth, 1.0f);
    const ops::Norm norm{op.floats(ones), 1e-6f};
    const Weight a = square(1), b = square(2), c = square(3);
    const Weight* const both[] = {&a, &b};
    Tensor x = rows(4);
    ops::norm_matmul_group(op.ctx, x, norm, both);
    ops::swiglu_ffn_add(op.ctx, x, norm, a, b, c);
    ops::matmul_add(op.ctx, a, rows(5), x);
    EXPECT_EQ(told,
              (std::vector<Told>{{"norm_matmul_group", 2 * each}, {"swiglu_ffn_add", 3 * each}, {"matmul_add", each}}));
}

/// What a softmax router's sparse layer is made of (Qwen3.5), op by op.
TEST_F(OpCostTest, ops_that_models_compose_tell_too) {
    const std::vector<float> ones(kWidth, 1.0f);
    Weight router = square(1);
    router.rows = 2;
    const Weight gate = square(2), up = square(3), down = square(4);
    const ops::ExpertWeights experts{{gate, gate}, {up, up}, {down, down}};
    const Tensor x = rows(5), h = ops::rms_norm(op.ctx, x, op.floats(ones), 1e-6f);
    const Weight* const scores[] = {&router};
    const Tensor logits = ops::matmul_group(op.ctx, scores, h)[0];
    const ops::Routing routing = ops::route_softmax(op.ctx, logits, 2);
    Tensor y = ops::moe_swiglu(op.ctx, h, routing, experts);
    ops::add(op.ctx, y, ops::swiglu_ffn(op.ctx, h, gate, up, down));
    std::vector<std::string> names;
    for (const Told& one : told) names.push_back(one.name);
    EXPECT_EQ(names, (std::vector<std::string>{"rms_norm", "matmul_group", "route_softmax", "moe_swiglu", "swiglu_ffn",
                                               "add"}));
    EXPECT_EQ(told[3].weight_bytes, 6 * each);  // three rows, two of two experts each: both
}

TEST_F(OpCostTest, an_op_that_fails_lets_the_next_tell) {
    const Weight w = square(1);
    const ops::ExpertWeights none;
    const Tensor x = rows(2);
    const ops::Routing routing{1, op.ctx.alloc(DType::i32, {kRows, 1}), op.ctx.alloc(DType::f32, {kRows, 1})};
    EXPECT_THROW(ops::moe_swiglu(op.ctx, x, routing, none), Error);
    ops::matmul(op.ctx, w, x);
    EXPECT_EQ(told, (std::vector<Told>{{"matmul_group", each}}));
}

}  // namespace
}  // namespace riptide
