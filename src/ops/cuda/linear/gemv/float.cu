// Float matrices times rows: float.cuh has the design.
//
// Bytes of Laguna XS.2 in bf16: q, k, v and the gate 42 MB (full layers 34), o 34 MB (25), router 1 MB, head 411 MB;
// floor at 4.65 TB/s 9.1, 7.2, 0.2 and 88 us; fp8 half of it. They are read once for up to eight rows of x. FLOPs: 2
// for each weight and row; an fp8 weight takes 2.5 instructions (half a conversion to f16, one to f32, fma), a bf16 one
// two. Every CTA takes 16 neighbouring rows of the group in turn.
// Measured (H200, 2026-11-22, one row, each op behind itself): q k v gate 11.9 us (76 % of the roof), fp8 8.0 (57 %);
// o 10.3 (70 %), fp8 7.1 (51 %); head 95.0 (93 %), fp8 50.7 (87 %).
// What limited fp8 was instructions: 6.9 a weight, by the profiler, of which 2.75 in the products: looking for the next
// rows in arrays of matrices, and a butterfly for each tile. Columns known to the compiler, addresses of 32 batches
// worked out by the lanes at once, one butterfly for two tiles and no shift between halves of a word: 4.8, all of the
// kernel counted. Now it waits for memory (4.7 of 13 stall cycles) and at the barriers of the norm (2.2).
// Tried: three more tiles of a warp in shared memory before the wait, 160 KB an SM (0.4 us slower, fp8; 1.7 in a first
// version); the same to the L2 cache (0.3 slower on window layers); letting the next kernel start at once: the same.
#include "ops/cuda/linear/shared/float.h"

#include <algorithm>
#include <bit>

#include "ops/cuda/linear/shared/float.cuh"

namespace riptide::ops::cuda::decode {

namespace {

/// Behind attention, which leaves memory idle for 4 us of every layer: 128 KB an SM, 17 MB in all.
constexpr int kAheadOfPlain = 4;

struct FloatMatmulArgs {
    FloatMatrix m[kFloatMatrices];
    int32_t matrices = 0, batches = 0;
    int32_t ahead = 0;  // tiles of a warp that go to the L2 cache while this kernel waits
    ActLayout layout;
    ActSource x;
    float* residual = nullptr;      // [n, rows of m[0]]
    int32_t n = 1, block_rows = 1;  // rows of x; that a CTA stages
};

/// The first row of batch b of all. The last batch of a matrix may begin with rows of the one before it.
__device__ __forceinline__ int first_row(const FloatMatrix& m, int b) {
    return min((b - m.first) * kQuadRows, m.rows - kQuadRows);
}

/// The batches of a quad: all matrices' rows in fours, dealt out to CTAs in groups of kQuads.
struct RowBatches {
    using Rows = FourRows;
    static constexpr bool kEarly = true;
    const FloatMatmulArgs& a;
    int first, step, count, ahead;

