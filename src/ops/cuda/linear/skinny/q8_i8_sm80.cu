// Q8_0 matrices times 2 to 256 rows: each weight is read once for up to 16 rows. What a drafter's block is made of.
//
// Bytes: those of the weights, 1.0625 each, for each 16 rows (the first time from memory, then from L2). For a drafter
// of Laguna XS.2: q, k, v 8.9 MB, o 4.5, gate and up 35.7, down 17.8, head 69.6, fc 22.3 MB: at 4.65
// TB/s 1.9, 1.0, 7.7, 3.8, 15.0 and 4.8 us. Design: kquant_i8_sm80.cu's, whose sums and rings these are (tile.cuh):
// a CTA of 16 warps an SM takes every gridDim.x-th tile of 16 rows of the whole group, warp w of it the sub-blocks j
// with j mod 16 = w, by mma.m16n8k32.s8; four more warps ask for its stages (2,048 columns of a tile), from before
// pdl_wait() on. Weights need no decoding: about 22 instructions for a sub-block, 16 rows of weights and 8 of x. Bits:
// those of dot.cuh. Measured (H200, 2026-11-23, 8 rows, op by op in a drafter, 4 us of it the profile's): q, k,
// v with their norm 13 us, o 9, feed-forward 32: 1.7 us for a tile of an SM. Tried: eight user warps, two stages (a
// pass 60 us slower); one arrival a warp to empty a stage (nothing); dp4a for four rows at a time (290 to 330 us more).
#include "ops/cuda/linear/skinny/q8_i8_sm80.h"

#include <algorithm>

#include "ops/cuda/device/int8_group.cuh"
#include "ops/cuda/linear/gemv/any.cuh"
#include "ops/cuda/linear/shared/tile.cuh"
#include "ops/cuda/linear/skinny/kquant_i8_sm80.h"

