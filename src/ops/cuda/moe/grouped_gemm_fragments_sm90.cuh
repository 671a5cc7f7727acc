// Products whose A operand is decoded from planes into wgmma's registers: what a warpgroup does with 64 rows of
// weights. D^T [64 rows of weights, kN rows of A] = W A^T; the product of one fragment runs while the next is decoded.
#pragma once

#include "ops/cuda/moe/grouped_gemm_dequant_sm90.cuh"

namespace riptide::ops::cuda::prefill {

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
template <class S>
struct SpanScales {
    static constexpr DType T = S::kType;
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
struct SpanScales<Span<DType::planes_q6_k>> {
    static constexpr DType T = DType::planes_q6_k;
    using S = Span<T>;
    RowScales<T> rows[2];
    static constexpr bool quick = true;

    __device__ __forceinline__ SpanScales(uint32_t from, const int (&row)[2], int span, int spans, int) {
        SharedMemory memory;
#pragma unroll
        for (int i = 0; i < 2; ++i) rows[i] = load_scales<T>(memory, from, row[i], span, spans);
    }
};

/// Of one half of a span.
template <class S>
struct F16Scales {
    Affine mine[2];
    __device__ __forceinline__ F16Scales(const SpanScales<S>& span, int half)
        : mine{half == 0 ? span.mine[0][0] : span.mine[1][0], half == 0 ? span.mine[0][1] : span.mine[1][1]} {}
    __device__ __forceinline__ void step(uint32_t, const int (&)[2], int) {}
    /// Of sub-block 4 half + s of row i, its columns 16 part .. + 15. s, part: known to the compiler.
    __device__ __forceinline__ Affine get(int i, int s, int) const {
        return {of_quarter(mine[i].scale, s), of_quarter(mine[i].offset, s)};
    }
};
template <>
struct F16Scales<Span<DType::planes_q6_k>> {
    static constexpr DType T = DType::planes_q6_k;
    using S = Span<T>;
    const SpanScales<S>& span;
    uint32_t words[2];  // int8 scales of 64 columns
    __device__ __forceinline__ F16Scales(const SpanScales<S>& s, int) : span(s) {}
    __device__ __forceinline__ void step(uint32_t from, const int (&row)[2], int step) {
#pragma unroll
        for (int i = 0; i < 2; ++i)
            words[i] = SharedMemory::read4(from + S::kAtScales + static_cast<uint32_t>(row[i] * 16 + 4 * step));
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

/// A thread's place among those of its warpgroup, and what it carries from one step to the next. R: Stages, or alike.
template <class R>
struct Worker {
    const Layout<R>& at;
    FragmentPlace place;
    int t;
    bool leader;
    Turn<R::kStagesSpan> span;
    Turn<R::kStagesA> a;
    uint32_t before = 0;  // the barrier to give back A's stage before at; none at first
};
template <class R>
__device__ __forceinline__ Worker<R> worker(const Layout<R>& at, const FragmentPlace& place) {
    return {at, place, static_cast<int>(threadIdx.x % 4), threadIdx.x % 32 == 0, {}, {}};
}

/// What a thread needs of a sub-block of its two rows.
template <class S>
struct SubBlock {
    ShareWords words[2];
    Affine f[2][2];  // [columns 16 part ..][row]

    /// Sub-block 4 half + s.
    __device__ __forceinline__ void load(uint32_t from, const FragmentPlace& place, int t, int half, int s,
                                         F16Scales<S>& scales) {
        SharedMemory memory;
        if (s % 2 == 0) scales.step(from, place.row, 2 * half + s / 2);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            words[i] = load_share<S::kType>(memory, from, place.row[i], 4 * half + s, t);
            f[0][i] = scales.get(i, s, 0);
            f[1][i] = S::kSixBits ? scales.get(i, s, 1) : f[0][i];
        }
    }
};

/// d += the sums over the 256 columns of a span at `from`. S: Span.
template <int kN, bool kQuick, class S, class R>
__device__ __forceinline__ void add_span(float (&d)[kN / 2], uint32_t (&fragment)[2][4], Worker<R>& me, uint32_t from,
                                         const SpanScales<S>& span_scales) {
#pragma unroll 1
    for (int half = 0; half < 2; ++half) {
        F16Scales<S> scales(span_scales, half);
        SubBlock<S> sub[2];  // the next one is read before this one is decoded
        sub[0].load(from, me.place, me.t, half, 0, scales);
#pragma unroll
        for (int step = 0; step < 2; ++step) {  // 64 columns
            barrier_wait(me.at.full_a + 8 * me.a.stage, me.a.parity);
            const uint64_t da = rows_descriptor(me.at.a + me.a.stage * R::kStageA);
#pragma unroll
            for (int j = 0; j < 2; ++j) {  // 32 columns
                const int s = 2 * step + j;
                if (s < 3) sub[(s + 1) % 2].load(from, me.place, me.t, half, s + 1, scales);
#pragma unroll
                for (int part = 0; part < 2; ++part) {  // 16 columns
                    wgmma_wait<1>();                    // all but the product before this one
                    pin(fragment[part]);
                    if (j == 0 && part == 1 && me.before != 0 && me.leader) barrier_arrive(me.before);
                    decode_fragment<S::kType, kQuick>(fragment[part], sub[s % 2].words, sub[s % 2].f[part], me.t, part);
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

/// d = the sums of this thread's two rows of weights with kN rows of A. S: Span of the weights' type.
template <int kN, class S, class R>
__device__ __forceinline__ void sum_tile(float (&d)[kN / 2], int spans, Worker<R>& me) {
#pragma unroll
    for (int j = 0; j < kN / 2; ++j) d[j] = 0.0f;
    uint32_t fragment[2][4] = {};
    me.before = 0;
    for (int span = 0; span < spans; ++span) {
        const uint32_t from = me.at.spans + me.span.stage * R::kSpanBytes;
        barrier_wait(me.at.full_span + 8 * me.span.stage, me.span.parity);
        const SpanScales<S> scales(from, me.place.row, span, spans, me.t);
        if (scales.quick) add_span<kN, true>(d, fragment, me, from, scales);
        else add_span<kN, false>(d, fragment, me, from, scales);
        me.at.give_back_span(me.span.stage, me.leader);
        me.span.next();
    }
    wgmma_wait<0>();
    pin(fragment[0]), pin(fragment[1]), pin(d);
    if (me.leader) barrier_arrive(me.before);
}

#endif

}  // namespace riptide::ops::cuda::prefill
