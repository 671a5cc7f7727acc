// Encoders of the formats whose codes are entries of grids: IQ3_S, IQ3_XXS, IQ2_S, IQ2_XS, IQ2_XXS, IQ1_M, IQ1_S.
//
// They go the way of codec_quantize_scaled.cpp. What differs is what a group's codes can be at a step: magnitudes with
// signs, of which in IQ3_XXS, IQ2_XS and IQ2_XXS an even number is negative in each eight, or -1, 0 and 1, all shifted
// by delta or by -delta.
#include <algorithm>
#include <array>
#include <bit>
#include <iterator>
#include <vector>

#include "quant/blocks.h"
#include "quant/codec_fit.h"
#include "quant/iq_grids.h"

namespace riptide::codec {

namespace {

/// A grid of n entries, which are some of the kLevels^kDims combinations of kDims levels, magnitudes or of either sign.
///
/// For each combination it knows the entries that lie nearest to it, at most kNear. A search rounds each value to its
/// nearest level and weighs the entries of that combination: one if the grid has it, which is then the best there
/// is whatever the weights.
template <int n, int kDims, int kLevels>
class GridSearch {
  public:
    static constexpr int kNear = 16;

    /// grid: `bits` bits an element, indices into `levels`, which rise.
    template <class Level>
    GridSearch(const uint16_t* grid, int bits, const Level* levels) : near_(kPoints * kNear), count_(kPoints) {
        for (int l = 0; l + 1 < kLevels; ++l) edges_[l] = 0.5f * static_cast<float>(levels[l] + levels[l + 1]);
        int16_t places[kDims][n];
        for (int i = 0; i < n; ++i)
            for (int j = 0; j < kDims; ++j) {
                places[j][i] = static_cast<int16_t>(grid[i] >> (bits * j) & ((1 << bits) - 1));
                entries_[i][j] = levels[places[j][i]];
            }
        for (int p = 0; p < kPoints; ++p) find_near(p, places);
    }

    /// The code whose entry m is best, by sum w_j (a_j - m_j)^2, of those near `a`; kDims values each.
    int nearest(const float* a, const float* w) const {
        int point = 0;
        for (int j = kDims - 1; j >= 0; --j) {
            int level = 0;
            for (float edge : edges_) level += a[j] > edge ? 1 : 0;
            point = kLevels * point + level;
        }
        const auto p = static_cast<size_t>(point);
        const uint16_t* near = near_.data() + p * kNear;
        int best = near[0];
        if (count_[p] == 1) return best;
        float least = INFINITY;
        for (int i = 0; i < count_[p]; ++i) {
            const float* m = entry(near[i]);
            float cost = 0;
            for (int j = 0; j < kDims; ++j) cost += w[j] * (a[j] - m[j]) * (a[j] - m[j]);
            if (cost < least) least = cost, best = near[i];
        }
        return best;
    }
    const float* entry(int code) const { return entries_[code]; }

  private:
    static constexpr int kPoints = [] {
        int points = 1;
        for (int j = 0; j < kDims; ++j) points *= kLevels;
        return points;
    }();

    /// By distances in levels.
    void find_near(int point, const int16_t (&places)[kDims][n]) {
        int16_t distance[n] = {};
        for (int j = 0, rest = point; j < kDims; ++j, rest /= kLevels) {
            const auto level = static_cast<int16_t>(rest % kLevels);
            for (int i = 0; i < n; ++i) {
                const auto d = static_cast<int16_t>(places[j][i] - level);
                distance[i] = static_cast<int16_t>(distance[i] + d * d);
            }
        }
        std::array<int, n> order;
        for (int i = 0; i < n; ++i) order[static_cast<size_t>(i)] = distance[i] * n + i;
        std::partial_sort(order.begin(), order.begin() + kNear, order.end());
        const auto p = static_cast<size_t>(point);
        for (size_t i = 0; i < kNear; ++i) near_[p * kNear + i] = static_cast<uint16_t>(order[i] % n);
        count_[p] = order[0] < n ? 1 : kNear;
    }

