// How activation rows of the decode family lie in shared memory, in bytes. Without CUDA: plans count with it, too.
#pragma once

#include <cstdint>

#include "tensor/host_device.h"

namespace riptide::ops::cuda::decode {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kStageRows = 16;  // the most rows that one CTA stages

/// The parts of a staged row that a kernel needs.
struct ActLayout {
    int32_t cols = 0;
    int32_t groups = 0;       // cols / 32
    int32_t int8_bytes = 0;   // 0: no int8 part
    int32_t float_bytes = 0;  // 0: no float part

    RT_HD int32_t bytes() const { return int8_bytes + float_bytes; }
};

inline ActLayout act_layout(int64_t cols, bool want_int8, bool want_float) {
    ActLayout l;
    l.cols = static_cast<int32_t>(cols);
    l.groups = static_cast<int32_t>(cols / 32);
    l.int8_bytes = want_int8 ? static_cast<int32_t>((44 * (cols / 32) + 15) / 16 * 16) : 0;
    l.float_bytes = want_float ? static_cast<int32_t>((cols + 15) / 16 * 64) : 0;
    return l;
}

RT_HD int32_t float_piece(int32_t q) { return q ^ ((q >> 3) & 3); }

enum class ActKind : int32_t {
    plain,   // f32 rows
    norm,    // f32 rows, to be normalised
    int8,    // ActRow rows
    staged,  // staged rows of the layout asked for
};

/// Where a CTA gets its rows from.
struct ActSource {
    ActKind kind = ActKind::plain;
    const char* rows = nullptr;
    int64_t stride = 0;  // bytes from row to row
    const float* norm = nullptr;
    float eps = 0;

    /// Shared memory that fetch_norm() fills.
    RT_HD int32_t norm_bytes(int32_t cols) const { return kind == ActKind::norm ? (cols + 7) / 8 * 32 : 0; }
};

/// The same of rows of that kind.
inline int32_t norm_bytes(ActKind kind, int32_t cols) { return ActSource{.kind = kind}.norm_bytes(cols); }

}  // namespace riptide::ops::cuda::decode
