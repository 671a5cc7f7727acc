// What the decode kernels of a GPU promise beyond the laws that both devices keep (matmul_test.cpp, moe_test.cpp).
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "ops/elementwise.h"
#include "ops/matmul.h"
#include "ops/moe.h"
#include "ops/norm.h"
#include "quant/act_rows.h"
#include "tests/ops/op_fixture.h"
#include "tests/ops/product_bound.h"
#include "tests/quant/random_weight.h"

namespace riptide {
namespace {

using test::RandomWeight;
using test::WeightKind;

std::vector<float> row_of(const std::vector<float>& all, int64_t row, int64_t width) {
    return {all.begin() + row * width, all.begin() + (row + 1) * width};
}

// Plane types: GPU and CPU multiply the same integers and scale them alike; only the order of the sum over K / 32 terms
// differs: K / 256 + 3 and K / 1024 + 5 additions, each within u of the sum of the terms' magnitudes.
TEST(DecodeCuda, plane_products_differ_from_the_cpu_by_the_order_of_their_sum_alone) {
    RT_GPU_ONLY();
    const int64_t rows = 37, n = 3;
    for (const DType type :
         {DType::q4_k,  DType::q5_k,  DType::q6_k,    DType::q8_0,   DType::q4_0,  DType::iq4_nl,  DType::iq4_xs,
          DType::mxfp4, DType::nvfp4, DType::q2_k,    DType::q3_k,   DType::q5_0,  DType::tq1_0,   DType::tq2_0,
          DType::iq1_s, DType::iq1_m, DType::iq2_xxs, DType::iq2_xs, DType::iq2_s, DType::iq3_xxs, DType::iq3_s})
        for (const int64_t cols : {256, 2048, 6144}) {
            const RandomWeight m({type}, rows, cols, 51);
            const std::vector<float> x = test::random_rows(n, cols, 52), w = m.dequantized();
            OpContext cpu(1, int64_t{4} << 20, nullptr), op;
            Tensor host = cpu.ctx.alloc(DType::f32, {n, cols});
            std::copy(x.begin(), x.end(), host.row(0));
            const Tensor expected = ops::matmul(cpu.ctx, m.w, host);
            const std::vector<float> y = values_of(ops::matmul(op.ctx, op.weight(m.w), op.tensor(x, {n, cols})));
            for (int64_t i = 0; i < n; ++i) {
                std::vector<std::byte> memory(static_cast<size_t>(Int8Row::bytes(cols)));
                dot_kernels().quantize(x.data() + i * cols, 0, cols, cols, memory.data());
                const Int8Row a = int8_row(memory.data(), cols);
                for (int64_t o = 0; o < rows; ++o) {
                    double terms = 0;
                    for (int64_t c = 0; c < cols; ++c)
                        terms += std::abs(double{w[static_cast<size_t>(o * cols + c)]} * a.a[c] * a.d[c / 32]);
                    const double additions = static_cast<double>(cols) / 256 + static_cast<double>(cols) / 1024 + 10;
                    const float reference = expected.row(i)[o];
                    ASSERT_NEAR(y[static_cast<size_t>(i * rows + o)], reference, additions * kUnitF32 * terms * 1.001)
                        << dtype_name(type) << " " << cols << ", row " << i << ", output " << o;
                }
            }
        }
}

/// ActRow rows of x, as an attention kernel makes them.
std::vector<int8_t> act_rows(const std::vector<float>& x, int64_t n, int64_t cols) {
    std::vector<int8_t> rows(static_cast<size_t>(n * ActRow::bytes(cols)));
    std::vector<std::byte> memory(static_cast<size_t>(Int8Row::bytes(cols)));
    for (int64_t i = 0; i < n; ++i) {
        dot_kernels().quantize(x.data() + i * cols, 0, cols, cols, memory.data());
        const Int8Row a = int8_row(memory.data(), cols);
        int8_t* const out = rows.data() + i * ActRow::bytes(cols);
        for (int64_t c = 0; c < cols; ++c) out[(c / 16 % 2 * (cols / 32) + c / 32) * 16 + c % 16] = a.a[c];
        for (int64_t g = 0; g < cols / 32; ++g) {
            const float pair[2] = {a.d[g], a.sum32[g]};
            std::memcpy(out + cols + 8 * g, pair, sizeof pair);
        }
    }
    return rows;
}

TEST(DecodeCuda, given_int8_rows_equal_quantising) {
    RT_GPU_ONLY();
    for (const int64_t cols : {32 * 3, 256, 6144, 8192})
        for (const int64_t n : fewer<std::vector<int64_t>>({1, 3, 5, 17}, {1, 3, 17})) {
            const DType type = cols % 256 == 0 ? DType::q6_k : DType::q8_0;
            const RandomWeight m({type}, 65, cols, 61);
            const std::vector<float> values = test::random_rows(n, cols, 62),
                                     residual = normals(static_cast<size_t>(n * 65), 63);
            OpContext op;
            const Weight w = op.weight(m.w);
            Tensor x = op.tensor(values, {n, cols}), a = op.tensor(residual, {n, 65}), b = op.tensor(residual, {n, 65});
            const Tensor y = ops::matmul_add(op.ctx, w, x, a);
            const std::vector<int8_t> rows = act_rows(values, n, cols);
            void* const memory = op.ctx.arena->allocate(std::ssize(rows));
            op.ctx.gpu->to_device(memory, rows.data(), std::ssize(rows));
            x.int8 = memory;
            const Tensor z = ops::matmul_add(op.ctx, w, x, b);
            expect_same_bits(values_of(z), values_of(y), "y");
            expect_same_bits(values_of(b), values_of(a), "residual");
        }
}

/// A small model's layer on the device: attention projections and a sparse network in the sizes given.
struct LayerWorld {
    OpContext op;
    int64_t hidden, ff, experts, top_k;
    std::vector<Weight> gate, up, down;
    Weight router, q, v, small, shared_gate, shared_up, shared_down;
    ops::Norm norm;

