// The product of bf16 matrices on Hopper: TMA, wgmma, one persistent block on each multiprocessor.
//
// FLOPs: 2 rows n k; the chip does 990 T/s (sparsity off), cuBLASLt reached 813 T/s at 8192 x 10304 x 2048
// (2026-11-21). Bytes through L2: 48 KB for each 128 x 256 x 64 step of 1024 clocks. Design: tiles of 128 x 256;
// warpgroup 0 feeds four stages of 48 KB (A 128 x 64, B 256 x 64, 128-byte swizzle) through TMA, warpgroups 1 and 2
// multiply 64 rows each with m64n256k16 and store from registers. A warpgroup whose rows all lie behind the end of the
// tile's expert multiplies nothing. Limits: stores are not overlapped with the same tile's products (the next tile's
// loads are); L2 traffic without multicast.
#include <cuda.h>
#include <cudaTypedefs.h>

#include "base/error.h"
#include "ops/prefill_gemm.cuh"

namespace riptide::ops::cuda::prefill {

namespace {

constexpr int kTileN = 256;
constexpr int kTileK = 64;  // 128 bytes: one swizzle row
constexpr int kStages = 4;
constexpr int kStageA = kTileM * kTileK * 2;
constexpr int kStageB = kTileN * kTileK * 2;
constexpr int kStage = kStageA + kStageB;
constexpr int kShared = kStages * kStage + 1024 + 128;  // 1024: the base is rounded up; 128: barriers
constexpr int kThreads = 3 * 128;
[[maybe_unused]] constexpr int kConsumerWarps = 8;

struct Maps {
    CUtensorMap a, b;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

__device__ __forceinline__ uint32_t shared_address(const void* p) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

__device__ __forceinline__ void barrier_init(uint32_t barrier, int count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}

__device__ __forceinline__ void barrier_expect(uint32_t barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

__device__ __forceinline__ void barrier_arrive(uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/// Waits until the phase of this parity is over.
__device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity) {
    uint32_t done = 0;
    while (done == 0)
        asm volatile(
            "{\n .reg .pred p;\n mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n selp.u32 %0, 1, 0, p;\n}"
            : "=r"(done)
            : "r"(barrier), "r"(parity)
            : "memory");
}

/// A box of the tensor whose corner is (column x, row y) into shared memory; what lies outside the tensor becomes zero.
__device__ __forceinline__ void load_box(uint32_t to, const CUtensorMap* map, uint32_t barrier, int x, int y) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], "
        "[%2];" ::"r"(to),
        "l"(map), "r"(barrier), "r"(x), "r"(y)
        : "memory");
}

/// Describes rows of 128 swizzled bytes, eight rows (1024 bytes) to a pattern, to wgmma.
__device__ __forceinline__ uint64_t matrix_descriptor(uint32_t address) {
    constexpr uint64_t kSwizzle128 = uint64_t{1} << 62, kStride = uint64_t{1024 >> 4} << 32,
                       kLeading = uint64_t{1} << 16;
    return kSwizzle128 | kStride | kLeading | (address & 0x3FFFFu) >> 4;
}

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

/// d += A (64 x 16) B^T (256 x 16). Lane l of warp w holds rows 16 w + l / 4 (+ 8) and columns 8 j + 2 (l % 4) (+ 1):
/// d[4 j + b] the first row, d[4 j + 2 + b] the second.
__device__ __forceinline__ void wgmma_64x256x16(float (&d)[128], uint64_t a, uint64_t b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
        "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
        "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
        "}, %128, %129, 1, 1, 1, 0, 0;"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
          "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),
          "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),
          "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]),
          "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]),
          "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]),
          "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]),
          "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]), "+f"(d[64]),
          "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71]), "+f"(d[72]),
          "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79]), "+f"(d[80]),
          "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87]), "+f"(d[88]),
          "+f"(d[89]), "+f"(d[90]), "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95]), "+f"(d[96]),
          "+f"(d[97]), "+f"(d[98]), "+f"(d[99]), "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103]), "+f"(d[104]),
          "+f"(d[105]), "+f"(d[106]), "+f"(d[107]), "+f"(d[108]), "+f"(d[109]), "+f"(d[110]), "+f"(d[111]),
          "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115]), "+f"(d[116]), "+f"(d[117]), "+f"(d[118]),
          "+f"(d[119]), "+f"(d[120]), "+f"(d[121]), "+f"(d[122]), "+f"(d[123]), "+f"(d[124]), "+f"(d[125]),
          "+f"(d[126]), "+f"(d[127])
        : "l"(a), "l"(b));
}

