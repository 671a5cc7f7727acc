// The decode kernels for float weights (bf16, f16, f32, fp8): same arithmetic and bits as dot.cuh.
//
// Design: CTAs of 16 warps. Four warps (a quad) have four weight rows at a time, warp `part` of them accumulator `part`
// of the canonical order: its tiles are 32 pieces of sixteen bytes of each of the four rows, every fourth such step of
// the rows. So x is read from shared memory once for four rows, and one butterfly ends four sums. No barriers in the
// loop: each lane holds two tiles of weights in registers and asks for the next one as soon as a tile is used, 32 to 64
// KB in flight an SM.
//   One row of x      a thread has at most 64 registers, so that the next kernel's CTA fits beside this one and fetches
//                     its first weights meanwhile
//   More              128
#pragma once

#include "ops/cuda/linear/shared/dot_batch.cuh"
#include "ops/cuda/linear/shared/shapes.h"

namespace riptide::ops::cuda::decode {

/// fp8 without scale planes.
struct PlainFloat8 {
    static constexpr bool kF8 = false;
    static constexpr DType kType = DType::f8_e4m3;
};

/// A matrix as these kernels see it, or equal matrices of experts.
struct FloatMatrix {
    const char* data = nullptr;
    const char* scales = nullptr;          // the entry of a row and column, or null
    int64_t stride = 0, scale_stride = 0;  // from expert to expert
    float* y = nullptr;                    // where products go, if the kernel asks
    int32_t rows = 0, row_bytes = 0;
    int32_t first = 0;                          // batch, in the list of a kernel with several matrices
    int32_t pieces = 0, windows = 0;            // of a row
    int32_t row_shift = 31, column_shift = 31;  // 2 to the power of them share an entry
    int32_t scale_row_bytes = 0;                // from entries of one row to the next
    float scale = 1;
    DType type = DType::bf16;
    DType scale_type = DType::f32;
};

#ifdef __CUDACC__

/// Rows of x in shared memory.
struct StagedRows {
    const char* data;
    int stride, count;
};

/// The entry for `row` and the 64 columns from piece `piece` (of sixteen columns) on.
__device__ __forceinline__ uint32_t float_scale(const FloatMatrix& m, int64_t offset, int row, int piece) {
    const char* entries = m.scales + offset + (row >> m.row_shift) * m.scale_row_bytes;
    const int at = (16 * piece) >> m.column_shift;
    return m.scale_type == DType::f32 ? load_weight32(entries + 4 * at) : load_weight16(entries + 2 * at);
}

/// acc[g][p] += piece c of weight row g times columns from piece of four `x_first` on of staged row p of P, as far as
/// there are. `entries`: lane first_entry + 8 g + i has the bits of the entry of row g for the i-th 64 columns of the
/// warp's step (if there are entries). All lanes; `there`: whether the rows have a piece for this lane.
template <class Set, int N, int P>
__device__ __forceinline__ void dot_float_rows(const FloatMatrix& m, bool there, int c, int x_first,
                                               const uint32_t (&raw)[N][4], uint32_t entries, int first_entry,
                                               const StagedRows& x, float (&acc)[N][P]) {
    const bool scaled = Set::kF8 && m.scales != nullptr;
    float sum[N][P];
#pragma unroll
    for (int g = 0; g < N; ++g)
#pragma unroll
        for (int p = 0; p < P; ++p) sum[g][p] = scaled ? 0.0f : acc[g][p];
    if (there)
        with_float_type<Set>(m.type, [&](auto type) {
            constexpr int kParts = piece_columns(decltype(type)::value) / 4;
            const int first =
                float_piece(x_first + c * kParts);  // a multiple of kParts, but for what float_piece swaps
#pragma unroll
            for (int t = 0; t < kParts; ++t) {
                const int at = first ^ t;
#pragma unroll
                for (int p = 0; p < P; ++p) {
                    const char* row = x.data + (P == 1 || p < x.count ? p : 0) * x.stride;
                    const float4 v = reinterpret_cast<const float4*>(row)[at];
#pragma unroll
                    for (int g = 0; g < N; ++g)
                        sum[g][p] = fma4(decode4(decltype(type)::value, raw[g], t), v, sum[g][p]);
                }
            }
        });
#pragma unroll
    for (int g = 0; g < N; ++g) {
        if (scaled) {
            const int from = first_entry + 8 * g + static_cast<int>(threadIdx.x) % 32 / 4;
            const float s = scale_bits(m.scale_type, __shfl_sync(~0u, entries, from));
#pragma unroll
            for (int p = 0; p < P; ++p)
                if (there) acc[g][p] = fmaf(s, sum[g][p], acc[g][p]);
        } else {
#pragma unroll
            for (int p = 0; p < P; ++p) acc[g][p] = sum[g][p];
        }
    }
}

// ---- A quad's rows.

__device__ __forceinline__ const char* pointer_of_lane(const char* p, int lane) {
    return reinterpret_cast<const char*>(__shfl_sync(~0u, reinterpret_cast<uintptr_t>(p), lane));
}

/// Four rows one behind the other: where a lane finds its piece of them, tile after tile.
struct FourRows {
    const char* first;

