// Block weight dot products with AVX-512 VNNI.
//
// One or two activation rows: a weight row is decoded in registers, 256 values (144 bytes of q4_k, 272 of q8_0) at a
// time, 512 operations. Bound by memory: 7.5 ns for 256 values from the L2 cache (q4_k: 19 GB/s), 13 to 16 GB/s from
// DRAM on one core of a Zen 4 EPYC whose core reads 24 GB/s at most. One activation row: two weight rows in step, far
// apart, and prefetch instructions; a Xeon wants both (dot/q4k_avx512.cpp), that EPYC gains from neither. More rows: a
// panel of sixteen weight rows is decoded once and interleaved so that each 32-bit lane belongs to one weight row. No
// sum then crosses lanes: a group of 32 costs eight vpdpbusd and four float operations for sixteen products, twelve
// vector operations for 1024. 64 rows: 285 (q4_k) and 250 (q6_k) GOP/s on that core. Building the panel costs as much
// as five activation rows. Measured 2026-11-21, two cores shared with other work.
// One or two rows of grid types: dot/eights_avx512.cpp.
//
// Everything here is in an unnamed namespace and calls intrinsics only: see quant/dot/span.h.
#include "quant/dot/span.h"

#if defined(__x86_64__)
#include "quant/dot/decode_avx512.h"
#include "quant/dot/grids_avx512.h"

