// Large Q4_K, Q5_K and Q6_K matrices of any width times one row of x, where kquant_f16_row1_sm90.cu does not take them
// (Q5_K, other widths, other chips than Hopper). Measured on the products of Qwen3.5-27B (5,120, 6,144 and 17,408
// columns), which take 10 to 25 us each, so that bytes in flight count and the ends of kernels still matter.
//
// Bytes: those of the weights; in Q4_K gate and up 100 MB, down 50, a recurrent layer's projections 47, o 18, the head
// (Q6_K) 1.04 GB: 21.6, 10.8, 10.1, 3.8, 224 us at 4.65 TB/s.
// Measured (H200, 2026-11-22, bench_gpu_dense, each op by itself): gate, up and down 48 us, projections 17, o 10.5, the
// head 251; a chain of them as in a model 74 us, floor 47 (docs/results/qwen35.md).
// What limits it is suspected only: kernels that do not overlap. The first bytes are asked for when the kernel before
// has left the SM; meanwhile every CTA waits for x, normalises and quantises it (17,408 columns: 70 KB each from L2).
// Before, eight warps an SM: 162 instructions for 32 sub-blocks of two rows at one in five cycles of a warp, two
// warps to a scheduler (ncu, gate and up): their latencies took longer than the bytes.
// Design: one CTA of sixteen warps an SM. Each warp has a ring of steps of its own in shared memory, filled by lanes
// with cp.async (129 KB an SM are asked for before pdl_wait()); most of a step's sub-block a lane fetches for itself,
// so a step costs one barrier of the warp. All warps of a CTA have the same number of steps: a pair of rows that two
// warps share is begun by one and ended, later, by the next (RowShare). Gate and up: a row of each, and
// silu(gate) * up is what is stored. Float matrices of a group (96 rows of beta and alpha): one row each for the last
// warps of as many CTAs, which have fewer pairs for it.
// Tried: two such CTAs an SM, so that the next kernel's weights come meanwhile: of sixteen warps with 64 registers
// (spills: gate, up, down 65 us, the chain 121), of twelve with 80 (47 us, the chain 94); fetching 256 bytes to L2
// (no difference); one CTA with 5, 4 and 3 slots (the chain 76); eight warps with bulk copies and two CTAs an SM (49
// us, the chain 89).
#include <algorithm>

#include "ops/cuda/device/row_math.cuh"
#include "ops/cuda/linear/gemv/kquant_i8_wide_row1_sm90.cuh"
#include "ops/cuda/linear/shared/dot_kquant.cuh"
#include "ops/cuda/linear/shared/kquant_i8_wide.h"
#include "ops/cuda/linear/shared/tile.cuh"

namespace riptide::ops::cuda::decode {

namespace {

#if __CUDA_ARCH__ >= 900

/// acc[g] += the lane's sub-block of both rows of a step, number j of a row, times x. d_at: where d of both rows lie in
/// sixteen bytes, the second sixteen bits on.
template <DType Type, class At>
__device__ __forceinline__ void dot_step(const char* slot, int j, int d_at, const KShifts& at, const char* staged,
                                         int groups, int lane, float (&acc)[2]) {
    constexpr bool kQ6 = Type == DType::planes_q6_k;
    KActs x;
    if constexpr (Type != DType::planes_q5_k) x = k_acts<kQ6>(staged, groups, j);
#pragma unroll
    for (int g = 0; g < 2; ++g) {
        const uint4 q = *reinterpret_cast<const uint4*>(slot + 512 * g + 16 * lane);
        const char* const heads = slot + At::kHeads + 64 * g;
        if constexpr (Type == DType::planes_q5_k) {
            uint32_t raw[AllPlanes::kWords];
            put_words(raw, 0, q);
            put_words(raw, 4, *reinterpret_cast<const uint4*>(heads + lane / 8 * 16));
            raw[8] = *reinterpret_cast<const uint32_t*>(slot + At::kHigh + 128 * g + 4 * lane);
            float one[1] = {acc[g]};
            dot_plane<AllPlanes, 1>(Type, Matrix{}, raw, j, groups, staged, 0, 1, one);
            acc[g] = one[0];
        } else {
            uint2 high = {};
            float2 by;
            if constexpr (kQ6) {
                high = *reinterpret_cast<const uint2*>(slot + At::kHigh + 256 * g + 8 * lane);
                by = q6_scales(*reinterpret_cast<const uint16_t*>(heads + 2 * lane),
                               *reinterpret_cast<const uint16_t*>(slot + At::kD + At::kDRow * g +
                                                                  (d_at >> (16 * g) & 15) + lane / 8 * 2));
            } else {
                by = q4_scales<true>(load_shared16(heads + lane / 8 * 16), at);
            }
            acc[g] = fmaf(k_value<kQ6>(q, high, x, by), x.d, acc[g]);
        }
    }
}

/// stage_whole_row() of kquant_i8_wide.cuh for twice as many threads: same bits. The sum of squares is that of 256
/// threads, which load what others will quantise besides.
struct WholeRow {
    static constexpr int kMost = 2048 * kWholeRow / 8;  // pieces of eight
    static constexpr int kOwn = (kMost + kRowThreads - 1) / kRowThreads, kSums = kMost / kThreads;
    float norm[kOwn][8] = {};