namespace riptide::ops::cuda::decode {

namespace {

constexpr int kUsers = Q8Shape::kUsers, kAskers = 4, kQ8Threads = 32 * (kUsers + kAskers), kSums = 32 / kUsers;
constexpr int kCols = Q8Shape::kCols, kGroups = Q8Shape::kGroups, kTileRows = Q8Shape::kTileRows,
              kAskRows = kTileRows / kAskers;
constexpr int kDataStride = Q8Shape::kDataStride, kScaleStride = Q8Shape::kScaleStride, kScales = Q8Shape::kScales,
              kStageBytes = Q8Shape::kStageBytes;

struct Q8Matrix {
    const char* data;
    const char* scales;
    float* y;
    int32_t rows, first;  // first tile
};

struct Q8Args {
    Q8Matrix m[kQ8Matrices];
    int32_t matrices, tiles, chunks;  // chunks: stages of a tile. kSwiglu: tiles of four (below)
    int32_t n, row_blocks, stages, x_stride;
    ActLayout layout;
    ActSource x;
    float* residual;
    unsigned char* act;  // kSwiglu: ActRows
    int64_t act_stride;
};

/// What a kernel does besides the products. kNorm: x is f32 [n, 2048], which each CTA normalises and quantises itself.
/// kSwiglu: m[0] and m[1] are gate and up; a tile is four: rows 32 q .. + 15 of gate and of up, then the next sixteen
/// of both, and what comes out is silu(gate) * up as int8.
enum Way { kPlain = 0, kNorm = 1, kSwiglu = 2 };

/// Stages of a tile.
template <int kWay>
__device__ __forceinline__ int parts_of(const Q8Args& a) {
    return (kWay & kSwiglu) != 0 ? 4 * a.chunks : a.chunks;
}
/// The matrix and the first row of part `sub` of a tile.
template <int kWay>
__device__ __forceinline__ const Q8Matrix& rows_of_tile(const Q8Args& a, int tile, int sub, int& row) {
    if constexpr ((kWay & kSwiglu) != 0) {
        row = 2 * kTileRows * tile + sub / 2 * kTileRows;
        return a.m[sub % 2];
    } else {
        const Q8Matrix& m = matrix_of_tile(a, tile);
        row = kTileRows * (tile - m.first);
        return m;
    }
}

/// By warp `asker` of kAskers: its rows of every stage.
template <int kWay>
__device__ __forceinline__ void ask_for_stages(const Q8Args& a, char* stages, StageRing ring, Cursor now, int step,
                                               int asker) {
    const int cols = a.layout.cols;
#pragma unroll 1
    for (; now.outer < a.tiles; now.advance(parts_of<kWay>(a), step), ring.advance()) {
        const int chunk = (kWay & kSwiglu) != 0 ? now.part % a.chunks : now.part;
        int row;
        const Q8Matrix& m = rows_of_tile<kWay>(a, now.outer, now.part / a.chunks, row);
        const int first = row + kAskRows * asker, last = m.rows - 1;
        const auto row_of = [&](int r) { return min(first + r, last); };
        char* const stage = stages + ring.at() * kStageBytes;
        ring.wait_until_empty();
        fetch_plane<kCols, kDataStride, kAskRows>(stage + kAskRows * asker * kDataStride, m.data + chunk * kCols, cols,
                                                  row_of);
        fetch_plane<2 * kGroups, kScaleStride, kAskRows>(stage + kScales + kAskRows * asker * kScaleStride,
                                                         m.scales + chunk * 2 * kGroups, cols / 16, row_of);
        ring.asked();
    }
}

/// Sub-blocks sub, sub + kUsers of a stage, which are j, j + kUsers of x: acc[first + u] += their products.
template <int NT>
__device__ __forceinline__ void q8_pair(const char* stage, int sub, const LaneX& x, int j, int lane, int first,
                                        WideSums<NT, kUsers>& acc) {
    uint32_t xs[NT][4];
#pragma unroll
    for (int nt = 0; nt < NT; ++nt) load_matrices(xs[nt], x.b + 8 * nt * x.stride + 16 * j);
#pragma unroll
    for (int u = 0; u < 2; ++u) {
        const int at = sub + kUsers * u;
        uint32_t w[4];
        load_matrices(w, stage + lane % 16 * kDataStride + 32 * at + lane / 16 * 16);
        float s[2], shift[2];  // rows g, g + 8
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            s[h] = half_bits(
                *reinterpret_cast<const uint16_t*>(stage + kScales + (lane / 4 + 8 * h) * kScaleStride + 2 * at));
            shift[h] = -__fmul_rn(s[h], kMagic);
        }
#pragma unroll
        for (int nt = 0; nt < NT; ++nt) {
            float d[2];  // of the two columns
#pragma unroll
            for (int c = 0; c < 2; ++c)
                d[c] = *reinterpret_cast<const float*>(x.pairs + (8 * nt + c) * x.stride + 8 * (j + kUsers * u));
            int c[4] = {};
            mma_k32(c, w, xs[nt][2 * u], xs[nt][2 * u + 1], kMagicBits);
#pragma unroll
            for (int i = 0; i < 4; ++i)
                acc[first + u][nt][i] =
                    fmaf(fmaf(s[i / 2], __int_as_float(c[i]), shift[i / 2]), d[i % 2], acc[first + u][nt][i]);
        }
    }
}

/// RMSNorm and int8 quantisation of up to eight rows of 2,048 columns, by the kUsers warps: warp w has columns 256 (w
/// mod 8) .. of every kUsers / 8-th row. The bits of prepare_rows().
class NormedRows {
  public:
    static constexpr int kRows = Q8Shape::kNormedRows, kApart = kUsers / 8, kEach = kRows / kApart;

