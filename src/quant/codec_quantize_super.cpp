// Encoders of the formats with super-blocks of 256 values.
//
// All alternate between three steps: fit each group freely; round the groups' scales (and minima) to the integers that
// the format has for them, trying the neighbours too; given integers and codes, solve for the super-block's own f16
// scales.
#include <algorithm>

#include "quant/blocks.h"
#include "quant/codec_fit.h"

namespace riptide::codec {

namespace {

// ---- Q4_K and Q5_K: x = (d s[g]) q - dmin m[g]
// -----------------------------------------------------------------------------

constexpr int kGroups = 8;
constexpr int kMaxInt = 63;

struct AffineBlock {
    HalfScale d{}, dmin{};
    KScales k{};

    Affine grid(int g) const {
        return {d.value * static_cast<float>(k.s[g]), -(dmin.value * static_cast<float>(k.m[g]))};
    }
};

/// The integers nearest to the free fits.
void round_scales(const Affine* fits, float d, float dmin, AffineBlock& block) {
    for (int g = 0; g < kGroups; ++g) {
        block.k.s[g] = static_cast<uint8_t>(nearest_within(fits[g].s * inverse(d), 0, kMaxInt));
        block.k.m[g] = static_cast<uint8_t>(nearest_within(-fits[g].low * inverse(dmin), 0, kMaxInt));
    }
}

/// Moves each group to the best of the integers next to its own. Returns the squared error of the block.
template <int Q>
float improve_scales(const float* source, AffineBlock& block) {
    float total = 0;
    for (int g = 0; g < kGroups; ++g) {
        const int s = block.k.s[g], m = block.k.m[g];
        float least = INFINITY;
        for (int ds = -1; ds <= 1; ++ds)
            for (int dm = -1; dm <= 1; ++dm) {
                AffineBlock other = block;
                other.k.s[g] = static_cast<uint8_t>(std::clamp(s + ds, 0, kMaxInt));
                other.k.m[g] = static_cast<uint8_t>(std::clamp(m + dm, 0, kMaxInt));
                const float error = affine_error<kBlock, Q>(source + kBlock * g, other.grid(g));
                if (error < least) {
                    least = error;
                    block.k.s[g] = other.k.s[g];
                    block.k.m[g] = other.k.m[g];
                }
            }
        total += least;
    }
    return total;
}

void super_affine_codes(const float* x, Affine grid, int most, uint8_t* codes) {
    const float inv = inverse(grid.s);
    for (int i = 0; i < kBlock; ++i)
        codes[i] = static_cast<uint8_t>(nearest_within((x[i] - grid.low) * inv, 0, static_cast<float>(most)));
}

/// d and dmin that minimise sum (x - d a + dmin b)^2 over the block, a = s q, b = m.
template <int Q>
void solve_super_scales(const float* source, AffineBlock& block) {
    float aa = 0, ab = 0, bb = 0, xa = 0, xb = 0;
    uint8_t codes[kBlock];
    for (int g = 0; g < kGroups; ++g) {
        const float* x = source + kBlock * g;
        super_affine_codes(x, block.grid(g), Q, codes);
        float q = 0, qq = 0, xq = 0, sum = 0;
        for (int i = 0; i < kBlock; ++i) {
            const auto code = static_cast<float>(codes[i]);
            q += code;
            qq += code * code;
            xq += x[i] * code;
            sum += x[i];
        }
        const auto s = static_cast<float>(block.k.s[g]), m = static_cast<float>(block.k.m[g]);
        aa += s * s * qq;
        ab += s * m * q;
        bb += m * m * kBlock;
        xa += s * xq;
        xb += m * sum;
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

template <int Q>
AffineBlock fit_affine_block(const float* source) {
    Affine fits[kGroups];
    float most_s = 0, most_m = 0;
    for (int g = 0; g < kGroups; ++g) {
        fits[g] = fit_affine<kBlock, Q, true>(source + kBlock * g);
        most_s = std::max(most_s, fits[g].s);
        most_m = std::max(most_m, -fits[g].low);
    }
    AffineBlock block;
    block.d = half_scale(most_s < kNothing ? 0.0f : most_s / kMaxInt);
    block.dmin = half_scale(most_m < kNothing ? 0.0f : most_m / kMaxInt);
    round_scales(fits, block.d.value, block.dmin.value, block);
    float least = improve_scales<Q>(source, block);
    for (int round = 0; round < 2; ++round) {
        AffineBlock next = block;
        solve_super_scales<Q>(source, next);
        const float error = improve_scales<Q>(source, next);
        if (!(error < least)) break;
        least = error;
        block = next;
    }
    return block;
}

void pack_k_scales(const KScales& k, uint8_t* packed) {
    for (int g = 0; g < 4; ++g) {
        packed[g] = static_cast<uint8_t>(k.s[g] | (k.s[4 + g] >> 4) << 6);
        packed[4 + g] = static_cast<uint8_t>(k.m[g] | (k.m[4 + g] >> 4) << 6);
        packed[8 + g] = static_cast<uint8_t>((k.s[4 + g] & 15) | (k.m[4 + g] & 15) << 4);
    }
}

/// Codes of the whole block; low nibbles packed into qs.
template <int Q>
void affine_block_codes(const float* source, const AffineBlock& block, uint8_t* codes, uint8_t* qs) {
    for (int g = 0; g < kGroups; ++g) super_affine_codes(source + kBlock * g, block.grid(g), Q, codes + kBlock * g);
    for (int p = 0; p < 4; ++p)
        for (int l = 0; l < kBlock; ++l)
            qs[32 * p + l] = static_cast<uint8_t>((codes[64 * p + l] & 15) | (codes[64 * p + 32 + l] & 15) << 4);
}

void encode_block(const float* source, BlockQ4K& b) {
    const AffineBlock block = fit_affine_block<15>(source);
    uint8_t codes[kSuperBlock];
    affine_block_codes<15>(source, block, codes, b.qs);
    pack_k_scales(block.k, b.scales);
    b.d = block.d.bits;
    b.dmin = block.dmin.bits;
}

void encode_block(const float* source, BlockQ5K& b) {
    const AffineBlock block = fit_affine_block<31>(source);
    uint8_t codes[kSuperBlock];
    affine_block_codes<31>(source, block, codes, b.qs);
    std::memset(b.qh, 0, sizeof b.qh);
    for (int i = 0; i < kSuperBlock; ++i)
        b.qh[i % 32] = static_cast<uint8_t>(b.qh[i % 32] | (codes[i] >> 4) << (i / 32));
    pack_k_scales(block.k, b.scales);
    b.d = block.d.bits;
    b.dmin = block.dmin.bits;
}

// ---- Q6_K: x = d s[g] q, q in [-32, 31]
// ----------------------------------------------------------------------------------

constexpr int kSixGroups = 16, kSixValues = 16;

struct SixBlock {
    HalfScale d{};
    int8_t s[kSixGroups] = {};

    float step(int g) const { return d.value * static_cast<float>(s[g]); }
};

float improve_scales(const float* source, SixBlock& block) {
    float total = 0;
    for (int g = 0; g < kSixGroups; ++g) {
        const int s = block.s[g];
        float least = INFINITY;
        for (int ds = -1; ds <= 1; ++ds) {
            const int other = std::clamp(s + ds, -128, 127);
            const float error =
                symmetric_error<kSixValues, 32>(source + kSixValues * g, block.d.value * static_cast<float>(other));
            if (error < least) {
                least = error;
                block.s[g] = static_cast<int8_t>(other);
            }
        }
        total += least;
    }
    return total;
}

void six_codes(const float* x, float step, int* codes) {
    const float inv = inverse(step);
    for (int i = 0; i < kSixValues; ++i) codes[i] = nearest_within(x[i] * inv, -32, 31);
}

void solve_super_scale(const float* source, SixBlock& block) {
    float xa = 0, aa = 0;
    int codes[kSixValues];
    for (int g = 0; g < kSixGroups; ++g) {
        const float* x = source + kSixValues * g;
        six_codes(x, block.step(g), codes);
        for (int i = 0; i < kSixValues; ++i) {
            const auto a = static_cast<float>(block.s[g] * codes[i]);
            xa += x[i] * a;
            aa += a * a;
        }
    }
    if (aa > 0) block.d = half_scale(xa / aa);
}

SixBlock fit_six_block(const float* source) {
    float fits[kSixGroups], extreme = 0;
    for (int g = 0; g < kSixGroups; ++g) {
        fits[g] = fit_symmetric<kSixValues, 32>(source + kSixValues * g);
        if (std::fabs(fits[g]) > std::fabs(extreme)) extreme = fits[g];
    }
    SixBlock block;
    block.d = half_scale(std::fabs(extreme) < kNothing ? 0.0f : extreme / -128.0f);
    const float inv = inverse(block.d.value);
    for (int g = 0; g < kSixGroups; ++g) block.s[g] = static_cast<int8_t>(nearest_within(fits[g] * inv, -128, 127));
    float least = improve_scales(source, block);
    for (int round = 0; round < 2; ++round) {
        SixBlock next = block;
        solve_super_scale(source, next);
        const float error = improve_scales(source, next);
        if (!(error < least)) break;
        least = error;
        block = next;
    }
    return block;
}

void encode_block(const float* source, BlockQ6K& b) {
    const SixBlock block = fit_six_block(source);
    b = {};
    b.d = block.d.bits;
    std::memcpy(b.scales, block.s, sizeof b.scales);
    int codes[kSixValues];
    for (int g = 0; g < kSixGroups; ++g) {
        six_codes(source + kSixValues * g, block.step(g), codes);
        const int h = g / 8, s = g / 2 % 4, first = 16 * (g % 2);
        uint8_t* ql = b.ql + 64 * h + 32 * (s & 1) + first;
        uint8_t* qh = b.qh + 32 * h + first;
        for (int l = 0; l < kSixValues; ++l) {
            const int q = codes[l] + 32;
            ql[l] = static_cast<uint8_t>(ql[l] | (q & 15) << (s < 2 ? 0 : 4));
            qh[l] = static_cast<uint8_t>(qh[l] | (q >> 4) << (2 * s));
        }
    }
}

template <class Block>
bool encode_all_super(const float* src, void* dst, int64_t n) {
    auto* blocks = static_cast<Block*>(dst);
    for (int64_t i = 0; i < n / kSuperBlock; ++i) encode_block(src + i * kSuperBlock, blocks[i]);
    return true;
}

}  // namespace

bool encode_super(DType type, const float* src, void* dst, int64_t n) {
    switch (type) {
        case DType::q4_k:
            return encode_all_super<BlockQ4K>(src, dst, n);
        case DType::q5_k:
            return encode_all_super<BlockQ5K>(src, dst, n);
        case DType::q6_k:
            return encode_all_super<BlockQ6K>(src, dst, n);
        default:
            return false;
    }
}

}  // namespace riptide::codec
