// A warp's share of a matrix kernel: a few rows at a time, all their loads first (dot.cuh has the arithmetic).
#pragma once

#include <type_traits>

#include "ops/cuda/linear/shared/dot.cuh"

namespace riptide::ops::cuda::decode {

#ifdef __CUDACC__

/// Row number `row` of expert `e` of matrix number `matrix` of a kernel's list.
struct RowRef {
    int matrix, expert, row;
};

/// `i`-th piece of N words of a register array.
template <int N>
__device__ __forceinline__ uint32_t (&words(uint32_t* raw, int i))[N] {
    return *reinterpret_cast<uint32_t(*)[N]>(raw + i * N);
}

template <DType Type>
using PlaneType = std::integral_constant<DType, Type>;

/// f with the type as a constant where that pays, else as it is.
template <class Set, class F>
__device__ __forceinline__ void with_plane_type(DType type, const F& f) {
    if constexpr (Set::has(DType::planes_q5_k)) {
        if (type == DType::planes_levels) f(PlaneType<DType::planes_levels>{});
        else if (type == DType::planes_q2_k) f(PlaneType<DType::planes_q2_k>{});
        else if (type == DType::planes_int8) f(PlaneType<DType::planes_int8>{});
        else if (type == DType::planes_int4) f(PlaneType<DType::planes_int4>{});
        else f(type);
    } else {
        if (type == DType::planes_q4_k) f(PlaneType<DType::planes_q4_k>{});
        else f(PlaneType<DType::planes_q6_k>{});
    }
}
template <class Set, class F>
__device__ __forceinline__ void with_float_type(DType type, const F& f) {
    if constexpr (requires { Set::kType; }) f(std::integral_constant<DType, Set::kType>{});
    else if (type == DType::bf16) f(std::integral_constant<DType, DType::bf16>{});
    else if (type == DType::f32) f(std::integral_constant<DType, DType::f32>{});
    else if (Set::kF8 && type == DType::f8_e4m3) f(std::integral_constant<DType, DType::f8_e4m3>{});
    else f(std::integral_constant<DType, DType::f16>{});
}

/// G rows of planes, S steps of 32 sub-blocks at a time. Whole: no row has more.
template <class Set, int G, int S, bool Whole>
struct PlaneBatch {
    static constexpr bool kWhole = Whole;
    static constexpr int kRows = G, kSteps = S, kWords = G * S * Set::kWords;

    __device__ static int steps(const Matrix& m) { return (m.cols / 32 + 31) / 32; }

    template <class RowOf>
    __device__ __forceinline__ static void load(const Matrix* m, const RowOf& row_of, int first, int end, int step,
                                                int lane, uint32_t* raw) {
#pragma unroll
        for (int g = 0; g < G; ++g) {
            const bool there = first + g < end;
            const RowRef r = row_of(there ? first + g : first);
            const Matrix& w = m[r.matrix];
            with_plane_type<Set>(w.type, [&](auto type) {
#pragma unroll
                for (int s = 0; s < S; ++s) {
                    uint32_t(&unit)[Set::kWords] = words<Set::kWords>(raw, g * S + s);
                    const int j = (step + s) * 32 + lane;
                    if (there && j < w.cols / 32) {
                        load_plane<Set>(type, w, r.expert, r.row, j, unit);
                    } else {
#pragma unroll
                        for (int i = 0; i < Set::kWords; ++i) unit[i] = 0;
                    }
                }
            });
        }
    }

    template <int P, class RowOf>
    __device__ __forceinline__ static void dot(const Matrix* m, const RowOf& row_of, int first, int end, int step,
                                               int lane, uint32_t* raw, const char* staged, const ActLayout& l,
                                               int rows, float (&acc)[G][P]) {
#pragma unroll
        for (int g = 0; g < G; ++g) {
            const Matrix& w = m[row_of.matrix(first + g < end ? first + g : first)];
            with_plane_type<Set>(w.type, [&](auto type) {
#pragma unroll
                for (int s = 0; s < S; ++s) {
                    const int j = min((step + s) * 32 + lane, l.groups - 1);  // beyond it the words are zeros
                    dot_plane<Set, P>(type, w, words<Set::kWords>(raw, g * S + s), j, l.groups, staged, l.bytes(), rows,
                                      acc[g]);
                }
            });
        }
    }

    /// emit(g, p, sum) in one lane for each sum.
    template <int P, class Emit>
    __device__ __forceinline__ static void finish(const float (&acc)[G][P], int lane, const Emit& emit) {
        constexpr int kValues = pow2_ceil(G * P), kShift = 5 - log2_floor(kValues);
        float v[kValues];
#pragma unroll
        for (int i = 0; i < kValues; ++i) v[i] = i < G * P ? acc[i / P < G ? i / P : 0][i % P] : 0.0f;
        const float sum = reduce_lanes<kValues>(v, lane);
        const int i = lane >> kShift;
        if ((lane & ((1 << kShift) - 1)) == 0 && i < G * P) emit(i / P, i % P, sum);
    }

    template <int P>
    struct Sums {
        float acc[G][P] = {};
    };
};

/// G rows of floats, S steps of 32 pieces (a multiple of four) at a time.
template <class Set, int G, int S>
struct FloatBatch {
    static constexpr bool kWhole = false;
    static constexpr int kRows = G, kSteps = S, kWords = G * S * (Set::kF8 ? 5 : 4);  // piece and scale
    static constexpr int kScales = 4 * G * S;

    __device__ static int steps(const Matrix& m) { return (pieces_of(m) + 31) / 32; }

