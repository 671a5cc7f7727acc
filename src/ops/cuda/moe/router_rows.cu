// Router logits of several rows: float weights without a scale plane times rows that an earlier kernel normalised, or
// (up to 8; any number if the router has words, router_words.h) are normalised here.
//
// Bytes: the weights (Laguna XS.2: 1.05 MB) once for every four rows, the rows once for each four experts (8 KB a row x
// 64 CTAs); all but the first from L2: 12 MB at 16 rows, 2 us. The kernel that serves one row (moe_decode.cu) repeats
// norm, staging and a route for every row: 129 CTAs a row, three waves at eight rows. Here norm, product and choice are
// three kernels, whatever the number of rows. Design: a CTA has four experts and four rows; warp w accumulator w % 4 of
// the canonical order (dot.cuh) of two experts, their weights in registers, asked for before pdl_wait(). Rows
// are read straight from device memory; up to 8 are normalised by each CTA for itself instead, and their experts
// chosen by the kernels that use them (experts_grouped_sm80.cuh): two launches and 3 us fewer at 3 to 8 rows. Tried:
// all rows of a step in one CTA, eight at a time: 7 us at 16 rows, 20 at 64. From 64 rows on CTAs of eight rows and
// eight experts: half as much from L2 (128 rows: 100 to 50 MB, sparse layers 5 us less; 32 rows: 1 us more).
#include "ops/cuda/moe/experts_grouped_sm80.h"

#include <algorithm>
#include <type_traits>

#include "ops/cuda/linear/gemv/kquant_i8.cuh"
#include "ops/cuda/linear/shared/dot_batch.cuh"
#include "ops/cuda/linear/shared/router_words.cuh"
#include "ops/cuda/moe/route.cuh"
#include "ops/cuda/moe/share.cuh"