    std::vector<uint16_t> near_;
    std::vector<uint8_t> count_;
    float edges_[kLevels - 1] = {};
    float entries_[n][kDims] = {};
};

/// Grids of fours of eight levels, or of eights of three (the fourth of two bits is not used).
template <const auto& grid, const auto& levels>
const auto& search() {
    constexpr bool fours = std::size(levels) == 8;
    static const GridSearch<std::size(grid), fours ? 4 : 8, fours ? 8 : 3> search(grid, fours ? 3 : 2, levels);
    return search;
}

/// What a group stores: its codes, and for each of its eights the signs (bit j: element j is negative), or in IQ1
/// whether delta is negative.
struct GridCodes {
    int code[8] = {};
    int minus[4] = {};
};

/// Signs and magnitudes. `even`: an even number of each eight's signs is negative, and where x has an odd number, the
/// value that this costs least is stored with the wrong one.
template <int values, const auto& grid, const auto& levels, bool even>
struct Magnitudes {
    static constexpr int kValues = values, kMost = 15;
    static constexpr int kDims = std::size(levels) == 8 ? 4 : 8;
    static constexpr float kUniform = levels[0];  // code 0 has it throughout

    /// The codes that are best at step s, and what they make of x / s.
    static GridCodes choose(const float* x, const float* w, float s, float* q) {
        const float inv = inverse(s);
        GridCodes codes;
        for (int i = 0; i < values; i += 8) {
            int& minus = codes.minus[i / 8];
            float a[8];
            for (int j = 0; j < 8; ++j) {
                a[j] = std::fabs(x[i + j]) * inv;
                minus |= (x[i + j] < 0 ? 1 : 0) << j;
            }
            if (even && std::popcount(static_cast<uint32_t>(minus)) % 2 != 0) {
                const int j = cheapest(a, w + i);
                a[j] = -a[j];
                minus ^= 1 << j;
            }
            for (int j = 0; j < 8; j += kDims) {
                const int code = codes.code[(i + j) / kDims] = search<grid, levels>().nearest(a + j, w + i + j);
                for (int l = j; l < j + kDims; ++l) {
                    const float m = search<grid, levels>().entry(code)[l - j];
                    q[i + l] = (minus >> l & 1) != 0 ? -m : m;
                }
            }
        }
        return codes;
    }

  private:
    /// Which of eight magnitudes may have the wrong sign: about what it costs to store a as -kUniform.
    static int cheapest(const float* a, const float* w) {
        int best = 0;
        float least = INFINITY;
        for (int j = 0; j < 8; ++j)
            if (const float cost = w[j] * a[j] * (a[j] + 3 * kUniform); cost < least) least = cost, best = j;
        return best;
    }
};

/// -1, 0 or 1 and +-delta, which `alike` values share.
template <int values, int alike>
struct Ternary {
    static constexpr int kValues = values, kMost = 7;
    static constexpr float kDelta = 0.125f;
    static constexpr float kUniform = 1 + kDelta;

    static GridCodes choose(const float* x, const float* w, float s, float* q) {
        const auto& entries = search<kIQ1SGrid, kIQ1Levels>();
        const float inv = inverse(s);
        GridCodes codes;
        for (int first = 0; first < values; first += alike) {
            float least = INFINITY;
            for (const float delta : {kDelta, -kDelta}) {
                int code[alike / 8];
                float made[alike], cost = 0;
                for (int i = 0; i < alike; i += 8) {
                    float a[8];
                    for (int j = 0; j < 8; ++j) a[j] = x[first + i + j] * inv - delta;
                    code[i / 8] = entries.nearest(a, w + first + i);
                    const float* m = entries.entry(code[i / 8]);
                    for (int j = 0; j < 8; ++j) {
                        made[i + j] = m[j] + delta;
                        cost += w[first + i + j] * (a[j] - m[j]) * (a[j] - m[j]);
                    }
                }
                if (delta < 0 && !(cost < least)) continue;
                least = cost;
                std::copy_n(code, alike / 8, codes.code + first / 8);
                std::copy_n(made, alike, q + first);
                codes.minus[first / 8] = delta < 0 ? 1 : 0;
            }
        }
        return codes;
    }
};

/// x = d (2 s + 1) unit q, s in [0, kMost], q of Codes::choose. The first steps that a fit tries give the group's
/// largest value the magnitudes from kFirst to kLast.
template <class Codes>
struct CodeGrid : Codes {
    static constexpr int kLeast = 0;
    static constexpr bool kEitherSign = false;
    static float factor(int s) { return static_cast<float>(2 * s + 1); }

