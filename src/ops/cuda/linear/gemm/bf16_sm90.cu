// The product of bf16 matrices on Hopper: TMA, wgmma, one persistent block on each multiprocessor.
//
// FLOPs: 2 rows n k; the chip does 990 T/s (sparsity off), cuBLASLt reached 813 T/s at 8192 x 10304 x 2048
// (2026-11-21). Bytes through L2: 48 KB for each 128 x 256 x 64 step of 1024 clocks. Design: tiles of 128 x 256;
// warpgroup 0 feeds four stages of 48 KB (A 128 x 64, B 256 x 64, 128-byte swizzle) through TMA, warpgroups 1 and 2
// multiply 64 rows each with m64n256k16 and store from registers. A warpgroup whose rows all lie behind the end of the
// tile's expert multiplies nothing. Where wide tiles would leave multiprocessors idle (o of 512 rows: 32 tiles of 256),
// they are 128 or 64 wide: 512 or 256 clocks of products, bound by shared memory (a step is written once and read by
// both warpgroups) to some 640 or 448 (estimates; o of 512 rows 75 us with tiles of 128, 65 with 64, H200, 2026-11-22).
// A sum does not see how wide its tile is. Limits: stores are not overlapped with the same tile's products (the next
// tile's loads are); L2 traffic without multicast.
#include <algorithm>

#include "base/error.h"
#include "ops/cuda/linear/gemm/gemm.cuh"
#include "ops/cuda/linear/gemm/ring_sm90.cuh"
#include "ops/cuda/linear/plan.h"

namespace riptide::ops::cuda::prefill {

namespace {

constexpr int kTileK = 64;  // 128 bytes: one swizzle row
constexpr int kStageA = kTileM * kTileK * 2;

struct Maps {
    CUtensorMap a, b;
};

/// Stages of tiles kN wide.
template <int kN>
using Ring = GemmRing<kN == 256   ? 4
                      : kN == 128 ? 6
                                  : 8,
                      kStageA + kN * kTileK * 2>;

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// Warpgroup 0: one thread keeps the stages full.
template <int kN>
__device__ __forceinline__ void produce(const Maps& maps, const GemmProblem& p, uint32_t stages, uint32_t full,
                                        uint32_t empty) {
    const int tiles = tile_count(p, kN), steps = p.k / kTileK;
    uint32_t i = 0;  // steps so far, through all tiles
    for (int t = static_cast<int>(blockIdx.x); t < tiles; t += static_cast<int>(gridDim.x)) {
        const Tile tile = tile_at(p, kN, t);
        for (int step = 0; step < steps; ++step, ++i) {
            const uint32_t stage = i % Ring<kN>::kCount, to = stages + stage * Ring<kN>::kStage;
            barrier_wait(empty + 8 * stage, (i / Ring<kN>::kCount & 1) ^ 1);  // the first round passes at once
            barrier_expect(full + 8 * stage, Ring<kN>::kStage);
            load_box(to, &maps.a, full + 8 * stage, step * kTileK, tile.row);
            load_box(to + kStageA, &maps.b, full + 8 * stage, step * kTileK, tile.b_row);
        }
    }
}

/// Sums of one tile for the 64 rows of a warpgroup. `i`: steps so far.
template <int kN>
__device__ __forceinline__ void multiply(float (&d)[kN / 2], int steps, uint32_t& i, uint32_t a, uint32_t b,
                                         uint32_t full, uint32_t empty, bool leader) {
#pragma unroll
    for (int j = 0; j < kN / 2; ++j) d[j] = 0.0f;
    for (int step = 0; step < steps; ++step, ++i) {
        const uint32_t stage = i % Ring<kN>::kCount;
        barrier_wait(full + 8 * stage, i / Ring<kN>::kCount & 1);
        const uint64_t da = rows_descriptor(a + stage * Ring<kN>::kStage),
                       db = rows_descriptor(b + stage * Ring<kN>::kStage);
        wgmma_fence();
#pragma unroll
        for (int part = 0; part < kTileK / 16; ++part) wgmma_rows(d, da + 2 * part, db + 2 * part);  // 32 bytes on
        wgmma_commit();
        if (step == 0) continue;
        wgmma_wait<1>();  // the step before is done with its stage
        if (leader) barrier_arrive(empty + 8 * ((i - 1) % Ring<kN>::kCount));
    }
    wgmma_wait<0>();
    if (leader) barrier_arrive(empty + 8 * ((i - 1) % Ring<kN>::kCount));
}

template <int kN, class Out>
__device__ __forceinline__ void store(const float (&d)[kN / 2], const GemmProblem& p, const Out& out, const Tile& tile,
                                      int first_row, int lane) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int row = first_row + lane / 4 + 8 * half;
        if (row >= tile.row_end) continue;
#pragma unroll
        for (int c = 0; c < kN / 64; ++c) {
            if (tile.n + 64 * c >= p.n) continue;
            float v[16];
#pragma unroll
            for (int j = 0; j < 16; ++j) v[j] = d[4 * (8 * c + j / 2) + 2 * half + j % 2];
            store_row64(out, row, tile.n + 64 * c, lane % 4, v);
        }
    }
}

