// The experts' products on Hopper with weights decoded in the kernel: Q4_K, Q5_K and Q6_K planes to the bf16 tile that
// wgmma reads. Gives the bits of expand() and gemm(): the same bf16 weights, the same instructions in the same order.
//
// For a step of 128 rows x 256 weights' rows x 64 columns: 1024 clocks of tensor core (512 for up to 64 rows); 9.2 KB
// of planes, 512 clocks of a multiprocessor's share of 4.5 TB/s; 16384 weights at about 1.9 instructions of the integer
// pipe and 3.5 in all: some 490 clocks; shared memory at 128 bytes a clock: 256 clocks of stores, 768 (384) of wgmma's
// reads, 290 (190) of copies and plane reads. Floor for all 31 G routed weights at 16 rows an expert: 4.3 ms of memory,
// about 6 of shared memory; at 128 rows 9 ms. No device figures yet.
//
// Design: one persistent block on each multiprocessor. Warpgroup 0: one thread brings planes, 256 columns of 256 rows
// at a time, another boxes of 16 rows of A, both through TMA. Warpgroups 1 and 2 decode: a thread has one row of the
// tile, reads 32 bytes of its nibbles and writes 128 of bf16 for each step (two stages). Warpgroups 3 and 4 multiply
// all rows of A with 128 rows of B each (m64n128k16, once or twice: with 640 threads ptxas does not take m64n256k16).
// Experts come in descending order, so that the shared one, with the most rows, is not last. Limits: a tile of few rows
// costs as much decoding as one of 128; stores are not overlapped.
#include <algorithm>

#include "base/error.h"
#include "ops/prefill_decode.cuh"
#include "ops/prefill_gemm.cuh"
#include "ops/prefill_gemm_hopper.cuh"