namespace riptide {

namespace {

constexpr int64_t kPanel = 16;      // weight rows of a panel
constexpr int64_t kRowBlock = 256;  // activation rows for which a panel is kept: their int8 rows fit the L2 cache

/// The sums of products of the sixteen half groups of a span: first halves of groups 0..7, then second halves.
RT_INLINE __m512i half_group_sums(const Decoded& w, const uint8_t* a) {
    const __m512i zero = _mm512_setzero_si512();
    const __m512i d0 = _mm512_dpbusd_epi32(zero, w.u[0], _mm512_loadu_si512(a));
    const __m512i d1 = _mm512_dpbusd_epi32(zero, w.u[1], _mm512_loadu_si512(a + 64));
    const __m512i d2 = _mm512_dpbusd_epi32(zero, w.u[2], _mm512_loadu_si512(a + 128));
    const __m512i d3 = _mm512_dpbusd_epi32(zero, w.u[3], _mm512_loadu_si512(a + 192));
    const __m512i t01 = _mm512_add_epi32(_mm512_unpacklo_epi32(d0, d1), _mm512_unpackhi_epi32(d0, d1));
    const __m512i t23 = _mm512_add_epi32(_mm512_unpacklo_epi32(d2, d3), _mm512_unpackhi_epi32(d2, d3));
    // Lane 4 q + k: 128-bit quarter q of d[k], that is half q % 2 of group 2 k + q / 2.
    const __m512i t = _mm512_add_epi32(_mm512_unpacklo_epi64(t01, t23), _mm512_unpackhi_epi64(t01, t23));
    const __m512i order = _mm512_setr_epi32(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15);
    return _mm512_permutexvar_epi32(order, t);
}

template <DType T>
RT_INLINE __m256 add_span(const Decoded& w, const uint8_t* x, int64_t span, const RowLayout& at, __m256 lanes) {
    constexpr SpanTraits t = kSpan<T>;
    const __m512i sums = half_group_sums(w, x + 256 * span);
    const float* d = floats(x + at.d) + 8 * span;
    __m256 v;
    if constexpr (t.halves == 1) {
        const __m256 sum32 = _mm256_loadu_ps(floats(x + at.sum32) + 8 * span);
        v = _mm256_cvtepi32_ps(_mm256_add_epi32(_mm512_castsi512_si256(sums), _mm512_extracti64x4_epi64(sums, 1)));
        if constexpr (t.zero != 0) v = _mm256_fnmadd_ps(_mm256_set1_ps(t.zero), sum32, v);
        v = _mm256_mul_ps(low(w.f[0]), v);
        if constexpr (t.mins) v = _mm256_fnmadd_ps(high(w.f[0]), sum32, v);
    } else {
        const __m512 sum16 = _mm512_loadu_ps(floats(x + at.sum16) + 16 * span);
        __m512 both = _mm512_cvtepi32_ps(sums);
        if constexpr (t.zero != 0) both = _mm512_fnmadd_ps(_mm512_set1_ps(t.zero), sum16, both);
        v = _mm256_mul_ps(low(w.f[0]), low(both));
        v = _mm256_fmadd_ps(high(w.f[0]), high(both), v);
        if constexpr (t.mins) {
            v = _mm256_fnmadd_ps(low(w.f[1]), low(sum16), v);
            v = _mm256_fnmadd_ps(high(w.f[1]), high(sum16), v);
        }
    }
    return _mm256_fmadd_ps(v, _mm256_loadu_ps(d), lanes);
}

template <DType T, int N>
void dot_rows(const DotTask& task) {
    const Weight& w = *task.w;
    const int64_t full = w.cols / 256, tail = w.cols % 256 / 32;
    const RowLayout at(Int8Row::padded(w.cols));
    const uint8_t* x[N];
    for (int i = 0; i < N; ++i) x[i] = static_cast<const uint8_t*>(task.x_row(i));
    for (int64_t o = task.row_begin; o < task.row_end; ++o) {
        const auto* p = static_cast<const uint8_t*>(w.row(o));
        __m256 lanes[N];
        for (int i = 0; i < N; ++i) lanes[i] = _mm256_setzero_ps();
        for (int64_t b = 0; b < full; ++b, p += span_bytes<T>()) {
            const Decoded span = decode<T>(p);
            for (int i = 0; i < N; ++i) lanes[i] = add_span<T>(span, x[i], b, at, lanes[i]);
        }
        if (tail != 0) {
            const Decoded span = decode_tail<T>(p, tail);
            for (int i = 0; i < N; ++i) lanes[i] = add_span<T>(span, x[i], full, at, lanes[i]);
        }
        for (int i = 0; i < N; ++i) task.y[i * task.y_stride + o - task.row_begin] = add_lanes(lanes[i]) * w.scale;
    }
}

/// One activation row: two weight rows in step, half a task apart, because a thread gets more from memory as two
/// streams than as one.
template <DType T>
void dot_streams(const DotTask& task) {
    const Weight& w = *task.w;
    const int64_t full = w.cols / 256, tail = w.cols % 256 / 32, half = (task.row_end - task.row_begin + 1) / 2;
    const RowLayout at(Int8Row::padded(w.cols));
    const auto* x = static_cast<const uint8_t*>(task.x_row(0));
    for (int64_t r0 = task.row_begin; r0 < task.row_begin + half; ++r0) {
        const int64_t r1 = r0 + half < task.row_end ? r0 + half : r0;
        const auto* p0 = static_cast<const uint8_t*>(w.row(r0));
        const auto* p1 = static_cast<const uint8_t*>(w.row(r1));
        __m256 lanes0 = _mm256_setzero_ps(), lanes1 = lanes0;
        for (int64_t b = 0; b < full; ++b, p0 += span_bytes<T>(), p1 += span_bytes<T>()) {
            prefetch_ahead<span_bytes<T>()>(p0);
            prefetch_ahead<span_bytes<T>()>(p1);
            lanes0 = add_span<T>(decode<T>(p0), x, b, at, lanes0);
            lanes1 = add_span<T>(decode<T>(p1), x, b, at, lanes1);
        }
        if (tail != 0) {
            lanes0 = add_span<T>(decode_tail<T>(p0, tail), x, full, at, lanes0);
            lanes1 = add_span<T>(decode_tail<T>(p1, tail), x, full, at, lanes1);
        }
        task.y[r0 - task.row_begin] = add_lanes(lanes0) * w.scale;
        if (r1 != r0) task.y[r1 - task.row_begin] = add_lanes(lanes1) * w.scale;
    }
}

// ---- panels --------------------------------------------------------------------------------------

/// Bytes of a panel's record for one group: codes (eight vectors), then s0, s1, m0, m1 as far as the format has them.
template <DType T>
constexpr int64_t kRecord = 64 * (8 + kSpan<T>.halves * (kSpan<T>.mins ? 2 : 1));

/// Transposes 16 x 16 32-bit values: out[i] lane r = in[r] lane i.
RT_INLINE void transpose(const __m512i (&in)[16], __m512i (&out)[16]) {
    __m512i a[16], b[16];
    RT_UNROLL
    for (int i = 0; i < 16; i += 2) {
        a[i] = _mm512_unpacklo_epi32(in[i], in[i + 1]);
        a[i + 1] = _mm512_unpackhi_epi32(in[i], in[i + 1]);
    }
    RT_UNROLL
    for (int i = 0; i < 16; i += 4) {
        b[i] = _mm512_unpacklo_epi64(a[i], a[i + 2]);
        b[i + 1] = _mm512_unpackhi_epi64(a[i], a[i + 2]);
        b[i + 2] = _mm512_unpacklo_epi64(a[i + 1], a[i + 3]);
        b[i + 3] = _mm512_unpackhi_epi64(a[i + 1], a[i + 3]);
    }
    RT_UNROLL
    for (int i = 0; i < 4; ++i) {  // b[4 r + i] quarter q holds column 4 q + i of rows 4 r .. 4 r + 3
        const __m512i p = _mm512_shuffle_i32x4(b[i], b[4 + i], 0x88),
                      q = _mm512_shuffle_i32x4(b[8 + i], b[12 + i], 0x88);
        const __m512i r = _mm512_shuffle_i32x4(b[i], b[4 + i], 0xDD),
                      s = _mm512_shuffle_i32x4(b[8 + i], b[12 + i], 0xDD);
        out[i] = _mm512_shuffle_i32x4(p, q, 0x88);
        out[8 + i] = _mm512_shuffle_i32x4(p, q, 0xDD);
        out[4 + i] = _mm512_shuffle_i32x4(r, s, 0x88);
        out[12 + i] = _mm512_shuffle_i32x4(r, s, 0xDD);
    }
}

/// Sixteen weight rows of one span, decoded: the vectors of Decoded as rows of 16 x 16 tables.
struct PanelRows {
    __m512i u[4][kPanel];
    __m512i f[2][kPanel];
};

/// Writes the records of eight groups; that of group j is at out + j * lane_stride.
template <DType T>
RT_INLINE void interleave(const PanelRows& rows, uint8_t* out, int64_t lane_stride) {
    constexpr SpanTraits t = kSpan<T>;
    __m512i turned[16];
    for (int k = 0; k < 4; ++k) {
        transpose(rows.u[k], turned);
        if constexpr (kGrid<T>) {
            RT_UNROLL
            for (int i = 0; i < 16; ++i)
                _mm512_store_si512(out + i / 2 * lane_stride + (2 * k + i % 2) * 64, turned[i]);
            continue;
        }
        uint8_t* even = out + 2 * k * lane_stride;
        RT_UNROLL
        for (int i = 0; i < 8; ++i) {
            _mm512_store_si512(even + i * 64, turned[i]);
            _mm512_store_si512(even + lane_stride + i * 64, turned[8 + i]);
        }
    }
    constexpr bool kFirst = t.halves == 1 && !t.mins;  // only the first eight columns are in use
    for (int f = 0; f < (t.halves == 2 && t.mins ? 2 : 1); ++f) {
        transpose(rows.f[f], turned);
        uint8_t* scales = out + 512 + 2 * f * 64;
        RT_UNROLL
        for (int i = 0; i < 8; ++i) {
            _mm512_store_si512(scales + i * lane_stride, turned[i]);
            if constexpr (!kFirst) _mm512_store_si512(scales + i * lane_stride + 64, turned[8 + i]);
        }
    }
}

/// Rows r and r + 1.
template <DType T>
RT_INLINE void put_pair(const DecodedPair& two, int64_t r, PanelRows& rows) {
    RT_UNROLL
    for (int i = 0; i < 8; ++i) rows.u[i % 4][r + i / 4] = two.u[i / 4][i % 4];
    const __m512 last = two.f[kSpan<T>.halves - 1];  // lands in columns that nobody reads if there are no halves
    rows.f[0][r] = _mm512_castps_si512(_mm512_shuffle_f32x4(two.f[0], last, 0x44));
    rows.f[0][r + 1] = _mm512_castps_si512(_mm512_shuffle_f32x4(two.f[0], last, 0xEE));
}

/// Decodes weight rows [first, first + count) into a panel: records of lane 0 (groups 0, 8, 16 ...), of lane 1, ...
template <DType T>
void build_panel(const Weight& w, int64_t first, int64_t count, uint8_t* panel) {
    const int64_t full = w.cols / 256, tail = w.cols % 256 / 32, spans = full + (tail != 0);
    PanelRows rows;
    if (count < kPanel) __builtin_memset(&rows, 0, sizeof rows);
    for (int64_t b = 0; b < spans; ++b) {
        for (int64_t r = 0; r < count; r += kGrid<T> ? 2 : 1) {
            const auto* p = static_cast<const uint8_t*>(w.row(first + r)) + b * span_bytes<T>();
            if constexpr (kGrid<T>) {
                put_pair<T>(decode_pair<T>(p, r + 1 < count ? p + w.row_bytes : p), r, rows);
            } else {
                const Decoded row = b < full ? decode<T>(p) : decode_tail<T>(p, tail);
                RT_UNROLL
                for (int k = 0; k < 4; ++k) rows.u[k][r] = row.u[k];
                rows.f[0][r] = _mm512_castps_si512(row.f[0]);
                if constexpr (kSpan<T>.halves == 2 && kSpan<T>.mins) rows.f[1][r] = _mm512_castps_si512(row.f[1]);
            }
        }
        interleave<T>(rows, panel + b * kRecord<T>, spans * kRecord<T>);
    }
}

struct PanelRun {
    const uint8_t* panel;
    int64_t spans;
    float zero, scale;
    __mmask16 rows;  // rows of the panel that exist
};

using AliasedInt = int32_t __attribute__((may_alias));

/// S for R activation rows: vectors [First, Last) of a record times the bytes at x[r] + at.
template <int R, int First, int Last>
RT_INLINE void multiply_bytes(const uint8_t* record, const uint8_t* const* x, int64_t at, __m512i* sums) {
    for (int r = 0; r < R; ++r) sums[r] = _mm512_setzero_si512();
    RT_UNROLL
    for (int i = First; i < Last; ++i) {
        const __m512i u = _mm512_load_si512(record + 64 * i);
        RT_UNROLL
        for (int r = 0; r < R; ++r)
            sums[r] = _mm512_dpbusd_epi32(sums[r], u,
                                          _mm512_set1_epi32(*reinterpret_cast<const AliasedInt*>(x[r] + at + 4 * i)));
    }
}

/// v = s * (S - z A) of half h (of a whole group if there are no halves), added to the half before it.
template <int R, int Halves, bool Mins, int H>
RT_INLINE void multiply_half(const PanelRun& run, const uint8_t* record, int64_t at, int64_t sum_at,
                             const uint8_t* const* x, __m512* v) {
    __m512i sums[R];
    multiply_bytes<R, 8 / Halves * H, 8 / Halves*(H + 1)>(record, x, at, sums);
    const __m512 s = _mm512_load_ps(record + 512 + 64 * H);
    const __m512 zero = _mm512_set1_ps(run.zero);
    RT_UNROLL
    for (int r = 0; r < R; ++r) {
        __m512 centred = _mm512_cvtepi32_ps(sums[r]);
        if constexpr (!Mins) centred = _mm512_fnmadd_ps(zero, _mm512_set1_ps(*floats(x[r] + sum_at)), centred);
        if constexpr (H == 0) v[r] = _mm512_mul_ps(s, centred);
        else v[r] = _mm512_fmadd_ps(s, centred, v[r]);
    }
}

template <int R>
RT_INLINE void subtract_min(const uint8_t* m_at, int64_t sum_at, const uint8_t* const* x, __m512* v) {
    const __m512 m = _mm512_load_ps(m_at);
    RT_UNROLL
    for (int r = 0; r < R; ++r) v[r] = _mm512_fnmadd_ps(m, _mm512_set1_ps(*floats(x[r] + sum_at)), v[r]);
}

/// Adds group g (of lane g % 8) of the panel times R activation rows to acc.
template <int R, int Halves, bool Mins>
RT_INLINE void add_group(const PanelRun& run, const uint8_t* record, int64_t g, const RowLayout& at,
                         const uint8_t* const* x, __m512* acc) {
    __m512 v[R];
    const int64_t sum0 = Halves == 1 ? at.sum32 + 4 * g : at.sum16 + 4 * (g / 8 * 16 + g % 8), sum1 = sum0 + 32;
    multiply_half<R, Halves, Mins, 0>(run, record, 32 * g, sum0, x, v);
    if constexpr (Halves == 2) multiply_half<R, Halves, Mins, 1>(run, record, 32 * g, sum1, x, v);
    if constexpr (Mins) subtract_min<R>(record + 512 + 64 * Halves, sum0, x, v);
    if constexpr (Mins && Halves == 2) subtract_min<R>(record + 512 + 64 * 3, sum1, x, v);
    RT_UNROLL
    for (int r = 0; r < R; ++r) acc[r] = _mm512_fmadd_ps(v[r], _mm512_set1_ps(*floats(x[r] + at.d + 4 * g)), acc[r]);
}

template <int R, int Halves, bool Mins>
void run_panel(const PanelRun& run, const uint8_t* const* x, float* y, int64_t y_stride) {
    const int64_t record_bytes = 64 * (8 + Halves * (Mins ? 2 : 1));
    const RowLayout at(256 * run.spans);
    __m512 lanes[8][R];
    const uint8_t* record = run.panel;
    for (int j = 0; j < 8; ++j) {
        __m512 acc[R];
        for (int r = 0; r < R; ++r) acc[r] = _mm512_setzero_ps();
        for (int64_t b = 0; b < run.spans; ++b, record += record_bytes)
            add_group<R, Halves, Mins>(run, record, 8 * b + j, at, x, acc);
        for (int r = 0; r < R; ++r) lanes[j][r] = acc[r];
    }
    for (int r = 0; r < R; ++r) {
        const __m512 even =
            _mm512_add_ps(_mm512_add_ps(lanes[0][r], lanes[4][r]), _mm512_add_ps(lanes[2][r], lanes[6][r]));
        const __m512 odd =
            _mm512_add_ps(_mm512_add_ps(lanes[1][r], lanes[5][r]), _mm512_add_ps(lanes[3][r], lanes[7][r]));
        _mm512_mask_storeu_ps(y + r * y_stride, run.rows,
                              _mm512_mul_ps(_mm512_add_ps(even, odd), _mm512_set1_ps(run.scale)));
    }
}

template <int Halves, bool Mins>
void run_panel_rows(const PanelRun& run, const DotTask& task, int64_t begin, int64_t end, float* y) {
    const uint8_t* x[8];
    for (int64_t i = begin; i < end; i += 8) {
        const int64_t count = end - i < 8 ? end - i : 8;
        for (int64_t r = 0; r < count; ++r) x[r] = static_cast<const uint8_t*>(task.x_row(i + r));
        float* out = y + i * task.y_stride;
        switch (count) {
            case 1:
                run_panel<1, Halves, Mins>(run, x, out, task.y_stride);
                break;
            case 2:
                run_panel<2, Halves, Mins>(run, x, out, task.y_stride);
                break;
            case 3:
                run_panel<3, Halves, Mins>(run, x, out, task.y_stride);
                break;
            case 4:
                run_panel<4, Halves, Mins>(run, x, out, task.y_stride);
                break;
            case 5:
                run_panel<5, Halves, Mins>(run, x, out, task.y_stride);
                break;
            case 6:
                run_panel<6, Halves, Mins>(run, x, out, task.y_stride);
                break;
            case 7:
                run_panel<7, Halves, Mins>(run, x, out, task.y_stride);
                break;
            default:
                run_panel<8, Halves, Mins>(run, x, out, task.y_stride);
                break;
        }
    }
}

template <DType T>
void dot_panels(const DotTask& task) {
    constexpr SpanTraits t = kSpan<T>;
    const Weight& w = *task.w;
    auto* panel = static_cast<uint8_t*>(task.scratch);
    for (int64_t begin = 0; begin < task.n; begin += kRowBlock) {
        const int64_t end = task.n - begin < kRowBlock ? task.n : begin + kRowBlock;
        for (int64_t o = task.row_begin; o < task.row_end; o += kPanel) {
            const int64_t count = task.row_end - o < kPanel ? task.row_end - o : kPanel;
            build_panel<T>(w, o, count, panel);
            const PanelRun run = {panel, (w.cols + 255) / 256, static_cast<float>(t.zero), w.scale,
                                  static_cast<__mmask16>((1u << count) - 1)};
            run_panel_rows<t.halves, t.mins>(run, task, begin, end, task.y + o - task.row_begin);
        }
    }
}

template <DType T>
void dot_blocks(const DotTask& task) {
    if (task.n > 2) dot_panels<T>(task);
    else if constexpr (kGrid<T>) dot_eights_avx512(task);
    else if (T == DType::q4_k && task.n == 1 && task.w->cols % 256 == 0) dot_q4k_avx512(task);
    else if (task.n == 1) dot_streams<T>(task);
    else dot_rows<T, 2>(task);
}

}  // namespace

void quantize_avx512(const float* x, int64_t begin, int64_t end, int64_t cols, void* out) {
    const int64_t padded = Int8Row::padded(cols);
    auto* a = static_cast<uint8_t*>(out);
    const RowLayout at(padded);
    auto* d = reinterpret_cast<float*>(a + at.d);
    auto* sum32 = reinterpret_cast<float*>(a + at.sum32);
    auto* sum16 = reinterpret_cast<float*>(a + at.sum16);
    for (int64_t g = begin / 32; g < (end == cols ? padded : end) / 32; ++g) {
        const int64_t left = end - 32 * g;
        const uint32_t mask = left >= 32 ? ~0u : left <= 0 ? 0u : (1u << left) - 1;
        const float* p = x + (32 * g - begin);
        const __m512 v0 = _mm512_maskz_loadu_ps(static_cast<__mmask16>(mask), p);
        const __m512 v1 = _mm512_maskz_loadu_ps(static_cast<__mmask16>(mask >> 16), p + 16);
        const __m512i magnitude = _mm512_set1_epi32(0x7FFFFFFF);  // as integers: ordered, NaN above infinity
        const uint32_t largest =
            _mm512_reduce_max_epu32(_mm512_max_epu32(_mm512_and_si512(_mm512_castps_si512(v0), magnitude),
                                                     _mm512_and_si512(_mm512_castps_si512(v1), magnitude)));
        float amax = __builtin_bit_cast(float, largest < 0x0D800000u ? 0u : largest);  // 2^-100
        const bool finite = largest < 0x7F800000u;
        const __m512 inverse = _mm512_set1_ps(finite && amax > 0.0f ? 127.0f / amax : 0.0f);
        const auto use = static_cast<__mmask16>(finite ? 0xFFFF : 0);
        d[g] = finite ? amax / 127.0f : __builtin_bit_cast(float, 0x7FC00000u);
        const __m512i a0 = _mm512_maskz_cvtps_epi32(use, _mm512_mul_ps(v0, inverse));
        const __m512i a1 = _mm512_maskz_cvtps_epi32(use, _mm512_mul_ps(v1, inverse));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(a + 32 * g), _mm512_cvtepi32_epi8(a0));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(a + 32 * g + 16), _mm512_cvtepi32_epi8(a1));
        const int s0 = _mm512_reduce_add_epi32(a0), s1 = _mm512_reduce_add_epi32(a1);
        sum32[g] = static_cast<float>(s0 + s1);
        sum16[g / 8 * 16 + g % 8] = static_cast<float>(s0);
        sum16[g / 8 * 16 + 8 + g % 8] = static_cast<float>(s1);
    }
}

void dot_avx512(const DotTask& task) {
    switch (task.w->dtype) {
#define X(T)       \
    case DType::T: \
        return dot_blocks<DType::T>(task);
        RT_SPAN_TYPES(X)
        RT_GRID_TYPES(X)
#undef X
        default:
            return dot_float_avx512(task);
    }
}

}  // namespace riptide

#endif
