// What one layer asks of the caches.
#pragma once

#include <cstdint>

#include "ops/delta_view.h"

namespace riptide {

/// The state that one layer keeps for each sequence.
struct StateSpec {
    enum class Kind {
        none,
        paged,   // K/V of all tokens
        window,  // K/V of the last `window` tokens
        delta,   // Gated DeltaNet's recurrent state, which describes a sequence at exactly its length
    };
    Kind kind = Kind::none;
    int64_t num_kv_heads = 0;
    int64_t head_dim = 0;
    int32_t window = 0;  // kind == window: a row sees itself and the window - 1 positions before it
    DeltaView delta;     // kind == delta: sizes alone

    /// K/V of a layer whose rows see the last `window_` tokens, themselves among them; 0: all.
    static StateSpec attention(int64_t heads, int64_t dim, int64_t window_) {
        return {.kind = window_ > 0 ? Kind::window : Kind::paged,
                .num_kv_heads = heads,
                .head_dim = dim,
                .window = static_cast<int32_t>(window_)};
    }
    bool has_kv() const { return kind == Kind::paged || kind == Kind::window; }
    /// Bytes of a delta layer's state of one sequence.
    int64_t delta_bytes() const {
        return kind == Kind::delta ? delta.conv_floats() * int64_t{sizeof(float)} + delta.state_bytes() : 0;
    }
};

}  // namespace riptide
