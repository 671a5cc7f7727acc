// Float weight dot products with AVX-512: sixteen lanes are one vector. Blocks of four weight rows and four activation
// rows share their loads: sixteen fused operations for eight loads, so that many rows run near the peak of the FMA
// units and one row is bound by memory. Weights with scales, and 8- and 4-bit ones, are first expanded to f32 rows in
// scratch memory.
#include "quant/dot/span.h"

#if defined(__x86_64__)
#include "quant/dot/intrinsics_avx512.h"

namespace riptide {

namespace {

constexpr int64_t kTile = 4;        // weight rows and activation rows of a tile
constexpr int64_t kRowBlock = 128;  // activation rows for which expanded weight rows are kept

struct F32 {
    static constexpr int64_t kBytes = 4;
    static __m512 load(const uint8_t* p, __mmask16 mask) { return _mm512_maskz_loadu_ps(mask, p); }
};
struct F16 {
    static constexpr int64_t kBytes = 2;
    static __m512 load(const uint8_t* p, __mmask16 mask) { return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, p)); }
};
struct BF16 {
    static constexpr int64_t kBytes = 2;
    static __m512 load(const uint8_t* p, __mmask16 mask) {
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, p)), 16));
    }
};

/// Lanes i and i + 8 are added, then i + 4, i + 2, i + 1.
RT_INLINE float add_lanes(__m512 l) {
    const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(l), _mm512_extractf32x8_ps(l, 1));
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

template <class Format, int W, int X>
RT_INLINE void add_columns(const uint8_t* const* w, const float* const* x, int64_t c, __mmask16 mask,
                           __m512 (&acc)[W][X]) {
    __m512 values[X];
    RT_UNROLL
    for (int i = 0; i < X; ++i) values[i] = _mm512_maskz_loadu_ps(mask, x[i] + c);
    RT_UNROLL
    for (int o = 0; o < W; ++o) {
        const __m512 weight = Format::load(w[o] + c * Format::kBytes, mask);
        RT_UNROLL
        for (int i = 0; i < X; ++i) acc[o][i] = _mm512_fmadd_ps(weight, values[i], acc[o][i]);
    }
}

/// y[i * y_stride + o] for W weight rows and X activation rows.
template <class Format, int W, int X>
void tile(const uint8_t* const* w, const float* const* x, int64_t cols, float* y, int64_t y_stride) {
    __m512 acc[W][X];
    RT_UNROLL
    for (int o = 0; o < W; ++o) RT_UNROLL
    for (int i = 0; i < X; ++i) acc[o][i] = _mm512_setzero_ps();
    int64_t c = 0;
    for (; c + 16 <= cols; c += 16) add_columns<Format, W, X>(w, x, c, 0xFFFF, acc);
    if (c < cols) add_columns<Format, W, X>(w, x, c, static_cast<__mmask16>((1u << (cols - c)) - 1), acc);
    RT_UNROLL
    for (int o = 0; o < W; ++o) RT_UNROLL
    for (int i = 0; i < X; ++i) y[i * y_stride + o] = add_lanes(acc[o][i]);
}

template <class Format, int W>
void tile_rows(const uint8_t* const* w, const DotTask& task, int64_t begin, int64_t end, float* y) {
    const float* x[kTile];
    for (int64_t i = begin; i < end; i += kTile) {
        const int64_t count = end - i < kTile ? end - i : kTile;
        for (int64_t r = 0; r < count; ++r) x[r] = static_cast<const float*>(task.x_row(i + r));
        float* out = y + i * task.y_stride;
        switch (count) {
            case 1:
                tile<Format, W, 1>(w, x, task.w->cols, out, task.y_stride);
                break;
            case 2:
                tile<Format, W, 2>(w, x, task.w->cols, out, task.y_stride);
                break;
            case 3:
                tile<Format, W, 3>(w, x, task.w->cols, out, task.y_stride);
                break;
            default:
                tile<Format, W, 4>(w, x, task.w->cols, out, task.y_stride);
                break;
        }
    }
}

