// The parts of the prefill family's products, each against its definition. The ops themselves: matmul_test, moe_test.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "ops/cuda.h"
#include "ops/norm.h"
#include "ops/prefill_gemm.h"
#include "ops/prefill_moe.h"
#include "tensor/half.h"
#include "tests/ops/op_fixture.h"
#include "tests/quant/random_weight.h"

namespace riptide {
namespace {

using namespace ops::cuda::prefill;
using test::RandomWeight;
using test::WeightKind;

float rounded(float v) { return bf16_to_f32(f32_to_bf16(v)); }

std::vector<float> rounded(std::vector<float> v) {
    for (float& x : v) x = rounded(x);
    return v;
}

template <class T>
T* upload(OpContext& op, const std::vector<T>& values) {
    const auto bytes = static_cast<int64_t>(values.size() * sizeof(T));
    auto* p = static_cast<T*>(op.ctx.arena->allocate(bytes));
    if (bytes > 0) op.ctx.gpu->to_device(p, values.data(), bytes);
    return p;
}

template <class T>
std::vector<T> download(OpContext& op, const T* p, int64_t count) {
    std::vector<T> values(static_cast<size_t>(count));
    if (count > 0) op.ctx.gpu->to_host(values.data(), p, count * static_cast<int64_t>(sizeof(T)));
    return values;
}

std::vector<uint16_t> bits_of(const std::vector<float>& v) {
    std::vector<uint16_t> bits;
    for (float x : v) bits.push_back(f32_to_bf16(x));
    return bits;
}

/// Rows of B in scratch order, NaN where there are none.
std::vector<uint16_t> in_order(const std::vector<float>& w, int64_t columns, int64_t k, RowOrder order, int which,
                               std::vector<uint16_t> b = {}) {
    b.resize(static_cast<size_t>(scratch_rows(order, columns) * k), uint16_t{0x7FC0});
    for (int64_t c = 0; c < columns; ++c)
        for (int64_t i = 0; i < k; ++i)
            b[static_cast<size_t>(scratch_row(order, which, static_cast<int>(c)) * k + i)] =
                f32_to_bf16(w[static_cast<size_t>(c * k + i)]);
    return b;
}

struct Dot {
    double value = 0, magnitude = 0;
};
Dot dot(const float* a, const float* b, int64_t k) {
    Dot d;
    for (int64_t i = 0; i < k; ++i) {
        d.value += double{a[i]} * b[i];
        d.magnitude += std::abs(double{a[i]} * b[i]);
    }
    return d;
}

constexpr float kUntouched = -12345.0f;

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

/// Slots of experts, one after the other, as the device's plan has them.
struct HostPlan {
    std::vector<int32_t> row_first{0}, tile_first{0}, tile_expert, tile_by_rows;
    int experts;  // without the shared one, which comes last
    explicit HostPlan(const std::vector<int>& counts, bool shared = false)
        : experts(static_cast<int>(counts.size()) - (shared ? 1 : 0)) {
        for (size_t e = 0; e < counts.size(); ++e) {
            row_first.push_back(row_first.back() + counts[e]);
            const int tiles = ceil_div(counts[e], kTileM);
            tile_first.push_back(tile_first.back() + tiles);
            tile_expert.insert(tile_expert.end(), static_cast<size_t>(tiles), static_cast<int32_t>(e));
        }
        tile_by_rows.resize(static_cast<size_t>(tile_first[static_cast<size_t>(experts)]));
        std::iota(tile_by_rows.begin(), tile_by_rows.end(), 0);
        std::stable_sort(tile_by_rows.begin(), tile_by_rows.end(),
                         [&](int32_t a, int32_t b) { return sixteens(a) > sixteens(b); });
    }
    /// Of the rows of a tile.
    int sixteens(int32_t tile) const {
        const auto e = static_cast<size_t>(tile_expert[static_cast<size_t>(tile)]);
        const int rows = row_first[e + 1] - row_first[e] - (tile - tile_first[e]) * kTileM;
        return ceil_div(std::min(rows, kTileM), 16);
    }
    GroupPlan upload_to(OpContext& op) const {
        return {upload(op, row_first), upload(op, tile_first), upload(op, tile_expert), upload(op, tile_by_rows), experts};
    }
};

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

