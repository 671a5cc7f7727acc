// Block weight dot products with AVX2: a weight row is decoded once, 256 values at a time, and multiplied with every
// activation row. vpmaddubsw saturates at 16 bits, so codes of eight bits are taken as signed numbers and their sign
// moves to the activation: 128 * 127 * 2 still fits.
//
// Everything here is in an unnamed namespace and calls intrinsics only: see quant/dot/span.h.
#include "quant/dot/span.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include "quant/dot/grids_avx2.h"

namespace riptide {

namespace {

/// Eight groups of 32. u: codes in natural order, minus z where z is 128.
struct Span {
    __m256i u[8];
    SpanScales scales;
};

/// `to` where bit `bit` of a byte is set, else zero.
RT_INLINE __m256i bit_to(__m256i v, int bit, int to) {
    const __m256i mask = all(1 << bit);
    return _mm256_and_si256(_mm256_cmpeq_epi8(_mm256_and_si256(v, mask), mask), all(to));
}
/// Sixteen bytes to 32 four-bit codes, low nibbles first.
RT_INLINE __m256i nibbles(const uint8_t* p) {
    const __m128i v = load16(p);
    return _mm256_and_si256(_mm256_set_m128i(_mm_srli_epi16(v, 4), v), all(15));
}
RT_INLINE __m256i look_up(const int8_t* values, int zero, __m256i codes) {
    const __m256i table = _mm256_add_epi8(_mm256_broadcastsi128_si256(load16(values)), all(zero));
    return _mm256_shuffle_epi8(table, codes);
}
/// The codes of a group of a simple block at p (nvfp4: the sixteen bytes of the group).
template <DType T>
RT_INLINE __m256i group_codes(const uint8_t* p) {
    if constexpr (T == DType::q8_0) return load32(p + 2);
    else if constexpr (T == DType::q4_0) return nibbles(p + 2);
    else if constexpr (T == DType::q4_1) return nibbles(p + 4);
    else if constexpr (T == DType::q5_0)
        return _mm256_or_si256(nibbles(p + 6), _mm256_and_si256(bits_to_bytes(load_u32(p + 2)), all(16)));
    else if constexpr (T == DType::q5_1)
        return _mm256_or_si256(nibbles(p + 8), _mm256_and_si256(bits_to_bytes(load_u32(p + 4)), all(16)));
    else if constexpr (T == DType::iq4_nl) return look_up(kIQ4Values, 0, nibbles(p + 2));
    else if constexpr (T == DType::mxfp4) return look_up(kE2M1Doubled, 16, nibbles(p + 1));
    else {                             // nvfp4: eight bytes hold sixteen values, low nibbles first
        const __m256i v = nibbles(p);  // low nibbles of both halves, high nibbles of both halves
        return look_up(kE2M1Doubled, 16, _mm256_permute4x64_epi64(v, _MM_SHUFFLE(3, 1, 2, 0)));
    }
}

template <DType T>
RT_INLINE void superblock_codes(const uint8_t* p, __m256i* u) {
    RT_UNROLL
    for (int g = 0; g < 8; ++g) {
        if constexpr (T == DType::q4_k) u[g] = field(load32(p + 16 + g / 2 * 32), g % 2 * 4, 15);
        if constexpr (T == DType::q5_k)
            u[g] = _mm256_or_si256(field(load32(p + 48 + g / 2 * 32), g % 2 * 4, 15), bit_to(load32(p + 16), g, 16));
        if constexpr (T == DType::q6_k)
            u[g] = _mm256_or_si256(field(load32(p + g / 4 * 64 + g % 2 * 32), g / 2 % 2 * 4, 15),
                                   _mm256_slli_epi16(field(load32(p + 128 + g / 4 * 32), g % 4 * 2, 3), 4));
        if constexpr (T == DType::q2_k) u[g] = field(load32(p + 16 + g / 4 * 32), g % 4 * 2, 3);
        if constexpr (T == DType::q3_k)
            u[g] = _mm256_or_si256(field(load32(p + 32 + g / 4 * 32), g % 4 * 2, 3), bit_to(load32(p), g, 4));
        if constexpr (T == DType::iq4_xs) u[g] = look_up(kIQ4Values, 0, nibbles(p + 8 + 16 * g));
    }
}

/// Six-bit scales and minima of Q4_K and Q5_K, times d and dmin.
RT_INLINE void k_scales(const uint8_t* p, SpanScales& out) {
    const uint32_t a = load_u32(p + 4), b = load_u32(p + 8), c = load_u32(p + 12);
    const uint64_t s = (a & 0x3F3F3F3Fu) | uint64_t{(c & 0x0F0F0F0Fu) | (a >> 2 & 0x30303030u)} << 32;
    const uint64_t m = (b & 0x3F3F3F3Fu) | uint64_t{(c >> 4 & 0x0F0F0F0Fu) | (b >> 2 & 0x30303030u)} << 32;
    const auto floats = [](uint64_t v) {
        return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<int64_t>(v))));
    };
    _mm256_storeu_ps(out.s[0], _mm256_mul_ps(_mm256_set1_ps(half_at(p)), floats(s)));
    _mm256_storeu_ps(out.m[0], _mm256_mul_ps(_mm256_set1_ps(half_at(p + 2)), floats(m)));
}