    __device__ __forceinline__ const char* at(int g, int row_bytes) const { return first + g * row_bytes; }
    __device__ __forceinline__ void advance() { first += 16 * kWindowPieces; }
    /// Those that lane `from` has, `bytes` further on. All lanes.
    __device__ __forceinline__ FourRows of_lane(int from, int bytes) const {
        return {pointer_of_lane(first, from) + bytes};
    }
};
/// Two rows of a matrix and the same of another.
struct TwoPairs {
    const char *first, *other;

    __device__ __forceinline__ const char* at(int g, int row_bytes) const {
        return (g < 2 ? first : other) + g % 2 * row_bytes;
    }
    __device__ __forceinline__ void advance() { first += 16 * kWindowPieces, other += 16 * kWindowPieces; }
    __device__ __forceinline__ TwoPairs of_lane(int from, int bytes) const {
        return {pointer_of_lane(first, from) + bytes, pointer_of_lane(other, from) + bytes};
    }
};

/// Sends the `list.ahead` tiles from window `window` of batch `k` on to the L2 cache. rows: of that batch, at the tile.
template <class List>
__device__ __forceinline__ void send_ahead(const FloatMatrix* matrices, const List& list, typename List::Rows rows,
                                           int k, int window, int part, int lane) {
#pragma unroll 1
    for (int i = 0; i < list.ahead && k < list.count; ++i) {
        if (window == 0) rows = list.rows(k, (part * 32 + lane) * 16);
        const FloatMatrix& m = matrices[list.matrix(k)];
        // Eight lanes share a line of 128 bytes: the g-th of them sends that of row g.
        if (lane % 8 < kQuadRows && window * kWindowPieces + part * 32 + lane < m.pieces)
            asm volatile("prefetch.global.L2 [%0];" ::"l"(rows.at(lane % 8, m.row_bytes)));
        rows.advance();
        if (++window == m.windows) ++k, window = 0;
    }
}

/// Adds up a quad's `count` batches and puts the sums into results (multiply_quad()). windows = multiply(batch, window,
/// i, acc): acc += the products of a tile, which lies in the i-th of two places by turns; the windows of the batch.
template <int P, class Multiply>
__device__ __forceinline__ void sum_batches(int count, int lane, int part, int quad, float* results,
                                            const Multiply& multiply) {
    constexpr int kSums = kQuadRows * P, kLanes = 32 / kSums;  // lanes that hold the same sum
    float acc[kQuadRows][P] = {};
    int now = 0, window = 0;
#pragma unroll 1
    while (now < count) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            if (now == count) break;
            const int windows = multiply(now, window, i, acc);
            if (++window < windows) continue;
            float v[kSums];
#pragma unroll
            for (int j = 0; j < kSums; ++j) v[j] = acc[j / P][j % P];
            const float sum = reduce_lanes<kSums>(v, lane);
            if (lane % kLanes == 0) results[((kQuads * now + quad) * kSums + lane / kLanes) * 4 + part] = sum;
#pragma unroll
            for (int j = 0; j < kSums; ++j) acc[j / P][j % P] = 0.0f;
            window = 0;
            ++now;
        }
    }
}