    __device__ __forceinline__ void load_weights_of(const ActSource& s, int cols) {
        if (s.kind != ActKind::norm) return;
#pragma unroll
        for (int r = 0; r < kOwn; ++r) load_norm8(s.norm, r * kRowThreads + threadIdx.x, cols, norm[r]);
    }
    __device__ __forceinline__ void stage(const ActSource& s, const ActLayout& l, char* out, float* partial) const {
        const auto* x = reinterpret_cast<const float*>(s.rows);
        float v[kOwn][8];
#pragma unroll
        for (int r = 0; r < kOwn; ++r) load8(x, r * kRowThreads + threadIdx.x, l.cols, v[r]);
        if (threadIdx.x < kThreads) {
            float sum = 0.0f;
#pragma unroll
            for (int r = 0; r < kSums; ++r) {
                if (r * kThreads % kRowThreads == 0) {
                    sum = add_squares(v[r * kThreads / kRowThreads], sum);
                } else {
                    float other[8];
                    load8(x, r * kThreads + threadIdx.x, l.cols, other);
                    sum = add_squares(other, sum);
                }
            }
            sum = warp_sum(sum);
            if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
        }
        __syncthreads();
        const float scale = row_scale(partial, l.cols, s.eps);
#pragma unroll
        for (int r = 0; r < kOwn; ++r) {
#pragma unroll
            for (int i = 0; i < 8; ++i) v[r][i] = rms_value(v[r][i], scale, norm[r][i]);
            put8(l, out, r * kRowThreads + threadIdx.x, v[r]);
        }
    }
};

/// stage_floats() for a row that is not normalised: same bits, several loads at once. Behind pdl_wait().
__device__ __forceinline__ void stage_long_row(const ActSource& s, const ActLayout& l, char* staged) {
    constexpr int kTogether = 3;
    const auto* x = reinterpret_cast<const float*>(s.rows);
#pragma unroll 1
    for (int c = threadIdx.x; c - static_cast<int>(threadIdx.x) < l.cols / 8; c += kTogether * kRowThreads) {
        float v[kTogether][8];
#pragma unroll
        for (int r = 0; r < kTogether; ++r) load8(x, c + r * kRowThreads, l.cols, v[r]);
#pragma unroll
        for (int r = 0; r < kTogether; ++r) put8(l, staged, c + r * kRowThreads, v[r]);
    }
}

/// Float rows of the group, every so many-th: the share of one warp.
__device__ __forceinline__ void multiply_float_rows(const WideRowArgs& a, int first, int by, int lane,
                                                    const char* staged) {
    using Floats = FloatBatch<PlainFloats, 1, 8>;
    uint32_t raw[Floats::kWords];
    struct Rows {
        const WideRowArgs& a;
        __device__ __forceinline__ int matrix(int row) const {
            int k = 0;
            while (row >= a.floats[k].first_row + a.floats[k].rows) ++k;
            return k;
        }
        __device__ __forceinline__ RowRef operator()(int row) const {
            const int k = matrix(row);
            return {k, 0, row - a.floats[k].first_row};
        }
    };
    const Rows row_of{a};
    const auto nothing = [] {};
#pragma unroll 1
    for (int row = first; row < a.float_rows; row += by)
        run_rows<Floats, 1>(a.floats, row_of, row, row + 1, lane, raw, false, staged, a.layout, 1, nothing, nothing,
                            [&](int i, int, float sum) {
                                const RowRef r = row_of(i);
                                a.floats[r.matrix].y[r.row] = __fmul_rn(sum, a.floats[r.matrix].scale);
                            });
}

/// So that the loads of multiply_float_rows() find them in the L2 cache. One thread; before pdl_wait().
__device__ __forceinline__ void fetch_float_rows(const WideRowArgs& a, int first, int by) {
    for (int row = first; row < a.float_rows; row += by) {
        int k = 0;
        while (row >= a.floats[k].first_row + a.floats[k].rows) ++k;
        const Matrix& m = a.floats[k];
        const char* const from = m.data + (row - m.first_row) * m.row_bytes;
        const uint32_t bytes = static_cast<uint32_t>(m.row_bytes) & ~15u;
        if ((reinterpret_cast<uintptr_t>(from) & 15) == 0 && bytes > 0)
            asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
    }
}

#endif  // __CUDA_ARCH__ >= 900

template <bool Q4, int Slots>
__global__ void __launch_bounds__(kRowThreads, 1) kquant_i8_wide_row1_kernel(const __grid_constant__ WideRowArgs a) {
#if __CUDA_ARCH__ >= 900
    using Ring = RowRing<Q4, Slots>;
    using At = Slot<Q4>;
    extern __shared__ uint4 dynamic[];
    __shared__ float partial[2 * kWarps];
    __shared__ HandedSums handed;
    pdl_trigger();
    char* const staged = reinterpret_cast<char*>(dynamic);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, cta = blockIdx.x, ctas = gridDim.x;
    const bool floats = cta < a.float_rows;  // this CTA's last warp has float rows
    const int warps = floats ? kRowWarps - 1 : kRowWarps, rest = a.pairs - a.fuller_pairs;
    const bool fuller = cta < a.fuller;
    const int begin = fuller ? share(a.fuller_pairs, cta, a.fuller)
                             : a.fuller_pairs + share(rest, cta - a.fuller, ctas - a.fuller),
              end = fuller ? share(a.fuller_pairs, cta + 1, a.fuller)
                           : a.fuller_pairs + share(rest, cta + 1 - a.fuller, ctas - a.fuller);
    RowShare mine = {};
    if (warp < warps) mine = RowShare::of(begin, end, a.steps, warp, warps);
    char* const slots = staged + a.slot_start + warp * (Slots * At::kBytes);
    const auto slots_at = static_cast<uint32_t>(__cvta_generic_to_shared(slots));
    Ring ring(mine);
#pragma unroll 1
    for (int k = 0; k < Slots - 1; ++k) ring.ask(a, mine, slots_at + k * At::kBytes, lane);
    if (warp == warps && lane == 0) fetch_float_rows(a, cta, ctas);
    handed.init();
    WholeRow whole_row;
    whole_row.load_weights_of(a.x, a.layout.cols);
    pdl_wait();
    if (a.x.kind == ActKind::norm) whole_row.stage(a.x, a.layout, staged, partial);
    else if (a.x.kind != ActKind::int8) stage_long_row(a.x, a.layout, staged);
    else if (threadIdx.x < kThreads) stage_int8(a.x, a.layout, 0, 1, staged);
    __syncthreads();
    if (warp == warps) multiply_float_rows(a, cta, ctas, lane, staged);
    const int groups = a.layout.groups;
    const KShifts at(lane);
    int slot = 0, before = (Slots - 1) * At::kBytes;  // this step's, and the one before it
    RowWalk walk(mine);
#pragma unroll 1
    while (walk.next(mine, a.steps)) {
        const WideMatrix& m = a.m[matrix_of_pair(a, walk.pair)];
        const bool both = a.gate_up != 0;
        const int local = walk.pair - m.first, row = both ? local : 2 * local;
        const DType type = Q4 ? DType::planes_q4_k : m.type;
        const bool ends = walk.end == a.steps, stores = ends && lane % 16 == 0 && row + lane / 16 < m.rows;
        const float old = a.residual != nullptr && stores ? a.residual[row + lane / 16] : 0.0f;
        int d_at = 0;
        if (!Q4 && type == DType::planes_q6_k) {
            const char* const other = both ? a.m[1].d + static_cast<int64_t>(row) * (groups / 4)
                                           : m.d + static_cast<int64_t>(min(row + 1, m.rows - 1)) * (groups / 4);
            d_at = static_cast<int>(reinterpret_cast<uintptr_t>(m.d + static_cast<int64_t>(row) * (groups / 4)) & 15) |
                   static_cast<int>(reinterpret_cast<uintptr_t>(other) & 15) << 16;
        }
        float acc[2] = {0.0f, 0.0f};
        if (walk.step > 0) handed.take(warp - 1, lane, acc);
#pragma unroll 1
        for (int s = walk.step; s < walk.end; ++s) {
            Ring::wait();
            ring.ask(a, mine, slots_at + before, lane);
            before = slot;
            const char* const from = slots + slot;
            slot = slot == (Slots - 1) * At::kBytes ? 0 : slot + At::kBytes;
            const int j = 32 * s + lane;
            if (j < groups) {
                if (Q4 || type == DType::planes_q4_k)
                    dot_step<DType::planes_q4_k, At>(from, j, 0, at, staged, groups, lane, acc);
                else if (type == DType::planes_q6_k)
                    dot_step<DType::planes_q6_k, At>(from, j, d_at + 8 * s % 16 * 0x10001, at, staged, groups, lane,
                                                     acc);
                else dot_step<DType::planes_q5_k, At>(from, j, 0, at, staged, groups, lane, acc);
            }
        }
        if (!ends) {
            handed.give(warp, lane, acc);
            continue;
        }
        const float sum = reduce_lanes<2>(acc, lane);  // of row lane / 16
        if (both) {
            const float up = __shfl_xor_sync(~0u, sum, 16);
            if (lane == 0) m.y[row] = swiglu_value(sum, up);
        } else if (stores) {
            m.y[row + lane / 16] = sum;
            if (a.residual != nullptr) a.residual[row + lane / 16] = __fadd_rn(old, sum);
        }
    }
#endif
}

WideMatrix wide_matrix(const Weight& w, float* y, int32_t first) {
    const char* const scales = static_cast<const char*>(w.scales);
    return {static_cast<const char*>(w.data),
            static_cast<const char*>(w.high),
            scales,
            scales + w.rows * (w.cols / 16),
            y,
            static_cast<int32_t>(w.rows),
            first,
            w.dtype};
}

/// CTAs that have a float row more than the others get fewer pairs: all have the same bytes.
void divide(WideRowArgs& a, int64_t ctas) {
    if (a.float_rows == 0) return;
    const double pair = 2.0 * 18 * a.layout.groups, row = static_cast<double>(a.floats[0].row_bytes) / pair;
    a.fuller = static_cast<int32_t>(a.float_rows % ctas);
    const double each = (a.pairs + row * a.fuller) / static_cast<double>(ctas) - row;
    a.fuller_pairs = static_cast<int32_t>(std::max(0.0, each * a.fuller));
}

template <bool Q4>
void launch_slots(Context& ctx, const WideRowArgs& a, int64_t ctas, int64_t shared) {
    const auto kernel = kquant_i8_wide_row1_kernel<Q4, row_slots(Q4)>;
    allow_shared(reinterpret_cast<const void*>(kernel), shared);
    launch(*ctx.gpu, kernel, dim3(static_cast<unsigned>(ctas)), kRowThreads, static_cast<size_t>(shared), a);
}

/// Everything but matrices and floats is set here.
void launch_row(Context& ctx, WideRowArgs& a, const ActSource& x, int64_t cols) {
    a.layout = act_layout(cols, true, a.float_rows > 0);
    a.x = x;
    a.steps = (a.layout.groups + 31) / 32;
    a.slot_start = (a.layout.bytes() + 127) / 128 * 128;
    const int64_t ctas = std::min<int64_t>(ctx.gpu->info().sm_count, (a.pairs + 1) / 2);
    divide(a, ctas);
    bool q4 = true;
    for (int i = 0; i < a.matrices; ++i) q4 = q4 && a.m[i].type == DType::planes_q4_k;
    const auto shared = fit_wide_row(chip_of(*ctx.gpu), cols, a.float_rows > 0, q4);
    RT_ASSERT(shared);
    if (q4) launch_slots<true>(ctx, a, ctas, *shared);
    else launch_slots<false>(ctx, a, ctas, *shared);
}
}  // namespace

void kquant_i8_wide_row1_multiply(Context& ctx, const ActSource& x, int64_t cols,
                                  std::span<const Weight* const> weights, std::span<Tensor> y, Tensor* residual) {
    WideRowArgs a = {};
    int floats = 0;
    for (size_t i = 0; i < weights.size(); ++i) {
        const Weight& w = *weights[i];
        if (is_planes(w.dtype)) {
            RT_ASSERT(a.matrices < kMostPlanes);
            a.m[a.matrices++] = wide_matrix(w, y[i].row(0), a.pairs);
            a.pairs += static_cast<int32_t>((w.rows + 1) / 2);
        } else {
            RT_ASSERT(floats < kMostFloats && residual == nullptr);
            Matrix& m = a.floats[floats++] = matrix_of(w);
            m.y = y[i].row(0);
            m.first_row = a.float_rows;
            a.float_rows += m.rows;
        }
    }
    a.residual = residual == nullptr ? nullptr : residual->row(0);
    launch_row(ctx, a, x, cols);
}

void kquant_i8_wide_row1_gate_up(Context& ctx, const ActSource& x, int64_t cols, const Weight& gate, const Weight& up,
                                 float* out) {
    WideRowArgs a = {};
    a.m[0] = wide_matrix(gate, out, 0);
    a.m[1] = wide_matrix(up, nullptr, 0);
    a.matrices = 2;
    a.pairs = static_cast<int32_t>(gate.rows);
    a.gate_up = 1;
    launch_row(ctx, a, x, cols);
}

}  // namespace riptide::ops::cuda::decode
