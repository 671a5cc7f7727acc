#include "ops/gated_delta.h"

namespace riptide::ops {

Tensor gated_delta(Context&, const GatedDeltaInput&, const DeltaView&, const Batch&, DeltaMode) {
    fail(ErrorKind::unavailable, "gated_delta: not written yet");
}
void gated_delta_commit(Context&, std::span<const DeltaView>, const DeltaPaths&) {
    fail(ErrorKind::unavailable, "gated_delta_commit: not written yet");
}

}  // namespace riptide::ops