namespace riptide::ops::cuda::decode {

namespace {

constexpr int64_t kManyRouterRows = 64;  // from here on a CTA has eight rows and eight experts
constexpr int kRouterRows = 4, kRouterSteps = 2, kCtaExperts = 4, kFusedCols = 8 * kThreads;
constexpr int64_t kManyShared = 72 << 10;  // of such a CTA that normalises, at least

struct RouterRowsArgs {
    Matrix m;
    const char* x;   // float parts of staged rows; Fused: rows to be normalised
    int64_t stride;  // bytes from row to row
    int32_t n;
    float* logits;  // [n, m.rows]
    // Fused, Words:
    const float* norm;
    float eps;
    char* out;  // the rows normalised and quantised, by one more CTA for each kRouterRows rows
    ActLayout layout;
    RouteArgs route;
    uint32_t* keys;    // [n, m.rows]: route_key() of what experts are chosen by
    uint64_t* listed;  // [n / 8 up, kMostRows8Groups], set to ones, or null
};

/// Rows row0 .. row0 + count - 1 of kFusedCols columns, normalised (block_rms_scale), to `out`, `stride` bytes apart.
/// weights: of this thread's columns. partial: kRows * kWarps floats. scales: null, or rows are only multiplied by the
/// weights, and scales[kRows] get r of router_words.h. chains: null, or the logits of the rows' share are left, too
/// (share.cuh).
template <int kRows>
__device__ __forceinline__ void stage_normed(const RouterRowsArgs& a, const ActLayout& layout, int row0, int count,
                                             const float (&weights)[8], char* out, int64_t stride, float* partial,
                                             float* scales, float* chains) {
    const int thread = threadIdx.x;
    float v[kRows][8];
#pragma unroll
    for (int p = 0; p < kRows; ++p)
        load8(reinterpret_cast<const float*>(a.x + (row0 + min(p, count - 1)) * a.stride), thread, kFusedCols, v[p]);
#pragma unroll
    for (int p = 0; p < kRows; ++p) {
        const float squares = add_squares(v[p], 0.0f);
        const float sum = scales != nullptr ? pairwise_sum(squares) : warp_sum(squares);
        if (thread % 32 == 0) partial[p * kWarps + thread / 32] = sum;
    }
    __syncthreads();
#pragma unroll
    for (int p = 0; p < kRows; ++p) {
        if (p >= count) break;
        if (scales != nullptr) {
            if (thread == 0) scales[p] = ops::rms_scale(pairwise_sum8(partial + p * kWarps), kFusedCols, a.eps);
#pragma unroll
            for (int i = 0; i < 8; ++i) v[p][i] = __fmul_rn(weights[i], v[p][i]);
        } else {
            const float scale = row_scale(partial + p * kWarps, kFusedCols, a.eps);
#pragma unroll
            for (int i = 0; i < 8; ++i) v[p][i] = rms_value(v[p][i], scale, weights[i]);
        }
        put8(layout, out + p * stride, thread, v[p]);
        if (chains == nullptr) continue;
        const float logit =
            share_logit(a.route.share, v[p], thread, chains, chains + kShareChains, [] { __syncthreads(); });
        if (thread == 0) a.route.share_logits[row0 + p] = logit;
    }
    __syncthreads();
}

/// The sums over the lanes of a warp whose number is even, or odd as the lane's own: that of v[lane >> (5 - log2 V)].
template <int V>
__device__ __forceinline__ uint64_t add_words(uint64_t (&v)[V], int lane) {
    int n = V;
#pragma unroll
    for (int mask = 16; mask > 1; mask /= 2) {
        const bool high = (lane & mask) != 0;
        if (n == 1) {
            v[0] += __shfl_xor_sync(~0u, v[0], mask);
            continue;
        }
        n /= 2;
#pragma unroll
        for (int i = 0; i < V / 2; ++i) {
            if (i >= n) break;
            const uint64_t other = __shfl_xor_sync(~0u, high ? v[i] : v[i + n], mask);
            v[i] = (high ? v[i + n] : v[i]) + other;
        }
    }
    return v[0];
}

enum class RouterRows {
    plain,  // rows are normalised
    fused,  // here
    words,  // here, and the law is that of router_words.h
};

/// kRows rows of x and kEach experts a warp.
template <RouterRows Kind, int kRows = kRouterRows, int kEach = 2>
__global__ void __launch_bounds__(kThreads, 2) router_rows_kernel(const __grid_constant__ RouterRowsArgs a) {
    constexpr bool Fused = Kind != RouterRows::plain, Words = Kind == RouterRows::words;
    constexpr int kCtaExperts = 2 * kEach;
    extern __shared__ uint4 dynamic[];  // Fused: float rows
    __shared__ std::conditional_t<Words, uint64_t, float> sums[kRows][kCtaExperts][4];
    __shared__ float partial[kRows * kWarps];
    [[maybe_unused]] __shared__ float scales[kRows];
    pdl_trigger();
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, part = warp % 4, first = warp / 4 * kEach;
    const int expert = blockIdx.x * kCtaExperts + first, pieces = pieces_of(a.m);
    [[maybe_unused]] const int windows = (pieces + 128 * kRouterSteps - 1) / (128 * kRouterSteps);
    uint32_t raw[kEach][kRouterSteps][4];
    const auto piece = [&](int window, int s) { return ((window * kRouterSteps + s) * 4 + part) * 32 + lane; };
    const auto load = [&](int window) {
#pragma unroll
        for (int e = 0; e < kEach; ++e)
#pragma unroll
            for (int s = 0; s < kRouterSteps; ++s) {
                const int c = piece(window, s);
                raw[e][s][0] = raw[e][s][1] = raw[e][s][2] = raw[e][s][3] = 0;
                if (c < pieces && expert + e < a.m.rows) load_piece(a.m, 0, expert + e, c, raw[e][s]);
            }
    };
    load(0);
    float weights[8];
    if constexpr (Fused) row1_weights8(a.norm, threadIdx.x, weights);
    pdl_wait();
    const int row0 = blockIdx.y * kRows;
    constexpr int kEight = SparseShape512::kRows8;
    if (Fused && blockIdx.x == 0 && row0 % kEight == 0 && a.listed != nullptr && threadIdx.x < kMostRows8Groups)
        a.listed[row0 / kEight * kMostRows8Groups + threadIdx.x] = ~uint64_t{0};
    const char* x = a.x + row0 * a.stride;
    int64_t stride = a.stride;
    if constexpr (Fused) {
        const bool prepares = blockIdx.x == gridDim.x - 1;
        const ActLayout layout = prepares ? a.layout : ActLayout{kFusedCols, kFusedCols / 32, 0, 4 * kFusedCols};
        x = reinterpret_cast<const char*>(dynamic);
        stride = 4 * kFusedCols;
        stage_normed<kRows>(a, layout, row0, min(kRows, a.n - row0), weights,
                            prepares ? a.out + row0 * int64_t{a.layout.bytes()} : reinterpret_cast<char*>(dynamic),
                            layout.bytes(), partial, Words && !prepares ? scales : nullptr,
                            prepares && a.route.share != nullptr ? reinterpret_cast<float*>(dynamic) : nullptr);
        if (prepares) return;
    }
    const int p = threadIdx.x / kCtaExperts, expert_of = blockIdx.x * kCtaExperts + threadIdx.x % kCtaExperts;
    const auto leave = [&](float logit) {
        const int64_t at = static_cast<int64_t>(row0 + p) * a.m.rows + expert_of;
        a.logits[at] = logit;
        if (!Fused || a.keys == nullptr) return;
        const float score = route_score(a.route.softmax, logit);
        a.keys[at] = route_key(a.route.bias == nullptr ? score : __fadd_rn(score, a.route.bias[expert_of]));
    };
    if constexpr (Words) {
        // A piece is half a group; lanes 2 i and 2 i + 1 have its halves, and each the sums of every other row.
        constexpr int kDuos = kRows / 2, kValues = kEach * kDuos, kLanes = 32 / kValues;
        uint64_t words[kValues] = {};
        const bool odd = lane % 2 != 0;
#pragma unroll
        for (int s = 0; s < kRouterSteps; ++s)
#pragma unroll
            for (int e = 0; e < kEach; ++e) {
                float half[kRows] = {};
                dot_piece<kRows>(std::integral_constant<DType, DType::bf16>(), piece(0, s), 0, raw[e][s], PiecePlane{},
                                 0, x, static_cast<int>(stride), a.n - row0, half);
#pragma unroll
                for (int d = 0; d < kDuos; ++d) {
                    const float other = __shfl_xor_sync(~0u, odd ? half[2 * d] : half[2 * d + 1], 1);
                    words[e * kDuos + d] += word_of(__fadd_rn(odd ? half[2 * d + 1] : half[2 * d], other));
                }
            }
        const uint64_t sum = add_words<kValues>(words, lane);
        const int value = lane / kLanes;
        if (lane % kLanes < 2) sums[value % kDuos * 2 + lane % 2][first + value / kDuos][part] = sum;
        __syncthreads();
        if (p >= kRows || row0 + p >= a.n) return;
        const uint64_t* const four = sums[p][threadIdx.x % kCtaExperts];
        leave(logit_of(four[0] + four[1] + four[2] + four[3], scales[p]));
    } else {
        float acc[kEach][kRows] = {};
#pragma unroll 1
        for (int window = 0; window < windows; ++window) {
            if (window > 0) load(window);
            with_float_type<PlainFloats>(a.m.type, [&](auto type) {
#pragma unroll
                for (int s = 0; s < kRouterSteps; ++s)
#pragma unroll
                    for (int e = 0; e < kEach; ++e) {
                        const int c = piece(window, s);
                        if (c < pieces)
                            dot_piece<kRows>(type, c, 0, raw[e][s], PiecePlane{}, 0, x, static_cast<int>(stride),
                                             a.n - row0, acc[e]);
                    }
            });
        }
        float v[kEach * kRows];
#pragma unroll
        for (int i = 0; i < kEach * kRows; ++i) v[i] = acc[i % kEach][i / kEach];
        const float sum = reduce_lanes<kEach * kRows>(v, lane);
        constexpr int kLanes = 32 / (kEach * kRows);  // that hold the same sum
        if (lane % kLanes == 0) sums[lane / kLanes / kEach][first + lane / kLanes % kEach][part] = sum;
        __syncthreads();
        if (p >= kRows || row0 + p >= a.n || expert_of >= a.m.rows) return;
        const float* s = sums[p][threadIdx.x % kCtaExperts];
        leave(((s[0] + s[1]) + (s[2] + s[3])) * a.m.scale);
    }
}

/// One row a CTA.
__global__ void __launch_bounds__(kThreads)
    moe_choose_kernel(const __grid_constant__ RouteArgs a, const float* logits) {
    __shared__ RouteMemory memory;
    pdl_trigger();
    pdl_wait();
    route_row(a, logits + static_cast<int64_t>(blockIdx.x) * a.experts, blockIdx.x, memory);
}

}  // namespace

void choose_experts(Context& ctx, const RouteArgs& a, const float* logits, int64_t n) {
    launch(*ctx.gpu, moe_choose_kernel, dim3(static_cast<unsigned>(n)), kThreads, 0, a, logits);
}

void router_logits(Context& ctx, const Weight& router, const char* x, int64_t stride, int64_t n, float* logits) {
    RouterRowsArgs a = {};
    a.m = matrix_of(router);
    a.x = x;
    a.stride = stride;
    a.n = static_cast<int32_t>(n);
    a.logits = logits;
    const auto start = [&](auto kernel, int64_t experts, int64_t rows) {
        launch(*ctx.gpu, kernel,
               dim3(static_cast<unsigned>((router.rows + experts - 1) / experts),
                    static_cast<unsigned>((n + rows - 1) / rows)),
               kThreads, 0, a);
    };
    if (n >= kManyRouterRows) start(router_rows_kernel<RouterRows::plain, 8, 4>, 8, 8);
    else start(router_rows_kernel<RouterRows::plain>, kCtaExperts, kRouterRows);
}

ActSource fused_router(Context& ctx, const Weight& router, const ActSource& x, const ActLayout& layout, int64_t n,
                       const RouteArgs& route, bool words, float* logits, uint32_t* keys, uint64_t* listed) {
    RT_ASSERT(router.cols == kFusedCols && x.kind == ActKind::norm && (words || n <= kMostFusedRouterRows));
    ActSource prepared;
    prepared.kind = ActKind::staged;
    prepared.stride = layout.bytes();
    auto* out = static_cast<char*>(ctx.arena->allocate(n * prepared.stride));
    prepared.rows = out;
    RouterRowsArgs a = {};
    a.m = matrix_of(router);
    a.x = x.rows;
    a.stride = x.stride;
    a.n = static_cast<int32_t>(n);
    a.logits = logits;
    a.norm = x.norm;
    a.eps = x.eps;
    a.out = out;
    a.layout = layout;
    a.route = route;
    a.keys = keys;
    a.listed = listed;
    const auto start = [&](auto kernel, int64_t experts, int64_t rows) {
        const int64_t shared = std::min(n, rows) * 4 * kFusedCols;
        allow_shared(reinterpret_cast<const void*>(kernel), shared);
        launch(*ctx.gpu, kernel,
               dim3(static_cast<unsigned>((router.rows + experts - 1) / experts + 1),
                    static_cast<unsigned>((n + rows - 1) / rows)),
               kThreads, static_cast<size_t>(shared), a);
    };
    const bool many = n >= kManyRouterRows && ctx.gpu->info().shared_bytes >= kManyShared;
    if (words && many) start(router_rows_kernel<RouterRows::words, 8, 4>, 8, 8);
    else if (words) start(router_rows_kernel<RouterRows::words>, kCtaExperts, kRouterRows);
    else start(router_rows_kernel<RouterRows::fused>, kCtaExperts, kRouterRows);
    return prepared;
}

}  // namespace riptide::ops::cuda::decode
