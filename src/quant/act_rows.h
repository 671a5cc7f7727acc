// Activation rows as int8 on a GPU: what the decode family multiplies plane weights with.
#pragma once

#include <cstdint>

#include "tensor/host_device.h"

namespace riptide {

/// One row of `cols` values (a multiple of 32), G = cols / 32 groups: 16 bytes for the first halves of all groups, then
/// 16 bytes for the second halves of all groups, then float2 {d, A} for each group; A = sum of a over the group.
/// d = amax / 127, a = round-to-even(x * (127 / amax)); a group below 2^-100 is zero; one that holds an infinity or a
/// NaN has d = NaN. The same numbers as the CPU's Int8Row (quant/dot.h).
struct ActRow {
    const int8_t* data;
    int64_t cols;

    static constexpr int64_t bytes(int64_t cols) { return cols + cols / 4; }
    RT_HD const int8_t* half(int64_t group, int which) const { return data + (which * (cols / 32) + group) * 16; }
    RT_HD const float* scale_and_sum(int64_t group) const {
        return reinterpret_cast<const float*>(data + cols) + 2 * group;
    }
};

}  // namespace riptide