    /// Weights: above pdl_wait().
    __device__ __forceinline__ explicit NormedRows(const ActSource& s) {
        const float* const from = s.norm + 8 * piece();
        const uint4 a = load_weights(from), b = load_weights(from + 4);
        w_[0] = __uint_as_float(a.x), w_[1] = __uint_as_float(a.y), w_[2] = __uint_as_float(a.z);
        w_[3] = __uint_as_float(a.w), w_[4] = __uint_as_float(b.x), w_[5] = __uint_as_float(b.y);
        w_[6] = __uint_as_float(b.z), w_[7] = __uint_as_float(b.w);
    }
    /// partial: [kRows][8]. The caller synchronises afterwards.
    __device__ __forceinline__ void stage(const ActSource& s, int count, int stride, float (*partial)[8],
                                          char* out) const {
        const int c = piece(), warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
        float v[kEach][8];
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
            const int p = kApart * i + warp / 8;
            if (p < count) load8(reinterpret_cast<const float*>(s.rows + p * s.stride), c, kCols, v[i]);
        }
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
            const int p = kApart * i + warp / 8;
            if (p >= count) break;
            const float sum = warp_sum(add_squares(v[i], 0.0f));
            if (lane == 0) partial[p][warp % 8] = sum;
        }
        sync_warps<kUsers>();
        // Lane i has the scale of the i-th row; the rows one after the other, in few instructions: all of it is what a
        // CTA waits for.
        const float scales = row_scale(partial[kApart * (lane % kEach) + warp / 8], kCols, s.eps);
        char* row = out + warp / 8 * stride;
#pragma unroll 1
        for (int i = 0; i < kEach && kApart * i + warp / 8 < count; ++i, row += kApart * stride) {
            const float scale = __shfl_sync(~0u, scales, i);
            float x[8];
#pragma unroll
            for (int e = 0; e < 8; ++e) {
                x[e] = rms_value(v[0][e], scale, w_[e]);
#pragma unroll
                for (int k = 0; k + 1 < kEach; ++k) v[k][e] = v[k + 1][e];
            }
            put(x, row, c);
        }
    }

  private:
    /// As put8() and quantise8(), with rounding by an addition: the sum's low byte is the integer.
    static __device__ __forceinline__ void put(const float (&x)[8], char* row, int c) {
        uint32_t largest = 0;
#pragma unroll
        for (int e = 0; e < 8; ++e) largest = max(largest, __float_as_uint(x[e]) & 0x7FFFFFFFu);
        largest = max(largest, __shfl_xor_sync(~0u, largest, 1));
        largest = max(largest, __shfl_xor_sync(~0u, largest, 2));
        const ActGroup act(largest);
        uint32_t bits[8], words[2];
#pragma unroll
        for (int e = 0; e < 8; ++e) bits[e] = __float_as_uint(__fadd_rn(__fmul_rn(x[e], act.inverse), kMagic));
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const uint32_t* const b = bits + 4 * h;
            words[h] = __byte_perm(__byte_perm(b[0], b[1], 0x0040), __byte_perm(b[2], b[3], 0x0040), 0x5410);
            if (act.inverse == 0.0f) words[h] = 0;
        }
        int sum = __dp4a(static_cast<int>(words[1]), 0x01010101, __dp4a(static_cast<int>(words[0]), 0x01010101, 0));
        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        *reinterpret_cast<uint2*>(row + (c % 4 / 2 * kGroups + c / 4) * 16 + c % 2 * 8) =
            make_uint2(words[0], words[1]);
        if (c % 4 == 0)
            *reinterpret_cast<float2*>(row + 32 * kGroups + 2 * c) = make_float2(act.d, static_cast<float>(sum));
    }
    static __device__ __forceinline__ int piece() { return static_cast<int>(threadIdx.x % 256); }
    float w_[8];
};

/// Sums of a tile of four on their way to int8: [row of x][matrix, row of it].
template <int NT>
using TileSums = float[8 * NT][2][2 * kTileRows];
static_assert(sizeof(TileSums<1>) == Q8Shape::tile_sums(1));

/// silu(gate) * up of tile q as int8, by a warp for each row of x.
template <int NT>
__device__ __forceinline__ void put_swiglu(const Q8Args& a, const TileSums<NT>& sums, int q, int row0, int count) {
    const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll 1
    for (int p = static_cast<int>(threadIdx.x / 32); p < count; p += kUsers)
        put_act_group(a.act + (row0 + p) * a.act_stride, a.m[0].rows, q,
                      swiglu_value(sums[p][0][lane], sums[p][1][lane]));
}

