// Operands of the prefill products: weights taken from their planes to bf16, activations normalised and rounded to
// bf16.
//
// expand: bytes: 0.56 in + 2 out for a weight of q4_k: 33 G weights in 19 ms at 4.5 TB/s. One warp expands 512
// neighbouring columns of kRows rows, a lane sixteen columns (those of q4_k, q5_k, q6_k as in dequantize_bf16.cuh): one
// 16-byte load of codes for two lanes; lanes 2 i and 2 i + 1 swap halves so that every store writes whole 32-byte
// sectors. (64 bytes a thread, stored as they come, reached 1.94 TB/s; contiguous stores 3.9 TB/s, in h200
// microbenchmarks, 2026-11-21.) to_bf16: bytes: 4 in + 2 out (+ 4). One block for a row.
#include "base/error.h"
#include "ops/cuda/device/int8_rows.cuh"
#include "ops/cuda/linear/gemm/dequantize_bf16.cuh"
#include "ops/cuda/linear/gemm/gemm.cuh"
#include "quant/decode.cuh"

namespace riptide::ops::cuda::prefill {

namespace {

constexpr int kWarps = 8;
constexpr int kRows = 2;  // of a warp: loads of all before the first store

template <DType T>
constexpr bool kSuperBlocks = T == DType::planes_q4_k || T == DType::planes_q5_k || T == DType::planes_q6_k;

/// What a lane needs of one row for sixteen columns: read for all rows before anything is computed.
template <DType T>
struct Piece {
    bool there;
    Words4 nibbles, header;  // header: KHeader of q4_k and q5_k
    uint32_t high, scales;   // of q5_k and q6_k; of q6_k
    uint16_t d;              // of q6_k
};

template <DType T>
__device__ __forceinline__ Piece<T> load_piece(const Weight& w, int64_t row, int64_t col) {
    Piece<T> piece = {};
    piece.there = row < w.rows && col < w.cols;
    if constexpr (kSuperBlocks<T>) {
        if (!piece.there) return piece;
        const int64_t sub = row * (w.cols / 32) + col / 32;
        piece.nibbles = load_words4(static_cast<const char*>(w.data) + 16 * sub);
        if constexpr (T == DType::planes_q6_k) {
            piece.high = load_as<uint32_t>(w.high, 2 * sub + col / 16 % 2);
            piece.scales = load_as<uint32_t>(w.scales, sub / 2);
            piece.d = load_as<uint16_t>(static_cast<const char*>(w.scales) + w.rows * (w.cols / 256) * 16, sub / 8);
        } else {
            piece.header = load_words4(static_cast<const char*>(w.scales) + sub / 8 * 16);
            if constexpr (T == DType::planes_q5_k) piece.high = load_as<uint32_t>(w.high, sub);
        }
    }
    return piece;
}

__device__ __forceinline__ uint4 as_uint4(const Words4& v) { return make_uint4(v.w[0], v.w[1], v.w[2], v.w[3]); }

/// The columns as bf16; zeros behind the last.
template <DType T>
__device__ __forceinline__ void expand16(const Weight& w, const Piece<T>& piece, int64_t row, int64_t col,
                                         uint4 (&packed)[2]) {
    packed[0] = packed[1] = make_uint4(0, 0, 0, 0);
    if (!piece.there) return;
    if constexpr (kSuperBlocks<T>) {
        if (w.scale == 1.0f) {
            const RowScales<T> scales = row_scales<T>(piece.header, piece.d);
            const int g = static_cast<int>(col / 32 % 8), half = static_cast<int>(col / 16 % 2);
            const Affine f = affine_of(scales, piece.scales, g, half, scales.quick);
            uint32_t codes[4];
#pragma unroll
            for (int t = 0; t < 4; ++t)
                codes[t] = half == 0 ? half_codes<T>(piece.nibbles.w[t], piece.high, t, 0)
                                     : half_codes<T>(piece.nibbles.w[t], piece.high, t, 1);
#pragma unroll
            for (int i = 0; i < 2; ++i)
                packed[i] = as_uint4(scales.quick ? decode8<true>(codes[2 * i], codes[2 * i + 1], f)
                                                  : decode8<false>(codes[2 * i], codes[2 * i + 1], f));
            return;
        }
    }
    float v[16];
    decode16<T>(w, row, col, v);
    packed[0] = pack_bf16(v);
    packed[1] = pack_bf16(v + 8);
}

__device__ __forceinline__ uint4 swap_with_neighbour(uint4 v) {
    return make_uint4(__shfl_xor_sync(~0u, v.x, 1), __shfl_xor_sync(~0u, v.y, 1), __shfl_xor_sync(~0u, v.z, 1),
                      __shfl_xor_sync(~0u, v.w, 1));
}

/// Columns 512 x .. + 511 of 16 rows from 16 y on.
template <DType T>
__device__ __forceinline__ void expand_block(const Expansion& job, const Weight& w, int expert, int x, int y) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int first = (y * kWarps + static_cast<int>(threadIdx.x / 32)) * kRows;
    const int col = (x * 32 + lane) * 16;
    Piece<T> pieces[kRows];
    uint4 packed[kRows][2];
    const auto row_at = [&](int i) { return first + i < job.rows ? job.row_begin + first + i : w.rows; };
#pragma unroll
    for (int i = 0; i < kRows; ++i) pieces[i] = load_piece<T>(w, row_at(i), col);
#pragma unroll
    for (int i = 0; i < kRows; ++i) expand16<T>(w, pieces[i], row_at(i), col, packed[i]);
    const bool odd = lane % 2 == 1;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
        // Even lanes give their second half for the odd lane's first. The pair then writes 32 bytes side by side,
        // twice.
        const uint4 other = swap_with_neighbour(odd ? packed[i][0] : packed[i][1]);
        if (first + i >= job.rows || col >= job.k) continue;
        const int64_t row = expert * job.expert_rows + scratch_row(job.order, job.which, first + i);
        uint16_t* to = static_cast<uint16_t*>(job.b) + row * job.k + col;
        *reinterpret_cast<uint4*>(odd ? to - 8 : to) = odd ? other : packed[i][0];
        *reinterpret_cast<uint4*>(odd ? to + 8 : to + 16) = odd ? packed[i][1] : other;
    }
}