    static GridSums sums(const float* x, const float* w, float s) {
        float q[Codes::kValues];
        Codes::choose(x, w, s, q);
        GridSums sums;
        for (int i = 0; i < Codes::kValues; ++i) {
            const float e = x[i] - s * q[i];
            sums.xq += w[i] * x[i] * q[i];
            sums.qq += w[i] * q[i] * q[i];
            sums.error += w[i] * e * e;
        }
        return sums;
    }
    static StepFit fit(const float* x, const float* w) {
        const float most = max_magnitude(x, Codes::kValues);
        if (most < kNothing) return {};
        StepSearch step([=](float s) { return sums(x, w, s); });
        for (float top = Codes::kFirst; top <= Codes::kLast; top += Codes::kBy) step.start(most / top);
        step.start(most / Codes::kUniform);  // one magnitude throughout
        return step.finish();
    }
};

struct Iq3S : Magnitudes<32, kIQ3SGrid, kIQ3SLevels, false> {
    static constexpr float kFirst = 10, kLast = 22, kBy = 1.5f;
};
struct Iq3XXS : Magnitudes<32, kIQ3XXSGrid, kIQ3XXSLevels, true> {
    static constexpr float kFirst = 40, kLast = 88, kBy = 6;
};
template <int values, const auto& grid, bool even>
struct Iq2 : Magnitudes<values, grid, kIQ2Levels, even> {
    static constexpr float kFirst = 28, kLast = 76, kBy = 6;
};
template <int values, int alike>
struct Iq1 : Ternary<values, alike> {
    static constexpr float kFirst = 1, kLast = 3.4f, kBy = 0.3f;
};

using GridSource = FitBlock<kSuperBlock>;

/// put(g, s, codes) stores group g. Returns d.
template <class Codes, class Put>
uint16_t encode_groups(const GridSource& source, float unit, Put put) {
    const auto block = fit_scaled_block<CodeGrid<Codes>>(source, unit);
    for (int g = 0; g < block.kGroups; ++g) {
        const int first = Codes::kValues * g;
        float q[Codes::kValues];
        put(g, block.s[g], Codes::choose(source.x + first, source.w + first, block.step(block.s[g]), q));
    }
    return block.d.bits;
}

/// The bits of `value` from bit i on of a row of bytes that were zero; they do not cross a byte's end.
void put_bits(uint8_t* to, int i, int value) { to[i / 8] = static_cast<uint8_t>(to[i / 8] | value << (i % 8)); }

/// IQ3_S and IQ2_S: code i has its low byte in qs[i] and the rest, of high_bits bits, in qh.
template <class Codes, int high_bits, class Block>
void encode_bytes_of_signs(const GridSource& source, float unit, Block& b) {
    constexpr int n = Codes::kValues / Codes::kDims, eights = Codes::kValues / 8;
    b = {};
    b.d = encode_groups<Codes>(source, unit, [&](int g, int s, const GridCodes& codes) {
        put_bits(b.scales, 4 * g, s);
        for (int c = 0; c < n; ++c) {
            b.qs[n * g + c] = static_cast<uint8_t>(codes.code[c] & 255);
            put_bits(b.qh, high_bits * (n * g + c), codes.code[c] >> 8);
        }
        for (int e = 0; e < eights; ++e) b.signs[eights * g + e] = static_cast<uint8_t>(codes.minus[e]);
    });
}

/// The word of IQ3_XXS and IQ2_XXS: four times seven signs, and s.
void put_signs_and_scale(const GridCodes& codes, int s, uint8_t* to) {
    uint32_t word = static_cast<uint32_t>(s) << 28;
    for (int e = 0; e < 4; ++e) word |= static_cast<uint32_t>(codes.minus[e] & 127) << (7 * e);
    std::memcpy(to, &word, sizeof word);
}

void encode_grid(const GridSource& source, BlockIQ3S& b) { encode_bytes_of_signs<Iq3S, 1>(source, 1.0f, b); }
void encode_grid(const GridSource& source, BlockIQ2S& b) {
    encode_bytes_of_signs<Iq2<16, kIQ2SGrid, false>, 2>(source, 0.125f, b);
}

void encode_grid(const GridSource& source, BlockIQ3XXS& b) {
    b.d = encode_groups<Iq3XXS>(source, 0.25f, [&](int g, int s, const GridCodes& codes) {
        for (int c = 0; c < 8; ++c) b.qs[8 * g + c] = static_cast<uint8_t>(codes.code[c]);
        put_signs_and_scale(codes, s, b.gas + 4 * g);
    });
}

void encode_grid(const GridSource& source, BlockIQ2XXS& b) {
    b.d = encode_groups<Iq2<32, kIQ2XXSGrid, true>>(source, 0.125f, [&](int g, int s, const GridCodes& codes) {
        for (int c = 0; c < 4; ++c) b.qs[8 * g + c] = static_cast<uint8_t>(codes.code[c]);
        put_signs_and_scale(codes, s, b.qs + 8 * g + 4);
    });
}

void encode_grid(const GridSource& source, BlockIQ2XS& b) {
    b = {};
    b.d = encode_groups<Iq2<16, kIQ2XSGrid, true>>(source, 0.125f, [&](int g, int s, const GridCodes& codes) {
        for (int c = 0; c < 2; ++c)
            b.qs[2 * g + c] = static_cast<uint16_t>(codes.code[c] | (codes.minus[c] & 127) << 9);
        put_bits(b.scales, 4 * g, s);
    });
}

void encode_grid(const GridSource& source, BlockIQ1S& b) {
    b.d = encode_groups<Iq1<32, 32>>(source, 1.0f, [&](int g, int s, const GridCodes& codes) {
        int high = s << 12 | codes.minus[0] << 15;
        for (int c = 0; c < 4; ++c) {
            b.qs[4 * g + c] = static_cast<uint8_t>(codes.code[c] & 255);
            high |= (codes.code[c] >> 8) << (3 * c);
        }
        b.qh[g] = static_cast<uint16_t>(high);
    });
}

void encode_grid(const GridSource& source, BlockIQ1M& b) {
    b = {};
    const uint16_t d = encode_groups<Iq1<16, 8>>(source, 1.0f, [&](int g, int s, const GridCodes& codes) {
        for (int c = 0; c < 2; ++c) {
            b.qs[2 * g + c] = static_cast<uint8_t>(codes.code[c] & 255);
            put_bits(b.qh, 8 * g + 4 * c, codes.code[c] >> 8 | codes.minus[c] << 3);
        }
        b.scales[g / 4] = static_cast<uint16_t>(b.scales[g / 4] | s << (3 * (g % 4)));
    });
    for (int i = 0; i < 4; ++i) b.scales[i] = static_cast<uint16_t>(b.scales[i] | (d >> (4 * i) & 15) << 12);
}

}  // namespace

bool encode_grids(DType type, const float* src, const float* importance, void* dst, int64_t n) {
    switch (type) {
        case DType::iq3_s:
            return encode_super_blocks<BlockIQ3S>(src, importance, dst, n, encode_grid);
        case DType::iq3_xxs:
            return encode_super_blocks<BlockIQ3XXS>(src, importance, dst, n, encode_grid);
        case DType::iq2_s:
            return encode_super_blocks<BlockIQ2S>(src, importance, dst, n, encode_grid);
        case DType::iq2_xs:
            return encode_super_blocks<BlockIQ2XS>(src, importance, dst, n, encode_grid);
        case DType::iq2_xxs:
            return encode_super_blocks<BlockIQ2XXS>(src, importance, dst, n, encode_grid);
        case DType::iq1_m:
            return encode_super_blocks<BlockIQ1M>(src, importance, dst, n, encode_grid);
        case DType::iq1_s:
            return encode_super_blocks<BlockIQ1S>(src, importance, dst, n, encode_grid);
        default:
            return false;
    }
}

}  // namespace riptide::codec
