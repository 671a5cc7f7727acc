// Gated DeltaNet over a prompt's rows in chunks of 64: the recurrence as products of matrices on tensor cores.
//
// For rows i, j of a chunk and S before it, with D_ij = prod_{j < l <= i} e^g_l and P_i = prod_{l <= i} e^g_l:
//   A_ij = beta_i D_ij k_i . k_j (j < i)    B_ij = D_ij q_i . k_j (j <= i)    M = (I + A)^-1
//   U = M (beta V - beta P K S)             O = P Q S + B U                   S <- P_63 S + K^T (D_63 U)
// Decays are multiplied, not subtracted as logarithms: a gate that forgets everything gives zeros, not NaN. Operands of
// products are pairs of bf16, x = hi + lo, of which hi hi + hi lo + lo hi is summed in f32: a factor is off by 2^-17.
//
// One kernel makes A, B and M of 16 chunks (chunk_matrices_sm90.cu); the next takes S of 64 columns of a value
// head through these chunks, S in registers and, as pairs, in shared memory.
//
// FLOPs of a chunk and head of 128 x 128: 10.5 million, three times as pairs: 0.2 TFLOP for 8,192 rows of 48 heads, 0.3
// ms at 640 TFLOP/s. What a scan's warp reads from shared memory for it takes longer: about 2.5 us a chunk. Reached on
// an H200, 2026-11-22: 2.0 ms with preparing and norm, 5.8 by rows.
#include <algorithm>

#include "ops/cuda/backend.h"
#include "ops/cuda/gated_delta/chunked_sm90.cuh"

namespace riptide::ops {

namespace {

constexpr int kChunksAtOnce = 16;  // of a part: what two kernels hand over, 47 MB at 48 heads, stays in L2

struct ScanShared {
    unsigned char k[2][2][kKeyBytes];  // of this chunk and the next, by turns
    unsigned char q[2][kKeyBytes];
    unsigned char m[2][kTileBytes], b[2][kTileBytes];
    unsigned char state[2][kStateBytes];
    unsigned char r[2][kTileBytes];  // beta V - beta P K S; then D_63 U
    unsigned char u[2][kTileBytes];
};

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800

template <int kBytes>
__device__ __forceinline__ void copy_tiles(unsigned char* to, const unsigned char* from) {
    static_assert(kBytes % 16 == 0);
    for (int i = 16 * static_cast<int>(threadIdx.x); i < kBytes; i += 16 * kChunkThreads)
        cuda::prefill::copy_async(chunk_address(to + i), from + i);
}

__device__ __forceinline__ void store_pairs(unsigned char (*to)[kTileBytes], int i, int j, float x, float y) {
    const Pairs p = pairs(x, y);
#pragma unroll
    for (int part = 0; part < 2; ++part)
        *reinterpret_cast<uint32_t*>(to[part] + 2 * (i * kTileStride + j)) = p.part[part];
}

/// c += X Y over the tiles of columns of X up to `last`: X [64, 64] a triangle, rows from `row` on; Y [64, 64], columns
/// from `col` on.
__device__ __forceinline__ void multiply_triangle(float (&c)[2][2][4], const unsigned char (*x)[kTileBytes],
                                                  const unsigned char (*y)[kTileBytes], int row, int col) {
#pragma unroll 1
    for (int k = 0; k <= row; k += 16) {
        const ChunkFragment f[2] = {rows_of(x[0], kTileStride, row, k), rows_of(x[1], kTileStride, row, k)};
#pragma unroll
        for (int n = 0; n < 2; ++n) {
            const ChunkFragment g[2] = {columns_of(y[0], kTileStride, k, col + 16 * n),
                                        columns_of(y[1], kTileStride, k, col + 16 * n)};
            multiply_pairs(c[n], f, g);
        }
    }
}

#endif

/// Grid: tiles of 64 columns, value heads, sequences. Warp w: rows 16 (w % 4) .. and columns 32 (w / 4) .. of what
/// belongs to rows of the chunk, rows 16 w .. of S.
__global__ void __launch_bounds__(kChunkThreads, 1) delta_chunk_scan_kernel(const __grid_constant__ ChunkArgs a) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
    extern __shared__ __align__(16) unsigned char delta_chunk_shared[];
    auto& s = *reinterpret_cast<ScanShared*>(delta_chunk_shared);
    pdl_trigger();
    pdl_wait();
    const DeltaSizes& z = a.sizes;
    const int sequence = static_cast<int>(blockIdx.z), h = static_cast<int>(blockIdx.y);
    const int column = static_cast<int>(blockIdx.x) * kChunkColumns, tid = static_cast<int>(threadIdx.x);
    const int lane = tid % 32, warp = tid / 32, group = lane / 4, pair = 2 * (lane % 4);
    const int row = 16 * (warp % 4), col = 32 * (warp / 4);
    if (chunk_rows(a, sequence, 0).count <= 0) return;
    const int64_t item = int64_t{sequence} * a.chunks;
    const ChunkKeys* const keys = a.keys + item * z.key_heads + z.key_head(h);
    const ChunkHead* const heads = a.heads + item * z.value_heads + h;

