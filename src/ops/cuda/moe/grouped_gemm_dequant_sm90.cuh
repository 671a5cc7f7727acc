// What products with experts' weights decoded in the kernel begin with: which tiles a block has, the threads that feed
// planes and rows through TMA, and the stages they feed.
#pragma once

#include <algorithm>
#include <type_traits>

#include "base/error.h"
#include "ops/cuda/device/tma_wgmma_gemm.cuh"
#include "ops/cuda/linear/gemm/dequantize_bf16.cuh"
#include "ops/cuda/linear/gemm/gemm.cuh"

namespace riptide::ops::cuda::prefill {

inline constexpr int kTileN = kDecodeRows, kTileK = 64, kBoxRows = 16;
inline constexpr int kSpan = 256;  // columns of one piece of the planes

/// The shared memory of a block: kA stages of kRows rows of A, kSpans of planes; barriers behind them.
template <DType T, int kRows, int kA, int kSpans>
struct Stages {
    static constexpr DType kType = T;
    static constexpr int kRowsA = kRows, kStagesA = kA, kStagesSpan = kSpans;
    static constexpr int kStageA = kRows * kTileK * 2, kSpanBytes = Span<T>::kBytes;
    static constexpr int kShared = 1024 + kA * kStageA + kSpans * Span<T>::kBytes + 256;
    static_assert(Span<T>::kBytes % 1024 == 0 && 16 * (kA + kSpans) <= 256 && kShared <= 227 * 1024);
};

/// One stack of matrices.
struct Planes {
    CUtensorMap data, high, scales;
    const char* d = nullptr;  // q6_k: of expert 0
    int64_t stride = 0;
};
struct Maps {
    CUtensorMap a;
    Planes planes[2][2];  // [routed, shared][RowOrder::f32: only 0; swiglu: gate, up]
};

/// What the kernel needs beside them.
struct Work {
    GemmProblem p;
    int shared_expert;  // its number; -1 if none
    int matrix_rows;    // of a weight
};

template <class Out>
constexpr RowOrder order_of() {
    return std::is_same_v<Out, OutSwiglu> ? RowOrder::swiglu : RowOrder::f32;
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// Addresses of the stages and their barriers in shared memory. full: one arrival and the bytes; empty: one arrival of
/// each of `warps` warps.
template <class S>
struct Layout {
    uint32_t a, spans, full_a, empty_a, full_span, empty_span;
    /// Every lane says that it has read a span, as race checkers want it; for those that no checker sees one does.
    static constexpr bool kAllLanes = Span<S::kType>::kSixBits;
    __device__ __forceinline__ explicit Layout(uint32_t base)
        : a(base),
          spans(a + S::kStagesA * S::kStageA),
          full_a(spans + S::kStagesSpan * S::kSpanBytes),
          empty_a(full_a + 8 * S::kStagesA),
          full_span(empty_a + 8 * S::kStagesA),
          empty_span(full_span + 8 * S::kStagesSpan) {}
    /// All lanes: their warp has read this span.
    __device__ __forceinline__ void give_back_span(int stage, bool leader) const {
        if constexpr (!kAllLanes) __syncwarp();
        if (kAllLanes || leader) barrier_arrive(empty_span + 8 * stage);
    }
    /// By one thread, once.
    __device__ __forceinline__ void init(int warps) const {
        for (int s = 0; s < S::kStagesA; ++s) barrier_init(full_a + 8 * s, 1), barrier_init(empty_a + 8 * s, warps);
        for (int s = 0; s < S::kStagesSpan; ++s)
            barrier_init(full_span + 8 * s, 1), barrier_init(empty_span + 8 * s, kAllLanes ? 32 * warps : warps);
        barrier_init_fence();
    }
};

/// A place in a ring of stages, and the parity of the round.
template <int kCount>
struct Turn {
    uint32_t stage = 0, parity = 0;
    __device__ __forceinline__ void next() {
        if (++stage == kCount) stage = 0, parity ^= 1;
    }
};

/// Tile t, those with the most rows first: the shared expert's, then the others'.
__device__ __forceinline__ Tile tile_by_rows(const GemmProblem& p, int t) {
    const int across = ceil_div(p.n, kTileN), routed = p.plan.tile_first[min(p.plan.experts, p.expert_end)];
    const int shared = p.plan.tile_first[p.expert_end] - routed, i = t / across - shared;
    return expert_tile(p, i < 0 ? routed + shared + i : p.plan.tile_by_rows[i], t % across * kTileN);
}

/// The tiles of this block, in order: calls body(tile) for each, kRows rows of a tile at a time. Tiles are dealt in
/// turns; the last turn, which is not for all, leaves out blocks that began with the most rows.
///   Few rows an expert (kRows < kTileM): tiles by rows, dealt from the first block to the last and back, so that all
///   blocks get about the same to do. (Dealt as the experts come, a fifth of the time was waiting for the last block.)
///   Many: an expert's tiles follow each other, so that its planes are read once from memory; the shared one first.
template <int kRows, class Body>
__device__ __forceinline__ void for_tiles(const GemmProblem& p, const Body& body) {
    constexpr bool kByRows = kRows < kTileM;
    const int tiles = tile_count(p, kTileN), blocks = static_cast<int>(gridDim.x);
    const int block = static_cast<int>(blockIdx.x), turns = ceil_div(tiles, blocks);
    for (int turn = 0; turn < turns; ++turn) {
        const bool back = kByRows ? turn % 2 == 1 || turn == turns - 1 : turn > 0;
        const int t = turn * blocks + (back ? blocks - 1 - block : block);
        if (t >= tiles) continue;
        Tile tile = kByRows ? tile_by_rows(p, t) : even_tile(p, tile_at(p, kTileN, tiles - 1 - t));
        const int end = min(tile.row_end, tile.row + kTileM);
        for (; tile.row < end; tile.row += kRows) body(tile);
    }
}

/// One thread: A, as many boxes of 16 rows as the tile has.
template <class S>
__device__ __forceinline__ void feed_rows(const Maps& maps, const GemmProblem& p, const Layout<S>& at) {
    const int steps = p.k / kTileK;
    Turn<S::kStagesA> turn;
    for_tiles<S::kRowsA>(p, [&](const Tile& tile) {
        const int rows = min(S::kRowsA, tile.row_end - tile.row), boxes = (rows + kBoxRows - 1) / kBoxRows;
        for (int step = 0; step < steps; ++step, turn.next()) {
            const uint32_t full = at.full_a + 8 * turn.stage, to = at.a + turn.stage * S::kStageA;
            barrier_wait(at.empty_a + 8 * turn.stage, turn.parity ^ 1);  // the first round passes at once
            barrier_expect(full, static_cast<uint32_t>(boxes * kBoxRows * kTileK * 2));
            for (int box = 0; box < boxes; ++box)
                load_box(to + static_cast<uint32_t>(box * kBoxRows * kTileK * 2), &maps.a, full, step * kTileK,
                         tile.row + box * kBoxRows);
        }
    });
}

/// One thread: the planes, in boxes of 128 rows; what lies behind a matrix's last row is zero, or (d) left as it is.
template <RowOrder kOrder, class Stages>
__device__ __forceinline__ void feed_planes(const Maps& maps, const Work& work, const Layout<Stages>& at) {
    using S = Span<Stages::kType>;
    const int spans = work.p.k / kSpan;
    Turn<Stages::kStagesSpan> turn;
    for_tiles<Stages::kRowsA>(work.p, [&](const Tile& tile) {
        const bool shared = tile.expert == work.shared_expert;
        const int z = shared ? 0 : tile.expert;
        for (int span = 0; span < spans; ++span, turn.next()) {
            const uint32_t full = at.full_span + 8 * turn.stage, to = at.spans + turn.stage * S::kBytes;
            barrier_wait(at.empty_span + 8 * turn.stage, turn.parity ^ 1);
            uint32_t d_bytes[2] = {0, 0};
            if constexpr (S::kSixBits) {
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    const int row = kOrder == RowOrder::swiglu ? tile.n / 2 : tile.n + 128 * h;
                    d_bytes[h] = static_cast<uint32_t>(max(0, min(128, work.matrix_rows - row)) * spans * 2);
                }
            }
            barrier_expect(full, S::kData + S::kHigh + S::kScales + d_bytes[0] + d_bytes[1]);
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const Planes& from = maps.planes[shared ? 1 : 0][kOrder == RowOrder::swiglu ? h : 0];
                const int row = kOrder == RowOrder::swiglu ? tile.n / 2 : tile.n + 128 * h;
                const uint32_t high = to + S::kAtHigh, scales = to + S::kAtScales, d = to + S::kAtD;
                load_box(to + h * (S::kData / 2), &from.data, full, 128 * span, row, z);
                load_box(scales + h * (S::kScales / 2), &from.scales, full, 16 * span, row, z);
                if constexpr (S::kHigh > 0)
                    load_box(high + h * (S::kHigh / 2), &from.high, full, S::kHighRow * span, row, z);
                if constexpr (S::kSixBits) {
                    if (d_bytes[h] > 0)
                        bulk_copy(d + static_cast<uint32_t>(h * 128 * spans * 2),
                                  from.d + z * from.stride + int64_t{row} * spans * 2, d_bytes[h], full);
                }
            }
        }
    });
}