/// Multiplies the batches of a quad, list.count of them, with up to P rows of x. results[batch of the CTA][row][row of
/// x][part]; batch k of the quad is number kQuads * k + quad. list.rows(k), list.matrix(k), list.scale(k, ...): see the
/// kernels. ready(): all threads of the CTA wait and stage x. The first tiles are asked for before it (List::kEarly) or
/// behind it; list.ahead more go to the L2 cache meanwhile.
template <class Set, int P, class List, class Ready>
__device__ __forceinline__ void multiply_quad(const FloatMatrix* matrices, const List& list, const Ready& ready,
                                              const StagedRows& x, float* results) {
    const int lane = threadIdx.x % 32, part = threadIdx.x / 32 % 4, quad = threadIdx.x / 128;
    uint32_t raw[2][kQuadRows][4], entries[2] = {0, 0};
    typename List::Rows rows = {};
    int next = 0, next_window = 0, next_matrix = 0;
    const auto load = [&](uint32_t(&to)[kQuadRows][4], uint32_t& scale) {
        if (next_window == 0) {
            next_matrix = list.matrix(next);
            rows = list.rows(next, (part * 32 + lane) * 16);
        }
        const FloatMatrix& m = matrices[next_matrix];
        const int step = next_window * kWindowPieces + part * 32;
        if (step + lane < m.pieces) {
#pragma unroll
            for (int g = 0; g < kQuadRows; ++g) put_words(to[g], 0, load_weights(rows.at(g, m.row_bytes)));
        }
        if constexpr (Set::kF8) {
            const int piece = step + lane % 8 * 4;
            if (m.scales != nullptr && piece < m.pieces) scale = list.scale(next, lane / 8, piece);
        }
        rows.advance();
        if (++next_window == m.windows) ++next, next_window = 0;
    };
    const auto load_first = [&] {
#pragma unroll
        for (int i = 0; i < 2; ++i)
            if (next < list.count) load(raw[i], entries[i]);
    };
    if constexpr (List::kEarly) load_first();
    send_ahead(matrices, list, rows, next, next_window, part, lane);
    ready();
    if constexpr (!List::kEarly) load_first();
    sum_batches<P>(list.count, lane, part, quad, results, [&](int now, int window, int i, float(&acc)[kQuadRows][P]) {
        const FloatMatrix& m = matrices[list.matrix(now)];
        const int c = window * kWindowPieces + part * 32 + lane;
        dot_float_rows<Set>(m, c < m.pieces, c, 0, raw[i], entries[i], 0, x, acc);
        if (next < list.count) load(raw[i], entries[i]);
        return m.windows;
    });
}

// ---- One row of x.

/// What a kernel knows of rows: their columns, or (0) nothing.
template <class Set, int Columns>
struct RowShape {
    static constexpr bool kWhole = true;  // every lane has a piece in every window
    static constexpr int kPieces = Columns / piece_columns(Set::kType);
    static_assert(kPieces % kWindowPieces == 0);
    __device__ static constexpr int pieces(const FloatMatrix&) { return kPieces; }
    __device__ static constexpr int windows(const FloatMatrix&) { return kPieces / kWindowPieces; }
    __device__ static constexpr int row_bytes(const FloatMatrix&) { return 16 * kPieces; }
};
template <class Set>
struct RowShape<Set, 0> {
    static constexpr bool kWhole = false;
    __device__ __forceinline__ static int pieces(const FloatMatrix& m) { return m.pieces; }
    __device__ __forceinline__ static int windows(const FloatMatrix& m) { return m.windows; }
    __device__ __forceinline__ static int row_bytes(const FloatMatrix& m) { return m.row_bytes; }
};

/// multiply_quad() for one row of x. loaded(): behind the first loads.
template <class Set, int Columns, class List, class Ready, class Loaded>
__device__ __forceinline__ void multiply_row(const FloatMatrix* matrices, const List& list, const Ready& ready,
                                             const Loaded& loaded, const StagedRows& x, float* results) {
    using Shape = RowShape<Set, Columns>;
    const int lane = threadIdx.x % 32, part = threadIdx.x / 32 % 4, quad = threadIdx.x / 128;
    // Of typed rows only fp8 with scale planes look at their matrix.
    const auto matrix = [&](int k) -> const FloatMatrix& {
        return matrices[Columns > 0 && !Set::kF8 ? 0 : list.matrix(k)];
    };
    uint32_t raw[2][kQuadRows][4], entries[2] = {0, 0};
    typename List::Rows rows = {}, some = {};  // some: of batches from the last multiple of 32 on, one a lane
    int next = 0, next_window = 0;
    const auto load = [&](uint32_t(&to)[kQuadRows][4], uint32_t& scale) {
        if (next == list.count) return;
        if (next_window == 0) {
            if (next % 32 == 0) some = list.rows(min(next + lane, list.count - 1), 0);
            rows = some.of_lane(next % 32, (part * 32 + lane) * 16);
        }
        const FloatMatrix& m = matrix(next);
        const int step = next_window * kWindowPieces + part * 32;
        if (Shape::kWhole || step + lane < Shape::pieces(m)) {
#pragma unroll
            for (int g = 0; g < kQuadRows; ++g) put_words(to[g], 0, load_weights(rows.at(g, Shape::row_bytes(m))));
        }
        if constexpr (Set::kF8) {
            const int piece = step + lane % 8 * 4;
            if (m.scales != nullptr && piece < Shape::pieces(m)) scale = list.scale(next, lane / 8, piece);
        }
        rows.advance();
        if (++next_window == Shape::windows(m)) ++next, next_window = 0;
    };
    const auto dot = [&](int k, int window, int i, float(&acc)[kQuadRows][1]) {
        const FloatMatrix& m = matrix(k);
        const int c = window * kWindowPieces + part * 32 + lane;
        dot_float_rows<Set>(m, Shape::kWhole || c < Shape::pieces(m), c, 0, raw[i], entries[i], 0, x, acc);
    };
    /// The sums of batches k, k + 1, ... (below list.count) to `results`.
    const auto store = [&]<int N>(int k, float(&v)[N]) {
        constexpr int kLanes = 32 / N;  // that hold the same sum
        const float sum = reduce_lanes<N>(v, lane);
        const int b = k + lane / kLanes / kQuadRows, g = lane / kLanes % kQuadRows;
        if (lane % kLanes == 0 && b < list.count) results[((kQuads * b + quad) * kQuadRows + g) * 4 + part] = sum;
    };
    const auto load_first = [&] {
        load(raw[0], entries[0]);
        load(raw[1], entries[1]);
    };
    if constexpr (List::kEarly) load_first();
    send_ahead(matrices, list, rows, next, next_window, part, lane);
    ready();
    if constexpr (!List::kEarly) load_first();
    loaded();
    constexpr bool kOneWindow = [] {
        if constexpr (Columns > 0) return Shape::kPieces == kWindowPieces;
        else return false;
    }();
    if constexpr (kOneWindow) {
#pragma unroll 1
        for (int now = 0; now < list.count; now += 2) {
            float v[2 * kQuadRows];
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                float acc[kQuadRows][1] = {};
                if (now + i < list.count) {
                    dot(now + i, 0, i, acc);
                    load(raw[i], entries[i]);
                }
#pragma unroll
                for (int g = 0; g < kQuadRows; ++g) v[i * kQuadRows + g] = acc[g][0];
            }
            store(now, v);
        }
    } else {
        sum_batches<1>(list.count, lane, part, quad, results,
                       [&](int now, int window, int i, float(&acc)[kQuadRows][1]) {
                           dot(now, window, i, acc);
                           load(raw[i], entries[i]);
                           return Shape::windows(matrix(now));
                       });
    }
}

