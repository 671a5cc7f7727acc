// One row of x times bf16 matrices of up to 4,096 columns: products that take a few microseconds each, one behind the
// other. Same arithmetic and bits as float.cuh.
//
// Bytes of Qwen3.5-0.8B in bf16, a layer: first projections 16.8 MB (attention 10.5), out 4.2, gate and up 14.7, down
// 7.3; floor at 4.65 TB/s 3.6, 0.9, 3.2 and 1.6 us; a chain of kernels that fetch before they wait 0.95 us more each.
//
// Design. A CTA's share of the weights is 32 to 128 KB, so that all of it is asked for before the wait, by bulk copies
// of four rows each: copies by all lanes (cp.async) stand in front of the loads of the other kernels on the SM, whose x
// then came up to 4 us late. As in float.cuh four warps (a quad) have four rows at a time, warp `part` of them
// accumulator `part` of the canonical order. A lane needs the same columns of x for all rows: it loads and normalises
// them itself, in registers. Behind the wait there are one load of x, one barrier of a quad (if x is normalised), the
// products, one barrier, the sums. These kernels let the next one start first thing.
//
// What lies between gate and up and the next layer's first projections fits on an SM together (kCtasOfRegisters), so
// the weights of `out`, gate, up and `down` come while Gated DeltaNet is computed. But no CTA has more than 16 to 28 KB
// of them under way: with all asked for at once (16 MB on the chip, 3.7 us of its bandwidth) x, code and stores of
// whatever else runs stand behind them.
//
// Measured on an H200, 2026-11-23 (docs/results/qwen35.md): a token of Qwen3.5-0.8B 621 us; windows of 32 KB 643 us,
// of 48 KB 659, none 667; 701 before that room and before Gated DeltaNet's clusters. Earlier: copies before the trigger
// 774 where it was 754; copies by all lanes: a trigger behind the wait 885 us where it was 839, fewer rounds of gate
// and up before the wait 827, of the first projections 839. A pass over the code before the wait: 814 us where it was
// 798. The next layer's first weights sent to the L2 cache by `out` or by gate and up: no gain, up to 44 us more.
#include <algorithm>

#include "ops/cuda/device/row_math.cuh"
#include "ops/cuda/linear/fit.h"
#include "ops/cuda/linear/gemv/bf16_small_sm90.h"
#include "ops/cuda/linear/gemv/kquant_i8.cuh"
#include "ops/cuda/linear/shared/float.cuh"
#include "ops/cuda/linear/shared/float.h"

namespace riptide::ops::cuda::decode {

namespace {

/// Batches of a quad: CTAs take up to 128 KB of weights.
template <int Windows, int Quads>
constexpr int kMostRounds = kBf16SmallBatches / (Windows * Quads);

struct Bf16SmallArgs {
    FloatMatrix m[kBf16SmallMatrices];  // pairs: gate and up
    int32_t matrices = 0, batches = 0;
    int32_t cols = 0;
    int32_t singles_from = INT32_MAX;  // the first batch of f32 rows; behind it there are no others
    ActSource x;
    float* residual = nullptr;  // [rows of m[0]]
    float* out = nullptr;       // of pairs
    int32_t window = 1;         // batches under way at a time
};

__device__ __forceinline__ void load_eight(const float* from, float (&v)[8]) {
#pragma unroll
    for (int i = 0; i < 8; i += 4) {
        const uint4 w = load_weights(from + i);
        v[i] = __uint_as_float(w.x), v[i + 1] = __uint_as_float(w.y);
        v[i + 2] = __uint_as_float(w.z), v[i + 3] = __uint_as_float(w.w);
    }
}
__device__ __forceinline__ float bf16_low(uint32_t word) { return __uint_as_float(word << 16); }
__device__ __forceinline__ float bf16_high(uint32_t word) { return __uint_as_float(word & 0xFFFF0000u); }

/// What a lane's columns of x are, window by window: eight from 8 (kWindowPieces w + piece) on.
template <int Windows>
struct Bf16SmallX {
    float v[Windows][8];