template <DType T>
__global__ void __launch_bounds__(32 * kWarps) dequantize_bf16_kernel(const __grid_constant__ Expansion job) {
    pdl_trigger();
    pdl_wait();
    const int expert = static_cast<int>(blockIdx.z);
    if (job.row_first != nullptr) {
        const int32_t* first = job.row_first + job.expert_begin + expert;
        if (first[0] == first[1]) return;
    }
    const int64_t offset = (job.expert_begin + expert) * job.expert_stride;
    Weight w = job.w;
    w.data = static_cast<const char*>(w.data) + offset;
    if (w.scales != nullptr) w.scales = static_cast<const char*>(w.scales) + offset;
    if (w.high != nullptr) w.high = static_cast<const char*>(w.high) + offset;
    expand_block<T>(job, w, expert, static_cast<int>(blockIdx.x), static_cast<int>(blockIdx.y));
}

/// Several single matrices in one launch: q, k, v and gate of a layer, each too small for a kernel of its own.
struct ExpandGroup {
    static constexpr int kMost = 8;
    Expansion job[kMost];
    int end[kMost] = {};  // blocks of all jobs up to this one
    int jobs = 0;
};
__global__ void __launch_bounds__(32 * kWarps) dequantize_bf16_group_kernel(const __grid_constant__ ExpandGroup group) {
    pdl_trigger();
    pdl_wait();
    const auto block = static_cast<int>(blockIdx.x);
    int i = 0;
    while (block >= group.end[i]) ++i;
    const Expansion& job = group.job[i];
    const int local = block - (i == 0 ? 0 : group.end[i - 1]), across = ceil_div(job.k, 512);
    const int x = local % across, y = local / across;
    switch (job.w.dtype) {
        case DType::planes_q4_k:
            return expand_block<DType::planes_q4_k>(job, job.w, 0, x, y);
        case DType::planes_q5_k:
            return expand_block<DType::planes_q5_k>(job, job.w, 0, x, y);
        default:
            return expand_block<DType::planes_q6_k>(job, job.w, 0, x, y);
    }
}

