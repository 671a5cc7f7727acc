// The product of e4m3 matrices on Hopper: TMA, wgmma, one persistent block on each multiprocessor.
//
// FLOPs: 2 rows n k; the chip does 1979 T/s (sparsity off). Design: tiles of 128 x 256 in two halves of 128 rows of B,
// which may come from different matrices (q and k; gate and up); warpgroup 0 feeds four stages of 48 KB (A 128 x 128,
// two times B 128 x 128, 128-byte swizzle) through TMA. Warpgroups 1 and 2 have 64 rows each: for each step of 128
// columns and each half, four m64n128k32 into 64 registers, which are then added in f32, times the scales, to the sums
// of the half (2 x 64 registers: 256 columns at once would need 256 for sums alone and 128 more). While one warpgroup
// adds, the other multiplies. A step is 1024 clocks of products; shared memory: 144 KB, 1152 clocks (A is read once
// for each half). Reached (H200, 2026-11-22): 963 TFLOP/s for 8,192 rows of [8192, 2048], 890 for [2048, 8192]; experts
// of 256 rows 742 (gate and up) and 443 (down: four steps a tile, then its stores). Tried: turns of the two warpgroups
// through named barriers: nothing. A warpgroup whose rows all lie behind the end of the tile's expert multiplies
// nothing.
#include <algorithm>

#include "base/error.h"
#include "ops/cuda/linear/gemm/fp8_sm90.h"
#include "ops/cuda/linear/gemm/gemm.cuh"
#include "ops/cuda/linear/gemm/ring_sm90.cuh"
#include "tensor/fp8.cuh"

namespace riptide::ops::cuda::prefill {

namespace {

constexpr int kStepK = kFp8Cols;                // 128 bytes: one swizzle row
constexpr int kHalf = 128, kTileN = 2 * kHalf;  // rows of B
constexpr int kBox = 128 * kStepK;              // of A, of a half of B
using Ring = GemmRing<4, 3 * kBox>;

/// What the kernel needs of a problem.
struct Work {
    GemmProblem p;  // n: of all matrices side by side (OutF32), of gate and up together
    const float* a_scales;
    struct Matrix {
        const float* scales;
        int begin;  // its first row of p.n; OutF32
        int rows;   // of one expert
    };
    Matrix b[Fp8Problem::kMost], shared[2];
    int matrices, shared_expert;  // -1: none
};
struct Maps {
    CUtensorMap a, b[Fp8Problem::kMost], shared[2];
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// d = A (64 x 32) B^T (128 x 32), += if add: e4m3 rows of 128 bytes.
__device__ __forceinline__ void wgmma_fp8(float (&d)[64], uint64_t a, uint64_t b, int add) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
        "}, %64, %65, p, 1, 1;\n}\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
          "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),
          "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),
          "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]),
          "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]),
          "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]),
          "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]),
          "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
        : "l"(a), "l"(b), "r"(add));
}

/// Where half h of a tile comes from.
struct Source {
    int map;  // of b, or behind them of shared; -1: nothing there
    int row;  // of the map
};
template <class Out>
__device__ __forceinline__ Source source_of(const Work& work, const Tile& tile, int half) {
    const bool shared = tile.expert == work.shared_expert;
    const int expert = shared ? 0 : tile.expert;
    if constexpr (std::is_same_v<Out, OutFp8>) {
        return {half + (shared ? Fp8Problem::kMost : 0), expert * work.b[half].rows + tile.n / 2};
    } else {
        const int n = tile.n + half * kHalf;
        if (n >= work.p.n) return {-1, 0};
        int i = 0;
        while (i + 1 < work.matrices && n >= work.b[i + 1].begin) ++i;
        return {i + (shared ? Fp8Problem::kMost : 0), expert * work.b[i].rows + n - work.b[i].begin};
    }
}

/// Warpgroup 0: one thread keeps the stages full.
template <class Out>
__device__ __forceinline__ void produce(const Maps& maps, const Work& work, uint32_t stages, uint32_t full,
                                        uint32_t empty) {
    const GemmProblem& p = work.p;
    const int tiles = tile_count(p, kTileN), steps = p.k / kStepK;
    uint32_t i = 0;  // steps so far, through all tiles
    for (int t = static_cast<int>(blockIdx.x); t < tiles; t += static_cast<int>(gridDim.x)) {
        const Tile tile = tile_at(p, kTileN, t);
        const Source from[2] = {source_of<Out>(work, tile, 0), source_of<Out>(work, tile, 1)};
        const uint32_t bytes = from[1].map < 0 ? 2 * kBox : 3 * kBox;
        for (int step = 0; step < steps; ++step, ++i) {
            const uint32_t stage = i % Ring::kCount, to = stages + stage * Ring::kStage, ready = full + 8 * stage;
            barrier_wait(empty + 8 * stage, (i / Ring::kCount & 1) ^ 1);  // the first round passes at once
            barrier_expect(ready, bytes);
            load_box(to, &maps.a, ready, step * kStepK, tile.row);
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                if (from[h].map < 0) continue;
                const CUtensorMap* map = from[h].map < Fp8Problem::kMost
                                             ? &maps.b[from[h].map]
                                             : &maps.shared[from[h].map - Fp8Problem::kMost];
                load_box(to + kBox * (1 + h), map, ready, step * kStepK, from[h].row);
            }
        }
    }
}