/// Shared memory by its own addresses.
struct SharedMemory {
    __device__ __forceinline__ static Words4 read16(uint32_t from) {
        Words4 v;
        asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(v.w[0]), "=r"(v.w[1]), "=r"(v.w[2]), "=r"(v.w[3])
                     : "r"(from)
                     : "memory");
        return v;
    }
    __device__ __forceinline__ static Words2 read8(uint32_t from) {
        Words2 v;
        asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.w[0]), "=r"(v.w[1]) : "r"(from) : "memory");
        return v;
    }
    __device__ __forceinline__ static uint32_t read4(uint32_t from) {
        uint32_t v;
        asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(from) : "memory");
        return v;
    }
    __device__ __forceinline__ static uint16_t read2(uint32_t from) {
        uint16_t v;
        asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(from) : "memory");
        return v;
    }
};

#endif

/// A plane of `count` matrices of `rows` rows, row_bytes each: boxes of 128 rows x box_bytes.
inline CUtensorMap plane_boxes(const void* plane, int64_t row_bytes, int64_t rows, int64_t count, int64_t stride,
                               int box_bytes) {
    BoxedTensor t;
    t.data = plane;
    t.type = CU_TENSOR_MAP_DATA_TYPE_UINT8;
    t.swizzle = box_bytes == 128  ? CU_TENSOR_MAP_SWIZZLE_128B
                : box_bytes == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
                                  : CU_TENSOR_MAP_SWIZZLE_NONE;
    t.promotion = CU_TENSOR_MAP_L2_PROMOTION_L2_128B;
    t.rank = 3;
    t.extents[0] = static_cast<cuuint64_t>(row_bytes), t.extents[1] = static_cast<cuuint64_t>(rows);
    t.extents[2] = static_cast<cuuint64_t>(count);
    t.strides[0] = static_cast<cuuint64_t>(row_bytes);
    t.strides[1] = static_cast<cuuint64_t>(count > 1 ? stride : row_bytes * rows);
    t.box[0] = static_cast<cuuint32_t>(box_bytes), t.box[1] = 128;
    return encode(t);
}