template <int NT, int kWay>
__global__ void __launch_bounds__(kQ8Threads, 1) q8_i8_kernel(const __grid_constant__ Q8Args a) {
    constexpr bool kNormed = (kWay & kNorm) != 0, kPairs = (kWay & kSwiglu) != 0;
    extern __shared__ uint4 dynamic[];
    __shared__ uint64_t barriers[2 * kMostTileStages];
    __shared__ float squares[kNormed ? NormedRows::kRows : 1][8];
    __shared__ TileSums<NT> sums[kPairs ? 2 : 1];
    pdl_trigger();
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int block = blockIdx.x, row0 = block % a.row_blocks * 8 * NT, count = min(8 * NT, a.n - row0);
    constexpr int kPartial = static_cast<int>(partial_bytes(NT, kUsers));
    char* const stages = reinterpret_cast<char*>(dynamic);
    char* const partials = stages + a.stages * kStageBytes;
    char* const staged = partials + 2 * kPartial;
    const int step = gridDim.x / a.row_blocks;
    Cursor now{block / a.row_blocks, 0};
    StageRing ring(barriers, a.stages);
    if (threadIdx.x == 0) ring.init(kUsers, 32 * kAskers);
    __syncthreads();
    if (warp >= kUsers) {
        ask_for_stages<kWay>(a, stages, ring, now, step, warp - kUsers);
        return;
    }
    constexpr int kUserThreads = 32 * kUsers;
    if constexpr (kNormed) {
        const NormedRows rows(a.x);
        pdl_wait();
        rows.stage(a.x, count, a.x_stride, squares, staged);
    } else {
        pdl_wait();
#pragma unroll 1
        for (int chunk = 0; chunk < a.chunks; ++chunk)
            fetch_x<kUserThreads>(a.x, a.layout.groups, chunk, row0, count, false, a.x_stride, staged);
    }
    const LaneX mine({staged, a.x_stride, a.layout.groups, count}, lane, kUsers);
    WideSums<NT, kUsers> acc;
    int tile = 0;
#pragma unroll 1
    for (int u = 0; now.outer < a.tiles; ++u, now.advance(parts_of<kWay>(a), step), ring.advance()) {
        if (u < a.chunks) {  // chunk u of x, behind which a.chunks - 1 - u were asked for
            wait_copies(a.chunks - 1 - u);
            sync_warps<kUsers>();
        }
        ring.wait_until_full();
        const int chunk = kPairs ? now.part % a.chunks : now.part;
        if (chunk == 0) {
#pragma unroll
            for (int i = 0; i < 4 * kSums * NT; ++i) acc[i / (4 * NT)][i / 4 % NT][i % 4] = 0.0f;
        }
        const char* const stage = stages + ring.at() * kStageBytes;
#pragma unroll
        for (int b = 0; b < kGroups; b += 2 * kUsers)
            q8_pair<NT>(stage, b + warp, mine, kGroups * chunk + b + warp, lane, b / kUsers % kSums, acc);
        ring.used();
        if (chunk != a.chunks - 1) continue;
        const int sub = now.part / a.chunks;
        int first;
        const Q8Matrix& m = rows_of_tile<kWay>(a, now.outer, sub, first);
        float* const partial = reinterpret_cast<float*>(partials + tile % 2 * kPartial);
        put_wide<NT, kUsers>(partial, warp, lane, acc);
        sync_warps<kUsers>();
        // Other warps each time, which are behind the rest then.
        const int i = (static_cast<int>(threadIdx.x) + 128 * NT * tile) % kUserThreads;
        const int row = first + i % 16, p = i / 16;
        if constexpr (kPairs) {
            if (i < 128 * NT)
                sums[tile / 4 % 2][p][sub % 2][sub / 2 * kTileRows + i % 16] = wide_sum<NT, kUsers>(partial, i % 16, p);
            // The sums of the tile before have been there since the barrier above.
            if (sub == 0 && tile > 0) put_swiglu<NT>(a, sums[(tile / 4 - 1) % 2], now.outer - step, row0, count);
        } else if (i < 128 * NT && row < m.rows && p < count) {
            const int64_t at = static_cast<int64_t>(row0 + p) * m.rows + row;
            const float sum = wide_sum<NT, kUsers>(partial, i % 16, p);
            m.y[at] = sum;
            if (a.residual != nullptr) a.residual[at] = a.residual[at] + sum;
        }
        ++tile;
    }
    if constexpr (kPairs) {
        sync_warps<kUsers>();
        put_swiglu<NT>(a, sums[(tile / 4 - 1) % 2], now.outer - step, row0, count);
    }
}

