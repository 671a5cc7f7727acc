// The arithmetic of the product that decodes weights in its kernel, on the CPU: bit for bit that of decode16(), and its
// places in shared memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <random>
#include <vector>

#include "ops/cuda/linear/gemm/dequantize_bf16.cuh"
#include "quant/placement.h"
#include "tests/quant/random_weight.h"

namespace riptide {
namespace {

using namespace ops::cuda::prefill;
using test::RandomWeight;
using test::WeightKind;

TEST(PrefillDecode, an_experts_rows_are_shared_out_evenly) {
    for (int rows = 1; rows <= 5000; ++rows) {
        const int tiles = ceil_div(rows, kTileM);
        int at = 0, least = rows, most = 0;
        for (int i = 0; i < tiles; ++i) {
            const EvenRows even = even_rows(rows, tiles, i);
            ASSERT_EQ(even.begin, at);
            ASSERT_GT(even.end, even.begin);
            ASSERT_LE(even.end - even.begin, kTileM);
            at = even.end;
            if (i + 1 < tiles) least = std::min(least, even.end - even.begin);
            most = std::max(most, even.end - even.begin);
        }
        ASSERT_EQ(at, rows);
        if (tiles > 1) {
            ASSERT_EQ(least, most) << rows;
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
void expect_same_decoding(const Row& row, const char* what) {
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
void decode_random_rows() {
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
        expect_same_decoding<T>(row, dtype_name(T));
        if (::testing::Test::HasFatalFailure()) return;
    }
    EXPECT_GT(quick, kRows / 10);
}

TEST(PrefillDecode, gives_the_bits_of_decode16) {
    decode_random_rows<DType::planes_q4_k>();
    decode_random_rows<DType::planes_q5_k>();
    decode_random_rows<DType::planes_q6_k>();
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
    Words2 read8(uint32_t from) const { return get<Words2>(from); }
    uint32_t read4(uint32_t from) const { return get<uint32_t>(from); }
    uint16_t read2(uint32_t from) const { return get<uint16_t>(from); }
    /// A box as TMA brings it; `swizzle` bits of the 16-byte pieces' addresses, from bit 4, are turned by
    /// those from bit 7. Rows behind the last are zero.
    void box(uint32_t to, const void* plane, int64_t row_bytes, int64_t rows, int64_t first, int64_t x, int box_rows,
             int box_bytes, int swizzle) {
        for (int r = 0; r < box_rows; ++r)
            for (int c = 0; c < box_bytes; ++c) {
                uint32_t at = static_cast<uint32_t>(r * box_bytes + c);
                at ^= (at >> 7 & ((1u << swizzle) - 1)) << 4;
                bytes[to + at] =
                    first + r < rows ? static_cast<const uint8_t*>(plane)[(first + r) * row_bytes + x + c] : uint8_t{0};
            }
    }
};

/// Two matrices (one for RowOrder::f32) and the spans of one tile of them. S: Span.
template <class S>
class TileOfPlanes {
  public:
    TileOfPlanes(DType file_type, RowOrder order, int64_t rows, int64_t k, int n)
        : swiglu_(order == RowOrder::swiglu), rows_(rows), k_(k), n_(n) {
        for (int i = 0; i < 2; ++i) {
            owned_.emplace_back(WeightKind{file_type}, rows, k, static_cast<uint64_t>(40 + i));
            const Placement plan = plan_placement(owned_.back().w);
            memory_.emplace_back(static_cast<size_t>(plan.bytes() + 16));
            auto* base =
                reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(memory_.back().data()) + 15) / 16 * 16);
            w_.push_back(place_on_host(owned_.back().w, plan, base));
            EXPECT_EQ(w_.back().dtype, S::kType);
        }
    }
    int spans() const { return static_cast<int>(k_ / 256); }
    /// What TMA brings of a span, at 0.
    FakeMemory span(int span) const {
        constexpr int kRows = S::kBoxRows;
        FakeMemory shared;
        for (int h = 0; h < 2; ++h) {
            const Weight& from = w_[swiglu_ ? static_cast<size_t>(h) : 0];
            const int64_t row = swiglu_ ? n_ / 2 : n_ + kRows * h;
            const auto half = static_cast<uint32_t>(h);
            shared.box(half * (S::kData / 2), from.data, k_ / 2, rows_, row, 128 * span, kRows, 128, 3);
            shared.box(S::kAtScales + half * (S::kScales / 2), from.scales, k_ / 16, rows_, row, 16 * span, kRows, 16,
                       0);
            if (S::kHigh > 0)
                shared.box(S::kAtHigh + half * (S::kHigh / 2), from.high, k_ / 256 * S::kHighRow, rows_, row,
                           S::kHighRow * span, kRows, S::kHighRow, S::kSixBits ? 2 : 0);
            if (S::kSixBits)
                std::memcpy(shared.bytes.data() + S::kAtD + h * kRows * spans() * 2,
                            static_cast<const char*>(from.scales) + rows_ * spans() * 16 + row * spans() * 2,
                            static_cast<size_t>(std::clamp<int64_t>(rows_ - row, 0, kRows) * spans() * 2));
        }
        return shared;
    }
    /// Sixteen columns of a row as bf16.
    std::array<uint16_t, 16> expected(int which, int64_t row, int64_t col) const {
        float exact[16];
        decode16<S::kType>(w_[static_cast<size_t>(which)], row, col, exact);
        std::array<uint16_t, 16> bits;
        for (size_t i = 0; i < 16; ++i) bits[i] = f32_to_bf16(exact[i]);
        return bits;
    }

  private:
    bool swiglu_;
    int64_t rows_, k_;
    int n_;
    std::vector<RandomWeight> owned_;
    std::vector<std::vector<std::byte>> memory_;
    std::vector<Weight> w_;
};

bool same_value(uint16_t a, uint16_t b) { return a == b || (a | b) == 0x8000; }  // zeros of two signs

/// The A fragments of all threads that multiply, against the matrix.
template <DType T, RowOrder kOrder>
void expect_fragments(DType file_type, int64_t rows, int64_t k, int n) {
    using Place = FragmentPlace<kOrder>;
    using S = Span<T>;
    const TileOfPlanes<S> tile(file_type, kOrder, rows, k, n);
    constexpr bool swiglu = Place::kPairs;
    int64_t seen = 0;
    for (int span = 0; span < tile.spans(); ++span) {
        FakeMemory shared = tile.span(span);
        for (int thread = 0; thread < 2 * kTileRows; ++thread) {
            const Place place(thread);
            const int t = thread % 4;
            for (int i = 0; i < 2; ++i) {
                const int box_row = place.row + i * Place::kSecond, result = place.row + i * kSecondColumn<kOrder>;
                const int64_t row = (swiglu ? n / 2 : n) + result;
                EXPECT_EQ(box_row, swiglu ? S::kBoxRows * i + result : result);
                if (row >= rows) continue;
                const RowScales<T> scales = load_scales<S>(shared, 0, box_row, span, tile.spans());
                for (int sub = 0; sub < 8; ++sub) {
                    const ShareWords words =
                        load_share<S>(shared, share_at<S>(0, place.row, sub, t), i * Place::kSecond, t);
                    for (int half = 0; half < 2; ++half) {
                        const Affine f = affine_of(scales, scales.header.w[sub / 2], sub, half, scales.quick);
                        const uint32_t codes = share_codes<T>(words, t, half);
                        const Words2 got = scales.quick ? decode4<true>(codes, f) : decode4<false>(codes, f);
                        const auto expected = tile.expected(swiglu ? i : 0, row, 256 * span + 32 * sub + 16 * half);
                        for (int j = 0; j < 4; ++j) {
                            const int column = 2 * t + j % 2 + j / 2 * 8;
                            const auto bits = static_cast<uint16_t>(got.w[j / 2] >> (16 * (j % 2)));
                            ASSERT_TRUE(same_value(bits, expected[static_cast<size_t>(column)]))
                                << "row " << row << " of " << i << ", sub-block " << sub << ", column " << column;
                            ++seen;
                        }
                    }
                }
            }
        }
    }
    // Every value of the tile's rows once.
    const int64_t first = swiglu ? n / 2 : n, most = swiglu ? kTileRows / 2 : kTileRows;
    EXPECT_EQ(seen, std::min(most, rows - first) * (swiglu ? 2 : 1) * k);
}

TEST(PrefillDecode, makes_the_fragments_of_the_matrix) {
    for (const int n : {0, kTileRows}) {
        expect_fragments<DType::planes_q4_k, RowOrder::f32>(DType::q4_k, 320, 512, n);
        expect_fragments<DType::planes_q5_k, RowOrder::f32>(DType::q5_k, 320, 512, n);
        expect_fragments<DType::planes_q6_k, RowOrder::f32>(DType::q6_k, 320, 512, n);
        expect_fragments<DType::planes_q4_k, RowOrder::swiglu>(DType::q4_k, 320, 512, n);
        expect_fragments<DType::planes_q5_k, RowOrder::swiglu>(DType::q5_k, 320, 512, n);
        expect_fragments<DType::planes_q6_k, RowOrder::swiglu>(DType::q6_k, 320, 512, n);
    }
}

}  // namespace
}  // namespace riptide
