// Router logits of several rows: float weights without a scale plane times rows that an earlier kernel normalised.
//
// Bytes: the weights (Laguna XS.2: 1.05 MB) once for every four rows, the rows once for each four experts (8 KB a row x
// 64 CTAs); all but the first from L2: 12 MB at 16 rows, 2 us. The kernel that serves one row (decode_moe.cu) repeats
// norm, staging and a route for every row: 129 CTAs a row, three waves at eight rows. Here norm, product and choice are
// three kernels, whatever the number of rows. Design: a CTA has four experts and four rows; warp w accumulator w % 4 of
// the canonical order (decode_dot.cuh) of two experts, their weights in registers, asked for before pdl_wait(). Rows
// are read straight from device memory. Tried: all rows of a step in one CTA, eight at a time: 7 us at 16 rows, 20
// at 64.
#include "ops/decode_group.h"

#include "ops/decode_batch.cuh"
#include "ops/decode_route.cuh"

namespace riptide::ops::cuda::decode {

namespace {

constexpr int kRouterRows = 4, kRouterSteps = 2, kCtaExperts = 4;

struct RouterRowsArgs {
    Matrix m;
    const char* x;   // float parts of staged rows
    int64_t stride;  // bytes from row to row
    int32_t n;
    float* logits;  // [n, m.rows]
};

__global__ void __launch_bounds__(kThreads) router_rows_kernel(const __grid_constant__ RouterRowsArgs a) {
    __shared__ float sums[kRouterRows][kCtaExperts][4];
    pdl_trigger();
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, part = warp % 4, pair = warp / 4 * 2;
    const int expert = blockIdx.x * kCtaExperts + pair, pieces = pieces_of(a.m);
    const int windows = (pieces + 128 * kRouterSteps - 1) / (128 * kRouterSteps);
    uint32_t raw[2][kRouterSteps][4];
    const auto piece = [&](int window, int s) { return ((window * kRouterSteps + s) * 4 + part) * 32 + lane; };
    const auto load = [&](int window) {
#pragma unroll
        for (int e = 0; e < 2; ++e)
#pragma unroll
            for (int s = 0; s < kRouterSteps; ++s) {
                const int c = piece(window, s);
                raw[e][s][0] = raw[e][s][1] = raw[e][s][2] = raw[e][s][3] = 0;
                if (c < pieces && expert + e < a.m.rows) load_piece(a.m, 0, expert + e, c, raw[e][s]);
            }
    };
    load(0);
    pdl_wait();
    const int row0 = blockIdx.y * kRouterRows;
    float acc[2][kRouterRows] = {};
#pragma unroll 1
    for (int window = 0; window < windows; ++window) {
        if (window > 0) load(window);
        with_float_type<PlainFloats>(a.m.type, [&](auto type) {
#pragma unroll
            for (int s = 0; s < kRouterSteps; ++s)
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    const int c = piece(window, s);
                    if (c < pieces)
                        dot_piece<kRouterRows>(type, c, 0, raw[e][s], PiecePlane{}, 0, a.x + row0 * a.stride,
                                               static_cast<int>(a.stride), a.n - row0, acc[e]);
                }
        });
    }
    float v[2 * kRouterRows];
#pragma unroll
    for (int i = 0; i < 2 * kRouterRows; ++i) v[i] = acc[i % 2][i / 2];
    const float sum = reduce_lanes<2 * kRouterRows>(v, lane);
    constexpr int kLanes = 32 / (2 * kRouterRows);  // that hold the same sum
    if (lane % kLanes == 0) sums[lane / kLanes / 2][pair + lane / kLanes % 2][part] = sum;
    __syncthreads();
    const int p = threadIdx.x / kCtaExperts, expert_of = blockIdx.x * kCtaExperts + threadIdx.x % kCtaExperts;
    if (p < kRouterRows && row0 + p < a.n && expert_of < a.m.rows) {
        const float* s = sums[p][threadIdx.x % kCtaExperts];
        a.logits[static_cast<int64_t>(row0 + p) * a.m.rows + expert_of] = ((s[0] + s[1]) + (s[2] + s[3])) * a.m.scale;
    }
}

/// One row a CTA.
__global__ void __launch_bounds__(kThreads) choose_kernel(const __grid_constant__ RouteArgs a, const float* logits) {
    __shared__ RouteMemory memory;
    pdl_trigger();
    pdl_wait();
    route_row(a, logits + static_cast<int64_t>(blockIdx.x) * a.experts, blockIdx.x, memory);
}

}  // namespace

void choose_experts(Context& ctx, const RouteArgs& a, const float* logits, int64_t n) {
    launch(*ctx.gpu, choose_kernel, dim3(static_cast<unsigned>(n)), kThreads, 0, a, logits);
}

void router_logits(Context& ctx, const Weight& router, const char* x, int64_t stride, int64_t n, float* logits) {
    RouterRowsArgs a;
    a.m = matrix_of(router);
    a.x = x;
    a.stride = stride;
    a.n = static_cast<int32_t>(n);
    a.logits = logits;
    launch(*ctx.gpu, router_rows_kernel,
           dim3(static_cast<unsigned>((router.rows + kCtaExperts - 1) / kCtaExperts),
                static_cast<unsigned>((n + kRouterRows - 1) / kRouterRows)),
           kThreads, 0, a);
}

}  // namespace riptide::ops::cuda::decode
