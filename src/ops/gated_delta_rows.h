// Where what a row needs besides the state lies, once it has been made: the layout of the stash. Internal to ops.
#pragma once

#include <cstdint>

#include "ops/delta_view.h"

namespace riptide::ops {

/// Rows in the layout that DeltaView::stash describes, and q [n, key_heads * key_dim] apart: a replay needs no q.
class DeltaRows {
  public:
    /// rows: the stash, or other memory of that shape. keeps_inputs: rows.inputs() are wanted.
    DeltaRows(const DeltaView& view, float* rows, float* q, bool keeps_inputs = true)
        : rows_(rows),
          q_(q),
          stride_(view.stash_floats()),
          keys_(view.key_heads * view.key_dim),
          channels_(view.channels()),
          heads_(view.value_heads),
          keeps_inputs_(keeps_inputs) {}

    bool keeps_inputs() const { return keeps_inputs_; }
    float* q(int64_t row) const { return q_ + row * keys_; }
    float* inputs(int64_t row) const { return rows_ + row * stride_; }
    float* k(int64_t row) const { return inputs(row) + channels_; }
    float* v(int64_t row) const { return k(row) + keys_; }
    /// e^g of each value head, then beta.
    float* decay(int64_t row) const { return v(row) + channels_ - 2 * keys_; }
    float* beta(int64_t row) const { return decay(row) + heads_; }

  private:
    float *rows_, *q_;
    int64_t stride_, keys_, channels_, heads_;
    bool keeps_inputs_;
};

}  // namespace riptide::ops
