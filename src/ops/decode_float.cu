// Float matrices times one row: decode_float.cuh has the design.
//
// Bytes of Laguna XS.2 in bf16 at one row: q, k, v and the gate 42 MB (full layers 34), o 34 MB (25), router 1 MB, head
// 411 MB; floor at 4.65 TB/s 9.1, 7.2, 0.2 and 88 us; fp8 half of it. FLOPs: 2 for each weight; an fp8 weight takes
// about three instructions (conversion to f16 pairs, to f32, fma): 0.2 ms a token over all SMs, of 0.6 for its bytes.
// The general kernels (decode_matmul.cuh) took 3.5 ms a token for either type: 1 to 2 rows a warp at a time, and no
// loads under way while they were computed and added up. Every CTA takes 16 neighbouring rows of the group in turn.
// Not yet measured.
#include "ops/decode_float.h"

#include <algorithm>
#include <bit>

#include "ops/decode_float.cuh"
#include "ops/decode_route.cuh"

namespace riptide::ops::cuda::decode {

namespace {

constexpr int kFloatMatrices = 4;
constexpr int kMostRounds = 64;  // batches of a quad, whose sums a CTA keeps in shared memory

struct FloatMatmulArgs {
    FloatMatrix m[kFloatMatrices];
    int32_t matrices = 0, batches = 0;
    ActLayout layout;
    ActSource x;
    float* residual = nullptr;  // [rows of m[0]]
};

/// The first row of batch b of all. The last batch of a matrix may begin with rows of the one before it.
__device__ __forceinline__ int first_row(const FloatMatrix& m, int b) {
    return min((b - m.first) * kQuadRows, m.rows - kQuadRows);
}

/// The batches of a quad: all matrices' rows in fours, dealt out to CTAs in groups of kQuads.
struct RowBatches {
    using Rows = FourRows;
    const FloatMatmulArgs& a;
    int first, step, count;

