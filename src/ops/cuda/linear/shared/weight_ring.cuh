// Where the weights of a tile lie in shared memory (a stage), and how they get there: one warp asks for stages, the
// others use them. See tile.cuh.
#pragma once

#include "ops/cuda/linear/shared/dot_kquant.cuh"
#include "ops/cuda/linear/shared/linear.h"
#include "ops/cuda/linear/shared/shapes.h"

namespace riptide::ops::cuda::decode {

/// The planes of a matrix of planes_q4_k, planes_q5_k or planes_q6_k rows.
struct TilePlanes {
    const char* data = nullptr;
    const char* high = nullptr;
    const char* scales = nullptr;
    const char* d = nullptr;  // planes_q6_k: behind the scales

    RT_HD TilePlanes moved(int64_t data_bytes, int64_t high_bytes, int64_t scale_bytes) const {
        return {data + data_bytes, high == nullptr ? nullptr : high + high_bytes, scales + scale_bytes,
                d + scale_bytes};
    }
};

inline TilePlanes tile_planes(const Matrix& m) {
    return {m.data, m.high, m.scales, m.scales + static_cast<int64_t>(m.rows) * (m.cols / 16)};
}

/// One of the matrices of a group, whose rows are cut into tiles.
struct TileMatrix {
    TilePlanes planes;
    float* y;
    int32_t rows, first;  // first tile
    int32_t q6;
};
/// Puts a matrix of such planes behind those of a group: Args has m, matrices and tiles.
template <class Args>
void add_tiles(Args& a, const Weight& w, float* y, int32_t tile_rows) {
    const auto rows = static_cast<int32_t>(w.rows);
    a.m[a.matrices++] = {tile_planes(matrix_of(w)), y, rows, a.tiles, w.dtype == DType::planes_q6_k};
    a.tiles += (rows + tile_rows - 1) / tile_rows;
}

#ifdef __CUDACC__

__device__ __forceinline__ void commit_copies() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
/// Until all but the newest `pending` groups of copies of this thread are there (or fewer: it counts to four).
__device__ __forceinline__ void wait_copies(int pending) {
#if __CUDA_ARCH__ >= 800
    if (pending >= 4) asm volatile("cp.async.wait_group 4;" ::: "memory");
    else if (pending == 3) asm volatile("cp.async.wait_group 3;" ::: "memory");
    else if (pending == 2) asm volatile("cp.async.wait_group 2;" ::: "memory");
    else if (pending == 1) asm volatile("cp.async.wait_group 1;" ::: "memory");
    else asm volatile("cp.async.wait_group 0;" ::: "memory");
#endif
}

/// The matrix of a group that a tile belongs to.
template <class Args>
__device__ __forceinline__ const auto& matrix_of_tile(const Args& a, int tile) {
    int i = 0;
    while (i + 1 < a.matrices && tile >= a.m[i + 1].first) ++i;
    return a.m[i];
}

/// The number of the outer thing (a tile, a group) and of the part of it, in a walk over all parts.
struct Cursor {
    int outer, part;

