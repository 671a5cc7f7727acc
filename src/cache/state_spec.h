// What one layer asks of the caches.
#pragma once

#include <cstdint>

namespace riptide {

/// The state that one layer keeps for each sequence.
struct StateSpec {
    enum class Kind { none, paged, window };
    Kind kind = Kind::none;
    int64_t num_kv_heads = 0;
    int64_t head_dim = 0;
    int32_t window = 0;  // kind == window: a row sees itself and the window - 1 positions before it
};

}  // namespace riptide
