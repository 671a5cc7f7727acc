// The arithmetic of the product that decodes weights in its kernel, on the CPU: bit for bit that of decode16(), and its
// places in shared memory.
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "ops/prefill_decode.cuh"
#include "tests/quant/random_weight.h"

namespace riptide {
namespace {

using namespace ops::cuda::prefill;

TEST(PrefillDecode, threads_and_rows_are_a_bijection_without_bank_conflicts) {
    for (const RowOrder order : {RowOrder::f32, RowOrder::swiglu}) {
        std::set<int> from, to;
        for (int thread = 0; thread < kDecodeRows; ++thread) {
            const DecodePlace p = decode_place(order, thread);
            from.insert(p.from);
            to.insert(p.to);
            if (order == RowOrder::f32) EXPECT_EQ(p.to, scratch_row(order, 0, p.from));
            else EXPECT_EQ(p.to, scratch_row(order, p.from / 128, p.from % 128));
            for (int piece = 0; piece < 8; ++piece)
                EXPECT_EQ(swizzled128(p.from, piece), swizzled128(p.from, 0) ^ static_cast<uint32_t>(piece) << 4);
            for (int piece = 0; piece < 4; ++piece)
                EXPECT_EQ(swizzled64(p.from, piece), swizzled64(p.from, 0) ^ static_cast<uint32_t>(piece) << 4);
        }
        EXPECT_EQ(from.size(), size_t{kDecodeRows});
        EXPECT_EQ(to.size(), size_t{kDecodeRows});
        EXPECT_EQ(*from.rbegin(), kDecodeRows - 1);
        EXPECT_EQ(*to.rbegin(), kDecodeRows - 1);
        // Sixteen bytes a thread go eight threads at a time: all must lie in different parts of 128 bytes.
        for (int first = 0; first < kDecodeRows; first += 8) {
            std::set<uint32_t> read, wide, written, scales;
            for (int thread = first; thread < first + 8; ++thread) {
                const DecodePlace p = decode_place(order, thread);
                read.insert(swizzled128(p.from, 3) % 128);
                wide.insert(swizzled64(p.from, 2) % 128);
                written.insert(swizzled128(p.to, 5) % 128);
                scales.insert(static_cast<uint32_t>(p.from * 16 % 128));
            }
            EXPECT_EQ(read.size(), 8u);
            EXPECT_EQ(wide.size(), 8u);
            EXPECT_EQ(written.size(), 8u);
            EXPECT_EQ(scales.size(), 8u);
        }
    }
}

struct Row {
    uint32_t nibbles[8][4], high[8][2];
    uint32_t scales[4];
    uint16_t d;  // q6_k
};

/// All 256 columns both ways; `quick`: as the kernel may choose.
template <DType T>
void expect_same(const Row& row, const char* what) {
    constexpr bool kSix = T == DType::planes_q6_k;
    Row copy = row;
    Weight w;
    w.dtype = T;
    w.rows = 1;
    w.cols = 256;
    w.data = copy.nibbles;
    struct {
        uint32_t words[4];
        uint16_t d;
    } scales = {{row.scales[0], row.scales[1], row.scales[2], row.scales[3]}, row.d};
    w.scales = &scales;
    uint32_t five[8];
    for (int g = 0; g < 8; ++g) five[g] = row.high[g][0];
    w.high = kSix ? static_cast<const void*>(copy.high) : five;
    const RowScales<T> shared({{row.scales[0], row.scales[1], row.scales[2], row.scales[3]}}, row.d);
    for (int g = 0; g < 8; ++g)
        for (int half = 0; half < 2; ++half) {
            float exact[16];
            decode16<T>(w, 0, 32 * g + 16 * half, exact);
            uint32_t codes[4];
            for (int t = 0; t < 4; ++t) codes[t] = half_codes<T>(row.nibbles[g][t], row.high[g][kSix ? half : 0], t, half);
            for (const bool quick : {true, false}) {
                if (quick && !shared.quick) continue;
                if (!quick && kSix) continue;
                const Affine f = affine_of(shared, g, half, quick);
                for (int i = 0; i < 2; ++i) {
                    const Words4 got = quick ? decode8<true>(codes[2 * i], codes[2 * i + 1], f)
                                             : decode8<false>(codes[2 * i], codes[2 * i + 1], f);
                    for (int j = 0; j < 8; ++j) {
                        const auto bits = static_cast<uint16_t>(got.w[j / 2] >> (16 * (j % 2)));
                        const uint16_t expected = f32_to_bf16(exact[8 * i + j]);
                        if ((bits | expected) == 0x8000) continue;  // zeros of two signs
                        ASSERT_EQ(bits, expected) << what << " column " << 32 * g + 16 * half + 8 * i + j << " quick "
                                                  << quick << " d " << row.scales[3];
                    }
                }
            }
        }
}

template <DType T>
void random_rows() {
    std::mt19937_64 random(20);
    int quick = 0;
    constexpr int kRows = 4000;
    for (int i = 0; i < kRows; ++i) {
        Row row;
        const auto word = [&] { return static_cast<uint32_t>(random()); };
        for (auto& g : row.nibbles)
            for (uint32_t& w : g) w = word();
        for (auto& g : row.high)
            for (uint32_t& w : g) w = word();
        for (uint32_t& w : row.scales) w = word();
        if (i % 2 == 0) row.scales[0] = row.scales[1] = row.scales[2] = ~0u;  // the largest scales
        // All pairs of exponents but those of infinities, all mantissas; sometimes the largest.
        const uint32_t d = (word() % 31) << 10 | (i % 3 == 0 ? 1023u : word() & 1023u) | (word() & 0x8000u),
                       dmin = (word() % 31) << 10 | (i % 5 == 0 ? 1023u : word() & 1023u) | (word() & 0x8000u);
        if (T != DType::planes_q6_k) row.scales[3] = dmin << 16 | d;
        row.d = static_cast<uint16_t>(d);
        quick += exact_offset(static_cast<uint16_t>(d), static_cast<uint16_t>(dmin)) ? 1 : 0;
        expect_same<T>(row, dtype_name(T));
        if (testing::Test::HasFatalFailure()) return;
    }
    EXPECT_GT(quick, kRows / 10);
}

TEST(PrefillDecode, gives_the_bits_of_decode16) {
    random_rows<DType::planes_q4_k>();
    random_rows<DType::planes_q5_k>();
    random_rows<DType::planes_q6_k>();
}

}  // namespace
}  // namespace riptide