/// The product whose four sums multiply_quad() left.
__device__ __forceinline__ float float_sum(const float* results, int at) {
    const float4 s = reinterpret_cast<const float4*>(results)[at];
    return (s.x + s.y) + (s.z + s.w);
}

// ---- Staging a row of x.

/// A plain row, by `threads` threads.
__device__ __forceinline__ void stage_plain(const float* x, const ActLayout& l, int t, int threads, char* staged) {
    const int pieces = l.float_bytes / 32;
#pragma unroll 1
    for (int c = t; c < pieces; c += 2 * threads) {
        float v[8], w[8];
        load8(x, c, l.cols, v);
        load8(x, c + threads, l.cols, w);
        put8(l, staged, c, v);
        put8(l, staged, c + threads, w);
    }
}

/// Staged rows of device memory, one behind the other, by `threads` threads.
__device__ __forceinline__ void copy_staged(const char* from, int bytes, int t, int threads, char* staged) {
#pragma unroll 4
    for (int i = t; i < bytes / 16; i += threads)
        reinterpret_cast<uint4*>(staged)[i] = reinterpret_cast<const uint4*>(from)[i];
}

// A row that is normalised, by kThreads threads: sum_squares(), a barrier of the whole CTA, put_normed(). The bits are
// those of block_rms_scale().

/// v: this thread's first piece of the row, for put_normed(), before which the thread waits for what fetch_norm()
/// asked. partial: kWarps floats.
__device__ __forceinline__ void sum_squares(const ActSource& s, const ActLayout& l, int t, float* partial,
                                            float (&v)[8]) {
    const auto* x = reinterpret_cast<const float*>(s.rows);
    load8(x, t, l.cols, v);
    float sum = add_squares(v, 0.0f);
#pragma unroll 1
    for (int c = t + kThreads; 8 * c < l.cols; c += kThreads) {
        float more[8];
        load8(x, c, l.cols, more);
        sum = add_squares(more, sum);
    }
    sum = warp_sum(sum);
    if (t % 32 == 0) partial[t / 32] = sum;
}

/// norm: where these threads' fetch_norm() put the weights.
__device__ __forceinline__ void put_normed(const ActSource& s, const ActLayout& l, int t, const float* norm,
                                           const float* partial, float (&v)[8], char* staged) {
    const auto* x = reinterpret_cast<const float*>(s.rows);
    const float scale = row_scale(partial, l.cols, s.eps);
#pragma unroll 1
    for (int c = t;;) {
#pragma unroll
        for (int i = 0; i < 8; ++i) v[i] = 8 * c + i < l.cols ? rms_value(v[i], scale, norm[8 * c + i]) : 0.0f;
        put8(l, staged, c, v);
        c += kThreads;
        if (32 * c >= l.float_bytes) break;
        load8(x, c, l.cols, v);
    }
}

#endif  // __CUDACC__

}  // namespace riptide::ops::cuda::decode