    template <class RowOf>
    __device__ __forceinline__ static void load(const Matrix* m, const RowOf& row_of, int first, int end, int step,
                                                int lane, uint32_t* raw) {
#pragma unroll
        for (int g = 0; g < G; ++g) {
            const bool there = first + g < end;
            const RowRef r = row_of(there ? first + g : first);
            const Matrix& w = m[r.matrix];
            const int pieces = there ? pieces_of(w) : 0;
            const bool scaled = Set::kF8 && piece_scaled(w);
#pragma unroll
            for (int s = 0; s < S; ++s) {
                uint32_t(&piece)[4] = words<4>(raw, g * S + s);
                const int c = (step + s) * 32 + lane;
                piece[0] = piece[1] = piece[2] = piece[3] = 0;
                if (c < pieces) load_piece(w, r.expert, r.row, c, piece);
                if constexpr (Set::kF8) {
                    raw[kScales + g * S + s] = 0;
                    if (scaled && c < pieces) raw[kScales + g * S + s] = load_piece_scale(w, r.expert, r.row, c);
                }
            }
        }
    }

    template <int P>
    struct Sums {
        float acc[G][4][P] = {};
    };

    template <int P, class RowOf>
    __device__ __forceinline__ static void dot(const Matrix* m, const RowOf& row_of, int first, int end, int step,
                                               int lane, uint32_t* raw, const char* staged, const ActLayout& l,
                                               int rows, float (&acc)[G][4][P]) {
#pragma unroll
        for (int g = 0; g < G; ++g) {
            const int i = first + g < end ? first + g : first;
            const Matrix& w = m[row_of.matrix(i)];
            const int pieces = pieces_of(w);
            PiecePlane plane;
            if constexpr (Set::kF8) {
                const RowRef r = row_of(i);
                plane = piece_plane<Set>(
                    w, [&] { return r.expert; }, r.row);
            }
            with_float_type<Set>(w.type, [&](auto type) {
#pragma unroll
                for (int s = 0; s < S; ++s) {
                    const int c = (step + s) * 32 + lane;
                    uint32_t scale = 0;
                    if constexpr (Set::kF8) scale = raw[kScales + g * S + s];
                    if (c < pieces)
                        dot_piece<P>(type, c, 0, words<4>(raw, g * S + s), plane, scale, staged + l.int8_bytes,
                                     l.bytes(), rows, acc[g][s % 4]);
                }
            });
        }
    }

    template <int P, class Emit>
    __device__ __forceinline__ static void finish(const float (&acc)[G][4][P], int lane, const Emit& emit) {
        constexpr int kValues = pow2_ceil(4 * G * P), kShift = 5 - log2_floor(kValues);
        static_assert(kValues <= 32);
        float v[kValues];
#pragma unroll
        for (int i = 0; i < kValues; ++i) {
            const int gp = i / 4 < G * P ? i / 4 : 0;
            v[i] = i < 4 * G * P ? acc[gp / P][i % 4][gp % P] : 0.0f;
        }
        float sum = reduce_lanes<kValues>(v, lane);
        sum += __shfl_xor_sync(~0u, sum, 1 << kShift);
        sum += __shfl_xor_sync(~0u, sum, 2 << kShift);
        const int i = lane >> (kShift + 2);
        if ((lane & ((4 << kShift) - 1)) == 0 && i < G * P) emit(i / P, i % P, sum);
    }
};

/// Rows [begin, end) of a list times `rows` staged rows, P at a time: batches of Batch::kRows, whose words are loaded
/// once if they hold whole rows. row_of(i): the RowRef of row i of the list; row_of.matrix(i): its matrix alone.
/// emit(row of the list, row of x, sum). `loaded`: `raw` holds batch `begin`, step 0. before() runs first, ready()
/// behind the first loads and before any row of x is read: once in every warp, with rows or without. (Inside, so that
/// there is one copy of the code that loads: kernels this short wait for instructions, too.)
template <class Batch, int P, class RowOf, class Before, class Ready, class Emit>
__device__ __forceinline__ void run_rows(const Matrix* m, const RowOf& row_of, int begin, int end, int lane,
                                         uint32_t* raw, bool loaded, const char* staged, const ActLayout& l, int rows,
                                         const Before& before, const Ready& ready, const Emit& emit) {
    int loaded_row = loaded ? begin : -1, loaded_step = 0;
    bool first_time = true;
    before();
#pragma unroll 1
    for (int first = begin; first < end || first_time; first += Batch::kRows) {
        int steps = Batch::kSteps;
        if constexpr (Batch::kWhole) {
            if (first < end) Batch::load(m, row_of, first, end, 0, lane, raw);
            if (first_time) ready();
            first_time = false;
        } else {
#pragma unroll
            for (int g = 0; g < Batch::kRows; ++g)
                if (first + g < end) steps = max(steps, Batch::steps(m[row_of.matrix(first + g)]));
        }
#pragma unroll 1
        for (int p0 = 0; p0 < rows; p0 += P) {
            typename Batch::template Sums<P> sums;
#pragma unroll 1
            for (int step = 0; step < (Batch::kWhole ? 1 : steps); step += Batch::kSteps) {
                if constexpr (!Batch::kWhole) {
                    if (first < end && (loaded_row != first || loaded_step != step)) {
                        Batch::load(m, row_of, first, end, step, lane, raw);
                        loaded_row = first;
                        loaded_step = step;
                    }
                    if (first_time) ready();
                    first_time = false;
                }
                if (first < end)
                    Batch::template dot<P>(m, row_of, first, end, step, lane, raw, staged + p0 * l.bytes(), l,
                                           rows - p0, sums.acc);
            }
            if (first < end)
                Batch::template finish<P>(sums.acc, lane, [&](int g, int p, float sum) {
                    if (first + g < end && p0 + p < rows) emit(first + g, p0 + p, sum);
                });
        }
    }
}

#endif  // __CUDACC__

}  // namespace riptide::ops::cuda::decode
