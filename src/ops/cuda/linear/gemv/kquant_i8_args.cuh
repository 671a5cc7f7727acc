// What the kernels of lean matrix products share (kquant_i8.cu: one row; kquant_i8_rows4.cu: two to four).
#pragma once

#include <algorithm>

#include "ops/cuda/linear/fit.h"
#include "ops/cuda/linear/gemv/kquant_i8.cuh"
#include "ops/cuda/linear/gemv/kquant_i8.h"

namespace riptide::ops::cuda::decode {

namespace {

struct Row1Matrix {
    Row1Planes planes;
    float* y;
    int32_t rows, first;  // first batch
    int32_t q6;
};

struct Row1MatmulArgs {
    Row1Matrix m[kRow1Matrices];
    int32_t matrices, batches;
    int32_t warp_bytes;  // shared memory of a warp
    int32_t any_q6;
    int32_t n;  // rows of x; those of y and residual lie one behind the other
    ActSource x;
    float* residual;
};

/// The matrix that batch b belongs to.
__device__ __forceinline__ const Row1Matrix& row1_matrix(const Row1MatmulArgs& a, int b) {
    int i = 0;
#pragma unroll
    for (int k = 1; k < kRow1Matrices; ++k)
        if (k < a.matrices && b >= a.m[k].first) i = k;
    return a.m[i];
}

/// A warp's rows of 2,048 columns in its shared memory: batch b, G rows of Q4_K or G6 of Q6_K.
template <int G, int G6>
struct OnceBatch {
    static constexpr int kCols = 2048, kGroups = kCols / 32;
    const Row1Matrix& m;
    char* nibbles;
    bool q6;
    int row, count;  // no rows if there is no such batch

    __device__ __forceinline__ OnceBatch(const Row1MatmulArgs& a, int b, char* memory)
        : m(row1_matrix(a, b)), nibbles(memory), q6(m.q6 != 0) {
        const int rows = q6 ? G6 : G;
        row = (b - m.first) * rows;
        count = b < a.batches ? min(rows, m.rows - row) : 0;
    }
    __device__ __forceinline__ Row1Aux<true> aux6() const { return {nibbles + 16 * kGroups * G6, kGroups, G6}; }
    __device__ __forceinline__ Row1Aux<false> aux4() const { return {nibbles + 16 * kGroups * G, kGroups, G}; }
    /// Asks for all of it.
    __device__ __forceinline__ void ask(const Row1Fetch& fetch, int lane) const {
        if (count == 0) return;
        const int64_t first = static_cast<int64_t>(row) * kGroups;
        const int n = count * kGroups;
        fetch.begin(lane == 0, q6 ? 16 * n + 10 * n + n / 4 : 18 * n);
        if (lane == 0) {
            fetch.copy(nibbles, m.planes.data + 16 * first, 16 * n);
            fetch.copy(q6 ? aux6().scales() : aux4().scales(), m.planes.scales + 2 * first, 2 * n);
            if (q6) {
                fetch.copy(aux6().high(), m.planes.high + 8 * first, 8 * n);
                fetch.copy(aux6().d(), m.planes.d + first / 4, n / 4);
            }
        }
        __syncwarp();
    }
    __device__ __forceinline__ void store(const Row1MatmulArgs& a, int p, int g, float sum) const {
        if (g >= count) return;
        const int at = p * m.rows + row + g;
        m.y[at] = sum;
        if (a.residual != nullptr) a.residual[at] = a.residual[at] + sum;
    }
};

/// One batch is G rows of Q4_K or G6 of Q6_K.
inline Row1MatmulArgs row1_args(const ActSource& x, int64_t n, std::span<const Weight* const> weights,
                                std::span<Tensor> y, Tensor* residual, int G, int G6) {
    Row1MatmulArgs a = {};
    for (const Weight* w : weights) {
        const auto i = static_cast<size_t>(a.matrices);
        const bool q6 = w->dtype == DType::planes_q6_k;
        const int64_t batch = q6 ? G6 : G;
        a.m[i] = {planes_of(*w), y[i].row(0), static_cast<int32_t>(w->rows), a.batches, q6};
        a.batches += static_cast<int32_t>((w->rows + batch - 1) / batch);
        a.any_q6 = a.any_q6 != 0 || q6;
        ++a.matrices;
    }
    a.n = static_cast<int32_t>(n);
    a.x = x;
    a.residual = residual == nullptr ? nullptr : residual->row(0);
    return a;
}

inline void launch_row1(Context& ctx, void (*kernel)(Row1MatmulArgs), int64_t ctas, int threads, int64_t shared,
                        const Row1MatmulArgs& a) {
    allow_shared(reinterpret_cast<const void*>(kernel), shared);
    launch(*ctx.gpu, kernel, dim3(static_cast<unsigned>(ctas)), threads, static_cast<size_t>(shared), a);
}

/// A kernel whose CTAs have sixteen rows of the weight; ahead: of the router whose words it leaves, or null.
inline void launch_row1_split(Context& ctx, void (*kernel)(Row1MatmulArgs, RouterAhead), int64_t rows, int64_t shared,
                              const Row1MatmulArgs& a, const RouterAhead* ahead) {
    const int64_t ctas = ahead != nullptr ? rows / kWordGroup : std::min<int64_t>(ctx.gpu->info().sm_count, rows);
    if (ahead != nullptr) open_words(*ctx.gpu);
    allow_shared(reinterpret_cast<const void*>(kernel), shared);
    launch(*ctx.gpu, kernel, dim3(static_cast<unsigned>(ctas)), kRow1Threads, static_cast<size_t>(shared), a,
           ahead != nullptr ? *ahead : RouterAhead{});
}

}  // namespace

}  // namespace riptide::ops::cuda::decode
