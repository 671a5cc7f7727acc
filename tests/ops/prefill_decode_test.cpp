// The arithmetic of the product that decodes weights in its kernel, on the CPU: bit for bit that of decode16(), and its
// places in shared memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <set>
#include <vector>

#include "ops/prefill_decode.cuh"
#include "quant/placement.h"
#include "tests/quant/random_weight.h"

namespace riptide {
namespace {

using namespace ops::cuda::prefill;
using test::RandomWeight;
using test::WeightKind;

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
    const RowScales<T> shared = row_scales<T>({{row.scales[0], row.scales[1], row.scales[2], row.scales[3]}}, row.d);
    for (int g = 0; g < 8; ++g)
        for (int half = 0; half < 2; ++half) {
            float exact[16];
            decode16<T>(w, 0, 32 * g + 16 * half, exact);
            uint32_t codes[4];
            for (int t = 0; t < 4; ++t)
                codes[t] = half_codes<T>(row.nibbles[g][t], row.high[g][kSix ? half : 0], t, half);
            for (const bool quick : {true, false}) {
                if (quick && !shared.quick) continue;
                if (!quick && kSix) continue;
                const Affine f = affine_of(shared, row.scales[g / 2], g, half, quick);
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

/// Shared memory on the CPU.
struct FakeMemory {
    std::vector<uint8_t> bytes = std::vector<uint8_t>(128 * 1024, 0xA5);
    template <class V>
    V get(uint32_t from) const {
        V v;
        EXPECT_EQ(from % sizeof v, 0u);
        std::memcpy(&v, bytes.data() + from, sizeof v);
        return v;
    }
    Words4 read16(uint32_t from) const { return get<Words4>(from); }
    uint32_t read4(uint32_t from) const { return get<uint32_t>(from); }
    uint16_t read2(uint32_t from) const { return get<uint16_t>(from); }
    void write16(uint32_t to, const Words4& v) {
        EXPECT_EQ(to % 16, 0u);
        std::memcpy(bytes.data() + to, &v, 16);
    }
    /// A box of 128 rows as TMA brings it; `swizzle` bits of the 16-byte pieces' addresses, from bit 4, are turned by
    /// those from bit 7. Rows behind the last are zero.
    void box(uint32_t to, const void* plane, int64_t row_bytes, int64_t rows, int64_t first, int64_t x, int box_bytes,
             int swizzle) {
        for (int r = 0; r < 128; ++r)
            for (int c = 0; c < box_bytes; ++c) {
                uint32_t at = static_cast<uint32_t>(r * box_bytes + c);
                at ^= (at >> 7 & ((1u << swizzle) - 1)) << 4;
                bytes[to + at] =
                    first + r < rows ? static_cast<const uint8_t*>(plane)[(first + r) * row_bytes + x + c] : uint8_t{0};
            }
    }
};

/// A whole tile as the kernel makes it, against the rows of the matrix in the order of B.
template <DType T>
void expect_tile(DType file_type, RowOrder order, int64_t rows, int64_t k, int n) {
    using S = Span<T>;
    std::vector<RandomWeight> owned;
    std::vector<std::vector<std::byte>> memory;
    std::vector<Weight> w;
    for (int i = 0; i < 2; ++i) {
        owned.emplace_back(WeightKind{file_type}, rows, k, static_cast<uint64_t>(40 + i));
        const Placement plan = plan_placement(owned.back().w);
        memory.emplace_back(static_cast<size_t>(plan.bytes() + 16));
        auto* base = reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(memory.back().data()) + 15) / 16 * 16);
        w.push_back(place_on_host(owned.back().w, plan, base));
        ASSERT_EQ(w.back().dtype, T);
    }
    const bool swiglu = order == RowOrder::swiglu;
    const auto spans = static_cast<int>(k / 256);
    constexpr uint32_t kTile = 96 * 1024;
    for (int span = 0; span < spans; ++span) {
        FakeMemory shared;
        for (int h = 0; h < 2; ++h) {
            const Weight& from = w[swiglu ? static_cast<size_t>(h) : 0];
            const int64_t row = swiglu ? n / 2 : n + 128 * h;
            const auto half = static_cast<uint32_t>(h);
            shared.box(half * (S::kData / 2), from.data, k / 2, rows, row, 128 * span, 128, 3);
            shared.box(S::kAtScales + half * (S::kScales / 2), from.scales, k / 16, rows, row, 16 * span, 16, 0);
            if (S::kHigh > 0)
                shared.box(S::kAtHigh + half * (S::kHigh / 2), from.high, k / 256 * S::kHighRow, rows, row,
                           S::kHighRow * span, S::kHighRow, S::kSixBits ? 2 : 0);
            if (S::kSixBits)
                std::memcpy(shared.bytes.data() + S::kAtD + h * 128 * spans * 2,
                            static_cast<const char*>(from.scales) + rows * spans * 16 + row * spans * 2,
                            static_cast<size_t>(std::clamp<int64_t>(rows - row, 0, 128) * spans * 2));
        }
        for (int step = 0; step < 4; ++step) {
            for (int thread = 0; thread < kDecodeRows; ++thread) {
                const DecodePlace place = decode_place(order, thread);
                const RowScales<T> scales = load_scales<T>(shared, 0, place.from, span, spans);
                const StepWords words = load_step<T>(shared, 0, place.from, step);
                if (scales.quick) store_step<T, true>(shared, kTile, place.to, step, words, scales);
                else store_step<T, false>(shared, kTile, place.to, step, words, scales);
            }
            for (int64_t c = 0; c < rows; ++c)
                for (int which = 0; which < (swiglu ? 2 : 1); ++which) {
                    const int b_row = scratch_row(order, which, static_cast<int>(c)) - n;
                    if (b_row < 0 || b_row >= kDecodeRows) continue;
                    for (int j = 0; j < 64; j += 16) {
                        float exact[16];
                        decode16<T>(w[static_cast<size_t>(which)], c, 256 * span + 64 * step + j, exact);
                        for (int i = 0; i < 16; ++i) {
                            auto at = static_cast<uint32_t>(b_row * 128 + 2 * (j + i));  // TMA's swizzle again
                            at ^= (at >> 7 & 7) << 4;
                            const auto got = shared.get<uint16_t>(kTile + at), expected = f32_to_bf16(exact[i]);
                            if ((got | expected) == 0x8000) continue;  // zeros of two signs
                            ASSERT_EQ(got, expected) << "row " << c << " of " << which << ", step " << step;
                        }
                    }
                }
        }
    }
}

TEST(PrefillDecode, makes_the_tile_that_expansion_makes) {
    for (const RowOrder order : {RowOrder::f32, RowOrder::swiglu})
        for (const int n : {0, 256}) {
            expect_tile<DType::planes_q4_k>(DType::q4_k, order, 320, 512, n);
            expect_tile<DType::planes_q5_k>(DType::q5_k, order, 320, 512, n);
            expect_tile<DType::planes_q6_k>(DType::q6_k, order, 320, 512, n);
        }
}

}  // namespace
}  // namespace riptide
