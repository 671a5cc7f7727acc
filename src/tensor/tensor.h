// Views of memory: Tensor for activations, Weight for parameters. Neither owns what it points to.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>

#include "base/error.h"
#include "tensor/dtype.h"

namespace riptide {

struct Weight;

/// What a product was told about who reads its sum next (ops/matmul.h, matmul_add): the router, the product's weight,
/// and whether the words of that router were left on the device.
struct RouterNote {
    const Weight* router = nullptr;
    const Weight* product = nullptr;
    bool words = false;
};

/// A row-major view of up to four dimensions. `row_stride` counts elements between consecutive entries of dimension 0;
/// the inner dimensions are contiguous.
struct Tensor {
    void* data = nullptr;
    DType dtype = DType::f32;
    int rank = 0;
    std::array<int64_t, 4> shape{};
    int64_t row_stride = 0;
    /// On a GPU, for f32 [n, d]: the same rows as int8 with a scale for each 32 values (quant/act_rows.h), if the kernel
    /// that made the tensor made them too. Views keep it.
    const void* int8 = nullptr;
    /// Of a residual stream, as long as nothing else is added to it.
    RouterNote routed;

    Tensor() = default;
    Tensor(void* data_, DType dtype_, std::initializer_list<int64_t> shape_) : data(data_), dtype(dtype_) {
        RT_ASSERT(shape_.size() >= 1 && shape_.size() <= 4);
        for (int64_t extent : shape_) shape[static_cast<size_t>(rank++)] = extent;
        row_stride = row_elements();
    }

    int64_t rows() const { return shape[0]; }
    /// Elements of one entry of dimension 0.
    int64_t row_elements() const {
        int64_t n = 1;
        for (int i = 1; i < rank; ++i) n *= shape[static_cast<size_t>(i)];
        return n;
    }
    int64_t elements() const { return shape[0] * row_elements(); }
    bool contiguous() const { return row_stride == row_elements(); }
    /// Row i as T*. REQUIRES sizeof(T) to be the element size of a non-block dtype.
    template <class T = float>
    T* row(int64_t i) const {
        return static_cast<T*>(data) + i * row_stride;
    }
    /// The same memory under another shape. REQUIRES contiguous() and the same number of elements.
    Tensor view(std::initializer_list<int64_t> new_shape) const {
        Tensor result(data, dtype, new_shape);
        RT_ASSERT(contiguous() && result.elements() == elements());
        result.int8 = int8;
        return result;
    }
};

/// One parameter matrix W [rows, cols] (y = W x reads cols, writes rows). Block types need nothing else. Formats that keep
/// scales apart (f8_e4m3, i4_pack, i8_pack, f4_pack) point `scales` at a plane: the scale of element (r, c) is entry
/// (r / scale_rows, c / scale_cols) of a [.., cols / scale_cols] matrix of scale_dtype, times `scale` for the whole tensor.
/// A per-tensor or absent plane has scales == nullptr. value = stored * plane(r, c) * scale.
struct Weight {
    const void* data = nullptr;
    DType dtype = DType::f32;
    int64_t rows = 0;
    int64_t cols = 0;
    int64_t row_bytes = 0;
    const void* scales = nullptr;
    DType scale_dtype = DType::f32;
    int64_t scale_rows = 1;
    int64_t scale_cols = 1;
    float scale = 1.0f;
    const void* high = nullptr;  // plane types: the bits above the low four (quant/planes.h)
    uint8_t levels = 0;          // planes_levels: what its codes stand for, a LevelSet
    const void* fp8 = nullptr;   // a copy for FP8 prefill, and its scales (quant/fp8_copy.h), if there is one
    const float* fp8_scales = nullptr;

    explicit operator bool() const { return data != nullptr; }
    const void* row(int64_t r) const { return static_cast<const char*>(data) + r * row_bytes; }
    int64_t bytes() const { return rows * row_bytes; }
    /// W[r, c] of the scale plane as float; 1 without a plane.
    float plane_scale(int64_t r, int64_t c) const;
    /// Rows [begin, begin + count) as a Weight of their own. REQUIRES begin to lie on a scale_rows boundary.
    Weight slice_rows(int64_t begin, int64_t count) const;
};

}  // namespace riptide
