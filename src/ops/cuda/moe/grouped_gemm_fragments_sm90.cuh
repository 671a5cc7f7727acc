// Products whose A operand is decoded from planes into wgmma's registers: what a warpgroup does with kGroups times 64
// rows of weights. D^T [64 rows of weights, kN rows of A] = W A^T of each group; the products of one set of fragments
// run while the next is decoded.
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

/// A thread's place among those of its warpgroup, which has kGroups times 64 rows of weights, and what it carries from
/// one step to the next. R: Stages, or alike.
template <class R, RowOrder kOrder, int kGroups>
struct Worker {
    using Place = FragmentPlace<kOrder>;
    static constexpr DType kType = R::kType;
    static constexpr int kStageA = R::kStageA, kSpanBytes = R::kSpanBytes;
    using S = Span<kType>;
    const Layout<R>& at;
    int t = static_cast<int>(threadIdx.x % 4);
    bool leader = threadIdx.x % 32 == 0;
    int row = 0;  // of group 0, the first of a thread's two
    Turn<R::kStagesSpan> span = {};
    Turn<R::kStagesA> a = {};
    uint32_t before = 0;  // the barrier to give back A's stage before at; none at first

    __device__ __forceinline__ explicit Worker(const Layout<R>& layout) : at(layout) {}
    /// Before each tile: what follows from a place takes more registers than there are, if it is kept from tile to
    /// tile.
    __device__ __forceinline__ void begin() {
        auto thread = static_cast<int>(threadIdx.x) - 128;
        asm volatile("" : "+r"(thread));
        row = Place(thread / 128 * kGroups * 128 + thread % 128).row;
    }
    __device__ __forceinline__ static constexpr int later(int g, int i) {
        return g * Place::kGroup + i * Place::kSecond;
    }
};

/// Whether the whole warpgroup, which multiplies together, has exact offsets in a span (RowScales::quick).
template <int kGroups, class W>
__device__ __forceinline__ bool quick_span(const W& me, uint32_t from) {
    if constexpr (W::S::kSixBits) return true;
    bool quick = true;
#pragma unroll
    for (int g = 0; g < kGroups; ++g)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const uint32_t both = SharedMemory::read4(from + W::S::kAtScales + 12 +
                                                      static_cast<uint32_t>((me.row + W::later(g, i)) * 16));
            quick = quick && exact_offset(static_cast<uint16_t>(both), static_cast<uint16_t>(both >> 16));
        }
    return group_all(quick);
}

/// Scales of the four sub-blocks of half a span of a thread's rows. q4_k and q5_k: each lane of a quad makes those of
/// one for all four. q6_k: every lane makes its own when they are wanted.
template <class W, int kGroups>
struct SubScales {
    Affine mine[kGroups][2];  // of sub-block 4 half + t

    __device__ __forceinline__ SubScales(const W& me, uint32_t from, int span, int spans, int half, bool quick) {
        SharedMemory memory;
#pragma unroll
        for (int g = 0; g < kGroups; ++g)
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                mine[g][i] = affine_of(load_scales<W::kType>(memory, from, me.row + W::later(g, i), span, spans), 0,
                                       4 * half + me.t, 0, quick);
            }
    }
};
template <class W, int kGroups>
requires(W::S::kSixBits) struct SubScales<W, kGroups> {
    RowScales<W::kType> rows[kGroups][2];

    __device__ __forceinline__ SubScales(const W& me, uint32_t from, int span, int spans, int, bool) {
        SharedMemory memory;
#pragma unroll
        for (int g = 0; g < kGroups; ++g)
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                rows[g][i] = load_scales<W::kType>(memory, from, me.row + W::later(g, i), span, spans);
            }
    }
};

/// What a thread needs of a sub-block of its rows.
template <class W, int kGroups>
struct SubBlock {
    static constexpr bool kSixBits = W::S::kSixBits;
    ShareWords words[kGroups][2];
    Affine f[kSixBits ? 2 : 1][kGroups][2];  // [columns 16 part ..]

    /// Sub-block 4 half + s of the span at `from`. s: known to the compiler.
    __device__ __forceinline__ void load(const W& me, uint32_t from, const SubScales<W, kGroups>& scales, int half,
                                         int s) {
        SharedMemory memory;
        const ShareAt at = share_at<W::kType>(from, me.row, 4 * half + s, me.t);
#pragma unroll
        for (int g = 0; g < kGroups; ++g)
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                words[g][i] = load_share<W::kType>(memory, at, W::later(g, i), me.t);
                if constexpr (kSixBits) {
                    const auto row = static_cast<uint32_t>(me.row + W::later(g, i));
                    const uint32_t four = memory.read4(from + W::S::kAtScales + row * 16 + 8 * half + s / 2 * 4);
                    for (int part = 0; part < 2; ++part)
                        f[part][g][i] = affine_of(scales.rows[g][i], four, s, part, true);
                } else {
                    f[0][g][i] = {of_quarter(scales.mine[g][i].scale, s), of_quarter(scales.mine[g][i].offset, s)};
                }
            }
    }
    /// Its sixteen columns 16 part .. of a group's rows as an A fragment.
    template <bool kQuick>
    __device__ __forceinline__ void decode(uint32_t (&to)[4], int g, int t, int part) const {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const uint32_t codes = share_codes<W::kType>(words[g][i], t, part);
            const Words2 two = decode4<kQuick>(codes, f[kSixBits ? part : 0][g][i]);
            to[i] = two.w[0];
            to[2 + i] = two.w[1];
        }
    }
};

