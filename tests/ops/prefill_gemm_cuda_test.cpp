// The parts of the prefill family's products, each against its definition. The ops themselves: matmul_test, moe_test.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>

#include "ops/cuda/backend.h"
#include "ops/cuda/linear/gemm/dequantize_bf16.cuh"
#include "ops/cuda/linear/gemm/gemm.h"
#include "ops/cuda/moe/moe_prefill.h"
#include "ops/norm.h"
#include "tensor/half.h"
#include "tests/ops/op_fixture.h"
#include "tests/ops/prefill_parts.h"
#include "tests/quant/random_weight.h"

namespace riptide {
namespace {

using namespace ops::cuda::prefill;
using namespace test;

// Products of bf16 values are exact; a tensor core may cut off each of k sums: k 2^-23 of the magnitude.
TEST(PrefillGemm, equals_the_product_in_double) {
    RT_GPU_ONLY();
    struct Shape {
        int rows, columns, k;
    };
    for (const Shape s : {Shape{1, 64, 64},
                          {7, 97, 64},
                          {63, 256, 128},
                          {64, 257, 320},
                          {65, 40, 2048},
                          {128, 300, 192},
                          {129, 512, 256},
                          {300, 700, 512},
                          {2500, 33, 128}}) {
        OpContext op(1, int64_t{64} << 20);
        const std::vector<float> a = rounded(normals(static_cast<size_t>(s.rows) * s.k, 1)),
                                 w = rounded(normals(static_cast<size_t>(s.columns) * s.k, 2));
        const std::vector<float> before = normals(static_cast<size_t>(s.rows) * s.columns, 3);
        const auto n = static_cast<int>(scratch_rows(RowOrder::f32, s.columns));
        Tensor y =
            op.tensor(std::vector<float>(before.size() + 64, kUntouched), {static_cast<int64_t>(before.size()) + 64});
        const Tensor x = op.tensor(before, {s.rows, s.columns});
        OutF32 out;
        out.add(y.row(0), 0, s.columns, s.columns, x.row(0));
        gemm(*op.ctx.gpu,
             {upload(op, bits_of(a)), upload(op, in_order(w, s.columns, s.k, RowOrder::f32, 0)), s.rows, n, s.k}, out);
        const std::vector<float> got = values_of(y), sum = values_of(x);
        BoundCheck check;
        for (int r = 0; r < s.rows; ++r)
            for (int c = 0; c < s.columns; ++c) {
                const size_t at = static_cast<size_t>(r) * s.columns + c;
                const Dot d = dot(a.data() + int64_t{r} * s.k, w.data() + int64_t{c} * s.k, s.k);
                check.add(got[at], d.value, s.k * 0x1p-23 * d.magnitude);
                ASSERT_EQ(sum[at], before[at] + got[at]);
            }
        EXPECT_LE(check.worst(), 1.0) << s.rows << " x " << s.columns << " x " << s.k;
        for (size_t i = before.size(); i < got.size(); ++i) ASSERT_EQ(got[i], kUntouched) << "behind the end";
    }
}

TEST(PrefillGemm, columns_go_to_their_tensors) {
    RT_GPU_ONLY();
    const int rows = 70, k = 128;
    const int widths[] = {64, 48, 1, 130, 256};
    OpContext op(1, int64_t{16} << 20);
    const std::vector<float> a = rounded(normals(size_t{rows} * k, 1));
    std::vector<uint16_t> b;
    std::vector<std::vector<float>> weights;
    std::vector<Tensor> results;
    OutF32 out;
    int begin = 0;
    for (const int width : widths) {
        weights.push_back(rounded(normals(static_cast<size_t>(width) * k, static_cast<uint64_t>(width))));
        const std::vector<uint16_t> part = in_order(weights.back(), width, k, RowOrder::f32, 0);
        b.insert(b.end(), part.begin(), part.end());
        results.push_back(op.ctx.alloc(DType::f32, {rows, width}));
        out.add(results.back().row(0), begin, width, width);
        begin += static_cast<int>(round_up(width, 64));
    }
    gemm(*op.ctx.gpu, {upload(op, bits_of(a)), upload(op, b), rows, begin, k}, out);
    for (size_t i = 0; i < results.size(); ++i) {
        const std::vector<float> got = values_of(results[i]);
        BoundCheck check;
        for (int r = 0; r < rows; ++r)
            for (int c = 0; c < widths[i]; ++c) {
                const Dot d = dot(a.data() + int64_t{r} * k, weights[i].data() + int64_t{c} * k, k);
                check.add(got[static_cast<size_t>(r) * widths[i] + c], d.value, k * 0x1p-23 * d.magnitude);
            }
        EXPECT_LE(check.worst(), 1.0) << "piece " << i;
    }
}

// Few rows take narrower tiles than many (on a chip of some 130 multiprocessors).
TEST(PrefillGemm, a_sum_does_not_see_the_width_of_its_tile) {
    RT_GPU_ONLY();
    const int rows = fewer(2048, 300), columns = fewer(8448, 2112), k = 192;
    OpContext op(1, int64_t{128} << 20);
    uint16_t* a = upload(op, bits_of(normals(static_cast<size_t>(rows) * k, 1)));
    const uint16_t* b = upload(op, bits_of(normals(static_cast<size_t>(columns) * k, 2)));
    const Tensor all = op.ctx.alloc(DType::f32, {rows, columns});
    OutF32 out;
    out.add(all.row(0), 0, columns, columns);
    gemm(*op.ctx.gpu, {a, b, rows, columns, k}, out);
    for (const int count : {1, 129}) {
        const int first = rows - count - 3;
        const Tensor some = op.ctx.alloc(DType::f32, {count, columns});
        OutF32 to;
        to.add(some.row(0), 0, columns, columns);
        gemm(*op.ctx.gpu, {a + int64_t{first} * k, b, count, columns, k}, to);
        EXPECT_EQ(download(op, some.row(0), some.elements()), download(op, all.row(first), some.elements()));
    }
}

TEST(PrefillGemm, experts_multiply_their_own_slots_in_any_division) {
    RT_GPU_ONLY();
    const std::vector<int> counts = {0, 5, 128, 0, 200, 1, 64, 0};
    const int columns = 96, k = 128, experts = static_cast<int>(counts.size());
    const HostPlan plan(counts);
    const int slots = plan.row_first.back();
    const std::vector<float> a = rounded(normals(static_cast<size_t>(slots) * k, 1));
    std::vector<std::vector<float>> gate, up;
    for (int e = 0; e < experts; ++e) {
        gate.push_back(rounded(normals(size_t{columns} * k, static_cast<uint64_t>(10 + e), 0.1f)));
        up.push_back(rounded(normals(size_t{columns} * k, static_cast<uint64_t>(50 + e), 0.1f)));
    }
    for (const int step : {1, 3, experts}) {
        OpContext op(1, int64_t{16} << 20);
        const auto n = static_cast<int>(scratch_rows(RowOrder::swiglu, columns));
        const int64_t stride = round_up(columns, 64);
        const Tensor act = op.ctx.alloc(DType::bf16, {slots, stride});
        const GroupPlan device = plan.upload_to(op);
        uint16_t* inputs = upload(op, bits_of(a));
        for (int begin = 0; begin < experts; begin += step) {
            const int end = std::min(experts, begin + step);
            std::vector<uint16_t> b;
            for (int e = begin; e < end; ++e) {
                const std::vector<uint16_t> one =
                    in_order(up[static_cast<size_t>(e)], columns, k, RowOrder::swiglu, 1,
                             in_order(gate[static_cast<size_t>(e)], columns, k, RowOrder::swiglu, 0));
                b.insert(b.end(), one.begin(), one.end());
            }
            gemm(*op.ctx.gpu, {inputs, upload(op, b), slots, n, k, device, begin, end},
                 OutSwiglu{act.row<uint16_t>(0), columns, stride});
        }
        const std::vector<uint16_t> got = download(op, act.row<uint16_t>(0), act.elements());
        BoundCheck check;
        for (int e = 0; e < experts; ++e)
            for (int r = plan.row_first[static_cast<size_t>(e)]; r < plan.row_first[static_cast<size_t>(e) + 1]; ++r)
                for (int64_t c = 0; c < stride; ++c) {
                    const float value = bf16_to_f32(got[static_cast<size_t>(r * stride + c)]);
                    if (c >= columns) {
                        ASSERT_EQ(value, 0.0f);
                        continue;
                    }
                    const float* in = a.data() + int64_t{r} * k;
                    const Dot g = dot(in, gate[static_cast<size_t>(e)].data() + c * k, k),
                              u = dot(in, up[static_cast<size_t>(e)].data() + c * k, k);
                    const double silu = g.value / (1 + std::exp(-g.value)), sum = k * 0x1p-23;
                    // |silu'| < 1.1; exp, sum, quotient and product round less than 16 times; then bf16, whose eight
                    // digits are 2^-7 apart at 1: half of that is off by 2^-8.
                    const double off = 1.1 * sum * g.magnitude * (std::abs(u.value) + sum * u.magnitude) +
                                       std::abs(silu) * sum * u.magnitude + 16 * kUnitF32 * std::abs(silu * u.value);
                    check.add(value, silu * u.value, off + 0x1p-8 * (std::abs(silu * u.value) + off));
                }
        EXPECT_LE(check.worst(), 1.0) << step << " experts at a time";
    }
}

/// A stack of experts' matrices of one type, and the shared expert's behind it.
struct Stack {
    std::vector<RandomWeight> owned;
    std::vector<Weight> placed;
    Weight shared;