    Stack(OpContext& op, DType type, int64_t rows, int64_t cols, int64_t experts, bool with_shared, uint64_t seed) {
        for (int64_t e = 0; e <= experts; ++e)
            owned.emplace_back(WeightKind{type}, rows, cols, seed + static_cast<uint64_t>(e));
        std::vector<Weight> host;
        for (int64_t e = 0; e < experts; ++e) host.push_back(owned[static_cast<size_t>(e)].w);
        placed = op.experts(host);
        if (with_shared) shared = op.weight(owned.back().w);
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
void expect_decoding_equals_expanding(DType type, const std::vector<int>& counts, bool with_shared, int64_t rows,
                                      int64_t k) {
    SCOPED_TRACE(std::string(dtype_name(type)) + ", " + std::to_string(counts.size()) + " groups, [" +
                 std::to_string(rows) + ", " + std::to_string(k) + "]");
    const auto groups = static_cast<int>(counts.size()), experts = groups - (with_shared ? 1 : 0);
    for (const RowOrder order : {RowOrder::f32, RowOrder::swiglu}) {
        const int64_t n = scratch_rows(order, rows);
        OpContext op(1, (int64_t{96} << 20) + 2 * groups * n * k);
        const Stack one(op, type, rows, k, experts, with_shared, 100),
            two(op, type, rows, k, experts, with_shared, 900);
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
            for (const DecodingKernel kernel : {DecodingKernel::few, DecodingKernel::many}) {
                uint16_t* second = upload(op, std::vector<uint16_t>(static_cast<size_t>(all + 64), 0x7FC1));
                job.kernel = kernel;
                gemm_decoding(*op.ctx.gpu, job, OutSwiglu{second, static_cast<int>(rows), stride});
                EXPECT_EQ(download(op, second, all + 64), expected) << (kernel == DecodingKernel::few ? "few" : "many");
            }
        } else {
            float* first = upload(op, std::vector<float>(static_cast<size_t>(all + 64), kUntouched));
            OutF32 to_first;
            to_first.add(first, 0, static_cast<int>(rows), stride);
            gemm(*op.ctx.gpu, expanded, to_first);
            const std::vector<float> expected = download(op, first, all + 64);
            EXPECT_EQ(std::count(expected.begin(), expected.end() - 64, kUntouched), 0) << "left out";
            EXPECT_GT(std::count_if(expected.begin(), expected.end(), [](float v) { return v != 0; }), all / 2);
            for (const DecodingKernel kernel : {DecodingKernel::few, DecodingKernel::many}) {
                float* second = upload(op, std::vector<float>(static_cast<size_t>(all + 64), kUntouched));
                OutF32 to_second;
                to_second.add(second, 0, static_cast<int>(rows), stride);
                job.kernel = kernel;
                gemm_decoding(*op.ctx.gpu, job, to_second);
                expect_same_bits(download(op, second, all + 64), expected,
                                 kernel == DecodingKernel::few ? "few" : "many");
            }
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

/// One matrix of a group.

class PrefillExpand : public testing::TestWithParam<WeightKind> {};

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

INSTANTIATE_TEST_SUITE_P(all, PrefillExpand, testing::ValuesIn(test::all_weight_kinds()),
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
                    const ops::Routing routing{k, op.int_tensor(chosen, {n, k}), op.tensor(weights, {n, k})},
                        copy{k, op.ctx.alloc(DType::i32, {n, k}), op.ctx.alloc(DType::f32, {n, k})};
                    const SortedRouting sorted =
                        sort_routing(op.ctx, routing, experts, shared, skew == 2 ? nullptr : &copy);
                    if (skew != 2) {
                        EXPECT_EQ(download(op, copy.experts.row<int32_t>(0), n * k), chosen);
                        expect_same_bits(values_of(copy.weights), weights, "weights");
                    }

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
                    std::vector<int32_t> by_rows = download(op, sorted.plan.tile_by_rows, static_cast<int64_t>(plan.tile_by_rows.size()));
                    EXPECT_TRUE(std::is_sorted(by_rows.begin(), by_rows.end(), [&](int32_t a, int32_t b) {
                        return plan.sixteens(a) > plan.sixteens(b);
                    }));
                    std::sort(by_rows.begin(), by_rows.end());
                    for (size_t i = 0; i < by_rows.size(); ++i) EXPECT_EQ(by_rows[i], static_cast<int32_t>(i));
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

/// A small sparse layer.
struct Layer {
    static constexpr int64_t kHidden = 256, kWidth = 256, kExperts = 12, kTopK = 3;
    std::vector<RandomWeight> owned;
    ops::ExpertWeights placed;
    RandomWeight router{{DType::f32}, kExperts, kHidden, 91};
    std::vector<RandomWeight> shared;
    Weight placed_router, placed_shared[3];
    std::span<const float> norm;

    /// Types of gate and up, of down, and of the shared expert's down.
    explicit Layer(OpContext& op, DType first = DType::q8_0, DType down = DType::q8_0,
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
        for (size_t i = 0; i < 3; ++i) placed_shared[i] = op.weight(shared[i].w);
        norm = op.floats(normals(kHidden, 95));
    }
    ops::MoeResult operator()(OpContext& op, Tensor& x) const {
        return ops::moe_add(op.ctx, x, {norm, 1e-6f}, {&placed_router, {}, kTopK, 2.5f, true}, placed,
                            {&placed_shared[0], &placed_shared[1], &placed_shared[2]});
    }
};

void expect_chunks_do_not_matter(DType first, DType down, DType shared_down) {
    const int64_t n = fewer(700, 100);
    const std::vector<float> values = test::random_rows(n, Layer::kHidden, 96);
    OpContext op(1, int64_t{64} << 20);
    op.ctx.family = Family::prefill;
    const Layer layer(op, first, down, shared_down);
    Tensor x = op.tensor(values, {n, Layer::kHidden});
    const std::vector<float> y = values_of(layer(op, x).y), after = values_of(x);
    for (const int64_t chunk : fewer<std::vector<int64_t>>({1, 7, 64, 129, 500}, {1, 64}))
        for (int64_t begin = 0; begin < n; begin += std::max<int64_t>(chunk, 61)) {
            const int64_t count = std::min(chunk, n - begin), size = count * Layer::kHidden;
            op.poison();
            const auto* rows = values.data() + begin * Layer::kHidden;
            Tensor part = op.tensor({rows, rows + size}, {count, Layer::kHidden});
            const std::vector<float> some = values_of(layer(op, part).y);
            ASSERT_TRUE(same_bits(some.data(), y.data() + begin * Layer::kHidden, some.size()))
                << chunk << " " << begin;
            ASSERT_TRUE(same_bits(values_of(part).data(), after.data() + begin * Layer::kHidden, some.size()));
        }
}

TEST(PrefillMoe, chunks_do_not_change_a_bit) {
    RT_GPU_ONLY();
    expect_chunks_do_not_matter(DType::q8_0, DType::q8_0, DType::q8_0);
    expect_chunks_do_not_matter(DType::q4_k, DType::q6_k, DType::q6_k);
    expect_chunks_do_not_matter(DType::q5_k, DType::q4_k, DType::q8_0);  // the shared expert by itself
}

TEST(PrefillMoe, a_graph_gives_the_same_bits) {
    RT_GPU_ONLY();
    const int64_t n = 150;
    OpContext op(1, int64_t{64} << 20);
    op.ctx.family = Family::prefill;
    const Layer layer(op);
    const std::vector<float> values = test::random_rows(n, Layer::kHidden, 97);
    Tensor x = op.tensor(values, {n, Layer::kHidden});
    const std::vector<float> y = values_of(layer(op, x).y);
    op.poison();
    x = op.tensor(values, {n, Layer::kHidden});
    ops::MoeResult result;
    GpuGraph graph(*op.ctx.gpu, [&] { result = layer(op, x); });
    graph.launch();
    expect_same_bits(values_of(result.y), y, "graph");
}

}  // namespace
}  // namespace riptide