/// d += the sums over the 256 columns of a span at `from`. The products of one set of fragments run while the next is
/// decoded. With one group a sub-block is read before the one ahead of it is decoded; two have no registers for that.
template <int kN, bool kQuick, class W, int kGroups>
__device__ __forceinline__ void add_span(float (&d)[kGroups][kN / 2], uint32_t (&fragment)[2][kGroups][4], W& me,
                                         uint32_t from, int span, int spans) {
    constexpr int kSubs = kGroups == 1 ? 2 : 1;
#pragma unroll 1
    for (int half = 0; half < 2; ++half) {
        const SubScales<W, kGroups> scales(me, from, span, spans, half, kQuick);
        SubBlock<W, kGroups> sub[kSubs];
        sub[0].load(me, from, scales, half, 0);
#pragma unroll
        for (int step = 0; step < 2; ++step) {  // 64 columns
            barrier_wait(me.at.full_a + 8 * me.a.stage, me.a.parity);
            const uint64_t da = rows_descriptor(me.at.a + me.a.stage * W::kStageA);
#pragma unroll
            for (int part = 0; part < 4; ++part) {  // 16 columns: half of sub-block s
                const int s = 2 * step + part / 2;
                if (kSubs == 2 && part % 2 == 0 && s < 3) sub[(s + 1) % kSubs].load(me, from, scales, half, s + 1);
                wgmma_wait<1>();  // all but the products before these
#pragma unroll
                for (int g = 0; g < kGroups; ++g) pin(fragment[part % 2][g]);
                if (part == 1 && me.before != 0 && me.leader) barrier_arrive(me.before);
#pragma unroll
                for (int g = 0; g < kGroups; ++g)
                    sub[s % kSubs].template decode<kQuick>(fragment[part % 2][g], g, me.t, part % 2);
                wgmma_fence();
#pragma unroll
                for (int g = 0; g < kGroups; ++g)  // 32 bytes on
                    wgmma<__nv_bfloat16, kN, false>(d[g], fragment[part % 2][g], da + 2 * part, 1);
                wgmma_commit();
                if (kSubs == 1 && part % 2 == 1 && s < 3) sub[0].load(me, from, scales, half, s + 1);
            }
            me.before = me.at.empty_a + 8 * me.a.stage;
            me.a.next();
        }
    }
}

/// d = the sums of this thread's rows of weights, two of each group, with kN rows of A.
template <int kN, class W, int kGroups>
__device__ __forceinline__ void sum_tile(float (&d)[kGroups][kN / 2], int spans, W& me) {
#pragma unroll
    for (int g = 0; g < kGroups; ++g)
#pragma unroll
        for (int j = 0; j < kN / 2; ++j) d[g][j] = 0.0f;
    uint32_t fragment[2][kGroups][4] = {};
    me.before = 0;
    for (int span = 0; span < spans; ++span) {
        const uint32_t from = me.at.spans + me.span.stage * W::kSpanBytes;
        barrier_wait(me.at.full_span + 8 * me.span.stage, me.span.parity);
        if (quick_span<kGroups>(me, from)) add_span<kN, true>(d, fragment, me, from, span, spans);
        else add_span<kN, false>(d, fragment, me, from, span, spans);
        me.at.give_back_span(me.span.stage, me.leader);
        me.span.next();
    }
    wgmma_wait<0>();
#pragma unroll
    for (int g = 0; g < kGroups; ++g) pin(fragment[0][g]), pin(fragment[1][g]), pin(d[g]);
    if (me.leader) barrier_arrive(me.before);
}

// store_sums: the sums of one row of A with a thread's two rows of weights in `column` and kSecondColumn on; n: first
// of the tile's rows of B.

__device__ __forceinline__ void store_sums(const OutF32& out, const GemmProblem&, int column, int64_t row, int n,
                                           float first, float second) {
    constexpr int kSecond = FragmentPlace<RowOrder::f32>::kSecondColumn;
    float* const y = out.piece[0].y + row * out.piece[0].stride + n + column;
    if (n + column < out.piece[0].cols) y[0] = first;
    if (n + column + kSecond < out.piece[0].cols) y[kSecond] = second;
}
__device__ __forceinline__ void store_sums(const OutSwiglu& out, const GemmProblem& p, int column, int64_t row, int n,
                                           float gate, float up) {
    const int c = n / 2 + column;
    if (2 * c >= p.n) return;
    const float act = c < out.cols ? swiglu_value(gate, up) : 0.0f;
    reinterpret_cast<__nv_bfloat16*>(out.y)[row * out.stride + c] = __float2bfloat16_rn(act);
}

/// One tile of up to kN rows of A.
template <int kN, class Out, class R, int kGroups>
__device__ __forceinline__ void make_tile(const GemmProblem& p, const Out& out, const Tile& tile,
                                          Worker<R, order_of<Out>(), kGroups>& me) {
    float d[kGroups][kN / 2];
    me.begin();
    sum_tile<kN>(d, p.k / kSpan, me);
    const int first = tile.row + me.t * 2;
#pragma unroll
    for (int j = 0; j < kN / 8; ++j)
#pragma unroll
        for (int b = 0; b < 2; ++b) {
            const int row = first + 8 * j + b;
            if (row >= tile.row_end) continue;
#pragma unroll
            for (int g = 0; g < kGroups; ++g)
                store_sums(out, p, me.row + g * FragmentPlace<order_of<Out>()>::kGroup, row, tile.n, d[g][4 * j + b],
                           d[g][4 * j + 2 + b]);
        }
}

#endif

}  // namespace riptide::ops::cuda::prefill