namespace riptide::ops::cuda::prefill {

namespace {

constexpr int kTileN = kDecodeRows, kTileK = 64, kBoxRows = 16;
[[maybe_unused]] constexpr int kSpan = 256;  // columns of one piece of the planes
constexpr int kStagesA = 3, kStagesB = 2;
constexpr int kStageA = kTileM * kTileK * 2, kStageB = kTileN * kTileK * 2;
constexpr int kThreads = 5 * 128;
[[maybe_unused]] constexpr int kRegistersFeed = 32, kRegistersDecode = 64, kRegistersMultiply = 160, kWarps = 8;
static_assert(128 * kRegistersFeed + 256 * (kRegistersDecode + kRegistersMultiply) <= 640 * 96);

/// Stages of spans, and the shared memory of a block.
template <DType T>
struct Ring {
    static constexpr int kStages = T == DType::planes_q4_k ? 3 : 2;
    static constexpr int kShared = 1024 + kStagesA * kStageA + kStagesB * kStageB + kStages * Span<T>::kBytes + 256;
    static_assert(Span<T>::kBytes % 1024 == 0 && kShared <= 227 * 1024);
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

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// Addresses of the stages and their barriers in shared memory.
template <DType T>
struct Layout {
    uint32_t a, b, spans, full_a, empty_a, full_b, empty_b, full_span, empty_span;
    __device__ __forceinline__ explicit Layout(uint32_t base)
        : a(base),
          b(a + kStagesA * kStageA),
          spans(b + kStagesB * kStageB),
          full_a(spans + Ring<T>::kStages * Span<T>::kBytes),
          empty_a(full_a + 8 * kStagesA),
          full_b(empty_a + 8 * kStagesA),
          empty_b(full_b + 8 * kStagesB),
          full_span(empty_b + 8 * kStagesB),
          empty_span(full_span + 8 * Ring<T>::kStages) {}
};

/// A place in a ring of stages, and the parity of the round.
template <int kCount>
struct Turn {
    uint32_t stage = 0, parity = 0;
    __device__ __forceinline__ void next() {
        if (++stage == kCount) stage = 0, parity ^= 1;
    }
};

/// The tiles of this block, in order: calls body(tile) for each.
template <class Body>
__device__ __forceinline__ void for_tiles(const GemmProblem& p, const Body& body) {
    const int tiles = tile_count(p, kTileN);
    for (int t = static_cast<int>(blockIdx.x); t < tiles; t += static_cast<int>(gridDim.x))
        body(tile_at(p, kTileN, tiles - 1 - t));
}

/// One thread: A, as many boxes of 16 rows as the tile has.
template <DType T>
__device__ __forceinline__ void feed_rows(const Maps& maps, const GemmProblem& p, const Layout<T>& at) {
    const int steps = p.k / kTileK;
    Turn<kStagesA> turn;
    for_tiles(p, [&](const Tile& tile) {
        const int rows = min(kTileM, tile.row_end - tile.row), boxes = (rows + kBoxRows - 1) / kBoxRows;
        for (int step = 0; step < steps; ++step, turn.next()) {
            const uint32_t full = at.full_a + 8 * turn.stage, to = at.a + turn.stage * kStageA;
            barrier_wait(at.empty_a + 8 * turn.stage, turn.parity ^ 1);  // the first round passes at once
            barrier_expect(full, static_cast<uint32_t>(boxes * kBoxRows * kTileK * 2));
            for (int box = 0; box < boxes; ++box)
                load_box(to + static_cast<uint32_t>(box * kBoxRows * kTileK * 2), &maps.a, full, step * kTileK,
                         tile.row + box * kBoxRows);
        }
    });
}

/// One thread: the planes, in boxes of 128 rows; what lies behind a matrix's last row is zero, or (d) left as it is.
template <DType T, RowOrder kOrder>
__device__ __forceinline__ void feed_planes(const Maps& maps, const Work& work, const Layout<T>& at) {
    using S = Span<T>;
    const int spans = work.p.k / kSpan;
    Turn<Ring<T>::kStages> turn;
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
    __device__ __forceinline__ static void write16(uint32_t to, const Words4& v) {
        asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(v.w[0]), "r"(v.w[1]), "r"(v.w[2]),
                     "r"(v.w[3])
                     : "memory");
    }
};

/// Warpgroups 1 and 2: thread `thread` of 256.
template <DType T, RowOrder kOrder>
__device__ __forceinline__ void decode(const GemmProblem& p, const Layout<T>& at, int thread) {
    const DecodePlace place = decode_place(kOrder, thread);
    const bool leader = thread % 32 == 0;
    const int spans = p.k / kSpan;
    SharedMemory memory;
    Turn<Ring<T>::kStages> in;
    Turn<kStagesB> out;
    for_tiles(p, [&](const Tile&) {
        for (int span = 0; span < spans; ++span, in.next()) {
            const uint32_t from = at.spans + in.stage * Span<T>::kBytes;
            barrier_wait(at.full_span + 8 * in.stage, in.parity);
            const RowScales<T> scales = load_scales<T>(memory, from, place.from, span, spans);
            const bool quick = __all_sync(~0u, scales.quick) != 0;
#pragma unroll 1  // four times the code would not stay in the nearest instruction cache
            for (int step = 0; step < kSpan / kTileK; ++step, out.next()) {
                const StepWords words = load_step<T>(memory, from, place.from, step);
                barrier_wait(at.empty_b + 8 * out.stage, out.parity ^ 1);
                const uint32_t to = at.b + out.stage * kStageB;
                if (quick) store_step<T, true>(memory, to, place.to, step, words, scales);
                else store_step<T, false>(memory, to, place.to, step, words, scales);
                asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // wgmma reads what was stored
                __syncwarp();
                if (leader) barrier_arrive(at.full_b + 8 * out.stage);
            }
            if (leader) barrier_arrive(at.empty_span + 8 * in.stage);
        }
    });
}

/// Stages of A and B go round together in the warpgroups that multiply.
struct Turns {
    Turn<kStagesA> a;
    Turn<kStagesB> b;
    __device__ __forceinline__ void next() { a.next(), b.next(); }
};

template <DType T>
__device__ __forceinline__ void wait_full(const Layout<T>& at, const Turns& turns) {
    barrier_wait(at.full_a + 8 * turns.a.stage, turns.a.parity);
    barrier_wait(at.full_b + 8 * turns.b.stage, turns.b.parity);
}
template <DType T>
__device__ __forceinline__ void give_back(const Layout<T>& at, const Turns& turns, bool leader) {
    if (!leader) return;
    barrier_arrive(at.empty_a + 8 * turns.a.stage);
    barrier_arrive(at.empty_b + 8 * turns.b.stage);
}

/// Sums of 64 kHalves rows of a tile with the 128 rows of B at `b` of each stage.
template <int kHalves, DType T>
__device__ __forceinline__ void sum_tile(float (&d)[kHalves][64], int steps, Turns& turns, const Layout<T>& at,
                                         uint32_t b, bool leader) {
#pragma unroll
    for (int h = 0; h < kHalves; ++h)
#pragma unroll
        for (int j = 0; j < 64; ++j) d[h][j] = 0.0f;
    Turns before = turns;
    for (int step = 0; step < steps; ++step, turns.next()) {
        wait_full(at, turns);
        const uint64_t da = rows_descriptor(at.a + turns.a.stage * kStageA),
                       db = rows_descriptor(b + turns.b.stage * kStageB);
        wgmma_fence();
#pragma unroll
        for (int part = 0; part < kTileK / 16; ++part)  // 32 bytes on
#pragma unroll
            for (int h = 0; h < kHalves; ++h) wgmma_rows(d[h], da + (h * (kStageA / 2) >> 4) + 2 * part, db + 2 * part);
        wgmma_commit();
        if constexpr (kHalves == 1) {
            // Decoding is slower than 64 rows: it must not wait for this stage until the next one is full.
            wgmma_wait<0>();
            give_back(at, turns, leader);
        } else {
            if (step > 0) {
                wgmma_wait<1>();  // the step before is done with its stages
                give_back(at, before, leader);
            }
            before = turns;
        }
    }
    if constexpr (kHalves == 1) return;
    wgmma_wait<0>();
    give_back(at, before, leader);
}

/// One tile of a warpgroup; n: its first column.
template <int kHalves, DType T, class Out>
__device__ __forceinline__ void make_tile(const GemmProblem& p, const Out& out, const Tile& tile, int n, Turns& turns,
                                          const Layout<T>& at, uint32_t b) {
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32 % 4);
    float d[kHalves][64];
    sum_tile<kHalves>(d, p.k / kTileK, turns, at, b, lane == 0);
#pragma unroll
    for (int part = 0; part < 2 * kHalves; ++part) {
        const int row = tile.row + 16 * warp + lane / 4 + 8 * (part % 2) + 64 * (part / 2);
        if (row >= tile.row_end) continue;
#pragma unroll
        for (int c = 0; c < 2; ++c) {
            if (n + 64 * c >= p.n) continue;
            float v[16];
#pragma unroll
            for (int j = 0; j < 16; ++j) v[j] = d[part / 2][4 * (8 * c + j / 2) + 2 * (part % 2) + j % 2];
            store_row64(out, row, n + 64 * c, lane % 4, v);
        }
    }
}

/// Warpgroups 3 and 4 (`group` 0 and 1).
template <DType T, class Out>
__device__ __forceinline__ void multiply(const GemmProblem& p, const Out& out, const Layout<T>& at, int group) {
    const uint32_t b = at.b + static_cast<uint32_t>(group) * (kStageB / 2);
    Turns turns;
    for_tiles(p, [&](const Tile& tile) {
        const int n = tile.n + group * (kTileN / 2);
        if (tile.row + 64 < tile.row_end) make_tile<2>(p, out, tile, n, turns, at, b);
        else make_tile<1>(p, out, tile, n, turns, at, b);
    });
}

#endif

template <class Out>
constexpr RowOrder order_of() {
    return std::is_same_v<Out, OutSwiglu> ? RowOrder::swiglu : RowOrder::f32;
}

template <DType T, class Out>
__global__ void __launch_bounds__(kThreads, 1)
    gemm_decoding_kernel(const __grid_constant__ Maps maps, const __grid_constant__ Work work,
                         const __grid_constant__ Out out) {
    pdl_trigger();
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ uint8_t memory[];
    const Layout<T> at((shared_address(memory) + 1023u) & ~1023u);
    if (threadIdx.x == 0) {
        for (int s = 0; s < kStagesA; ++s) barrier_init(at.full_a + 8 * s, 1), barrier_init(at.empty_a + 8 * s, kWarps);
        for (int s = 0; s < kStagesB; ++s)
            barrier_init(at.full_b + 8 * s, kWarps), barrier_init(at.empty_b + 8 * s, kWarps);
        for (int s = 0; s < Ring<T>::kStages; ++s)
            barrier_init(at.full_span + 8 * s, 1), barrier_init(at.empty_span + 8 * s, kWarps);
        barrier_init_fence();
    }
    __syncthreads();
    pdl_wait();
    const int group = __shfl_sync(~0u, static_cast<int>(threadIdx.x / 128), 0);
    if (group == 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegistersFeed));
        if (threadIdx.x == 0) feed_planes<T, order_of<Out>()>(maps, work, at);
        if (threadIdx.x == 32) {
            asm volatile("fence.proxy.async.global;" ::: "memory");  // earlier kernels wrote A with plain stores
            feed_rows<T>(maps, work.p, at);
        }
    } else if (group <= 2) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegistersDecode));
        decode<T, order_of<Out>()>(work.p, at, static_cast<int>(threadIdx.x) - 128);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegistersMultiply));
        multiply<T>(work.p, out, at, group - 3);
    }
