// Gated DeltaNet over a prompt's rows in chunks of 64: the recurrence as products of matrices on tensor cores.
//
// For rows i, j of a chunk and S before it, with D_ij = prod_{j < l <= i} e^g_l and P_i = prod_{l <= i} e^g_l:
//   A_ij = beta_i D_ij k_i . k_j (j < i)    B_ij = D_ij q_i . k_j (j <= i)    M = (I + A)^-1
//   U = M (beta V - beta P K S)             O = P Q S + B U                   S <- P_63 S + K^T (D_63 U)
// Decays are multiplied, not subtracted as logarithms: a gate that forgets everything gives zeros, not NaN. Operands of
// products are pairs of bf16, x = hi + lo, of which hi hi + hi lo + lo hi is summed in f32: a factor is off by 2^-17.
//
// One kernel makes A, B and M of 16 chunks, a CTA for each chunk and key head (its value heads share k . k and q . k);
// the next takes S of 64 columns of a value head through these chunks, S in registers and, as pairs, in shared memory.
//
// FLOPs of a chunk and head of 128 x 128: 10.5 million, three times as pairs: 0.2 TFLOP for 8,192 rows of 48 heads, 0.3
// ms at 640 TFLOP/s. What a scan's warp reads from shared memory for it takes longer: about 2.5 us a chunk. Reached on
// an H200, 2026-11-22: 2.0 ms with preparing and norm, 5.8 by rows.
#include "ops/cuda.h"
#include "ops/gated_delta_rows.cuh"
#include "ops/prefill_attention_step.cuh"

namespace riptide::ops {

namespace {

constexpr int kChunk = kDeltaChunk, kKey = 128, kColumns = 64, kThreads = 256;
constexpr int kChunksAtOnce = 16;  // of a part: what two kernels hand over, 47 MB at 48 heads, stays in L2
// Rows of bf16 in shared memory, 16 bytes longer than they need: eight rows lie in different banks.
constexpr int kKeyStride = kKey + 8, kStride = kChunk + 8;
constexpr int kKeyBytes = kChunk * kKeyStride * 2, kTileBytes = kChunk * kStride * 2, kStateBytes = kKey * kStride * 2;

/// Of a chunk and key head: k and q, each as hi and lo.
struct ChunkKeys {
    unsigned char k[2][kKeyBytes], q[2][kKeyBytes];
};
/// Of a chunk and value head. `tail`: D_63.
struct ChunkHead {
    unsigned char m[2][kTileBytes], b[2][kTileBytes];
    float p[kChunk], beta[kChunk], tail[kChunk];
};

struct ChunkArgs {
    DeltaSizes sizes;
    const float* q;     // [n, key_heads * key_dim]
    const float* kept;  // k, v and gates of each row, as DeltaKept has them
    int64_t stride;
    float* state;
    float* out;  // [n, value_heads * value_dim], before the norm
    const int32_t *row_begin, *state_slot, *committed;
    ChunkKeys* keys;   // [sequences, chunks, key_heads]
    ChunkHead* heads;  // [sequences, chunks, value_heads]
    int chunks;        // of a sequence, in a part
    int first_chunk;   // of the part
};

constexpr int kWordStride = kChunk + 1;

struct MatricesShared {
    ChunkKeys keys;
    float d[kChunk][kWordStride];  // D, then M
    float a[kChunk][kWordStride];
    float t[3][16][17];
    float decay[kChunk], beta[kChunk];
};

struct ScanShared {
    unsigned char k[2][2][kKeyBytes];  // of this chunk and the next, by turns
    unsigned char q[2][kKeyBytes];
    unsigned char m[2][kTileBytes], b[2][kTileBytes];
    unsigned char state[2][kStateBytes];
    unsigned char r[2][kTileBytes];  // beta V - beta P K S; then D_63 U
    unsigned char u[2][kTileBytes];
};

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800

/// Rows of one sequence in one chunk; rows behind its end: none.
struct ChunkRows {
    int first, count;
};
__device__ __forceinline__ ChunkRows chunk_rows(const ChunkArgs& a, int sequence, int chunk) {
    const int begin = a.row_begin[sequence] + kChunk * (a.first_chunk + chunk), end = a.row_begin[sequence + 1];
    return {begin, min(kChunk, end - begin)};
}

__device__ __forceinline__ uint32_t shared_address(const void* p) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

/// Four 8 x 8 matrices; lane l points at row l % 8 of matrix l / 8.
struct Fragment {
    uint32_t x[4];
};
template <bool kTransposed>
__device__ __forceinline__ Fragment load_fragment(const unsigned char* lane) {
    Fragment f;
    cuda::prefill::load_matrices<kTransposed>(f.x, shared_address(lane));
    return f;
}
/// A [16, 16] at (row, col) of a matrix in rows; or of the transpose of one.
__device__ __forceinline__ Fragment rows_of(const unsigned char* m, int stride, int row, int col) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    return load_fragment<false>(m + 2 * ((row + lane % 16) * stride + col + lane / 16 * 8));
}
__device__ __forceinline__ Fragment rows_of_transposed(const unsigned char* m, int stride, int row, int col) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    return load_fragment<true>(m + 2 * ((col + lane / 16 * 8 + lane % 8) * stride + row + lane / 8 % 2 * 8));
}
/// B [16, 16], two tiles of eight columns side by side (x[0], x[1] and x[2], x[3]), at (row, col) of a matrix in rows.
__device__ __forceinline__ Fragment columns_of(const unsigned char* m, int stride, int row, int col) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    return load_fragment<true>(m + 2 * ((row + lane % 16) * stride + col + lane / 16 * 8));
}
/// The same of the transpose of one.
__device__ __forceinline__ Fragment columns_of_transposed(const unsigned char* m, int stride, int row, int col) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    return load_fragment<false>(m + 2 * ((col + lane / 16 * 8 + lane % 8) * stride + row + lane / 8 % 2 * 8));
}

