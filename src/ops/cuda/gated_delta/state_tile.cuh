// What a warp does with its columns of a Gated DeltaNet state, in registers.
#pragma once

#include "quant/kv_decode.cuh"
#include "tensor/launch.cuh"

namespace riptide::ops {

inline constexpr int kLaneColumns = 4;                 // of the state in a lane, where nothing else is said
inline constexpr int kWarpColumns = 2 * kLaneColumns;  // owned by such a warp: 16 lanes share the rows

#ifdef __CUDACC__

/// Neighbouring columns of one row: what a lane has of it, in one piece of memory.
template <int kColumns>
struct alignas(4 * kColumns) DeltaPiece {
    float x[kColumns];
};

/// A warp's columns of a state. Lane 2 l + g has the columns kColumns g + c (c < kColumns) of the warp's, and of each
/// the rows 64 j + 4 l + t (t < 4): element [4 j + t]. With four columns neighbours share a sector of 32 bytes, which
/// one request takes whole; with two a row takes half as long, and twice as many warps. Both add in the same order.
/// Rows behind key_dim and columns behind value_dim are zeros.
template <int kRows, int kColumns = kLaneColumns>
struct DeltaTile {
    static_assert(kColumns == 2 || kColumns == 4);
    using Piece = DeltaPiece<kColumns>;
    static constexpr int kOwned = 2 * kColumns;   // columns of a warp
    static constexpr int kAlike = 16 / kColumns;  // neighbouring lanes that get the sums of one c, of both g

    Piece s[kRows];

    __device__ static int row(int i) { return 64 * (i / 4) + 4 * static_cast<int>(threadIdx.x % 32 / 2) + i % 4; }
    __device__ static int first_column() { return kColumns * static_cast<int>(threadIdx.x % 2); }

    __device__ static bool has_output() { return (threadIdx.x & (16 + kAlike - 2)) == 16; }
    __device__ static int output_column() { return static_cast<int>(threadIdx.x % 16 / kAlike); }

