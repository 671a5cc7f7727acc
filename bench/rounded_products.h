// Products of x with weights, both rounded first as some arithmetic would round them, then multiplied in f32 by the
// engine's own float kernel: what an arithmetic loses, before there is a kernel for it. CPU.
//
// Not emulated: how a kernel adds up (integer sums are exact, f32 is off by 2^-24, Hopper's FP8 keeps some 14 bits of
// 32 columns' sum), and results in 16 bits between kernels.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <mutex>
#include <tuple>
#include <vector>

#include "quant/codec.h"
#include "quant/dot.h"
#include "quant/fp8_copy.h"
#include "tensor/half.h"

namespace riptide {

/// How numbers are rounded: with one scale for `rows` x `cols` of them; cols 0: of whole rows. int8: as Int8Row
/// (quant/dot.h); fp8: e4m3 with a power of two (quant/fp8_copy.h); f16: with a power of two that brings the largest
/// magnitude to [2^8, 2^9); bf16: without scales.
struct Form {
    enum Kind { exact, bf16, f16, fp8, int8 } kind = exact;
    int64_t cols = 0, rows = 1;

    auto operator<=>(const Form&) const = default;
};

inline float largest(const float* v, int64_t n) {
    float most = 0;
    for (int64_t i = 0; i < n; ++i) most = std::max(most, std::fabs(v[i]));
    return most;
}

/// n values of a block whose largest magnitude is `most`.
inline void round_values(Form::Kind kind, float* v, int64_t n, float most) {
    constexpr float kWhole = 0x1.8p23f;  // added and taken away: nearest even
    float scale = 1;
    if (kind == Form::int8) scale = most < 0x1p-100f ? 0 : most / 127;
    if (kind == Form::fp8) scale = fp8_scale(most);
    if (kind == Form::f16 && most > 0) scale = std::ldexp(1.0f, std::ilogb(most) - 8);
    const float inverse = kind == Form::int8 ? (scale > 0 ? 127 / most : 0) : 1 / scale;
    if (kind == Form::int8)
        for (int64_t i = 0; i < n; ++i) v[i] = scale * ((v[i] * inverse + kWhole) - kWhole);
    if (kind == Form::fp8)
        for (int64_t i = 0; i < n; ++i) v[i] = scale * f8_e4m3_to_f32(f32_to_f8_e4m3(v[i] * inverse));
    if (kind == Form::f16)
        for (int64_t i = 0; i < n; ++i) v[i] = scale * f16_to_f32(f32_to_f16(v[i] * inverse));
    if (kind == Form::bf16)
        for (int64_t i = 0; i < n; ++i) v[i] = bf16_to_f32(f32_to_bf16(v[i]));
}

inline void round_matrix(const Form& form, float* m, int64_t rows, int64_t cols) {
    if (form.kind == Form::exact) return;
    const int64_t width = form.cols == 0 ? cols : form.cols;
    for (int64_t r = 0; r < rows; r += form.rows)
        for (int64_t c = 0; c < cols; c += width) {
            const int64_t last = std::min(rows, r + form.rows), n = std::min(width, cols - c);
            float most = 0;
            for (int64_t i = r; i < last; ++i) most = std::max(most, largest(m + i * cols + c, n));
            for (int64_t i = r; i < last; ++i) round_values(form.kind, m + i * cols + c, n, most);
        }
}

/// One column of each 128.
inline void scale_columns(float* m, int64_t rows, int64_t cols, float factor) {
    for (int64_t i = 0; i < rows * cols; ++i)
        if (i % cols % 128 == 77) m[i] *= factor;
}

/// Products of tasks with f32 rows of x and weights of any type. Keeps rounded weights for good.
class RoundedProducts {
  public:
    /// A column of each 128 of x is `outlier` times as large, and that of the weights as much smaller: the exact
    /// product stays.
    explicit RoundedProducts(float outlier) : outlier_(outlier) {}

    /// y[i * y_stride + o - row_begin], as the task's y. Thread-safe.
    void multiply(const DotTask& task, const Form& x, const Form& w, float* y, int64_t y_stride) {
        const int64_t cols = task.w->cols;
        const Weight rounded_w{
            .data = weight(*task.w, w), .dtype = DType::f32, .rows = task.w->rows, .cols = cols, .row_bytes = 4 * cols};
        DotTask rounded = task;
        rounded.w = &rounded_w;
        rounded.x = rows(task, x).data();
        rounded.x_stride = 4 * cols;
        rounded.x_index = nullptr;
        rounded.y = y;
        rounded.y_stride = y_stride;
        best().dot(rounded);
    }

    const float* weight(const Weight& w, const Form& form) {
        const std::lock_guard lock(mutex_);
        std::vector<float>& m = weights_[{w.data, form}];
        if (!m.empty()) return m.data();
        m.resize(static_cast<size_t>(w.rows * w.cols));
        for (int64_t r = 0; r < w.rows; ++r) dequantize_row(w, r, m.data() + r * w.cols);
        if (outlier_ != 1) scale_columns(m.data(), w.rows, w.cols, 1 / outlier_);
        round_matrix(form, m.data(), w.rows, w.cols);
        return m.data();
    }

    /// The engine's kernels: dot_kernels() may be wrapped, this is not.
    static const DotKernels& best() {
        return dot_kernels(isa_available(Isa::avx512) ? Isa::avx512
                           : isa_available(Isa::avx2) ? Isa::avx2
                                                      : Isa::baseline);
    }

  private:
    /// The same rows come many times, each time for some of the weight rows: the last ones are kept.
    const std::vector<float>& rows(const DotTask& task, const Form& form) const {
        thread_local std::vector<float> given, last, rounded;
        thread_local std::pair<Form, int64_t> how;
        const int64_t cols = task.w->cols;
        given.resize(static_cast<size_t>(task.n * cols));
        for (int64_t i = 0; i < task.n; ++i)
            std::copy_n(static_cast<const float*>(task.x_row(i)), cols, given.data() + i * cols);
        const std::pair now{form, cols};
        if (now == how && given == last) return rounded;
        how = now;
        last = rounded = given;
        if (outlier_ != 1) scale_columns(rounded.data(), task.n, cols, outlier_);
        round_matrix(form, rounded.data(), task.n, cols);
        return rounded;
    }

    float outlier_;
    std::mutex mutex_;
    std::map<std::pair<const void*, Form>, std::vector<float>> weights_;
};

}  // namespace riptide
