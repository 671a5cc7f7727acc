#include "quant/codec.h"

#include <cstring>

#include "base/error.h"
#include "quant/blocks.h"
#include "quant/codec_internal.h"

namespace riptide {

namespace {

/// Whole groups first: the compiler vectorises a loop of fixed length.
template <class Stored, class Convert>
void decode_elements(const void* src, float* __restrict dst, int64_t n, Convert convert) {
    constexpr int64_t kAtOnce = 16;
    const auto* bytes = static_cast<const char*>(src);
    const auto decode = [&](int64_t first, int64_t count) {
        Stored group[kAtOnce] = {};
        std::memcpy(group, bytes + first * static_cast<int64_t>(sizeof(Stored)),
                    static_cast<size_t>(count) * sizeof(Stored));
        float values[kAtOnce];
        for (int64_t i = 0; i < kAtOnce; ++i) values[i] = convert(group[i]);
        std::memcpy(dst + first, values, static_cast<size_t>(count) * sizeof(float));
    };
    int64_t i = 0;
    for (; i + kAtOnce <= n; i += kAtOnce) decode(i, kAtOnce);
    if (i < n) decode(i, n - i);
}

template <class Stored, class Convert>
void encode_elements(const float* src, void* dst, int64_t n, Convert convert) {
    auto* bytes = static_cast<char*>(dst);
    for (int64_t i = 0; i < n; ++i) {
        const Stored value = convert(src[i]);
        std::memcpy(bytes + i * static_cast<int64_t>(sizeof(Stored)), &value, sizeof(Stored));
    }
}

/// Four-bit integers, biased by 8. Words of eight are little-endian, so byte i holds elements 2 i (low) and 2 i + 1.
void decode_i4(const uint8_t* src, float* __restrict dst, int64_t n) {
    for (int64_t i = 0; i < n / 2; ++i) {
        dst[2 * i] = static_cast<float>((src[i] & 15) - 8);
        dst[2 * i + 1] = static_cast<float>((src[i] >> 4) - 8);
    }
}

void decode_f4(const uint8_t* src, float* __restrict dst, int64_t n) {
    for (int64_t i = 0; i < n / 2; ++i) {
        dst[2 * i] = 0.5f * static_cast<float>(kE2M1Doubled[src[i] & 15]);
        dst[2 * i + 1] = 0.5f * static_cast<float>(kE2M1Doubled[src[i] >> 4]);
    }
}

constexpr DType kQuantizable[] = {
    DType::f32,    DType::f16,    DType::bf16,    DType::f8_e4m3, DType::q8_0,  DType::q4_0,    DType::q4_1,
    DType::q5_0,   DType::q5_1,   DType::q2_k,    DType::q3_k,    DType::q4_k,  DType::q5_k,    DType::q6_k,
    DType::iq1_s,  DType::iq1_m,  DType::iq2_xxs, DType::iq2_xs,  DType::iq2_s, DType::iq3_xxs, DType::iq3_s,
    DType::iq4_nl, DType::iq4_xs, DType::mxfp4,   DType::tq1_0,   DType::tq2_0, DType::tq3_0};

}  // namespace

void dequantize(DType type, const void* src, float* dst, int64_t n) {
    row_bytes(type, n);  // throws unless n is whole blocks
    const auto* bytes = static_cast<const uint8_t*>(src);
    switch (type) {
        case DType::f32:
            std::memcpy(dst, src, static_cast<size_t>(n) * sizeof(float));
            return;
        case DType::f16:
            return decode_elements<uint16_t>(src, dst, n, [](uint16_t h) { return f16_to_f32(h); });
        case DType::bf16:
            return decode_elements<uint16_t>(src, dst, n, [](uint16_t h) { return bf16_to_f32(h); });
        case DType::f8_e4m3:
            return decode_elements<uint8_t>(src, dst, n, [](uint8_t v) { return f8_e4m3_to_f32(v); });
        case DType::i4_pack:
            return decode_i4(bytes, dst, n);
        case DType::i8_pack:
            return decode_elements<uint8_t>(src, dst, n, [](uint8_t u) { return static_cast<float>(u - 128); });
        case DType::f4_pack:
            return decode_f4(bytes, dst, n);
        default:
            break;
    }
    if (!codec::decode_simple(type, src, dst, n) && !codec::decode_super(type, src, dst, n) &&
        !codec::decode_iq(type, src, dst, n))
        fail("values of type {} cannot be read as weights", dtype_name(type));
}

void dequantize_row(const Weight& w, int64_t row, float* dst) {
    RT_ASSERT(row >= 0 && row < w.rows);
    dequantize(w.dtype, w.row(row), dst, w.cols);
    if (w.scales != nullptr) {
        RT_ASSERT(w.scale_cols > 0 && w.scale_rows > 0);
        for (int64_t begin = 0; begin < w.cols; begin += w.scale_cols) {
            const float plane = w.plane_scale(row, begin);
            const int64_t end = begin + w.scale_cols < w.cols ? begin + w.scale_cols : w.cols;
            for (int64_t c = begin; c < end; ++c) dst[c] *= plane;
        }
    }
    if (w.scale != 1.0f)
        for (int64_t c = 0; c < w.cols; ++c) dst[c] *= w.scale;
}

bool can_quantize(DType type) {
    for (DType known : kQuantizable)
        if (known == type) return true;
    return false;
}

std::string quantize_names() {
    std::string names;
    for (DType type : kQuantizable) names += (names.empty() ? "" : ", ") + std::string(dtype_name(type));
    return names;
}

bool heeds_importance(DType type) {
    return can_quantize(type) && dtype_info(type).block_elements > 1 && type != DType::q8_0 && type != DType::tq3_0;
}

void quantize(DType type, const float* src, void* dst, int64_t n, const float* importance) {
    RT_CHECK(can_quantize(type), "values cannot be quantised to {}: expected one of {}", dtype_name(type),
             quantize_names());
    row_bytes(type, n);  // throws unless n is whole blocks
    switch (type) {
        case DType::f32:
            std::memcpy(dst, src, static_cast<size_t>(n) * sizeof(float));
            return;
        case DType::f16:
            return encode_elements<uint16_t>(src, dst, n, f32_to_f16);
        case DType::bf16:
            return encode_elements<uint16_t>(src, dst, n, f32_to_bf16);
        case DType::f8_e4m3:
            return encode_elements<uint8_t>(src, dst, n, f32_to_f8_e4m3);
        default:
            break;
    }
    if (!codec::all_finite(src, n)) {
        int64_t i = 0;
        while (codec::all_finite(src + i, 1)) ++i;
        fail("value {} of {} is {}: {} holds only finite values", i, n, src[i], dtype_name(type));
    }
    const bool known =
        codec::encode_simple(type, src, importance, dst, n) || codec::encode_super(type, src, importance, dst, n) ||
        codec::encode_scaled(type, src, importance, dst, n) || codec::encode_grids(type, src, importance, dst, n);
    RT_ASSERT(known);
}

}  // namespace riptide