    /// from: element [0, the lane's first column] of the head's state; `columns`: how many there are from it on. Also
    /// above pdl_wait().
    __device__ __forceinline__ void load(const float* from, int dk, int dv, int columns) {
        if (dv % kColumns == 0 && columns >= kColumns) {
#pragma unroll
            for (int i = 0; i < kRows; ++i) s[i] = row(i) < dk ? load_piece(from + int64_t{row(i)} * dv) : Piece{};
            return;
        }
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
            const float* at = from + int64_t{row(i)} * dv;
            const int count = row(i) < dk ? columns : 0;
            const auto one = [at, count](int c) { return count > c ? __uint_as_float(EarlyLoad::one(at + c)) : 0.0f; };
            if constexpr (kColumns == 4) s[i] = {one(0), one(1), one(2), one(3)};
            else s[i] = {one(0), one(1)};
        }
    }
    /// Of a state of 16 kRows rows.
    template <int kValueDim>
    __device__ __forceinline__ void load_all(const float* from) {
        from += row(0) * kValueDim;
#pragma unroll
        for (int i = 0; i < kRows; ++i) s[i] = load_piece(from + (64 * (i / 4) + i % 4) * kValueDim);
    }
    __device__ __forceinline__ void store(float* to, int dk, int dv, int columns) const {
        if (dv % kColumns == 0 && columns >= kColumns) {
#pragma unroll
            for (int i = 0; i < kRows; ++i)
                if (row(i) < dk) store_piece(to + int64_t{row(i)} * dv, s[i]);
            return;
        }
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
            float* at = to + int64_t{row(i)} * dv;
            const int count = row(i) < dk ? columns : 0;
#pragma unroll
            for (int c = 0; c < kColumns; ++c)
                if (count > c) at[c] = s[i].x[c];
        }
    }
    __device__ __forceinline__ static Piece load_piece(const float* from) {
        if constexpr (kColumns == 4) {
            const uint4 v = load_weights(from);
            return {__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z), __uint_as_float(v.w)};
        } else {
            const uint2 v = EarlyLoad::two(from);
            return {__uint_as_float(v.x), __uint_as_float(v.y)};
        }
    }
    /// In one piece: the compiler turns a plain store beside the branch for single columns into several.
    __device__ __forceinline__ static void store_piece(float* to, const Piece& p) {
#ifdef __CUDA_ARCH__
        if constexpr (kColumns == 4)
            asm volatile("st.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(p.x[0]), "f"(p.x[1]), "f"(p.x[2]),
                         "f"(p.x[3])
                         : "memory");
        else asm volatile("st.global.v2.f32 [%0], {%1, %2};" ::"l"(to), "f"(p.x[0]), "f"(p.x[1]) : "memory");
#else
        *reinterpret_cast<Piece*>(to) = p;
#endif
    }
    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int i = 0; i < kRows; ++i) s[i] = Piece{};
    }
    /// To and from a slot of this warp in shared memory, [kRows][32].
    __device__ __forceinline__ void keep(Piece* slot) const {
#pragma unroll
        for (int i = 0; i < kRows; ++i) slot[32 * i + threadIdx.x % 32] = s[i];
    }
    __device__ __forceinline__ void recall(const Piece* slot) {
#pragma unroll
        for (int i = 0; i < kRows; ++i) s[i] = slot[32 * i + threadIdx.x % 32];
    }

    /// One row: see gated_delta.h. q, k [padded], v of the lane's columns, gate: e^g, beta, k . q. Returns, where
    /// has_output(), o of the lane's column first_column() + output_column().
    template <bool kOutput>
    __device__ __forceinline__ float step(const float* q, const float* k, const Piece& v, float4 gate) {
        float keys[kRows], queries[kRows];
        own_rows(k + row(0), keys);
        if constexpr (kOutput) own_rows(q + row(0), queries);
        const float sum = sums<kOutput>(queries, keys);
        const Piece d = differences(sum, v, gate);
        join(keys, d, gate);
        if constexpr (!kOutput) return 0.0f;
        return output(sum, d, gate);
    }
    /// The same in parts: own_rows() of k and q, sums(), then look(), or differences(), output() and join(). x: k or q
    /// from row(0) on.
    __device__ __forceinline__ static void own_rows(const float* x, float (&own)[kRows]) {
#pragma unroll
        for (int j = 0; j < kRows / 4; ++j) {
            const float4 y = *reinterpret_cast<const float4*>(x + 64 * j);
            own[4 * j] = y.x, own[4 * j + 1] = y.y, own[4 * j + 2] = y.z, own[4 * j + 3] = y.w;
        }
    }
    /// The sums over rows: a lane's own in ascending order, then lanes xor 16, 8, 4, 2. Lanes with bit 4 of their
    /// number get S^T q of column output_column(), the others S^T k. A lane gives away what it does not go on with.
    template <bool kOutput>
    __device__ __forceinline__ float sums(const float (&queries)[kRows], const float (&keys)[kRows]) const {
        const int lane = static_cast<int>(threadIdx.x % 32);
        float p[kColumns] = {}, o[kColumns] = {};
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
            add(p, s[i], keys[i]);
            if constexpr (kOutput) add(o, s[i], queries[i]);
        }
        const bool bit4 = (lane & 16) != 0, bit3 = (lane & 8) != 0, bit2 = (lane & 4) != 0;
        constexpr int kHalf = kColumns / 2;
        float all[kColumns], half[kHalf];
#pragma unroll
        for (int c = 0; c < kColumns; ++c) all[c] = exchange(bit4 ? o[c] : p[c], bit4 ? p[c] : o[c], 16);
