// The router of Laguna XS.2 in the decode family: in the epilogue of the product before it, in a kernel of its own, or
// of many rows. One law (ops/cuda/linear/shared/router_words.h), and words that are zero again behind each layer.
#include <gtest/gtest.h>

#include "ops/cuda/linear/shared/router_words.h"
#include "ops/matmul.h"
#include "ops/moe.h"
#include "tests/ops/row_company.h"

namespace riptide {
namespace {

using ops::cuda::decode::RouterWords;
using test::RandomWeight;
using test::WeightKind;

/// The product o, of `wide` columns, and the sparse layer behind it; all experts are one.
struct RoutedLayer {
    static constexpr int64_t kExperts = 256, kHidden = 2048, kFf = 512, kWide = 6144;
    int64_t wide;
    OpContext op{1, int64_t{64} << 20};
    RandomWeight host_router{{DType::bf16}, kExperts, kHidden, 24};
    std::vector<float> norm_weights = normals(kHidden, 25);
    Weight o, router, shared_gate, shared_up, shared_down, share;
    std::vector<Weight> gate, down;
    ops::ExpertWeights experts;
    ops::MoeLayer next;

    explicit RoutedLayer(DType type = DType::q4_k, int64_t columns = kWide) : wide(columns) {
        const auto stack = [&](int64_t rows, int64_t cols, uint64_t seed) {
            const RandomWeight one({type}, rows, cols, seed);
            return op.experts(std::vector<Weight>(kExperts, one.w));
        };
        o = place_random(op, {type}, kHidden, wide, 1);
        router = op.weight(host_router.w);
        shared_gate = place_random(op, {type}, kFf, kHidden, 21);
        shared_up = place_random(op, {type}, kFf, kHidden, 22);
        shared_down = place_random(op, {type}, kHidden, kFf, 23);
        experts = {stack(kFf, kHidden, 2), stack(kFf, kHidden, 3), stack(kHidden, kFf, 4)};
        next = {.norm = {op.floats(norm_weights), 1e-6f},
                .router = {&router, op.floats(normals(kExperts, 26, 0.1f)), 8, 2.5f, true},
                .experts = &experts,
                .shared = {&shared_gate, &shared_up, &shared_down}};
        if (wide != 4096) return;
        share = place_random(op, {DType::bf16}, 1, kHidden, 20);  // as Qwen3.5-35B-A3B
        next.router = {.w = &router, .bias = {}, .top_k = 8, .softmax = true};
        next.shared.share = &share;
    }
    /// y, the stream behind o, logits, experts, weights, the stream behind the layer; of rows of o's input.
    Results run(const std::vector<float>& rows, float stream, bool told) {
        op.poison();
        const int64_t n = std::ssize(rows) / wide;
        Tensor x = op.tensor(std::vector<float>(static_cast<size_t>(n * kHidden), stream), {n, kHidden});
        Results out = {values_of(ops::matmul_add(op.ctx, o, op.tensor(rows, {n, wide}), x, told ? &next : nullptr)),
                       values_of(x)};
        const ops::MoeResult r = ops::moe_add(op.ctx, x, next.norm, next.router, experts, next.shared);
        std::vector<float> ids;
        for (const int32_t e : values_of<int32_t>(r.routing.experts)) ids.push_back(static_cast<float>(e));
        out.insert(out.end(), {values_of(r.logits), ids, values_of(r.routing.weights), values_of(r.y), values_of(x)});
        RouterWords words;
        op.ctx.gpu->to_host(&words, op.ctx.gpu->sums(), sizeof(words));
        const uint64_t* const sums = words.sums[0];
        EXPECT_TRUE(op.ctx.gpu->sums_open ||  // nobody has asked for them since a step failed
                    std::all_of(sums, sums + sizeof(words.sums) / sizeof(*sums), [](uint64_t w) { return w == 0; }));
        return out;
    }
    /// The product of a step that fails behind it.
    void lose(const std::vector<float>& rows) {
        const int64_t n = std::ssize(rows) / wide;
        Tensor lost = op.tensor(std::vector<float>(static_cast<size_t>(n * kHidden), 1.0f), {n, kHidden});
        ops::matmul_add(op.ctx, o, op.tensor(rows, {n, wide}), lost, &next);
    }
};

void expect_equal(const Results& a, const Results& b, const std::string& what) {
    ASSERT_EQ(a.size(), b.size());
    for (size_t k = 0; k < a.size(); ++k) Company::expect_same(a[k], b[k], fmt::format("{}, result {}", what, k));
}

TEST(DecodeRouter, a_row_has_the_same_bits_wherever_its_router_runs) {
    RT_GPU_ONLY();
    struct Kind {
        DType type;
        int64_t wide;
    };
    for (const auto& [type, wide] : brief<Kind>({{DType::q4_k, 6144},
                                                 {DType::q8_0, 8192},
                                                 {DType::q4_k, 4096},
                                                 {DType::q4_k, 8192},
                                                 {DType::iq3_s, 6144},
                                                 {DType::q8_0, 4096}},
                                                3)) {
        RoutedLayer layer(type, wide);
        const int64_t many = type != DType::q4_k ? 9 : wide == 6144 ? 256 : wide == 4096 ? 66 : 9;
        const int64_t most = fewer<int64_t>(many, 9);
        const std::vector<float> x = test::random_rows(most, wide, 31);
        std::vector<Results> alone;
        for (int64_t r = 0; r < most; r += 3) {
            const std::vector<float> row(x.begin() + r * wide, x.begin() + (r + 1) * wide);
            alone.push_back(layer.run(row, 0.75f, true));
            expect_equal(alone.back(), layer.run(row, 0.75f, false), fmt::format("row {} in a kernel of its own", r));
        }
        for (const int64_t n : brief<int64_t>({2, 3, 4, 5, 8, 16, 63, 64, 65, 256, 9}, 2)) {
            if (n > most) continue;
            const Results all = layer.run({x.begin(), x.begin() + n * wide}, 0.75f, true);
            expect_equal(all, layer.run({x.begin(), x.begin() + n * wide}, 0.75f, false), fmt::format("{} rows", n));
            for (int64_t r = 0; r < n; r += 3)
                for (size_t k = 0; k < all.size(); ++k) {
                    const std::vector<float>& one = alone[static_cast<size_t>(r / 3)][k];
                    const auto first = all[k].begin() + r * std::ssize(one);
                    expect_same_bits(one, std::vector<float>(first, first + std::ssize(one)),
                                     fmt::format("row {} of {}, result {}", r, n, k).c_str());
                }
        }
    }
}

std::vector<float> repeated(const std::vector<float>& row, int64_t n) {
    std::vector<float> rows;
    for (int64_t r = 0; r < n; ++r) rows.insert(rows.end(), row.begin(), row.end());
    return rows;
}

/// A row whose logits are NaN fails, and leaves nothing to the row behind it.
TEST(DecodeRouter, rows_without_sums_have_nan_logits_and_the_next_row_none_of_it) {
    RT_GPU_ONLY();
    RoutedLayer layer;
    const int64_t wide = RoutedLayer::kWide;
    const std::vector<float> x = test::random_rows(1, wide, 32);
    const Results before = layer.run(x, 0.75f, true);
    for (const float v : {NAN, INFINITY, 1e30f, 1e8f}) {
        std::vector<float> first;
        for (const int64_t n : {1, 2, 3, 4, 9}) {
            const std::vector<float> rows = repeated(x, n);
            for (const bool told : {true, false}) {
                const Results odd = layer.run(rows, v, told);
                EXPECT_TRUE(std::any_of(odd[2].begin(), odd[2].end(), [](float l) { return std::isnan(l); })) << v;
                if (v != 1e8f) {
                    EXPECT_TRUE(std::isnan(odd.back()[0])) << v << ", " << n << " rows";
                }
                if (!first.empty()) Company::expect_same(first, {odd[2].begin(), odd[2].begin() + 256}, "logits");
                first.assign(odd[2].begin(), odd[2].begin() + 256);
                expect_equal(layer.run(x, 0.75f, told), before, fmt::format("behind {} rows of {}", n, v));
            }
        }
    }
}

TEST(DecodeRouter, a_row_without_sums_leaves_those_beside_it_alone) {
    RT_GPU_ONLY();
    RoutedLayer layer;
    const int64_t wide = RoutedLayer::kWide;
    const std::vector<float> x = test::random_rows(1, wide, 35);
    const Results alone = layer.run(x, 0.75f, true);
    for (const int64_t n : {2, 3, 4, 9}) {
        std::vector<float> rows = repeated(x, n);
        rows[static_cast<size_t>(wide)] = NAN;
        const Results all = layer.run(rows, 0.75f, true);
        for (size_t k = 0; k < all.size(); ++k) {
            const int64_t width = std::ssize(alone[k]);
            if (k == 2) {
                EXPECT_TRUE(std::isnan(all[k][static_cast<size_t>(width)])) << n << " rows";
            }
            for (int64_t r = 0; r < n; ++r) {
                if (r == 1) continue;
                const auto first = all[k].begin() + r * width;
                expect_same_bits(alone[k], std::vector<float>(first, first + width),
                                 fmt::format("row {} of {}, result {}", r, n, k).c_str());
            }
        }
    }
}

/// A step that fails between the product and the sparse layer.
TEST(DecodeRouter, words_that_nobody_read_do_not_reach_the_next_row) {
    RT_GPU_ONLY();
    RoutedLayer layer;
    const std::vector<float> all = test::random_rows(4, RoutedLayer::kWide, 34);
    const auto first = [&](int64_t n) { return std::vector<float>(all.begin(), all.begin() + n * RoutedLayer::kWide); };
    for (const int64_t n : {1, 2, 4})
        for (const bool told : {true, false}) {
            const Results before = layer.run(first(n), 0.75f, told);
            for (const int64_t lost : {1, 3, 4}) {
                layer.lose(first(lost));
                expect_equal(layer.run(first(n), 0.75f, told), before,
                             fmt::format("{} rows behind {}, told {}", n, lost, told));
            }
        }
}

/// Chains of eight, half a unit a share, the norm's weights; r of squares in chains of eight and eight levels of pairs,
/// of which a root halves the error, and its four roundings; three of the logit. u = 2^-24.
TEST(DecodeRouter, logits_are_as_near_as_chains_of_eight_and_fixed_point_make_them) {
    RT_GPU_ONLY();
    RoutedLayer layer;
    const int64_t wide = RoutedLayer::kWide, d = RoutedLayer::kHidden;
    const std::vector<float> w = layer.host_router.dequantized();
    for (const float stream : {0.0f, 0.75f, 100.0f}) {
        const Results r = layer.run(test::random_rows(1, wide, 33), stream, true);
        const std::vector<float>&x = r[1], &logits = r[2];
        double squares = 0;
        for (const float v : x) squares += double{v} * v;
        const double scale = 1 / std::sqrt(squares / static_cast<double>(d) + 1e-6);
        const double scale_error = kUnitF32 * (0.5 * (8 + 8) + 4);
        BoundCheck check;
        double old_bound = 0, bound = 0;
        for (size_t e = 0; e < logits.size(); ++e) {
            double value = 0, magnitude = 0;
            for (size_t c = 0; c < x.size(); ++c) {
                const double product = double{w[e * static_cast<size_t>(d) + c]} * layer.norm_weights[c] * x[c] * scale;
                value += product;
                magnitude += std::abs(product);
            }
            const double error = (1 + 8 + 1) * kUnitF32 * magnitude + 128 * 0x1p-29 * scale +
                                 (scale_error + 3 * kUnitF32) * std::abs(value);
            check.add(logits[e], value, error);
            bound = std::max(bound, error);
            old_bound = std::max(old_bound, (static_cast<double>(d) / 16 + 8) * kUnitF32 * magnitude);
        }
        EXPECT_LE(check.worst(), 1.0) << "stream " << stream;
        EXPECT_LT(bound, old_bound) << "stream " << stream;  // of the products that were here before
    }
}

/// The kernels of a chain start before their predecessors end: the same bits in every replay.
TEST(DecodeRouter, replays_of_a_graph_of_layers_agree) {
    RT_GPU_ONLY();
    RoutedLayer layer;
    OpContext& op = layer.op;
    const Weight q = place_random(op, {DType::q4_k}, RoutedLayer::kWide, RoutedLayer::kHidden, 41);
    const Weight* const group[] = {&q};
    struct Step {
        int64_t rows;
        bool told;
    };
    for (const auto& [n, told] : brief<Step>({{1, true}, {2, true}, {4, true}, {3, true}, {1, false}, {2, false}}, 3)) {
        op.poison();
        const Tensor source = op.tensor(test::random_rows(n, RoutedLayer::kHidden, 42), {n, RoutedLayer::kHidden});
        Tensor x = op.ctx.alloc(DType::f32, {n, RoutedLayer::kHidden});
        std::vector<Tensor> results;
        const auto step = [&, n = n, told = told] {
            op.ctx.gpu->copy(x.data, source.data, n * RoutedLayer::kHidden * int64_t{sizeof(float)});
            results.clear();
            for (int l = 0; l < fewer(4, 2); ++l) {
                const Tensor wide = ops::norm_matmul_group(op.ctx, x, layer.next.norm, group)[0];
                ops::matmul_add(op.ctx, layer.o, wide, x, told ? &layer.next : nullptr);
                const ops::MoeResult r =
                    ops::moe_add(op.ctx, x, layer.next.norm, layer.next.router, layer.experts, layer.next.shared);
                results.insert(results.end(), {r.logits, r.routing.weights, r.y});
            }
        };
        expect_replays_agree(op, fmt::format("{} rows, {}", n, told ? "told" : "not told"), results, step);
    }
}

}  // namespace
}  // namespace riptide
