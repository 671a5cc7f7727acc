// Placed weights (quant/planes.h) as floats, sixteen columns at a time: exactly the values of the file.
//
// decode16 runs on the CPU too, where tests compare it with dequantize_row(). It is plain loads and shifts: for looking
// up rows and for expanding tiles, not for the products of the decode family, which multiply integers.
#pragma once

#include <cstdint>
#include <cstring>

#include "quant/planes.h"
#include "tensor/half.h"
#include "tensor/host_device.h"
#if defined(__CUDACC__)
#include <cuda_fp16.h>
#endif

namespace riptide {

/// Sixteen bytes, a multiple of 16 from the start of a plane.
struct Words4 {
    uint32_t w[4];
};
RT_HD Words4 load_words4(const void* p) {
    Words4 out;
#if defined(__CUDA_ARCH__)
    const uint4 v = *static_cast<const uint4*>(p);
    out.w[0] = v.x, out.w[1] = v.y, out.w[2] = v.z, out.w[3] = v.w;
#else
    std::memcpy(&out, p, sizeof out);
#endif
    return out;
}

/// A value of type T from memory aligned to it; on the CPU aligned or not.
template <class T>
RT_HD T load_as(const void* p, int64_t index) {
#if defined(__CUDA_ARCH__)
    return static_cast<const T*>(p)[index];
#else
    T value;
    std::memcpy(&value, static_cast<const char*>(p) + index * static_cast<int64_t>(sizeof(T)), sizeof(T));
    return value;
#endif
}

RT_HD float float_of_bits(uint32_t bits) {
#if defined(__CUDA_ARCH__)
    return __uint_as_float(bits);
#else
    return std::bit_cast<float>(bits);
#endif
}
RT_HD float float_of_f16(uint16_t bits) {
#if defined(__CUDA_ARCH__)
    return __half2float(__ushort_as_half(bits));
#else
    return f16_to_f32(bits);
#endif
}
RT_HD float float_of_bf16(uint16_t bits) { return float_of_bits(static_cast<uint32_t>(bits) << 16); }
/// E4M3FN. Its bits, moved into binary16, are the value times 2^-8.
RT_HD float float_of_f8(uint8_t bits) {
#if defined(__CUDA_ARCH__)
    if ((bits & 0x7Fu) == 0x7Fu) return __uint_as_float(0x7FC00000u | (bits & 0x80u) << 24);
    return 256.0f * __half2float(__ushort_as_half(static_cast<uint16_t>((bits & 0x80u) << 8 | (bits & 0x7Fu) << 7)));
#else
    return f8_e4m3_to_f32(bits);
#endif
}

/// Entry `index` of a plane of f32, f16, bf16 or f8_e4m3 values.
RT_HD float plane_entry(const void* plane, DType type, int64_t index) {
    switch (type) {
        case DType::f16:
            return float_of_f16(load_as<uint16_t>(plane, index));
        case DType::bf16:
            return float_of_bf16(load_as<uint16_t>(plane, index));
        case DType::f8_e4m3:
            return float_of_f8(load_as<uint8_t>(plane, index));
        default:
            return load_as<float>(plane, index);
    }
}

/// The plane entry for element (row, col) of a type with scale_rows and scale_cols; 1 without a plane.
RT_HD float plane_at(const Weight& w, int64_t row, int64_t col) {
    if (w.scales == nullptr) return 1.0f;
    const int64_t per_row = (w.cols + w.scale_cols - 1) / w.scale_cols;
    return plane_entry(w.scales, w.scale_dtype, row / w.scale_rows * per_row + col / w.scale_cols);
}

/// Byte i of a word, unsigned or signed.
RT_HD int byte_of(uint32_t word, int i) { return static_cast<int>(word >> (8 * i) & 255u); }
RT_HD int signed_byte_of(uint32_t word, int i) { return static_cast<int8_t>(word >> (8 * i) & 255u); }

/// Bytes of a 16-entry table: byte i of `low` is that of the low nibble of byte i of q, of `high` that of its high one.
struct LevelTable {
    uint32_t w[4];
};
constexpr LevelTable table_of(LevelSet set) {
    LevelTable t{};
    for (int i = 0; i < 16; ++i) {
        const auto byte = static_cast<uint8_t>(kLevels[static_cast<int>(set)][i]);
        t.w[i / 4] |= static_cast<uint32_t>(byte) << (8 * (i % 4));
    }
    return t;
}
RT_HD LevelTable level_table(uint8_t levels) {
    constexpr LevelTable iq4 = table_of(LevelSet::iq4), e2m1 = table_of(LevelSet::e2m1),
                         iq1_iq2 = table_of(LevelSet::iq1_iq2), iq3_xxs = table_of(LevelSet::iq3_xxs),
                         iq3_s = table_of(LevelSet::iq3_s);
    switch (static_cast<LevelSet>(levels)) {
        case LevelSet::iq4:
            return iq4;
        case LevelSet::e2m1:
            return e2m1;
        case LevelSet::iq1_iq2:
            return iq1_iq2;
        case LevelSet::iq3_xxs:
            return iq3_xxs;
        default:
            return iq3_s;
    }
}
RT_HD void look_up(uint32_t q, const LevelTable& t, uint32_t& low, uint32_t& high) {
#if defined(__CUDA_ARCH__)
    const auto four = [&t](uint32_t n) {  // of the low four nibbles of n
        const uint32_t below = __byte_perm(t.w[0], t.w[1], n & 0x7777u),
                       above = __byte_perm(t.w[2], t.w[3], n & 0x7777u);
        return __byte_perm(below, above, 0x3210u | (n & 0x8888u) >> 1);
    };
    const uint32_t first = four(q), second = four(q >> 16);
    low = __byte_perm(first, second, 0x6420u);
    high = __byte_perm(first, second, 0x7531u);
#else
    low = high = 0;
    for (int i = 0; i < 4; ++i) {
        const uint32_t a = q >> (8 * i) & 15u, b = q >> (8 * i + 4) & 15u;
        low |= (t.w[a / 4] >> (8 * (a % 4)) & 255u) << (8 * i);
        high |= (t.w[b / 4] >> (8 * (b % 4)) & 255u) << (8 * i);
    }
#endif
}

/// The unsigned codes u of sixteen columns (half 0 or 1 of sub-block `sub`, counted through the whole matrix), four in
/// a word, for types with nibbles.
template <DType T>
RT_HD Words4 nibble_codes(const Weight& w, int64_t sub, int half) {
    Words4 u = load_words4(static_cast<const char*>(w.data) + 16 * sub);
    for (int t = 0; t < 4; ++t) u.w[t] = u.w[t] >> (4 * half) & 0x0F0F0F0Fu;
    if constexpr (T == DType::planes_q5_k) {
        const uint32_t high = load_as<uint32_t>(w.high, sub) >> (4 * half);
        for (int t = 0; t < 4; ++t) u.w[t] |= (high >> t & 0x01010101u) << 4;
    }
    if constexpr (T == DType::planes_q6_k) {
        const uint32_t high = load_as<uint32_t>(w.high, 2 * sub + half);
        for (int t = 0; t < 4; ++t) u.w[t] |= (high >> (2 * t) & 0x03030303u) << 4;
    }
    return u;
}

/// out[j] = W[row, col + j]. REQUIRES col a multiple of 16, T == w.dtype; columns behind the last are zero.
/// (stored * plane) * scale, each product rounded to f32, as dequantize_row() has it.
template <DType T>
RT_HD void decode16(const Weight& w, int64_t row, int64_t col, float (&out)[16]) {
    constexpr bool kFloat = T == DType::f32 || T == DType::f16 || T == DType::bf16;
    if constexpr (kFloat) {
        const char* p = static_cast<const char*>(w.data) + row * w.row_bytes;
        if (col + 16 <= w.cols) {
            constexpr int kEach = T == DType::f32 ? 4 : 8;
            for (int i = 0; i < 16 / kEach; ++i) {
                const Words4 words = load_words4(p + (col + kEach * i) * (16 / kEach));
                for (int j = 0; j < kEach; ++j) {
                    const uint32_t bits = T == DType::f32 ? words.w[j % 4] : words.w[j / 2] >> (16 * (j % 2));
                    if constexpr (T == DType::f32) out[kEach * i + j] = float_of_bits(bits);
                    if constexpr (T == DType::f16) out[kEach * i + j] = float_of_f16(static_cast<uint16_t>(bits));
                    if constexpr (T == DType::bf16) out[kEach * i + j] = float_of_bf16(static_cast<uint16_t>(bits));
                }
            }
        } else {
            for (int j = 0; j < 16; ++j) out[j] = col + j < w.cols ? plane_entry(p, T, col + j) : 0.0f;
        }
        for (int j = 0; j < 16; ++j) out[j] *= w.scale;
    } else if constexpr (T == DType::f8_e4m3) {
        const Words4 words = load_words4(static_cast<const char*>(w.data) + row * w.row_bytes + col);
        const bool whole = w.scales == nullptr || w.scale_cols % 16 == 0;
        const float first = plane_at(w, row, col);
        for (int j = 0; j < 16; ++j) {
            const bool there = col + j < w.cols;
            const float plane = whole || !there ? first : plane_at(w, row, col + j);
            out[j] = there ? float_of_f8(static_cast<uint8_t>(byte_of(words.w[j / 4], j % 4))) * plane * w.scale : 0.0f;
        }
    } else if constexpr (T == DType::planes_q4_k || T == DType::planes_q5_k) {
        const int64_t sub = row * (w.cols / 32) + col / 32;
        const Words4 u = nibble_codes<T>(w, sub, static_cast<int>(col / 16 % 2));
        const Words4 h = load_words4(static_cast<const char*>(w.scales) + sub / 8 * 16);  // KHeader
        const int g = static_cast<int>(sub % 8);
        const float s = float_of_f16(static_cast<uint16_t>(h.w[3])) * static_cast<float>(k_scale(h.w[0], h.w[2], g));
        const float m =
            float_of_f16(static_cast<uint16_t>(h.w[3] >> 16)) * static_cast<float>(k_scale(h.w[1], h.w[2] >> 16, g));
        // s * u has at most 22 bits: exact, so that fusing it with the subtraction changes nothing.
        for (int j = 0; j < 16; ++j) out[j] = (s * static_cast<float>(byte_of(u.w[j / 4], j % 4)) - m) * w.scale;
    } else if constexpr (T == DType::planes_q6_k) {
        const int64_t sub = row * (w.cols / 32) + col / 32, blocks = w.rows * (w.cols / 256);
        const Words4 u = nibble_codes<T>(w, sub, static_cast<int>(col / 16 % 2));
        const int scale = load_as<int8_t>(w.scales, 2 * sub + col / 16 % 2);
        const float d = float_of_f16(load_as<uint16_t>(static_cast<const char*>(w.scales) + 16 * blocks, sub / 8));
        const float s = d * static_cast<float>(scale);
        for (int j = 0; j < 16; ++j) out[j] = s * static_cast<float>(byte_of(u.w[j / 4], j % 4) - 32) * w.scale;
    } else if constexpr (T == DType::planes_q2_k) {
        const int64_t sub = row * (w.cols / 32) + col / 32, blocks = w.rows * (w.cols / 256);
        const auto codes = load_as<uint32_t>(w.data, 2 * sub + col / 16 % 2);
        const uint32_t packed = load_as<uint8_t>(w.scales, 2 * sub + col / 16 % 2);
        const auto d = load_as<uint32_t>(static_cast<const char*>(w.scales) + 16 * blocks, sub / 8);
        const float s = float_of_f16(static_cast<uint16_t>(d)) * static_cast<float>(packed & 15u);
        const float m = float_of_f16(static_cast<uint16_t>(d >> 16)) * static_cast<float>(packed >> 4);
        // s u is exact.
        for (int j = 0; j < 16; ++j)
            out[j] = (s * static_cast<float>(codes >> (8 * (j % 4) + 2 * (j / 4)) & 3u) - m) * w.scale;
    } else if constexpr (T == DType::planes_int8) {
        const int64_t sub = row * (w.cols / 32) + col / 32;
        const Words4 q = load_words4(static_cast<const char*>(w.data) + 32 * sub + col / 16 % 2 * 16);
        const float p = plane_at(w, row, col);
        for (int j = 0; j < 16; ++j) out[j] = static_cast<float>(signed_byte_of(q.w[j / 4], j % 4)) * p * w.scale;
    } else if constexpr (T == DType::planes_int4) {
        const Words4 u = nibble_codes<T>(w, row * (w.cols / 32) + col / 32, static_cast<int>(col / 16 % 2));
        const float p = plane_at(w, row, col);
        for (int j = 0; j < 16; ++j) out[j] = static_cast<float>(byte_of(u.w[j / 4], j % 4) - 8) * p * w.scale;
    } else {
        static_assert(T == DType::planes_levels);
        const LevelTable table = level_table(w.levels);
        const Words4 u = nibble_codes<T>(w, row * (w.cols / 32) + col / 32, static_cast<int>(col / 16 % 2));
        const float p = plane_at(w, row, col);
        for (int t = 0; t < 4; ++t) {
            uint32_t level, unused;
            look_up(u.w[t], table, level, unused);
            for (int i = 0; i < 4; ++i) out[4 * t + i] = static_cast<float>(signed_byte_of(level, i)) * p * w.scale;
        }
    }
}

/// Every type that WeightStore places on a GPU.
#define RT_PLACED_TYPES(X)                                                                                       \
    X(f32)                                                                                                       \
    X(f16)                                                                                                       \
    X(bf16) X(f8_e4m3) X(planes_q4_k) X(planes_q5_k) X(planes_q6_k) X(planes_q2_k) X(planes_int8) X(planes_int4) \
        X(planes_levels)

/// decode16<w.dtype>. REQUIRES a placed weight; other types give NaN.
RT_HD void decode16(const Weight& w, int64_t row, int64_t col, float (&out)[16]) {
    switch (w.dtype) {
#define RT_CASE(type) \
    case DType::type: \
        return decode16<DType::type>(w, row, col, out);
        RT_PLACED_TYPES(RT_CASE)
#undef RT_CASE
        default:
            for (int j = 0; j < 16; ++j) out[j] = float_of_bits(0x7FC00000u);
    }
}

}  // namespace riptide
