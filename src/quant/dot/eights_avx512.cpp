// Rows of grids (IQ1, IQ2, IQ3) and of three values (TQ1_0, TQ2_0) times one or two activation rows with AVX-512 VNNI.
//
// 50 to 110 bytes and 512 operations for 256 weights. Floor: 32 entries of a grid at two loads a cycle are 16 cycles
// (64 of IQ3: 32), three values about 10. Reached on a Xeon at 3.75 GHz, one thread, L2 cache, ns for 256 weights of
// one row times one: IQ1 7.1 to 8.5, IQ2 8.6 to 9.5, IQ3 12 to 13, TQ1_0 7, TQ2_0 3.4, where q4_k takes 4.2 to 4.4
// (2026-11-30: docs/results/cpu.md). Gathers limit it: eight entries take 4.9
// cycles (sixteen of IQ3 8.7) in which little else issues; without them IQ2 would be 7.4 ns, where the two ports of 512
// bits are full. Tried: entries by masked broadcasts (IQ2_XXS 10 ns; codes that go through memory first, 17 to 33),
// half of them so (9.5), masks of signs stored and loaded (14) or by shuffles and tests (5 % slower), gathers by 32-bit
// indices and two chains of sums (no difference), rows one by one (10 to 12).
//
// Everything here is in an unnamed namespace and calls intrinsics only: see quant/dot/span.h.
#include "quant/dot/span.h"

#if defined(__x86_64__)
#include "quant/dot/grids_avx512.h"

namespace riptide {

namespace {

/// Quadword g of vector k: eight k of group g.
RT_INLINE void put_in_eights(const uint8_t* a, __m512i* out) {
    const __m512i v0 = _mm512_loadu_si512(a), v1 = _mm512_loadu_si512(a + 64);
    const __m512i v2 = _mm512_loadu_si512(a + 128), v3 = _mm512_loadu_si512(a + 192);
    RT_UNROLL
    for (int k = 0; k < 4; ++k) {
        const __m512i pick = _mm512_setr_epi64(k, 4 + k, 8 + k, 12 + k, k, 4 + k, 8 + k, 12 + k);
        const __m512i first = _mm512_permutex2var_epi64(v0, pick, v1), second = _mm512_permutex2var_epi64(v2, pick, v3);
        out[k] = _mm512_inserti64x4(first, _mm512_castsi512_si256(second), 1);
    }
}

/// Sums of the pairs of lanes: of a, then of b.
RT_INLINE __m512i add_pairs(__m512i a, __m512i b) {
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odd = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
    return _mm512_add_epi32(_mm512_permutex2var_epi32(a, even, b), _mm512_permutex2var_epi32(a, odd, b));
}

RT_INLINE __m512 twice_eight(const float* p) { return _mm512_broadcast_f32x8(_mm256_loadu_ps(p)); }

/// Adds a span of two weight rows: lanes 0 to 7 are the first's groups, the others the second's.
template <DType T>
RT_INLINE __m512 add_spans(const DecodedPair& w, const __m512i* a, const uint8_t* x, int64_t span, const RowLayout& at,
                           __m512 lanes) {
    constexpr SpanTraits t = kSpan<T>;
    constexpr int kEach = 4 / t.halves;
    __m512 v = _mm512_setzero_ps();
    RT_UNROLL
    for (int h = 0; h < t.halves; ++h) {
        __m512i s0 = _mm512_setzero_si512(), s1 = s0;
        RT_UNROLL
        for (int k = kEach * h; k < kEach * (h + 1); ++k) {
            s0 = _mm512_dpbusd_epi32(s0, w.u[0][k], a[k]);
            s1 = _mm512_dpbusd_epi32(s1, w.u[1][k], a[k]);
        }
        const float* sums = floats(x + (t.halves == 1 ? at.sum32 : at.sum16)) + 8 * (t.halves * span + h);
        const __m512 centred =
            _mm512_fnmadd_ps(_mm512_set1_ps(t.zero), twice_eight(sums), _mm512_cvtepi32_ps(add_pairs(s0, s1)));
        v = h == 0 ? _mm512_mul_ps(w.f[0], centred) : _mm512_fmadd_ps(w.f[1], centred, v);
    }
    return _mm512_fmadd_ps(v, twice_eight(floats(x + at.d) + 8 * span), lanes);
}

/// Two weight rows in step, half a task apart, as for other types (dot/avx512.cpp).
template <DType T, int N>
void dot_rows(const DotTask& task) {
    const Weight& w = *task.w;
    const int64_t spans = w.cols / 256, half = (task.row_end - task.row_begin + 1) / 2;
    const RowLayout at(256 * spans);
    auto* a = static_cast<__m512i*>(task.scratch);
    const uint8_t* x[N];
    for (int i = 0; i < N; ++i) {
        x[i] = static_cast<const uint8_t*>(task.x_row(i));
        for (int64_t b = 0; b < spans; ++b) put_in_eights(x[i] + 256 * b, a + 4 * (N * b + i));
    }
    for (int64_t r0 = task.row_begin; r0 < task.row_begin + half; ++r0) {
        const int64_t r1 = r0 + half < task.row_end ? r0 + half : r0;
        const auto* p0 = static_cast<const uint8_t*>(w.row(r0));
        const auto* p1 = static_cast<const uint8_t*>(w.row(r1));
        __m512 lanes[N];
        for (int i = 0; i < N; ++i) lanes[i] = _mm512_setzero_ps();
        for (int64_t b = 0; b < spans; ++b, p0 += span_bytes<T>(), p1 += span_bytes<T>()) {
            prefetch_ahead<span_bytes<T>()>(p0);
            prefetch_ahead<span_bytes<T>()>(p1);
            const DecodedPair two = decode_pair<T>(p0, p1);
            for (int i = 0; i < N; ++i) lanes[i] = add_spans<T>(two, a + 4 * (N * b + i), x[i], b, at, lanes[i]);
        }
        for (int i = 0; i < N; ++i) {
            float* y = task.y + i * task.y_stride;
            y[r0 - task.row_begin] = add_lanes(low(lanes[i])) * w.scale;
            if (r1 != r0) y[r1 - task.row_begin] = add_lanes(high(lanes[i])) * w.scale;
        }
    }
}

template <DType T>
void dot_type(const DotTask& task) {
    if (task.n == 1) dot_rows<T, 1>(task);
    else dot_rows<T, 2>(task);
}

}  // namespace

void dot_eights_avx512(const DotTask& task) {
    switch (task.w->dtype) {
#define X(T)       \
    case DType::T: \
        return dot_type<DType::T>(task);
        RT_GRID_TYPES(X)
#undef X
        default:
            __builtin_unreachable();
    }
}

}  // namespace riptide

#endif