    __device__ __forceinline__ void advance(int parts, int step) {
        if (++part == parts) part = 0, outer += step;
    }
};
/// `kRows` rows of kBytes of a plane to shared memory, kStride apart, by one warp: rows row_of(0), row_of(1), ...,
/// which lie row_bytes apart.
template <int kBytes, int kStride, int kRows, class RowOf>
__device__ __forceinline__ void fetch_plane(char* to, const char* from, int row_bytes, const RowOf& row_of) {
    const int lane = threadIdx.x % 32;
    const auto row_at = [&](int r) { return from + static_cast<int64_t>(row_of(r)) * row_bytes; };
    if constexpr (kBytes >= 512) {
#pragma unroll
        for (int r = 0; r < kRows; ++r)
#pragma unroll
            for (int q = 0; q < kBytes / 512; ++q)
                copy_async16(to + r * kStride + 512 * q + 16 * lane, row_at(r) + 512 * q + 16 * lane);
    } else {
        constexpr int kPieces = kBytes / 16, kRound = 32 / kPieces;  // rows at a time
#pragma unroll
        for (int k = 0; k < (kRows + kRound - 1) / kRound; ++k) {
            const int r = k * kRound + lane / kPieces, c = lane % kPieces * 16;
            if (kRound <= kRows || r < kRows) copy_async16(to + r * kStride + c, row_at(r) + c);
        }
    }
}

/// Rows row_of(0), ..., row_of(kRows - 1) of a matrix with `cols` columns, their columns [chunk * Cols, ...), to rows
/// at, at + 1, ... of a stage, by one warp. Narrow: cols = Cols, and rows that follow one another, from a multiple of 4
/// on.
template <DType Type, int Cols, int kRows, class RowOf>
__device__ __forceinline__ void fetch_rows(const TilePlanes& planes, int cols, int chunk, const RowOf& row_of,
                                           char* stage, int at) {
    using T = Tile<Type, Cols>;
    fetch_plane<Cols / 2, T::kDataStride, kRows>(stage + at * T::kDataStride, planes.data + chunk * (Cols / 2),
                                                 cols / 2, row_of);
    fetch_plane<Cols / 16, T::kHeadStride, kRows>(stage + T::kHeads + at * T::kHeadStride,
                                                  planes.scales + chunk * (Cols / 16), cols / 16, row_of);
    if constexpr (T::kHighBytes > 0)
        fetch_plane<T::kHighBytes, T::kHighStride, kRows>(stage + T::kHigh + at * T::kHighStride,
                                                          planes.high + chunk * T::kHighBytes,
                                                          cols / (Cols / T::kHighBytes), row_of);
    if constexpr (T::kQ6) {
        if constexpr (T::kWide)
            fetch_plane<16, 16, kRows>(stage + T::kD + 16 * at, planes.d + chunk * 16, cols / 128, row_of);
        else
            fetch_plane<16, 16, kRows / 4>(stage + T::kD + 4 * at, planes.d, 16,
                                           [&](int r) { return row_of(4 * r) / 4; });
    }
}

/// The ring of stages between the warp that asks for them, which runs ahead, and those that use them, each at its own
/// pace: an mbarrier for "it is there" (32 arrivals) and one for "all have used it" (32 arrivals a warp) for each
/// stage. Every warp goes through the stages in the same order with a StageRing of its own.
class StageRing {
  public:
    __device__ __forceinline__ StageRing(void* barriers, int stages)
        : barriers_(static_cast<uint32_t>(__cvta_generic_to_shared(barriers))), stages_(stages) {}
    /// By one thread, before a barrier of the CTA. asks: arrivals that fill a stage: 32 of asked(), and as many of
    /// arrive() if the warp also stores by itself.
    __device__ __forceinline__ void init(int users, int asks = 32) const {
#if __CUDA_ARCH__ >= 800
#pragma unroll 1
        for (int i = 0; i < stages_; ++i) {
            asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barriers_ + 16 * i), "r"(asks) : "memory");
            asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barriers_ + 16 * i + 8), "r"(32 * users)
                         : "memory");
        }
#endif
    }
    /// The stage that is next.
    __device__ __forceinline__ int at() const { return at_; }
    __device__ __forceinline__ void advance() {
        if (++at_ == stages_) at_ = 0, parity_ ^= 1;
    }
    __device__ __forceinline__ void wait_until_empty() const { wait(barriers_ + 16 * at_ + 8, parity_ ^ 1); }
    __device__ __forceinline__ void wait_until_full() const { wait(barriers_ + 16 * at_, parity_); }
    /// It is full as soon as the copies that this thread asked for (and those of the 31 others) are there.
    __device__ __forceinline__ void asked() const {
#if __CUDA_ARCH__ >= 800
        asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barriers_ + 16 * at_) : "memory");
#endif
    }
    /// What this thread itself stored is there.
    __device__ __forceinline__ void arrive() const {
#if __CUDA_ARCH__ >= 800
        asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(barriers_ + 16 * at_) : "memory");
#endif
    }
    /// This lane has read what it needs. All lanes say so themselves: one for its warp, behind a __syncwarp(), is as
    /// right, but no race checker follows it.
    __device__ __forceinline__ void used() const {
#if __CUDA_ARCH__ >= 800
        asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(barriers_ + 16 * at_ + 8) : "memory");
#endif
    }
    static constexpr int kBytes = 16;  // of a stage's barriers

  private:
    static __device__ __forceinline__ void wait(uint32_t barrier, uint32_t parity) {
#if __CUDA_ARCH__ >= 900
        asm volatile(
            "{\n.reg .pred p;\nagain_%=:\nmbarrier.try_wait.parity.shared.b64 p, [%0], %1;\n@!p bra again_%=;\n}" ::"r"(
                barrier),
            "r"(parity)
            : "memory");
#elif __CUDA_ARCH__ >= 800
        asm volatile(
            "{\n.reg .pred p;\nagain_%=:\nmbarrier.test_wait.parity.shared.b64 p, [%0], %1;\n@!p bra again_%=;\n}" ::
                "r"(barrier),
            "r"(parity)
            : "memory");
#endif
    }

    uint32_t barriers_, parity_ = 0;
    int stages_, at_ = 0;
};

/// Barrier of the first kWarpCount warps of a CTA.
template <int kWarpCount>
__device__ __forceinline__ void sync_warps() {
    asm volatile("bar.sync 1, %0;" ::"n"(32 * kWarpCount) : "memory");
}

#endif  // __CUDACC__

}  // namespace riptide::ops::cuda::decode
