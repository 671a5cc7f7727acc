#include "ops/cpu/attention_kernels.h"

#if defined(__x86_64__)

#include <immintrin.h>

namespace riptide::ops {
namespace {

constexpr int kWidth = 16, kQueries = 4;
typedef float Vec __attribute__((vector_size(kWidth * 4), may_alias));

inline __attribute__((always_inline)) Vec fused(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }

void decode_f16(const void* from, float* to, int64_t d) {
    const auto* x = static_cast<const uint16_t*>(from);
    int64_t i = 0;
    for (; i + 16 <= d; i += 16)
        _mm512_storeu_ps(to + i,
                         _mm512_maskz_cvtph_ps(0xFFFF, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + i))));
    for (; i < d; ++i) to[i] = _cvtsh_ss(x[i]);
}

}  // namespace
}  // namespace riptide::ops

#include "ops/cpu/attention_kernels.inl"

namespace riptide::ops {
const AttentionKernels kAttentionAvx512 = {scores, softmax, accumulate, merge, decode_f16};
}

#endif
