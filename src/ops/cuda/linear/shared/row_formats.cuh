// Rows of planes of any type in shared memory, times a staged row: same bits as dot_plane() of dot.cuh.
#pragma once

#include <type_traits>

#include "ops/cuda/linear/shared/dot_kquant.cuh"
#include "ops/cuda/linear/shared/row_formats.h"
#include "quant/decode.cuh"

namespace riptide::ops::cuda::decode {

/// Where a weight's planes lie, in the order of PlaneBytes.
struct RowPlanes {
    const char* plane[4];
    RowFormat format;
    LevelTable levels;
};
inline RowPlanes row_planes(const Weight& w) {
    const auto* scales = static_cast<const char*>(w.scales);
    const char* const d = scales + w.rows * (w.cols / 16);  // of q6_k and q2_k
    return {{static_cast<const char*>(w.data), scales, static_cast<const char*>(w.high), d},
            row_format(w),
            level_table(w.levels)};
}

#ifdef __CUDACC__

/// Kernels for one format: what depends on the weights alone is worked out while the kernel before still runs.
template <RowFormat F>
struct OneFormat {
    static constexpr RowFormat kFormat = F;
    static constexpr bool kAhead = true;
    static constexpr bool kHalves = F == RowFormat::q6_k || F == RowFormat::q2_k;  // takes sums of halves of x

    __device__ __forceinline__ static constexpr PlaneBytes bytes(RowFormat) { return plane_bytes(F); }
    template <class Use>
    __device__ __forceinline__ static void with(RowFormat, const Use& use) {
        use(std::integral_constant<RowFormat, F>{});
    }
};
/// Kernels that ask a matrix for its format.
struct AnyFormat {
    static constexpr RowFormat kFormat = RowFormat::none;
    static constexpr bool kAhead = false;
    static constexpr bool kHalves = true;

    __device__ __forceinline__ static constexpr PlaneBytes bytes(RowFormat f) { return plane_bytes(f); }
    template <class Use>
    __device__ __forceinline__ static void with(RowFormat format, const Use& use) {
        switch (format) {
#define RIPTIDE_FORMAT(f)                                       \
    case RowFormat::f:                                          \
        use(std::integral_constant<RowFormat, RowFormat::f>{}); \
        break;
            RIPTIDE_FORMAT(q4_k)
            RIPTIDE_FORMAT(q5_k)
            RIPTIDE_FORMAT(q6_k)
            RIPTIDE_FORMAT(q2_k)
            RIPTIDE_FORMAT(int8)
            RIPTIDE_FORMAT(int4)
            RIPTIDE_FORMAT(iq3_s)
            RIPTIDE_FORMAT(levels_f16)
            RIPTIDE_FORMAT(levels_f32)
            RIPTIDE_FORMAT(levels_f32_16)
#undef RIPTIDE_FORMAT
            case RowFormat::none:
                break;
        }
    }
};

/// The activations of sub-block j for format F. int8: every other four lanes have the halves exchanged, here and in
/// SharedRows::value(), so that eight lanes read different banks.
template <RowFormat F>
__device__ __forceinline__ KActs row_acts(const char* staged, int groups, int j) {
    if constexpr (F == RowFormat::int8) {
        const int swap = j / 4 % 2;
        KActs x;
        x.lo = *reinterpret_cast<const uint4*>(staged + 16 * (swap * groups + j));
        x.hi = *reinterpret_cast<const uint4*>(staged + 16 * ((1 - swap) * groups + j));
        x.d = *reinterpret_cast<const float*>(staged + 32 * groups + 8 * j);
        x.a = x.a0 = 0.0f;
        return x;
    } else {
        return k_acts<OneFormat<F>::kHalves>(staged, groups, j);
    }
}

/// A few rows in shared memory: all of the first plane, all of the second and so on. Sub-block index: row * groups + j.
template <RowFormat F>
struct SharedRows {
    char* memory;
    int groups, rows;  // sub-blocks of a row; rows that there is room for

    __device__ __forceinline__ char* plane(int p) const {
        return memory + rows * (groups / 8) * plane_bytes(F).before(p);
    }
    /// copy(to, from, bytes) for each plane of rows [first, first + count), `offset` bytes behind those of `from`.
    template <class Copy>
    __device__ __forceinline__ void each(const RowPlanes& from, int64_t offset, int first, int count,
                                         const Copy& copy) const {
#pragma unroll
        for (int p = 0; p < 4; ++p) {
            const int row = groups / 8 * plane_bytes(F).bytes[p];
            if (row != 0) copy(plane(p), from.plane[p] + offset + static_cast<int64_t>(first) * row, count * row);
        }
    }

    /// use(plane, bytes of a row of Groups sub-blocks) for each plane, both as constants.
    template <int Groups, class Use>
    __device__ __forceinline__ static void planes(const Use& use) {
        const auto one = [&](auto p) {
            constexpr int kRow = Groups / 8 * plane_bytes(F).bytes[decltype(p)::value];
            if constexpr (kRow != 0) use(p, std::integral_constant<int, kRow>{});
        };
        one(std::integral_constant<int, 0>{});
        one(std::integral_constant<int, 1>{});
        one(std::integral_constant<int, 2>{});
        one(std::integral_constant<int, 3>{});
    }

