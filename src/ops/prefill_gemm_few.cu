// The experts' products on Hopper for few rows an expert: Q4_K, Q5_K and Q6_K planes decoded straight into the
// registers that wgmma takes its A operand from. The bits of expand() and gemm(): the same bf16 weights, each sum over
// the same sixteen columns at a time in the same order; which operand is called A does not show.
//
// 512 rows of top 8 of 256 experts (d 2048, ff 512) and a shared one, gate and up: bytes 303 M of planes, once: 67 us
// at 4.5 TB/s. Decoding 539 M weights, about 17 instructions of the integer pipe and 35 in all for eight: a step of 256
// rows x 64 columns is some 600 clocks of that pipe, 83 us for 33 K steps on 132 multiprocessors: the limit up to 64
// rows (products: 128 clocks a step at 16 rows, 512 at 64). prefill_gemm_decoding.cu, which decodes through shared
// memory (stores, a proxy fence, barriers between two groups of warps, 64 rows multiplied whatever there are), took
// 241 us for it and 151 us for down (H200, 2026-11-21). No device figures of this kernel yet.
//
// Design: one persistent block on each multiprocessor. Warpgroup 0 feeds planes, 256 columns of 256 rows at a time, and
// boxes of 16 rows of A. Warpgroups 1 to 4 have 64 rows of the weights each: D^T [64 rows of weights, 16, 32 or 64 rows
// of A] = W A^T; more rows take another pass over the planes, which then come from L2 (128 at a time would need more
// registers than there are). A thread decodes the values of its own fragment: four of sixteen columns, for two rows;
// the product of one fragment runs while the next is decoded. Scales of a sub-block are made by one lane of the four
// that need them, and passed on. Rows of gate and up alternate by eights: one thread has both sums of a column.
#include "base/error.h"
#include "ops/prefill_gemm_planes.cuh"

namespace riptide::ops::cuda::prefill {

namespace {

[[maybe_unused]] constexpr int kRegistersFeed = 32, kRegistersWork = 112, kWarps = 16;
static_assert(128 * kRegistersFeed + 512 * kRegistersWork <= kDecodingThreads * 96);

template <DType T>
using Ring = Stages<T, 64, T == DType::planes_q6_k ? 6 : 8, 0, T == DType::planes_q4_k ? 4 : 3>;

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// Value `x` of the lane of this quad that has quarter `t`.
__device__ __forceinline__ float of_quarter(float x, int t) { return __shfl_sync(~0u, x, t, 4); }

/// Whether x holds in all threads of this warpgroup (1 to 4).
__device__ __forceinline__ bool group_all(bool x) {
    uint32_t all;
    asm volatile(
        "{\n.reg .pred p, q;\nsetp.ne.u32 q, %1, 0;\n"
        "bar.red.and.pred p, %2, 128, q;\n"
        "selp.u32 %0, 1, 0, p;\n}\n"
        : "=r"(all)
        : "r"(static_cast<uint32_t>(x)), "r"(threadIdx.x / 128)
        : "memory");
    return all != 0;
}

/// Scales of the sub-blocks of a span of two rows. q4_k and q5_k: each lane of a quad makes those of two sub-blocks for
/// all four. q6_k: every lane makes its own when they are wanted. quick: the same for the whole warpgroup, which
/// multiplies together.
template <DType T>
struct SpanScales {
    Affine mine[2][2];  // [half][row]: of sub-block 4 half + t
    bool quick = true;

    __device__ __forceinline__ SpanScales(uint32_t from, const int (&row)[2], int span, int spans, int t) {
        SharedMemory memory;
        RowScales<T> rows[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) rows[i] = load_scales<T>(memory, from, row[i], span, spans);
        quick = group_all(rows[0].quick && rows[1].quick);
#pragma unroll
        for (int half = 0; half < 2; ++half)
#pragma unroll
            for (int i = 0; i < 2; ++i) mine[half][i] = affine_of(rows[i], 0, 4 * half + t, 0, quick);
    }
};
template <>
struct SpanScales<DType::planes_q6_k> {
    static constexpr DType T = DType::planes_q6_k;
    RowScales<T> rows[2];
    static constexpr bool quick = true;

    __device__ __forceinline__ SpanScales(uint32_t from, const int (&row)[2], int span, int spans, int) {
        SharedMemory memory;
#pragma unroll
        for (int i = 0; i < 2; ++i) rows[i] = load_scales<T>(memory, from, row[i], span, spans);
    }
};

/// Of one half of a span.
template <DType T>
struct HalfScales {
    Affine mine[2];
    __device__ __forceinline__ HalfScales(const SpanScales<T>& span, int half)
        : mine{half == 0 ? span.mine[0][0] : span.mine[1][0], half == 0 ? span.mine[0][1] : span.mine[1][1]} {}
    __device__ __forceinline__ void step(uint32_t, const int (&)[2], int) {}
    /// Of sub-block 4 half + s of row i, its columns 16 part .. + 15. s, part: known to the compiler.
    __device__ __forceinline__ Affine get(int i, int s, int) const {
        return {of_quarter(mine[i].scale, s), of_quarter(mine[i].offset, s)};
    }
};
template <>
struct HalfScales<DType::planes_q6_k> {
    static constexpr DType T = DType::planes_q6_k;
    const SpanScales<T>& span;
    uint32_t words[2];  // int8 scales of 64 columns
    __device__ __forceinline__ HalfScales(const SpanScales<T>& s, int) : span(s) {}
    __device__ __forceinline__ void step(uint32_t from, const int (&row)[2], int step) {
#pragma unroll
        for (int i = 0; i < 2; ++i)
            words[i] = SharedMemory::read4(from + Span<T>::kAtScales + static_cast<uint32_t>(row[i] * 16 + 4 * step));
    }
    __device__ __forceinline__ Affine get(int i, int s, int part) const {
        return affine_of(span.rows[i], words[i], s, part, true);
    }
};

/// Sixteen columns of a sub-block of both rows as an A fragment.
template <DType T, bool kQuick>
__device__ __forceinline__ void decode_fragment(uint32_t (&to)[4], const ShareWords (&words)[2], const Affine (&f)[2],
                                                int t, int part) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const Words2 two = decode4<kQuick>(share_codes<T>(words[i], t, part), f[i]);
        to[i] = two.w[0];
        to[2 + i] = two.w[1];
    }
}

