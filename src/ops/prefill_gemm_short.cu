// Dense products of short chunks on Hopper: up to four matrices of Q4_K, Q5_K and Q6_K planes and the same rows,
// decoded into wgmma's A registers as in prefill_gemm_few.cu. The bits of expand() and gemm().
//
// q, k, v and gate of 512 rows (10304 x 2048): 21.6 GFLOP, 27 us at 813 T/s; 12 MB of planes, 3 us. Expanding to bf16
// and multiplying took 20 + 41 us; o (2048 x 8192) 15 + 54 us, with 64 blocks (H200, 2026-11-21). Here a step of 128
// rows of weights x 64 columns costs some 300 clocks of the integer pipe for decoding, beside 512 of tensor core for
// 128 rows of A, 256 for 64. Floor 31 us and 19 us by these. No device figures yet.
//
// Design: one persistent block on each multiprocessor; warpgroup 0 feeds, 1 and 2 have 64 rows of weights each. Tiles
// of 128 x 128 rows, or 128 x 64 where more blocks then have work (o of 512 rows). Tiles that share weights follow each
// other. Limits: each 64 or 128 rows of A decode the weights again: many rows are better served by expand() and gemm().
#include <algorithm>

#include "base/error.h"
#include "ops/prefill_fragments.cuh"

