// Arithmetic on sizes that come from files: overflow is an Error, never a wrapped number.
#pragma once

#include <cstdint>

#include "base/error.h"

namespace riptide {

/// a * b for non-negative sizes. Throws Error naming `what` on overflow or a negative operand.
inline int64_t checked_mul(int64_t a, int64_t b, const char* what) {
    int64_t result = 0;
    RT_CHECK(a >= 0 && b >= 0 && !__builtin_mul_overflow(a, b, &result), "{}: size {} x {} overflows", what, a, b);
    return result;
}

/// a + b for non-negative sizes. Throws Error naming `what` on overflow or a negative operand.
inline int64_t checked_add(int64_t a, int64_t b, const char* what) {
    int64_t result = 0;
    RT_CHECK(a >= 0 && b >= 0 && !__builtin_add_overflow(a, b, &result), "{}: size {} + {} overflows", what, a, b);
    return result;
}

/// An unsigned 64-bit number from a file as int64_t. Throws Error naming `what` if it does not fit.
inline int64_t checked_size(uint64_t value, const char* what) {
    RT_CHECK(value <= static_cast<uint64_t>(INT64_MAX), "{}: {} is not a possible size", what, value);
    return static_cast<int64_t>(value);
}

}  // namespace riptide