template <DType T>
RT_INLINE void decode(const uint8_t* p, int64_t groups, Span& span) {
    if constexpr (T == DType::q4_k || T == DType::q5_k) k_scales(p, span.scales);
    else if constexpr (kGrid<T>) grid_scales<T>(p, span.scales);
    else span_scales<T>(p, groups, span.scales);
    if constexpr (kGrid<T>) {
        grid_codes<T>(p, span.u);
    } else if constexpr (kSpan<T>.bytes32 == 0) {
        superblock_codes<T>(p, span.u);
    } else {
        RT_UNROLL
        for (int64_t j = 0; j < 8; ++j) {
            const uint8_t* group = T == DType::nvfp4 ? p + j / 2 * 36 + 4 + j % 2 * 16 : p + kSpan<T>.bytes32 * j;
            span.u[j] = j < groups ? group_codes<T>(group) : _mm256_setzero_si256();
        }
    }
}

/// Eight sums of four products.
template <bool Signed>
RT_INLINE __m256i multiply(__m256i u, __m256i a) {
    const __m256i pairs =
        Signed ? _mm256_maddubs_epi16(_mm256_abs_epi8(u), _mm256_sign_epi8(a, u)) : _mm256_maddubs_epi16(u, a);
    return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}

template <DType T>
RT_INLINE __m256 add_span(const Span& w, const Int8Row& x, int64_t span, __m256 lanes) {
    constexpr SpanTraits t = kSpan<T>;
    constexpr bool kSigned = t.zero == 128;
    __m256i d[8];
    RT_UNROLL
    for (int g = 0; g < 8; ++g) d[g] = multiply<kSigned>(w.u[g], load32(x.a + 256 * span + 32 * g));
    // In each half of the vector: the sums of that half of groups 0..3, and of groups 4..7.
    const __m256i four = _mm256_hadd_epi32(_mm256_hadd_epi32(d[0], d[1]), _mm256_hadd_epi32(d[2], d[3]));
    const __m256i eight = _mm256_hadd_epi32(_mm256_hadd_epi32(d[4], d[5]), _mm256_hadd_epi32(d[6], d[7]));
    const __m256i first = _mm256_permute2x128_si256(four, eight, 0x20),
                  second = _mm256_permute2x128_si256(four, eight, 0x31);
    const auto centred = [&](__m256i sums, const float* sum_a) {
        const __m256 s = _mm256_cvtepi32_ps(sums);
        if constexpr (t.zero == 0 || kSigned) return s;
        return _mm256_fnmadd_ps(_mm256_set1_ps(t.zero), _mm256_loadu_ps(sum_a), s);
    };
    const auto load = [](const float* p) { return _mm256_loadu_ps(p); };
    __m256 v;
    if constexpr (t.halves == 1) {
        const float* sum = x.sum32 + 8 * span;
        v = _mm256_mul_ps(load(w.scales.s[0]), centred(_mm256_add_epi32(first, second), sum));
        if constexpr (t.mins) v = _mm256_fnmadd_ps(load(w.scales.m[0]), load(sum), v);
    } else {
        const float* sum = x.sum16 + 16 * span;
        v = _mm256_mul_ps(load(w.scales.s[0]), centred(first, sum));
        v = _mm256_fmadd_ps(load(w.scales.s[1]), centred(second, sum + 8), v);
        if constexpr (t.mins) {
            v = _mm256_fnmadd_ps(load(w.scales.m[0]), load(sum), v);
            v = _mm256_fnmadd_ps(load(w.scales.m[1]), load(sum + 8), v);
        }
    }
    return _mm256_fmadd_ps(v, load(x.d + 8 * span), lanes);
}