    LayerWorld(WeightKind kind, WeightKind down_kind, int64_t hidden_, int64_t ff_, int64_t experts_, int64_t top_k_)
        : op(1, int64_t{48} << 20), hidden(hidden_), ff(ff_), experts(experts_), top_k(top_k_) {
        std::vector<RandomWeight> owned;
        owned.reserve(static_cast<size_t>(3 * experts));
        const auto stack = [&](const WeightKind& k, int64_t rows, int64_t cols, uint64_t seed) {
            std::vector<Weight> host;
            for (int64_t e = 0; e < experts; ++e) {
                owned.emplace_back(k, rows, cols, seed + static_cast<uint64_t>(e));
                host.push_back(owned.back().w);
            }
            return op.experts(host);
        };
        gate = stack(kind, ff, hidden, 1000);
        up = stack(kind, ff, hidden, 2000);
        down = stack(down_kind, hidden, ff, 3000);
        const auto place = [&](const WeightKind& k, int64_t rows, int64_t cols, uint64_t seed) {
            const RandomWeight m(k, rows, cols, seed);
            return op.weight(m.w);
        };
        router = place({DType::f32}, experts, hidden, 11);
        q = place(kind, fewer(515, 67), hidden, 12);
        v = place(down_kind, fewer(129, 33), hidden, 13);
        small = place({DType::f32}, 7, hidden, 14);
        shared_gate = place(kind, ff, hidden, 15);
        shared_up = place(kind, ff, hidden, 16);
        shared_down = place(down_kind, hidden, ff, 17);
        norm = {op.floats(normals(static_cast<size_t>(hidden), 18)), 1e-6f};
    }

