// The experts' products on Hopper for few rows an expert: Q4_K, Q5_K and Q6_K planes decoded straight into the
// registers that wgmma takes its A operand from. The bits of expand() and gemm(): the same bf16 weights, each sum over
// the same sixteen columns at a time in the same order; which operand is called A does not show.
//
// 512 rows of top 8 of 256 experts (d 2048, ff 512) and a shared one, gate and up: bytes 303 M of planes, once: 67 us
// at 4.5 TB/s. Decoding 539 M weights, about 17 instructions of the integer pipe and 35 in all for eight: a step of 256
// rows x 64 columns is some 600 clocks of that pipe, 83 us for 33 K steps on 132 multiprocessors: the limit up to 64
// rows (products: 128 clocks a step at 16 rows, 512 at 64). grouped_gemm_dequant_sm90.cu, which decodes through shared
// memory (stores, a proxy fence, barriers between two groups of warps, 64 rows multiplied whatever there are), took
// 241 us for it and 151 us for down (H200, 2026-11-21). This one takes 136 us for it and 92 us for down in Q6_K
// (2026-11-22): it issues in 64 % of the clocks, a warp waits for the decoding of its own fragment. Blocks get tiles by
// their rows (for_tiles): dealt as the experts come, a fifth of the time was waiting for the last block. Tried: two
// fragments decoded side by side: the same for 16 rows, 5 % slower for 32 (registers).
//
// Design: one persistent block on each multiprocessor. Warpgroup 0 feeds planes, 256 columns of 256 rows at a time, and
// boxes of 16 rows of A. Warpgroups 1 to 4 have 64 rows of the weights each: D^T [64 rows of weights, 16, 32 or 64 rows
// of A] = W A^T; more rows take another pass over the planes, which then come from L2 (128 at a time would need more
// registers than there are). A thread decodes the values of its own fragment: four of sixteen columns, for two rows;
// the product of one fragment runs while the next is decoded. Scales of a sub-block are made by one lane of the four
// that need them, and passed on. Rows of gate and up alternate by eights: one thread has both sums of a column.
#include "base/error.h"
#include "ops/cuda/moe/grouped_gemm_fragments_sm90.cuh"

namespace riptide::ops::cuda::prefill {

namespace {

[[maybe_unused]] constexpr int kRegistersFeed = 32, kRegistersWork = 112, kWarps = 16;
static_assert(128 * kRegistersFeed + 512 * kRegistersWork <= kDecodingThreads * 96);

template <DType T>
using Ring = Stages<T, 64, T == DType::planes_q6_k ? 6 : 8, 0, T == DType::planes_q4_k ? 4 : 3>;

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// store_sums: the sums of one row of A with this thread's two rows of weights; n: first of the tile's rows of B.

__device__ __forceinline__ void store_sums(const OutF32& out, const GemmProblem& p, const FragmentPlace& place,
                                           int64_t row, int n, float first, float second) {
    float* const y = out.piece[0].y + row * out.piece[0].stride;
    if (n + place.column[0] < out.piece[0].cols) y[n + place.column[0]] = first;
    if (n + place.column[1] < out.piece[0].cols) y[n + place.column[1]] = second;
}
__device__ __forceinline__ void store_sums(const OutSwiglu& out, const GemmProblem& p, const FragmentPlace& place,
                                           int64_t row, int n, float gate, float up) {
    const int c = n / 2 + place.column[0];
    if (2 * c >= p.n) return;
    const float act = c < out.cols ? swiglu_value(gate, up) : 0.0f;
    reinterpret_cast<__nv_bfloat16*>(out.y)[row * out.stride + c] = __float2bfloat16_rn(act);
}

/// One tile of up to kN rows of A.
template <int kN, DType T, class Out>
__device__ __forceinline__ void make_tile(const GemmProblem& p, const Out& out, const Tile& tile, Worker<Ring<T>>& me) {
    float d[kN / 2];
    sum_tile<kN, Span<T>>(d, p.k / kSpan, me);
    const int first = tile.row + me.t * 2;
#pragma unroll
    for (int j = 0; j < kN / 8; ++j)
#pragma unroll
        for (int b = 0; b < 2; ++b) {
            const int row = first + 8 * j + b;
            if (row < tile.row_end) store_sums(out, p, me.place, row, tile.n, d[4 * j + b], d[4 * j + 2 + b]);
        }
}

/// Warpgroups 1 to 4.
template <DType T, class Out>
__device__ __forceinline__ void work_on(const GemmProblem& p, const Out& out, const Layout<Ring<T>>& at) {
    const int thread = static_cast<int>(threadIdx.x) - 128;
    Worker<Ring<T>> me = worker(at, fragment_place(order_of<Out>(), thread));
    for_tiles<Ring<T>::kRowsA>(p, [&](const Tile& tile) {
        const int rows = tile.row_end - tile.row;
        if (rows <= 16) make_tile<16, T>(p, out, tile, me);
        else if (rows <= 32) make_tile<32, T>(p, out, tile, me);
        else make_tile<64, T>(p, out, tile, me);
    });
}

#endif

template <DType T, class Out>
__global__ void __launch_bounds__(kDecodingThreads, 1)
    grouped_gemm_dequant_few_rows_kernel(const __grid_constant__ Maps maps, const __grid_constant__ Work work,
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
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegistersWork));
        work_on<T>(work.p, out, at);
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

}  // namespace

template <class Out>
void gemm_decoding_few(const Gpu& gpu, const DecodingProblem& job, const Out& out) {
    check_out(out);
    with_planes(job, [&](auto type) {
        constexpr DType kType = decltype(type)::value;
        launch_decoding<Ring<kType>>(gpu, job, out, grouped_gemm_dequant_few_rows_kernel<kType, Out>);
    });
}
template void gemm_decoding_few(const Gpu&, const DecodingProblem&, const OutF32&);
template void gemm_decoding_few(const Gpu&, const DecodingProblem&, const OutSwiglu&);

}  // namespace riptide::ops::cuda::prefill