    copy_tiles<2 * kKeyBytes>(s.k[0][0], keys->k[0]);
    copy_tiles<2 * kKeyBytes>(s.q[0], keys->q[0]);
    cuda::prefill::copies_commit();
    copy_tiles<2 * kTileBytes>(s.m[0], heads->m[0]);
    cuda::prefill::copies_commit();

    float* const state =
        a.state + a.state_slot[sequence] * z.state_elements + int64_t{h} * kChunkKey * z.value_dim + column + pair;
    float own[4][2][4] = {};  // S
    if (a.first_chunk > 0 || a.committed[sequence] > 0) {
#pragma unroll
        for (int n = 0; n < 8; ++n)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const float2 x = *reinterpret_cast<const float2*>(
                    state + int64_t{16 * warp + group + 8 * half} * z.value_dim + 8 * n);
                own[n / 2][n % 2][2 * half] = x.x;
                own[n / 2][n % 2][2 * half + 1] = x.y;
            }
    }
    for (int chunk = 0; chunk < a.chunks; ++chunk) {
        const ChunkRows rows = chunk_rows(a, sequence, chunk);
        if (rows.count <= 0) break;
        const ChunkHead& head = heads[int64_t{chunk} * z.value_heads];
        const bool more = chunk + 1 < a.chunks && rows.count == kChunk && chunk_rows(a, sequence, chunk + 1).count > 0;
        const unsigned char(*const k)[kKeyBytes] = s.k[chunk % 2];
#pragma unroll
        for (int n = 0; n < 8; ++n)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const Pairs p = pairs(own[n / 2][n % 2][2 * half], own[n / 2][n % 2][2 * half + 1]);
#pragma unroll
                for (int part = 0; part < 2; ++part)
                    *reinterpret_cast<uint32_t*>(s.state[part] + 2 * ((16 * warp + group + 8 * half) * kTileStride +
                                                                      8 * n + pair)) = p.part[part];
            }
        cuda::prefill::copies_wait<1>();  // k, q
        __syncthreads();
        copy_tiles<2 * kTileBytes>(s.b[0], head.b[0]);
        if (more) copy_tiles<2 * kKeyBytes>(s.k[1 - chunk % 2][0], keys[int64_t{chunk + 1} * z.key_heads].k[0]);
        cuda::prefill::copies_commit();

        float v[2][2][2][2], p[2], beta[2], tail[2];
        const float last = head.p[kChunk - 1];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int i = row + group + 8 * half;
            p[half] = head.p[i];
            beta[half] = head.beta[i];
            tail[half] = head.tail[i];
            const float* const from = a.kept + (rows.first + i) * a.stride + z.keys() + h * z.value_dim + column + pair;
#pragma unroll
            for (int n = 0; n < 4; ++n) {
                float2 x = {};
                if (i < rows.count) x = *reinterpret_cast<const float2*>(from + col + 8 * n);
                v[n / 2][n % 2][half][0] = x.x;
                v[n / 2][n % 2][half][1] = x.y;
            }
        }
        float w[2][2][4] = {}, o[2][2][4] = {};  // K S, Q S
#pragma unroll 2
        for (int d = 0; d < kChunkKey; d += 16) {
            ChunkFragment x[2], y[2];
#pragma unroll
            for (int part = 0; part < 2; ++part) {
                x[part] = rows_of(k[part], kKeyStride, row, d);
                y[part] = rows_of(s.q[part], kKeyStride, row, d);
            }
#pragma unroll
            for (int n = 0; n < 2; ++n) {
                const ChunkFragment f[2] = {columns_of(s.state[0], kTileStride, d, col + 16 * n),
                                            columns_of(s.state[1], kTileStride, d, col + 16 * n)};
                multiply_pairs(w[n], x, f);
                multiply_pairs(o[n], y, f);
            }
        }
#pragma unroll
        for (int n = 0; n < 4; ++n)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const float* const x = v[n / 2][n % 2][half];
                float *const from = w[n / 2][n % 2] + 2 * half, *const to = o[n / 2][n % 2] + 2 * half;
                const auto rest = [&](int e) { return __fmul_rn(beta[half], __fmaf_rn(-p[half], from[e], x[e])); };
                store_pairs(s.r, row + group + 8 * half, col + 8 * n + pair, rest(0), rest(1));
                to[0] = __fmul_rn(p[half], to[0]);
                to[1] = __fmul_rn(p[half], to[1]);
            }
        cuda::prefill::copies_wait<1>();  // m
        __syncthreads();
        if (more) copy_tiles<2 * kKeyBytes>(s.q[0], keys[int64_t{chunk + 1} * z.key_heads].q[0]);
        cuda::prefill::copies_commit();

        float u[2][2][4] = {};
        multiply_triangle(u, s.m, s.r, row, col);
        __syncthreads();
        if (more) copy_tiles<2 * kTileBytes>(s.m[0], heads[int64_t{chunk + 1} * z.value_heads].m[0]);
        cuda::prefill::copies_commit();