bool may_join(const Expansion& job) {
    return job.experts == 1 && job.expert_begin == 0 && job.row_first == nullptr &&
           (job.w.dtype == DType::planes_q4_k || job.w.dtype == DType::planes_q5_k ||
            job.w.dtype == DType::planes_q6_k);
}

constexpr int kNormThreads = decode::kThreads;

/// One row: thread t rounds columns 4 t .. 4 t + 3 of every 1024.
__global__ void __launch_bounds__(kNormThreads)
    to_bf16_kernel(const float* x, int64_t stride, int d, const float* weight, float eps, uint16_t* bf16, int k,
                   float* f32) {
    pdl_trigger();
    pdl_wait();
    const int64_t row = blockIdx.x;
    x += row * stride;
    bf16 += row * k;
    if (f32 != nullptr) f32 += row * d;
    const int first = 4 * static_cast<int>(threadIdx.x), step = 4 * kNormThreads;
    const bool vectors = d % 4 == 0 && reinterpret_cast<uintptr_t>(x) % 16 == 0;
    const auto load = [&](int c, float(&v)[4]) {
        if (vectors && c < d) {
            const float4 four = *reinterpret_cast<const float4*>(x + c);
            v[0] = four.x, v[1] = four.y, v[2] = four.z, v[3] = four.w;
        } else {
#pragma unroll
            for (int j = 0; j < 4; ++j) v[j] = c + j < d ? x[c + j] : 0.0f;
        }
    };
    float scale = 1.0f;
    if (weight != nullptr) {
        __shared__ float partial[8];
        scale = decode::block_rms_scale(x, d, eps, partial);
    }
    for (int c = first; c < k; c += step) {
        float v[4];
        load(c, v);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            if (weight != nullptr && c + j < d) v[j] = rms_value(v[j], scale, weight[c + j]);
            if (f32 != nullptr && c + j < d) f32[c + j] = v[j];
        }
        *reinterpret_cast<uint2*>(bf16 + c) = make_uint2(pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]));
    }
}

/// The same where columns come in aligned eights and kPieces x 2048 hold them: a thread keeps its pieces of eight in
/// registers from the sum of squares to the end, and all of them are under way at once.
template <int kPieces>
__global__ void __launch_bounds__(kNormThreads)
    to_bf16_pieces_kernel(const float* x, int64_t stride, int d, const float* weight, float eps, uint16_t* bf16, int k,
                          float* f32) {
    pdl_trigger();
    const int first = 8 * static_cast<int>(threadIdx.x);
    uint4 w[kPieces][2] = {};
    if (weight != nullptr) {
#pragma unroll
        for (int i = 0; i < kPieces; ++i)
            if (first + 2048 * i < d) {
                w[i][0] = load_weights(weight + first + 2048 * i);
                w[i][1] = load_weights(weight + first + 2048 * i + 4);
            }
    }
    pdl_wait();
    const int64_t row = blockIdx.x;
    x += row * stride;
    float v[kPieces][8];
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
        float4 a = {}, b = {};
        if (first + 2048 * i < d) {
            a = *reinterpret_cast<const float4*>(x + first + 2048 * i);
            b = *reinterpret_cast<const float4*>(x + first + 2048 * i + 4);
        }
        v[i][0] = a.x, v[i][1] = a.y, v[i][2] = a.z, v[i][3] = a.w;
        v[i][4] = b.x, v[i][5] = b.y, v[i][6] = b.z, v[i][7] = b.w;
    }
    if (weight != nullptr) {  // as block_rms_scale
        __shared__ float partial[8];
        float sum = 0;
#pragma unroll
        for (int i = 0; i < kPieces; ++i)
            if (first + 2048 * i < d) sum = decode::add_squares(v[i], sum);
        sum = warp_sum(sum);
        if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
        __syncthreads();
        const float scale = decode::row_scale(partial, d, eps);
#pragma unroll
        for (int i = 0; i < kPieces; ++i) {
            if (first + 2048 * i >= d) continue;
#pragma unroll
            for (int j = 0; j < 8; ++j) v[i][j] = rms_value(v[i][j], scale, __uint_as_float((&w[i][j / 4].x)[j % 4]));
        }
    }
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
        const int c = first + 2048 * i;
        if (f32 != nullptr && c < d) {
            float* const to = f32 + row * d + c;
            *reinterpret_cast<float4*>(to) = make_float4(v[i][0], v[i][1], v[i][2], v[i][3]);
            *reinterpret_cast<float4*>(to + 4) = make_float4(v[i][4], v[i][5], v[i][6], v[i][7]);
        }
        if (c < k) *reinterpret_cast<uint4*>(bf16 + row * k + c) = pack_bf16(v[i]);
    }
}

}  // namespace

