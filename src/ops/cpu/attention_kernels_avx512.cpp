#include "ops/cpu/attention_kernels.h"

#if defined(__x86_64__)

#include <immintrin.h>

namespace riptide::ops {
namespace {

constexpr int kWidth = 16, kQueries = 4;
typedef float Vec __attribute__((vector_size(kWidth * 4), may_alias));

inline __attribute__((always_inline)) Vec fused(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }

/// Of two registers: what lies 8 (4, 2, 1) lanes further is added, and both results share a register.
inline __attribute__((always_inline)) Vec fold_8(Vec a, Vec b) {
    return __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) +
           __builtin_shufflevector(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
}
inline __attribute__((always_inline)) Vec fold_4(Vec a, Vec b) {
    return __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27) +
           __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
}
inline __attribute__((always_inline)) Vec fold_2(Vec a, Vec b) {
    return __builtin_shufflevector(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29) +
           __builtin_shufflevector(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
}
inline __attribute__((always_inline)) Vec fold_1(Vec a, Vec b) {
    return __builtin_shufflevector(a, b, 0, 2, 16, 18, 4, 6, 20, 22, 8, 10, 24, 26, 12, 14, 28, 30) +
           __builtin_shufflevector(a, b, 1, 3, 17, 19, 5, 7, 21, 23, 9, 11, 25, 27, 13, 15, 29, 31);
}

/// Sixteen sums of sixteen lanes: lane 4 i + j has that of query i and key j.
template <class Sums>
inline __attribute__((always_inline)) Vec fold_tile(const Sums& sum) {
    const auto of_key = [&](int j) __attribute__((always_inline)) {
        return fold_4(fold_8(sum[0][j].part[0], sum[1][j].part[0]), fold_8(sum[2][j].part[0], sum[3][j].part[0]));
    };
    return fold_1(fold_2(of_key(0), of_key(1)), fold_2(of_key(2), of_key(3)));
}

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