    /// All ops of a layer on n rows; every result, one after the other.
    std::vector<Tensor> run(Tensor& x) {
        const Weight* const group[] = {&q, &v, &small};
        std::vector<Tensor> out = ops::norm_matmul_group(op.ctx, x, norm, group);
        const ops::Router how{&router, {}, top_k, 2.5f, true};
        const ops::MoeResult moe =
            ops::moe_add(op.ctx, x, norm, how, {gate, up, down}, {&shared_gate, &shared_up, &shared_down});
        out.insert(out.end(), {moe.logits, moe.routing.weights, moe.y});
        out.push_back(ops::swiglu_ffn_add(op.ctx, x, norm, shared_gate, shared_up, shared_down));
        out.push_back(x);
        return out;
    }
    std::vector<std::vector<float>> values(const std::vector<float>& x) {
        op.poison();
        Tensor t = op.tensor(x, {std::ssize(x) / hidden, hidden});
        std::vector<std::vector<float>> all;
        for (const Tensor& y : run(t)) all.push_back(values_of(y));
        return all;
    }
};

struct WorldCase {
    WeightKind kind, down;
    int64_t hidden, ff, experts, top_k;
};
std::vector<WorldCase> worlds() {
    std::vector<WorldCase> all = {
        {{DType::q4_k}, {DType::q6_k}, 2048, 512, 32, 8},  // Laguna's sizes
        {{DType::q4_k}, {DType::q4_k}, 512, 256, 16, 3},
        {{DType::q8_0}, {DType::nvfp4}, 192, 64, 12, 8},
        {{DType::bf16}, {DType::bf16}, 2048, 512, 12, 8},
        {{DType::f8_e4m3, DType::bf16, 128, 128}, {DType::f8_e4m3, DType::bf16, 128, 128}, 256, 160, 9, 4},
        {{DType::f16}, {DType::f32}, 72, 40, 300, 10}};
    if (!brief_counts()) return all;
    // DecodeRows, DecodeRow1 and DecodeFloat have the others' kernels.
    return {{{DType::q4_k}, {DType::q4_k}, 256, 256, 6, 2},
            {{DType::q8_0}, {DType::nvfp4}, 192, 64, 6, 3},
            {{DType::f16}, {DType::f32}, 72, 40, 20, 3}};
}

TEST(DecodeCuda, rows_in_any_company_and_order_have_the_same_bits) {
    RT_GPU_ONLY();
    for (const WorldCase& c : worlds()) {
        LayerWorld world(c.kind, c.down, c.hidden, c.ff, c.experts, c.top_k);
        const int64_t most = brief_counts() ? 9 : 256;
        const std::vector<float> x = test::random_rows(most, c.hidden, 71);
        std::vector<std::vector<std::vector<float>>> one;
        for (int64_t i = 0; i < most; i += 5) one.push_back(world.values(row_of(x, i, c.hidden)));
        for (const int64_t n : {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 64, 256}) {
            if (n > most || (brief_counts() && n != 2 && n != 9)) continue;
            std::vector<int64_t> order(static_cast<size_t>(most));
            std::iota(order.begin(), order.end(), 0);
            std::shuffle(order.begin(), order.end(), std::mt19937_64(static_cast<uint64_t>(n)));
            std::vector<float> shuffled;
            for (int64_t i = 0; i < n; ++i) {
                const std::vector<float> row = row_of(x, order[static_cast<size_t>(i)], c.hidden);
                shuffled.insert(shuffled.end(), row.begin(), row.end());
            }
            const auto all = world.values(shuffled);
            for (int64_t i = 0; i < n; ++i) {
                const int64_t source = order[static_cast<size_t>(i)];
                if (source % 5 != 0) continue;
                for (size_t k = 0; k < all.size(); ++k)
                    expect_same_bits(row_of(all[k], i, std::ssize(all[k]) / n), one[static_cast<size_t>(source / 5)][k],
                                     fmt::format("{}, {} rows, result {}", dtype_name(c.kind.type), n, k).c_str());
            }
        }
    }
}

TEST(DecodeCuda, a_replayed_graph_gives_the_bits_of_the_ops) {
    RT_GPU_ONLY();
    for (const WorldCase& c : worlds())
        for (const int64_t n : brief<int64_t>({1, 4, 9}, 2)) {
            LayerWorld world(c.kind, c.down, c.hidden, c.ff, c.experts, c.top_k);
            const std::vector<float> x = test::random_rows(n, c.hidden, 81);
            const auto expected = world.values(x);
            world.op.poison();
            const Tensor source = world.op.tensor(x, {n, c.hidden});
            Tensor t = world.op.tensor(x, {n, c.hidden});
            std::vector<Tensor> results;
            GpuGraph graph(*world.op.ctx.gpu, [&] {
                world.op.ctx.gpu->copy(t.data, source.data, n * c.hidden * 4);
                results = world.run(t);
            });
            for (int replay = 0; replay < (brief_counts() ? 2 : 20); ++replay) {
                graph.launch();
                for (size_t k = 0; k < results.size(); ++k)
                    expect_same_bits(
                        values_of(results[k]), expected[k],
                        fmt::format("{}, {} rows, replay {}, result {}", dtype_name(c.kind.type), n, replay, k)
                            .c_str());
            }
        }
}

TEST(DecodeCuda, the_fused_layers_equal_their_parts_in_real_sizes) {
    RT_GPU_ONLY();
    for (const WorldCase& c : worlds())
        for (const int64_t n : {1, 3}) {
            LayerWorld world(c.kind, c.down, c.hidden, c.ff, c.experts, c.top_k);
            OpContext& op = world.op;
            const std::vector<float> values = test::random_rows(n, c.hidden, 91);
            Tensor x = op.tensor(values, {n, c.hidden}), y = op.tensor(values, {n, c.hidden});
            world.run(x);
            const ops::SharedExpert shared{&world.shared_gate, &world.shared_up, &world.shared_down};
            Tensor h = ops::rms_norm(op.ctx, y, world.norm.weight, world.norm.eps);
            const ops::Routing r =
                ops::route_sigmoid(op.ctx, ops::matmul(op.ctx, world.router, h), {}, c.top_k, 2.5f, true);
            ops::add(op.ctx, y, ops::moe_swiglu(op.ctx, h, r, {world.gate, world.up, world.down}, shared));
            h = ops::rms_norm(op.ctx, y, world.norm.weight, world.norm.eps);
            const Tensor act =
                ops::swiglu(op.ctx, ops::matmul(op.ctx, world.shared_gate, h), ops::matmul(op.ctx, world.shared_up, h));
            ops::add(op.ctx, y, ops::matmul(op.ctx, world.shared_down, act));
            expect_same_bits(values_of(x), values_of(y), dtype_name(c.kind.type));
        }
}

/// Routing inside the router's kernel: logits that are exactly chosen values, because x is a unit vector.
TEST(DecodeCuda, the_fused_router_chooses_as_route_sigmoid_does) {
    RT_GPU_ONLY();
    for (const int64_t experts : fewer<std::vector<int64_t>>({8, 31, 64, 256, 257, 1000}, {31, 257}))
        for (const int64_t k : brief<int64_t>({8, 3, 1}, 1)) {
            std::vector<float> w(static_cast<size_t>(experts * 16), 0.0f);
            std::mt19937 random(static_cast<uint32_t>(experts));
            for (int64_t e = 0; e < experts; ++e)
                w[static_cast<size_t>(e * 16)] = static_cast<float>(random() % 7) - 3.0f;  // ties
            w[16 * 2] = NAN;
            w[16 * 5] = INFINITY;
            Weight host;
            host.data = w.data();
            host.rows = experts;
            host.cols = 16;
            host.row_bytes = 64;
            std::vector<RandomWeight> owned;
            std::vector<Weight> gate, down;
            owned.reserve(static_cast<size_t>(2 * experts));
            for (int64_t e = 0; e < experts; ++e) {
                owned.emplace_back(WeightKind{DType::f32}, 16, 16, static_cast<uint64_t>(e));
                gate.push_back(owned.back().w);
            }
            OpContext op;
            const Weight router = op.weight(host);
            const std::vector<Weight> placed = op.experts(gate);
            std::vector<float> unit(16, 0.0f), ones(16, 1.0f), bias(static_cast<size_t>(experts), 0.0f);
            unit[0] = 0.25f;  // RMSNorm makes 4 of it (eps 0)
            for (int64_t e = 0; e < experts; e += 3) bias[static_cast<size_t>(e)] = 0.125f;
            Tensor x = op.tensor(unit, {1, 16});
            const ops::Router how{&router, op.floats(bias), k, 1.5f, true};
            const ops::MoeResult result =
                ops::moe_add(op.ctx, x, {op.floats(ones), 0.0f}, how, {placed, placed, placed});
            const ops::Routing r = ops::route_sigmoid(op.ctx, result.logits, how.bias, k, 1.5f, true);
            EXPECT_EQ(values_of<int32_t>(result.routing.experts), values_of<int32_t>(r.experts)) << experts << " " << k;
            expect_same_bits(values_of(result.routing.weights), values_of(r.weights), "weights");
        }
}

}  // namespace
}  // namespace riptide