    /// Older: than the kernel before, so that it need not have been waited for.
    template <bool Older>
    __device__ __forceinline__ void load(const float* x, int piece, int pieces) {
        const auto four = [](const float* p) {
            if constexpr (Older) return load_shared_f32x4(p);
            else return *reinterpret_cast<const float4*>(p);
        };
#pragma unroll
        for (int w = 0; w < Windows; ++w) {
            const int c = w * kWindowPieces + piece;
            float4 a = {}, b = {};
            if (c < pieces) {
                a = four(x + 8 * c);
                b = four(x + 8 * c + 4);
            }
            v[w][0] = a.x, v[w][1] = a.y, v[w][2] = a.z, v[w][3] = a.w;
            v[w][4] = b.x, v[w][5] = b.y, v[w][6] = b.z, v[w][7] = b.w;
        }
    }
};

template <bool Pairs>
__device__ __forceinline__ int matrix_of_batch(const Bf16SmallArgs& a, int b) {
    int i = 0;
    if constexpr (!Pairs)
#pragma unroll
        for (int j = 1; j < kBf16SmallMatrices; ++j)
            if (j < a.matrices && b >= a.m[j].first) i = j;
    return i;
}
/// Rows of a batch: as many bytes for either type.
__host__ __device__ constexpr int batch_rows(DType type) { return bf16_small_batch_rows(type); }
/// The last batch of a matrix may begin with rows of the one before it.
__device__ __forceinline__ int batch_row(const FloatMatrix& m, int b) {
    return min((b - m.first) * batch_rows(m.type), m.rows - batch_rows(m.type));
}

/// The barrier of a quad. With a number that is not known when compiling a CTA counts for all 16 barriers, of which an
/// SM has 64 for its CTAs.
template <int Quads>
__device__ __forceinline__ void quad_barrier(int quad) {
    static_assert(Quads == 2 || Quads == 4);
    if (quad == 0) asm volatile("bar.sync 1, 128;" ::: "memory");
    else if (Quads == 2 || quad == 1) asm volatile("bar.sync 2, 128;" ::: "memory");
    else if (quad == 2) asm volatile("bar.sync 3, 128;" ::: "memory");
    else asm volatile("bar.sync 4, 128;" ::: "memory");
}

enum class Bf16SmallKind {
    rows,     // of bf16
    singles,  // the same, and f32 (two rows a batch) in some matrices
    pairs,    // a batch is two rows of gate and the same of up; out = silu(gate x) * (up x)
};

/// So few registers that `out`, gate and up, `down` and a CTA of Gated DeltaNet are on an SM together: their weights
/// are asked for while Gated DeltaNet is computed.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
template <int Windows, int Quads, Bf16SmallKind Kind>
constexpr int kCtasOfRegisters = 2;  // never run there
#else
template <int Windows, int Quads, Bf16SmallKind Kind>
constexpr int kCtasOfRegisters = Quads == 2                                     ? 4
                                 : Windows == 1 && Kind == Bf16SmallKind::pairs ? 3
                                                                                : 2;
#endif

/// The CTA's batches to shared memory, by one thread: no more than `window` of them under way at a time, so that what
/// else the SM reads does not stand behind all of them. copy(n, barrier) asks for the n-th.
template <class Copy>
__device__ __forceinline__ void fetch_batches(uint64_t* barriers, int count, int window, const Copy& copy) {
#pragma unroll 1
    for (int n = 0; n < count; ++n) {
        if (n >= window) Row1Fetch{barriers + n - window}.wait();
        copy(n, Row1Fetch{barriers + n});
    }
}

/// Beside: x was there before the kernel before this one let it start (linear::Launch), so it is not waited for; what
/// that kernel writes is, at the end, because the next one waits for this one alone. Any rows of x: blockIdx.y.
template <int Windows, int Quads, Bf16SmallKind Kind, bool Beside = false>
__global__ void __launch_bounds__(128 * Quads, kCtasOfRegisters<Windows, Quads, Kind>)
    bf16_small_kernel(const __grid_constant__ Bf16SmallArgs a) {
    constexpr int kThreadCount = 128 * Quads, kRounds = kMostRounds<Windows, Quads>;
    constexpr bool kPairs = Kind == Bf16SmallKind::pairs, kSingles = Kind == Bf16SmallKind::singles;
    extern __shared__ uint4 dynamic[];
    pdl_trigger();
    __shared__ float partial[Quads][8];
    __shared__ uint64_t barriers[kRounds * Quads];  // of batches
    const int t = threadIdx.x, lane = t % 32, part = t / 32 % 4, quad = t / 128, piece = part * 32 + lane;
    const int pieces = a.cols / 8;
    const int begin = part_of(a.batches, blockIdx.x, gridDim.x), end = part_of(a.batches, blockIdx.x + 1, gridDim.x);
    const int most = (a.batches + static_cast<int>(gridDim.x) - 1) / static_cast<int>(gridDim.x);
    const int stage = kQuadRows * pieces;                                           // uint4, of a batch
    auto* const results = reinterpret_cast<float*>(dynamic + most * stage);         // [batch][row][part]
    float4* const singles = reinterpret_cast<float4*>(results) + most * kQuadRows;  // x, for f32 rows

    // Rows that lie behind each other, f32 or bf16, have one length.
    const auto copy = [&](int n, const Row1Fetch& fetch) {
        const int b = begin + n;
        const FloatMatrix& m = a.m[matrix_of_batch<kPairs>(a, b)];
        uint4* const to = dynamic + n * stage;
        if constexpr (kPairs) {
            fetch.copy(to, m.data + int64_t{2 * b} * m.row_bytes, 8 * stage);
            fetch.copy(to + stage / 2, a.m[1].data + int64_t{2 * b} * m.row_bytes, 8 * stage);
        } else {
            fetch.copy(to, m.data + int64_t{batch_row(m, b)} * m.row_bytes, 16 * stage);
        }
    };
    if (lane == 0)
#pragma unroll 1
        for (int n = t / 32; n < end - begin; n += kThreadCount / 32) Row1Fetch{barriers + n}.init(16 * stage);
    __syncthreads();
    if (t == kThreadCount - 32) fetch_batches(barriers, end - begin, a.window, copy);
    __syncwarp();  // else the warp's other lanes may go ahead, to pdl_wait(), and this one only behind it
    Bf16SmallX<Windows> norm;
    const bool normed = Windows <= 2 && a.x.kind == ActKind::norm;  // plan.cpp asks for it
    if (normed)
#pragma unroll
        for (int w = 0; w < Windows; ++w) {
            const int c = w * kWindowPieces + piece;
            if (c < pieces) load_eight(a.x.norm + 8 * c, norm.v[w]);
        }
    // Thread t stores the t-th row of the CTA.
    const int own = begin + t / kQuadRows,
              own_row = a.residual != nullptr && own < end ? batch_row(a.m[0], own) + t % kQuadRows : 0;
    if constexpr (!Beside) pdl_wait();
    Bf16SmallX<Windows> x;
    x.template load<Beside>(reinterpret_cast<const float*>(Beside ? a.x.rows + blockIdx.y * a.x.stride : a.x.rows),
                            piece, pieces);
    float old = 0.0f;
    if (!kPairs && a.residual != nullptr && own < end) old = load_shared_f32(a.residual + own_row);
    if (normed) {
        // The sum of squares has the order of block_rms_scale(): window w of part p is what warp 4 w + p has there.
#pragma unroll
        for (int w = 0; w < Windows; ++w) {
            const float sum = warp_sum(add_squares(x.v[w], 0.0f));
            if (lane == 0) partial[quad][4 * w + part] = sum;
        }
        if (Windows == 1 && lane == 0) partial[quad][4 + part] = 0.0f;
        quad_barrier<Quads>(quad);
        const float scale = row_scale(partial[quad], a.cols, a.x.eps);
#pragma unroll
        for (int w = 0; w < Windows; ++w)
#pragma unroll
            for (int i = 0; i < 8; ++i)
                x.v[w][i] = w * kWindowPieces + piece < pieces ? rms_value(x.v[w][i], scale, norm.v[w][i]) : 0.0f;
    }
    if (kSingles && end > a.singles_from) {
        if (quad == 0)
#pragma unroll
            for (int w = 0; w < Windows; ++w) {
                const int c = w * kWindowPieces + piece;
                singles[2 * c] = make_float4(x.v[w][0], x.v[w][1], x.v[w][2], x.v[w][3]);
                singles[2 * c + 1] = make_float4(x.v[w][4], x.v[w][5], x.v[w][6], x.v[w][7]);
            }
        __syncthreads();
    }

#pragma unroll 1
    for (int k = 0; begin + k * Quads + quad < end; ++k) {
        Row1Fetch{barriers + k * Quads + quad}.wait();
        const uint4* const from = dynamic + (k * Quads + quad) * stage + piece;
        float acc[kQuadRows] = {};
        const int b = begin + k * Quads + quad;
        if (kSingles && b >= a.singles_from) {
#pragma unroll
            for (int w = 0; w < 2 * Windows; ++w) {
                const int c = w * kWindowPieces + piece;
                if (c >= 2 * pieces) break;
                const float4 v = singles[c];
#pragma unroll
                for (int g = 0; g < 2; ++g) {
                    const uint4 raw = from[2 * g * pieces + w * kWindowPieces];
                    acc[g] = fma4(make_float4(__uint_as_float(raw.x), __uint_as_float(raw.y), __uint_as_float(raw.z),
                                              __uint_as_float(raw.w)),
                                  v, acc[g]);
                }
            }
        } else {
#pragma unroll
            for (int w = 0; w < Windows; ++w)
                if (w * kWindowPieces + piece < pieces)
#pragma unroll
                    for (int g = 0; g < kQuadRows; ++g) {
                        const uint4 raw = from[g * pieces + w * kWindowPieces];
                        const float4 low = {bf16_low(raw.x), bf16_high(raw.x), bf16_low(raw.y), bf16_high(raw.y)},
                                     high = {bf16_low(raw.z), bf16_high(raw.z), bf16_low(raw.w), bf16_high(raw.w)};
                        const float(&v)[8] = x.v[w];
                        acc[g] = fma4(low, {v[0], v[1], v[2], v[3]}, acc[g]);
                        acc[g] = fma4(high, {v[4], v[5], v[6], v[7]}, acc[g]);
                    }
        }
        const float sum = reduce_lanes<kQuadRows>(acc, lane);
        if (lane % 8 == 0) results[((k * Quads + quad) * kQuadRows + lane / 8) * 4 + part] = sum;
    }
    __syncthreads();
    if constexpr (Beside) pdl_wait();
#pragma unroll 1
    for (int i = t; begin + i / kQuadRows < end; i += kThreadCount) {
        const int b = begin + i / kQuadRows;
        if constexpr (kPairs) {
            if (i % kQuadRows >= 2) continue;
            const float gate = __fmul_rn(float_sum(results, i), a.m[0].scale),
                        up = __fmul_rn(float_sum(results, i + 2), a.m[1].scale);
            a.out[2 * b + i % kQuadRows] = swiglu_value(gate, up);
        } else {
            const FloatMatrix& m = a.m[matrix_of_batch<false>(a, b)];
            const int row = batch_row(m, b) + i % kQuadRows;
            if (i % kQuadRows >= batch_rows(m.type) || row < (b - m.first) * batch_rows(m.type)) continue;
            const float y = __fmul_rn(float_sum(results, i), m.scale);
            m.y[Beside ? static_cast<int64_t>(blockIdx.y) * m.rows + row : row] = y;
            if (a.residual != nullptr) a.residual[row] = __fadd_rn(i == t ? old : load_shared_f32(a.residual + row), y);
        }
    }
}

using Bf16SmallKernel = void (*)(Bf16SmallArgs);

/// Bytes of a CTA's weights that are under way at a time: those of first projections are waited for, others are early.
int64_t window_bytes(const Bf16SmallArgs& a, Bf16SmallKind kind) {
    return kind == Bf16SmallKind::pairs || a.residual != nullptr ? 16 << 10 : 24 << 10;
}

/// window: bytes of a CTA's weights that are under way at a time.
template <int Quads>
void launch_bf16_small(Context& ctx, Bf16SmallArgs a, int64_t n, Bf16SmallKernel kernel, int64_t window,
                       const Bf16SmallFit& fit) {
    allow_beside_static(reinterpret_cast<const void*>(kernel), bf16_small_room(chip_of(*ctx.gpu)));
    a.window = static_cast<int32_t>(std::max<int64_t>(1, window / (kQuadRows * int64_t{2} * a.cols)));
    launch(*ctx.gpu, kernel, dim3(static_cast<unsigned>(fit.ctas), static_cast<unsigned>(n)), 128 * Quads,
           static_cast<size_t>(fit.shared), a);
}

template <int Windows, int Quads>
void launch_bf16_small(Context& ctx, const Bf16SmallArgs& a, Bf16SmallKind kind, const Bf16SmallFit& fit) {
    const Bf16SmallKernel kernel =
        kind == Bf16SmallKind::pairs     ? bf16_small_kernel<Windows, Quads, Bf16SmallKind::pairs>
        : kind == Bf16SmallKind::singles ? bf16_small_kernel<Windows, Quads, Bf16SmallKind::singles>
                                         : bf16_small_kernel<Windows, Quads, Bf16SmallKind::rows>;
    launch_bf16_small<Quads>(ctx, a, 1, kernel, window_bytes(a, kind), fit);
}

void launch_bf16_small(Context& ctx, const Bf16SmallArgs& a, Bf16SmallKind kind, const Bf16SmallFit& fit) {
    if (fit.windows == 1 && fit.quads == 2) launch_bf16_small<1, 2>(ctx, a, kind, fit);
    else if (fit.windows == 1) launch_bf16_small<1, 4>(ctx, a, kind, fit);
    else if (fit.windows == 2 && fit.quads == 2) launch_bf16_small<2, 2>(ctx, a, kind, fit);
    else if (fit.windows == 2) launch_bf16_small<2, 4>(ctx, a, kind, fit);
    else launch_bf16_small<4, 2>(ctx, a, kind, fit);
}

Bf16SmallArgs small_args(const ActSource& x, int64_t cols, std::span<const Weight* const> weights,
                         std::span<const Tensor> y) {
    RT_ASSERT(weights.size() <= kBf16SmallMatrices);
    Bf16SmallArgs a;
    for (const Weight* w : weights) {
        FloatMatrix& m = a.m[a.matrices] = float_matrix_of(matrix_of(*w));
        m.y = y[static_cast<size_t>(a.matrices++)].row(0);
        m.first = a.batches;
        if (w->dtype == DType::f32) a.singles_from = std::min(a.singles_from, a.batches);
        a.batches += (m.rows + batch_rows(m.type) - 1) / batch_rows(m.type);
    }
    a.cols = static_cast<int32_t>(cols);
    a.x = x;
    return a;
}

}  // namespace

void bf16_small_multiply(Context& ctx, const ActSource& x, int64_t cols, std::span<const Weight* const> weights,
                         std::span<const Tensor> y, Tensor* residual) {
    Bf16SmallArgs a = small_args(x, cols, weights, y);
    a.residual = residual == nullptr ? nullptr : residual->row(0);
    const bool singles = a.singles_from < a.batches;
    const auto fit = fit_bf16_small(chip_of(*ctx.gpu), cols, a.batches, singles);
    RT_ASSERT(fit);
    launch_bf16_small(ctx, a, singles ? Bf16SmallKind::singles : Bf16SmallKind::rows, *fit);
}

void bf16_small_beside(Context& ctx, const ActSource& x, int64_t cols, int64_t n,
                       std::span<const Weight* const> weights, std::span<const Tensor> y) {
    const Bf16SmallArgs a = small_args(x, cols, weights, y);
    const bool singles = a.singles_from < a.batches;
    const auto fit = fit_bf16_small(chip_of(*ctx.gpu), cols, a.batches, singles);
    RT_ASSERT(fit && fit->windows == 2 && fit->quads == 2);
    launch_bf16_small<2>(ctx, a, n,
                         singles ? bf16_small_kernel<2, 2, Bf16SmallKind::singles, true>
                                 : bf16_small_kernel<2, 2, Bf16SmallKind::rows, true>,
                         16 << 10, *fit);
}

void bf16_small_gate_up(Context& ctx, const ActSource& x, int64_t cols, const Weight& gate, const Weight& up,
                        float* out) {
    Bf16SmallArgs a;
    a.m[0] = float_matrix_of(matrix_of(gate));
    a.m[1] = float_matrix_of(matrix_of(up));
    a.matrices = 2;
    a.batches = static_cast<int32_t>(gate.rows / 2);
    a.cols = static_cast<int32_t>(cols);
    a.x = x;
    a.out = out;
    const auto fit = fit_bf16_small(chip_of(*ctx.gpu), cols, a.batches, false);
    RT_ASSERT(fit);
    launch_bf16_small(ctx, a, Bf16SmallKind::pairs, *fit);
}

}  // namespace riptide::ops::cuda::decode
