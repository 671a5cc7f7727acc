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

inline constexpr int kTileK = 64, kBoxRows = 16;
inline constexpr int kSpan = 256;   // columns of one piece of the planes
inline constexpr int kMakers = 64;  // threads that make factors

/// The shared memory of a block: kA stages of kTileM rows of A, kSpans of planes of kTileRows rows; behind them
/// barriers and a word for each stage of planes.
template <DType T, int kA, int kSpans>
struct Stages {
    using S = Span<T>;
    static constexpr int kStagesA = kA, kStagesSpan = kSpans;
    static constexpr int kStageA = kTileM * kTileK * 2;
    static constexpr int kShared = 1024 + kA * kStageA + kSpans * S::kBytes + 256;
    static_assert(S::kBytes % 1024 == 0 && 16 * kA + 28 * kSpans <= 256 && kShared <= 227 * 1024);
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

/// Addresses of the stages and their barriers in shared memory. full: one arrival and the bytes; made: one of each
/// maker; empty_a: one of each warp that multiplies; empty_span: one of each of its lanes, which read it themselves.
template <class R>
struct Layout {
    uint32_t a, spans, full_a, empty_a, full_span, made, empty_span, quick;
    __device__ __forceinline__ explicit Layout(uint32_t base)
        : a(base),
          spans(a + R::kStagesA * R::kStageA),
          full_a(spans + R::kStagesSpan * R::S::kBytes),
          empty_a(full_a + 8 * R::kStagesA),
          full_span(empty_a + 8 * R::kStagesA),
          made(full_span + 8 * R::kStagesSpan),
          empty_span(made + 8 * R::kStagesSpan),
          quick(empty_span + 8 * R::kStagesSpan) {}
    /// By one thread, once.
    __device__ __forceinline__ void init(int warps) const {
        for (int s = 0; s < R::kStagesA; ++s) barrier_init(full_a + 8 * s, 1), barrier_init(empty_a + 8 * s, warps);
        for (int s = 0; s < R::kStagesSpan; ++s) {
            barrier_init(full_span + 8 * s, 1);
            barrier_init(made + 8 * s, kMakers);
            barrier_init(empty_span + 8 * s, 32 * warps);
        }
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

/// How many tiles this block has: see for_tiles().
__device__ __forceinline__ int tiles_of_block(const GemmProblem& p) {
    const int tiles = tile_count(p, kTileRows), blocks = static_cast<int>(gridDim.x);
    const int block = static_cast<int>(blockIdx.x), turns = tiles / blocks;
    return turns + ((turns > 0 ? blocks - 1 - block : block) < tiles % blocks ? 1 : 0);
}

/// The tiles of this block, in order: calls body(tile) for each. An expert's tiles follow each other, so that what they
/// share is read once from memory; the shared one's come first. Tiles are dealt in turns, all but the first backwards:
/// the last turn, which is not for all, leaves out blocks that began with a tile of the shared expert's many rows. An
/// expert's rows are shared out evenly among its tiles.
template <class Body>
__device__ __forceinline__ void for_tiles(const GemmProblem& p, const Body& body) {
    const int tiles = tile_count(p, kTileRows), blocks = static_cast<int>(gridDim.x);
    const int block = static_cast<int>(blockIdx.x), mine = tiles_of_block(p);
    for (int turn = 0; turn < mine; ++turn) {
        const int t = turn * blocks + (turn > 0 ? blocks - 1 - block : block);
        body(even_tile(p, tile_at(p, kTileRows, tiles - 1 - t)));
    }
}

/// One thread: A, as many boxes of 16 rows as the tile has.
template <class R>
__device__ __forceinline__ void feed_rows(const Maps& maps, const GemmProblem& p, const Layout<R>& at) {
    const int steps = p.k / kTileK;
    Turn<R::kStagesA> turn;
    for_tiles(p, [&](const Tile& tile) {
        const int boxes = ceil_div(tile.row_end - tile.row, kBoxRows);
        for (int step = 0; step < steps; ++step, turn.next()) {
            const uint32_t full = at.full_a + 8 * turn.stage, to = at.a + turn.stage * R::kStageA;
            barrier_wait(at.empty_a + 8 * turn.stage, turn.parity ^ 1);  // the first round passes at once
            barrier_expect(full, static_cast<uint32_t>(boxes * kBoxRows * kTileK * 2));
            for (int box = 0; box < boxes; ++box)
                load_box(to + static_cast<uint32_t>(box * kBoxRows * kTileK * 2), &maps.a, full, step * kTileK,
                         tile.row + box * kBoxRows);
        }
    });
}

/// One thread: the planes, in two boxes; what lies behind a matrix's last row is zero, or (d) left as it is.
template <RowOrder kOrder, class R>
__device__ __forceinline__ void feed_planes(const Maps& maps, const Work& work, const Layout<R>& at) {
    using S = typename R::S;
    const int spans = work.p.k / kSpan;
    Turn<R::kStagesSpan> turn;
    for_tiles(work.p, [&](const Tile& tile) {
        const bool shared = tile.expert == work.shared_expert;
        const int z = shared ? 0 : tile.expert;
        for (int span = 0; span < spans; ++span, turn.next()) {
            const uint32_t full = at.full_span + 8 * turn.stage, to = at.spans + turn.stage * S::kBytes;
            barrier_wait(at.empty_span + 8 * turn.stage, turn.parity ^ 1);
            uint32_t d_bytes[2] = {0, 0};
            if constexpr (S::kSixBits) {
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    const int row = kOrder == RowOrder::swiglu ? tile.n / 2 : tile.n + S::kBoxRows * h;
                    d_bytes[h] = static_cast<uint32_t>(max(0, min(S::kBoxRows, work.matrix_rows - row)) * spans * 2);
                }
            }
            barrier_expect(full, S::kData + S::kHigh + S::kScales + d_bytes[0] + d_bytes[1]);
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const Planes& from = maps.planes[shared ? 1 : 0][kOrder == RowOrder::swiglu ? h : 0];
                const int row = kOrder == RowOrder::swiglu ? tile.n / 2 : tile.n + S::kBoxRows * h;
                const uint32_t high = to + S::kAtHigh, scales = to + S::kAtScales, d = to + S::kAtD;
                load_box(to + h * (S::kData / 2), &from.data, full, 128 * span, row, z);
                load_box(scales + h * (S::kScales / 2), &from.scales, full, 16 * span, row, z);
                if constexpr (S::kHigh > 0)
                    load_box(high + h * (S::kHigh / 2), &from.high, full, S::kHighRow * span, row, z);
                if constexpr (S::kSixBits) {
                    if (d_bytes[h] > 0)
                        bulk_copy(d + static_cast<uint32_t>(h * S::kBoxRows * spans * 2),
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
    __device__ __forceinline__ static void write4(uint32_t to, uint32_t v) {
        asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(v) : "memory");
    }
    __device__ __forceinline__ static void write8(uint32_t to, float a, float b) {
        asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(a), "f"(b) : "memory");
    }
};

/// Thread `maker` of kMakers: the factors of the scales of all spans. If one row's offset is not exact
/// (RowScales::quick), all rows of the span are decoded the slower way, and the stage's word says so.
template <class R>
__device__ __forceinline__ void make_factors(const GemmProblem& p, const Layout<R>& at, int maker) {
    using S = typename R::S;
    const int spans = p.k / kSpan, tiles = tiles_of_block(p);
    SharedMemory memory;
    Turn<R::kStagesSpan> turn;
    for (int tile = 0; tile < tiles; ++tile)
        for (int span = 0; span < spans; ++span, turn.next()) {
            const uint32_t from = at.spans + turn.stage * S::kBytes;
            barrier_wait(at.empty_span + 8 * turn.stage, turn.parity ^ 1);  // nobody reads the last factors
            barrier_wait(at.full_span + 8 * turn.stage, turn.parity);
            bool quick = true;
            if constexpr (!S::kSixBits) {
                for (int row = maker % 32; row < S::kRows; row += 32) {
                    const uint32_t both = memory.read4(from + static_cast<uint32_t>(S::kAtScales + row * 16 + 12));
                    quick = quick && exact_offset(static_cast<uint16_t>(both), static_cast<uint16_t>(both >> 16));
                }
                quick = __all_sync(~0u, quick);
                if (maker == 0) memory.write4(at.quick + 4 * turn.stage, static_cast<uint32_t>(quick));
            }
#pragma unroll 1
            for (int row = maker; row < S::kRows; row += kMakers) {
                const auto scales = load_scales<S>(memory, from, row, span, spans);
                const uint32_t to = from + static_cast<uint32_t>(S::kAtFactors + row * S::kFactorRow);
                constexpr int kPerSub = S::kGroups / 8;
#pragma unroll
                for (int g = 0; g < S::kGroups; ++g) {
                    const int sub = g / kPerSub;
                    const Affine f = affine_of(scales, scales.header.w[sub / 2], sub, g % kPerSub, quick);
                    memory.write8(to + static_cast<uint32_t>(g * S::kRows * S::kFactorRow), f.scale, f.offset);
                }
            }
            barrier_arrive(at.made + 8 * turn.stage);
        }
}

#endif

/// A plane of `count` matrices of `rows` rows, row_bytes each: boxes of box_rows x box_bytes.
inline CUtensorMap plane_boxes(const void* plane, int64_t row_bytes, int64_t rows, int64_t count, int64_t stride,
                               int box_rows, int box_bytes) {
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
    t.box[0] = static_cast<cuuint32_t>(box_bytes), t.box[1] = static_cast<cuuint32_t>(box_rows);
    return encode(t);
}

template <class S>
Planes planes_of(const Weight& w, int64_t count, int64_t stride) {
    Planes p = {};
    constexpr int kRows = S::kBoxRows;
    p.data = plane_boxes(w.data, w.cols / 2, w.rows, count, stride, kRows, 128);
    p.scales = plane_boxes(w.scales, w.cols / 16, w.rows, count, stride, kRows, 16);
    if constexpr (S::kHighRow > 0)
        p.high = plane_boxes(w.high, w.cols / 256 * S::kHighRow, w.rows, count, stride, kRows, S::kHighRow);
    if constexpr (S::kSixBits) p.d = static_cast<const char*>(w.scales) + w.rows * (w.cols / 256) * 16;
    p.stride = stride;
    return p;
}

/// The tensor maps of a problem.
template <class S, class Out>
Maps maps_of(const DecodingProblem& job) {
    const GemmProblem& p = job.gemm;
    const int experts = p.expert_end - p.expert_begin, kinds = order_of<Out>() == RowOrder::swiglu ? 2 : 1;
    const bool shared = job.shared[0] != nullptr;
    Maps maps = {};
    maps.a = bf16_boxes(p.a, p.rows, p.k, kBoxRows);
    for (int i = 0; i < kinds; ++i) {
        maps.planes[0][i] = planes_of<S>(*job.first[i], experts - (shared ? 1 : 0), job.stride[i]);
        if (shared) maps.planes[1][i] = planes_of<S>(*job.shared[i], 1, 0);
    }
    return maps;
}

/// kernel(maps, work, out), persistent.
template <class R, class Out, class Kernel>
void launch_decoding(const Gpu& gpu, const DecodingProblem& job, const Out& out, Kernel kernel, int threads) {
    const GemmProblem& p = job.gemm;
    const int experts = p.expert_end - p.expert_begin;
    const Work work = {p, job.shared[0] != nullptr ? p.expert_end - 1 : -1, static_cast<int>(job.first[0]->rows)};
    const int64_t tiles = int64_t{ceil_div(p.rows, kTileM) + experts} * ceil_div(p.n, kTileRows);  // at most
    RT_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, R::kShared));
    const auto grid = static_cast<unsigned>(std::min<int64_t>(tiles, gpu.info().sm_count));
    launch(gpu, kernel, grid, threads, R::kShared, maps_of<typename R::S, Out>(job), work, out);
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
