// Tiles of 32 weight rows of Q4_K or Q6_K times up to 24 rows of x: what decode_dense_short.cu is made of. The
// arithmetic is that of decode_tile.cuh, the bits are those of decode_dot.cuh.
//
// The canonical sum of a product has 32 chains, sub-blocks j mod 32; they are added xor 16, 8, 4, 2, 1. With j = 8 b +
// low (block b of 256 columns) a chain is a pair of low and q = b mod 4. Eight warps (a team) share a tile in one of
// two ways, L being the values of low that a CTA has:
//   L = 8  x fits beside the ring. Warp w has low = w; its four chains q = 0, 2, 1, 3 come one after the other, a stage
//          of the ring each, so that three sets of sums are alive.
//   L = 2  it does not, or there are few tiles for the CTAs of the device. Four CTAs share a tile: CTA r has low = 2 r
//          and 2 r + 1 of all blocks, whose 32 bytes of nibbles are a sector; warp 2 q + l has chain q of low 2 r + l.
//          What is left to add, eight values for a product, goes through the L2 cache to a kernel of its own: no
//          cluster, so that every SM has work.
// Either way byte 16 w of the 128 that a block (L = 2: four blocks) has in a stage is where warp w reads.
#pragma once

#include "ops/decode_dense_tile.cuh"
#include "ops/decode_many.cuh"

namespace riptide::ops::cuda::decode {

constexpr int kShortRows = 32, kTeamWarps = 8, kTeamThreads = 32 * kTeamWarps;
constexpr int kShortAskers = 4;  // the last warps of a CTA, which ask for weights
constexpr int kShortAskerRows = kShortRows / kShortAskers;

/// Where everything lies in a stage: kSteps blocks (L = 2: groups of four) of 32 rows; strides are odd multiples of 16.
template <DType Type, int L>
struct ShortStage {
    static_assert(L == 8 || L == 2);
    static constexpr bool kQ6 = Type == DType::planes_q6_k, kQ5 = false;
    static constexpr int kSteps = L == 8 ? 5 : kQ6 ? 3 : 4;
    static constexpr int kHeadEach = L == 8 ? 16 : 64;
    static constexpr int kDataStride = 128 * kSteps + 16, kHeadStride = (kHeadEach * kSteps) / 32 * 32 + 16;
    static constexpr int kHighStride = 64 * kSteps + 16, kDStride = 8 * kSteps;
    static constexpr int kHeads = kShortRows * kDataStride, kHigh = kHeads + kShortRows * kHeadStride;
    static constexpr int kD = kHigh + (kQ6 ? kShortRows * kHighStride : 0);
    static constexpr int kBytes = kD + (kQ6 ? kShortRows * kDStride : 0);
    static_assert(kHeadStride >= kHeadEach * kSteps && kHighStride % 32 == 16 && kBytes % 16 == 0);
};

/// Rows of x, in device memory as in shared memory, are groups of eight sub-blocks: sixteen bytes of each, the other
/// sixteen of each, {d, A} of each. Warp w of a team has the one with number w of each group: L = 8: group
/// q blocks / 4 + k is block q + 4 k, L = 2: group k is 2 r and 2 r + 1 of blocks 4 k .. + 3.
constexpr int kGroupBytes = 320, kGroupSecond = 128, kGroupPairs = 256;
/// Bytes from row to row in shared memory, up to kGroups groups of each.
template <int kGroups>
constexpr int kShortXStride = kGroupBytes* kGroups + 16;

#ifdef __CUDACC__

/// Eight columns of sub-block `slot` of a group, the quarter `quarter` of them, quantised as put8() does: four
/// neighbouring lanes have a sub-block. stores: whether there is such a group.
__device__ __forceinline__ void put_group(char* group, int slot, int quarter, bool stores, const float (&v)[8]) {
    const Act8 q = quantise8(v);
    if (!stores) return;
    *reinterpret_cast<uint2*>(group + quarter / 2 * kGroupSecond + 16 * slot + quarter % 2 * 8) = q.words;
    if (quarter == 0)
        *reinterpret_cast<float2*>(group + kGroupPairs + 8 * slot) = make_float2(q.d, static_cast<float>(q.all));
}

/// A lane's places. b: of load_matrices, rows 0 to 15 of x; more: rows 16 to 23; pairs: {d, A} of column 2 t.
struct ShortLane {
    const char* b;
    const char* more;
    const char* pairs;
};

/// Two matrices: lanes 0 to 15 give the rows.
__device__ __forceinline__ void load_two_matrices(uint32_t& r0, uint32_t& r1, const char* row) {
#if __CUDA_ARCH__ >= 800
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
                 : "=r"(r0), "=r"(r1)
                 : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(row)))
                 : "memory");
