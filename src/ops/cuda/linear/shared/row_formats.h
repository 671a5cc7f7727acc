// Planes (quant/planes.h) as the kernels of one row fetch them: whole rows, whatever the type.
#pragma once

#include <cstdint>
#include <vector>

#include "tensor/host_device.h"
#include "tensor/tensor.h"

namespace riptide::ops::cuda::decode {

/// What a row of planes is made of. levels_*: by the type of the scales; those of _16 are one for 16 columns. iq3_s: as
/// levels_f32, but its levels are 2 u - 15, which need no table.
enum class RowFormat : uint8_t {
    q4_k,
    q5_k,
    q6_k,
    q2_k,
    int8,
    int4,
    iq3_s,
    levels_f16,
    levels_f32,
    levels_f32_16,
    none
};

/// Bytes of 256 columns in each plane: data, scales, high bits, d.
struct PlaneBytes {
    int bytes[4];

    /// Of plane p, in registers.
    RT_HD constexpr int of(int p) const { return p == 0 ? bytes[0] : p == 1 ? bytes[1] : p == 2 ? bytes[2] : bytes[3]; }
    /// Of the planes in front of plane p; all(): of all.
    RT_HD constexpr int before(int p) const {
        return (p > 0 ? bytes[0] : 0) + (p > 1 ? bytes[1] : 0) + (p > 2 ? bytes[2] : 0) + (p > 3 ? bytes[3] : 0);
    }
    RT_HD constexpr int all() const { return before(4); }
};
RT_HD constexpr PlaneBytes plane_bytes(RowFormat format) {
    switch (format) {
        case RowFormat::q4_k:
        case RowFormat::int4:
        case RowFormat::levels_f16:
            return {{128, 16, 0, 0}};
        case RowFormat::q5_k:
            return {{128, 16, 32, 0}};
        case RowFormat::q6_k:
            return {{128, 16, 64, 2}};
        case RowFormat::q2_k:
            return {{64, 16, 0, 4}};
        case RowFormat::int8:
            return {{256, 16, 0, 0}};
        case RowFormat::iq3_s:
        case RowFormat::levels_f32:
            return {{128, 32, 0, 0}};
        case RowFormat::levels_f32_16:
            return {{128, 64, 0, 0}};
        case RowFormat::none:
            break;
    }
    return {};
}
constexpr int row_bytes(RowFormat format, int cols) { return cols / 256 * plane_bytes(format).all(); }

/// Of a weight whose rows can be fetched so: a whole number of 256 columns, Weight::scale 1; else none.
RowFormat row_format(const Weight& w);
/// From expert to expert, the same in each plane; 0 if they do not lie so.
int64_t planes_stride(const std::vector<Weight>& experts);

}  // namespace riptide::ops::cuda::decode
