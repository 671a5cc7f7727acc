// Products whose A operand is decoded from planes into wgmma's registers: what a warpgroup does with 64 rows of
// weights. D^T [64 rows of weights, kN rows of A] = W A^T.
#pragma once

#include "ops/cuda/moe/grouped_gemm_dequant_sm90.cuh"

namespace riptide::ops::cuda::prefill {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// A thread's place among those that multiply, and what it carries from one step to the next. R: Stages.
template <class R, RowOrder kOrder>
struct Worker {
    using Place = FragmentPlace<kOrder, R::kTileN>;
    using S = typename R::S;
    static constexpr int kStageA = R::kStageA;
    const Layout<R>& at;
    int t = static_cast<int>(threadIdx.x % 4);
    bool leader = threadIdx.x % 32 == 0;
    int row = 0;  // the first of a thread's two
    Turn<R::kStagesSpan> span = {};
    Turn<R::kStagesA> a = {};

    __device__ __forceinline__ explicit Worker(const Layout<R>& layout) : at(layout) {}
    /// Before each tile: what follows from a place takes more registers than there are, if it is kept from tile to
    /// tile.
    __device__ __forceinline__ void begin() {
        auto thread = static_cast<int>(threadIdx.x) - 128;
        asm volatile("" : "+r"(thread));
        row = Place(thread).row;
    }
    __device__ __forceinline__ static constexpr int later(int i) { return i * Place::kSecond; }
    /// Whether the factors of a span are RowScales::quick ones.
    __device__ __forceinline__ bool quick() const {
        if constexpr (S::kSixBits) return true;
        return SharedMemory::read4(at.quick + 4 * span.stage) != 0;
    }
};

/// What a thread needs of a sub-block of its rows.
template <class W>
struct SubBlock {
    using S = typename W::S;
    static constexpr int kFactors = S::kSixBits ? 2 : 1;
    ShareWords words[2];
    Affine f[kFactors][2];  // [columns 16 part ..]

    /// Sub-block `sub` of the span at `from`.
    __device__ __forceinline__ void load(const W& me, uint32_t from, int sub) {
        SharedMemory memory;
        const ShareAt at = share_at<S>(from, me.row, sub, me.t);
        const uint32_t factors = from + S::kAtFactors + static_cast<uint32_t>(me.row * S::kFactorRow);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            words[i] = load_share<S>(memory, at, W::later(i), me.t);
#pragma unroll
            for (int part = 0; part < kFactors; ++part) {
                const int place = (sub * kFactors + part) * S::kRows + W::later(i);
                const Words2 v = memory.read8(factors + static_cast<uint32_t>(place * S::kFactorRow));
                f[part][i] = {__uint_as_float(v.w[0]), __uint_as_float(v.w[1])};
            }
        }
    }
    /// Its columns as A fragments of sixteen.
    template <bool kQuick>
    __device__ __forceinline__ void decode(uint32_t (&to)[2][4], int t) const {
#pragma unroll
        for (int part = 0; part < 2; ++part)
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const uint32_t codes = share_codes<S::kType>(words[i], t, part);
                const Words2 two = decode4<kQuick>(codes, f[part * (kFactors - 1)][i]);
                to[part][i] = two.w[0];
                to[part][2 + i] = two.w[1];
            }
    }
};

/// d += the sums over the 256 columns of a span at `from`. While the products of a sub-block run, the next is read, and
/// other warpgroups decode.
template <int kN, bool kQuick, class W>
__device__ __forceinline__ void add_span(float (&d)[kN / 2], W& me, uint32_t from) {
    SubBlock<W> sub;
    sub.load(me, from, 0);
#pragma unroll 1
    for (int pair = 0; pair < 4; ++pair) {  // 64 columns: a stage of A
        barrier_wait(me.at.full_a + 8 * me.a.stage, me.a.parity);
        const uint64_t da = rows_descriptor(me.at.a + me.a.stage * W::kStageA);
#pragma unroll
        for (int s = 0; s < 2; ++s) {
            uint32_t fragment[2][4];
            sub.template decode<kQuick>(fragment, me.t);
            pin(fragment[0]), pin(fragment[1]);
            wgmma_fence();
#pragma unroll
            for (int part = 0; part < 2; ++part)  // 32 bytes on
                wgmma<__nv_bfloat16, kN, false>(d, fragment[part], da + 4 * s + 2 * part, 1);
            wgmma_commit();
            sub.load(me, from, min(2 * pair + s + 1, 7));
            wgmma_wait<0>();
            pin(fragment[0]), pin(fragment[1]), pin(d);
        }
        if (me.leader) barrier_arrive(me.at.empty_a + 8 * me.a.stage);
        me.a.next();
    }
}

/// d = the sums of this thread's two rows of weights with kN rows of A.
template <int kN, class W>
__device__ __forceinline__ void sum_tile(float (&d)[kN / 2], int spans, W& me) {
#pragma unroll
    for (int j = 0; j < kN / 2; ++j) d[j] = 0.0f;
    for (int span = 0; span < spans; ++span) {
        const uint32_t from = me.at.spans + me.span.stage * W::S::kBytes;
        barrier_wait(me.at.full_span + 8 * me.span.stage, me.span.parity);
        barrier_wait(me.at.made + 8 * me.span.stage, me.span.parity);
        if (me.quick()) add_span<kN, true>(d, me, from);
        else add_span<kN, false>(d, me, from);
        me.at.give_back_span(me.span.stage, me.leader);
        me.span.next();
    }
}

// store_sums: the sums of one row of A with a thread's two rows of weights in `column` and kSecondColumn on; n: first
// of the tile's rows of B.

__device__ __forceinline__ void store_sums(const OutF32& out, const GemmProblem&, int column, int64_t row, int n,
                                           float first, float second) {
    constexpr int kSecond = kSecondColumn<RowOrder::f32>;
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
template <int kN, class Out, class R>
__device__ __forceinline__ void make_tile(const GemmProblem& p, const Out& out, const Tile& tile,
                                          Worker<R, order_of<Out>()>& me) {
    float d[kN / 2];
    me.begin();
    sum_tile<kN>(d, p.k / kSpan, me);
    const int first = tile.row + me.t * 2;
#pragma unroll
    for (int j = 0; j < kN / 8; ++j)
#pragma unroll
        for (int b = 0; b < 2; ++b) {
            const int row = first + 8 * j + b;
            if (row < tile.row_end) store_sums(out, p, me.row, row, tile.n, d[4 * j + b], d[4 * j + 2 + b]);
        }
}

#endif

}  // namespace riptide::ops::cuda::prefill