#else
    pdl_wait();
    __trap();  // never launched there
#endif
}

/// A plane of `count` matrices of `rows` rows, row_bytes each: boxes of 128 rows x box_bytes.
CUtensorMap plane_boxes(const void* plane, int64_t row_bytes, int64_t rows, int64_t count, int64_t stride,
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

template <DType T, class Out>
void launch_decoding(const Gpu& gpu, const DecodingProblem& job, const Out& out) {
    const GemmProblem& p = job.gemm;
    const int experts = p.expert_end - p.expert_begin, kinds = order_of<Out>() == RowOrder::swiglu ? 2 : 1;
    const bool shared = job.shared[0] != nullptr;
    Maps maps = {};
    maps.a = bf16_boxes(p.a, p.rows, p.k, kBoxRows);
    for (int i = 0; i < kinds; ++i) {
        maps.planes[0][i] = planes_of<T>(*job.first[i], experts - (shared ? 1 : 0), job.stride[i]);
        if (shared) maps.planes[1][i] = planes_of<T>(*job.shared[i], 1, 0);
    }
    const Work work = {p, shared ? p.expert_end - 1 : -1, static_cast<int>(job.first[0]->rows)};
    const int64_t tiles = int64_t{ceil_div(p.rows, kTileM) + experts} * ceil_div(p.n, kTileN);  // at most
    const auto kernel = gemm_decoding_kernel<T, Out>;
    RT_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Ring<T>::kShared));
    const auto grid = static_cast<unsigned>(std::min<int64_t>(tiles, gpu.info().sm_count));
    launch(gpu, kernel, grid, kThreads, Ring<T>::kShared, maps, work, out);
}

