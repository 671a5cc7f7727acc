// Expanding weights, sorting rows by expert, the router and whole sparse layers of the prefill family, in parts.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "ops/cuda/backend.h"
#include "ops/cuda/linear/gemm/gemm.h"
#include "ops/cuda/moe/moe_prefill.h"
#include "ops/cuda/moe/plan.h"
#include "ops/norm.h"
#include "tensor/half.h"
#include "tests/ops/op_fixture.h"
#include "tests/ops/prefill_parts.h"
#include "tests/quant/random_weight.h"

namespace riptide {
namespace {

using namespace ops::cuda::prefill;
using test::Dot;
using test::dot;
using test::HostPlan;
using test::RandomWeight;
using test::WeightKind;

class PrefillExpand : public ::testing::TestWithParam<WeightKind> {};

TEST_P(PrefillExpand, gives_the_rounded_values_of_the_file) {
    RT_GPU_ONLY();
    const int64_t granule = GetParam().granule();
    for (const int64_t cols : {granule >= 32 ? std::max<int64_t>(granule, 96) / granule * granule : 96 + granule,
                               granule >= 32 ? 768 : 704 + granule})
        for (const RowOrder order : {RowOrder::f32, RowOrder::swiglu}) {
            const RandomWeight m(GetParam(), 71, cols, 3);
            OpContext op;
            const Weight w = op.weight(m.w);
            const int64_t k = round_up(cols, 64), begin = 3, rows = 68, all = scratch_rows(order, rows);
            Expansion job;
            job.w = w;
            job.row_begin = static_cast<int>(begin);
            job.rows = static_cast<int>(rows);
            job.k = static_cast<int>(k);
            job.order = order;
            job.which = order == RowOrder::swiglu ? 1 : 0;
            uint16_t* b = upload(op, std::vector<uint16_t>(static_cast<size_t>(all * k), 0x1234));
            job.b = b;
            expand(*op.ctx.gpu, job);
            const std::vector<uint16_t> got = download(op, b, all * k);
            std::vector<uint16_t> expected(got.size(), 0x1234);
            std::vector<float> row(static_cast<size_t>(cols));
            for (int64_t r = 0; r < rows; ++r) {
                dequantize_row(m.w, begin + r, row.data());
                uint16_t* to = expected.data() + scratch_row(order, job.which, static_cast<int>(r)) * k;
                std::fill(to, to + k, uint16_t{0});
                for (int64_t c = 0; c < cols; ++c) {
                    float v = row[static_cast<size_t>(c)];
                    if (w.dtype == DType::f16 && m.w.dtype != DType::f16) v = f16_to_f32(f32_to_f16(v));
                    to[c] = f32_to_bf16(v);
                }
            }
            for (size_t i = 0; i < got.size(); ++i) {
                const bool zeros = (got[i] | expected[i]) == 0x8000;  // of two signs
                ASSERT_TRUE(zeros || got[i] == expected[i])
                    << cols << " columns, element " << i << ": " << got[i] << " != " << expected[i];
            }
        }
}

INSTANTIATE_TEST_SUITE_P(all, PrefillExpand, ::testing::ValuesIn(test::all_weight_kinds()),
                         [](const auto& kind) { return kind.param.name(); });

TEST(PrefillExpand, together_as_one_by_one) {
    RT_GPU_ONLY();
    const int64_t k = 768;
    OpContext op(1, int64_t{16} << 20);
    std::vector<RandomWeight> owned;
    std::vector<Expansion> jobs;
    int64_t used = 0;
    for (const DType type : {DType::q4_k, DType::q6_k, DType::q8_0, DType::q5_k, DType::q4_k, DType::q6_k, DType::q4_k,
                             DType::q5_k, DType::q4_k, DType::q6_k, DType::q5_k}) {
        const auto rows = static_cast<int64_t>(7 + 23 * jobs.size());
        owned.emplace_back(WeightKind{type}, rows, k, jobs.size());
        Expansion job;
        job.w = op.weight(owned.back().w);
        job.row_begin = static_cast<int>(jobs.size() % 3);
        job.rows = static_cast<int>(rows) - job.row_begin;
        job.k = static_cast<int>(k);
        jobs.push_back(job);
        used += scratch_rows(RowOrder::f32, job.rows);
    }
    std::vector<uint16_t> results[2];
    for (const bool together : {false, true}) {
        uint16_t* b = upload(op, std::vector<uint16_t>(static_cast<size_t>(used * k), 0x1234));
        int64_t at = 0;
        for (Expansion& job : jobs) {
            job.b = b + at * k;
            at += scratch_rows(RowOrder::f32, job.rows);
            if (!together) expand(*op.ctx.gpu, job);
        }
        if (together) expand(*op.ctx.gpu, jobs);
        results[together ? 1 : 0] = download(op, b, used * k);
    }
    EXPECT_EQ(results[0], results[1]);
}

TEST(PrefillInput, is_the_norm_rounded_and_padded) {
    RT_GPU_ONLY();
    for (const int64_t d : {40, 64, 97, 2048, 2052, 2056, 8192, 8200}) {
        OpContext op;
        const int64_t n = 5, k = round_up(d, 64);
        const Tensor x = op.tensor(normals(static_cast<size_t>(n * d), 4, 3.0f), {n, d});
        const std::span<const float> weight = op.floats(normals(static_cast<size_t>(d), 5));
        const std::vector<float> h = values_of(ops::rms_norm(op.ctx, x, weight, 1e-6f));
        for (const bool norm : {true, false}) {
            const std::vector<float> expected = norm ? h : values_of(x);
            uint16_t* bf16 = upload(op, std::vector<uint16_t>(static_cast<size_t>(n * k), 0x7FC0));
            const Tensor f32 = op.ctx.alloc(DType::f32, {n, d});
            to_bf16(*op.ctx.gpu, x, norm ? weight.data() : nullptr, 1e-6f, bf16, k, f32.row(0));
            const std::vector<uint16_t> got = download(op, bf16, n * k);
            expect_same_bits(values_of(f32), expected, "f32");
            for (int64_t r = 0; r < n; ++r)
                for (int64_t c = 0; c < k; ++c)
                    ASSERT_EQ(got[static_cast<size_t>(r * k + c)],
                              c < d ? f32_to_bf16(expected[static_cast<size_t>(r * d + c)]) : 0)
                        << r << " " << c;
        }
    }
}

TEST(PrefillSort, is_a_stable_sort_by_expert) {
    RT_GPU_ONLY();
    for (const int64_t experts : brief<int64_t>({1, 256, 7, 1024}, 2))
        for (const int64_t n : fewer<std::vector<int64_t>>({1, 31, 256, 257, 1024, 1025, 5000}, {1, 1025}))
            for (const int skew : {0, 1, 2})
                for (const bool shared : {false, true}) {
                    // Few of one kind with many of the other; all are one kernel.
                    if (brief_counts() && ((experts > 1) == (n > 1) || shared != (skew == 1))) continue;
                    const int64_t k = 8;
                    std::mt19937_64 random(static_cast<uint64_t>(n + experts));
                    std::vector<int32_t> chosen(static_cast<size_t>(n * k));
                    for (int32_t& e : chosen) {
                        const auto any = static_cast<int32_t>(random() % static_cast<uint64_t>(experts));
                        e = skew == 0 ? any : skew == 1 ? any / 2 : static_cast<int32_t>(experts - 1);
                    }
                    OpContext op(1, int64_t{8} << 20);
                    const std::vector<float> weights = normals(chosen.size(), 3);
                    const ops::Routing routing{k, op.int_tensor(chosen, {n, k}), op.tensor(weights, {n, k})};
                    const SortedRouting sorted = sort_routing(op.ctx, routing, experts, shared);

                    std::vector<int32_t> order(chosen.size()), slot_of(chosen.size());
                    std::iota(order.begin(), order.end(), 0);
                    const auto expert_at = [&](int32_t i) { return chosen[static_cast<size_t>(i)]; };
                    std::stable_sort(order.begin(), order.end(),
                                     [&](int32_t a, int32_t b) { return expert_at(a) < expert_at(b); });
                    std::vector<int> counts(static_cast<size_t>(experts) + 1);
                    for (size_t i = 0; i < order.size(); ++i) {
                        slot_of[static_cast<size_t>(order[i])] = static_cast<int32_t>(i);
                        ++counts[static_cast<size_t>(expert_at(order[i]))];
                    }
                    counts.back() = shared ? static_cast<int>(n) : 0;
                    const HostPlan plan(counts, true);
                    EXPECT_EQ(download(op, sorted.slot_of, n * k), slot_of);
                    EXPECT_EQ(download(op, sorted.plan.row_first, experts + 2), plan.row_first);
                    EXPECT_EQ(download(op, sorted.plan.tile_first, experts + 2), plan.tile_first);
                    EXPECT_EQ(download(op, sorted.plan.tile_expert, plan.tile_first.back()), plan.tile_expert);
                }
}

TEST(PrefillRouter, is_f32_and_does_not_see_other_rows) {
    RT_GPU_ONLY();
    for (const DType type : {DType::f32, DType::bf16, DType::q8_0})
        for (const int64_t experts : fewer<std::vector<int64_t>>({5, 64, 256}, {5, 64}))
            for (const int64_t cols : {64, 2048}) {
                if (brief_counts() && (cols == 64) != (experts == 64)) continue;
                const RandomWeight m({type}, experts, cols, 7);
                const int64_t n = cols == 64 ? 2100 : fewer(200, 20);  // many rows have a kernel of their own
                OpContext op(1, int64_t{16} << 20);
                const Weight w = op.weight(m.w);
                const std::vector<float> values = normals(static_cast<size_t>(n * cols), 8), rows = m.dequantized();
                const Tensor h = op.tensor(values, {n, cols});
                Tensor logits = op.ctx.alloc(DType::f32, {n, experts});
                router_logits(op.ctx, w, h.row(0), n, logits);
                const std::vector<float> got = values_of(logits);
                BoundCheck check;
                for (int64_t r = 0; r < n; ++r)
                    for (int64_t e = 0; e < experts; ++e) {
                        const Dot d = dot(values.data() + r * cols, rows.data() + e * cols, cols);
                        check.add(got[static_cast<size_t>(r * experts + e)], d.value,
                                  static_cast<double>(cols) * kUnitF32 * d.magnitude);
                    }
                EXPECT_LE(check.worst(), 1.0) << dtype_name(type) << " " << experts << " x " << cols;
                for (const int64_t count : brief<int64_t>({7, 1, 129}, 1)) {
                    if (count > n) continue;
                    Tensor some = op.ctx.alloc(DType::f32, {count, experts});
                    router_logits(op.ctx, w, h.row(n - count), count, some);
                    EXPECT_TRUE(same_bits(values_of(some).data(), got.data() + (n - count) * experts,
                                          static_cast<size_t>(count * experts)));
                }
            }
}

/// Steps of many and of few rows have kernels of their own, or tiles of another width; blocks have several tiles.
TEST(PrefillRouter, a_row_has_the_same_bits_in_steps_of_any_number) {
    RT_GPU_ONLY();
    for (const DType type : {DType::bf16, DType::f32})
        for (const int64_t experts : {5, 72, 256})
            for (const int64_t cols : {64, 320, 2048}) {  // 1, 5 and 32 stages of 64
                if (brief_counts() && (cols == 320) != (experts == 256)) continue;
                const RandomWeight m({type}, experts, cols, 7);
                const int64_t n = cols == 320 && experts == 256 ? fewer(4300, 700) : fewer(200, 70);
                OpContext op(1, int64_t{64} << 20);
                const Weight w = op.weight(m.w);
                const Tensor h = op.tensor(normals(static_cast<size_t>(n * cols), 8), {n, cols});
                Tensor logits = op.ctx.alloc(DType::f32, {n, experts});
                router_logits(op.ctx, w, h.row(0), n, logits);
                const std::vector<float> all = values_of(logits);
                const auto expect_last = [&](const Tensor& some, const std::string& what) {
                    EXPECT_TRUE(same_bits(values_of(some).data(), all.data() + (n - some.rows()) * experts,
                                          static_cast<size_t>(some.elements())))
                        << dtype_name(type) << " " << experts << " x " << cols << ", " << what;
                };
                for (const int64_t count : {1, 7, 63, 64, 65, 129, 512, 600, 1100, 2100, 2200, 4200}) {
                    if (count > n) continue;
                    Tensor some = op.ctx.alloc(DType::f32, {count, experts});
                    router_logits(op.ctx, w, h.row(n - count), count, some);
                    expect_last(some, std::to_string(count) + " rows");
                }
                namespace moe = ops::cuda::moe;
                if (moe::prefill_router(ops::cuda::chip_of(*op.ctx.gpu), w) != moe::Router::prefill_sm90) continue;
                for (const int width : {16, 32, 64, 128}) {
                    const Tensor some = op.ctx.alloc(DType::f32, {n, experts});
                    router_logits_sm90(*op.ctx.gpu, w, h.row(0), n, some.row(0), width);
                    expect_last(some, "tiles of " + std::to_string(width));
                }
            }
}

/// A small sparse layer.
struct SmallSparseLayer {
    static constexpr int64_t kHidden = 256, kWidth = 256, kExperts = 12, kTopK = 3;
    std::vector<RandomWeight> owned;
    ops::ExpertWeights placed;
    RandomWeight router{{DType::f32}, kExperts, kHidden, 91};
    std::vector<RandomWeight> shared;
    RandomWeight share{{DType::bf16}, 1, kHidden, 90};
    Weight placed_router, placed_shared[3], placed_share;
    std::span<const float> norm;
    bool softmax = false;  // and the shared expert counts in part