/// All activation rows [begin, end) times `count` <= 4 weight rows.
template <class Format>
void multiply(const uint8_t* const* w, int64_t count, const DotTask& task, int64_t begin, int64_t end, float* y) {
    switch (count) {
        case 1:
            return tile_rows<Format, 1>(w, task, begin, end, y);
        case 2:
            return tile_rows<Format, 2>(w, task, begin, end, y);
        case 3:
            return tile_rows<Format, 3>(w, task, begin, end, y);
        default:
            return tile_rows<Format, 4>(w, task, begin, end, y);
    }
}

template <class Format>
void dot_plain(const DotTask& task) {
    const uint8_t* w[kTile];
    for (int64_t begin = 0; begin < task.n; begin += kRowBlock) {
        const int64_t end = task.n - begin < kRowBlock ? task.n : begin + kRowBlock;
        for (int64_t o = task.row_begin; o < task.row_end; o += kTile) {
            const int64_t count = task.row_end - o < kTile ? task.row_end - o : kTile;
            for (int64_t r = 0; r < count; ++r) w[r] = static_cast<const uint8_t*>(task.w->row(o + r));
            multiply<Format>(w, count, task, begin, end, task.y + o - task.row_begin);
        }
    }
}

// ---- formats that are expanded first -------------------------------------------------------------

RT_INLINE __m128i load_bytes(const uint8_t* p, int count) {
    return _mm_maskz_loadu_epi8(static_cast<__mmask16>((1u << count) - 1), p);
}

/// Sixteen stored values from column c, a multiple of 16; `count` of them exist.
template <DType T>
RT_INLINE __m512 stored(const uint8_t* row, int64_t c, int count) {
    const auto mask = static_cast<__mmask16>((1u << count) - 1);
    if constexpr (T == DType::f32) {
        return F32::load(row + 4 * c, mask);
    } else if constexpr (T == DType::f16) {
        return F16::load(row + 2 * c, mask);
    } else if constexpr (T == DType::bf16) {
        return BF16::load(row + 2 * c, mask);
    } else if constexpr (T == DType::i8_pack) {
        return _mm512_cvtepi32_ps(
            _mm512_sub_epi32(_mm512_cvtepu8_epi32(load_bytes(row + c, count)), _mm512_set1_epi32(128)));
    } else if constexpr (T == DType::f8_e4m3) {
        const __m128i v = load_bytes(row + c, count);
        const __m256i wide = _mm256_cvtepu8_epi16(v);
        // As a binary16 the bits below the sign, shifted by 7, are 2^-8 of the value, subnormals included.
        const __m256i half = _mm256_or_si256(_mm256_slli_epi16(_mm256_and_si256(wide, _mm256_set1_epi16(0x7F)), 7),
                                             _mm256_slli_epi16(_mm256_and_si256(wide, _mm256_set1_epi16(0x80)), 8));
        const __mmask16 nan = _mm_cmpeq_epi8_mask(_mm_and_si128(v, _mm_set1_epi8(0x7F)), _mm_set1_epi8(0x7F));
        return _mm512_mask_mov_ps(_mm512_mul_ps(_mm512_cvtph_ps(half), _mm512_set1_ps(256.0f)), nan,
                                  _mm512_castsi512_ps(_mm512_set1_epi32(0x7FC00000)));
    } else {
        const __m512i pairs = _mm512_cvtepu8_epi32(
            _mm_unpacklo_epi8(load_bytes(row + c / 2, (count + 1) / 2), load_bytes(row + c / 2, (count + 1) / 2)));
        const __m512i shifts = _mm512_setr_epi32(0, 4, 0, 4, 0, 4, 0, 4, 0, 4, 0, 4, 0, 4, 0, 4);
        const __m512i codes = _mm512_and_si512(_mm512_srlv_epi32(pairs, shifts), _mm512_set1_epi32(15));
        if constexpr (T == DType::i4_pack) return _mm512_cvtepi32_ps(_mm512_sub_epi32(codes, _mm512_set1_epi32(8)));
        const __m512 e2m1 = _mm512_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f, 0.0f, -0.5f, -1.0f, -1.5f,
                                           -2.0f, -3.0f, -4.0f, -6.0f);
        return _mm512_permutexvar_ps(codes, e2m1);
    }
}

