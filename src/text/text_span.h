// A stretch of a text.
#pragma once

#include <cstdint>

namespace riptide {

/// Bytes [begin, end) of a text.
struct TextSpan {
    int64_t begin = 0;
    int64_t end = 0;
    friend bool operator==(const TextSpan&, const TextSpan&) = default;
};

}  // namespace riptide