void expand(const Gpu& gpu, const Expansion& job) {
    RT_ASSERT(job.k % 64 == 0 && job.k >= job.w.cols && job.row_begin + job.rows <= job.w.rows);
    if (job.rows == 0 || job.experts == 0) return;
    const dim3 grid(static_cast<unsigned>(ceil_div(job.k, 512)),
                    static_cast<unsigned>(ceil_div(job.rows, kWarps * kRows)), static_cast<unsigned>(job.experts));
    RT_ASSERT(grid.y <= 65535 && grid.z <= 65535);
    switch (job.w.dtype) {
#define RT_CASE(type) \
    case DType::type: \
        return launch(gpu, dequantize_bf16_kernel<DType::type>, grid, 32 * kWarps, 0, job);
        RT_PLACED_TYPES(RT_CASE)
#undef RT_CASE
        default:
            fail("no GPU kernels for weights of type {}", dtype_name(job.w.dtype));
    }
}

void expand(const Gpu& gpu, std::span<const Expansion> jobs) {
    ExpandGroup group;
    const auto flush = [&] {
        if (group.jobs == 1) expand(gpu, group.job[0]);
        if (group.jobs > 1)
            launch(gpu, dequantize_bf16_group_kernel, static_cast<unsigned>(group.end[group.jobs - 1]), 32 * kWarps, 0,
                   group);
        group.jobs = 0;
    };
    for (const Expansion& job : jobs) {
        RT_ASSERT(job.k % 64 == 0 && job.k >= job.w.cols && job.row_begin + job.rows <= job.w.rows);
        if (!may_join(job)) {
            expand(gpu, job);
            continue;
        }
        if (job.rows == 0) continue;
        if (group.jobs == ExpandGroup::kMost) flush();
        const int before = group.jobs == 0 ? 0 : group.end[group.jobs - 1];
        group.job[group.jobs] = job;
        group.end[group.jobs++] = before + ceil_div(job.k, 512) * ceil_div(job.rows, kWarps * kRows);
    }
    flush();
}

void to_bf16(const Gpu& gpu, const Tensor& x, const float* norm_weight, float eps, void* bf16, int64_t k, float* f32) {
    RT_ASSERT(x.dtype == DType::f32 && x.rank == 2 && k % 64 == 0 && k >= x.shape[1]);
    if (x.rows() == 0) return;
    const auto d = static_cast<int>(x.shape[1]);
    const auto* const from = static_cast<const float*>(x.data);
    const auto aligned = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; };
    const bool eights = d % 8 == 0 && x.row_stride % 4 == 0 && aligned(from) && aligned(norm_weight) && aligned(f32);
    const auto start = [&](auto kernel) {
        launch(gpu, kernel, static_cast<unsigned>(x.rows()), kNormThreads, 0, from, x.row_stride, d, norm_weight, eps,
               static_cast<uint16_t*>(bf16), static_cast<int>(k), f32);
    };
    if (!eights || k > 8192) return start(to_bf16_kernel);
    start(k <= 2048 ? to_bf16_pieces_kernel<1> : k <= 4096 ? to_bf16_pieces_kernel<2> : to_bf16_pieces_kernel<4>);
}

}  // namespace riptide::ops::cuda::prefill
