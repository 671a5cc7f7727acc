// Tiles of 32 weight rows of Q4_K or Q6_K times up to 24 rows of x: what decode_dense_short.cu and
// decode_dense_split.cu are made of. The arithmetic is that of decode_tile.cuh, the bits are those of decode_dot.cuh.
//
// The canonical sum of a product has 32 chains, sub-blocks j mod 32; they are added xor 16, 8, 4, 2, 1. With j = 8 b +
// low (block b of 256 columns) a chain is a pair of low and q = b mod 4. Eight warps (a team) share a tile in one of
// two ways:
//   short  x fits beside the ring. Warp w has low = w; its four chains q = 0, 2, 1, 3 come one after the other, a stage
//          of the ring each, so that three sets of sums are alive.
//   split  it does not, or there are few tiles for the CTAs of the device. Four CTAs share a tile: CTA r has low = 2 r
//          and 2 r + 1 of all blocks, whose 32 bytes of nibbles are a sector; warp 2 q + l has chain q of low 2 r + l.
//          What is left to add, eight values for a product, goes through the L2 cache to a kernel of its own: no
//          cluster, so that every SM has work.
// Two teams have tiles and stages by turns, and the last round's tiles are halved.
#pragma once

#include "ops/decode_dense_tile.cuh"
#include "ops/decode_many.cuh"

namespace riptide::ops::cuda::decode {

constexpr int kShortRows = 32, kTeams = 2, kTeamWarps = 8, kTeamThreads = 32 * kTeamWarps;

/// Where everything lies in a stage of short_kernel(): kSteps blocks of 32 rows; strides are odd multiples of 16. Byte
/// 16 w of the 128 that a block has is where warp w reads.
template <DType Type>
struct ShortStage {
    static constexpr bool kQ6 = Type == DType::planes_q6_k, kQ5 = false;
    static constexpr int kSteps = 5;
    static constexpr int kDataStride = 128 * kSteps + 16, kHeadStride = (16 * kSteps) / 32 * 32 + 16;
    static constexpr int kHighStride = 64 * kSteps + 16, kDStride = 8 * kSteps;
    static constexpr int kHeads = kShortRows * kDataStride, kHigh = kHeads + kShortRows * kHeadStride;
    static constexpr int kD = kHigh + (kQ6 ? kShortRows * kHighStride : 0);
    static constexpr int kBytes = kD + (kQ6 ? kShortRows * kDStride : 0);
    static_assert(kHeadStride >= 16 * kSteps && kHighStride % 32 == 16 && kBytes % 16 == 0);
};

/// Rows of x, in device memory as in shared memory, are groups of eight sub-blocks: sixteen bytes of each, the other
/// sixteen of each, {d, A} of each. Warp w of a team has the one with number w of each group: short: group
/// q blocks / 4 + k is block q + 4 k, split: group k of CTA r is 2 r and 2 r + 1 of blocks 4 k .. + 3.
constexpr int kGroupBytes = 320, kGroupSecond = 128, kGroupPairs = 256;
/// Bytes from row to row in shared memory, up to kGroups groups of each.
template <int kGroups>
constexpr int kShortXStride = kGroupBytes* kGroups + 16;

/// x (kinds plain, norm) as such rows, float_bytes of floats behind each (act_layout). Takes arena memory.
/// (decode_dense_short.cu)
ActSource prepare_short(Context& ctx, const ActSource& x, int64_t cols, int64_t n, bool split, int32_t float_bytes);

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

/// Two matrices: lanes 0 to 15 give the rows.
__device__ __forceinline__ void load_two_matrices(uint32_t& r0, uint32_t& r1, const char* row) {
#if __CUDA_ARCH__ >= 800
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
                 : "=r"(r0), "=r"(r1)
                 : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(row)))
                 : "memory");
#endif
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

#if __CUDA_ARCH__ >= 900

/// What a team multiplies in a round: `halves` (0, 1, 2) of a tile, from `half` on.
struct Assigned {
    int tile, half, halves;
};
/// Of CTA `cta` of `ctas` (split: of fours). Whole tiles as long as all teams get one; the last round's are halved
/// where that leaves no team with more than half a tile.
__device__ __forceinline__ Assigned assigned(int tiles, int ctas, int cta, int round, int team) {
    const int all = kTeams * ctas, whole = tiles / all;
    if (round < whole) return {round * all + team * ctas + cta, 0, 2};
    int base = whole * all, rest = tiles - base, unit = team * ctas + cta, units = all;
    if (rest > ctas) {
        if (team == 0) return {base + cta, 0, 2};
        base += ctas, rest -= ctas, unit = cta, units = ctas;
    }
    if (2 * rest <= units) return {base + unit / 2, unit % 2, unit < 2 * rest ? 1 : 0};
    return {base + unit, 0, unit < rest ? 2 : 0};
}
__device__ __forceinline__ int rounds_of(int tiles, int ctas) { return (tiles + kTeams * ctas - 1) / (kTeams * ctas); }

__device__ __forceinline__ void wait_for(uint32_t barrier, uint32_t parity) {
    asm volatile(
        "{\n.reg .pred p;\nagain_%=:\nmbarrier.try_wait.parity.shared.b64 p, [%0], %1;\n@!p bra again_%=;\n}" ::"r"(
            barrier),
        "r"(parity)
        : "memory");
}
__device__ __forceinline__ void copy_bulk(char* to, const char* from, int bytes, uint32_t barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     shared_address(to)),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}
/// By one warp: groups [from, from + count) of all n rows of x to groups first .. in shared memory, to be waited for at
/// `barrier`.
template <int kGroups>
__device__ __forceinline__ void ask_for_x(const ActSource& x, int n, int from, int first, int count, char* to,
                                          uint32_t barrier) {
    const int lane = threadIdx.x % 32;
    if (lane == 0) expect_bytes(barrier, kGroupBytes * count * n);
    __syncwarp();
    if (lane < n)
        copy_bulk(to + lane * kShortXStride<kGroups> + kGroupBytes * first,
                  x.rows + lane * x.stride + kGroupBytes * from, kGroupBytes * count, barrier);
}

__device__ __forceinline__ void sync_team(int team) {
    asm volatile("bar.sync %0, %1;" ::"r"(6 + team), "n"(kTeamThreads) : "memory");
}

#endif  // __CUDA_ARCH__ >= 900

#endif  // __CUDACC__

}  // namespace riptide::ops::cuda::decode