/// c[0], c[1] += A B for two tiles of columns, as pairs.
__device__ __forceinline__ void multiply(float (&c)[2][4], const Fragment (&a)[2], const Fragment (&b)[2]) {
#pragma unroll
    for (int part = 0; part < 3; ++part) {  // lo hi, hi lo, hi hi
        const Fragment &x = a[part == 0], &y = b[part == 1];
#pragma unroll
        for (int t = 0; t < 2; ++t) cuda::prefill::mma<__nv_bfloat16>(c[t], x.x, y.x[2 * t], y.x[2 * t + 1]);
    }
}

/// Two floats as pairs: two bf16 of hi in [0], of lo in [1], the first in the lower half.
struct Pairs {
    uint32_t part[2];
};
__device__ __forceinline__ Pairs pairs(float x, float y) {
    const __nv_bfloat162 hi = __floats2bfloat162_rn(x, y);
    const __nv_bfloat162 lo = __floats2bfloat162_rn(x - __low2float(hi), y - __high2float(hi));
    return {{*reinterpret_cast<const uint32_t*>(&hi), *reinterpret_cast<const uint32_t*>(&lo)}};
}

// ---- What does not depend on the state

/// Rows of k and q as pairs, to shared memory and (one CTA of those that read them) out.
__device__ void split_rows(const ChunkArgs& a, const ChunkRows& rows, int key, ChunkKeys& to, ChunkKeys& out) {
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
#pragma unroll 4
    for (int i = warp; i < kChunk; i += kThreads / 32) {
        float4 k = {}, q = {};
        if (i < rows.count) {
            const int64_t row = rows.first + i;
            k = *reinterpret_cast<const float4*>(a.kept + row * a.stride + key * kKey + 4 * lane);
            q = *reinterpret_cast<const float4*>(a.q + row * a.sizes.keys() + key * kKey + 4 * lane);
        }
        const Pairs k0 = pairs(k.x, k.y), k1 = pairs(k.z, k.w), q0 = pairs(q.x, q.y), q1 = pairs(q.z, q.w);
        const int at = 2 * (i * kKeyStride + 4 * lane);
#pragma unroll
        for (int part = 0; part < 2; ++part) {
            const uint2 kk = {k0.part[part], k1.part[part]}, qq = {q0.part[part], q1.part[part]};
            *reinterpret_cast<uint2*>(to.k[part] + at) = kk;
            *reinterpret_cast<uint2*>(to.q[part] + at) = qq;
            *reinterpret_cast<uint2*>(out.k[part] + at) = kk;
            *reinterpret_cast<uint2*>(out.q[part] + at) = qq;
        }
    }
}