    /// Types of gate and up, of down, and of the shared expert's down.
    explicit SmallSparseLayer(OpContext& op, DType first = DType::q8_0, DType down = DType::q8_0,
                              DType shared_down = DType::q8_0) {
        std::vector<Weight> all[3];
        for (int64_t i = 0; i < 3 * kExperts; ++i)
            owned.emplace_back(WeightKind{i % 3 == 2 ? down : first}, i % 3 == 2 ? kHidden : kWidth,
                               i % 3 == 2 ? kWidth : kHidden, static_cast<uint64_t>(i));
        shared.emplace_back(WeightKind{first}, kWidth, kHidden, 92);
        shared.emplace_back(WeightKind{first}, kWidth, kHidden, 93);
        shared.emplace_back(WeightKind{shared_down}, kHidden, kWidth, 94);
        for (size_t i = 0; i < owned.size(); ++i) all[i % 3].push_back(owned[i].w);
        placed = {op.experts(all[0]), op.experts(all[1]), op.experts(all[2])};
        placed_router = op.weight(router.w);
        placed_share = op.weight(share.w);
        for (size_t i = 0; i < 3; ++i) placed_shared[i] = op.weight(shared[i].w);
        norm = op.floats(normals(kHidden, 95));
    }
    ops::MoeResult operator()(OpContext& op, Tensor& x) const {
        return ops::moe_add(
            op.ctx, x, {norm, 1e-6f}, {&placed_router, {}, kTopK, softmax ? 1.0f : 2.5f, true, softmax}, placed,
            {&placed_shared[0], &placed_shared[1], &placed_shared[2], softmax ? &placed_share : nullptr});
    }
};

void expect_chunks_do_not_matter(DType first, DType down, DType shared_down, bool softmax = false) {
    const int64_t n = fewer(700, 100);
    const std::vector<float> values = test::random_rows(n, SmallSparseLayer::kHidden, 96);
    OpContext op(1, int64_t{64} << 20);
    op.ctx.family = Family::prefill;
    SmallSparseLayer layer(op, first, down, shared_down);
    layer.softmax = softmax;
    Tensor x = op.tensor(values, {n, SmallSparseLayer::kHidden});
    const std::vector<float> y = values_of(layer(op, x).y), after = values_of(x);
    for (const int64_t chunk : fewer<std::vector<int64_t>>({1, 7, 64, 129, 500}, {1, 64}))
        for (int64_t begin = 0; begin < n; begin += std::max<int64_t>(chunk, 61)) {
            const int64_t count = std::min(chunk, n - begin), size = count * SmallSparseLayer::kHidden;
            op.poison();
            const auto* rows = values.data() + begin * SmallSparseLayer::kHidden;
            Tensor part = op.tensor({rows, rows + size}, {count, SmallSparseLayer::kHidden});
            const std::vector<float> some = values_of(layer(op, part).y);
            ASSERT_TRUE(same_bits(some.data(), y.data() + begin * SmallSparseLayer::kHidden, some.size()))
                << chunk << " " << begin;
            ASSERT_TRUE(
                same_bits(values_of(part).data(), after.data() + begin * SmallSparseLayer::kHidden, some.size()));
        }
}

TEST(PrefillMoe, chunks_do_not_change_a_bit) {
    RT_GPU_ONLY();
    expect_chunks_do_not_matter(DType::q8_0, DType::q8_0, DType::q8_0);
    expect_chunks_do_not_matter(DType::q4_k, DType::q6_k, DType::q6_k);
    expect_chunks_do_not_matter(DType::q5_k, DType::q4_k, DType::q8_0);  // the shared expert by itself
    expect_chunks_do_not_matter(DType::q4_k, DType::q6_k, DType::q6_k, true);
    expect_chunks_do_not_matter(DType::q5_k, DType::q4_k, DType::q8_0, true);
}

TEST(PrefillMoe, a_graph_gives_the_same_bits) {
    RT_GPU_ONLY();
    const int64_t n = 150;
    OpContext op(1, int64_t{64} << 20);
    op.ctx.family = Family::prefill;
    const SmallSparseLayer layer(op);
    const std::vector<float> values = test::random_rows(n, SmallSparseLayer::kHidden, 97);
    Tensor x = op.tensor(values, {n, SmallSparseLayer::kHidden});
    const std::vector<float> y = values_of(layer(op, x).y);
    op.poison();
    x = op.tensor(values, {n, SmallSparseLayer::kHidden});
    ops::MoeResult result;
    GpuGraph graph(*op.ctx.gpu, [&] { result = layer(op, x); });
    graph.launch();
    expect_same_bits(values_of(result.y), y, "graph");
}

}  // namespace
}  // namespace riptide
