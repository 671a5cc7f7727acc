// The dot products in plain C++: the definition in quant/dot.h read aloud, for CPUs without a kernel of their own.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "quant/dot_span.h"
#include "tensor/half.h"

namespace riptide {

namespace {

struct Span {
    uint8_t u[256];
    float s[2][8];  // [half][group]
    float m[2][8];
};

float half_at(const uint8_t* p) { return f16_to_f32(static_cast<uint16_t>(p[0] | p[1] << 8)); }

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

/// Decodes the 32 values of group j at p, for formats whose blocks hold 32 (nvfp4: 64) values.
template <DType T>
void decode_group(const uint8_t* p, int j, Span& span) {
    uint8_t* u = span.u + 32 * j;
    if constexpr (T == DType::mxfp4) {
        span.s[0][j] = p[0] >= 2 ? std::bit_cast<float>(static_cast<uint32_t>(p[0] - 1) << 23)
                                 : std::bit_cast<float>(uint32_t{0x00200000} << p[0]);
        look_up(p + 1, kE2M1Doubled, 16, u);
        return;
    } else {
        span.s[0][j] = half_at(p);
    }
    if constexpr (T == DType::q4_0) nibbles(p + 2, u);
    if constexpr (T == DType::iq4_nl) look_up(p + 2, kIQ4Values, 128, u);
    if constexpr (T == DType::q8_0)
        for (int i = 0; i < 32; ++i) u[i] = p[2 + i] ^ 0x80;
    if constexpr (T == DType::q5_0) {
        nibbles(p + 6, u);
        fifth_bits(p + 2, u);
    }
    if constexpr (T == DType::q4_1) nibbles(p + 4, u);
    if constexpr (T == DType::q5_1) {
        nibbles(p + 8, u);
        fifth_bits(p + 4, u);
    }
    if constexpr (T == DType::q4_1 || T == DType::q5_1) span.m[0][j] = -half_at(p + 2);
}

void decode_nvfp4_block(const uint8_t* p, int j, Span& span) {
    for (int k = 0; k < 4; ++k) {
        span.s[k % 2][j + k / 2] = (p[k] & 0x7F) == 0x7F ? 0.0f : 0.5f * f8_e4m3_to_f32(p[k] & 0x7F);
        uint8_t* u = span.u + 32 * j + 16 * k;
        const uint8_t* q = p + 4 + 8 * k;
        for (int i = 0; i < 8; ++i) {
            u[i] = static_cast<uint8_t>(kE2M1Doubled[q[i] & 15] + 16);
            u[i + 8] = static_cast<uint8_t>(kE2M1Doubled[q[i] >> 4] + 16);
        }
    }
}

// Twelve bytes: eight 6-bit scales and eight 6-bit minima.
void scales_q4_k(const uint8_t* p, const uint8_t* packed, Span& span) {
    const float d = half_at(p), dmin = half_at(p + 2);
    for (int j = 0; j < 8; ++j) {
        const int sc = j < 4 ? packed[j] & 63 : (packed[j + 4] & 15) | (packed[j - 4] >> 6) << 4;
        const int m = j < 4 ? packed[j + 4] & 63 : packed[j + 4] >> 4 | (packed[j] >> 6) << 4;
        span.s[0][j] = d * static_cast<float>(sc);
        span.m[0][j] = dmin * static_cast<float>(m);
    }
}

void scales_q3_k(const uint8_t* packed, float d, Span& span) {
    for (int i = 0; i < 16; ++i) {
        const int low = i < 8 ? packed[i] & 15 : packed[i - 8] >> 4;
        const int high = packed[8 + i % 4] >> (2 * (i / 4)) & 3;
        span.s[i % 2][i / 2] = d * static_cast<float>((low | high << 4) - 32);
    }
}

template <DType T>
void decode_superblock(const uint8_t* p, Span& span) {
    if constexpr (T == DType::q4_k || T == DType::q5_k) {
        scales_q4_k(p, p + 4, span);
        const uint8_t* q = p + (T == DType::q4_k ? 16 : 48);
        for (int i = 0; i < 256; ++i) {
            span.u[i] = q[i / 64 * 32 + i % 32] >> (i / 32 % 2 * 4) & 15;
            if (T == DType::q5_k) span.u[i] = static_cast<uint8_t>(span.u[i] | (p[16 + i % 32] >> (i / 32) & 1) << 4);
        }
    } else if constexpr (T == DType::q6_k) {
        const float d = half_at(p + 208);
        for (int i = 0; i < 16; ++i) span.s[i % 2][i / 2] = d * static_cast<float>(static_cast<int8_t>(p[192 + i]));
        for (int i = 0; i < 256; ++i) {
            const int low = p[i / 128 * 64 + i % 64] >> (i / 64 % 2 * 4) & 15;
            const int high = p[128 + i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3;
            span.u[i] = static_cast<uint8_t>(low | high << 4);
        }
    } else if constexpr (T == DType::q2_k) {
        const float d = half_at(p + 80), dmin = half_at(p + 82);
        for (int i = 0; i < 16; ++i) {
            span.s[i % 2][i / 2] = d * static_cast<float>(p[i] & 15);
            span.m[i % 2][i / 2] = dmin * static_cast<float>(p[i] >> 4);
        }
        for (int i = 0; i < 256; ++i) span.u[i] = p[16 + i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3;
    } else if constexpr (T == DType::q3_k) {
        scales_q3_k(p + 96, half_at(p + 108), span);
        for (int i = 0; i < 256; ++i) {
            const int low = p[32 + i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3;
            span.u[i] = static_cast<uint8_t>(low | (p[i % 32] >> (i / 32) & 1) << 2);
        }
    } else {
        static_assert(T == DType::iq4_xs);
        const float d = half_at(p);
        for (int j = 0; j < 8; ++j) {
            const int scale = (p[4 + j / 2] >> (j % 2 * 4) & 15) | ((p[2] | p[3] << 8) >> (2 * j) & 3) << 4;
            span.s[0][j] = d * static_cast<float>(scale - 32);
            look_up(p + 8 + 16 * j, kIQ4Values, 128, span.u + 32 * j);
        }
    }
}

/// Decodes `groups` <= 8 groups at p; the others become zeros.
template <DType T>
void decode(const uint8_t* p, int groups, Span& span) {
    if constexpr (kSpan<T>.bytes32 == 0) {
        decode_superblock<T>(p, span);
    } else {
        if (groups < 8) std::memset(&span, 0, sizeof span);
        for (int j = 0; j < groups; ++j) {
            if constexpr (T == DType::nvfp4) {
                if (j % 2 == 0) decode_nvfp4_block(p + 18 * j, j, span);
            } else {
                decode_group<T>(p + kSpan<T>.bytes32 * j, j, span);
            }
        }
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
            v = h == 0 ? span.s[0][j] * centred : std::fma(span.s[1][j], centred, v);
        }
        if (t.mins) {
            const float* sums = x.sum16 + c / 16;
            if (t.halves == 1) v = std::fma(-span.m[0][j], x.sum32[c / 32 + j], v);
            for (int h = 0; h < t.halves && t.halves == 2; ++h) v = std::fma(-span.m[h][j], sums[8 * h + j], v);
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
            decode<T>(row + b * span_bytes<T>(), static_cast<int>(std::min<int64_t>(8, (w.cols - 256 * b) / 32)), decoded[b]);
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
#define X(T) \
    case DType::T: return dot_block_rows<DType::T>(task);
        RT_SPAN_TYPES(X)
#undef X
        default: return dot_float_rows(task);
    }
}

}  // namespace riptide
