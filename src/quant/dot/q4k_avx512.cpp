// Rows of q4_k times one activation row with AVX-512 VNNI: what decoding does most.
//
// Two weight rows at a time: about 55 vector operations for 256 values of both, where the kernel for any format takes
// 37 and 14 scalar ones for each. They are saved in the sums: the activations are put beforehand into the order in
// which the nibbles of a block lie, the two halves of a group meet in the same lanes, and sums below 2^15 are added in
// pairs by packing them to int16 and multiplying with ones. The two rows are half a task apart, so that a thread reads
// two long streams: 16 threads of a Xeon then took 98 GB/s of the weights of a layer's projections from memory (before,
// all ops were at 67 to 79; 2026-11-21, without prefetch instructions). Zen 4 EPYC: 30 GB/s from the L2 cache with one
// core, 19 for the kernel for any format; two adjacent rows read in step come at half the speed from memory there,
// because no prefetcher follows.
//
// Everything here is in an unnamed namespace and calls intrinsics only: see quant/dot/span.h.
#include "quant/dot/span.h"

#if defined(__x86_64__)
#include "quant/dot/decode_avx512.h"

namespace riptide {

namespace {

constexpr int64_t kBlockBytes = 144;

/// The activations of a span. Pair p is groups 2 p and 2 p + 1, whose nibbles share 32 bytes of a block: quarter p of
/// every vector. a: first halves of the even groups, their second halves, first halves of the odd groups, their second
/// halves. sum and d: quarter p holds those of groups 2 p, 2 p + 1, 2 p, 2 p + 1: once for each weight row.
struct alignas(64) SpanInput {
    __m512i a[4];
    __m512 sum, d;
};

RT_INLINE SpanInput load_span(const uint8_t* x, int64_t span, int64_t padded) {
    const __m512i v0 = _mm512_loadu_si512(x + 256 * span), v1 = _mm512_loadu_si512(x + 256 * span + 64);
    const __m512i v2 = _mm512_loadu_si512(x + 256 * span + 128), v3 = _mm512_loadu_si512(x + 256 * span + 192);
    const __m512i even01 = _mm512_shuffle_i32x4(v0, v1, 0x44), even23 = _mm512_shuffle_i32x4(v2, v3, 0x44);
    const __m512i odd01 = _mm512_shuffle_i32x4(v0, v1, 0xEE), odd23 = _mm512_shuffle_i32x4(v2, v3, 0xEE);
    const __m512i order = _mm512_setr_epi32(0, 1, 0, 1, 2, 3, 2, 3, 4, 5, 4, 5, 6, 7, 6, 7);
    const auto twice_each = [&](const uint8_t* p) {
        return _mm512_permutexvar_ps(order, _mm512_castps256_ps512(_mm256_loadu_ps(reinterpret_cast<const float*>(p))));
    };
    SpanInput in;
    in.a[0] = _mm512_shuffle_i32x4(even01, even23, 0x88);
    in.a[1] = _mm512_shuffle_i32x4(even01, even23, 0xDD);
    in.a[2] = _mm512_shuffle_i32x4(odd01, odd23, 0x88);
    in.a[3] = _mm512_shuffle_i32x4(odd01, odd23, 0xDD);
    in.d = twice_each(x + padded + 32 * span);
    in.sum = twice_each(x + padded / 8 * 9 + 32 * span);
    return in;
}

/// Indices of the bytes that make up six-bit numbers of a block: for groups j = 0 to 3 byte at + j; for groups 4 + j
/// byte 12 + j, which has four bits, below byte at + j, which has the others. Zeros above them.
RT_INLINE __m512i pick_bytes(int at) {
    const auto one = [&](int j) { return static_cast<int>(0x80808000u) | (at + j); };
    const auto two = [&](int j) { return static_cast<int>(0x80800000u) | (at + j) << 8 | (12 + j); };
    return _mm512_setr_epi32(one(0), one(1), one(0), one(1), one(2), one(3), one(2), one(3), two(0), two(1), two(0),
                             two(1), two(2), two(3), two(2), two(3));
}

struct Scales {
    __m512 s, m;
};

/// Scales and minima of two blocks, given their first 16 bytes. Quarter p: groups 2 p, 2 p + 1 of the first block, then
/// of the second.
RT_INLINE Scales pair_scales(__m128i x0, __m128i x1) {
    const __m512i pick_s = pick_bytes(4), pick_m = pick_bytes(8);
    const __m512i low_bits = _mm512_setr_epi32(63, 63, 63, 63, 63, 63, 63, 63, 15, 15, 15, 15, 15, 15, 15, 15);
    const __m512i shift = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 4, 4, 4, 4, 4, 4, 4, 4);
    const __m512i top_bits = _mm512_set1_epi32(0x30);
    const __m512i h0 = _mm512_broadcast_i32x4(x0), h1 = _mm512_broadcast_i32x4(x1);
    constexpr __mmask64 kSecond = 0xFF00FF00FF00FF00;
    const __m512i a = _mm512_mask_shuffle_epi8(_mm512_shuffle_epi8(h0, pick_s), kSecond, h1, pick_s);
    const __m512i b = _mm512_mask_shuffle_epi8(_mm512_shuffle_epi8(h0, pick_m), kSecond, h1, pick_m);
    const __m512i s = _mm512_ternarylogic_epi32(_mm512_and_si512(a, low_bits), _mm512_srli_epi32(a, 10), top_bits,
                                                0xF8);  // x | (y & z)
    const __m512i m = _mm512_ternarylogic_epi32(_mm512_and_si512(_mm512_srlv_epi32(b, shift), low_bits),
                                                _mm512_srli_epi32(b, 10), top_bits, 0xF8);
    // d, dmin of both -> d0 d0 d1 d1, m0 m0 m1 m1
    const __m128i halves16 =
        _mm_shuffle_epi8(_mm_unpacklo_epi32(x0, x1), _mm_setr_epi8(0, 1, 0, 1, 4, 5, 4, 5, 2, 3, 2, 3, 6, 7, 6, 7));
    const __m512 d = _mm512_castps256_ps512(_mm256_cvtph_ps(halves16));
    return {_mm512_mul_ps(_mm512_cvtepi32_ps(s), _mm512_shuffle_f32x4(d, d, 0x00)),
            _mm512_mul_ps(_mm512_cvtepi32_ps(m), _mm512_shuffle_f32x4(d, d, 0x55))};
}

/// Sums of products of the eight groups of a block: quarter p is two sums for group 2 p, then two for group 2 p + 1.
RT_INLINE __m512i group_sums(const uint8_t* block, const SpanInput& x) {
    const __m512i q0 = _mm512_loadu_si512(block + 16), q1 = _mm512_loadu_si512(block + 80);
    const __m512i first = _mm512_shuffle_i32x4(q0, q1, 0x88), second = _mm512_shuffle_i32x4(q0, q1, 0xDD);
    const __m512i low_bits = bytes(15), high_bits = bytes(0xF0), zero = _mm512_setzero_si512();
    __m512i even = _mm512_dpbusd_epi32(zero, _mm512_and_si512(first, low_bits), x.a[0]);
    __m512i odd = _mm512_dpbusd_epi32(zero, _mm512_and_si512(first, high_bits), x.a[2]);
    even = _mm512_dpbusd_epi32(even, _mm512_and_si512(second, low_bits), x.a[1]);
    odd = _mm512_dpbusd_epi32(odd, _mm512_and_si512(second, high_bits), x.a[3]);
    odd = _mm512_srai_epi32(odd, 4);  // exact: sixteen times the sum
    // |sum of 8 products| <= 8 * 15 * 127 = 15240
    return _mm512_madd_epi16(_mm512_packs_epi32(even, odd), _mm512_set1_epi16(1));
}

/// Adds a span of two rows.
RT_INLINE __m512 add_spans(const uint8_t* p0, const uint8_t* p1, const SpanInput& x, __m512 lanes) {
    prefetch_ahead<kBlockBytes>(p0);
    prefetch_ahead<kBlockBytes>(p1);
    const Scales w = pair_scales(load16(p0), load16(p1));
    const __m512i sums = _mm512_madd_epi16(_mm512_packs_epi32(group_sums(p0, x), group_sums(p1, x)),
                                           _mm512_set1_epi16(1));  // packed: at most 16 * 15 * 127 = 30480
    const __m512 v = _mm512_fnmadd_ps(w.m, x.sum, _mm512_mul_ps(w.s, _mm512_cvtepi32_ps(sums)));
    return _mm512_fmadd_ps(v, x.d, lanes);
}

}  // namespace

