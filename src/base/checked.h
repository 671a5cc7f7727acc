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

}  // namespace riptide