/// A thread's place among those of its warpgroup, and what it carries from one step to the next.
template <DType T>
struct Worker {
    const Layout<Ring<T>>& at;
    FragmentPlace place;
    int t;
    bool leader;
    Turn<Ring<T>::kStagesSpan> span;
    Turn<Ring<T>::kStagesA> a;
    uint32_t before = 0;  // the barrier to give back A's stage before at; none at first
};

/// d += the sums over the 256 columns of a span at `from`.
template <int kN, bool kQuick, DType T>
__device__ __forceinline__ void add_span(float (&d)[kN / 2], uint32_t (&fragment)[2][4], Worker<T>& me, uint32_t from,
                                         const SpanScales<T>& span_scales) {
    SharedMemory memory;
#pragma unroll 1
    for (int half = 0; half < 2; ++half) {
        HalfScales<T> scales(span_scales, half);
#pragma unroll
        for (int step = 0; step < 2; ++step) {  // 64 columns
            scales.step(from, me.place.row, 2 * half + step);
            barrier_wait(me.at.full_a + 8 * me.a.stage, me.a.parity);
            const uint64_t da = rows_descriptor(me.at.a + me.a.stage * Ring<T>::kStageA);
#pragma unroll
            for (int j = 0; j < 2; ++j) {  // 32 columns
                const int s = 2 * step + j;
                ShareWords words[2];
                Affine f[2];
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    words[i] = load_share<T>(memory, from, me.place.row[i], 4 * half + s, me.t);
                    f[i] = scales.get(i, s, 0);
                }
#pragma unroll
                for (int part = 0; part < 2; ++part) {  // 16 columns
                    if (Span<T>::kSixBits && part == 1) f[0] = scales.get(0, s, 1), f[1] = scales.get(1, s, 1);
                    wgmma_wait<1>();  // all but the product before this one
                    pin(fragment[part]);
                    if (j == 0 && part == 1 && me.before != 0 && me.leader) barrier_arrive(me.before);
                    decode_fragment<T, kQuick>(fragment[part], words, f, me.t, part);
                    wgmma_fence();
                    wgmma<__nv_bfloat16, kN, false>(d, fragment[part], da + 4 * j + 2 * part, 1);  // 32 bytes on
                    wgmma_commit();
                }
            }
            me.before = me.at.empty_a + 8 * me.a.stage;
            me.a.next();
        }
    }
}

/// d = the sums of this thread's two rows of weights with kN rows of A.
template <int kN, DType T>
__device__ __forceinline__ void sum_tile(float (&d)[kN / 2], int spans, Worker<T>& me) {
#pragma unroll
    for (int j = 0; j < kN / 2; ++j) d[j] = 0.0f;
    uint32_t fragment[2][4] = {};
    me.before = 0;
    for (int span = 0; span < spans; ++span) {
        const uint32_t from = me.at.spans + me.span.stage * Span<T>::kBytes;
        barrier_wait(me.at.full_span + 8 * me.span.stage, me.span.parity);
        const SpanScales<T> scales(from, me.place.row, span, spans, me.t);
        if (scales.quick) add_span<kN, true>(d, fragment, me, from, scales);
        else add_span<kN, false>(d, fragment, me, from, scales);
        __syncwarp();
        if (me.leader) barrier_arrive(me.at.empty_span + 8 * me.span.stage);
        me.span.next();
    }
    wgmma_wait<0>();
    pin(fragment[0]), pin(fragment[1]), pin(d);
    if (me.leader) barrier_arrive(me.before);
}

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
__device__ __forceinline__ void make_tile(const GemmProblem& p, const Out& out, const Tile& tile, Worker<T>& me) {
    float d[kN / 2];
    sum_tile<kN>(d, p.k / kSpan, me);
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
    Worker<T> me = {at, fragment_place(order_of<Out>(), thread), thread % 4, thread % 32 == 0, {}, {}};
    for_tiles<Ring<T>::kRowsA>(p, [&](const Tile& tile) {
        const int rows = tile.row_end - tile.row;
        if (rows <= 16) make_tile<16>(p, out, tile, me);
        else if (rows <= 32) make_tile<32>(p, out, tile, me);
        else make_tile<64>(p, out, tile, me);
    });
}

#endif

template <DType T, class Out>
__global__ void __launch_bounds__(kDecodingThreads, 1)
    gemm_few_kernel(const __grid_constant__ Maps maps, const __grid_constant__ Work work,
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
        launch_decoding<Ring<kType>>(gpu, job, out, gemm_few_kernel<kType, Out>);
    });
}
template void gemm_decoding_few(const Gpu&, const DecodingProblem&, const OutF32&);
template void gemm_decoding_few(const Gpu&, const DecodingProblem&, const OutSwiglu&);

}  // namespace riptide::ops::cuda::prefill
