#include "tensor/tensor.h"

#include <cstring>

#include "tensor/half.h"

namespace riptide {

float Weight::plane_scale(int64_t r, int64_t c) const {
    if (scales == nullptr) return 1.0f;
    const int64_t index = (r / scale_rows) * ((cols + scale_cols - 1) / scale_cols) + c / scale_cols;
    const auto* bytes_of_plane = static_cast<const uint8_t*>(scales);
    switch (scale_dtype) {
        case DType::f32: {
            float value;
            std::memcpy(&value, bytes_of_plane + 4 * index, 4);
            return value;
        }
        case DType::bf16:
        case DType::f16: {
            uint16_t value;
            std::memcpy(&value, bytes_of_plane + 2 * index, 2);
            return scale_dtype == DType::bf16 ? bf16_to_f32(value) : f16_to_f32(value);
        }
        case DType::f8_e4m3: return f8_e4m3_to_f32(bytes_of_plane[index]);
        default: RT_ASSERT(false && "scale planes are f32, bf16, f16 or f8_e4m3");
    }
    return 0.0f;
}

Weight Weight::slice_rows(int64_t begin, int64_t count) const {
    RT_ASSERT(begin >= 0 && count >= 0 && begin + count <= rows && begin % scale_rows == 0);
    Weight part = *this;
    part.data = row(begin);
    part.rows = count;
    part.fp8 = nullptr;
    if (scales != nullptr) {
        const int64_t per_row = (cols + scale_cols - 1) / scale_cols;
        part.scales = static_cast<const char*>(scales) + begin / scale_rows * per_row * dtype_info(scale_dtype).block_bytes;
    }
    return part;
}

}  // namespace riptide
