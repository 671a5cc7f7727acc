// The rows of prompts before they meet the state of Gated DeltaNet: a warp takes a head through 16 rows, one after the
// other. Weights of the convolution stay in registers, and so do inputs, which are the next rows' older ones: each is
// read once, while the row before is computed. The bits of delta_prepare_kernel, which takes each row by itself.
//
// Bytes of 8,192 rows at 48 heads of 128: 335 MB of projections read, 270 MB of heads written: 0.13 ms at 4.65 TB/s.
#include "ops/cuda/backend.h"
#include "ops/cuda/gated_delta/prepare_rows.cuh"

namespace riptide::ops {

namespace {

constexpr int kWarps = 8, kRun = 16, kAtOnce = 4, kChannels = 32 * kAtOnce;

/// kHeads heads of rows [begin, end) at the channels first[i] ..; `use(place, row, values)` with the convolved values,
/// element lane + 32 c of head i in values[i][c]. Waits.
template <int kHeads, class Use>
__device__ __forceinline__ void convolve_run(const DeltaArgs& a, const int32_t* row_sequence, int begin, int end,
                                             int head, const int (&first)[kHeads], int d, const Use& use) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    DeltaConvolution<kHeads> conv;
    conv.load_weights(a.conv_weights, a.sizes.width, first, 0, d);
    pdl_wait();
    DeltaPlace at;
    float next[kHeads][kAtOnce] = {};
    int behind = begin;  // the sequence's last row
#pragma unroll 1
    for (int row = begin; row < end; ++row) {
        if (row == behind) {
            at.find(a, delta_early(row_sequence + row), head);
            behind = at.first + at.n;
            conv.load_inputs(delta_taps(a, at, row), first, 0, d);
        } else {
#pragma unroll
            for (int h = 0; h < kHeads; ++h)
#pragma unroll
                for (int c = 0; c < kAtOnce; ++c) {
#pragma unroll
                    for (int i = kDeltaTaps - 1; i > 0; --i) conv.x[h][c][i] = conv.x[h][c][i - 1];
                    conv.x[h][c][0] = next[h][c];
                }
        }
        if (row + 1 < min(end, behind)) {
            const float* const from = a.qkv.row(row + 1);
#pragma unroll
            for (int h = 0; h < kHeads; ++h)
#pragma unroll
                for (int c = 0; c < kAtOnce; ++c)
                    if (lane + 32 * c < d) next[h][c] = from[first[h] + lane + 32 * c];
        }
        float values[kHeads][kAtOnce];
#pragma unroll
        for (int h = 0; h < kHeads; ++h)
#pragma unroll
            for (int c = 0; c < kAtOnce; ++c) values[h][c] = conv.value(h, c);
        use(row, values);
    }
}

/// A warp for each key head (q and k) and each value head (v and gates) of kRun rows.
__global__ void __launch_bounds__(32 * kWarps, 2)
    delta_prepare_runs_kernel(const __grid_constant__ DeltaArgs a, float* q_out, float* kq_out,
                              const int32_t* row_sequence, int rows) {
    pdl_trigger();
    const DeltaSizes& z = a.sizes;
    const int lane = static_cast<int>(threadIdx.x % 32), parts = z.key_heads + z.value_heads;
    const int64_t item = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
    const int part = static_cast<int>(item % parts);
    const int64_t begin = item / parts * kRun;
    if (begin >= rows) return pdl_wait();
    const int first_row = static_cast<int>(begin), end = min(rows, first_row + kRun);
    if (part < z.key_heads) {
        const int d = z.key_dim, first[2] = {part * d, z.keys() + part * d};
        convolve_run(a, row_sequence, first_row, end, 0, first, d, [&](int row, const float(&x)[2][kAtOnce]) {
            const float factors[2] = {delta_factor(delta_squares(x[0], d, 0.0f), d, true),
                                      delta_factor(delta_squares(x[1], d, 0.0f), d, false)};
            float* const kept = a.kept.at + row * a.kept.stride + a.kept.heads_at + part * d;
            float sum = 0.0f;
#pragma unroll
            for (int c = 0; c < kAtOnce; ++c) {
                const int i = lane + 32 * c;
                if (i >= d) break;
                const float q = __fmul_rn(x[0][c], factors[0]), k = __fmul_rn(x[1][c], factors[1]);
                q_out[row * int64_t{z.keys()} + part * d + i] = q;
                kept[i] = k;
                sum = __fmaf_rn(k, q, sum);
            }
            sum = warp_sum(sum);
            if (lane == 0) kq_out[row * int64_t{z.key_heads} + part] = sum;
        });
        return;
    }
    const int h = part - z.key_heads, d = z.value_dim, first[1] = {2 * z.keys() + h * d};
    const float dt_bias = __uint_as_float(EarlyLoad::one(a.dt_bias + h)),
                decay = __uint_as_float(EarlyLoad::one(a.decay + h));
    convolve_run(a, row_sequence, first_row, end, h, first, d, [&](int row, const float(&x)[1][kAtOnce]) {
        float* const kept = a.kept.at + row * a.kept.stride + a.kept.heads_at - z.keys() + first[0];
#pragma unroll
        for (int c = 0; c < kAtOnce; ++c)
            if (lane + 32 * c < d) kept[lane + 32 * c] = x[0][c];
        if (lane == 0) delta_keep_gates(a, row, h, delta_gates(a, row, h, dt_bias, decay));
    });
}

}  // namespace

/// Fewer rows are too few warps: 64 took 72 us instead of 59.
bool takes_delta_runs(const DeltaArgs& a, int64_t rows) {
    const DeltaSizes& z = a.sizes;
    return a.parent == nullptr && !a.kept.inputs && z.width == kDeltaTaps && rows >= 32 * kRun &&
           std::max(z.key_dim, z.value_dim) <= kChannels;
}

void launch_delta_runs(Context& ctx, const DeltaArgs& a, float* q, float* kq, const Batch& batch) {
    const int64_t items = blocks_of(batch.rows(), kRun) * int64_t{a.sizes.key_heads + a.sizes.value_heads};
    launch(*ctx.gpu, delta_prepare_runs_kernel, dim3(static_cast<unsigned>(blocks_of(items, kWarps))),
           dim3(32 * kWarps), 0, a, q, kq, batch.row_sequence.data(), static_cast<int>(batch.rows()));
}

}  // namespace riptide::ops