template <class Out>
void choose(const Gpu& gpu, const DecodingProblem& job, const Out& out) {
    RT_ASSERT(job.gemm.plan.row_first != nullptr && job.gemm.expert_begin == 0);
    if (job.gemm.rows == 0) return;
    switch (job.first[0]->dtype) {
        case DType::planes_q4_k:
            return launch_decoding<DType::planes_q4_k>(gpu, job, out);
        case DType::planes_q5_k:
            return launch_decoding<DType::planes_q5_k>(gpu, job, out);
        default:
            return launch_decoding<DType::planes_q6_k>(gpu, job, out);
    }
}

}  // namespace

bool can_decode(const Gpu& gpu, const Weight& w, int64_t stride) {
    const bool type = w.dtype == DType::planes_q4_k || w.dtype == DType::planes_q5_k || w.dtype == DType::planes_q6_k;
    if (!gpu.hopper() || !type || w.scale != 1.0f || w.rows % 64 != 0 || stride % 16 != 0) return false;
    return w.dtype != DType::planes_q6_k || w.cols / 256 * 512 <= Span<DType::planes_q6_k>::kMostD;
}

void gemm_decoding(const Gpu& gpu, const DecodingProblem& job, const OutF32& out) { choose(gpu, job, out); }
void gemm_decoding(const Gpu& gpu, const DecodingProblem& job, const OutSwiglu& out) { choose(gpu, job, out); }

}  // namespace riptide::ops::cuda::prefill
