// The product of bf16 matrices on chips before and after Hopper, and with --portable: mma.m16n8k16 (sm_80 on) fed by
// cp.async and ldmatrix, plain arithmetic on sm_75.
//
// Tiles of 128 x 128, three stages of 32 columns, eight warps of 32 x 64. Shared memory: 48 KB, no opt-in needed.
// Rows are 64 bytes; 16-byte piece c of row r lies at c ^ (r / 2 % 4), so that eight rows of one column of pieces touch
// all banks once. Rows outside the matrices repeat the last one: their results are not stored. For correctness first:
// no measured figures yet.
#include "base/error.h"
#include "ops/cuda/linear/gemm/gemm.cuh"

namespace riptide::ops::cuda::prefill {

namespace {

constexpr int kTileN = 128;
constexpr int kTileK = 32;
constexpr int kStages = 3;
constexpr int kStageA = kTileM * kTileK * 2;
constexpr int kStage = kStageA + kTileN * kTileK * 2;
constexpr int kShared = kStages * kStage;
constexpr int kThreads = 256;

/// Byte offset of piece c (eight columns) of row r in a stage.
RT_HD int piece_offset(int r, int c) { return r * 64 + (c ^ (r >> 1 & 3)) * 16; }

__device__ __forceinline__ void copy16(uint8_t* to, const void* from) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(static_cast<uint32_t>(__cvta_generic_to_shared(to))),
                 "l"(from)
                 : "memory");
#else
    *reinterpret_cast<uint4*>(to) = *static_cast<const uint4*>(from);
#endif
}
__device__ __forceinline__ void copies_commit() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
template <int kPending>
__device__ __forceinline__ void copies_wait() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
#endif
}

#if __CUDA_ARCH__ >= 800
__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], const uint8_t* from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(from)))
                 : "memory");
}
__device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, "
        "%2, "
        "%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
#endif

/// Rows [row, row + 128) of a matrix of `rows` rows, columns [k0, k0 + 32), into a stage.
__device__ __forceinline__ void fill(uint8_t* stage, const void* matrix, int row, int64_t rows, int k, int k0) {
#pragma unroll
    for (int i = 0; i < kTileM * 4 / kThreads; ++i) {
        const int piece = i * kThreads + static_cast<int>(threadIdx.x), r = piece / 4, c = piece % 4;
        const int64_t source = row + r < rows ? row + r : rows - 1;
        copy16(stage + piece_offset(r, c), static_cast<const uint16_t*>(matrix) + source * k + k0 + 8 * c);
    }
}

/// The warp's 32 x 64 sums, one stage further.
__device__ __forceinline__ void multiply(float (&d)[2][8][4], const uint8_t* a, const uint8_t* b, int row, int col,
                                         int lane) {
#if __CUDA_ARCH__ >= 800
#pragma unroll
    for (int part = 0; part < kTileK / 16; ++part) {
        uint32_t fa[2][4], fb[4][4];
        // Matrices 0..3 of ldmatrix: rows 0..7 and 8..15 of columns 0..7, then the same rows of columns 8..15.
#pragma unroll
        for (int m = 0; m < 2; ++m)
            load_matrices(fa[m], a + piece_offset(row + 16 * m + lane % 16, 2 * part + lane / 16));
            // Here: columns 0..7 and 8..15 of rows 0..7, then of rows 8..15.
#pragma unroll
        for (int n = 0; n < 4; ++n)
            load_matrices(fb[n], b + piece_offset(col + 16 * n + lane % 8 + lane / 16 * 8, 2 * part + lane / 8 % 2));
#pragma unroll
        for (int m = 0; m < 2; ++m)
#pragma unroll
            for (int n = 0; n < 8; ++n) mma(d[m][n], fa[m], fb[n / 2][n % 2 * 2], fb[n / 2][n % 2 * 2 + 1]);
    }
#else
    const auto at = [](const uint8_t* stage, int r, int c) {
        const uint32_t bits = *reinterpret_cast<const uint16_t*>(stage + piece_offset(r, c / 8) + c % 8 * 2);
        return __uint_as_float(bits << 16);
    };
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
        for (int n = 0; n < 8; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const int r = row + 16 * m + lane / 4 + e / 2 * 8, c = col + 8 * n + lane % 4 * 2 + e % 2;
                for (int k = 0; k < kTileK; ++k) d[m][n][e] = fmaf(at(a, r, k), at(b, c, k), d[m][n][e]);
            }
#endif
}

template <class Out>
__global__ void __launch_bounds__(kThreads)
    gemm_bf16_sm80_kernel(const __grid_constant__ GemmProblem p, int64_t b_rows, const __grid_constant__ Out out) {
    pdl_trigger();
    extern __shared__ __align__(128) uint8_t stages[];
    pdl_wait();
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
    const int row = warp / 2 * 32, col = warp % 2 * 64;
    const int tiles = tile_count(p, kTileN), steps = p.k / kTileK;
    for (int t = static_cast<int>(blockIdx.x); t < tiles; t += static_cast<int>(gridDim.x)) {
        const Tile tile = tile_at(p, kTileN, t);
        const auto load = [&](int step) {
            if (step < steps) {
                uint8_t* stage = stages + step % kStages * kStage;
                fill(stage, p.a, tile.row, p.rows, p.k, step * kTileK);
                fill(stage + kStageA, p.b, tile.b_row, b_rows, p.k, step * kTileK);
            }
            copies_commit();
        };
        float d[2][8][4] = {};
        __syncthreads();  // the tile before is done with the stages
        load(0);
        load(1);
        for (int step = 0; step < steps; ++step) {
            copies_wait<1>();
            __syncthreads();  // stage `step` is there for all; all are done with the one before it, which load()
                              // refills
            load(step + 2);
            const uint8_t* stage = stages + step % kStages * kStage;
            multiply(d, stage, stage + kStageA, row, col, lane);
        }
        if (tile.n + col >= p.n) continue;
#pragma unroll
        for (int m = 0; m < 2; ++m)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int r = tile.row + row + 16 * m + 8 * half + lane / 4;
                if (r >= tile.row_end) continue;
                float v[16];
#pragma unroll
                for (int j = 0; j < 16; ++j) v[j] = d[m][j / 2][2 * half + j % 2];
                store_row64(out, r, tile.n + col, lane % 4, v);
            }
    }
    copies_wait<0>();
}

}  // namespace

template <class Out>
void gemm_portable(const Gpu& gpu, const GemmProblem& p, const Out& out) {
    const bool grouped = p.plan.row_first != nullptr;
    const int experts = grouped ? p.expert_end - p.expert_begin : 1;
    const int64_t tiles = int64_t{ceil_div(p.rows, kTileM) + (grouped ? experts : 0)} * ceil_div(p.n, kTileN);
    const int64_t blocks = 2 * int64_t{gpu.info().sm_count};
    launch(gpu, gemm_bf16_sm80_kernel<Out>, static_cast<unsigned>(tiles < blocks ? tiles : blocks), kThreads, kShared,
           p, int64_t{p.n} * experts, out);
}

template void gemm_portable(const Gpu&, const GemmProblem&, const OutF32&);
template void gemm_portable(const Gpu&, const GemmProblem&, const OutBf16&);
template void gemm_portable(const Gpu&, const GemmProblem&, const OutSwiglu&);

}  // namespace riptide::ops::cuda::prefill