/// The scales of 64 rows of B each, by blocks of columns.
template <class Out>
__device__ __forceinline__ const float* b_scales(const Work& work, const Source& from, int part, int steps) {
    if (from.map < 0) return work.b[0].scales;  // never used
    const bool shared = from.map >= Fp8Problem::kMost;
    const Work::Matrix& m = shared ? work.shared[from.map - Fp8Problem::kMost] : work.b[from.map];
    // A box may reach behind a matrix's last 64 rows; what comes of it is not stored.
    const int groups = m.rows / kFp8Rows, group = from.row / kFp8Rows + part;
    const int last = (from.row / m.rows + 1) * groups - 1;
    return m.scales + int64_t{min(group, last)} * steps;
}

/// Sums of one tile for the 64 rows of a warpgroup. `i`: steps so far.
template <class Out>
__device__ __forceinline__ void multiply(float (&sum)[2][64], const Work& work, const Tile& tile, int row, uint32_t& i,
                                         uint32_t a, uint32_t b, uint32_t full, uint32_t empty, bool leader) {
    const int steps = work.p.k / kStepK;
    const Source from[2] = {source_of<Out>(work, tile, 0), source_of<Out>(work, tile, 1)};
    const bool both = from[1].map >= 0;
    const float* sb[2][2];
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int part = 0; part < 2; ++part) sb[h][part] = b_scales<Out>(work, from[h], part, steps);
    // Rows behind the last are read as the last: what comes of them is not stored.
    const float* sa[2] = {work.a_scales + int64_t{min(row, work.p.rows - 1)} * steps,
                          work.a_scales + int64_t{min(row + 8, work.p.rows - 1)} * steps};
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int j = 0; j < 64; ++j) sum[h][j] = 0.0f;
    for (int step = 0; step < steps; ++step, ++i) {
        const uint32_t stage = i % Ring::kCount;
        const float s0 = sa[0][step], s1 = sa[1][step];
        barrier_wait(full + 8 * stage, i / Ring::kCount & 1);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            if (h == 1 && !both) continue;
            const uint64_t da = rows_descriptor(a + stage * Ring::kStage),
                           db = rows_descriptor(b + stage * Ring::kStage + static_cast<uint32_t>(h) * kBox);
            const float t0 = sb[h][0][step], t1 = sb[h][1][step];
            float d[64];
            wgmma_fence();
#pragma unroll
            for (int part = 0; part < kStepK / 32; ++part) wgmma_fp8(d, da + 2 * part, db + 2 * part, part > 0);
            wgmma_commit();
            wgmma_wait<0>();
            pin(d);
            if (leader && (h == 1 || !both)) barrier_arrive(empty + 8 * stage);
            const float scale[2][2] = {{__fmul_rn(s0, t0), __fmul_rn(s0, t1)}, {__fmul_rn(s1, t0), __fmul_rn(s1, t1)}};
#pragma unroll
            for (int j = 0; j < 64; ++j) sum[h][j] = __fmaf_rn(scale[j / 2 % 2][j / 32], d[j], sum[h][j]);
        }
    }
}

