// Encoders of the formats with super-blocks of 256 values, scales and minima: Q2_K, Q4_K, Q5_K.
//
// They alternate between three steps: fit each group freely; round the groups' scales and minima to the integers that
// the format has for them, trying the neighbours too; given integers and codes, solve for the super-block's own f16
// scales.
#include <algorithm>

#include "quant/blocks.h"
#include "quant/codec_fit.h"

namespace riptide::codec {

namespace {

/// x = (d s[g]) q - dmin m[g]: kGroups groups of kValues, q in [0, kMostCode], s and m in [0, kMostInt].
template <int groups, int most_code, int most_int>
struct AffineBlock {
    static constexpr int kGroups = groups, kValues = kSuperBlock / groups, kMostCode = most_code, kMostInt = most_int;

    HalfScale d{}, dmin{};
    uint8_t s[groups] = {}, m[groups] = {};

    Affine grid(int g) const { return grid(s[g], m[g]); }
    Affine grid(int scale, int minimum) const {
        return {d.value * static_cast<float>(scale), -(dmin.value * static_cast<float>(minimum))};
    }
};

using Super = FitBlock<kSuperBlock>;

/// Moves each group to the best of the integers within `reach` of its own. Returns the error of the block.
template <class Block>
float improve_scales(const Super& source, int reach, Block& block) {
    constexpr int n = Block::kValues, most = Block::kMostInt;
    float total = 0;
    for (int g = 0; g < Block::kGroups; ++g) {
        const int s = block.s[g], m = block.m[g];
        float least = INFINITY;
        for (int to_s = std::max(0, s - reach); to_s <= std::min(most, s + reach); ++to_s)
            for (int to_m = std::max(0, m - reach); to_m <= std::min(most, m + reach); ++to_m) {
                const float error =
                    affine_error<n, Block::kMostCode>(source.x + n * g, source.w + n * g, block.grid(to_s, to_m));
                if (error < least) {
                    least = error;
                    block.s[g] = static_cast<uint8_t>(to_s);
                    block.m[g] = static_cast<uint8_t>(to_m);
                }
            }
        total += least;
    }
    return total;
}

template <class Block>
void super_affine_codes(const Super& source, int g, Affine grid, uint8_t* codes) {
    const float inv = inverse(grid.s);
    for (int i = 0; i < Block::kValues; ++i)
        codes[i] = static_cast<uint8_t>(
            nearest_within((source.x[Block::kValues * g + i] - grid.low) * inv, 0, Block::kMostCode));
}

/// Sums over a group with the codes q of its grid, each times the weight.
struct AffineSums {
    float w = 0, q = 0, qq = 0, xq = 0, x = 0;
};

template <class Block>
AffineSums sums_of(const Super& source, int g, Affine grid) {
    const float *x = source.x + Block::kValues * g, *w = source.w + Block::kValues * g;
    uint8_t codes[Block::kValues];
    super_affine_codes<Block>(source, g, grid, codes);
    AffineSums sums;
    for (int i = 0; i < Block::kValues; ++i) {
        const auto code = static_cast<float>(codes[i]);
        sums.w += w[i];
        sums.q += w[i] * code;
        sums.qq += w[i] * code * code;
        sums.xq += w[i] * x[i] * code;
        sums.x += w[i] * x[i];
    }
    return sums;
}

/// d and dmin that minimise sum w (x - d a + dmin b)^2 over the block, a = s q, b = m.
template <class Block>
void solve_super_scales(const Super& source, Block& block) {
    float aa = 0, ab = 0, bb = 0, xa = 0, xb = 0;
    for (int g = 0; g < Block::kGroups; ++g) {
        const AffineSums sums = sums_of<Block>(source, g, block.grid(g));
        const auto s = static_cast<float>(block.s[g]), m = static_cast<float>(block.m[g]);
        aa += s * s * sums.qq;
        ab += s * m * sums.q;
        bb += m * m * sums.w;
        xa += s * sums.xq;
        xb += m * sums.x;
    }
    const float det = aa * bb - ab * ab;
    if (bb == 0 && aa > 0) {
        block.d = half_scale(xa / aa);
    } else if (det > 1e-6f * aa * bb) {
        const float d = (xa * bb - xb * ab) / det, dmin = (xa * ab - xb * aa) / det;
        if (d > 0 && dmin >= 0) {
            block.d = half_scale(d);
            block.dmin = half_scale(dmin);
        }
    }
}

/// Integers for the fits at the block's d and dmin: s the nearest, m the best beside it. Returns what the error grows
/// by, to second order.
template <class Block>
float round_scales(const Affine* fits, const AffineSums* sums, Block& block) {
    float cost = 0;
    for (int g = 0; g < Block::kGroups; ++g) {
        const AffineSums& at = sums[g];
        block.s[g] = static_cast<uint8_t>(nearest_within(fits[g].s * inverse(block.d.value), 0, Block::kMostInt));
        const float off = block.d.value * static_cast<float>(block.s[g]) - fits[g].s;
        const float low = fits[g].low - off * at.q / at.w;
        block.m[g] = static_cast<uint8_t>(nearest_within(-low * inverse(block.dmin.value), 0, Block::kMostInt));
        const float off_low = -(block.dmin.value * static_cast<float>(block.m[g])) - fits[g].low;
        cost += at.qq * off * off + 2 * at.q * off * off_low + at.w * off_low * off_low;
    }
    return cost;
}

/// d and dmin, among those that would give the largest fits 9.5 to 16 units, that come nearest to all fits.
template <class Block>
Block choose_super_scales(const Affine* fits, const AffineSums* sums, float d, float dmin) {
    Block best;
    float least = INFINITY;
    for (int i = 0; i < 14; ++i)
        for (int j = 0; j < 14; ++j) {
            Block block;
            block.d = half_scale(d * Block::kMostInt / (Block::kMostInt + 1.0f - 0.5f * static_cast<float>(i)));
            block.dmin = half_scale(dmin * Block::kMostInt / (Block::kMostInt + 1.0f - 0.5f * static_cast<float>(j)));
            const float cost = round_scales(fits, sums, block);
            if (cost < least) least = cost, best = block;
        }
    return best;
}

template <class Block>
Block fit_affine_block(const Super& source) {
    constexpr int n = Block::kValues;
    Affine fits[Block::kGroups];
    AffineSums sums[Block::kGroups];
    float most_s = 0, most_m = 0;
    for (int g = 0; g < Block::kGroups; ++g) {
        fits[g] = fit_affine<n, Block::kMostCode, true>(source.x + n * g, source.w + n * g);
        sums[g] = sums_of<Block>(source, g, fits[g]);
        most_s = std::max(most_s, fits[g].s);
        most_m = std::max(most_m, -fits[g].low);
    }
    const float d = most_s < kNothing ? 0.0f : most_s / Block::kMostInt;
    const float dmin = most_m < kNothing ? 0.0f : most_m / Block::kMostInt;
    Block block;
    if (Block::kMostInt == 15) {  // with so few it matters which of them the largest fits get
        block = choose_super_scales<Block>(fits, sums, d, dmin);
    } else {
        block.d = half_scale(d);
        block.dmin = half_scale(dmin);
        round_scales(fits, sums, block);
    }
    float least = improve_scales(source, Block::kMostInt == 15 ? 15 : 1, block);
    for (int round = 0; round < 3; ++round) {
        Block next = block;
        solve_super_scales(source, next);
        const float error = improve_scales(source, 1, next);
        if (!(error < least)) break;
        least = error;
        block = next;
    }
    return block;
}

/// Q4_K's and Q5_K's scales and minima.
using SixBitScales = AffineBlock<8, 15, 63>;
void pack_k_scales(const uint8_t* s, const uint8_t* m, uint8_t* packed) {
    for (int g = 0; g < 4; ++g) {
        packed[g] = static_cast<uint8_t>(s[g] | (s[4 + g] >> 4) << 6);
        packed[4 + g] = static_cast<uint8_t>(m[g] | (m[4 + g] >> 4) << 6);
        packed[8 + g] = static_cast<uint8_t>((s[4 + g] & 15) | (m[4 + g] & 15) << 4);
    }
}

/// Codes of the whole block.
template <class Block>
Block super_block_codes(const Super& source, uint8_t* codes) {
    const Block block = fit_affine_block<Block>(source);
    for (int g = 0; g < Block::kGroups; ++g)
        super_affine_codes<Block>(source, g, block.grid(g), codes + Block::kValues * g);
    return block;
}

void pack_low_nibbles(const uint8_t* codes, uint8_t* qs) {
    for (int p = 0; p < 4; ++p)
        for (int l = 0; l < kBlock; ++l)
            qs[32 * p + l] = static_cast<uint8_t>((codes[64 * p + l] & 15) | (codes[64 * p + 32 + l] & 15) << 4);
}

void encode_block(const Super& source, BlockQ2K& b) {
    uint8_t codes[kSuperBlock];
    const auto block = super_block_codes<AffineBlock<16, 3, 15>>(source, codes);
    pack_two_bits(codes, b.qs);
    for (int g = 0; g < 16; ++g) b.scales[g] = static_cast<uint8_t>(block.s[g] | block.m[g] << 4);
    b.d = block.d.bits;
    b.dmin = block.dmin.bits;
}

void encode_block(const Super& source, BlockQ4K& b) {
    uint8_t codes[kSuperBlock];
    const auto block = super_block_codes<SixBitScales>(source, codes);
    pack_low_nibbles(codes, b.qs);
    pack_k_scales(block.s, block.m, b.scales);
    b.d = block.d.bits;
    b.dmin = block.dmin.bits;
}

void encode_block(const Super& source, BlockQ5K& b) {
    uint8_t codes[kSuperBlock];
    const auto block = super_block_codes<AffineBlock<8, 31, 63>>(source, codes);
    pack_low_nibbles(codes, b.qs);
    std::memset(b.qh, 0, sizeof b.qh);
    for (int i = 0; i < kSuperBlock; ++i)
        b.qh[i % 32] = static_cast<uint8_t>(b.qh[i % 32] | (codes[i] >> 4) << (i / 32));
    pack_k_scales(block.s, block.m, b.scales);
    b.d = block.d.bits;
    b.dmin = block.dmin.bits;
}

}  // namespace

bool encode_super(DType type, const float* src, const float* importance, void* dst, int64_t n) {
    switch (type) {
        case DType::q2_k:
            return encode_super_blocks<BlockQ2K>(src, importance, dst, n, encode_block);
        case DType::q4_k:
            return encode_super_blocks<BlockQ4K>(src, importance, dst, n, encode_block);
        case DType::q5_k:
            return encode_super_blocks<BlockQ5K>(src, importance, dst, n, encode_block);
        default:
            return false;
    }
}

}  // namespace riptide::codec