/// Warpgroups 1 and 2.
template <int kN, class Out>
__device__ __forceinline__ void consume(const GemmProblem& p, const Out& out, uint32_t stages, uint32_t full,
                                        uint32_t empty, int group) {
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32 % 4);
    const bool leader = lane == 0;
    const int tiles = tile_count(p, kN), steps = p.k / kTileK;
    const uint32_t a = stages + static_cast<uint32_t>(group) * (kStageA / 2), b = stages + kStageA;
    uint32_t i = 0;
    for (int t = static_cast<int>(blockIdx.x); t < tiles; t += static_cast<int>(gridDim.x)) {
        const Tile tile = tile_at(p, kN, t);
        const int row = tile.row + 64 * group;
        if (row >= tile.row_end) {
            pass_stages<Ring<kN>>(steps, i, full, empty, leader);
            continue;
        }
        float d[kN / 2];
        multiply<kN>(d, steps, i, a, b, full, empty, leader);
        store<kN>(d, p, out, tile, row + 16 * warp, lane);
    }
}

#endif

template <int kN, class Out>
__global__ void __launch_bounds__(Ring<kN>::kThreads, 1)
    gemm_bf16_sm90_kernel(const __grid_constant__ Maps maps, const __grid_constant__ GemmProblem p,
                          const __grid_constant__ Out out) {
    pdl_trigger();
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    run_gemm_ring<Ring<kN>>(
        [&](uint32_t stages, uint32_t full, uint32_t empty) { produce<kN>(maps, p, stages, full, empty); },
        [&](uint32_t stages, uint32_t full, uint32_t empty, int group) {
            consume<kN>(p, out, stages, full, empty, group);
        });
#else
    pdl_wait();
    __trap();  // never launched there
#endif
}

template <int kN, class Out>
void launch_wide(const Gpu& gpu, const GemmProblem& p, const Out& out, int experts, int64_t tiles) {
    const Maps maps = {bf16_boxes(p.a, p.rows, p.k, kTileM), bf16_boxes(p.b, int64_t{p.n} * experts, p.k, kN)};
    launch_gemm_ring<Ring<kN>>(gpu, gemm_bf16_sm90_kernel<kN, Out>, tiles, maps, p, out);
}

}  // namespace

template <class Out>
void gemm_hopper(const Gpu& gpu, const GemmProblem& p, const Out& out) {
    const bool grouped = p.plan.row_first != nullptr;
    const int experts = grouped ? p.expert_end - p.expert_begin : 1;
    const int64_t down = ceil_div(p.rows, kTileM) + (grouped ? experts : 0);  // at most
    const int64_t sms = gpu.info().sm_count;
    const auto tiles = [&](int n) { return down * ceil_div(p.n, n); };
    // Rounds of the chip times clocks of a step.
    const auto clocks = [&](int n, int64_t step) { return (tiles(n) + sms - 1) / sms * step; };
    const int64_t c256 = clocks(256, 1024), c128 = clocks(128, 640), c64 = clocks(64, 448);
    if (c64 < std::min(c128, c256)) launch_wide<64>(gpu, p, out, experts, tiles(64));
    else if (c128 < c256) launch_wide<128>(gpu, p, out, experts, tiles(128));
    else launch_wide<256>(gpu, p, out, experts, tiles(256));
}

template void gemm_hopper(const Gpu&, const GemmProblem&, const OutF32&);
template void gemm_hopper(const Gpu&, const GemmProblem&, const OutBf16&);
template void gemm_hopper(const Gpu&, const GemmProblem&, const OutSwiglu&);

namespace {
template <class Out>
void choose(const Gpu& gpu, const GemmProblem& p, const Out& out) {
    RT_ASSERT(p.k % kTileK == 0 && p.n % 64 == 0);
    if (p.rows == 0 || p.n == 0) return;
    if (linear::gemm_kernel(chip_of(gpu)) == linear::Kernel::gemm_bf16_sm90) gemm_hopper(gpu, p, out);
    else gemm_portable(gpu, p, out);
}
}  // namespace

void gemm(const Gpu& gpu, const GemmProblem& p, const OutF32& out) { choose(gpu, p, out); }
void gemm(const Gpu& gpu, const GemmProblem& p, const OutBf16& out) { choose(gpu, p, out); }
void gemm(const Gpu& gpu, const GemmProblem& p, const OutSwiglu& out) { choose(gpu, p, out); }

void OutF32::add(float* y, int begin, int cols, int64_t stride, float* residual) {
    RT_ASSERT(pieces < kPieces && begin % 64 == 0);
    const bool aligned = reinterpret_cast<uintptr_t>(y) % 16 == 0 && reinterpret_cast<uintptr_t>(residual) % 16 == 0;
    piece[pieces++] = {y, begin, cols, stride, residual, aligned && cols % 4 == 0 && stride % 4 == 0};
}

}  // namespace riptide::ops::cuda::prefill