#endif
}

/// acc[m] += step `k` of rows 16 m .. + 15 of a stage times x. sub: this warp's number in its team; low, q: its chain.
template <DType Type, int L, int NT, int kGroups, int M>
__device__ __forceinline__ void short_step(const char* stage, int k, int sub, int low, int q, const KShifts& at,
                                           const ShortLane& x, int lane, float (&acc)[2][NT][4]) {
    using S = ShortStage<Type, L>;
    const int g = lane / 4, t = lane % 4;
    uint32_t w[4], xs[4][2];
    load_matrices(w, stage + lane * S::kDataStride + 128 * k + 16 * sub);
    float2 mine;  // scales of row `lane`
    const char* const head = stage + S::kHeads + lane * S::kHeadStride + S::kHeadEach * k + (L == 2 ? 16 * q : 0);
    if constexpr (S::kQ6)
        mine = q6_scales(*reinterpret_cast<const uint16_t*>(head + 2 * low),
                         *reinterpret_cast<const uint16_t*>(stage + S::kD + lane * S::kDStride + 8 * k + 2 * q));
    else mine = q4_scales<false>(load_shared16(head), at);
    if constexpr (NT == 1) {
        load_two_matrices(xs[0][0], xs[0][1], x.b + kGroupBytes * k);
    } else {
        uint32_t two[4];
        load_matrices(two, x.b + kGroupBytes * k);
        xs[0][0] = two[0], xs[0][1] = two[1], xs[1][0] = two[2], xs[1][1] = two[3];
        if constexpr (NT == 3) load_two_matrices(xs[2][0], xs[2][1], x.more + kGroupBytes * k);
    }
    float d[NT][2], total[NT][2];
#pragma unroll
    for (int nt = 0; nt < NT; ++nt)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const float2 pair =
                *reinterpret_cast<const float2*>(x.pairs + (8 * nt + i) * kShortXStride<kGroups> + kGroupBytes * k);
            d[nt][i] = pair.x, total[nt][i] = pair.y;
        }
#pragma unroll
    for (int m = 0; m < M; ++m) {
        float3 by[2];  // rows g, g + 8
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            by[h].x = __shfl_sync(~0u, mine.x, 16 * m + 8 * h + g);
            by[h].z = __shfl_sync(~0u, mine.y, 16 * m + 8 * h + g);
            by[h].y = -__fmul_rn(by[h].x, kMagic);
            if constexpr (!S::kQ6) by[h].z = -by[h].z;
        }
        uint32_t a[4];
        make_a<S>(stage, w + 2 * m, 16 * m + g, 8 * k + sub, t, a);
#pragma unroll
        for (int nt = 0; nt < NT; ++nt) add_products<S::kQ6>(a, xs[nt][0], xs[nt][1], by, d[nt], total[nt], acc[m][nt]);
    }
}

/// All `count` steps of a stage; x: at the first of them.
template <DType Type, int L, int NT, int kGroups, int U, int M>
__device__ __forceinline__ void short_stage(const char* stage, int count, int sub, int low, int q, const KShifts& at,
                                            const ShortLane& x, int lane, float (&acc)[2][NT][4]) {
    const auto step = [&](int k) { short_step<Type, L, NT, kGroups, M>(stage, k, sub, low, q, at, x, lane, acc); };
    if constexpr (U == 5) {
        if (count == ShortStage<Type, L>::kSteps) {
#pragma unroll
            for (int k = 0; k < ShortStage<Type, L>::kSteps; ++k) step(k);
        } else {
#pragma unroll 1
            for (int k = 0; k < count; ++k) step(k);
        }
    } else {
#pragma unroll U
        for (int k = 0; k < count; ++k) step(k);
    }
}