/// Warpgroup 0: one thread keeps the stages full.
__device__ __forceinline__ void produce(const Maps& maps, const GemmProblem& p, uint32_t stages, uint32_t full,
                                        uint32_t empty) {
    const int tiles = tile_count(p, kTileN), steps = p.k / kTileK;
    uint32_t i = 0;  // steps so far, through all tiles
    for (int t = static_cast<int>(blockIdx.x); t < tiles; t += static_cast<int>(gridDim.x)) {
        const Tile tile = tile_at(p, kTileN, t);
        for (int step = 0; step < steps; ++step, ++i) {
            const uint32_t stage = i % kStages, to = stages + stage * kStage;
            barrier_wait(empty + 8 * stage, (i / kStages & 1) ^ 1);  // the first round passes at once
            barrier_expect(full + 8 * stage, kStage);
            load_box(to, &maps.a, full + 8 * stage, step * kTileK, tile.row);
            load_box(to + kStageA, &maps.b, full + 8 * stage, step * kTileK, tile.b_row);
        }
    }
}

/// Sums of one tile for the 64 rows of a warpgroup. `i`: steps so far.
__device__ __forceinline__ void multiply(float (&d)[128], int steps, uint32_t& i, uint32_t a, uint32_t b, uint32_t full,
                                         uint32_t empty, bool leader) {
#pragma unroll
    for (int j = 0; j < 128; ++j) d[j] = 0.0f;
    for (int step = 0; step < steps; ++step, ++i) {
        const uint32_t stage = i % kStages;
        barrier_wait(full + 8 * stage, i / kStages & 1);
        const uint64_t da = matrix_descriptor(a + stage * kStage), db = matrix_descriptor(b + stage * kStage);
        wgmma_fence();
#pragma unroll
        for (int part = 0; part < kTileK / 16; ++part) wgmma_64x256x16(d, da + 2 * part, db + 2 * part);  // 32 bytes on
        wgmma_commit();
        if (step == 0) continue;
        wgmma_wait<1>();  // the step before is done with its stage
        if (leader) barrier_arrive(empty + 8 * ((i - 1) % kStages));
    }
    wgmma_wait<0>();
    if (leader) barrier_arrive(empty + 8 * ((i - 1) % kStages));
}

template <class Out>
__device__ __forceinline__ void store(const float (&d)[128], const GemmProblem& p, const Out& out, const Tile& tile,
                                      int first_row, int lane) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int row = first_row + lane / 4 + 8 * half;
        if (row >= tile.row_end) continue;
#pragma unroll
        for (int c = 0; c < kTileN / 64; ++c) {
            if (tile.n + 64 * c >= p.n) continue;
            float v[16];
#pragma unroll
            for (int j = 0; j < 16; ++j) v[j] = d[4 * (8 * c + j / 2) + 2 * half + j % 2];
            store_row64(out, row, tile.n + 64 * c, lane % 4, v);
        }
    }
}

/// Warpgroups 1 and 2.
template <class Out>
__device__ __forceinline__ void consume(const GemmProblem& p, const Out& out, uint32_t stages, uint32_t full,
                                        uint32_t empty, int group) {
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32 % 4);
    const bool leader = lane == 0;
    const int tiles = tile_count(p, kTileN), steps = p.k / kTileK;
    const uint32_t a = stages + static_cast<uint32_t>(group) * (kStageA / 2), b = stages + kStageA;
    uint32_t i = 0;
    for (int t = static_cast<int>(blockIdx.x); t < tiles; t += static_cast<int>(gridDim.x)) {
        const Tile tile = tile_at(p, kTileN, t);
        const int row = tile.row + 64 * group;
        if (row >= tile.row_end) {
            for (int step = 0; step < steps; ++step, ++i) {
                barrier_wait(full + 8 * (i % kStages), i / kStages & 1);
                if (leader) barrier_arrive(empty + 8 * (i % kStages));
            }
            continue;
        }
        float d[128];
        multiply(d, steps, i, a, b, full, empty, leader);
        store(d, p, out, tile, row + 16 * warp, lane);
    }
}

#endif

