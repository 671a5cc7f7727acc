// Products whose A operand is decoded from planes into wgmma's registers: what a warpgroup does with 64 rows of
// weights. D^T [64 rows of weights, kN rows of A] = W A^T.
#pragma once

#include "ops/cuda/moe/grouped_gemm_dequant_sm90.cuh"

namespace riptide::ops::cuda::prefill {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// A thread's place among those that multiply, and what it carries from one step to the next. R: Stages.
template <class R, RowOrder kOrder>
struct Worker {
    using Place = FragmentPlace<kOrder>;
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
    /// The first result column of the warp's rows, in the tile.
    __device__ __forceinline__ int first_column() const { return row - static_cast<int>(threadIdx.x % 32 / 4); }
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
        barrier_arrive(me.at.empty_span + 8 * me.span.stage);
        me.span.next();
    }
}

/// A warp's 8 x 8 values of 16 bits: lane 4 r + t gives row r, columns 2 t and 2 t + 1, and gets those of the
/// transposed matrix.
__device__ __forceinline__ uint32_t transposed(uint32_t two) {
    uint32_t out;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(out) : "r"(two));
    return out;
}

// Sums: what the lanes of a warp do with their sums of eight rows of A. v[b] and v[2 + b] are those of row 2 t + b with
// the thread's two rows of weights; packed() and write() make neighbouring columns of row lane / 4 of them.

template <class Out, class W>
struct Sums;

/// Lanes of even t get four columns of the warp's first eight, those of odd t of its second.
template <class W>
struct Sums<OutBf16, W> {
    bool odd, inside;
    uint16_t* to;

    __device__ __forceinline__ Sums(const OutBf16& out, const GemmProblem&, const W& me, int row, int n)
        : odd(me.t % 2 != 0) {
        const int column = n + me.first_column() + 2 * me.t + (odd ? 6 : 0);
        inside = column < out.stride;
        to = out.y + row * out.stride + column;
    }
    __device__ __forceinline__ uint2 packed(const float* v) const {
        const uint32_t first = transposed(pack_bf16(v[0], v[1])), second = transposed(pack_bf16(v[2], v[3]));
        const uint32_t other = __shfl_xor_sync(~0u, odd ? first : second, 1);
        return odd ? make_uint2(other, second) : make_uint2(first, other);
    }
    __device__ __forceinline__ void write(uint2 columns) const { *reinterpret_cast<uint2*>(to) = columns; }
};

template <class W>
struct Sums<OutSwiglu, W> {
    bool used, inside;
    uint16_t* to;

    __device__ __forceinline__ Sums(const OutSwiglu& out, const GemmProblem& p, const W& me, int row, int n)
        : used(n / 2 + me.row < out.cols) {
        const int column = n / 2 + me.first_column() + 2 * me.t;
        inside = 2 * column < p.n;
        to = out.y + row * out.stride + column;
    }
    __device__ __forceinline__ uint32_t packed(const float* v) const {
        return transposed(pack_bf16(used ? swiglu_value(v[0], v[2]) : 0.0f, used ? swiglu_value(v[1], v[3]) : 0.0f));
    }
    __device__ __forceinline__ void write(uint32_t columns) const { *reinterpret_cast<uint32_t*>(to) = columns; }
};

/// One tile of up to kN rows of A.
template <int kN, class Out, class R>
__device__ __forceinline__ void make_tile(const GemmProblem& p, const Out& out, const Tile& tile,
                                          Worker<R, order_of<Out>()>& me) {
    float d[kN / 2];
    me.begin();
    sum_tile<kN>(d, p.k / kSpan, me);
    const int first = tile.row + static_cast<int>(threadIdx.x % 32 / 4);
    Sums<Out, Worker<R, order_of<Out>()>> sums(out, p, me, first, tile.n);
#pragma unroll
    for (int j = 0; j < kN / 8; ++j, sums.to += 8 * out.stride) {
        const auto columns = sums.packed(d + 4 * j);
        if (sums.inside && first + 8 * j < tile.row_end) sums.write(columns);
    }
}

#endif

}  // namespace riptide::ops::cuda::prefill
