// mma.m16n8k16 over tiles of keys: what the kernels of prefill attention that do without wgmma share. Compute
// capability 8.0 and later. Eight warps, 16 rows of queries each; keys in steps of 64 (32) through shared memory.
#pragma once

#include "ops/cuda/attention/prefill_softmax.cuh"

namespace riptide::ops::cuda::prefill {

inline constexpr int kStep = 64;  // keys at a time
template <int kDim>
inline constexpr int kStepOf = kDim > 128 ? 32 : kStep;  // wide heads: 32, for which there are registers
inline constexpr int kStepThreads = 256;

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800

__device__ __forceinline__ void copy_async(uint32_t to, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
__device__ __forceinline__ void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kPending>
__device__ __forceinline__ void copies_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

template <bool kTransposed>
__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], uint32_t address) {
    if constexpr (kTransposed)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(address)
                     : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(address)
                     : "memory");
}

template <class T>
__device__ __forceinline__ void mma(float* d, const uint32_t* a, uint32_t b0, uint32_t b1) {
    if constexpr (std::is_same_v<T, __half>)
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    else
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// Where a key and an 8-column piece lie among the kKeys keys of a stage: as in an image of kKeys keys.
template <int kKeys>
__device__ __forceinline__ uint32_t stage_offset(int key, int piece) {
    return static_cast<uint32_t>(((piece / 8) * kKeys + key) * 128 + ((piece % 8) ^ (key % 8)) * 16);
}

/// Starts the copy of kStepOf keys of K or V: `image` of the tile, from key `first` of it.
template <int kDim>
__device__ __forceinline__ void copy_keys(uint32_t stage, const char* image, int first) {
    constexpr int kKeys = kStepOf<kDim>, kPieces = kKeys * kDim / 8;
#pragma unroll
    for (int i = 0; i < kPieces / kStepThreads; ++i) {
        const int piece = i * kStepThreads + static_cast<int>(threadIdx.x), panel = piece / (kKeys * 8);
        const int within = piece % (kKeys * 8);  // rows of 128 bytes follow one another in both
        copy_async(stage + static_cast<uint32_t>(piece * 16),
                   image + panel * (kTile * 128) + first * 128 + within * 16);
    }
}

/// s = q k^T over kStepOf keys.
template <class T, int kDim>
__device__ __forceinline__ void scores(float (&s)[kStepOf<kDim> / 2], const uint32_t (&q)[kDim / 4], uint32_t k,
                                       int lane) {
#pragma unroll
    for (int i = 0; i < kStepOf<kDim> / 2; ++i) s[i] = 0.0f;
#pragma unroll
    for (int step = 0; step < kDim / 16; ++step)
#pragma unroll
        for (int pair = 0; pair < kStepOf<kDim> / 16; ++pair) {  // 16 keys
            // Matrices: keys 0-7 columns 0-7, keys 0-7 columns 8-15, keys 8-15 columns 0-7, keys 8-15 columns 8-15.
            uint32_t b[4];
            load_matrices<false>(
                b, k + stage_offset<kStepOf<kDim>>(pair * 16 + lane / 16 * 8 + lane % 8, step * 2 + lane / 8 % 2));
            mma<T>(s + 8 * pair, q + 4 * step, b[0], b[1]);
            mma<T>(s + 8 * pair + 4, q + 4 * step, b[2], b[3]);
        }
}

/// The lane's A fragments of the warp's 16 rows; row: of the step, the lane's first. Rows beyond the step read as zero.
template <int kDim>
__device__ __forceinline__ void load_queries(uint32_t (&q)[kDim / 4], const AttendArgs& args, int head, int row) {
    const int t = static_cast<int>(threadIdx.x % 4);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const int r = row + 8 * h;
        const char* line = static_cast<const char*>(args.q) + (int64_t{head} * args.rows + r) * kDim * 2;
#pragma unroll
        for (int j = 0; j < kDim / 32; ++j) {
            uint4 x = {};
            if (r < args.rows) x = *reinterpret_cast<const uint4*>(line + query_piece(j, t, r) * 16);
            q[8 * j + h] = x.x;
            q[8 * j + 2 + h] = x.y;
            q[8 * j + 4 + h] = x.z;
            q[8 * j + 6 + h] = x.w;
        }
    }
}

#endif

}  // namespace riptide::ops::cuda::prefill