    __device__ __forceinline__ int matrix(int k) const {
        int i = 0;
#pragma unroll
        for (int j = 1; j < kFloatMatrices; ++j)
            if (j < a.matrices && first + k * step >= a.m[j].first) i = j;
        return i;
    }
    __device__ __forceinline__ bool early(int) const { return true; }
    __device__ __forceinline__ Rows rows(int k, int lane_bytes) const {
        const FloatMatrix& m = a.m[matrix(k)];
        return {m.data + static_cast<int64_t>(first_row(m, first + k * step)) * m.row_bytes + lane_bytes};
    }
    __device__ __forceinline__ uint32_t scale(int k, int g, int piece) const {
        const FloatMatrix& m = a.m[matrix(k)];
        return float_scale(m, 0, first_row(m, first + k * step) + g, piece);
    }
};

template <class Set>
__global__ void __launch_bounds__(kFloatThreads, 2) float_row_kernel(const __grid_constant__ FloatMatmulArgs a) {
    extern __shared__ uint4 dynamic[];
    __shared__ float partial[kWarps], olds[kFloatThreads];
    const int t = threadIdx.x, ctas = gridDim.x, first = blockIdx.x * kQuads + t / 128, step = ctas * kQuads;
    char* staged = reinterpret_cast<char*>(dynamic);
    auto* norm = reinterpret_cast<float*>(staged + a.layout.float_bytes);
    float* results = norm + a.x.norm_bytes(a.layout.cols) / 4;
    const ActLayout l{a.layout.cols, 0, 0, a.layout.float_bytes};
    const RowBatches list{a, first, step, first < a.batches ? (a.batches - first + step - 1) / step : 0};
    // Thread t stores the t-th of the CTA's rows, 16 of each round, and every 512th from there.
    const int own_batch = (t / 16 * ctas + static_cast<int>(blockIdx.x)) * kQuads + t / kQuadRows % kQuads;
    multiply_quad<Set>(
        a.m, list,
        [&] {
            const bool normed = a.x.kind == ActKind::norm;
            if (t < kThreads) fetch_norm(a.x, l.cols, norm);
            pdl_wait();
            pdl_trigger();  // behind the wait: the next kernel's loads do not get in the way of what this one waits for
            float old = 0.0f;
            if (a.residual != nullptr && own_batch < a.batches)
                old = load_shared_f32(a.residual + first_row(a.m[0], own_batch) + t % kQuadRows);
            if (!normed) stage_plain(reinterpret_cast<const float*>(a.x.rows), l, t, kFloatThreads, staged);
            else if (t < kThreads) stage_normed(a.x, l, t, norm, partial, staged, PartOfCta{1});
            olds[t] = old;  // not in a register: there is none to spare
            __syncthreads();
        },
        staged, results);
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

/// Shifts an index below `all` to that of its entry, `share` of which are alike; -1: no shift does.
int share_shift(int share, int all) {
    if (share >= all) return 31;
    return std::has_single_bit(static_cast<uint32_t>(share)) ? std::countr_zero(static_cast<uint32_t>(share)) : -1;
}

}  // namespace

bool float_matrix(const Matrix& m) {
    if (m.type != DType::f32 && m.type != DType::f16 && m.type != DType::bf16 && m.type != DType::f8_e4m3) return false;
    if (m.scales == nullptr) return true;
    return m.type == DType::f8_e4m3 && share_shift(m.scale_rows, m.rows) >= 0 &&
           (m.scale_cols >= m.cols || (m.scale_cols >= 64 && share_shift(m.scale_cols, m.cols) >= 0));
}

bool float_matrix(const Weight& w) { return !is_planes(w.dtype) && float_matrix(matrix_of(w)); }

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

int64_t float_shared(const Gpu& gpu, int64_t need, bool large) {
    constexpr int64_t kLarge = 116 << 10, kSmall = 48 << 10, kStatic = 16 << 10;  // see decode_lean.cuh
    const int64_t most = gpu.info().shared_bytes - kStatic;
    if (need > most) return 0;
    const int64_t want = !gpu.programmatic() ? 0 : large ? kLarge : kSmall;
    return std::max(need, std::min(want, most));
}

bool float_multiply(Context& ctx, const ActSource& x, int64_t cols, std::span<const Weight* const> weights,
                    std::span<Tensor> y, Tensor* residual) {
    if (weights.size() > kFloatMatrices || (x.kind != ActKind::plain && x.kind != ActKind::norm)) return false;
    FloatMatmulArgs a;
    bool bf16 = true, f8 = true;
    for (const Weight* w : weights) {
        if (!float_matrix(*w) || w->rows < kQuadRows) return false;
        FloatMatrix& m = a.m[a.matrices] = float_matrix_of(matrix_of(*w));
        m.y = y[static_cast<size_t>(a.matrices++)].row(0);
        m.first = a.batches;
        a.batches += (m.rows + kQuadRows - 1) / kQuadRows;
        bf16 = bf16 && m.type == DType::bf16;
        f8 = f8 && m.type == DType::f8_e4m3;
    }
    if (a.batches == 0) return false;
    a.layout = act_layout(cols, false, true);
    a.x = x;
    a.residual = residual == nullptr ? nullptr : residual->row(0);
    // One CTA an SM; two for the head, behind which no weights wait to be fetched.
    const int64_t groups = (a.batches + kQuads - 1) / kQuads, sms = ctx.gpu->info().sm_count;
    const bool huge = groups > 16 * sms;
    const int64_t ctas = std::max(std::min((huge ? 2 : 1) * sms, groups), (groups + kMostRounds - 1) / kMostRounds);
    const int64_t rounds = (groups + ctas - 1) / ctas;
    const int64_t shared = float_shared(
        *ctx.gpu,
        a.layout.bytes() + x.norm_bytes(a.layout.cols) + rounds * kQuads * kQuadRows * int64_t{sizeof(float4)},
        !huge && 2 * ctas > sms);
    if (shared == 0) return false;
    const auto kernel = bf16 ? float_row_kernel<OneFloat<DType::bf16>>
                        : f8 ? float_row_kernel<OneFloat<DType::f8_e4m3>>
                             : float_row_kernel<AllFloats>;
    allow_shared(reinterpret_cast<const void*>(kernel), shared);
    launch(*ctx.gpu, kernel, dim3(static_cast<unsigned>(ctas)), kFloatThreads, static_cast<size_t>(shared), a);
    return true;
}

}  // namespace riptide::ops::cuda::decode