/// D of the rows, P and D_63: thread j < 64 a column of D, thread 64 P.
__device__ void multiply_decays(MatricesShared& s, ChunkHead& out) {
    const int j = static_cast<int>(threadIdx.x);
    if (j > kChunk) return;
    float run = 1.0f;
#pragma unroll 8
    for (int i = 0; i < kChunk; ++i) {
        if (j == kChunk) {
            run = __fmul_rn(run, s.decay[i]);
            out.p[i] = run;
        } else {
            if (i > j) run = __fmul_rn(run, s.decay[i]);
            s.d[i][j] = i >= j ? run : 0.0f;
        }
    }
    if (j < kChunk) out.tail[j] = run;
}

/// M = (I + A)^-1, of A's part below the diagonal, into s.d: blocks of 16 on the diagonal by substitution, the others
/// by M_ij = -M_ii sum_{j <= l < i} A_il M_lj.
__device__ void invert(MatricesShared& s) {
    const int t = static_cast<int>(threadIdx.x), r = t / 16, c = t % 16;
    if (t < kChunk) {
        const int block = t / 16 * 16;
        float x[16];
#pragma unroll
        for (int i = 0; i < 16; ++i) {
            float sum = 0.0f;
#pragma unroll
            for (int l = 0; l < i; ++l) sum = __fmaf_rn(s.a[block + i][block + l], x[l], sum);
            x[i] = i < c ? 0.0f : i == c ? 1.0f : -sum;
        }
#pragma unroll
        for (int i = 0; i < 16; ++i) s.d[block + i][t] = x[i];
    }
    __syncthreads();
#pragma unroll 1
    for (int apart = 1; apart < 4; ++apart) {
#pragma unroll 1
        for (int j = 0; j + apart < 4; ++j) {
            float sum = 0.0f;
#pragma unroll 16
            for (int l = 0; l < 16 * apart; ++l)
                sum = __fmaf_rn(s.a[16 * (j + apart) + r][16 * j + l], s.d[16 * j + l][16 * j + c], sum);
            s.t[j][r][c] = sum;
        }
        __syncthreads();
#pragma unroll 1
        for (int j = 0; j + apart < 4; ++j) {
            const int i = 16 * (j + apart);
            float sum = 0.0f;
#pragma unroll
            for (int l = 0; l < 16; ++l) sum = __fmaf_rn(s.d[i + r][i + l], s.t[j][l][c], sum);
            s.d[i + r][16 * j + c] = -sum;
        }
        __syncthreads();
    }
}

#endif

/// Grid: chunks of the part, key heads, sequences.
__global__ void __launch_bounds__(kThreads) delta_chunk_matrices_kernel(const __grid_constant__ ChunkArgs a) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
    extern __shared__ __align__(16) unsigned char delta_chunk_shared[];
    auto& s = *reinterpret_cast<MatricesShared*>(delta_chunk_shared);
    pdl_trigger();
    pdl_wait();
    const DeltaSizes& z = a.sizes;
    const int sequence = static_cast<int>(blockIdx.z), key = static_cast<int>(blockIdx.y);
    const int chunk = static_cast<int>(blockIdx.x), tid = static_cast<int>(threadIdx.x);
    const ChunkRows rows = chunk_rows(a, sequence, chunk);
    if (rows.count <= 0) return;
    const int64_t item = int64_t{sequence} * a.chunks + chunk;
    split_rows(a, rows, key, s.keys, a.keys[item * z.key_heads + key]);
    __syncthreads();

    // Warps 0 to 3: rows 16 w .. of K K^T; 4 to 7 of Q K^T; columns up to the diagonal's tile.
    const int lane = tid % 32, warp = tid / 32, tile = warp % 4;
    const bool queries = warp >= 4;
    float c[4][2][4] = {};
