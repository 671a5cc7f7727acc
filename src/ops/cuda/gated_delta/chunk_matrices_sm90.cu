// What chunks of Gated DeltaNet need besides the state (chunked_sm90.cu): products of their keys and queries,
// decays, and the inverse of a triangle. A CTA for each chunk and key head, whose value heads share k . k and q . k.
#include "ops/cuda/gated_delta/chunked_sm90.cuh"

namespace riptide::ops {

namespace {

constexpr int kWordStride = kChunk + 1;

struct MatricesShared {
    ChunkKeys keys;
    float d[kChunk][kWordStride];  // D, then M
    float a[kChunk][kWordStride];
    float t[3][16][17];
    float decay[kChunk], beta[kChunk];
};

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800

/// Rows of k and q as pairs, to shared memory and (one CTA of those that read them) out.
__device__ void split_rows(const ChunkArgs& a, const ChunkRows& rows, int key, ChunkKeys& to, ChunkKeys& out) {
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
#pragma unroll 4
    for (int i = warp; i < kChunk; i += kChunkThreads / 32) {
        float4 k = {}, q = {};
        if (i < rows.count) {
            const int64_t row = rows.first + i;
            k = *reinterpret_cast<const float4*>(a.kept + row * a.stride + key * kChunkKey + 4 * lane);
            q = *reinterpret_cast<const float4*>(a.q + row * a.sizes.keys() + key * kChunkKey + 4 * lane);
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
__global__ void __launch_bounds__(kChunkThreads) delta_chunk_matrices_kernel(const __grid_constant__ ChunkArgs a) {
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
    for (int k = 0; k < kChunkKey; k += 16) {
        ChunkFragment x[2];
#pragma unroll
        for (int part = 0; part < 2; ++part)
            x[part] = rows_of(queries ? s.keys.q[part] : s.keys.k[part], kKeyStride, 16 * tile, k);
#pragma unroll
        for (int n = 0; n < 4; ++n) {
            if (n > tile) break;
            ChunkFragment y[2];
#pragma unroll
            for (int part = 0; part < 2; ++part) y[part] = columns_of_transposed(s.keys.k[part], kKeyStride, k, 16 * n);
            multiply_pairs(c[n], x, y);
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
                            *reinterpret_cast<uint32_t*>(out.b[part] + 2 * (i * kTileStride + j)) = b.part[part];
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
                    *reinterpret_cast<uint32_t*>(out.m[part] + 2 * (i * kTileStride + j + l)) = m.part[part];
            }
        }
        __syncthreads();
    }
#endif
}

}  // namespace

void launch_chunk_matrices(const Gpu& gpu, const ChunkArgs& a, int64_t sequences) {
    allow_shared(reinterpret_cast<const void*>(delta_chunk_matrices_kernel), sizeof(MatricesShared));
    const dim3 grid(static_cast<unsigned>(a.chunks), static_cast<unsigned>(a.sizes.key_heads),
                    static_cast<unsigned>(sequences));
    launch(gpu, delta_chunk_matrices_kernel, grid, dim3(kChunkThreads), sizeof(MatricesShared), a);
}

}  // namespace riptide::ops