#pragma unroll
        for (int c = 0; c < kHalf; ++c)
            half[c] = exchange(bit3 ? all[kHalf + c] : all[c], bit3 ? all[c] : all[kHalf + c], 8);
        float one;
        if constexpr (kColumns == 4) one = exchange(bit2 ? half[1] : half[0], bit2 ? half[0] : half[1], 4);
        else one = exchange(half[0], half[0], 4);
        return exchange(one, one, 2);
    }
    /// What step() returns.
    __device__ __forceinline__ static float look(float sum, const Piece& v, float4 gate) {
        const float d = difference(output_column(), sum, own(v), gate);
        return __fmaf_rn(gate.z, d, __fmul_rn(gate.x, sum));
    }
    /// d of the lane's columns.
    __device__ __forceinline__ static Piece differences(float sum, const Piece& v, float4 gate) {
        Piece d;
#pragma unroll
        for (int c = 0; c < kColumns; ++c) d.x[c] = difference(c, sum, v.x[c], gate);
        return d;
    }
    /// What step() returns.
    __device__ __forceinline__ static float output(float sum, const Piece& d, float4 gate) {
        return __fmaf_rn(gate.z, own(d), __fmul_rn(gate.x, sum));
    }
    /// S <- e^g S + k d^T.
    __device__ __forceinline__ void join(const float (&keys)[kRows], const Piece& d, float4 gate) {
#pragma unroll
        for (int i = 0; i < kRows; ++i)
#pragma unroll
            for (int c = 0; c < kColumns; ++c) s[i].x[c] = __fmaf_rn(keys[i], d.x[c], __fmul_rn(gate.x, s[i].x[c]));
    }

    /// S^T x alone, of column whose(): lanes that differ in other bits have it too. Adds as sums() does.
    __device__ static int whose() { return static_cast<int>(threadIdx.x % 32) * kColumns / 32; }
    /// Of the lanes with the same column, one for each g.
    __device__ static bool speaks() { return threadIdx.x % (32 / kColumns) < 2; }
    __device__ __forceinline__ float sum_of(const float (&x)[kRows]) const {
        float p[kColumns] = {};
#pragma unroll
        for (int i = 0; i < kRows; ++i) add(p, s[i], x[i]);
        const bool bit4 = (threadIdx.x & 16) != 0, bit3 = (threadIdx.x & 8) != 0;
        float half[kColumns / 2];
#pragma unroll
        for (int c = 0; c < kColumns / 2; ++c)
            half[c] = exchange(bit4 ? p[kColumns / 2 + c] : p[c], bit4 ? p[c] : p[kColumns / 2 + c], 16);
        float one;
        if constexpr (kColumns == 4) one = exchange(bit3 ? half[1] : half[0], bit3 ? half[0] : half[1], 8);
        else one = exchange(half[0], half[0], 8);
        one = exchange(one, one, 4);
        return exchange(one, one, 2);
    }
    /// d of the lane's columns from S^T k, and o of column whose() from S^T q, as sum_of() leaves them.
    __device__ __forceinline__ static Piece differences_of(float sum, const Piece& v, float4 gate) {
        Piece d;
#pragma unroll
        for (int c = 0; c < kColumns; ++c) {
            const int lane = 32 / kColumns * c + static_cast<int>(threadIdx.x % 2);
            d.x[c] = difference(__shfl_sync(0xFFFFFFFFu, sum, lane), v.x[c], gate);
        }
        return d;
    }
    __device__ __forceinline__ static float output_of(float sum, const Piece& d, float4 gate) {
        const bool bit4 = (threadIdx.x & 16) != 0, bit3 = (threadIdx.x & 8) != 0;
        float own;
        if constexpr (kColumns == 4) own = bit4 ? (bit3 ? d.x[3] : d.x[2]) : (bit3 ? d.x[1] : d.x[0]);
        else own = bit4 ? d.x[1] : d.x[0];
        return __fmaf_rn(gate.z, own, __fmul_rn(gate.x, sum));
    }

  private:
    /// beta (v - e^g p) with p of the lane's column c.
    __device__ __forceinline__ static float difference(int c, float sum, float v, float4 gate) {
        return difference(__shfl_sync(0xFFFFFFFFu, sum, kAlike * c + static_cast<int>(threadIdx.x % 2)), v, gate);
    }
    __device__ __forceinline__ static float difference(float p, float v, float4 gate) {
        return __fmul_rn(gate.y, __fsub_rn(v, __fmul_rn(gate.x, p)));
    }
    /// Of the lane's columns the one that it has an output of.
    __device__ __forceinline__ static float own(const Piece& p) {
        const bool bit3 = (threadIdx.x & 8) != 0, bit2 = (threadIdx.x & 4) != 0;
        if constexpr (kColumns == 4) return bit3 ? (bit2 ? p.x[3] : p.x[2]) : (bit2 ? p.x[1] : p.x[0]);
        else return bit3 ? p.x[1] : p.x[0];
    }
    __device__ static void add(float (&sum)[kColumns], const Piece& e, float factor) {
#pragma unroll
        for (int c = 0; c < kColumns; ++c) sum[c] = __fmaf_rn(e.x[c], factor, sum[c]);
    }
    /// mine + what the lane `mask` away gives.
    __device__ static float exchange(float mine, float given, int mask) {
        return __fadd_rn(mine, __shfl_xor_sync(0xFFFFFFFFu, given, mask));
    }
};

#endif

}  // namespace riptide::ops
