// Float weight dot products with AVX2: the sixteen lanes are two vectors. Tiles of two weight rows and two activation
// rows. Formats with scales or fewer than sixteen bits are first expanded to f32 rows in scratch memory.
#include "quant/dot/span.h"

#if defined(__x86_64__)
#include <immintrin.h>

namespace riptide {

namespace {

constexpr int64_t kTile = 2;        // weight rows and activation rows of a tile
constexpr int64_t kRowBlock = 128;  // activation rows for which expanded weight rows are kept

struct F32 {
    static constexpr int64_t kBytes = 4;
    static RT_INLINE __m256 load(const uint8_t* p) { return _mm256_loadu_ps(reinterpret_cast<const float*>(p)); }
};
struct F16 {
    static constexpr int64_t kBytes = 2;
    static RT_INLINE __m256 load(const uint8_t* p) {
        return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    }
};
struct BF16 {
    static constexpr int64_t kBytes = 2;
    static RT_INLINE __m256 load(const uint8_t* p) {
        const __m128i v = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(v), 16));
    }
};

/// Lanes i and i + 8 are added, then i + 4, i + 2, i + 1.
RT_INLINE float add_lanes(__m256 low, __m256 high) {
    const __m256 eight = _mm256_add_ps(low, high);
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

/// Adds sixteen columns at w[o] and x[i].
template <class Format, int W, int X>
RT_INLINE void add_columns(const uint8_t* const* w, const float* const* x, int64_t c, __m256 (&acc)[W][X][2]) {
    RT_UNROLL
    for (int h = 0; h < 2; ++h) {
        __m256 values[X];
        RT_UNROLL
        for (int i = 0; i < X; ++i) values[i] = _mm256_loadu_ps(x[i] + c + 8 * h);
        RT_UNROLL
        for (int o = 0; o < W; ++o) {
            const __m256 weight = Format::load(w[o] + (c + 8 * h) * Format::kBytes);
            RT_UNROLL
            for (int i = 0; i < X; ++i) acc[o][i][h] = _mm256_fmadd_ps(weight, values[i], acc[o][i][h]);
        }
    }
}

/// y[i * y_stride + o] for W weight rows and X activation rows.
template <class Format, int W, int X>
void tile(const uint8_t* const* w, const float* const* x, int64_t cols, float* y, int64_t y_stride) {
    __m256 acc[W][X][2];
    for (auto& row : acc)
        for (auto& cell : row) cell[0] = cell[1] = _mm256_setzero_ps();
    int64_t c = 0;
    for (; c + 16 <= cols; c += 16) add_columns<Format, W, X>(w, x, c, acc);
    if (c < cols) {  // the last columns, with zeros behind them
        uint8_t w_tail[W][64] = {};
        float x_tail[X][16] = {};
        const uint8_t* wp[W];
        const float* xp[X];
        for (int o = 0; o < W; ++o) {
            __builtin_memcpy(w_tail[o], w[o] + c * Format::kBytes, static_cast<size_t>((cols - c) * Format::kBytes));
            wp[o] = w_tail[o];
        }
        for (int i = 0; i < X; ++i) {
            __builtin_memcpy(x_tail[i], x[i] + c, static_cast<size_t>(cols - c) * sizeof(float));
            xp[i] = x_tail[i];
        }
        add_columns<Format, W, X>(wp, xp, 0, acc);
    }
    for (int o = 0; o < W; ++o)
        for (int i = 0; i < X; ++i) y[i * y_stride + o] = add_lanes(acc[o][i][0], acc[o][i][1]);
}

template <class Format, int W>
void tile_rows(const uint8_t* const* w, const DotTask& task, int64_t begin, int64_t end, float* y) {
    for (int64_t i = begin; i < end; i += kTile) {
        const float* x[kTile] = {static_cast<const float*>(task.x_row(i)), nullptr};
        float* out = y + i * task.y_stride;
        if (i + 1 == end) {
            tile<Format, W, 1>(w, x, task.w->cols, out, task.y_stride);
        } else {
            x[1] = static_cast<const float*>(task.x_row(i + 1));
            tile<Format, W, 2>(w, x, task.w->cols, out, task.y_stride);
        }
    }
}

/// The weight rows are those of task.w, or, if Expanded, f32 rows made of them.
template <class Format, bool Expanded>
void dot_tiles(const DotTask& task) {
    const int64_t stride = (task.w->cols + 255) / 256 * 256;
    auto* rows = static_cast<float*>(task.scratch);
    for (int64_t begin = 0; begin < task.n; begin += kRowBlock) {
        const int64_t end = task.n - begin < kRowBlock ? task.n : begin + kRowBlock;
        for (int64_t o = task.row_begin; o < task.row_end; o += kTile) {
            const int64_t count = task.row_end - o < kTile ? 1 : 2;
            const uint8_t* w[kTile];
            for (int64_t r = 0; r < count; ++r) {
                if constexpr (Expanded) expand_float_row(*task.w, o + r, stride, rows + r * stride);
                w[r] = Expanded ? reinterpret_cast<const uint8_t*>(rows + r * stride)
                                : static_cast<const uint8_t*>(task.w->row(o + r));
            }
            float* y = task.y + o - task.row_begin;
            if (count == 2) tile_rows<Format, 2>(w, task, begin, end, y);
            else tile_rows<Format, 1>(w, task, begin, end, y);
        }
    }
}

}  // namespace

void dot_float_avx2(const DotTask& task) {
    if (task.w->scales == nullptr && task.w->scale == 1.0f) {
        if (task.w->dtype == DType::f32) return dot_tiles<F32, false>(task);
        if (task.w->dtype == DType::f16) return dot_tiles<F16, false>(task);
        if (task.w->dtype == DType::bf16) return dot_tiles<BF16, false>(task);
    }
    dot_tiles<F32, true>(task);
}

}  // namespace riptide

#endif