// store: what a thread does with its sums. row: its first one; the second is 8 further on.

template <class Out>
__device__ __forceinline__ void store(const float (&sum)[2][64], const GemmProblem& p, const Out& out, const Tile& tile,
                                      int row, int lane) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        if (row + 8 * half >= tile.row_end) continue;
#pragma unroll
        for (int c = 0; c < 4; ++c) {
            if (tile.n + 64 * c >= p.n) continue;
            float v[16];
#pragma unroll
            for (int j = 0; j < 16; ++j) v[j] = sum[c / 2][4 * (8 * (c % 2) + j / 2) + 2 * half + j % 2];
            store_row64(out, row + 8 * half, tile.n + 64 * c, lane % 4, v);
        }
    }
}

__device__ __forceinline__ void store(const float (&sum)[2][64], const GemmProblem& p, const OutFp8& out,
                                      const Tile& tile, int row, int lane) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        float act[32], largest = 0.0f;
        bool odd = false;
#pragma unroll
        for (int i = 0; i < 32; ++i) {
            const int j = 4 * (i / 2) + 2 * half + i % 2;
            act[i] = swiglu_value(sum[0][j], sum[1][j]);
            const float x = fabsf(act[i]);
            odd = odd || !(x <= 3.0e38f);
            largest = fmaxf(largest, x);
        }
        if (odd) largest = INFINITY;
        largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
        largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
        if (row + 8 * half >= tile.row_end) continue;
        const float scale = fp8_scale(largest), inverse = 1.0f / scale;
        const int64_t at = row + 8 * half;
        if (lane % 4 == 0) out.y.scales[at * (out.cols / kFp8Cols) + tile.n / kTileN] = scale;
        uint8_t* y = out.y.values + at * out.cols + tile.n / 2 + 4 * (lane % 4);
#pragma unroll
        for (int i = 0; i < 32; i += 4)  // sixteen columns further on
            *reinterpret_cast<uint32_t*>(y + 4 * i) =
                pack_e4m3(act[i] * inverse, act[i + 1] * inverse, act[i + 2] * inverse, act[i + 3] * inverse);
    }
}

/// Warpgroups 1 and 2.
template <class Out>
__device__ __forceinline__ void consume(const Work& work, const Out& out, uint32_t stages, uint32_t full,
                                        uint32_t empty, int group) {
    const GemmProblem& p = work.p;
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32 % 4);
    const bool leader = lane == 0;
    const int tiles = tile_count(p, kTileN), steps = p.k / kStepK;
    const uint32_t a = stages + static_cast<uint32_t>(group) * (kBox / 2), b = stages + kBox;
    uint32_t i = 0;
    for (int t = static_cast<int>(blockIdx.x); t < tiles; t += static_cast<int>(gridDim.x)) {
        const Tile tile = tile_at(p, kTileN, t);
        const int first = tile.row + 64 * group;
        if (first >= tile.row_end) {
            pass_stages<Ring>(steps, i, full, empty, leader);
            continue;
        }
        const int row = first + 16 * warp + lane / 4;
        float sum[2][64];
        multiply<Out>(sum, work, tile, row, i, a, b, full, empty, leader);
        store(sum, p, out, tile, row, lane);
    }
}

