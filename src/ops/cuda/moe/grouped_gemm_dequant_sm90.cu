// The experts' products on Hopper with weights decoded in the kernel: Q4_K, Q5_K and Q6_K planes to the bf16 tile that
// wgmma reads. Gives the bits of expand() and gemm(): the same bf16 weights, the same instructions in the same order.
//
// For a step of 128 rows x 256 weights' rows x 64 columns: 1024 clocks of tensor core (512 for up to 64 rows); 9.2 KB
// of planes, 512 clocks of a multiprocessor's share of 4.5 TB/s; 16384 weights at about 1.9 instructions of the integer
// pipe and 3.5 in all: some 490 clocks; shared memory at 128 bytes a clock: 256 clocks of stores, 768 (384) of wgmma's
// reads, 290 (190) of copies and plane reads. Floor for all 31 G routed weights at 16 rows an expert: 4.3 ms of memory,
// about 6 of shared memory; at 128 rows 9 ms. At 16 rows an expert it took three times that (241 us for gate and up of
// a layer, 48 % of the issue slots, H200, 2026-11-21): grouped_gemm_dequant_few_rows_sm90.cu has those.
//
// Design: one persistent block on each multiprocessor. Warpgroup 0: one thread brings planes, 256 columns of 256 rows
// at a time, another boxes of 16 rows of A, both through TMA. Warpgroups 1 and 2 decode: a thread has one row of the
// tile, reads 32 bytes of its nibbles and writes 128 of bf16 for each step (two stages). Warpgroups 3 and 4 multiply
// all rows of A with 128 rows of B each (m64n128k16, once or twice: with 640 threads ptxas does not take m64n256k16).
// Experts come in descending order, so that the shared one, with the most rows, is not last. Limits: a tile of few rows
// costs as much decoding as one of 128; stores are not overlapped.
#include "ops/cuda/moe/grouped_gemm_dequant_sm90.cuh"
#include "ops/cuda/moe/plan.h"