    __device__ __forceinline__ int matrix(int k) const {
        int i = 0;
#pragma unroll
        for (int j = 1; j < kFloatMatrices; ++j)
            if (j < a.matrices && first + k * step >= a.m[j].first) i = j;
        return i;
    }
    __device__ __forceinline__ Rows rows(int k, int lane_bytes) const {
        const FloatMatrix& m = a.m[matrix(k)];
        return {m.data + static_cast<int64_t>(first_row(m, first + k * step)) * m.row_bytes + lane_bytes};
    }
    __device__ __forceinline__ uint32_t scale(int k, int g, int piece) const {
        const FloatMatrix& m = a.m[matrix(k)];
        return float_scale(m, 0, first_row(m, first + k * step) + g, piece);
    }
};

template <class Set, int Columns>
__global__ void __launch_bounds__(kFloatThreads, 2) float_row_kernel(const __grid_constant__ FloatMatmulArgs a) {
    extern __shared__ uint4 dynamic[];
    __shared__ float partial[kWarps], olds[kFloatThreads];
    const int t = threadIdx.x, ctas = gridDim.x, first = blockIdx.x * kQuads + t / 128, step = ctas * kQuads;
    const ActLayout l =
        Columns > 0 ? ActLayout{Columns, 0, 0, 4 * Columns} : ActLayout{a.layout.cols, 0, 0, a.layout.float_bytes};
    char* staged = reinterpret_cast<char*>(dynamic);
    auto* norm = reinterpret_cast<float*>(staged + l.float_bytes);
    float* results = norm + a.x.norm_bytes(l.cols) / 4;
    const RowBatches list{a, first, step, first < a.batches ? (a.batches - first + step - 1) / step : 0, a.ahead};
    // Thread t stores the t-th of the CTA's rows, 16 of each round, and every 512th from there.
    const int own_batch = (t / 16 * ctas + static_cast<int>(blockIdx.x)) * kQuads + t / kQuadRows % kQuads;
    multiply_row<Set, Columns>(
        a.m, list,
        [&] {
            const bool normed = a.x.kind == ActKind::norm;
            if (t < kThreads) fetch_norm(a.x, l.cols, norm);
            pdl_wait();
            pdl_trigger();  // behind the wait: the next kernel's loads do not get in the way of what this one waits for
            float old = 0.0f;
            if (a.residual != nullptr && own_batch < a.batches)
                old = load_shared_f32(a.residual + first_row(a.m[0], own_batch) + t % kQuadRows);
            olds[t] = old;  // not in a register: there is none to spare
            if (!normed) {
                stage_plain(reinterpret_cast<const float*>(a.x.rows), l, t, kFloatThreads, staged);
            } else {
                float v[8];
                if (t < kThreads) sum_squares(a.x, l, t, partial, v);
                copy_async_wait();
                __syncthreads();
                if (t < kThreads) put_normed(a.x, l, t, norm, partial, v, staged);
            }
            __syncthreads();
        },
        [] {}, {staged, 0, 1}, results);
    __syncthreads();
#pragma unroll 1
    for (int i = t;; i += kFloatThreads) {
        const int b = (i / 16 * ctas + static_cast<int>(blockIdx.x)) * kQuads + i / kQuadRows % kQuads;
        if (b >= a.batches) break;
        int k = 0;
        while (k + 1 < a.matrices && b >= a.m[k + 1].first) ++k;
        const FloatMatrix& m = a.m[k];
        const int row = first_row(m, b) + i % kQuadRows;
        if (row < (b - m.first) * kQuadRows) continue;
        const float y = __fmul_rn(float_sum(results, i), m.scale);
        m.y[row] = y;
        if (a.residual != nullptr) a.residual[row] = __fadd_rn(i == t ? olds[t] : load_shared_f32(a.residual + row), y);
    }
}

/// The same for more rows of x, P of them at a time (blockIdx.y): the weights are read once for those. Sums for P rows
/// take registers, so that the next kernel finds no room beside this one.
template <class Set, int P>
__global__ void __launch_bounds__(kFloatThreads, 1) float_rows_kernel(const __grid_constant__ FloatMatmulArgs a) {
    extern __shared__ uint4 dynamic[];
    __shared__ float partial[2][2][kWarps];
    const int t = threadIdx.x, ctas = gridDim.x, first = blockIdx.x * kQuads + t / 128, step = ctas * kQuads;
    const int row0 = blockIdx.y * P, count = min(P, a.n - row0);
    const ActLayout l{a.layout.cols, 0, 0, a.layout.float_bytes};
    char* staged = reinterpret_cast<char*>(dynamic);
    auto* norm = reinterpret_cast<float*>(staged + a.block_rows * l.float_bytes);
    float* results = norm + a.x.norm_bytes(l.cols) / 4;
    const RowBatches list{a, first, step, first < a.batches ? (a.batches - first + step - 1) / step : 0, 0};
    multiply_quad<Set, P>(
        a.m, list,
        [&] {
            const int half = t / kThreads, u = t % kThreads;
            if (half == 0) fetch_norm(a.x, l.cols, norm, u);
            pdl_wait();
            pdl_trigger();
            const char* from = a.x.rows + row0 * a.x.stride;
            if (a.x.kind == ActKind::staged) {
                copy_staged(from, count * l.float_bytes, t, kFloatThreads, staged);
            } else if (a.x.kind == ActKind::norm) {
                copy_async_wait();
#pragma unroll 1
                for (int p = half; p - half < count; p += 2) {  // two rows at a time, a half of the CTA each
                    ActSource x = a.x;
                    x.rows = from + p * a.x.stride;
                    float* const sums = partial[half][p / 2 % 2];
                    float v[8];
                    if (p < count) sum_squares(x, l, u, sums, v);
                    __syncthreads();
                    if (p < count) put_normed(x, l, u, norm, sums, v, staged + p * l.float_bytes);
                }
            } else {
#pragma unroll 1
                for (int p = 0; p < count; ++p)
                    stage_plain(reinterpret_cast<const float*>(from + p * a.x.stride), l, t, kFloatThreads,
                                staged + p * l.float_bytes);
            }
            __syncthreads();
        },
        {staged, l.float_bytes, count}, results);
    __syncthreads();
#pragma unroll 1
    for (int i = t;; i += kFloatThreads) {
        const int b = (i / 16 * ctas + static_cast<int>(blockIdx.x)) * kQuads + i / kQuadRows % kQuads;
        if (b >= a.batches) break;
        int k = 0;
        while (k + 1 < a.matrices && b >= a.m[k + 1].first) ++k;
        const FloatMatrix& m = a.m[k];
        const int row = first_row(m, b) + i % kQuadRows;
        if (row < (b - m.first) * kQuadRows) continue;
#pragma unroll 1
        for (int p = 0; p < count; ++p) {
            const int64_t at = static_cast<int64_t>(row0 + p) * m.rows + row;
            const float y = __fmul_rn(float_sum(results, P * i + p), m.scale);
            m.y[at] = y;
            if (a.residual != nullptr) a.residual[at] = __fadd_rn(load_shared_f32(a.residual + at), y);
        }
    }
}

/// Shifts an index below `all` to that of its entry, `share` of which are alike (float_matrix()).
int share_shift(int share, int all) {
    if (share >= all) return 31;
    return std::countr_zero(static_cast<uint32_t>(share));
}

}  // namespace

bool float_matrix(const Matrix& m) {
    return linear::float_matrix(m.type, m.scales != nullptr, m.rows, m.cols, m.scale_rows, m.scale_cols);
}

FloatMatrix float_matrix_of(const Matrix& m) {
    FloatMatrix f;
    f.data = m.data;
    f.scales = m.scales;
    f.stride = m.data_stride;
    f.scale_stride = m.scale_stride;
    f.y = m.y;
    f.rows = m.rows;
    f.row_bytes = static_cast<int32_t>(m.row_bytes);
    f.pieces = (m.cols + piece_columns(m.type) - 1) / piece_columns(m.type);
    f.windows = (f.pieces + kWindowPieces - 1) / kWindowPieces;
    f.row_shift = share_shift(m.scale_rows, m.rows);
    f.column_shift = share_shift(m.scale_cols, m.cols);
    f.scale_row_bytes = m.scales_per_row * (m.scale_type == DType::f32 ? 4 : 2);
    f.scale = m.scale;
    f.type = m.type;
    f.scale_type = m.scale_type;
    return f;
}

void allow_beside_static(const void* kernel, int64_t bytes) {
    constexpr int64_t kAsked = 45 << 10;  // above what allow_shared() leaves alone: 48 KB with the static memory
    allow_shared(kernel, std::max(bytes, kAsked));
}

int64_t float_shared(const Gpu& gpu, int64_t need, bool large) { return float_shared(chip_of(gpu), need, large); }

namespace {

using FloatMatmulKernel = void (*)(FloatMatmulArgs);

template <class Set>
FloatMatmulKernel rows_kernel(int p) {
    return p == 2 ? float_rows_kernel<Set, 2> : p == 4 ? float_rows_kernel<Set, 4> : float_rows_kernel<Set, 8>;
}

template <class Set>
FloatMatmulKernel row_kernel(int columns) {
    if constexpr (Set::kType == DType::bf16)
        if (columns == 1024) return float_row_kernel<Set, 1024>;
    return columns == 2048   ? float_row_kernel<Set, 2048>
           : columns == 6144 ? float_row_kernel<Set, 6144>
           : columns == 8192 ? float_row_kernel<Set, 8192>
                             : float_row_kernel<Set, 0>;
}

/// One CTA an SM; two for the head, behind which no weights wait to be fetched.
void launch_row(Context& ctx, FloatMatmulArgs& a, bool bf16, bool f8) {
    const auto fit = fit_float_row(chip_of(*ctx.gpu), a.layout.cols, a.x.kind, a.batches);
    RT_ASSERT(fit);
    a.ahead = a.x.kind == ActKind::plain ? kAheadOfPlain : 0;
    const auto all = [&](auto&& f) { return std::all_of(a.m, a.m + a.matrices, f); };
    const bool plain = all([](const FloatMatrix& m) { return m.scales == nullptr; });
    const bool dense = all([&](const FloatMatrix& m) { return m.row_bytes == a.layout.cols * (f8 ? 1 : 2); });
    const FloatMatmulKernel kernel = bf16          ? row_kernel<OneFloat<DType::bf16>>(dense ? a.layout.cols : 0)
                                     : f8 && plain ? row_kernel<PlainFloat8>(dense ? a.layout.cols : 0)
                                     : f8          ? float_row_kernel<OneFloat<DType::f8_e4m3>, 0>
                                                   : float_row_kernel<AllFloats, 0>;
    allow_beside_static(reinterpret_cast<const void*>(kernel), fit->shared);
    launch(*ctx.gpu, kernel, dim3(static_cast<unsigned>(fit->ctas)), kFloatThreads, static_cast<size_t>(fit->shared),
           a);
}

void launch_rows(Context& ctx, FloatMatmulArgs& a, bool bf16, bool f8) {
    const auto fit = fit_float_rows(chip_of(*ctx.gpu), a.layout.cols, a.x.kind, a.n, a.batches, bf16 || f8);
    RT_ASSERT(fit);
    const int p = fit->rows;
    a.block_rows = std::min(p, a.n);
    if (a.n > 4) a.x = prepare_rows(ctx, a.x, a.layout, a.n);
    const FloatMatmulKernel kernel = bf16     ? rows_kernel<OneFloat<DType::bf16>>(p)
                                     : f8     ? rows_kernel<OneFloat<DType::f8_e4m3>>(p)
                                     : p == 4 ? float_rows_kernel<AllFloats, 4>
                                              : float_rows_kernel<AllFloats, 2>;
    allow_beside_static(reinterpret_cast<const void*>(kernel), fit->shared);
    launch(*ctx.gpu, kernel, dim3(static_cast<unsigned>(fit->ctas), static_cast<unsigned>((a.n + p - 1) / p)),
           kFloatThreads, static_cast<size_t>(fit->shared), a);
}

}  // namespace

void float_multiply(Context& ctx, const ActSource& x, int64_t cols, int64_t n, std::span<const Weight* const> weights,
                    std::span<const Tensor> y, Tensor* residual) {
    RT_ASSERT(weights.size() <= kFloatMatrices && (x.kind == ActKind::plain || x.kind == ActKind::norm));
    FloatMatmulArgs a;
    bool bf16 = true, f8 = true;
    for (const Weight* w : weights) {
        FloatMatrix& m = a.m[a.matrices] = float_matrix_of(matrix_of(*w));
        m.y = y[static_cast<size_t>(a.matrices++)].row(0);
        m.first = a.batches;
        a.batches += (m.rows + kQuadRows - 1) / kQuadRows;
        bf16 = bf16 && m.type == DType::bf16;
        f8 = f8 && m.type == DType::f8_e4m3;
    }
    a.layout = act_layout(cols, false, true);
    a.x = x;
    a.n = static_cast<int32_t>(n);
    a.residual = residual == nullptr ? nullptr : residual->row(0);
    if (n == 1) launch_row(ctx, a, bf16, f8);
    else launch_rows(ctx, a, bf16, f8);
}

}  // namespace riptide::ops::cuda::decode