#pragma unroll
        for (int n = 0; n < 4; ++n)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const float* const x = u[n / 2][n % 2] + 2 * half;
                const int i = row + group + 8 * half, j = col + 8 * n + pair;
                store_pairs(s.u, i, j, x[0], x[1]);
                store_pairs(s.r, i, j, __fmul_rn(tail[half], x[0]), __fmul_rn(tail[half], x[1]));
            }
        cuda::prefill::copies_wait<2>();  // b
        __syncthreads();
        multiply_triangle(o, s.b, s.u, row, col);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int i = row + group + 8 * half;
            if (i >= rows.count) continue;
            float* const to = a.out + (int64_t{rows.first + i} * z.value_heads + h) * z.value_dim + column + col + pair;
#pragma unroll
            for (int n = 0; n < 4; ++n)
                *reinterpret_cast<float2*>(to + 8 * n) =
                    make_float2(o[n / 2][n % 2][2 * half], o[n / 2][n % 2][2 * half + 1]);
        }
#pragma unroll
        for (int n = 0; n < 8; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e) own[n / 2][n % 2][e] = __fmul_rn(last, own[n / 2][n % 2][e]);
#pragma unroll 1
        for (int i = 0; i < kChunk; i += 16) {
            const ChunkFragment x[2] = {rows_of_transposed(k[0], kKeyStride, 16 * warp, i),
                                        rows_of_transposed(k[1], kKeyStride, 16 * warp, i)};
#pragma unroll
            for (int n = 0; n < 4; ++n) {
                const ChunkFragment y[2] = {columns_of(s.r[0], kTileStride, i, 16 * n),
                                            columns_of(s.r[1], kTileStride, i, 16 * n)};
                multiply_pairs(own[n], x, y);
            }
        }
    }
#pragma unroll
    for (int n = 0; n < 8; ++n)
#pragma unroll
        for (int half = 0; half < 2; ++half)
            *reinterpret_cast<float2*>(state + int64_t{16 * warp + group + 8 * half} * z.value_dim + 8 * n) =
                make_float2(own[n / 2][n % 2][2 * half], own[n / 2][n % 2][2 * half + 1]);
#endif
}

}  // namespace

bool takes_delta_chunks(const Gpu& gpu, const DeltaView& view) {
    return view.by_chunks && view.key_dim == kChunkKey && view.value_dim % kChunkColumns == 0 &&
           view.value_heads % 2 == 0 && gpu.programmatic() &&
           gpu.info().shared_bytes >= static_cast<int64_t>(sizeof(ScanShared));
}

void launch_delta_chunks(Context& ctx, const DeltaArgs& args, const float* q, int64_t rows, int64_t sequences) {
    const ArenaScope scope(*ctx.arena);
    const DeltaSizes& z = args.sizes;
    ChunkArgs a = {
        z, q, args.kept.at, args.kept.stride, args.state, args.out, args.row_begin, args.state_slot, args.committed};
    a.chunks = static_cast<int>(std::max<int64_t>(1, kChunksAtOnce / sequences));
    a.keys =
        static_cast<ChunkKeys*>(ctx.arena->allocate(sequences * a.chunks * z.key_heads * int64_t{sizeof(ChunkKeys)}));
    a.heads =
        static_cast<ChunkHead*>(ctx.arena->allocate(sequences * a.chunks * z.value_heads * int64_t{sizeof(ChunkHead)}));
    allow_shared(reinterpret_cast<const void*>(delta_chunk_scan_kernel), sizeof(ScanShared));
    const auto count = [](int64_t n) { return static_cast<unsigned>(n); };
    const dim3 scan(count(z.value_dim / kChunkColumns), count(z.value_heads), count(sequences));
    // The longest sequence has at most all rows but one of each other.
    const int64_t most = (rows - sequences + 1 + kChunk - 1) / kChunk;
    for (int64_t first = 0; first < most; first += a.chunks) {
        a.first_chunk = static_cast<int>(first);
        launch_chunk_matrices(*ctx.gpu, a, sequences);
        launch(*ctx.gpu, delta_chunk_scan_kernel, scan, dim3(kChunkThreads), sizeof(ScanShared), a);
    }
}

}  // namespace riptide::ops