#pragma unroll 2
    for (int k = 0; k < kKey; k += 16) {
        Fragment x[2];
#pragma unroll
        for (int part = 0; part < 2; ++part)
            x[part] = rows_of(queries ? s.keys.q[part] : s.keys.k[part], kKeyStride, 16 * tile, k);
#pragma unroll
        for (int n = 0; n < 4; ++n) {
            if (n > tile) break;
            Fragment y[2];
#pragma unroll
            for (int part = 0; part < 2; ++part) y[part] = columns_of_transposed(s.keys.k[part], kKeyStride, k, 16 * n);
            multiply(c[n], x, y);
        }
    }
    const int heads = z.value_heads / z.key_heads;
#pragma unroll 1
    for (int g = 0; g < heads; ++g) {
        const int h = z.tiled ? key + g * z.key_heads : key * heads + g;
        ChunkHead& out = a.heads[item * z.value_heads + h];
        if (tid < kChunk) {
            float decay = 1.0f, beta = 0.0f;  // rows that are not there change nothing
            if (tid < rows.count) {
                const float* gates = a.kept + (rows.first + tid + 1) * a.stride - 2 * z.value_heads + h;
                decay = gates[0];
                beta = gates[z.value_heads];
            }
            s.decay[tid] = decay;
            s.beta[tid] = beta;
            out.beta[tid] = beta;
        }
        __syncthreads();
        multiply_decays(s, out);
        __syncthreads();
#pragma unroll
        for (int n = 0; n < 4; ++n) {
            if (n > tile) break;
#pragma unroll
            for (int t = 0; t < 2; ++t)
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const int i = 16 * tile + lane / 4 + 8 * half, j = 16 * n + 8 * t + 2 * (lane % 4);
                    const float x = __fmul_rn(s.d[i][j], c[n][t][2 * half]);
                    const float y = __fmul_rn(s.d[i][j + 1], c[n][t][2 * half + 1]);
                    if (queries) {
                        const Pairs b = pairs(x, y);
#pragma unroll
                        for (int part = 0; part < 2; ++part)
                            *reinterpret_cast<uint32_t*>(out.b[part] + 2 * (i * kStride + j)) = b.part[part];
                    } else {
                        s.a[i][j] = j < i ? __fmul_rn(s.beta[i], x) : 0.0f;
                        s.a[i][j + 1] = j + 1 < i ? __fmul_rn(s.beta[i], y) : 0.0f;
                    }
                }
        }
        __syncthreads();
        invert(s);
        const int i = tid / 4, j = tid % 4 * 16;
        if (j / 16 <= i / 16) {
#pragma unroll
            for (int l = 0; l < 16; l += 2) {
                const Pairs m = pairs(s.d[i][j + l], s.d[i][j + l + 1]);
#pragma unroll
                for (int part = 0; part < 2; ++part)
                    *reinterpret_cast<uint32_t*>(out.m[part] + 2 * (i * kStride + j + l)) = m.part[part];
            }
        }
        __syncthreads();
    }
#endif
}

// ---- The state's way through the chunks

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800

template <int kBytes>
__device__ __forceinline__ void copy_tiles(unsigned char* to, const unsigned char* from) {
    static_assert(kBytes % 16 == 0);
    for (int i = 16 * static_cast<int>(threadIdx.x); i < kBytes; i += 16 * kThreads)
        cuda::prefill::copy_async(shared_address(to + i), from + i);
}

__device__ __forceinline__ void store_pairs(unsigned char (*to)[kTileBytes], int i, int j, float x, float y) {
    const Pairs p = pairs(x, y);
#pragma unroll
    for (int part = 0; part < 2; ++part) *reinterpret_cast<uint32_t*>(to[part] + 2 * (i * kStride + j)) = p.part[part];
}

