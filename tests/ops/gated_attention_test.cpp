#include "ops/gated_attention.h"

#include "ops/elementwise.h"
#include "ops/norm.h"
#include "tests/ops/attention_world.h"
#include "tests/quant/random_weight.h"

namespace riptide {
namespace {

/// The projections of a step, as a layer's matrices would give them.
ops::AttentionInput random_input(OpContext& op, const WorldShape& shape, int64_t n, const ops::Rope* rope, bool norms,
                                 int64_t gates) {
    const auto values = [&](int64_t heads, uint64_t seed) {
        return op.tensor(normals(static_cast<size_t>(n * heads * shape.head_dim), seed), {n, heads, shape.head_dim});
    };
    ops::AttentionInput in;
    in.q = values(shape.heads, 1);
    in.k = values(shape.kv_heads, 2);
    in.v = values(shape.kv_heads, 3);
    if (gates > 0) in.gate = op.tensor(normals(static_cast<size_t>(n * gates), 4), {n, gates});
    if (norms) {
        in.q_norm = {op.floats(normals(static_cast<size_t>(shape.head_dim), 5, 0.5f)), 1e-6f};
        in.k_norm = {op.floats(normals(static_cast<size_t>(shape.head_dim), 6, 0.5f)), 1e-5f};
    }
    in.rope = rope;
    in.softmax_scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
    return in;
}

/// gated_attention's definition, op by op. `rotary`: Batch::rotary_position of each row.
Tensor composed(OpContext& op, const ops::AttentionInput& in, const KvView& view, const Batch& batch,
                std::span<const int32_t> rotary) {
    Tensor q = in.q_norm.weight.empty() ? in.q : ops::rms_norm(op.ctx, in.q, in.q_norm.weight, in.q_norm.eps);
    Tensor k = in.k_norm.weight.empty() ? in.k : ops::rms_norm(op.ctx, in.k, in.k_norm.weight, in.k_norm.eps);
    if (in.rope != nullptr) {
        ops::rope(op.ctx, q, rotary, *in.rope);
        ops::rope(op.ctx, k, rotary, *in.rope);
    }
    ops::kv_append(op.ctx, view, k, in.v, batch);
    Tensor o = ops::attention(op.ctx, q, view, batch, in.softmax_scale);
    if (in.gate.data != nullptr) ops::mul_softplus(op.ctx, o, in.gate, in.q.shape[1]);
    return o;
}

TEST(gated_attention, equals_norm_rope_append_attention_and_gate) {
    const ops::Rope partial = ops::make_yarn_rope(500000, 64, 32, 4096, 64, 1, 1.3466),
                    whole = ops::make_rope(10000, 128), small = ops::make_rope(10000, 40);
    struct Case {
        WorldShape shape;
        const ops::Rope* rope;
        bool norms;
        int64_t gates;  // 0, heads, or heads * head_dim
    };
    const Case cases[] = {
        {{.heads = 12, .kv_heads = 2, .head_dim = 128, .k_dtype = DType::bf16, .v_dtype = DType::bf16},
         &partial,
         true,
         12},
        {{.heads = 16, .kv_heads = 2, .head_dim = 128, .window = 100, .ring_rows = 256}, &whole, true, 16},
        {{.heads = 8, .kv_heads = 1, .head_dim = 128, .k_dtype = DType::f8_e4m3, .v_dtype = DType::f8_e4m3},
         &whole,
         true,
         0},
        {{.heads = 8, .kv_heads = 1, .head_dim = 128, .k_dtype = DType::tq3_0, .v_dtype = DType::q8_0},
         &whole,
         true,
         8},
        {{.heads = 10, .kv_heads = 5, .head_dim = 128, .k_dtype = DType::q8_0, .v_dtype = DType::q4_0},
         &partial,
         true,
         10},
        {{.heads = 6, .kv_heads = 2, .head_dim = 128, .k_dtype = DType::q8_0, .v_dtype = DType::q8_0},
         nullptr,
         false,
         0},
        {{.heads = 6, .kv_heads = 2, .head_dim = 40, .k_dtype = DType::f32, .v_dtype = DType::f32}, &small, false, 240},
        {{.heads = 4, .kv_heads = 4, .head_dim = 64}, nullptr, true, 4},
    };
    const int64_t kBefore = fewer(270, 140);
    for (const Family family : test_families())
        for (const Case& c : cases)
            for (const auto& [rows, gapped] : brief<std::pair<size_t, bool>>(
                     {{1, false}, {1, true}, {2, false}, {2, true}, {60, false}, {60, true}, {7, false}, {7, true}},
                     3)) {
                if (gapped && c.rope == nullptr) continue;
                if (brief_counts() && c.rope != nullptr && rows != ((&c - cases) % 2 == 0 ? 1u : 7u)) continue;
                OpContext op(family), other(family);
                AttentionWorld fused(op, c.shape, 1), apart(other, c.shape, 1);  // the same pages
                WorldSequence s = fused.sequence(), t = apart.sequence();
                fused.fill(s, token_ids(kBefore, 7), 64);
                apart.fill(t, token_ids(kBefore, 7), 64);
                fused.place({&s}, {chain_of(rows)});  // for its batch; K and V are written again
                apart.place({&t}, {chain_of(rows)});
                const auto n = static_cast<int64_t>(rows);
                // Rows that stood further back, with tokens left out between them: only the rotation changes.
                std::vector<int32_t> gaps, rotary;
                for (size_t r = 0; r < rows; ++r) {
                    gaps.push_back(gapped ? static_cast<int32_t>(1000 + 37 * (r / 3)) : 0);
                    rotary.push_back(apart.batch.positions[r] + gaps.back());
                }
                if (gapped) fused.device_batch.gaps = op.ints(gaps);
                const Tensor found = ops::gated_attention(
                    op.ctx, random_input(op, c.shape, n, c.rope, c.norms, c.gates), fused.view, fused.device_batch);
                const Tensor expected = composed(other, random_input(other, c.shape, n, c.rope, c.norms, c.gates),
                                                 apart.view, apart.device_batch, other.ints(rotary));
                const std::string what =
                    shape_name(c.shape) +
                    fmt::format(", {} rows{}, {}", rows, gapped ? " behind gaps" : "", family_name(family));
                expect_same_rows(AttentionWorld::rows_of(found), AttentionWorld::rows_of(expected), what);
                const KvView a = fused.host_view(), b = apart.host_view();
                for (int64_t i = 0; i < kBefore + n; ++i) {
                    const int64_t slot = a.slot(fused.batch, 0, i);
                    if (c.shape.window > 0 && i + c.shape.ring_rows < kBefore + n) continue;
                    ASSERT_EQ(slot, b.slot(apart.batch, 0, i));
                    ASSERT_EQ(std::memcmp(a.k_row(slot, 0), b.k_row(slot, 0), static_cast<size_t>(a.k_slot_bytes)), 0)
                        << what << ": K of token " << i;
                    ASSERT_EQ(std::memcmp(a.v_row(slot, 0), b.v_row(slot, 0), static_cast<size_t>(a.v_slot_bytes)), 0)
                        << what << ": V of token " << i;
                }
            }
}

TEST(gated_attention, sigmoid_attention_equals_its_parts) {
    const ops::Rope rope = ops::make_rope(10000, 64);
    for (const Family family : test_families())
        for (const DType type : brief<DType>({DType::q8_0, DType::f16, DType::tq3_0}, 1))
            for (const int64_t d : {256, 128})
                for (const size_t rows : fewer<std::vector<size_t>>({1, 3, 20}, {1, 9})) {
                    const int64_t heads = fewer(12, 6);
                    const WorldShape shape{
                        .heads = heads, .kv_heads = heads / 6, .head_dim = d, .k_dtype = type, .v_dtype = type};
                    OpContext op(family), other(family);
                    AttentionWorld fused(op, shape, 1), apart(other, shape, 1);
                    WorldSequence s = fused.sequence(), t = apart.sequence();
                    fused.fill(s, token_ids(d == 256 ? 530 : 140, 7), 64);
                    apart.fill(t, token_ids(d == 256 ? 530 : 140, 7), 64);
                    fused.place({&s}, {chain_of(rows)});
                    apart.place({&t}, {chain_of(rows)});
                    const auto n = static_cast<int64_t>(rows);
                    const std::vector<float> beside = normals(static_cast<size_t>(n * heads * 2 * d), 9);
                    ops::AttentionInput in = random_input(op, shape, n, &rope, true, 0);
                    in.q = op.tensor(beside, {n, heads, 2 * d});
                    const Tensor found = ops::sigmoid_attention(op.ctx, in, fused.view, fused.device_batch);
                    ops::AttentionInput plain = random_input(other, shape, n, &rope, true, 0);
                    const ops::HeadsAndGates parts =
                        ops::split_gates(other.ctx, other.tensor(beside, {n, heads * 2 * d}), heads);
                    plain.q = parts.heads.view({n, heads, d});
                    Tensor expected = ops::gated_attention(other.ctx, plain, apart.view, apart.device_batch);
                    ops::mul_sigmoid(other.ctx, expected, parts.gates, heads);
                    expect_same_rows(AttentionWorld::rows_of(found), AttentionWorld::rows_of(expected),
                                     shape_name(shape) + fmt::format(", {} rows, {}", rows, family_name(family)));
                }
}

TEST(gated_attention, adding_its_projection_to_the_stream_equals_both_ops_on_any_number_of_threads) {
    const ops::Rope rope = ops::make_rope(10000, 128);
    for (const WorldShape& shape : {WorldShape{.heads = 12, .kv_heads = 2, .head_dim = 128},
                                    WorldShape{.heads = 6, .kv_heads = 1, .head_dim = 40}})
        for (const DType type : {DType::q4_k, DType::f32})
            for (const size_t rows : fewer<std::vector<size_t>>({1, 2, 20}, {1, 9}))
                for (const size_t before :
                     fewer<std::vector<size_t>>({40, 255, 700}, {140}))  // one piece of keys, two, many
                    for (const int threads : brief<int>({1, 3, 16}, 1)) {
                        const int64_t cols = shape.heads * shape.head_dim, n = static_cast<int64_t>(rows);
                        if (type == DType::q4_k && cols % 256 != 0) continue;
                        const test::RandomWeight wo({type}, 96, cols, 7);
                        OpContext op(threads), other(1);
                        const auto run = [&](OpContext& o, bool fused) {
                            AttentionWorld world(o, shape, 1);
                            WorldSequence s = world.sequence();
                            world.fill(s, token_ids(before, 7), 64);
                            world.place({&s}, {chain_of(rows)});
                            const ops::AttentionInput in =
                                random_input(o, shape, n, shape.head_dim == 128 ? &rope : nullptr, true, shape.heads);
                            Tensor x = o.tensor(normals(static_cast<size_t>(n * 96), 8), {n, 96});
                            const Weight w = o.weight(wo.w);
                            const Tensor y =
                                fused ? ops::gated_attention_add(o.ctx, in, world.view, world.device_batch, w, x)
                                      : ops::matmul_add(o.ctx, w,
                                                        composed(o, in, world.view, world.device_batch,
                                                                 world.device_batch.positions),
                                                        x);
                            std::vector<float> both = values_of(y), stream = values_of(x);
                            both.insert(both.end(), stream.begin(), stream.end());
                            return both;
                        };
                        const std::vector<float> found = run(op, true), expected = run(other, false);
                        ASSERT_EQ(std::memcmp(found.data(), expected.data(), found.size() * sizeof(float)), 0)
                            << shape_name(shape) << ", " << dtype_name(type) << ", " << rows << " rows after " << before
                            << ", " << threads << " threads";
                    }
}

// A GPU's prompts hand over bf16 rows, which the product would have made of f32 ones.
TEST(gated_attention, adding_its_projection_equals_both_ops_in_prompts) {
    const ops::Rope rope = ops::make_rope(10000, 128);
    for (const WorldShape& shape :
         {WorldShape{.heads = 12, .kv_heads = 2, .head_dim = 128},
          WorldShape{.heads = 4, .kv_heads = 2, .head_dim = 64}, WorldShape{.heads = 2, .kv_heads = 1, .head_dim = 256},
          WorldShape{.heads = 8, .kv_heads = 1, .head_dim = 40}})
        for (const bool elements : {false, true})
            for (const size_t rows : fewer<std::vector<size_t>>({1, 9, 130, 200}, {9})) {
                const int64_t cols = shape.heads * shape.head_dim, n = static_cast<int64_t>(2 * rows);
                const test::RandomWeight wo({DType::q8_0}, 96, cols, 7);
                OpContext op(1, int64_t{64} << 20);
                op.ctx.family = Family::prefill;
                const Weight w = op.weight(wo.w);
                AttentionWorld world(op, shape, 2);
                WorldSequence one = world.sequence(), two = world.sequence();
                world.fill(one, token_ids(140, 7), 64);
                world.fill(two, token_ids(3, 9), 64);
                world.place({&one, &two}, {chain_of(rows), chain_of(rows)});
                std::vector<float> results[2];
                for (const bool fused : {false, true}) {
                    const ops::AttentionInput in = random_input(op, shape, n, shape.head_dim == 128 ? &rope : nullptr,
                                                                true, elements ? cols : shape.heads);
                    Tensor x = op.tensor(normals(static_cast<size_t>(n * 96), 8), {n, 96});
                    const Tensor y =
                        fused ? ops::gated_attention_add(op.ctx, in, world.view, world.device_batch, w, x)
                              : ops::matmul_add(op.ctx, w,
                                                ops::gated_attention(op.ctx, in, world.view, world.device_batch), x);
                    results[fused ? 1 : 0] = values_of(y);
                    const std::vector<float> stream = values_of(x);
                    results[fused ? 1 : 0].insert(results[fused ? 1 : 0].end(), stream.begin(), stream.end());
                }
                expect_same_bits(results[1], results[0],
                                 fmt::format("{}, twice {} rows", shape_name(shape), rows).c_str());
            }
}

}  // namespace
}  // namespace riptide