/// Steps [first, first + count) of rows 8 asker .. + 7 of a tile to a stage. L = 8: of chain q; L = 2: of CTA r.
template <DType Type, int L>
__device__ __forceinline__ void fetch_short(const TilePlanes& planes, int row0, int last, int blocks, int which,
                                            int first, int count, int asker, char* stage) {
    using S = ShortStage<Type, L>;
    static_assert(kShortAskerRows == 8);
    const int lane = threadIdx.x % 32, at = kShortAskerRows * asker;
    const auto block = [&](int i) { return static_cast<int64_t>(min(row0 + i, last)) * blocks + 4 * first; };
    {
        const int c = lane % 8;
        const int skip = L == 8 ? 128 * which + 16 * c : c / 2 * 128 + 32 * which + c % 2 * 16;
#pragma unroll
        for (int i = lane / 8; i < 8; i += 4) {
            const char* const from = planes.data + block(i) * 128 + skip;
            char* const to = stage + (at + i) * S::kDataStride + 16 * c;
#pragma unroll
            for (int k = 0; k < S::kSteps; ++k)
                if (k < count) copy_async16(to + 128 * k, from + 512 * k);
        }
    }
    const int i = lane / 4, c = lane % 4;
    if constexpr (L == 8) {
        const int r = lane % 8;
        const char* const from = planes.scales + block(r) * 16 + 16 * which;
        char* const to = stage + S::kHeads + (at + r) * S::kHeadStride;
#pragma unroll
        for (int k0 = 0; k0 < S::kSteps; k0 += 4)
            if (k0 + lane / 8 < count) copy_async16(to + 16 * (k0 + lane / 8), from + 64 * (k0 + lane / 8));
    } else {
        const char* const from = planes.scales + block(i) * 16 + 16 * c;
        char* const to = stage + S::kHeads + (at + i) * S::kHeadStride + 16 * c;
#pragma unroll
        for (int k = 0; k < S::kSteps; ++k)
            if (k < count) copy_async16(to + 64 * k, from + 64 * k);
    }
    if constexpr (S::kQ6) {
        const char* const from = planes.high + block(i) * 64 + (L == 8 ? 64 * which + 16 * c : 64 * c + 16 * which);
        char* const to = stage + S::kHigh + (at + i) * S::kHighStride + 16 * c;
#pragma unroll
        for (int k = 0; k < S::kSteps; ++k)
            if (k < count) copy_async16(to + 64 * k, from + 256 * k);
        const int r = lane % 8;
#pragma unroll
        for (int k0 = 0; k0 < S::kSteps; k0 += 4)
            if (k0 + lane / 8 < count)
                copy_async8(stage + S::kD + (at + r) * S::kDStride + 8 * (k0 + lane / 8),
                            planes.d + 2 * block(r) + 8 * (k0 + lane / 8));
    }
}

/// The sums of a tile: eight warps' one behind the other, each [column][32 rows], rows in another order for each pair
/// of columns.
template <int NT>
__device__ __forceinline__ void put_sums(float* to, int warp, int lane, const float (&v)[2][NT][4]) {
    const int g = lane / 4, t = lane % 4;
    float* const mine = to + warp * (256 * NT) + 64 * t + g;
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            float* const row = mine + ((16 * m + 8 * h) ^ (8 * t));
#pragma unroll
            for (int nt = 0; nt < NT; ++nt)
#pragma unroll
                for (int i = 0; i < 2; ++i) row[256 * nt + 32 * i] = v[m][nt][2 * h + i];
        }
}

#endif  // __CUDACC__

}  // namespace riptide::ops::cuda::decode