namespace riptide::ops::cuda::prefill {

namespace {

[[maybe_unused]] constexpr int kRegistersFeed = 32, kRegistersDecode = 64, kRegistersMultiply = 160, kWarps = 8;
static_assert(128 * kRegistersFeed + 256 * (kRegistersDecode + kRegistersMultiply) <= kDecodingThreads * 96);

template <DType T>
using Ring = Stages<T, kTileM, 3, 2, T == DType::planes_q4_k ? 3 : 2>;

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// Warpgroups 1 and 2: thread `thread` of 256.
template <DType T, RowOrder kOrder>
__device__ __forceinline__ void decode(const GemmProblem& p, const Layout<Ring<T>>& at, int thread) {
    const DecodePlace place = decode_place(kOrder, thread);
    const bool leader = thread % 32 == 0;
    const int spans = p.k / kSpan;
    SharedMemory memory;
    Turn<Ring<T>::kStagesSpan> in;
    Turn<Ring<T>::kStagesB> out;
    for_tiles<kTileM>(p, [&](const Tile&) {
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
            at.give_back_span(in.stage, leader);
        }
    });
}

/// Stages of A and B go round together in the warpgroups that multiply.
template <DType T>
struct Turns {
    Turn<Ring<T>::kStagesA> a;
    Turn<Ring<T>::kStagesB> b;
    __device__ __forceinline__ void next() { a.next(), b.next(); }
};

template <DType T>
__device__ __forceinline__ void wait_full(const Layout<Ring<T>>& at, const Turns<T>& turns) {
    barrier_wait(at.full_a + 8 * turns.a.stage, turns.a.parity);
    barrier_wait(at.full_b + 8 * turns.b.stage, turns.b.parity);
}
template <DType T>
__device__ __forceinline__ void give_back(const Layout<Ring<T>>& at, const Turns<T>& turns, bool leader) {
    if (!leader) return;
    barrier_arrive(at.empty_a + 8 * turns.a.stage);
    barrier_arrive(at.empty_b + 8 * turns.b.stage);
}

/// Sums of 64 kHalves rows of a tile with the 128 rows of B at `b` of each stage.
template <int kHalves, DType T>
__device__ __forceinline__ void sum_tile(float (&d)[kHalves][64], int steps, Turns<T>& turns, const Layout<Ring<T>>& at,
                                         uint32_t b, bool leader) {
#pragma unroll
    for (int h = 0; h < kHalves; ++h)
#pragma unroll
        for (int j = 0; j < 64; ++j) d[h][j] = 0.0f;
    Turns<T> before = turns;
    for (int step = 0; step < steps; ++step, turns.next()) {
        wait_full(at, turns);
        const uint64_t da = rows_descriptor(at.a + turns.a.stage * Ring<T>::kStageA),
                       db = rows_descriptor(b + turns.b.stage * kStageB);
        wgmma_fence();
#pragma unroll
        for (int part = 0; part < kTileK / 16; ++part)  // 32 bytes on
#pragma unroll
            for (int h = 0; h < kHalves; ++h)
                wgmma_rows(d[h], da + (h * (Ring<T>::kStageA / 2) >> 4) + 2 * part, db + 2 * part);
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
__device__ __forceinline__ void make_tile(const GemmProblem& p, const Out& out, const Tile& tile, int n,
                                          Turns<T>& turns, const Layout<Ring<T>>& at, uint32_t b) {
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
__device__ __forceinline__ void multiply(const GemmProblem& p, const Out& out, const Layout<Ring<T>>& at, int group) {
    const uint32_t b = at.b + static_cast<uint32_t>(group) * (kStageB / 2);
    Turns<T> turns;
    for_tiles<kTileM>(p, [&](const Tile& tile) {
        const int n = tile.n + group * (kTileN / 2);
        if (tile.row + 64 < tile.row_end) make_tile<2>(p, out, tile, n, turns, at, b);
        else make_tile<1>(p, out, tile, n, turns, at, b);
    });
}

#endif

template <DType T, class Out>
__global__ void __launch_bounds__(kDecodingThreads, 1)
    grouped_gemm_dequant_kernel(const __grid_constant__ Maps maps, const __grid_constant__ Work work,
                                const __grid_constant__ Out out) {
    pdl_trigger();
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ uint8_t memory[];
    const Layout<Ring<T>> at((shared_address(memory) + 1023u) & ~1023u);
    if (threadIdx.x == 0) at.init(kWarps);
    __syncthreads();
    pdl_wait();
    const int group = __shfl_sync(~0u, static_cast<int>(threadIdx.x / 128), 0);
    if (group == 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegistersFeed));
        if (threadIdx.x == 0) feed_planes<order_of<Out>()>(maps, work, at);
        if (threadIdx.x == 32) {
            asm volatile("fence.proxy.async.global;" ::: "memory");  // earlier kernels wrote A with plain stores
            feed_rows(maps, work.p, at);
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

}  // namespace

template <class Out>
void gemm_decoding_many(const Gpu& gpu, const DecodingProblem& job, const Out& out) {
    with_planes(job, [&](auto type) {
        constexpr DType kType = decltype(type)::value;
        launch_decoding<Ring<kType>>(gpu, job, out, grouped_gemm_dequant_kernel<kType, Out>);
    });
}
template void gemm_decoding_many(const Gpu&, const DecodingProblem&, const OutF32&);
template void gemm_decoding_many(const Gpu&, const DecodingProblem&, const OutSwiglu&);

namespace {
template <class Out>
void choose(const Gpu& gpu, const DecodingProblem& job, const Out& out) {
    RT_ASSERT(job.gemm.plan.row_first != nullptr && job.gemm.expert_begin == 0);
    if (job.gemm.rows == 0) return;
    const bool few = moe::few_slots(job.gemm.rows, job.gemm.expert_end - job.gemm.expert_begin);
    if (job.kernel == DecodingKernel::few || (job.kernel == DecodingKernel::automatic && few))
        gemm_decoding_few(gpu, job, out);
    else gemm_decoding_many(gpu, job, out);
}
}  // namespace

bool can_decode(const Gpu& gpu, const Weight& w, int64_t stride) {
    static_assert(2048 / 256 * 512 == Span<DType::planes_q6_k>::kMostD);  // what moe::dequant_weight() asks
    return moe::dequant_weight(chip_of(gpu), w, stride);
}

void gemm_decoding(const Gpu& gpu, const DecodingProblem& job, const OutF32& out) { choose(gpu, job, out); }
void gemm_decoding(const Gpu& gpu, const DecodingProblem& job, const OutSwiglu& out) { choose(gpu, job, out); }

}  // namespace riptide::ops::cuda::prefill