RT_INLINE float add_lanes(__m256 l) {
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(l), _mm256_extractf128_ps(l, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

RT_INLINE Int8Row row_parts(const void* row, int64_t padded) {
    const auto* a = static_cast<const int8_t*>(row);
    const auto* d = reinterpret_cast<const float*>(a + padded);
    return {a, d, d + padded / 32, d + padded / 16};
}

template <DType T>
void dot_blocks(const DotTask& task) {
    const Weight& w = *task.w;
    const int64_t spans = (w.cols + 255) / 256;
    auto* decoded = static_cast<Span*>(task.scratch);
    static_assert(sizeof(Span) <= 24 * 256);
    for (int64_t o = task.row_begin; o < task.row_end; ++o) {
        const auto* row = static_cast<const uint8_t*>(w.row(o));
        for (int64_t b = 0; b < spans; ++b) {
            const int64_t groups = (w.cols - 256 * b) / 32;
            decode<T>(row + b * span_bytes<T>(), groups < 8 ? groups : 8, decoded[b]);
        }
        for (int64_t i = 0; i < task.n; ++i) {
            const Int8Row x = row_parts(task.x_row(i), 256 * spans);
            __m256 lanes = _mm256_setzero_ps();
            for (int64_t b = 0; b < spans; ++b) lanes = add_span<T>(decoded[b], x, b, lanes);
            task.y[i * task.y_stride + o - task.row_begin] = add_lanes(lanes) * w.scale;
        }
    }
}

/// Four values to int8 range, as integers.
RT_INLINE __m256i rounded(const float* x, __m256 inverse) {
    return _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x), inverse));
}

RT_INLINE int add_eight(__m256i v) {
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, _MM_SHUFFLE(1, 0, 3, 2)));
    return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, _MM_SHUFFLE(2, 3, 0, 1))));
}

/// max |x| of 32 values as bits: ordered like the magnitudes, NaN above infinity.
RT_INLINE uint32_t largest_bits(const float* x) {
    const __m256i magnitude = _mm256_set1_epi32(0x7FFFFFFF);
    __m256i most = _mm256_setzero_si256();
    for (int i = 0; i < 32; i += 8) most = _mm256_max_epu32(most, _mm256_and_si256(load32(x + i), magnitude));
    __m128i m = _mm_max_epu32(_mm256_castsi256_si128(most), _mm256_extracti128_si256(most, 1));
    m = _mm_max_epu32(m, _mm_shuffle_epi32(m, _MM_SHUFFLE(1, 0, 3, 2)));
    return static_cast<uint32_t>(_mm_cvtsi128_si32(_mm_max_epu32(m, _mm_shuffle_epi32(m, _MM_SHUFFLE(2, 3, 0, 1)))));
}

}  // namespace

void quantize_avx2(const float* x, int64_t begin, int64_t end, int64_t cols, void* out) {
    const int64_t padded = (cols + 255) / 256 * 256;
    auto* a = static_cast<int8_t*>(out);
    auto* d = reinterpret_cast<float*>(a + padded);
    float *sum32 = d + padded / 32, *sum16 = d + padded / 16;
    for (int64_t g = begin / 32; g < (end == cols ? padded : end) / 32; ++g) {
        float tail[32] = {};
        const float* group = x + (32 * g - begin);
        const int64_t left = end - 32 * g;
        if (left < 32) {
            for (int64_t i = 0; i < left; ++i) tail[i] = group[i];
            group = tail;
        }
        const uint32_t largest = largest_bits(group);
        const bool finite = largest < 0x7F800000u;
        const float amax = __builtin_bit_cast(float, largest < 0x0D800000u ? 0u : largest);  // 2^-100
        const __m256 inverse = _mm256_set1_ps(finite && amax > 0.0f ? 127.0f / amax : 0.0f);
        d[g] = finite ? amax / 127.0f : __builtin_bit_cast(float, 0x7FC00000u);
        if (!finite) group = tail;  // zeros: inverse is zero, but zero times infinity is not
        if (!finite) __builtin_memset(tail, 0, sizeof tail);
        const __m256i a0 = rounded(group, inverse), a1 = rounded(group + 8, inverse), a2 = rounded(group + 16, inverse),
                      a3 = rounded(group + 24, inverse);
        const __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(a0, a1), _mm256_packs_epi32(a2, a3));
        const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);  // the packs work within halves of a vector
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(a + 32 * g), _mm256_permutevar8x32_epi32(bytes, order));
        const int s0 = add_eight(_mm256_add_epi32(a0, a1)), s1 = add_eight(_mm256_add_epi32(a2, a3));
        sum32[g] = static_cast<float>(s0 + s1);
        sum16[g / 8 * 16 + g % 8] = static_cast<float>(s0);
        sum16[g / 8 * 16 + 8 + g % 8] = static_cast<float>(s1);
    }
}

void dot_avx2(const DotTask& task) {
    switch (task.w->dtype) {
#define X(T)       \
    case DType::T: \
        return dot_blocks<DType::T>(task);
        RT_SPAN_TYPES(X)
        RT_GRID_TYPES(X)
#undef X
        default:
            return dot_float_avx2(task);
    }
}

}  // namespace riptide

#endif
