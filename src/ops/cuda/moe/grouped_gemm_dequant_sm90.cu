// The experts' products on Hopper with weights decoded in the kernel: Q4_K, Q5_K and Q6_K planes straight into the
// registers that wgmma takes its A operand from. The bits of expand() and gemm(): the same bf16 weights, each sum over
// the same sixteen columns at a time in the same order; which operand is called A does not show.
//
// 512 rows of top 8 of 256 experts (d 2048, ff 512) and a shared one, gate and up: bytes 303 M of planes, once: 67 us
// at 4.5 TB/s. For a step of 256 rows of weights x 64 columns: 16384 weights at 39 instructions of a warp for 256, of
// which 24 decode: 620 of each scheduler's; 1024 clocks of tensor core for 128 rows of A, 128 for 16.
//
// Design: one persistent block on each multiprocessor. Warpgroup 0 feeds: one thread planes through TMA, 256 columns of
// 256 rows at a time, another boxes of 16 rows of A; two of its warps make the factors that scales stand for, once for
// all. Four warpgroups multiply, D^T [64 rows of weights, rows of A] = W A^T: a thread decodes the values of its own
// fragments, four of sixteen columns for two rows; while its warpgroup's products run, the other three decode. A tile
// has up to 128 rows of A, an expert's shared out evenly (even_tile), and multiplies as many as it needs: 16, 32, 64,
// and on in sixteens.
// Rows of gate and up alternate by eights: one thread has both sums of a column.
//
// What limits it (H200, profiler): schedulers issue in half of the cycles; next to products, which keep the register
// file busy, an instruction waits for its operands, the one before it and the pipe. Tried (us, gate and up of 4,096 and
// 16,384 rows in Q4_K; then 452 and 1,390, now, with neighbouring columns stored together, 424 and 1,305; two
// warpgroups with 2 x 64 rows: 550 and 1,612):
//   products that run while the same warpgroup decodes: 458 and 1,381 with 128 rows of A always; with several sizes of
//     tiles ptxas finds no registers for it and waits for each product (C7512);
//   two warpgroups with up to 192 (256) rows of A, so that more share what is decoded: 489 and 1,690 (487 and 1,628);
//   rows of A fetched from where they lie instead of spread before, by a warp with cp.async: 466 and 1,479, as much
//     more as spreading takes (40 and 150): the warp's instructions are missing on its scheduler;
//   weights to f16, 13 instead of 24 instructions (wrong values, for timing): 408 and 1,285; 15 % less at 512 rows. It
//     would need rows of A in f16, whose range a row's scale would have to keep; not begun.
#include "base/error.h"
#include "ops/cuda/moe/grouped_gemm_fragments_sm90.cuh"
#include "ops/cuda/moe/plan.h"

namespace riptide::ops::cuda::prefill {

namespace {

template <DType T>
using Ring = Stages<T, T == DType::planes_q6_k ? 3 : 4, T == DType::planes_q4_k ? 3 : 2>;

constexpr int kWorkThreads = 2 * kTileRows,  // 64 rows for each warpgroup that multiplies
    kThreads = 128 + kWorkThreads;
constexpr int kFeedRegisters = 56, kWorkRegisters = 104;  // of a thread
static_assert(128 * kFeedRegisters + kWorkThreads * kWorkRegisters <= kThreads * (65536 / kThreads / 8 * 8));

/// make_tile for as many rows of A as the tile needs.
template <int kN, class Out, class W>
__device__ __forceinline__ void make_tile_of(const GemmProblem& p, const Out& out, const Tile& tile, W& me) {
    if constexpr (kN < kTileM) {
        if (tile.row_end - tile.row > kN) return make_tile_of<(kN < 64 ? 2 * kN : kN + 16)>(p, out, tile, me);
    }
    make_tile<kN>(p, out, tile, me);
}

template <DType T, class Out>
__global__ void __launch_bounds__(kThreads, 1)
    grouped_gemm_dequant_kernel(const __grid_constant__ Maps maps, const __grid_constant__ Work work,
                                const __grid_constant__ Out out) {
    pdl_trigger();
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    constexpr RowOrder kOrder = order_of<Out>();
    extern __shared__ uint8_t memory[];
    const Layout<Ring<T>> at((shared_address(memory) + 1023u) & ~1023u);
    if (threadIdx.x == 0) at.init(kWorkThreads / 32);
    __syncthreads();
    pdl_wait();
    const int group = __shfl_sync(~0u, static_cast<int>(threadIdx.x / 128), 0);
    if (group == 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kFeedRegisters));
        if (threadIdx.x == 0) feed_planes<kOrder>(maps, work, at);
        if (threadIdx.x == 32) {
            asm volatile("fence.proxy.async.global;" ::: "memory");  // earlier kernels wrote A with plain stores
            feed_rows(maps, work.p, at);
        }
        if (threadIdx.x >= 64) make_factors(work.p, at, static_cast<int>(threadIdx.x) - 64);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kWorkRegisters));
        Worker<Ring<T>, kOrder> me(at);
        for_tiles(work.p, [&](const Tile& tile) { make_tile_of<16>(work.p, out, tile, me); });
    }
#else
    pdl_wait();
    __trap();  // never launched there
#endif
}

template <class Out>
void start(const Gpu& gpu, const DecodingProblem& job, const Out& out) {
    RT_ASSERT(job.gemm.plan.row_first != nullptr && job.gemm.expert_begin == 0);
    if (job.gemm.rows == 0) return;
    with_planes(job, [&](auto type) {
        constexpr DType kType = decltype(type)::value;
        launch_decoding<Ring<kType>>(gpu, job, out, grouped_gemm_dequant_kernel<kType, Out>, kThreads);
    });
}

}  // namespace

bool can_decode(const Gpu& gpu, const Weight& w, int64_t stride) {
    static_assert(2048 / 256 * 2 * kTileRows == Span<DType::planes_q6_k>::kMostD);  // what moe::dequant_weight() asks
    return moe::dequant_weight(chip_of(gpu), w, stride);
}

void gemm_decoding(const Gpu& gpu, const DecodingProblem& job, const OutBf16& out) { start(gpu, job, out); }
void gemm_decoding(const Gpu& gpu, const DecodingProblem& job, const OutSwiglu& out) { start(gpu, job, out); }

}  // namespace riptide::ops::cuda::prefill
