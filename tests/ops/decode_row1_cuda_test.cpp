// The kernels for one row, of Q4_K_M models and with planes of any type, and for two to four rows of Q4_K_M, in the
// sizes of Laguna XS.2: a row has the bits that it has alone, and beside four others, where other kernels serve the
// step.
#include <gtest/gtest.h>

#include "ops/matmul.h"
#include "ops/moe.h"
#include "tests/ops/row_alone.h"
#include "tests/quant/random_weight.h"

namespace riptide {
namespace {

using test::RandomWeight;
using test::WeightKind;

constexpr int64_t kLagunaHidden = 2048;

TEST(DecodeRow1, projections_have_the_bits_of_the_general_kernels) {
    RT_GPU_ONLY();
    using Types = std::array<DType, 4>;  // of q, k, v and the gate
    const std::vector<Types> mixes = {
        {DType::q4_k, DType::q4_k, DType::q4_k, DType::q4_k},
        {DType::q4_k, DType::q4_k, DType::q6_k, DType::q4_k},
        {DType::q8_0, DType::q8_0, DType::q8_0, DType::q8_0},
        {DType::q5_k, DType::q8_0, DType::q6_k, DType::q4_k},
        {DType::q2_k, DType::q3_k, DType::iq2_xs, DType::q4_0},
        {DType::iq3_s, DType::iq4_nl, DType::iq4_xs, DType::q5_0},
    };
    for (const int64_t heads : brief<int64_t>({fewer(48, 2), 64}, 1))
        for (const Types& types : mixes) {
            OpContext op(1, int64_t{48} << 20);
            const Weight q = place_random(op, {types[0]}, heads * 128, kLagunaHidden, 1),
                         k = place_random(op, {types[1]}, fewer(1024, 64), kLagunaHidden, 2),
                         v = place_random(op, {types[2]}, fewer(1024, 64), kLagunaHidden, 3),
                         gate = place_random(op, {types[3]}, heads, kLagunaHidden, 4);
            const Weight* const group[] = {&q, &k, &v, &gate};
            const ops::Norm norm = {op.floats(normals(kLagunaHidden, 5)), 1e-6f};
            expect_alone(fmt::format("{} heads, q {}, v {}", heads, dtype_name(types[0]), dtype_name(types[2])),
                         kLagunaHidden, [&](const auto& x) {
                             op.poison();
                             const Tensor t = op.tensor(x, {std::ssize(x) / kLagunaHidden, kLagunaHidden});
                             Results out;
                             for (const Tensor& y : ops::norm_matmul_group(op.ctx, t, norm, group))
                                 out.push_back(values_of(y));
                             return out;
                         });
        }
}

/// Floats that are multiplied beside planes: the kernel behind them waits for both.
TEST(DecodeRow1, few_floats_beside_planes_have_the_bits_of_the_general_kernels) {
    RT_GPU_ONLY();
    struct Types {
        DType planes, few;
    };
    for (const Types& types :
         brief<Types>({{DType::q4_k, DType::bf16}, {DType::q8_0, DType::bf16}, {DType::q4_k, DType::f32}}, 1)) {
        OpContext op(1, int64_t{64} << 20);
        const int64_t wide = fewer(4096, 256);
        const Weight u = place_random(op, {types.planes}, fewer(8192, 128), kLagunaHidden, 1),
                     z = place_random(op, {types.planes}, wide, kLagunaHidden, 2),
                     b = place_random(op, {types.few}, 32, kLagunaHidden, 3),
                     a = place_random(op, {DType::bf16}, 32, kLagunaHidden, 4),
                     o = place_random(op, {DType::q4_k}, kLagunaHidden, wide, 5);
        const Weight* const group[] = {&u, &z, &b, &a};
        const ops::Norm norm = {op.floats(normals(kLagunaHidden, 5)), 1e-6f};
        const std::string what = fmt::format("{} beside {}", dtype_name(types.few), dtype_name(types.planes));
        expect_alone(what, kLagunaHidden, [&](const auto& x) {
            op.poison();
            const Tensor t = op.tensor(x, {std::ssize(x) / kLagunaHidden, kLagunaHidden});
            Results results;
            for (const Tensor& y : ops::norm_matmul_group(op.ctx, t, norm, group)) results.push_back(values_of(y));
            return results;
        });
        for (const int64_t n : brief<int64_t>({1, 3}, 1)) {
            op.poison();
            const Tensor source = op.tensor(test::random_rows(n, kLagunaHidden, 91), {n, kLagunaHidden});
            Tensor x = op.ctx.alloc(DType::f32, {n, kLagunaHidden});
            std::vector<Tensor> results;
            const auto step = [&] {
                op.ctx.gpu->copy(x.data, source.data, n * kLagunaHidden * int64_t{sizeof(float)});
                results.clear();
                for (int layer = 0; layer < 3; ++layer) {
                    const std::vector<Tensor> p = ops::norm_matmul_group(op.ctx, x, norm, group);
                    results.insert(results.end(), p.begin(), p.end());
                    ops::matmul_add(op.ctx, o, p[1], x);
                }
            };
            expect_replays_agree(op, what, results, step);
        }
    }
}

TEST(DecodeRow1, the_output_projection_has_the_bits_of_the_general_kernels) {
    RT_GPU_ONLY();
    for (const int64_t cols : brief<int64_t>({6144, 4096, 8192}, 1))
        for (const WeightKind& type :
             {WeightKind{DType::q4_k}, WeightKind{DType::q5_k}, WeightKind{DType::q6_k}, WeightKind{DType::q2_k},
              WeightKind{DType::q8_0}, WeightKind{DType::q4_0}, WeightKind{DType::iq4_nl}, WeightKind{DType::iq3_s},
              WeightKind{DType::iq2_xs}}) {
            OpContext op(1, int64_t{32} << 20);
            const int64_t outputs = fewer<int64_t>(kLagunaHidden, 100);
            const Weight o = place_random(op, type, outputs, cols, 11);
            expect_alone(fmt::format("{} columns, {}", cols, type.name()), cols, [&](const auto& x) {
                op.poison();
                const int64_t n = std::ssize(x) / cols;
                Tensor r = op.tensor(std::vector<float>(static_cast<size_t>(n * outputs), 0.75f), {n, outputs});
                const Tensor y = ops::matmul_add(op.ctx, o, op.tensor(x, {n, cols}), r);
                return Results{values_of(y), values_of(r)};
            });
        }
}

/// Eight rows at a time, and the last of them.
TEST(DecodeRow1, rows_by_eights_have_the_bits_that_each_has_alone) {
    RT_GPU_ONLY();
    for (const WeightKind& type : {WeightKind{DType::q4_0}, WeightKind{DType::iq3_s}, WeightKind{DType::iq2_xs}})
        for (const int64_t cols : {kLagunaHidden, int64_t{8192}}) {
            OpContext op(1, int64_t{32} << 20);
            const int64_t outputs = fewer<int64_t>(kLagunaHidden, 100), n = fewer(19, 9);
            const Weight w = place_random(op, type, outputs, cols, 12);
            const std::vector<float> x = test::random_rows(n, cols, 13);
            const ops::Norm norm = {op.floats(normals(kLagunaHidden, 14)), 1e-6f};
            const Weight* const group[] = {&w};
            const auto run = [&](int64_t first, int64_t count) {
                op.poison();
                const std::vector<float> some(x.begin() + first * cols, x.begin() + (first + count) * cols);
                if (cols == kLagunaHidden)
                    return values_of(ops::norm_matmul_group(op.ctx, op.tensor(some, {count, cols}), norm, group)[0]);
                Tensor r = op.tensor(std::vector<float>(static_cast<size_t>(count * outputs), 0.5f), {count, outputs});
                ops::matmul_add(op.ctx, w, op.tensor(some, {count, cols}), r);
                return values_of(r);
            };
            const std::vector<float> together = run(0, n);
            for (int64_t i = 0; i < n; ++i) {
                const auto first = together.begin() + i * outputs;
                expect_same_bits(run(i, 1), std::vector<float>(first, first + outputs),
                                 fmt::format("{}, {} columns, row {} of {}", type.name(), cols, i, n).c_str());
            }
        }
}

/// Of gate and up, of down: of the experts, of the shared expert.
struct LayerTypes {
    WeightKind up, down, shared_up, shared_down;

