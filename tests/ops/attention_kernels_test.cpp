// The CPU's kernels of attention, one instruction set against the other.
#include "ops/cpu/attention_kernels.h"

#include <numeric>

#include "quant/kv_codec.h"
#include "tests/ops/op_fixture.h"

namespace riptide {
namespace {

TEST(attention, instruction_sets_agree_bit_for_bit) {
    RT_CPU_ONLY("instruction sets of the CPU");
    const ops::AttentionKernels* base = ops::attention_kernels("base");
    ASSERT_NE(base, nullptr);
    for (const char* name : {"avx2", "avx512"}) {
        const ops::AttentionKernels* other = ops::attention_kernels(name);
        if (other == nullptr) continue;
        for (const int64_t dp : {16, 32, 48, 64, 112, 128, 256}) {
            const auto size = static_cast<size_t>(dp);
            constexpr int64_t n = 7;  // whole groups of queries and some over
            alignas(64) static float q[n * 256], k[64 * 256], s[2][n * 256], state[2][n * 272], merged[2][272];
            std::ranges::copy(normals(n * size, 1), q);
            std::ranges::copy(normals(64 * size, 2, 4.0f), k);
            const ops::AttentionKernels* sets[] = {base, other};
            for (size_t i = 0; i < 2; ++i) {
                std::fill_n(merged[i], 272, 0.0f);
                sets[i]->scores(q, n, k, 64, dp, 0.3f, s[i] + 64);
                for (int64_t r = 0; r < n; ++r)
                    sets[i]->softmax(s[i] + r * 256, 67, 121, dp, state[i] + r * ops::attention_state_floats(dp));
                sets[i]->accumulate(s[i] + 67, n, k, 54, dp, state[i]);
                for (int64_t r = 0; r < n; ++r)
                    sets[i]->merge(merged[i], state[i] + r * ops::attention_state_floats(dp), dp);
            }
            for (int64_t r = 0; r < n; ++r) {
                EXPECT_TRUE(same_bits(s[0] + r * 256 + 67, s[1] + r * 256 + 67, 54)) << name << " " << dp;
                const int64_t at = r * ops::attention_state_floats(dp);
                EXPECT_TRUE(same_bits(state[0] + at, state[1] + at, size + 2)) << name << " " << dp;
            }
            EXPECT_TRUE(same_bits(merged[0], merged[1], size + 2)) << name << " " << dp;
            EXPECT_GT(merged[0][dp + 1], 1.0f);
        }
    }
}

TEST(attention, fast_f16_decoding_is_exact) {
    RT_CPU_ONLY("instruction sets of the CPU");
    std::vector<uint16_t> all(65536);
    std::iota(all.begin(), all.end(), uint16_t{0});
    std::vector<float> expected(65536), found(65536);
    decode_kv_row(DType::f16, all.data(), expected.data(), 65536);
    for (const char* name : {"base", "avx2", "avx512"}) {
        const ops::AttentionKernels* kernels = ops::attention_kernels(name);
        if (kernels == nullptr || kernels->decode_f16 == nullptr) continue;
        for (size_t begin = 0; begin < all.size(); begin += 37)
            kernels->decode_f16(&all[begin], &found[begin],
                                static_cast<int64_t>(std::min<size_t>(37, all.size() - begin)));
        for (size_t i = 0; i < all.size(); ++i)
            ASSERT_TRUE(same_bits(&found[i], &expected[i], 1) || (std::isnan(found[i]) && std::isnan(expected[i])))
                << name << " " << i;
    }
}

}  // namespace
}  // namespace riptide
