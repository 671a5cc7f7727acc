// Decoders of IQ1, IQ2, IQ3, TQ1_0 and TQ2_0: formulas in blocks.h.
#include <bit>

#include "base/error.h"
#include "quant/blocks.h"
#include "quant/codec_internal.h"
#include "quant/int8_block.h"
#include "quant/iq_grids.h"

namespace riptide {

namespace {

uint32_t word(const uint8_t* from) {
    uint32_t w;
    std::memcpy(&w, from, sizeof w);
    return w;
}

/// What makes bytes negative, so that eight elements are made at once.
struct SignBytes {
    uint64_t minus[256];  // bit j: byte j is 255
    uint64_t even[128];   // of seven signs and an eighth that makes their number even

    SignBytes() {
        for (size_t signs = 0; signs < 256; ++signs) {
            minus[signs] = 0;
            for (int j = 0; j < 8; ++j) minus[signs] |= (signs >> j & 1) * (uint64_t{255} << (8 * j));
        }
        for (size_t seven = 0; seven < 128; ++seven)
            even[seven] = minus[seven | (static_cast<size_t>(std::popcount(seven)) & 1) << 7];
    }
};
const SignBytes kSignBytes;

constexpr uint64_t kOnes = 0x0101010101010101u;

/// Eight magnitudes, 128 above them, with their signs.
void put_eight(uint64_t magnitudes, uint64_t minus, int8_t* q) {
    const uint64_t out = ((magnitudes ^ minus) + (minus & kOnes)) ^ 0x80 * kOnes;
    std::memcpy(q, &out, sizeof out);
}

void put_fours(uint32_t first, uint32_t second, uint64_t minus, int8_t* q) {
    put_eight(first | uint64_t{second} << 32, minus, q);
}

/// Eight times q + delta; the entry is 128 above those with a positive delta. (A condition would be guessed wrong.)
void put_ternary(uint64_t entry, uint32_t negative, int8_t* q) {
    const uint64_t out = (entry - 2 * kOnes * negative) ^ 0x80 * kOnes;
    std::memcpy(q, &out, sizeof out);
}

/// Of the 32 elements of group g.
void put_scale(Int8Block& out, int g, float scale) { out.scales[2 * g] = out.scales[2 * g + 1] = scale; }

void expand(const BlockIQ2XXS& b, Int8Block& out) {
    const float d = f16_to_f32(b.d);
    for (int g = 0; g < 8; ++g) {
        const uint32_t signs = word(b.qs + 8 * g + 4);
        put_scale(out, g, d * (0.5f + static_cast<float>(signs >> 28)) * 0.25f);
        for (int l = 0; l < 4; ++l)
            put_eight(kGridBytes.iq2_xxs[b.qs[8 * g + l]], kSignBytes.even[signs >> (7 * l) & 127],
                      out.codes + 32 * g + 8 * l);
    }
}

/// The scales of IQ2_XS and IQ2_S.
void put_iq2_scales(float d, const uint8_t* nibbles, Int8Block& out) {
    for (int i = 0; i < 16; ++i)
        out.scales[i] = d * (0.5f + static_cast<float>(nibbles[i / 2] >> (4 * (i % 2)) & 15)) * 0.25f;
}

void expand(const BlockIQ2XS& b, Int8Block& out) {
    put_iq2_scales(f16_to_f32(b.d), b.scales, out);
    for (int i = 0; i < 32; ++i) {
        const uint32_t q = b.qs[i];
        put_eight(kGridBytes.iq2_xs[q & 511], kSignBytes.even[q >> 9], out.codes + 8 * i);
    }
}

void expand(const BlockIQ2S& b, Int8Block& out) {
    put_iq2_scales(f16_to_f32(b.d), b.scales, out);
    for (int i = 0; i < 32; ++i) {
        const uint32_t code = b.qs[i] | (static_cast<uint32_t>(b.qh[i / 4]) >> (2 * (i % 4)) & 3) << 8;
        put_eight(kGridBytes.iq2_s[code], kSignBytes.minus[b.signs[i]], out.codes + 8 * i);
    }
}

void expand(const BlockIQ3XXS& b, Int8Block& out) {
    const float d = f16_to_f32(b.d);
    for (int g = 0; g < 8; ++g) {
        const uint32_t signs = word(b.gas + 4 * g);
        put_scale(out, g, d * (0.5f + static_cast<float>(signs >> 28)) * 0.5f);
        for (int l = 0; l < 4; ++l) {
            const uint8_t* const q = b.qs + 8 * g + 2 * l;
            put_fours(kGridBytes.iq3_xxs[q[0]], kGridBytes.iq3_xxs[q[1]], kSignBytes.even[signs >> (7 * l) & 127],
                      out.codes + 32 * g + 8 * l);
        }
    }
}

void expand(const BlockIQ3S& b, Int8Block& out) {
    const float d = f16_to_f32(b.d);
    for (int g = 0; g < 8; ++g) {
        put_scale(out, g, d * static_cast<float>(1 + 2 * (b.scales[g / 2] >> (4 * (g % 2)) & 15)));
        const auto entry = [&](int i) {  // of the group's eight fours
            return kGridBytes.iq3_s[b.qs[8 * g + i] | (static_cast<uint32_t>(b.qh[g]) >> i & 1) << 8];
        };
        for (int l = 0; l < 4; ++l)
            put_fours(entry(2 * l), entry(2 * l + 1), kSignBytes.minus[b.signs[4 * g + l]], out.codes + 32 * g + 8 * l);
    }
}

void expand(const BlockIQ1S& b, Int8Block& out) {
    const float d = f16_to_f32(b.d);
    for (int g = 0; g < 8; ++g) {
        const uint32_t h = b.qh[g];
        put_scale(out, g, d * static_cast<float>(2 * (h >> 12 & 7) + 1) * 0.125f);
        for (int l = 0; l < 4; ++l)
            put_ternary(kGridBytes.iq1_s[b.qs[4 * g + l] | (h >> (3 * l) & 7) << 8], h >> 15,
                        out.codes + 32 * g + 8 * l);
    }
}

void expand(const BlockIQ1M& b, Int8Block& out) {
    uint32_t bits = 0;
    for (int i = 0; i < 4; ++i) bits |= static_cast<uint32_t>(b.scales[i] >> 12) << (4 * i);
    const float d = f16_to_f32(static_cast<uint16_t>(bits));
    for (int i = 0; i < 16; ++i)
        out.scales[i] = d * static_cast<float>(2 * (b.scales[i / 4] >> (3 * (i % 4)) & 7) + 1) * 0.125f;
    for (int i = 0; i < 32; ++i) {
        const uint32_t h = static_cast<uint32_t>(b.qh[i / 2]) >> (4 * (i % 2));
        put_ternary(kGridBytes.iq1_s[b.qs[i] | (h & 7) << 8], h >> 3 & 1, out.codes + 8 * i);
    }
}

/// Bytes of 0 to 3, less one.
uint64_t less_one(uint64_t codes) { return (codes + 0x7F * kOnes) ^ 0x80 * kOnes; }

/// The first `count` digits in base 3 of `Bytes` bytes: those of digit n at q + stride * n.
template <size_t Bytes>
void put_digits(const uint8_t* from, int count, int stride, int8_t* q) {
    constexpr uint64_t kEven = 0x00FF00FF00FF00FFu;
    uint64_t bytes = 0;
    std::memcpy(&bytes, from, Bytes);
    uint64_t even = bytes & kEven, odd = bytes >> 8 & kEven;
    for (int n = 0; n < count; ++n) {
        even *= 3, odd *= 3;  // four numbers of ten bits each
        const uint64_t out = less_one((even >> 8 & kEven) | (odd & ~kEven));
        std::memcpy(q + stride * n, &out, Bytes);
        even &= kEven, odd &= kEven;
    }
}

void expand(const BlockTQ1_0& b, Int8Block& out) {
    for (float& scale : out.scales) scale = f16_to_f32(b.d);
    for (int m = 0; m < 32; m += 8) put_digits<8>(b.qs + m, 5, 32, out.codes + m);
    for (int m = 0; m < 16; m += 8) put_digits<8>(b.qs + 32 + m, 5, 16, out.codes + 160 + m);
    put_digits<4>(b.qh, 4, 4, out.codes + 240);
}

void expand(const BlockTQ2_0& b, Int8Block& out) {
    for (float& scale : out.scales) scale = f16_to_f32(b.d);
    for (int i = 0; i < kSuperBlock; i += 8) {
        uint64_t bytes;
        std::memcpy(&bytes, b.qs + i / 128 * 32 + i % 32, sizeof bytes);
        const uint64_t eight = less_one(bytes >> (i / 32 % 4 * 2) & 3 * kOnes);
        std::memcpy(out.codes + i, &eight, sizeof eight);
    }
}

}  // namespace

int int8_group(DType type) {
    switch (type) {
        case DType::iq1_m:
        case DType::iq2_xs:
        case DType::iq2_s:
            return 16;
        case DType::iq1_s:
        case DType::iq2_xxs:
        case DType::iq3_xxs:
        case DType::iq3_s:
            return 32;
        case DType::tq1_0:
        case DType::tq2_0:
            return kSuperBlock;
        default:
            return 0;
    }
}

void make_int8_block(DType type, const void* block, Int8Block& out) {
    switch (type) {
        case DType::iq1_s:
            return expand(*static_cast<const BlockIQ1S*>(block), out);
        case DType::iq1_m:
            return expand(*static_cast<const BlockIQ1M*>(block), out);
        case DType::iq2_xxs:
            return expand(*static_cast<const BlockIQ2XXS*>(block), out);
        case DType::iq2_xs:
            return expand(*static_cast<const BlockIQ2XS*>(block), out);
        case DType::iq2_s:
            return expand(*static_cast<const BlockIQ2S*>(block), out);
        case DType::iq3_xxs:
            return expand(*static_cast<const BlockIQ3XXS*>(block), out);
        case DType::iq3_s:
            return expand(*static_cast<const BlockIQ3S*>(block), out);
        case DType::tq1_0:
            return expand(*static_cast<const BlockTQ1_0*>(block), out);
        default:
            RT_ASSERT(type == DType::tq2_0);
            return expand(*static_cast<const BlockTQ2_0*>(block), out);
    }
}

bool codec::decode_iq(DType type, const void* src, float* dst, int64_t n) {
    if (int8_group(type) == 0) return false;
    const auto* from = static_cast<const std::byte*>(src);
    Int8Block block;
    for (int64_t b = 0; b < n / kSuperBlock; ++b, from += dtype_info(type).block_bytes, dst += kSuperBlock) {
        make_int8_block(type, from, block);
        for (int i = 0; i < kSuperBlock; ++i) dst[i] = block.scales[i / 16] * static_cast<float>(block.codes[i]);
    }
    return true;
}

}  // namespace riptide
