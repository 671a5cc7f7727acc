// Prefill attention with mma.m16n8k16 and cp.async: compute capability 8.0 and later.
//
// Work as in prefill_attention_wgmma.cu. The H200 gives 638 TFLOP/s to this instruction (measured), so 319 if
// exponentials and products took turns; this kernel is there for chips without wgmma, and for correctness: simple
// first.
//
// A block takes 128 rows of one head, 16 to each of eight warps, over keys in steps of 64: two stages of K and V in 64
// KiB of shared memory, filled by cp.async from the images of the scratch, read by ldmatrix. Queries, scores and output
// stay in registers. Blocks are numbered longest first.
#include "base/error.h"
#include "ops/prefill_attention_softmax.cuh"
#include "tensor/launch.cuh"

namespace riptide::ops::cuda::prefill {

namespace {

constexpr int kStep = 64;  // keys at a time
constexpr int kThreads = 256;

constexpr size_t shared_bytes(int d) { return 2 * 2 * kStep * static_cast<size_t>(d) * 2; }

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

/// Where a key and an 8-column piece lie among the kStep keys of a stage: as in an image of kStep keys.
__device__ __forceinline__ uint32_t stage_offset(int key, int piece) {
    return static_cast<uint32_t>(((piece / 8) * kStep + key) * 128 + ((piece % 8) ^ (key % 8)) * 16);
}

/// Starts the copy of kStep keys of K or V: `image` of the tile, from key `first` (0 or 64) of it.
template <int kDim>
__device__ __forceinline__ void copy_keys(uint32_t stage, const char* image, int first) {
    constexpr int kPieces = kStep * kDim / 8;
#pragma unroll
    for (int i = 0; i < kPieces / kThreads; ++i) {
        const int piece = i * kThreads + static_cast<int>(threadIdx.x), panel = piece / (kStep * 8);
        const int within = piece % (kStep * 8);  // rows of 128 bytes follow one another in both
        copy_async(stage + static_cast<uint32_t>(piece * 16),
                   image + panel * (kTile * 128) + first * 128 + within * 16);
    }
}

/// s = q k^T over kStep keys.
template <class T, int kDim>
__device__ __forceinline__ void scores(float (&s)[kStep / 2], const uint32_t (&q)[kDim / 4], uint32_t k, int lane) {
#pragma unroll
    for (int i = 0; i < kStep / 2; ++i) s[i] = 0.0f;
#pragma unroll
    for (int step = 0; step < kDim / 16; ++step)
#pragma unroll
        for (int pair = 0; pair < kStep / 16; ++pair) {  // 16 keys
            // Matrices: keys 0-7 columns 0-7, keys 0-7 columns 8-15, keys 8-15 columns 0-7, keys 8-15 columns 8-15.
            uint32_t b[4];
            load_matrices<false>(b, k + stage_offset(pair * 16 + lane / 16 * 8 + lane % 8, step * 2 + lane / 8 % 2));
            mma<T>(s + 8 * pair, q + 4 * step, b[0], b[1]);
            mma<T>(s + 8 * pair + 4, q + 4 * step, b[2], b[3]);
        }
}

/// o += p v over kStep keys.
template <class T, int kDim>
__device__ __forceinline__ void values(float (&o)[kDim / 2], const uint32_t (&p)[kStep / 4], uint32_t v, int lane) {
#pragma unroll
    for (int step = 0; step < kStep / 16; ++step)
#pragma unroll
        for (int pair = 0; pair < kDim / 16; ++pair) {  // 16 columns
            // Matrices: keys 0-7 columns 0-7, keys 8-15 columns 0-7, keys 0-7 columns 8-15, keys 8-15 columns 8-15.
            uint32_t b[4];
            load_matrices<true>(b, v + stage_offset(step * 16 + lane % 16, pair * 2 + lane / 16));
            mma<T>(o + 8 * pair, p + 4 * step, b[0], b[1]);
            mma<T>(o + 8 * pair + 4, p + 4 * step, b[2], b[3]);
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

template <class T, int kDim>
__device__ __forceinline__ void attend(const AttendArgs& args, const QueryTile& tile, uint32_t memory) {
    constexpr uint32_t kBytes = static_cast<uint32_t>(kStep * kDim * 2);
    const int lane = static_cast<int>(threadIdx.x % 32), warp_row = static_cast<int>(threadIdx.x / 32) * 16;
    const int window = args.plan.window, warp_position = tile.position + warp_row;
    const float scale = __fmul_rn(args.scale, 1.44269504f);
    const auto copy = [&](int i) {  // step i: 64 keys
        constexpr int64_t kImage = int64_t{kTile} * kDim * 2;
        const char* image = static_cast<const char*>(args.scratch) + (tile.scratch_tile + i / 2) * 2 * kImage;
        const uint32_t stage = memory + static_cast<uint32_t>(i % 2) * 2 * kBytes;
        copy_keys<kDim>(stage, image, i % 2 * kStep);
        copy_keys<kDim>(stage + kBytes, image + kImage, i % 2 * kStep);
        copies_commit();
    };

    uint32_t q[kDim / 4], p[kStep / 4];
    float s[kStep / 2], o[kDim / 2] = {}, factor[2];
    Softmax softmax;
    const int steps = (tile.end_tile - tile.first_tile) * 2;
    copy(0);
    load_queries<kDim>(q, args, tile.head, tile.row + warp_row + lane / 4);
    for (int i = 0; i < steps; ++i) {
        if (i + 1 < steps) {
            copy(i + 1);
            copies_wait<1>();
        } else {
            copies_wait<0>();
        }
        __syncthreads();
        const uint32_t k = memory + static_cast<uint32_t>(i % 2) * 2 * kBytes, v = k + kBytes;
        const int key = tile.first_tile * kTile + i * kStep;
        scores<T, kDim>(s, q, k, lane);
        if (needs_mask(key, kStep, warp_position, 16, window))
            mask_scores<kStep>(s, key + lane % 4 * 2, warp_position + lane / 4, window);
        softmax.step<kStep>(s, scale, factor);
        rescale<kDim>(o, factor);
        weights_operand<T, kStep>(s, p);
        values<T, kDim>(o, p, v, lane);
        __syncthreads();
    }
    store_rows<kDim>(args, o, softmax, tile.row + warp_row, tile.rows - warp_row, tile.head);
}

#endif

template <class T, int kDim>
__global__ void __launch_bounds__(kThreads, 1) mma_kernel(const AttendArgs args) {
    pdl_trigger();
    pdl_wait();
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
    extern __shared__ uint4 memory[];
    const QueryTile tile(args, static_cast<int>(blockIdx.x), args.plan.query_tiles);
    if (tile.rows == 0) return;
    attend<T, kDim>(args, tile, static_cast<uint32_t>(__cvta_generic_to_shared(memory)));
#endif
}

template <class T, int kDim>
void start(const Gpu& gpu, const AttendArgs& args) {
    constexpr size_t kShared = shared_bytes(kDim);
    RT_CUDA(cudaFuncSetAttribute(mma_kernel<T, kDim>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(kShared)));
    const auto items = static_cast<unsigned>(args.plan.query_tiles * args.heads);
    launch(gpu, mma_kernel<T, kDim>, dim3(items), dim3(kThreads), kShared, args);
}

}  // namespace

void attend_mma(const Gpu& gpu, const AttendArgs& args, Storage storage) {
    with_tiles(storage, static_cast<int>(args.head_dim),
               [&](auto zero, auto dim) { start<decltype(zero), decltype(dim)::value>(gpu, args); });
}

}  // namespace riptide::ops::cuda::prefill