/// Columns [begin, end) of a row, all under one plane scale; begin is a multiple of 16.
template <DType T>
void expand_run(const uint8_t* row, int64_t begin, int64_t end, float plane, float scale, float* out) {
    const __m512 p = _mm512_set1_ps(plane), s = _mm512_set1_ps(scale);
    int64_t c = begin;
    for (; c + 16 <= end; c += 16) _mm512_storeu_ps(out + c, _mm512_mul_ps(_mm512_mul_ps(stored<T>(row, c, 16), p), s));
    if (c < end) {
        const __m512 v = stored<T>(row, c, static_cast<int>(end - c));
        _mm512_storeu_ps(out + c, _mm512_mul_ps(_mm512_mul_ps(v, p), s));
    }
}

template <DType T>
void expand_row(const Weight& w, int64_t o, float* out) {
    const int64_t padded = (w.cols + 15) / 16 * 16;
    if (w.scales != nullptr && w.scale_cols % 16 != 0 && w.scale_cols < w.cols)
        return expand_float_row(w, o, padded, out);
    const auto* row = static_cast<const uint8_t*>(w.row(o));
    const int64_t run = w.scales == nullptr ? w.cols : w.scale_cols;
    for (int64_t c = 0; c < w.cols; c += run)
        expand_run<T>(row, c, w.cols - c < run ? w.cols : c + run, w.plane_scale(o, c), w.scale, out);
    for (int64_t c = w.cols; c < padded; ++c) out[c] = 0.0f;
}

void dot_expanded(const DotTask& task, void (*expand)(const Weight&, int64_t row, float*)) {
    const int64_t stride = Int8Row::padded(task.w->cols);
    auto* rows = static_cast<float*>(task.scratch);
    const uint8_t* w[kTile];
    for (int64_t begin = 0; begin < task.n; begin += kRowBlock) {
        const int64_t end = task.n - begin < kRowBlock ? task.n : begin + kRowBlock;
        for (int64_t o = task.row_begin; o < task.row_end; o += kTile) {
            const int64_t count = task.row_end - o < kTile ? task.row_end - o : kTile;
            for (int64_t r = 0; r < count; ++r) {
                expand(*task.w, o + r, rows + r * stride);
                w[r] = reinterpret_cast<const uint8_t*>(rows + r * stride);
            }
            multiply<F32>(w, count, task, begin, end, task.y + o - task.row_begin);
        }
    }
}

}  // namespace

void dot_float_avx512(const DotTask& task) {
    const bool plain = task.w->scales == nullptr && task.w->scale == 1.0f;
    switch (task.w->dtype) {
        case DType::f32:
            return plain ? dot_plain<F32>(task) : dot_expanded(task, expand_row<DType::f32>);
        case DType::f16:
            return plain ? dot_plain<F16>(task) : dot_expanded(task, expand_row<DType::f16>);
        case DType::bf16:
            return plain ? dot_plain<BF16>(task) : dot_expanded(task, expand_row<DType::bf16>);
        case DType::f8_e4m3:
            return dot_expanded(task, expand_row<DType::f8_e4m3>);
        case DType::i8_pack:
            return dot_expanded(task, expand_row<DType::i8_pack>);
        case DType::i4_pack:
            return dot_expanded(task, expand_row<DType::i4_pack>);
        default:
            return dot_expanded(task, expand_row<DType::f4_pack>);
    }
}

}  // namespace riptide

#endif
