#include "ops/noise.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

namespace riptide::testing {
namespace {

// The published answers of the generator's reference implementation (Random123, kat_vectors).
TEST(Philox, gives_the_published_answers) {
    using Counter = std::array<uint32_t, 4>;
    EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}), (Counter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
    EXPECT_EQ(philox({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
              (Counter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
    EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
              (Counter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(SamplingNoise, is_uniform_strictly_between_0_and_1) {
    constexpr int kBins = 64, kDraws = 300000;
    std::vector<int> bins(kBins);
    for (int i = 0; i < kDraws; ++i) {
        const double u = sampling_noise(42, static_cast<uint64_t>(i / 100), static_cast<uint32_t>(i % 100));
        ASSERT_GT(u, 0);
        ASSERT_LT(u, 1);
        ++bins[static_cast<size_t>(u * kBins)];
    }
    double chi2 = 0;
    for (const int n : bins) chi2 += std::pow(n - kDraws / double{kBins}, 2) / (kDraws / double{kBins});
    EXPECT_LT(chi2, 114.1);  // 63 degrees of freedom, alpha 1e-4
}

TEST(SamplingNoise, differs_in_every_argument) {
    std::set<double> values;
    for (const uint64_t seed : {0ull, 1ull, 1ull << 32, 1ull << 63})
        for (const uint64_t position : {0ull, 1ull, 1ull << 31, 1ull << 32})
            for (const uint32_t token : {0u, 1u, 100351u}) values.insert(sampling_noise(seed, position, token));
    EXPECT_EQ(values.size(), 48u);
}

}  // namespace
}  // namespace riptide::testing