namespace riptide::ops::cuda::prefill {

namespace {

constexpr int kMostMatrices = 4, kTileRows = 128;  // rows of weights
constexpr int kThreads = 3 * 128;
[[maybe_unused]] constexpr int kWarps = 8;

template <DType T>
using SpanOf = Span<T, kTileRows>;

/// As Stages, with room for spans of every type.
template <int kN>
struct Ring {
    static constexpr int kStagesA = kN == 64 ? 10 : 6, kStagesB = 0, kStagesSpan = 4;
    static constexpr int kStageA = kN * kTileK * 2, kSpanBytes = SpanOf<DType::planes_q6_k>::kBytes;
    static constexpr int kShared = 1024 + kStagesA * kStageA + kStagesSpan * kSpanBytes + 256;
    static_assert(kSpanBytes % 1024 == 0 && SpanOf<DType::planes_q5_k>::kBytes <= kSpanBytes);
    static_assert(16 * (kStagesA + kStagesSpan) <= 256 && kShared <= 227 * 1024);
};

struct Matrix {
    Planes planes;
    float* y = nullptr;         // [rows of A, rows]
    float* residual = nullptr;  // like y, += the result; or null
    int rows = 0;
    int end = 0;  // tiles up to the end of this matrix
    DType type = DType::planes_q4_k;
};
struct Problem {
    CUtensorMap a;
    Matrix matrix[kMostMatrices];
    int matrices = 0, rows = 0, spans = 0;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// Rows [weight, + 128) of a matrix, rows [row, + kN) of A.
struct ShortTile {
    const Matrix& matrix;
    int weight, row;
};

/// The tiles of this block, in order: calls body(tile) for each.
template <int kN, class Body>
__device__ __forceinline__ void for_short_tiles(const Problem& p, const Body& body) {
    const int down = (p.rows + kN - 1) / kN, tiles = p.matrix[p.matrices - 1].end;
    for (int t = static_cast<int>(blockIdx.x); t < tiles; t += static_cast<int>(gridDim.x)) {
        int i = 0;
        while (t >= p.matrix[i].end) ++i;
        const int local = i == 0 ? t : t - p.matrix[i - 1].end;
        body(ShortTile{p.matrix[i], local / down * kTileRows, local % down * kN});
    }
}

/// One thread: rows of A.
template <int kN>
__device__ __forceinline__ void feed_a(const Problem& p, const Layout<Ring<kN>>& at) {
    using R = Ring<kN>;
    Turn<R::kStagesA> turn;
    for_short_tiles<kN>(p, [&](const ShortTile& tile) {
        const int boxes = (min(kN, p.rows - tile.row) + kBoxRows - 1) / kBoxRows;
        for (int step = 0; step < p.spans * (kSpan / kTileK); ++step, turn.next()) {
            const uint32_t full = at.full_a + 8 * turn.stage, to = at.a + turn.stage * R::kStageA;
            barrier_wait(at.empty_a + 8 * turn.stage, turn.parity ^ 1);  // the first round passes at once
            barrier_expect(full, static_cast<uint32_t>(boxes * kBoxRows * kTileK * 2));
            for (int box = 0; box < boxes; ++box)
                load_box(to + static_cast<uint32_t>(box * kBoxRows * kTileK * 2), &p.a, full, step * kTileK,
                         tile.row + box * kBoxRows);
        }
    });
}

/// The planes of a span of one tile.
template <DType T>
__device__ __forceinline__ void feed_span(const ShortTile& tile, int span, int spans, uint32_t to, uint32_t full) {
    using S = SpanOf<T>;
    const Planes& from = tile.matrix.planes;
    uint32_t d_bytes = 0;
    if constexpr (S::kSixBits)
        d_bytes = static_cast<uint32_t>(min(kTileRows, tile.matrix.rows - tile.weight) * spans * 2);
    barrier_expect(full, S::kData + S::kHigh + S::kScales + d_bytes);
    load_box(to, &from.data, full, 128 * span, tile.weight, 0);
    load_box(to + S::kAtScales, &from.scales, full, 16 * span, tile.weight, 0);
    if constexpr (S::kHigh > 0) load_box(to + S::kAtHigh, &from.high, full, S::kHighRow * span, tile.weight, 0);
    if constexpr (S::kSixBits) bulk_copy(to + S::kAtD, from.d + int64_t{tile.weight} * spans * 2, d_bytes, full);
}

/// One thread: planes.
template <int kN>
__device__ __forceinline__ void feed_weights(const Problem& p, const Layout<Ring<kN>>& at) {
    using R = Ring<kN>;
    Turn<R::kStagesSpan> turn;
    for_short_tiles<kN>(p, [&](const ShortTile& tile) {
        for (int span = 0; span < p.spans; ++span, turn.next()) {
            const uint32_t full = at.full_span + 8 * turn.stage, to = at.spans + turn.stage * R::kSpanBytes;
            barrier_wait(at.empty_span + 8 * turn.stage, turn.parity ^ 1);
            if (tile.matrix.type == DType::planes_q4_k) feed_span<DType::planes_q4_k>(tile, span, p.spans, to, full);
            else if (tile.matrix.type == DType::planes_q5_k)
                feed_span<DType::planes_q5_k>(tile, span, p.spans, to, full);
            else feed_span<DType::planes_q6_k>(tile, span, p.spans, to, full);
        }
    });
}

/// A thread's sums of its two rows of weights: two columns of y.
template <int kN>
__device__ __forceinline__ void store_columns(const Problem& p, const ShortTile& tile, const Worker<Ring<kN>>& me,
                                              const float (&d)[kN / 2]) {
    const Matrix& m = tile.matrix;
    constexpr int kAtOnce = 16;  // old values under way
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const int column = tile.weight + me.place.column[h];
        if (column >= m.rows) continue;
#pragma unroll
        for (int first = 0; first < kN / 4; first += kAtOnce) {
            float old[kAtOnce] = {};
            const auto row_of = [&](int i) { return tile.row + (first + i) / 2 * 8 + me.t * 2 + i % 2; };
            const auto at = [&](int i) { return int64_t{row_of(i)} * m.rows + column; };
            if (m.residual != nullptr)
#pragma unroll
                for (int i = 0; i < kAtOnce; ++i)
                    if (row_of(i) < p.rows) old[i] = m.residual[at(i)];
#pragma unroll
            for (int i = 0; i < kAtOnce; ++i) {
                if (row_of(i) >= p.rows) continue;
                const float value = d[(first + i) / 2 * 4 + 2 * h + i % 2];
                m.y[at(i)] = value;
                if (m.residual != nullptr) m.residual[at(i)] = old[i] + value;
            }
        }
    }
}

/// Warpgroups 1 and 2.
template <int kN>
__device__ __forceinline__ void work_on(const Problem& p, const Layout<Ring<kN>>& at) {
    Worker<Ring<kN>> me = worker(at, fragment_place(RowOrder::f32, static_cast<int>(threadIdx.x) - 128));
    for_short_tiles<kN>(p, [&](const ShortTile& tile) {
        float d[kN / 2];
        if (tile.matrix.type == DType::planes_q4_k) sum_tile<kN, SpanOf<DType::planes_q4_k>>(d, p.spans, me);
        else if (tile.matrix.type == DType::planes_q5_k) sum_tile<kN, SpanOf<DType::planes_q5_k>>(d, p.spans, me);
        else sum_tile<kN, SpanOf<DType::planes_q6_k>>(d, p.spans, me);
        store_columns<kN>(p, tile, me, d);
    });
}

#endif

template <int kN>
__global__ void __launch_bounds__(kThreads, 1) gemm_short_kernel(const __grid_constant__ Problem p) {
    pdl_trigger();
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ uint8_t memory[];
    const Layout<Ring<kN>> at((shared_address(memory) + 1023u) & ~1023u);
    if (threadIdx.x == 0) at.init(kWarps);
    __syncthreads();
    pdl_wait();
    const int group = __shfl_sync(~0u, static_cast<int>(threadIdx.x / 128), 0);
    if (group == 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x == 0) feed_weights<kN>(p, at);
        if (threadIdx.x == 32) {
            asm volatile("fence.proxy.async.global;" ::: "memory");  // earlier kernels wrote A with plain stores
            feed_a<kN>(p, at);
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 224;");
        work_on<kN>(p, at);
    }
#else
    pdl_wait();
    __trap();  // never launched there
#endif
}

template <int kN>
void start(const Gpu& gpu, Problem& p) {
    const int down = ceil_div(p.rows, kN);
    int tiles = 0;
    for (int i = 0; i < p.matrices; ++i) {
        tiles += ceil_div(p.matrix[i].rows, kTileRows) * down;
        p.matrix[i].end = tiles;
    }
    RT_CUDA(
        cudaFuncSetAttribute(gemm_short_kernel<kN>, cudaFuncAttributeMaxDynamicSharedMemorySize, Ring<kN>::kShared));
    const auto grid = static_cast<unsigned>(std::min(tiles, gpu.info().sm_count));
    launch(gpu, gemm_short_kernel<kN>, grid, kThreads, Ring<kN>::kShared, p);
}

Planes planes_of_any(const Weight& w) {
    switch (w.dtype) {
        case DType::planes_q4_k:
            return planes_of<DType::planes_q4_k>(w, 1, 0);
        case DType::planes_q5_k:
            return planes_of<DType::planes_q5_k>(w, 1, 0);
        default:
            return planes_of<DType::planes_q6_k>(w, 1, 0);
    }
}

}  // namespace

bool can_multiply_short(const Gpu& gpu, int64_t n, std::span<const Weight* const> weights) {
    if (!gpu.hopper() || n > kShortRows || weights.empty() || weights.size() > kMostMatrices) return false;
    return std::ranges::all_of(weights, [&](const Weight* w) {
        const bool type =
            w->dtype == DType::planes_q4_k || w->dtype == DType::planes_q5_k || w->dtype == DType::planes_q6_k;
        if (!type || w->scale != 1.0f || w->cols != weights[0]->cols || w->cols % 256 != 0) return false;
        const bool six = w->dtype == DType::planes_q6_k;
        return !six || (w->rows % 8 == 0 && w->cols / 256 * kTileRows * 2 <= SpanOf<DType::planes_q6_k>::kMostD);
    });
}

void multiply_short(const Gpu& gpu, const void* a, int64_t n, std::span<const Weight* const> weights,
                    std::span<const Tensor> results, Tensor* residual) {
    RT_ASSERT(can_multiply_short(gpu, n, weights) && weights.size() == results.size());
    RT_ASSERT(residual == nullptr || (weights.size() == 1 && residual->contiguous()));
    Problem p;
    p.a = bf16_boxes(a, n, weights[0]->cols, kBoxRows);
    p.rows = static_cast<int>(n);
    p.spans = static_cast<int>(weights[0]->cols / kSpan);
    int64_t tiles = 0;
    for (size_t i = 0; i < weights.size(); ++i) {
        RT_ASSERT(results[i].contiguous() && results[i].shape[1] == weights[i]->rows);
        Matrix& m = p.matrix[p.matrices++];
        m.planes = planes_of_any(*weights[i]);
        m.y = results[i].row(0);
        m.residual = residual == nullptr ? nullptr : residual->row(0);
        m.rows = static_cast<int>(weights[i]->rows);
        m.type = weights[i]->dtype;
        tiles += ceil_div(m.rows, kTileRows);
    }
    const int64_t sms = gpu.info().sm_count, wide = tiles * ceil_div(p.rows, 128),
                  narrow = tiles * ceil_div(p.rows, 64);
    // Rounds of the chip times clocks of a step (estimates).
    if ((narrow + sms - 1) / sms * 400 < (wide + sms - 1) / sms * 560) start<64>(gpu, p);
    else start<128>(gpu, p);
}

}  // namespace riptide::ops::cuda::prefill
