#include "ops/attention_kernels.h"

namespace riptide::ops {
namespace {
constexpr int kWidth = 4;
}
}  // namespace riptide::ops

#include "ops/attention_kernels.inl"

namespace riptide::ops {
const AttentionKernels kAttentionBase = kKernels;
}
