#include "ops/attention_kernels.h"

#if defined(__x86_64__)

namespace riptide::ops {
namespace {
constexpr int kWidth = 8;
}
}  // namespace riptide::ops

#include "ops/attention_kernels.inl"

namespace riptide::ops {
const AttentionKernels kAttentionAvx2 = kKernels;
}

#endif
