// The sums of a router as words that kernels add to in any order. Without CUDA: tests count with it, too.
//
// THE LAW, for every kernel of the decode family that computes a bf16 router R of kWordExperts experts over kWordCols
// columns in a layer that words_law() of ../../moe/plan.cpp names:
//     logit[e] = r * S[e],  S[e] = sum over groups g of 16 columns of share(e, g)
//     share(e, g) = a + b,  a the chain of fused multiply-adds of R[e][c] and h[c] = w[c] x[c] (rounded to f32) over
//                   columns 16 g to 16 g + 7 from 0 on, b that of the next eight; w: the norm's weights
//     r = 1 / sqrt(Q / kWordCols + eps),  Q the sum of x[c]^2: such chains of eight, then pairwise, neighbours first
// Each share is rounded to a multiple of 2^-28; their sum is exact, so that neither the order of the groups nor who
// adds them, nor how many rows a step has, shows in its bits. It is read off once: converted to f32, times r. Q takes
// part in the choice of experts alone: rows are normalised by the sum that all norms have.
//
// A word holds a sum in its upper 56 bits, and below them the number of shares that have none: NaN, infinities and
// magnitudes from 2^20 on. One such share makes the logit NaN, and a NaN is not chosen; of a row that holds a NaN or an
// infinity all logits are. 128 other shares stay within 2^55 units.
// Error: half a unit a share, 2^-22 r in all at most and 2^-26 r as a rule, beside the roundings of chains of eight.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "tensor/host_device.h"

namespace riptide::ops::cuda::decode {

constexpr int kWordExperts = 256, kWordCols = 2048, kWordGroup = 16;
constexpr float kWordUnit = 0x1p-28f, kUnitsPerOne = 0x1p28f, kMostShare = 0x1p20f;

/// What a share adds to a word.
RT_HD uint64_t word_of(float share) {
    if (!(std::fabs(share) < kMostShare)) return 1;
#ifdef __CUDA_ARCH__
    return static_cast<uint64_t>(__float2ll_rn(share * kUnitsPerOne)) << 8;
#else
    return static_cast<uint64_t>(std::llrint(share * kUnitsPerOne)) << 8;
#endif
}

/// The logit of a complete word; scale: r.
RT_HD float logit_of(uint64_t word, float scale) {
    if ((word & 0xFF) != 0) return NAN;
    return static_cast<float>(static_cast<int64_t>(word) >> 8) * kWordUnit * scale;
}

/// Rows of a step whose words the product before leaves, at most; steps of more rows have a router of their own.
constexpr int kMostWordRows = 4;

/// Where the sums of a step's rows lie in device memory between the kernel that adds to them and the last that reads
/// them (Gpu::sums()). The words of a row lie in sets, which the reader adds up: sixteen shares of one word are hardly
/// any contention, 128 take 1.1 us more (H200). Words are zero but between those kernels; the rest is written anew each
/// time.
struct RouterWords {
    static constexpr int kSets = 8, kSetsOfMany = 4;  // of one row; of each of several, which every reader reads
    static constexpr int kAllSets = std::max(kSets, kMostWordRows* kSetsOfMany);
    RT_HD static constexpr int sets_of(int rows) { return rows == 1 ? kSets : kSetsOfMany; }

    uint64_t sums[kAllSets][kWordExperts];                             // set i of row p: p * sets_of(rows) + i
    alignas(16) float squares[kMostWordRows][kWordCols / kWordGroup];  // sums of x[c]^2 of each group
    // For who asks until they are there; all ones from before the choice on.
    int32_t posted[8];                   // the chosen experts of one row by rank
    uint64_t listed[8 * kMostWordRows];  // of several rows who shares which (../../moe/experts_rows8.cuh)
};

/// What a product needs that leaves the words of the residual it is added to.
struct RouterAhead {
    const char* router = nullptr;  // bf16 [kWordExperts, kWordCols]
    const float* norm = nullptr;   // [kWordCols]
    RouterWords* words = nullptr;
};

}  // namespace riptide::ops::cuda::decode