/// c += X Y over the tiles of columns of X up to `last`: X [64, 64] a triangle, rows from `row` on; Y [64, 64], columns
/// from `col` on.
__device__ __forceinline__ void multiply_triangle(float (&c)[2][2][4], const unsigned char (*x)[kTileBytes],
                                                  const unsigned char (*y)[kTileBytes], int row, int col) {
#pragma unroll 1
    for (int k = 0; k <= row; k += 16) {
        const Fragment f[2] = {rows_of(x[0], kStride, row, k), rows_of(x[1], kStride, row, k)};
#pragma unroll
        for (int n = 0; n < 2; ++n) {
            const Fragment g[2] = {columns_of(y[0], kStride, k, col + 16 * n),
                                   columns_of(y[1], kStride, k, col + 16 * n)};
            multiply(c[n], f, g);
        }
    }
}

#endif

/// Grid: tiles of 64 columns, value heads, sequences. Warp w: rows 16 (w % 4) .. and columns 32 (w / 4) .. of what
/// belongs to rows of the chunk, rows 16 w .. of S.
__global__ void __launch_bounds__(kThreads, 1) delta_chunk_scan_kernel(const __grid_constant__ ChunkArgs a) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
    extern __shared__ __align__(16) unsigned char delta_chunk_shared[];
    auto& s = *reinterpret_cast<ScanShared*>(delta_chunk_shared);
    pdl_trigger();
    pdl_wait();
    const DeltaSizes& z = a.sizes;
    const int sequence = static_cast<int>(blockIdx.z), h = static_cast<int>(blockIdx.y);
    const int column = static_cast<int>(blockIdx.x) * kColumns, tid = static_cast<int>(threadIdx.x);
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
        a.state + a.state_slot[sequence] * z.state_elements + int64_t{h} * kKey * z.value_dim + column + pair;
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
                    *reinterpret_cast<uint32_t*>(
                        s.state[part] + 2 * ((16 * warp + group + 8 * half) * kStride + 8 * n + pair)) = p.part[part];
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
        for (int d = 0; d < kKey; d += 16) {
            Fragment x[2], y[2];
#pragma unroll
            for (int part = 0; part < 2; ++part) {
                x[part] = rows_of(k[part], kKeyStride, row, d);
                y[part] = rows_of(s.q[part], kKeyStride, row, d);
            }
#pragma unroll
            for (int n = 0; n < 2; ++n) {
                const Fragment f[2] = {columns_of(s.state[0], kStride, d, col + 16 * n),
                                       columns_of(s.state[1], kStride, d, col + 16 * n)};
                multiply(w[n], x, f);
                multiply(o[n], y, f);
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
            const Fragment x[2] = {rows_of_transposed(k[0], kKeyStride, 16 * warp, i),
                                   rows_of_transposed(k[1], kKeyStride, 16 * warp, i)};
#pragma unroll
            for (int n = 0; n < 4; ++n) {
                const Fragment y[2] = {columns_of(s.r[0], kStride, i, 16 * n), columns_of(s.r[1], kStride, i, 16 * n)};
                multiply(own[n], x, y);
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
    return view.by_chunks && view.key_dim == kKey && view.value_dim % kColumns == 0 && view.value_heads % 2 == 0 &&
           gpu.programmatic() && gpu.info().shared_bytes >= static_cast<int64_t>(sizeof(ScanShared));
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
    allow_shared(reinterpret_cast<const void*>(delta_chunk_matrices_kernel), sizeof(MatricesShared));
    allow_shared(reinterpret_cast<const void*>(delta_chunk_scan_kernel), sizeof(ScanShared));
    const auto count = [](int64_t n) { return static_cast<unsigned>(n); };
    const dim3 matrices(count(a.chunks), count(z.key_heads), count(sequences));
    const dim3 scan(count(z.value_dim / kColumns), count(z.value_heads), count(sequences));
    // The longest sequence has at most all rows but one of each other.
    const int64_t most = (rows - sequences + 1 + kChunk - 1) / kChunk;
    for (int64_t first = 0; first < most; first += a.chunks) {
        a.first_chunk = static_cast<int>(first);
        launch(*ctx.gpu, delta_chunk_matrices_kernel, matrices, dim3(kThreads), sizeof(MatricesShared), a);
        launch(*ctx.gpu, delta_chunk_scan_kernel, scan, dim3(kThreads), sizeof(ScanShared), a);
    }
}

}  // namespace riptide::ops