    /// odd: rows of every second expert whose offsets are not exact (exact_offset), some of them.
    Stack(OpContext& op, DType type, int64_t rows, int64_t cols, int64_t experts, bool with_shared, uint64_t seed,
          bool odd) {
        for (int64_t e = 0; e <= experts; ++e) {
            owned.emplace_back(WeightKind{type}, rows, cols, seed + static_cast<uint64_t>(e));
            if (odd && type != DType::q6_k && e % 2 == 1) make_offsets_odd(owned.back().w);
        }
        std::vector<Weight> host;
        for (int64_t e = 0; e < experts; ++e) host.push_back(owned[static_cast<size_t>(e)].w);
        placed = op.experts(host);
        if (with_shared) shared = op.weight(owned.back().w);
    }
    /// Blocks of Q4_K and Q5_K begin with d and dmin in binary16: a dmin of a far smaller unit than d's.
    static void make_offsets_odd(const Weight& w) {
        const int64_t blocks = w.cols / 256, bytes = w.row_bytes / blocks;
        auto* const all = static_cast<std::byte*>(const_cast<void*>(w.data));
        for (int64_t i = 0; i < w.rows * blocks; i += 37) {
            const uint16_t d_dmin[] = {f32_to_f16(0.0121f), f32_to_f16(0.000731f)};
            ASSERT_FALSE(exact_offset(d_dmin[0], d_dmin[1]));
            std::memcpy(all + i * bytes, d_dmin, sizeof d_dmin);
        }
    }
    int64_t stride() const {
        return placed.size() < 2 ? 0
                                 : static_cast<const char*>(placed[1].data) - static_cast<const char*>(placed[0].data);
    }
    void expand_to(OpContext& op, uint16_t* b, int64_t k, RowOrder order, int which, int64_t rows_each) const {
        std::vector<Expansion> jobs;
        for (size_t e = 0; e < placed.size() + (shared.data != nullptr ? 1 : 0); ++e) {
            Expansion job;
            job.w = e < placed.size() ? placed[e] : shared;
            job.rows = static_cast<int>(job.w.rows);
            job.b = b + static_cast<int64_t>(e) * rows_each * k;
            job.k = static_cast<int>(k);
            job.order = order;
            job.which = which;
            jobs.push_back(job);
        }
        expand(*op.ctx.gpu, jobs);
    }
};

/// gemm_decoding against expand and gemm, bit by bit. counts: slots of each expert, of the shared one last if there.
/// odd: see Stack.
void expect_decoding_equals_expanding(DType type, const std::vector<int>& counts, bool with_shared, int64_t rows,
                                      int64_t k, bool odd = false) {
    SCOPED_TRACE(std::string(dtype_name(type)) + ", " + std::to_string(counts.size()) + " groups, [" +
                 std::to_string(rows) + ", " + std::to_string(k) + "]");
    const auto groups = static_cast<int>(counts.size()), experts = groups - (with_shared ? 1 : 0);
    for (const RowOrder order : {RowOrder::f32, RowOrder::swiglu}) {
        const int64_t n = scratch_rows(order, rows);
        OpContext op(1, (int64_t{96} << 20) + 2 * groups * n * k);
        const Stack one(op, type, rows, k, experts, with_shared, 100, odd),
            two(op, type, rows, k, experts, with_shared, 900, odd);
        if (!can_decode(*op.ctx.gpu, one.placed[0], one.stride())) GTEST_SKIP() << "not on this device";
        const HostPlan plan(counts);
        const int slots = plan.row_first.back();
        DecodingProblem job;
        GemmProblem& problem = job.gemm;
        problem.a = upload(op, bits_of(normals(static_cast<size_t>(slots * k), 1)));
        problem.rows = slots;
        problem.n = static_cast<int>(n);
        problem.k = static_cast<int>(k);
        problem.plan = plan.upload_to(op);
        problem.expert_end = groups;
        auto* b = upload(op, std::vector<uint16_t>(static_cast<size_t>(groups * n * k)));
        one.expand_to(op, b, k, order, 0, n);
        if (order == RowOrder::swiglu) two.expand_to(op, b, k, order, 1, n);
        GemmProblem expanded = problem;
        expanded.b = b;
        job.first[0] = one.placed.data(), job.first[1] = two.placed.data();
        job.stride[0] = one.stride(), job.stride[1] = two.stride();
        if (with_shared) job.shared[0] = &one.shared, job.shared[1] = &two.shared;
        const int64_t stride = order == RowOrder::swiglu ? round_up(rows, 64) : rows, all = slots * stride;
        if (order == RowOrder::swiglu) {
            uint16_t* first = upload(op, std::vector<uint16_t>(static_cast<size_t>(all + 64), 0x7FC1));
            gemm(*op.ctx.gpu, expanded, OutSwiglu{first, static_cast<int>(rows), stride});
            const std::vector<uint16_t> expected = download(op, first, all + 64);
            EXPECT_EQ(std::count(expected.begin(), expected.end() - 64, 0x7FC1), 0) << "left out";
            EXPECT_GT(std::count_if(expected.begin(), expected.end(), [](uint16_t v) { return v != 0; }), all / 2);
            uint16_t* second = upload(op, std::vector<uint16_t>(static_cast<size_t>(all + 64), 0x7FC1));
            gemm_decoding(*op.ctx.gpu, job, OutSwiglu{second, static_cast<int>(rows), stride});
            EXPECT_EQ(download(op, second, all + 64), expected);
        } else {
            uint16_t* first = upload(op, std::vector<uint16_t>(static_cast<size_t>(all + 64), 0x7FC1));
            gemm(*op.ctx.gpu, expanded, OutBf16{first, stride});
            const std::vector<uint16_t> expected = download(op, first, all + 64);
            EXPECT_EQ(std::count(expected.begin(), expected.end() - 64, 0x7FC1), 0) << "left out";
            EXPECT_GT(std::count_if(expected.begin(), expected.end(), [](uint16_t v) { return v != 0; }), all / 2);
            float* sums = upload(op, std::vector<float>(static_cast<size_t>(all)));
            OutF32 to_sums;
            to_sums.add(sums, 0, static_cast<int>(rows), stride);
            gemm(*op.ctx.gpu, expanded, to_sums);
            EXPECT_TRUE(std::ranges::equal(bits_of(download(op, sums, all)),
                                           std::span(expected).first(static_cast<size_t>(all))))
                << "the sums, rounded";
            uint16_t* second = upload(op, std::vector<uint16_t>(static_cast<size_t>(all + 64), 0x7FC1));
            gemm_decoding(*op.ctx.gpu, job, OutBf16{second, stride});
            EXPECT_EQ(download(op, second, all + 64), expected);
        }
    }
}

TEST(PrefillDecoding, has_the_bits_of_expanded_weights) {
    RT_GPU_ONLY();
    for (const DType type : {DType::q4_k, DType::q5_k, DType::q6_k}) {
        for (const std::vector<int>& counts : brief<std::vector<int>>({{0, 5, 128, 0, 200, 1, 64, 0},
                                                                       {0, 0, 300, 0},
                                                                       {1, 1, 1, 1, 1, 1},
                                                                       {129, 16, 17, 15, 65, 63, 256, 257, 33},
                                                                       {7}},
                                                                      2))
            for (const bool shared : {false, true}) {
                if (counts.size() == 1 ? shared : brief_counts() && !shared) continue;
                expect_decoding_equals_expanding(type, counts, shared, fewer(320, 192), 512);
            }
        expect_decoding_equals_expanding(type, {40, 0, 150}, true, 64, 2048);
        if (type != DType::q6_k) expect_decoding_equals_expanding(type, {33, 5, 70, 16}, true, 192, 512, true);
        expect_decoding_equals_expanding(type, {3, 90}, false, 512, 256);
    }
}

// More tiles than a device has multiprocessors, several times: stages go round across tiles of all sizes.
TEST(PrefillDecoding, has_the_bits_of_expanded_weights_in_many_tiles) {
    RT_GPU_ONLY();
    std::vector<int> counts;
    std::mt19937 random(5);
    for (int e = 0; e < fewer(48, 8); ++e)
        counts.push_back(e % 7 == 3 ? 0 : static_cast<int>(random() % (e % 5 == 0 ? 300 : 30)));
    counts.push_back(200);
    for (const DType type : {DType::q4_k, DType::q6_k})
        expect_decoding_equals_expanding(type, counts, true, fewer(1536, 512), 256);
}

}  // namespace
}  // namespace riptide