template <class Out>
__global__ void __launch_bounds__(kThreads, 1)
    gemm_hopper_kernel(const __grid_constant__ Maps maps, const __grid_constant__ GemmProblem p,
                       const __grid_constant__ Out out) {
    pdl_trigger();
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ uint8_t memory[];
    const uint32_t stages = (shared_address(memory) + 1023u) & ~1023u;
    const uint32_t full = stages + kStages * kStage, empty = full + 8 * kStages;
    if (threadIdx.x == 0) {
        for (int s = 0; s < kStages; ++s) {
            barrier_init(full + 8 * s, 1);
            barrier_init(empty + 8 * s, kConsumerWarps);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
    __syncthreads();
    pdl_wait();
    const int group = __shfl_sync(~0u, static_cast<int>(threadIdx.x / 128), 0);
    if (group == 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x == 0) {
            asm volatile("fence.proxy.async.global;" ::: "memory");  // earlier kernels wrote A and B with plain stores
            produce(maps, p, stages, full, empty);
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        consume(p, out, stages, full, empty, group - 1);
    }
#else
    pdl_wait();
    __trap();  // never launched there
#endif
}

PFN_cuTensorMapEncodeTiled_v12000 encoder() {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
    RT_CUDA(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &result));
    RT_CHECK(result == cudaDriverEntryPointSuccess && function != nullptr,
             "the NVIDIA driver has no cuTensorMapEncodeTiled: update it");
    return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(function);
}

/// A bf16 matrix [rows, k], read in boxes of box_rows x 64.
CUtensorMap tensor_map(const void* data, int64_t rows, int64_t k, int box_rows) {
    static const auto encode = encoder();
    RT_ASSERT(rows > 0 && k % kTileK == 0 && reinterpret_cast<uintptr_t>(data) % 16 == 0);
    CUtensorMap map;
    const cuuint64_t extents[2] = {static_cast<cuuint64_t>(k), static_cast<cuuint64_t>(rows)};
    const cuuint64_t strides[1] = {static_cast<cuuint64_t>(2 * k)};
    const cuuint32_t box[2] = {kTileK, static_cast<cuuint32_t>(box_rows)}, steps[2] = {1, 1};
    const CUresult result = encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<void*>(data), extents, strides,
                                   box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                   CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    RT_CHECK(result == CUDA_SUCCESS, "cuTensorMapEncodeTiled refused a [{}, {}] matrix: error {}", rows, k,
             static_cast<int>(result));
    return map;
}

}  // namespace

template <class Out>
void gemm_hopper(const Gpu& gpu, const GemmProblem& p, const Out& out) {
    const bool grouped = p.plan.row_first != nullptr;
    const int experts = grouped ? p.expert_end - p.expert_begin : 1;
    const Maps maps = {tensor_map(p.a, p.rows, p.k, kTileM), tensor_map(p.b, int64_t{p.n} * experts, p.k, kTileN)};
    const int64_t down = ceil_div(p.rows, kTileM) + (grouped ? experts : 0);  // at most
    const int64_t tiles = down * ceil_div(p.n, kTileN);
    const auto kernel = gemm_hopper_kernel<Out>;
    RT_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared));
    const auto grid = static_cast<unsigned>(tiles < gpu.info().sm_count ? tiles : gpu.info().sm_count);
    launch(gpu, kernel, grid, kThreads, kShared, maps, p, out);
}

template void gemm_hopper(const Gpu&, const GemmProblem&, const OutF32&);
template void gemm_hopper(const Gpu&, const GemmProblem&, const OutSwiglu&);

namespace {
template <class Out>
void choose(const Gpu& gpu, const GemmProblem& p, const Out& out) {
    RT_ASSERT(p.k % kTileK == 0 && p.n % 64 == 0);
    if (p.rows == 0 || p.n == 0) return;
    if (gpu.hopper()) gemm_hopper(gpu, p, out);
    else gemm_portable(gpu, p, out);
}
}  // namespace

void gemm(const Gpu& gpu, const GemmProblem& p, const OutF32& out) { choose(gpu, p, out); }
void gemm(const Gpu& gpu, const GemmProblem& p, const OutSwiglu& out) { choose(gpu, p, out); }

void OutF32::add(float* y, int begin, int cols, int64_t stride, float* residual) {
    RT_ASSERT(pieces < kPieces && begin % 64 == 0);
    const bool aligned = reinterpret_cast<uintptr_t>(y) % 16 == 0 && reinterpret_cast<uintptr_t>(residual) % 16 == 0;
    piece[pieces++] = {y, begin, cols, stride, residual, aligned && cols % 4 == 0 && stride % 4 == 0};
}

}  // namespace riptide::ops::cuda::prefill
