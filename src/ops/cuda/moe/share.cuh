// The logit of the shared expert's share, by whoever normalises a row: bf16 weights of 8 kThreads columns.
#pragma once

#include "ops/cuda/linear/gemv/kquant_i8.cuh"

namespace riptide::ops::cuda::decode {

#ifdef __CUDACC__

constexpr int kShareChains = kThreads / 2, kShareSums = 4;

/// In thread 0 of kThreads, thread u of which has the normalised columns 8 u .. 8 u + 7: the bits of matmul, of whose
/// four sums each goes through two eighths of the row. chains[kShareChains], sums[kShareSums]: in shared memory, both
/// this call's until the next barrier. meet(): a barrier of these threads.
template <class Meet>
__device__ __forceinline__ float share_logit(const char* share, const float (&x)[8], int u, float* chains, float* sums,
                                             const Meet& meet) {
    const uint4 raw = load_weights_once(share + 16 * u);
    const uint32_t w[4] = {raw.x, raw.y, raw.z, raw.w};
    const auto chain = [&](float sum) {
#pragma unroll
        for (int i = 0; i < 2; ++i)
            sum =
                fma4(decode4(DType::bf16, w, i), make_float4(x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]), sum);
        return sum;
    };
    if (u < kShareChains) chains[u] = chain(0.0f);
    meet();
    if (u >= kShareChains) {
        const float sum = warp_sum(chain(chains[u - kShareChains]));
        if (u % 32 == 0) sums[(u - kShareChains) / 32] = sum;
    }
    meet();
    return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

#endif  // __CUDACC__

}  // namespace riptide::ops::cuda::decode