#endif

template <class Out>
__global__ void __launch_bounds__(Ring::kThreads, 1)
    gemm_fp8_kernel(const __grid_constant__ Maps maps, const __grid_constant__ Work work,
                    const __grid_constant__ Out out) {
    pdl_trigger();
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    run_gemm_ring<Ring>(
        [&](uint32_t stages, uint32_t full, uint32_t empty) { produce<Out>(maps, work, stages, full, empty); },
        [&](uint32_t stages, uint32_t full, uint32_t empty, int group) {
            consume<Out>(work, out, stages, full, empty, group);
        });
#else
    pdl_wait();
    __trap();  // never launched there
#endif
}

/// An e4m3 matrix [rows, k], read in boxes of 128 x 128.
CUtensorMap boxes(const void* values, int64_t rows, int64_t k) {
    BoxedTensor t;
    t.data = values;
    t.type = CU_TENSOR_MAP_DATA_TYPE_UINT8;
    t.extents[0] = static_cast<cuuint64_t>(k), t.extents[1] = static_cast<cuuint64_t>(rows);
    t.strides[0] = static_cast<cuuint64_t>(k);
    t.box[0] = kStepK, t.box[1] = 128;
    return encode(t);
}

template <class Out>
void start(const Gpu& gpu, const Fp8Problem& problem, const Out& out) {
    constexpr bool kSwiglu = std::is_same_v<Out, OutFp8>;
    const bool grouped = problem.plan.row_first != nullptr;
    RT_ASSERT(gpu.hopper() && problem.k % kStepK == 0 && problem.matrices > 0 && problem.matrices <= Fp8Problem::kMost);
    RT_ASSERT(!kSwiglu || (problem.matrices == 2 && problem.b[0].rows % kHalf == 0));
    RT_ASSERT(!grouped || kSwiglu || problem.matrices == 1);
    if (problem.rows == 0) return;
    const int experts = grouped ? problem.experts : 1;
    const bool shared = grouped && problem.experts > problem.plan.experts;
    Maps maps = {};
    Work work = {};
    maps.a = boxes(problem.a.values, problem.rows, problem.k);
    int n = 0;
    for (int i = 0; i < problem.matrices; ++i) {
        const Fp8Matrix& m = problem.b[i];
        RT_ASSERT(m.rows > 0 && m.rows % kFp8Rows == 0);
        maps.b[i] = boxes(m.values, int64_t{m.rows} * (shared ? experts - 1 : experts), problem.k);
        work.b[i] = {m.scales, n, m.rows};
        n += static_cast<int>(i + 1 < problem.matrices ? round_up(m.rows, kHalf) : m.rows);
        if (!shared) continue;
        maps.shared[i] = boxes(problem.shared[i].values, m.rows, problem.k);
        work.shared[i] = {problem.shared[i].scales, 0, m.rows};
    }
    work.p = {nullptr, nullptr, problem.rows, n, problem.k, problem.plan, 0, experts};
    work.a_scales = problem.a.scales;
    work.matrices = problem.matrices;
    work.shared_expert = shared ? experts - 1 : -1;
    const int64_t tiles = int64_t{ceil_div(problem.rows, kTileM) + (grouped ? experts : 0)} * ceil_div(n, kTileN);
    launch_gemm_ring<Ring>(gpu, gemm_fp8_kernel<Out>, tiles, maps, work, out);
}

}  // namespace

void gemm_fp8(const Gpu& gpu, const Fp8Problem& problem, const OutF32& out) { start(gpu, problem, out); }
void gemm_fp8(const Gpu& gpu, const Fp8Problem& problem, const OutBf16& out) { start(gpu, problem, out); }
void gemm_fp8(const Gpu& gpu, const Fp8Problem& problem, const OutFp8& out) { start(gpu, problem, out); }

}  // namespace riptide::ops::cuda::prefill
