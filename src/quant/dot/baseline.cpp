// The dot products in plain C++: the definition in quant/dot.h read aloud, for CPUs without a kernel of their own.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "quant/dot/scales.h"
#include "quant/dot/span.h"

namespace riptide {

namespace {

struct Span {
    uint8_t u[256];
    SpanScales scales;
};

// Sixteen bytes hold 32 four-bit codes: value j in the low, value j + 16 in the high nibble of byte j.
void nibbles(const uint8_t* p, uint8_t* u) {
    for (int j = 0; j < 16; ++j) {
        u[j] = p[j] & 15;
        u[j + 16] = p[j] >> 4;
    }
}

void look_up(const uint8_t* p, const int8_t* values, int zero, uint8_t* u) {
    nibbles(p, u);
    for (int j = 0; j < 32; ++j) u[j] = static_cast<uint8_t>(values[u[j]] + zero);
}

void fifth_bits(const uint8_t* p, uint8_t* u) {
    for (int j = 0; j < 32; ++j) u[j] = static_cast<uint8_t>(u[j] | (p[j / 8] >> (j % 8) & 1) << 4);
}

/// The codes of the 32 values of group j. p: the block of the group; for nvfp4, whose blocks hold 64 values, its half
/// of it.
template <DType T>
void group_codes(const uint8_t* p, uint8_t* u) {
    if constexpr (T == DType::mxfp4) look_up(p + 1, kE2M1Doubled, 16, u);
    if constexpr (T == DType::q4_0) nibbles(p + 2, u);
    if constexpr (T == DType::q4_1) nibbles(p + 4, u);
    if constexpr (T == DType::iq4_nl) look_up(p + 2, kIQ4Values, 128, u);
    if constexpr (T == DType::q8_0)
        for (int i = 0; i < 32; ++i) u[i] = p[2 + i] ^ 0x80;
    if constexpr (T == DType::q5_0 || T == DType::q5_1) {
        const uint8_t* high = p + (T == DType::q5_0 ? 2 : 4);
        nibbles(high + 4, u);
        fifth_bits(high, u);
    }
    if constexpr (T == DType::nvfp4)
        for (int i = 0; i < 32; ++i)
            u[i] = static_cast<uint8_t>(kE2M1Doubled[p[i / 16 * 8 + i % 8] >> (i % 16 / 8 * 4) & 15] + 16);
}

template <DType T>
void superblock_codes(const uint8_t* p, uint8_t* u) {
    for (int i = 0; i < 256; ++i) {
        const int group = i / 32, l = i % 32, half = i / 128;
        int code = 0;
        if constexpr (T == DType::q4_k) code = p[16 + i / 64 * 32 + l] >> (group % 2 * 4) & 15;
        if constexpr (T == DType::q5_k)
            code = (p[48 + i / 64 * 32 + l] >> (group % 2 * 4) & 15) | (p[16 + l] >> group & 1) << 4;
        if constexpr (T == DType::q6_k)
            code = (p[half * 64 + i % 64] >> (i / 64 % 2 * 4) & 15) | (p[128 + half * 32 + l] >> (group % 4 * 2) & 3)
                                                                          << 4;
        if constexpr (T == DType::q2_k) code = p[16 + half * 32 + l] >> (group % 4 * 2) & 3;
        if constexpr (T == DType::q3_k)
            code = (p[32 + half * 32 + l] >> (group % 4 * 2) & 3) | (p[l] >> group & 1) << 2;
        if constexpr (T == DType::iq4_xs) code = kIQ4Values[p[8 + 16 * group + l % 16] >> (l / 16 * 4) & 15] + 128;
        if constexpr (T == DType::int8_16 || T == DType::int8_32) code = p[i] ^ 0x80;
        u[i] = static_cast<uint8_t>(code);
    }
}

/// Decodes `groups` <= 8 groups at p; the others become zeros.
template <DType T>
void decode_groups(const uint8_t* p, int64_t groups, Span& span) {
    span_scales<T>(p, groups, span.scales);
    if constexpr (kSpan<T>.bytes32 == 0) {
        superblock_codes<T>(p, span.u);
    } else {
        for (int64_t j = 0; j < groups; ++j)
            group_codes<T>(T == DType::nvfp4 ? p + j / 2 * 36 + 4 + j % 2 * 16 : p + kSpan<T>.bytes32 * j,
                           span.u + 32 * j);
        std::memset(span.u + 32 * groups, 0, static_cast<size_t>(32 * (8 - groups)));
    }
}

/// Adds the eight groups of span times those of x beginning at value c to the lanes.
template <DType T>
void add_span(const Span& span, const Int8Row& x, int64_t c, float* lane) {
    constexpr SpanTraits t = kSpan<T>;
    constexpr int kLength = 32 / t.halves;
    for (int j = 0; j < 8; ++j) {
        float v = 0.0f;
        for (int h = 0; h < t.halves; ++h) {
            const int first = 32 * j + kLength * h;
            int32_t sum = 0, sum_a = 0;
            for (int i = 0; i < kLength; ++i) {
                sum += span.u[first + i] * x.a[c + first + i];
                sum_a += x.a[c + first + i];
            }
            const auto centred = static_cast<float>(sum - t.zero * sum_a);
            v = h == 0 ? span.scales.s[0][j] * centred : std::fma(span.scales.s[1][j], centred, v);
        }
        if (t.mins) {
            const float* sums = x.sum16 + c / 16;
            if (t.halves == 1) v = std::fma(-span.scales.m[0][j], x.sum32[c / 32 + j], v);
            for (int h = 0; h < t.halves && t.halves == 2; ++h) v = std::fma(-span.scales.m[h][j], sums[8 * h + j], v);
        }
        lane[j] = std::fma(v, x.d[c / 32 + j], lane[j]);
    }
}

template <DType T>
void dot_block_rows(const DotTask& task) {
    const Weight& w = *task.w;
    const int64_t spans = Int8Row::padded(w.cols) / 256;
    auto* decoded = static_cast<Span*>(task.scratch);
    static_assert(sizeof(Span) <= 24 * 256);
    for (int64_t o = task.row_begin; o < task.row_end; ++o) {
        const auto* row = static_cast<const uint8_t*>(w.row(o));
        for (int64_t b = 0; b < spans; ++b)
            decode_groups<T>(row + b * span_bytes<T>(), std::min<int64_t>(8, (w.cols - 256 * b) / 32), decoded[b]);
        for (int64_t i = 0; i < task.n; ++i) {
            const Int8Row x = int8_row(task.x_row(i), w.cols);
            float l[8] = {};
            for (int64_t b = 0; b < spans; ++b) add_span<T>(decoded[b], x, 256 * b, l);
            const float sum = ((l[0] + l[4]) + (l[2] + l[6])) + ((l[1] + l[5]) + (l[3] + l[7]));
            task.y[i * task.y_stride + o - task.row_begin] = sum * w.scale;
        }
    }
}

void dot_float_rows(const DotTask& task) {
    const Weight& w = *task.w;
    auto* row = static_cast<float*>(task.scratch);
    for (int64_t o = task.row_begin; o < task.row_end; ++o) {
        expand_float_row(w, o, w.cols, row);
        for (int64_t i = 0; i < task.n; ++i) {
            const auto* x = static_cast<const float*>(task.x_row(i));
            float lane[16] = {};
            int64_t c = 0;
            for (; c < w.cols; ++c) lane[c % 16] = std::fma(row[c], x[c], lane[c % 16]);
            for (; c % 16 != 0; ++c) lane[c % 16] += 0.0f;
            for (int half = 8; half > 0; half /= 2)
                for (int k = 0; k < half; ++k) lane[k] += lane[k + half];
            task.y[i * task.y_stride + o - task.row_begin] = lane[0];
        }
    }
}

}  // namespace

void quantize_baseline(const float* x, int64_t begin, int64_t end, int64_t cols, void* out) {
    const int64_t padded = Int8Row::padded(cols);
    auto* a = static_cast<int8_t*>(out);
    auto* d = reinterpret_cast<float*>(a + padded);
    float* sum32 = d + padded / 32;
    float* sum16 = d + padded / 16;
    for (int64_t g = begin / 32; g < (end == cols ? padded : end) / 32; ++g) {
        float group[32] = {};
        const int64_t count = std::min<int64_t>(32, end - 32 * g);
        if (count > 0) std::memcpy(group, x + (32 * g - begin), static_cast<size_t>(count) * sizeof(float));
        uint32_t largest = 0;  // ordered like the magnitudes, NaN above infinity
        for (float value : group) largest = std::max(largest, std::bit_cast<uint32_t>(value) & 0x7FFFFFFFu);
        const bool finite = largest < 0x7F800000u;
        const float amax = largest < 0x0D800000u ? 0.0f : std::bit_cast<float>(largest);  // 2^-100
        const float inverse = finite && amax > 0.0f ? 127.0f / amax : 0.0f;
        d[g] = finite ? amax / 127.0f : std::bit_cast<float>(0x7FC00000u);
        int sums[2] = {};
        for (int i = 0; i < 32; ++i) {
            // 1.5 * 2^23 has an ulp of 1: adding it rounds to the nearest integer, ties to even.
            const float rounded = finite ? (group[i] * inverse + 12582912.0f) - 12582912.0f : 0.0f;
            a[32 * g + i] = static_cast<int8_t>(rounded);
            sums[i / 16] += a[32 * g + i];
        }
        sum32[g] = static_cast<float>(sums[0] + sums[1]);
        for (int h = 0; h < 2; ++h) sum16[g / 8 * 16 + 8 * h + g % 8] = static_cast<float>(sums[h]);
    }
}

void dot_baseline(const DotTask& task) {
    switch (task.w->dtype) {
#define X(T)       \
    case DType::T: \
        return dot_block_rows<DType::T>(task);
        RT_SPAN_TYPES(X)
        X(int8_16)
        X(int8_32)
#undef X
        default:
            return dot_float_rows(task);
    }
}

}  // namespace riptide
