// Hopper's pieces of the prefill products: boxes through TMA, and wgmma with both operands in shared memory.
#pragma once

#include <cuda.h>
#include <cudaTypedefs.h>

#include <cstdint>

#include "base/error.h"
#include "ops/cuda/device/wgmma.cuh"
#include "tensor/cuda_check.cuh"

namespace riptide::ops::cuda::prefill {

/// A matrix (or a stack of them) of bytes or bf16 values as TMA reads it: extents and box in elements, innermost first.
struct BoxedTensor {
    const void* data = nullptr;
    CUtensorMapDataType type = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_128B;
    CUtensorMapL2promotion promotion = CU_TENSOR_MAP_L2_PROMOTION_L2_256B;
    int rank = 2;
    cuuint64_t extents[5] = {1, 1, 1, 1, 1};
    cuuint64_t strides[4] = {0, 0, 0, 0};  // bytes, of the second dimension and so on; multiples of 16
    cuuint32_t box[5] = {1, 1, 1, 1, 1};
};

/// Throws Error if the driver has no TMA or refuses the tensor.
inline CUtensorMap encode(const BoxedTensor& t) {
    static const auto function = [] {
        void* found = nullptr;
        cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
        RT_CUDA(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result));
        RT_CHECK(result == cudaDriverEntryPointSuccess && found != nullptr,
                 "the NVIDIA driver has no cuTensorMapEncodeTiled: update it");
        return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(found);
    }();
    RT_ASSERT(reinterpret_cast<uintptr_t>(t.data) % 16 == 0);
    CUtensorMap map;
    const cuuint32_t steps[5] = {1, 1, 1, 1, 1};
    const CUresult result =
        function(&map, t.type, static_cast<cuuint32_t>(t.rank), const_cast<void*>(t.data), t.extents, t.strides, t.box,
                 steps, CU_TENSOR_MAP_INTERLEAVE_NONE, t.swizzle, t.promotion, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    RT_CHECK(result == CUDA_SUCCESS, "cuTensorMapEncodeTiled refused a [{}, {}, {}] tensor: error {}", t.extents[2],
             t.extents[1], t.extents[0], static_cast<int>(result));
    return map;
}

/// A bf16 matrix [rows, k], read in boxes of box_rows x 64.
inline CUtensorMap bf16_boxes(const void* data, int64_t rows, int64_t k, int box_rows) {
    RT_ASSERT(rows > 0 && k % 64 == 0);
    BoxedTensor t;
    t.data = data;
    t.extents[0] = static_cast<cuuint64_t>(k), t.extents[1] = static_cast<cuuint64_t>(rows);
    t.strides[0] = static_cast<cuuint64_t>(2 * k);
    t.box[0] = 64, t.box[1] = static_cast<cuuint32_t>(box_rows);
    return encode(t);
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// A box of the tensor whose corner is (column x, row y) into shared memory; what lies outside the tensor becomes zero.
__device__ __forceinline__ void load_box(uint32_t to, const CUtensorMap* map, uint32_t barrier, int x, int y) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], "
        "[%2];" ::"r"(to),
        "l"(map), "r"(barrier), "r"(x), "r"(y)
        : "memory");
}
/// The same from matrix z of a stack.
__device__ __forceinline__ void load_box(uint32_t to, const CUtensorMap* map, uint32_t barrier, int x, int y, int z) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], "
        "[%2];" ::"r"(to),
        "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z)
        : "memory");
}

/// Describes rows of 128 swizzled bytes, eight rows (1024 bytes) to a pattern, to wgmma.
__device__ __forceinline__ uint64_t rows_descriptor(uint32_t address) {
    constexpr uint64_t kSwizzle128 = uint64_t{1} << 62, kStride = uint64_t{1024 >> 4} << 32,
                       kLeading = uint64_t{1} << 16;
    return kSwizzle128 | kStride | kLeading | (address & 0x3FFFFu) >> 4;
}

// wgmma_rows: d += A (64 x 16) B^T (N x 16), N twice the length of d. Lane l of warp w holds rows 16 w + l / 4 (+ 8)
// and columns 8 j + 2 (l % 4) (+ 1): d[4 j + b] the first row, d[4 j + 2 + b] the second.

__device__ __forceinline__ void wgmma_rows(float (&d)[128], uint64_t a, uint64_t b) {
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

__device__ __forceinline__ void wgmma_rows(float (&d)[64], uint64_t a, uint64_t b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
        "}, %64, %65, 1, 1, 1, 0, 0;"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
          "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),
          "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),
          "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]),
          "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]),
          "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]),
          "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]),
          "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
        : "l"(a), "l"(b));
}

__device__ __forceinline__ void wgmma_rows(float (&d)[32], uint64_t a, uint64_t b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
        "}, %32, %33, 1, 1, 1, 0, 0;"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
          "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),
          "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),
          "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
        : "l"(a), "l"(b));
}

#endif

}  // namespace riptide::ops::cuda::prefill