    /// Scales and minima of a sub-block, as value() takes them: s (of q4_k a sixteenth of it) and m; s0 and s1; of q2_k
    /// s0, s1, m0, m1.
    using Scales = std::conditional_t<F == RowFormat::q2_k, float4, float2>;
    __device__ __forceinline__ Scales scales(int index, const KShifts& at) const {
        if constexpr (F == RowFormat::q4_k || F == RowFormat::q5_k) {
            return q4_scales<F == RowFormat::q4_k>(*reinterpret_cast<const uint4*>(plane(1) + index / 8 * 16), at);
        } else if constexpr (F == RowFormat::q6_k) {
            return q6_scales(*reinterpret_cast<const uint16_t*>(plane(1) + 2 * index),
                             *reinterpret_cast<const uint16_t*>(plane(3) + index / 8 * 2));
        } else if constexpr (F == RowFormat::q2_k) {
            const uint32_t parts = *reinterpret_cast<const uint16_t*>(plane(1) + 2 * index),
                           both = *reinterpret_cast<const uint32_t*>(plane(3) + index / 8 * 4);
            const float d = half_bits(both & 0xFFFFu), dmin = half_bits(both >> 16);
            const auto part = [&](int shift) { return static_cast<float>(parts >> shift & 15u); };
            return {d * part(0), d * part(8), dmin * part(4), dmin * part(12)};
        } else if constexpr (F == RowFormat::levels_f32 || F == RowFormat::iq3_s) {
            const float s = *reinterpret_cast<const float*>(plane(1) + 4 * index);
            return {s, s};
        } else if constexpr (F == RowFormat::levels_f32_16) {
            return *reinterpret_cast<const float2*>(plane(1) + 8 * index);
        } else {
            const float s = half_bits(*reinterpret_cast<const uint16_t*>(plane(1) + 2 * index));
            return {s, s};
        }
    }

    /// The product of a sub-block with x but for x's scale.
    __device__ __forceinline__ float value(int index, const KActs& x, Scales by, const LevelTable& levels) const {
        if constexpr (F == RowFormat::q4_k || F == RowFormat::q6_k) {
            constexpr bool kQ6 = F == RowFormat::q6_k;
            uint2 high = {};
            if constexpr (kQ6) high = *reinterpret_cast<const uint2*>(plane(2) + 8 * index);
            return k_value<kQ6>(*reinterpret_cast<const uint4*>(memory + 16 * index), high, x, by);
        } else {
            uint32_t lo[4], hi[4];
            unpack(index, levels, lo, hi);
            const int s0 = dot4(lo, x.lo), s1 = dot4(hi, x.hi);
            if constexpr (F == RowFormat::q2_k) {
                const float v = fmaf(by.y, static_cast<float>(s1), __fmul_rn(by.x, static_cast<float>(s0)));
                return fmaf(-by.w, x.a - x.a0, fmaf(-by.z, x.a0, v));
            } else if constexpr (F == RowFormat::levels_f32_16) {
                return fmaf(by.y, static_cast<float>(s1), __fmul_rn(by.x, static_cast<float>(s0)));
            } else {
                const auto sum = static_cast<float>(s0 + s1);
                if constexpr (F == RowFormat::q5_k) return fmaf(-by.y, x.a, __fmul_rn(by.x, sum));
                if constexpr (F == RowFormat::iq3_s) return __fmul_rn(by.x, fmaf(-15.0f, x.a, 2.0f * sum));  // exact
                return __fmul_rn(by.x, F == RowFormat::int4 ? fmaf(-8.0f, x.a, sum) : sum);
            }
        }
    }

  private:
    /// The integers of a sub-block, as dot_plane() has them.
    __device__ __forceinline__ void unpack(int index, const LevelTable& levels, uint32_t (&lo)[4],
                                           uint32_t (&hi)[4]) const {
        constexpr DType kType = F == RowFormat::q5_k   ? DType::planes_q5_k
                                : F == RowFormat::q2_k ? DType::planes_q2_k
                                : F == RowFormat::int8 ? DType::planes_int8
                                                       : DType::planes_int4;  // nibbles as they are
        constexpr bool kLevels =
            F == RowFormat::levels_f16 || F == RowFormat::levels_f32 || F == RowFormat::levels_f32_16;
        uint32_t raw[AllPlanes::kWords] = {};
        if constexpr (F == RowFormat::q2_k) {
            const uint2 codes = *reinterpret_cast<const uint2*>(memory + 8 * index);
            raw[0] = codes.x, raw[1] = codes.y;
        } else if constexpr (F == RowFormat::int8) {
            const int swap = index / 4 % 2;
            put_words(raw, 0, *reinterpret_cast<const uint4*>(memory + 32 * index + 16 * swap));
            put_words(raw, 4, *reinterpret_cast<const uint4*>(memory + 32 * index + 16 * (1 - swap)));
        } else {
            put_words(raw, 0, *reinterpret_cast<const uint4*>(memory + 16 * index));
        }
        if constexpr (F == RowFormat::q5_k) raw[8] = *reinterpret_cast<const uint32_t*>(plane(2) + 4 * index);
        if constexpr (kLevels) {
#pragma unroll
            for (int t = 0; t < 4; ++t) look_up(raw[t], levels, lo[t], hi[t]);
        } else {
            unpack_plane<AllPlanes>(kType, 0, raw, lo, hi);
        }
    }
};

#endif  // __CUDACC__

}  // namespace riptide::ops::cuda::decode
