// Router logits of several rows: float weights without a scale plane times rows that an earlier kernel normalised.
//
// Bytes: the weights once (Laguna XS.2: 1.05 MB), the rows once for each CTA (8 KB a row x 64 CTAs; from L2, 128 KB an
// SM at 16 rows: 1 us). The kernel that serves one row (decode_moe.cu) repeats norm, staging and a route for every row:
// 129 CTAs a row, three waves at eight rows. Here norm, product and choice are three kernels, whatever the number of
// rows. Expected (not yet measured): norm, product and choice 6 us together at 8 rows, 8 at 32. Design: a CTA has four
// experts; warp w accumulator w % 4 of the canonical order (decode_dot.cuh) of two of them, their weights in registers,
// asked for before pdl_wait(). Rows are read straight from device memory, eight at a time.
#include "ops/decode_group.h"

#include "ops/decode_batch.cuh"

namespace riptide::ops::cuda::decode {

namespace {

constexpr int kRouterRows = 8, kRouterSteps = 2, kCtaExperts = 4;

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
#pragma unroll 1
    for (int row0 = 0; row0 < a.n; row0 += kRouterRows) {
        float acc[2][kRouterRows] = {};
#pragma unroll 1
        for (int window = 0; window < windows; ++window) {
            if (windows > 1) load(window);
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
        if (lane % 2 == 0) sums[lane / 4][pair + lane / 2 % 2][part] = sum;
        __syncthreads();
        const int p = threadIdx.x / kCtaExperts, e = threadIdx.x % kCtaExperts;
        if (p < kRouterRows && row0 + p < a.n && static_cast<int>(blockIdx.x) * kCtaExperts + e < a.m.rows) {
            const float* s = sums[p][e];
            a.logits[static_cast<int64_t>(row0 + p) * a.m.rows + blockIdx.x * kCtaExperts + e] =
                ((s[0] + s[1]) + (s[2] + s[3])) * a.m.scale;
        }
        __syncthreads();
    }
}

}  // namespace

void router_logits(Context& ctx, const Weight& router, const char* x, int64_t stride, int64_t n, float* logits) {
    RouterRowsArgs a;
    a.m = matrix_of(router);
    a.x = x;
    a.stride = stride;
    a.n = static_cast<int32_t>(n);
    a.logits = logits;
    launch(*ctx.gpu, router_rows_kernel, dim3(static_cast<unsigned>((router.rows + kCtaExperts - 1) / kCtaExperts)),
           kThreads, 0, a);
}

}  // namespace riptide::ops::cuda::decode