void dot_q4k_avx512(const DotTask& task) {
    const Weight& w = *task.w;
    const int64_t spans = w.cols / 256;
    auto* x = static_cast<SpanInput*>(task.scratch);
    for (int64_t b = 0; b < spans; ++b)
        x[b] = load_span(static_cast<const uint8_t*>(task.x_row(0)), b, Int8Row::padded(w.cols));
    const int64_t half = (task.row_end - task.row_begin + 1) / 2;
    for (int64_t r0 = task.row_begin; r0 < task.row_begin + half; ++r0) {
        const int64_t r1 = r0 + half < task.row_end ? r0 + half : r0;
        const auto* p0 = static_cast<const uint8_t*>(w.row(r0));
        const auto* p1 = static_cast<const uint8_t*>(w.row(r1));
        __m512 lanes = _mm512_setzero_ps();
        for (int64_t b = 0; b < spans; ++b, p0 += kBlockBytes, p1 += kBlockBytes)
            lanes = add_spans(p0, p1, x[b], lanes);
        // The fixed order of quant/dot.h: groups 4 apart, 2 apart, then even and odd ones.
        const __m256 four = _mm256_add_ps(_mm512_castps512_ps256(lanes), _mm512_extractf32x8_ps(lanes, 1));
        const __m128 two = _mm_add_ps(_mm256_castps256_ps128(four), _mm256_extractf128_ps(four, 1));
        const __m128 one = _mm_mul_ps(_mm_add_ps(two, _mm_movehdup_ps(two)), _mm_set1_ps(w.scale));
        task.y[r0 - task.row_begin] = _mm_cvtss_f32(one);
        if (r1 != r0) task.y[r1 - task.row_begin] = _mm_cvtss_f32(_mm_movehl_ps(one, one));
    }
}

}  // namespace riptide

#endif