template <DType T>
Planes planes_of(const Weight& w, int64_t count, int64_t stride) {
    Planes p = {};
    p.data = plane_boxes(w.data, w.cols / 2, w.rows, count, stride, 128);
    p.scales = plane_boxes(w.scales, w.cols / 16, w.rows, count, stride, 16);
    if constexpr (Span<T>::kHighRow > 0)
        p.high = plane_boxes(w.high, w.cols / 256 * Span<T>::kHighRow, w.rows, count, stride, Span<T>::kHighRow);
    if constexpr (Span<T>::kSixBits) p.d = static_cast<const char*>(w.scales) + w.rows * (w.cols / 256) * 16;
    p.stride = stride;
    return p;
}

/// The tensor maps of a problem.
template <DType T, class Out>
Maps maps_of(const DecodingProblem& job) {
    const GemmProblem& p = job.gemm;
    const int experts = p.expert_end - p.expert_begin, kinds = order_of<Out>() == RowOrder::swiglu ? 2 : 1;
    const bool shared = job.shared[0] != nullptr;
    Maps maps = {};
    maps.a = bf16_boxes(p.a, p.rows, p.k, kBoxRows);
    for (int i = 0; i < kinds; ++i) {
        maps.planes[0][i] = planes_of<T>(*job.first[i], experts - (shared ? 1 : 0), job.stride[i]);
        if (shared) maps.planes[1][i] = planes_of<T>(*job.shared[i], 1, 0);
    }
    return maps;
}

/// kernel(maps, work, out), persistent.
template <class S, class Out, class Kernel>
void launch_decoding(const Gpu& gpu, const DecodingProblem& job, const Out& out, Kernel kernel, int threads) {
    const GemmProblem& p = job.gemm;
    const int experts = p.expert_end - p.expert_begin;
    const Work work = {p, job.shared[0] != nullptr ? p.expert_end - 1 : -1, static_cast<int>(job.first[0]->rows)};
    const int64_t tiles = int64_t{ceil_div(p.rows, kTileM) + experts} * ceil_div(p.n, kTileN);  // at most
    RT_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::kShared));
    const auto grid = static_cast<unsigned>(std::min<int64_t>(tiles, gpu.info().sm_count));
    launch(gpu, kernel, grid, threads, S::kShared, maps_of<S::kType, Out>(job), work, out);
}

/// launch(std::integral_constant<DType, the weights' type>{}).
template <class Launch>
void with_planes(const DecodingProblem& job, const Launch& launch) {
    switch (job.first[0]->dtype) {
        case DType::planes_q4_k:
            return launch(std::integral_constant<DType, DType::planes_q4_k>{});
        case DType::planes_q5_k:
            return launch(std::integral_constant<DType, DType::planes_q5_k>{});
        default:
            return launch(std::integral_constant<DType, DType::planes_q6_k>{});
    }
}

}  // namespace riptide::ops::cuda::prefill