/// CTA (row, piece of 8 * kThreads columns).
__global__ void __launch_bounds__(kThreads)
    swiglu_kernel(const float* gate, const float* up, ActLayout layout, char* out) {
    pdl_trigger();
    pdl_wait();
    const int c = static_cast<int>(blockIdx.y * kThreads + threadIdx.x);
    const int64_t at = static_cast<int64_t>(blockIdx.x) * layout.cols;
    float g[8], u[8];
    load8(gate + at, c, layout.cols, g);
    load8(up + at, c, layout.cols, u);
#pragma unroll
    for (int i = 0; i < 8; ++i) g[i] = 8 * c + i < layout.cols ? swiglu_value(g[i], u[i]) : 0.0f;
    put8(layout, out + static_cast<int64_t>(blockIdx.x) * layout.bytes(), c, g);
}

bool aligned16(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

/// kWay: kPlain or kSwiglu.
template <int kWay>
void launch_ways(Context& ctx, Q8Args& a, const ActSource& x, int64_t cols, int64_t n) {
    a.chunks = static_cast<int32_t>(cols / kCols);
    a.n = static_cast<int32_t>(n);
    a.layout = act_layout(cols, true, false);
    a.x_stride = tile_x_stride(a.layout, false);
    const bool norms =
        linear::q8_norms({.rows = n, .cols = cols, .x = x.kind, .aligned = aligned16(x.norm) && aligned16(x.rows)});
    const auto fit = fit_q8(chip_of(*ctx.gpu), cols, n, norms, (kWay & kSwiglu) != 0);
    RT_ASSERT(fit);
    a.x = norms || x.kind == ActKind::int8 ? x : prepare_rows(ctx, x, a.layout, n);
    const auto run = [&](auto kernel) { launch_planned(*ctx.gpu, kernel, kQ8Threads, 8 * fit->tiles, fit->plan, a); };
    if (norms) run(q8_i8_kernel<1, kNorm | kWay>);
    else if (fit->tiles == 2) run(q8_i8_kernel<2, kWay>);
    else run(q8_i8_kernel<1, kWay>);
}

}  // namespace

ActSource prepare_swiglu(Context& ctx, const Tensor& gate, const Tensor& up) {
    ActSource staged;
    const ActLayout layout = act_layout(gate.shape[1], true, false);
    staged.kind = ActKind::staged;
    staged.stride = layout.bytes();
    auto* out = static_cast<char*>(ctx.arena->allocate(gate.rows() * staged.stride));
    staged.rows = out;
    constexpr int64_t kPiece = 8 * kThreads;
    launch(*ctx.gpu, swiglu_kernel,
           dim3(static_cast<unsigned>(gate.rows()), static_cast<unsigned>((layout.cols + kPiece - 1) / kPiece)),
           kThreads, 0, gate.row(0), up.row(0), layout, out);
    return staged;
}

void q8_i8_multiply(Context& ctx, const ActSource& x, int64_t cols, int64_t n, std::span<const Weight* const> weights,
                    std::span<const Tensor> y, Tensor* residual) {
    RT_ASSERT(weights.size() <= kQ8Matrices);
    Q8Args a = {};
    for (size_t i = 0; i < weights.size(); ++i) {
        const Weight& w = *weights[i];
        a.m[i] = {static_cast<const char*>(w.data), static_cast<const char*>(w.scales), y[i].row(0),
                  static_cast<int32_t>(w.rows), a.tiles};
        a.tiles += static_cast<int32_t>((w.rows + kTileRows - 1) / kTileRows);
    }
    a.matrices = static_cast<int32_t>(weights.size());
    a.residual = residual == nullptr ? nullptr : residual->row(0);
    launch_ways<kPlain>(ctx, a, x, cols, n);
}

ActSource q8_i8_gate_up(Context& ctx, const ActSource& x, int64_t cols, int64_t n, const Weight& w_gate,
                        const Weight& w_up) {
    Q8Args a = {};
    for (const Weight* w : {&w_gate, &w_up})
        a.m[a.matrices++] = {static_cast<const char*>(w->data), static_cast<const char*>(w->scales), nullptr,
                             static_cast<int32_t>(w->rows), 0};
    a.tiles = static_cast<int32_t>(w_gate.rows / (2 * kTileRows));
    a.act_stride = ActRow::bytes(w_gate.rows);
    a.act = static_cast<unsigned char*>(ctx.arena->allocate(n * a.act_stride));
    launch_ways<kSwiglu>(ctx, a, x, cols, n);
    return {.kind = ActKind::int8, .rows = reinterpret_cast<const char*>(a.act), .stride = a.act_stride};
}

}  // namespace riptide::ops::cuda::decode
