// The experts' products on Hopper with weights decoded in the kernel: Q4_K, Q5_K and Q6_K planes straight into the
// registers that wgmma takes its A operand from. The bits of expand() and gemm(): the same bf16 weights, each sum over
// the same sixteen columns at a time in the same order; which operand is called A does not show.
//
// 512 rows of top 8 of 256 experts (d 2048, ff 512) and a shared one, gate and up: bytes 303 M of planes, once: 67 us
// at 4.5 TB/s. For a step of 256 rows of weights x 64 columns: 16384 weights at some 20 instructions of the integer
// pipe and 40 in all for eight: some 640 clocks; 1024 clocks of tensor core for 128 rows of A, 128 for 16.
//
// Design: one persistent block on each multiprocessor. Warpgroup 0 feeds through TMA: one thread planes, 256 columns of
// 256 rows at a time, another boxes of 16 rows of A. The others multiply, D^T [64 rows of weights, rows of A] = W A^T:
// a thread decodes the values of its own fragments, four of sixteen columns for two rows, and the products of one set
// of fragments run while the next is decoded. Scales of a sub-block are made by one lane of the four that need them,
// and passed on. Rows of gate and up alternate by eights: one thread has both sums of a column.
//   few rows an expert: four warpgroups of 64 rows of weights; 16, 32 or 64 rows of A at a time. More take another pass
//     over the planes, which then come from L2. Blocks get tiles by their rows (for_tiles).
//   many: two warpgroups of 2 x 64; up to 128 rows of A, whose sums are 128 of a thread's 232 registers. An expert's
//   rows
//     are shared out evenly among its tiles (even_tile).
//
// What limits it (H200, 2026-11-29, 16384 rows, profiler): a step takes some 1,650 clocks where the tensor cores need
// 1,024: next to running products, which keep the register file busy, an instruction of a warp takes 5.2 clocks, of
// which 0.9 are such conflicts, 1.1 waits for what the last one gave, 0.4 the integer pipe, 0.65 the products' own
// issue. Tried, no difference: codes and factors of a sub-block read one ahead with two groups, the next tile's numbers
// read during a tile. 144 rows of A at a time: ptxas has no registers for it beside smaller tiles. Before, weights went
// through shared memory (two warpgroups decoded, two multiplied): the same speed for 4,096 rows and more.
#include "base/error.h"
#include "ops/cuda/moe/grouped_gemm_fragments_sm90.cuh"
#include "ops/cuda/moe/plan.h"

namespace riptide::ops::cuda::prefill {

namespace {

/// How many times 64 rows of weights a warpgroup has.
constexpr int kFew = 1, kMany = 2;

template <DType T, int kGroups>
struct Shape;
template <DType T>
struct Shape<T, kFew> {
    static constexpr int kFeedRegisters = 32, kWorkRegisters = 112;
    using Ring = Stages<T, 64, T == DType::planes_q6_k ? 6 : 8, T == DType::planes_q4_k ? 4 : 3>;
};
template <DType T>
struct Shape<T, kMany> {
    static constexpr int kFeedRegisters = 40, kWorkRegisters = 232;
    using Ring = Stages<T, kTileM, T == DType::planes_q5_k ? 4 : 5, T == DType::planes_q6_k ? 2 : 3>;
};
constexpr int work_threads(int groups) { return kDecodeRows / (64 * groups) * 128; }

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// The warpgroups behind the first.
template <DType T, int kGroups, class Out, class Ring>
__device__ __forceinline__ void work_on(const GemmProblem& p, const Out& out, const Layout<Ring>& at) {
    Worker<Ring, order_of<Out>(), kGroups> me(at);
    for_tiles<Ring::kRowsA>(p, [&](const Tile& tile) {
        const int rows = tile.row_end - tile.row;
        if constexpr (kGroups == kFew) {
            if (rows <= 16) make_tile<16>(p, out, tile, me);
            else if (rows <= 32) make_tile<32>(p, out, tile, me);
            else make_tile<64>(p, out, tile, me);
        } else {
            if (rows <= 64) make_tile<64>(p, out, tile, me);
            else if (rows <= 96) make_tile<96>(p, out, tile, me);
            else make_tile<128>(p, out, tile, me);
        }
    });
}

#endif

template <DType T, int kGroups, class Out>
__global__ void __launch_bounds__(128 + work_threads(kGroups), 1)
    grouped_gemm_dequant_kernel(const __grid_constant__ Maps maps, const __grid_constant__ Work work,
                                const __grid_constant__ Out out) {
    using S = Shape<T, kGroups>;
    constexpr int kThreads = 128 + work_threads(kGroups), kAtStart = 65536 / kThreads / 8 * 8;  // registers of a thread
    static_assert(128 * S::kFeedRegisters + work_threads(kGroups) * S::kWorkRegisters <= kThreads * kAtStart);
    pdl_trigger();
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ uint8_t memory[];
    const Layout<typename S::Ring> at((shared_address(memory) + 1023u) & ~1023u);
    if (threadIdx.x == 0) at.init(work_threads(kGroups) / 32);
    __syncthreads();
    pdl_wait();
    const int group = __shfl_sync(~0u, static_cast<int>(threadIdx.x / 128), 0);
    if (group == 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(S::kFeedRegisters));
        if (threadIdx.x == 0) feed_planes<order_of<Out>()>(maps, work, at);
        if (threadIdx.x == 32) {
            asm volatile("fence.proxy.async.global;" ::: "memory");  // earlier kernels wrote A with plain stores
            feed_rows(maps, work.p, at);
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(S::kWorkRegisters));
        work_on<T, kGroups>(work.p, out, at);
    }
#else
    pdl_wait();
    __trap();  // never launched there
#endif
}

void check_out(const OutF32& out) {
    RT_ASSERT(out.pieces == 1 && out.piece[0].begin == 0 && out.piece[0].residual == nullptr);
}
void check_out(const OutSwiglu&) {}

template <int kGroups, class Out>
void launch_kernel(const Gpu& gpu, const DecodingProblem& job, const Out& out) {
    with_planes(job, [&](auto type) {
        constexpr DType kType = decltype(type)::value;
        launch_decoding<typename Shape<kType, kGroups>::Ring>(
            gpu, job, out, grouped_gemm_dequant_kernel<kType, kGroups, Out>, 128 + work_threads(kGroups));
    });
}

template <class Out>
void choose(const Gpu& gpu, const DecodingProblem& job, const Out& out) {
    RT_ASSERT(job.gemm.plan.row_first != nullptr && job.gemm.expert_begin == 0);
    if (job.gemm.rows == 0) return;
    check_out(out);
    const bool few = moe::few_slots(job.gemm.rows, job.gemm.expert_end - job.gemm.expert_begin);
    if (job.kernel == DecodingKernel::few || (job.kernel == DecodingKernel::automatic && few))
        launch_kernel<kFew>(gpu, job, out);
    else launch_kernel<kMany>(gpu, job, out);
}

}  // namespace

bool can_decode(const Gpu& gpu, const Weight& w, int64_t stride) {
    static_assert(2048 / 256 * 512 == Span<DType::planes_q6_k>::kMostD);  // what moe::dequant_weight() asks
    return moe::dequant_weight(chip_of(gpu), w, stride);
}

void gemm_decoding(const Gpu& gpu, const DecodingProblem& job, const OutF32& out) { choose(gpu, job, out); }
void gemm_decoding(const Gpu& gpu, const DecodingProblem& job, const OutSwiglu& out) { choose(gpu, job, out); }

}  // namespace riptide::ops::cuda::prefill
