// Attention against the double reference.
#include "tests/ops/attention_world.h"

namespace riptide {
namespace {

/// How far an output may be from the exact one. `key` and `query`: the largest norms; v: the largest stored |v|.
double attention_error(const AttentionWorld& world, Family family, int64_t keys, double key, double query, double v) {
    const auto d = static_cast<double>(world.view.head_dim), n = static_cast<double>(keys);
    const double product = world.scale() * key * query;  // no score is larger
    if (test_gpu() == nullptr) {
        // Random-walk rounding of a dot product and its scale; it moves every weight by at most twice that, relative.
        // Then exp (2 ulp), the sums over up to 256 keys and their merging.
        const double score = kUnitF32 * (std::sqrt(d / 16 + 5) + 1) * product;
        return v * (2 * score + kUnitF32 * (8 + 3 * std::sqrt(std::min(n, 256.0))));
    }
    // A GPU's exponential is 2^(s log2 e): an ulp of the exponent for weights that matter, another 10 roundings.
    const double sums = kUnitF32 * (18 + 3 * std::sqrt(n));
    // Decoding without tensor cores, in f32: a lane adds d / 32 products, five steps add up the lanes, then come the
    // scale, its own two roundings, and the difference from the largest score.
    // Heads of 128, and of 256 without a window, go to tensor cores (with --portable not: that is within their bound).
    const bool tensor = world.view.head_dim == 128 || (world.view.head_dim == 256 && world.view.window == 0);
    if (family == Family::decode && !tensor) return v * (2 * kUnitF32 * (std::sqrt(d / 32 + 5) + 4) * product + sums);
    // Otherwise scores are added up in any order.
    const double score = kUnitF32 * (std::sqrt(d) + 3) * product;
    if (family == Family::decode) {
        // Tensor cores multiply in 16 bits: q and the weights in two parts, values of block types rounded once (tq3_0:
        // level and product), a rotated value by its share of the largest rotated one.
        const auto rounding = [](DType type) {
            if (type == DType::bf16) return 0x1p-16;
            return dtype_info(type).block_elements == 1 ? 0x1p-21 : kv_rotated(type) ? 0x1p-10 : 0x1p-11;
        };
        const double spread = kv_rotated(world.view.v_dtype) ? std::sqrt(d) : 1;
        return v *
               (2 * (score + product * rounding(world.view.k_dtype)) + sums + spread * rounding(world.view.v_dtype));
    }
    // Prefill: q goes to the 16 bits of the keys' tiles. For bf16 rows those are bf16: q is off by 2^-8 and the keys
    // are exact; for all others f16: q by 2^-11 and what is not f16 or fp8 once more, which is less. The same for
    // weights and v (weights below 2^-14 by 2^-25, which the sum's term covers). Tensor cores may cut off.
    const double half = 0x1p-8 + 0x1p-16;
    return v * (std::expm1(2 * (score + (half + d * 0x1p-23) * product)) + half + n * 0x1p-23 + sums);
}

void expect_within_bound(const WorldShape& shape, size_t committed, size_t rows, Family family,
                         std::vector<double>& shares) {
    OpContext op(family);
    AttentionWorld world(op, shape, 1);
    WorldSequence s = world.sequence();
    world.fill(s, token_ids(committed, 40), 64);
    std::vector<FedToken> fed = chain_of(rows);
    if (family == kTreeFamily)
        for (size_t i = 2; i < rows; i += 3) --fed[i].parent;
    world.step({&s}, {fed});
    const KvView stored = world.host_view();
    const std::vector<float> q = values_of(world.query), out = values_of(world.out);
    std::vector<double> expected(out.size());
    ops::attention_ref<double>(q.data(), shape.heads, stored, world.batch, world.scale(), expected.data());
    const auto keys = static_cast<int64_t>(committed + rows);
    const auto [query, key, largest_v] = magnitudes(world, shape, committed, rows, q);
    double allowed = attention_error(world, family, keys, key, query, largest_v);
    // Rotations add log2(128) butterflies to the query, to the output, and to each of the reference's values.
    if (kv_rotated(shape.k_dtype) || kv_rotated(shape.v_dtype))
        allowed += largest_v * kUnitF32 * 8 * (1 + world.scale() * key * query);
    // ... and of a row rounded to 16 bits in front of the products, by a share of the largest rotated value, which is
    // at most sqrt(d) times the largest.
    if (kv_rotated(shape.v_dtype) && test_gpu() != nullptr && family == Family::prefill)
        allowed *= std::sqrt(static_cast<double>(shape.head_dim));
    BoundCheck check;
    for (size_t i = 0; i < expected.size(); ++i) check.add(out[i], expected[i], allowed);
    EXPECT_LE(check.worst(), 1.0) << shape_name(shape) << ", " << committed << " committed, " << family_name(family);
    shares.push_back(check.worst());
}

TEST(attention, stays_within_the_bound_of_the_double_reference) {
    const DType types[] = {DType::f32, DType::f16, DType::bf16, DType::f8_e4m3, DType::q8_0, DType::q4_0, DType::tq3_0};
    for (const Family family : test_families()) {
        std::vector<double> shares;
        for (const int64_t group : brief<int64_t>({6, 1, 3, 8, 9}, 1))
            for (const int64_t d : brief<int64_t>({24, 40, 64, 128}, 2))
                for (const DType type : types) {
                    if (d % dtype_info(type).block_elements != 0) continue;
                    for (const int32_t window : {0, 50}) {
                        if (brief_counts() && (window == 0) != (static_cast<int>(type) % 2 == 0)) continue;
                        expect_within_bound({.heads = 2 * group,
                                             .kv_heads = 2,
                                             .head_dim = d,
                                             .k_dtype = type,
                                             .v_dtype = type,
                                             .window = window,
                                             .capacity = 32,
                                             .key_scale = family == Family::decode ? 3.0f : 0.5f},
                                            fewer<size_t>(280, 140), fewer<size_t>(19, 5), family, shares);
                    }
                }
        // How loose the bound is; says nothing of the kernels. It takes the longest key, the longest query and the
        // largest value for every output, and lets all roundings of 16-bit parts point the same way; random ones use
        // about 1 % of that on an H200 in the decode family, less with the coarser roundings of prefill.
        const double used = test_gpu() == nullptr ? 0.02 : family == Family::decode ? 0.005 : 0.002;
        EXPECT_GE(*std::max_element(shares.begin(), shares.end()), used) << "the bound is too loose";
    }
}

TEST(attention, long_contexts_stay_within_the_bound) {
    for (const Family family : test_families())
        for (const DType type : brief<DType>({DType::f16, DType::f8_e4m3, DType::q8_0}, 1))
            for (const int32_t window : {0, 512}) {
                std::vector<double> shares;
                for (const bool wide : {false, true})
                    expect_within_bound({.heads = wide ? 6 : 16,
                                         .kv_heads = wide ? 1 : 2,
                                         .head_dim = wide ? 256 : 128,
                                         .k_dtype = type,
                                         .v_dtype = type,
                                         .window = window,
                                         .page_rows = 64,
                                         .ring_rows = 640,
                                         .capacity = 40,
                                         .key_scale = 0.5f},
                                        fewer<size_t>(2300, 600), 5, family, shares);
            }
}

TEST(attention, heads_of_256_stay_within_the_bound) {
    const DType types[] = {DType::f16, DType::bf16, DType::f8_e4m3, DType::q8_0, DType::q4_0, DType::tq3_0};
    for (const Family family : test_families()) {
        std::vector<double> shares;
        for (const int64_t group : brief<int64_t>({8, 1, 6}, 1))
            for (const DType type : types)
                for (const size_t committed :
                     fewer<std::vector<size_t>>({0, 40, 600}, {560}))  // around the edges of chunks and tiles
                    expect_within_bound({.heads = fewer(2, 1) * group,
                                         .kv_heads = fewer(2, 1),
                                         .head_dim = 256,
                                         .k_dtype = type,
                                         .v_dtype = type,
                                         .capacity = 48,
                                         .key_scale = family == Family::decode ? 3.0f : 0.5f},
                                        committed, fewer<size_t>(19, 6), family, shares);
        // Longer heads have longer longest keys and queries, and no score comes near their product.
        const double used = test_gpu() == nullptr ? 0.01 : family == Family::decode ? 0.005 : 0.002;
        if (brief_counts()) continue;  // too few draws to say so
        EXPECT_GE(*std::max_element(shares.begin(), shares.end()), used) << "the bound is too loose";
    }
}

TEST(attention, huge_and_equal_scores_stay_finite) {
    std::vector<double> shares;
    for (const Family family : test_families())
        for (const float scale : {3000.0f, 0.0f})
            expect_within_bound({.k_dtype = DType::f32, .v_dtype = DType::f32, .key_scale = scale}, 280, 3, family,
                                shares);
}

}  // namespace
}  // namespace riptide
