#include "ops/cpu/attention_kernels.h"

namespace riptide::ops {
namespace {

constexpr int kWidth = 4, kQueries = 1;
typedef float Vec __attribute__((vector_size(kWidth * 4), may_alias));

inline __attribute__((always_inline)) Vec fused(Vec a, Vec b, Vec c) {
    for (int i = 0; i < kWidth; ++i) c[i] = __builtin_fmaf(a[i], b[i], c[i]);
    return c;
}

}  // namespace
}  // namespace riptide::ops

#include "ops/cpu/attention_kernels.inl"

namespace riptide::ops {
const AttentionKernels kAttentionBase = {scores, softmax, accumulate, merge, nullptr};
}
