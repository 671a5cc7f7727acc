// The general products of the decode family (Kernel::any), as templates: 1 to 256 rows of x, every matrix of a group in
// one kernel, any shape and type. ../linear.cu compiles those for Q4_K_M files and launches all, any_other.cu compiles
// those for other types.
//
// Bytes: the weights once for up to kStageRows rows. At one row of Laguna XS.2 in Q4_K_M: q, k, v and the gate 12.9 MB,
// o 9.4 MB, head 168.6 MB; floor at 4.65 TB/s 2.8, 2.0 and 36 us. FLOPs do not matter at n = 1; from n = 2 on the
// integer dot products do.
// Design: 256 threads, two CTAs on an SM, each warp a contiguous range of the group's rows. A warp issues all loads of
// its first rows (five of 2048 columns, one of 8192: 16 to 20 of 16 bytes a lane) before pdl_wait(); behind it every
// CTA normalises and quantises x for itself into shared memory while the weights arrive. More than four rows are
// prepared by a kernel of their own instead.
#pragma once

#include <type_traits>

#include "ops/cuda/linear/shared/dot_batch.cuh"
#include "ops/cuda/linear/shared/shapes.h"

namespace riptide::ops::cuda::decode {

struct MatmulArgs {
    Matrix m[kMaxMatrices];  // plane types first
    int32_t first_float = 0;
    int32_t plane_rows = 0, plane_warps = 0;
    int32_t float_rows = 0, float_warps = 0;
    int32_t n = 0, block_rows = 0;
    ActLayout layout;
    ActSource x;
    float* residual = nullptr;  // [n, rows of m[0]]
};

__device__ __forceinline__ int share(int rows, int part, int parts) {
    return static_cast<int>(static_cast<int64_t>(rows) * part / parts);
}

/// The range of list rows of a warp.
struct Work {
    bool planes;
    int begin, end;
};
__device__ __forceinline__ Work work_of(const MatmulArgs& a) {
    const int unit = threadIdx.x / 32 * gridDim.x + blockIdx.x;
    if (unit < a.plane_warps)
        return {true, share(a.plane_rows, unit, a.plane_warps), share(a.plane_rows, unit + 1, a.plane_warps)};
    const int i = unit - a.plane_warps;
    if (i >= a.float_warps) return {false, 0, 0};
    return {false, share(a.float_rows, i, a.float_warps), share(a.float_rows, i + 1, a.float_warps)};
}

/// The list of the rows of all plane matrices, or of all float matrices.
struct RowList {
    const MatmulArgs& a;
    int first_matrix;

    __device__ __forceinline__ int matrix(int row) const {
        int i = first_matrix;
        while (row >= a.m[i].first_row + a.m[i].rows) ++i;
        return i;
    }
    __device__ __forceinline__ RowRef operator()(int row) const {
        const int i = matrix(row);
        return {i, 0, row - a.m[i].first_row};
    }
};

__device__ __forceinline__ void store(const MatmulArgs& a, RowRef r, int row, float sum) {
    const float y = __fmul_rn(sum, a.m[r.matrix].scale);
    const int64_t at = static_cast<int64_t>(row) * a.m[r.matrix].rows + r.row;
    a.m[r.matrix].y[at] = y;
    if (a.residual != nullptr) a.residual[at] = __fadd_rn(a.residual[at], y);
}

/// Groups with plane types. Float matrices among them are small (a gate of 64 rows): their warps have nothing to do in
/// the loop over plane rows, and hold their first words through it.
template <class Set, int G, int S, bool Whole, int P>
__global__ void __launch_bounds__(kThreads, 2) any_planes_kernel(const __grid_constant__ MatmulArgs a) {
    extern __shared__ uint4 dynamic[];
    __shared__ float partial[2 * kWarps];
    pdl_trigger();
    using Planes = PlaneBatch<Set, G, S, Whole>;
    using Floats = FloatBatch<std::conditional_t<Set::kWords == KQuants::kWords, PlainFloats, AllFloats>, 1, 8>;
    uint32_t raw[Planes::kWords > Floats::kWords ? Planes::kWords : Floats::kWords];
    const int lane = threadIdx.x % 32, row0 = blockIdx.y * a.block_rows, rows = min(a.block_rows, a.n - row0);
    const Work w = work_of(a);
    const RowList plane_row{a, 0}, float_row{a, a.first_float};
    char* staged = reinterpret_cast<char*>(dynamic);
    const auto nothing = [] {};
    float* norm = reinterpret_cast<float*>(staged + a.block_rows * a.layout.bytes());
    fetch_norm(a.x, a.layout.cols, norm);
    if (!w.planes && w.begin < w.end) Floats::load(a.m, float_row, w.begin, w.end, 0, lane, raw);
    run_rows<Planes, P>(
        a.m, plane_row, w.begin, w.planes ? w.end : w.begin, lane, raw, false, staged, a.layout, rows, nothing,
        [&] {
            pdl_wait();
            stage_rows(a.x, a.layout, row0, rows, staged, norm, partial);
            __syncthreads();
        },
        [&](int i, int p, float sum) { store(a, plane_row(i), row0 + p, sum); });
    if (!w.planes && w.begin < w.end)
        run_rows<Floats, 1>(a.m, float_row, w.begin, w.end, lane, raw, true, staged, a.layout, rows, nothing, nothing,
                            [&](int i, int p, float sum) { store(a, float_row(i), row0 + p, sum); });
}

/// Groups of float types.
template <int P>
__global__ void __launch_bounds__(kThreads, 2) any_float_kernel(const __grid_constant__ MatmulArgs a) {
    extern __shared__ uint4 dynamic[];
    __shared__ float partial[2 * kWarps];
    pdl_trigger();
    using Floats = FloatBatch<AllFloats, 2, 4>;
    uint32_t raw[Floats::kWords];
    const int lane = threadIdx.x % 32, row0 = blockIdx.y * a.block_rows, rows = min(a.block_rows, a.n - row0);
    const Work w = work_of(a);
    const RowList row_of{a, 0};
    char* staged = reinterpret_cast<char*>(dynamic);
    float* norm = reinterpret_cast<float*>(staged + a.block_rows * a.layout.bytes());
    fetch_norm(a.x, a.layout.cols, norm);
    run_rows<Floats, P>(
        a.m, row_of, w.begin, w.end, lane, raw, false, staged, a.layout, rows, [] {},
        [&] {
            pdl_wait();
            stage_rows(a.x, a.layout, row0, rows, staged, norm, partial);
            __syncthreads();
        },
        [&](int i, int p, float sum) { store(a, row_of(i), row0 + p, sum); });
}

using MatmulKernel = void (*)(MatmulArgs);

/// `p`: rows of x in one pass (1, 2, 4). For groups with planes of any type.
MatmulKernel any_plane_kernel(int p);
/// For groups of float types.
MatmulKernel float_kernel(int p);

}  // namespace riptide::ops::cuda::decode