    explicit LayerTypes(DType down_type) : LayerTypes(DType::q4_k, down_type) {}
    LayerTypes(DType up_type, DType down_type) : LayerTypes(up_type, down_type, up_type, down_type) {}
    LayerTypes(DType up_type, DType down_type, DType shared_up_type, DType shared_down_type)
        : up{up_type}, down{down_type}, shared_up{shared_up_type}, shared_down{shared_down_type} {}
};

/// A sparse layer in the sizes of Laguna XS.2: 256 experts, of which sixteen differ.
struct SparseLayer {
    static constexpr int64_t kExperts = 256, kFf = 512, kDistinct = 16;
    OpContext op{1, int64_t{64} << 20};
    std::vector<Weight> gate, up, down;
    Weight shared_gate, shared_up, shared_down, share, router;
    ops::Norm norm;
    std::span<const float> bias;

    explicit SparseLayer(DType down_type) : SparseLayer(LayerTypes(down_type)) {}
    explicit SparseLayer(const LayerTypes& types) {
        std::vector<RandomWeight> owned;
        owned.reserve(3 * kDistinct);
        const auto stack = [&](const WeightKind& type, int64_t rows, int64_t cols, uint64_t seed) {
            const auto first = owned.size();
            for (uint64_t e = 0; e < kDistinct; ++e) owned.emplace_back(type, rows, cols, seed + e);
            std::vector<Weight> host;
            for (size_t e = 0; e < kExperts; ++e) host.push_back(owned[first + e * 7 % kDistinct].w);
            return op.experts(host);
        };
        gate = stack(types.up, kFf, kLagunaHidden, 100);
        up = stack(types.up, kFf, kLagunaHidden, 200);
        down = stack(types.down, kLagunaHidden, kFf, 300);
        shared_gate = place_random(op, types.shared_up, kFf, kLagunaHidden, 21);
        shared_up = place_random(op, types.shared_up, kFf, kLagunaHidden, 22);
        shared_down = place_random(op, types.shared_down, kLagunaHidden, kFf, 23);
        share = place_random(op, {DType::bf16}, 1, kLagunaHidden, 20);
        router = place_random(op, {DType::bf16}, kExperts, kLagunaHidden, 24);
        norm = {op.floats(normals(kLagunaHidden, 25)), 1e-6f};
        bias = op.floats(normals(kExperts, 26, 0.1f));
    }
    ops::MoeResult add(Tensor& x, int64_t top_k, bool biased, bool shared = true) {
        const ops::Router how{&router, biased ? bias : std::span<const float>(), top_k, 2.5f, biased};
        return ops::moe_add(op.ctx, x, norm, how, {gate, up, down},
                            shared ? ops::SharedExpert{&shared_gate, &shared_up, &shared_down} : ops::SharedExpert{});
    }
    /// As Qwen3.5-35B-A3B has it: softmax, and a shared expert that counts in part.
    ops::MoeResult add_softmax(Tensor& x, int64_t top_k) {
        const ops::Router how{.w = &router, .bias = {}, .top_k = top_k, .softmax = true};
        return ops::moe_add(op.ctx, x, norm, how, {gate, up, down}, in_part());
    }
    ops::SharedExpert in_part() const { return {&shared_gate, &shared_up, &shared_down, &share}; }
};

TEST(DecodeRow1, sparse_layers_have_the_bits_of_the_general_kernels) {
    RT_GPU_ONLY();
    const std::vector<LayerTypes> mixes = {
        LayerTypes(DType::q6_k),
        LayerTypes(DType::q4_k),
        {DType::q8_0, DType::q8_0},
        {DType::q5_k, DType::q6_k, DType::q8_0, DType::q8_0},
        {DType::q2_k, DType::q3_k, DType::q4_k, DType::q6_k},
        {DType::iq3_s, DType::iq4_nl, DType::q5_k, DType::q5_k},
        {DType::iq2_xs, DType::q4_0, DType::q6_k, DType::iq4_xs},
    };
    for (const LayerTypes& types : brief<LayerTypes>(mixes, 4)) {
        const DType down_type = types.down.type;
        SparseLayer layer(types);
        for (const int64_t top_k : fewer<std::vector<int64_t>>({8, 3}, {2}))
            for (const bool biased : {true, false}) {
                if (brief_counts() && biased != (down_type == DType::q4_k)) continue;
                expect_alone(
                    fmt::format("up {}, down {}, top {}, bias {}", types.up.name(), types.down.name(), top_k, biased),
                    kLagunaHidden, [&](const auto& x) {
                        layer.op.poison();
                        Tensor t = layer.op.tensor(x, {std::ssize(x) / kLagunaHidden, kLagunaHidden});
                        const ops::MoeResult r = layer.add(t, top_k, biased);
                        std::vector<float> ids;
                        for (const int32_t e : values_of<int32_t>(r.routing.experts))
                            ids.push_back(static_cast<float>(e));
                        return Results{values_of(r.logits), ids, values_of(r.routing.weights), values_of(r.y),
                                       values_of(t)};
                    });
            }
    }
}

/// Of 1 row, 2 to 4, up to 8 and more, which are kernels of their own; and what follows from the logits is what the
/// parts make of them.
TEST(DecodeRow1, sparse_layers_with_softmax_and_a_share_have_the_bits_of_their_parts) {
    RT_GPU_ONLY();
    const int64_t sources = fewer(11, 2);
    const std::vector<float> x = test::random_rows(sources, kLagunaHidden, 83);
    const std::vector<LayerTypes> mixes = {LayerTypes(DType::q6_k),
                                           {DType::q8_0, DType::q8_0},
                                           {DType::q5_k, DType::q6_k},
                                           LayerTypes(DType::q4_k),
                                           {DType::iq3_s, DType::iq4_nl, DType::q5_k, DType::q5_k}};
    for (const LayerTypes& types : brief<LayerTypes>(mixes, 2)) {
        SparseLayer layer(types);
        std::vector<Results> alone;
        for (const int64_t n : brief<int64_t>({1, 2, 4, 6, 8, 9, 20, 70}, 1)) {
            std::vector<float> picked;
            const int64_t steps = n == 1 ? sources : 1;
            for (int64_t step = 0; step < steps; ++step) {
                const auto row_of = [&](int64_t i) { return n == 1 ? step : i * 5 % sources; };
                picked.clear();
                for (int64_t i = 0; i < n; ++i)
                    picked.insert(picked.end(), x.begin() + row_of(i) * kLagunaHidden,
                                  x.begin() + (row_of(i) + 1) * kLagunaHidden);
                layer.op.poison();
                Tensor t = layer.op.tensor(picked, {n, kLagunaHidden}),
                       before = layer.op.tensor(picked, {n, kLagunaHidden});
                const ops::MoeResult r = layer.add_softmax(t, fewer(8, 2));
                const Results got = {values_of(r.logits), values_of(r.routing.weights), values_of(r.y), values_of(t)};
                if (n == 1) alone.push_back(got);
                const std::string what = fmt::format("up {}, down {}, {} rows", types.up.name(), types.down.name(), n);
                const ops::Routing routing = ops::route_softmax(layer.op.ctx, r.logits, fewer(8, 2));
                EXPECT_EQ(values_of<int32_t>(r.routing.experts), values_of<int32_t>(routing.experts)) << what;
                expect_same_bits(got[1], values_of(routing.weights), (what + ": weights").c_str());
                const Tensor h = ops::rms_norm(layer.op.ctx, before, layer.norm.weight, layer.norm.eps);
                const Tensor y =
                    ops::moe_swiglu(layer.op.ctx, h, routing, {layer.gate, layer.up, layer.down}, layer.in_part());
                expect_same_bits(got[2], values_of(y), (what + ": y").c_str());
                for (int64_t i = 0; n > 1 && i < n; ++i)
                    for (size_t k = 0; k < got.size(); ++k) {
                        const std::vector<float>& one = alone[static_cast<size_t>(row_of(i))][k];
                        const auto first = got[k].begin() + i * std::ssize(one);
                        expect_same_bits(one, std::vector<float>(first, first + std::ssize(one)),
                                         fmt::format("{}, row {}, result {}", what, i, k).c_str());
                    }
            }
        }
    }
}

/// Experts that one row has for itself and experts that up to sixteen share, in one step.
TEST(DecodeRow1, sparse_layers_of_some_rows_give_each_the_bits_it_has_alone) {
    RT_GPU_ONLY();
    const int64_t sources = fewer(11, 2);
    const std::vector<float> x = test::random_rows(sources, kLagunaHidden, 82);
    const std::vector<LayerTypes> mixes = {
        LayerTypes(DType::q4_k),
        LayerTypes(DType::q6_k),
        {DType::q8_0, DType::q8_0},
        {DType::q2_k, DType::q3_k, DType::q4_k, DType::q6_k},
        {DType::iq3_s, DType::iq4_nl, DType::q5_k, DType::q5_k},
    };
    for (const LayerTypes& types : brief<LayerTypes>(mixes, 3))
        for (const bool shared : {true, false}) {
            const DType down_type = types.down.type;
            SparseLayer layer(types);
            const auto run = [&](const std::vector<int64_t>& rows) {
                std::vector<float> picked;
                for (const int64_t r : rows)
                    picked.insert(picked.end(), x.begin() + r * kLagunaHidden, x.begin() + (r + 1) * kLagunaHidden);
                layer.op.poison();
                Tensor t = layer.op.tensor(picked, {std::ssize(rows), kLagunaHidden});
                const ops::MoeResult r = layer.add(t, fewer(8, 2), true, shared);
                return Results{values_of(r.routing.weights), values_of(r.y), values_of(t)};
            };
            std::vector<Results> alone;
            for (int64_t r = 0; r < sources; ++r) alone.push_back(run({r}));
            for (const int64_t n : brief<int64_t>({16, 2, 6, 8, 9, 11, 15, 70}, 1)) {
                std::vector<int64_t> rows;  // the first comes again and again
                for (int64_t i = 0; i < n; ++i) rows.push_back(i % 3 == 0 ? 0 : i * 5 % sources);
                const Results together = run(rows);
                for (int64_t i = 0; i < n; ++i)
                    for (size_t k = 0; k < together.size(); ++k) {
                        const std::vector<float>& one = alone[static_cast<size_t>(rows[static_cast<size_t>(i)])][k];
                        const auto first = together[k].begin() + i * std::ssize(one);
                        expect_same_bits(one, std::vector<float>(first, first + std::ssize(one)),
                                         fmt::format("down {}, shared {}, row {} of {}, result {}",
                                                     dtype_name(down_type), shared, i, n, k)
                                             .c_str());
                    }
            }
        }
}

/// Rows that are alike choose the same experts.
TEST(DecodeRow1, rows_that_are_alike_get_the_same_bits) {
    RT_GPU_ONLY();
    SparseLayer layer(DType::q6_k);
    const std::vector<float> one = test::random_rows(1, kLagunaHidden, 81);
    std::vector<float> first;
    for (const int64_t n : brief<int64_t>({1, 4, 2, 3}, 2)) {
        layer.op.poison();
        std::vector<float> x;
        for (int64_t r = 0; r < n; ++r) x.insert(x.end(), one.begin(), one.end());
        Tensor t = layer.op.tensor(x, {n, kLagunaHidden});
        const std::vector<float> y = values_of(layer.add(t, fewer(8, 2), true).y);
        if (n == 1) first = y;
        for (int64_t r = 0; r < n; ++r)
            expect_same_bits(first,
                             std::vector<float>(y.begin() + r * kLagunaHidden, y.begin() + (r + 1) * kLagunaHidden),
                             fmt::format("row {} of {}", r, n).c_str());
    }
}

/// The kernels of a chain start before their predecessors end: the same bits in every replay.
TEST(DecodeRow1, replays_of_a_graph_of_layers_agree) {
    RT_GPU_ONLY();
    SparseLayer layer(DType::q6_k), other(DType::q4_k);
    OpContext& op = layer.op;
    const int64_t wide = fewer(6144, 512), narrow = fewer(1024, 64);
    const Weight q = place_random(op, {DType::q4_k}, wide, kLagunaHidden, 31),
                 k = place_random(op, {DType::q4_k}, narrow, kLagunaHidden, 32),
                 v = place_random(op, {DType::q6_k}, narrow, kLagunaHidden, 33),
                 o = place_random(op, {DType::q4_k}, kLagunaHidden, wide, 34);
    const Weight* const group[] = {&q, &k, &v};
    for (const int64_t n : brief<int64_t>({1, 2, 3, 4}, 1)) {
        op.poison();
        const Tensor source = op.tensor(test::random_rows(n, kLagunaHidden, 91), {n, kLagunaHidden});
        Tensor x = op.ctx.alloc(DType::f32, {n, kLagunaHidden});
        std::vector<Tensor> results;
        const auto step = [&] {
            op.ctx.gpu->copy(x.data, source.data, n * kLagunaHidden * int64_t{sizeof(float)});
            results.clear();
            for (SparseLayer* each : fewer<std::vector<SparseLayer*>>({&layer, &other, &layer}, {&other})) {
                for (const Tensor& y : ops::norm_matmul_group(op.ctx, x, layer.norm, group)) results.push_back(y);
                ops::matmul_add(op.ctx, o, results[results.size() - 3], x);
                const ops::Router how{&each->router, each->bias, fewer(8, 2), 2.5f, true};
                results.push_back(ops::moe_add(op.ctx, x, each->norm, how, {each->gate, each->up, each->down},
                                               {&each->shared_gate, &each->shared_up, &each->shared_down})
                                      .y);
            }
        };
        expect_replays_agree(op, fmt::format("{} rows", n), results, step);
    }
}

}  // namespace
}  // namespace riptide
