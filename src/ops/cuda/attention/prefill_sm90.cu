// Prefill attention on Hopper: FlashAttention with wgmma.
//
// Work: 4 * d FLOPs for each row, head and key. A tile of 128 rows by 128 keys (d = 128) is 8.4 MFLOP: 1.1 us on one of
// 132 SMs at the 990 TFLOP/s of the data sheet; it reads 64 KiB of K/V, which the other heads of the group and
// neighbouring query tiles find in L2. 16,384 exponentials take half as long as the products on the special function
// units: they overlap with the products of the other warpgroup and, within a warpgroup, with the product of weights and
// values.
//
// One persistent block on each SM. Warpgroup 0: one thread copies; queries 32 KiB, and K and V in rings of three tiles
// each, every tile one bulk copy because the scratch is laid out as shared memory wants it. Warpgroups 1 and 2: 64
// query rows each; queries as A fragments in registers, scores and output in registers. Query tiles are dealt in turn,
// the longest first, forth and back; only those that exist, or short chunks would be unevenly dealt (512 rows: the host
// plans for a fifth tile, and some blocks had 7 of 640 tiles of keys, now 5). The producer runs ahead into the next
// query tile, so blocks do not drain between tiles. Sparse attention over lists of 70 tiles (131,072 tokens, 16 heads):
// 15.3 ms a layer, 607 TFLOP/s (H200, 2026-11-22).
#include <algorithm>

#include "base/error.h"
#include "ops/cuda/attention/prefill_softmax.cuh"
#include "ops/cuda/device/wgmma.cuh"
#include "tensor/launch.cuh"

namespace riptide::ops::cuda::prefill {

namespace {

constexpr int kStages = 3;
constexpr int kThreads = 384;

/// Barriers: full and empty of each stage of K, then of V, then of the queries.
constexpr int kBarriers = 4 * kStages + 2;

constexpr size_t tile_bytes(int d) { return static_cast<size_t>(kTile) * static_cast<size_t>(d) * 2; }
constexpr size_t shared_bytes(int d) { return 1024 + (2 * kStages + 1) * tile_bytes(d) + kBarriers * 8; }

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// A ring position: which stage, and the parity of the phase that it is in.
struct Ring {
    uint32_t stage = 0, parity = 0;
    __device__ __forceinline__ void next() {
        if (++stage == kStages) stage = 0, parity ^= 1;
    }
};

/// Addresses in shared memory.
template <int kDim>
struct Shared {
    static constexpr uint32_t kBytes = static_cast<uint32_t>(tile_bytes(kDim));
    uint32_t base;
    __device__ __forceinline__ uint32_t k(uint32_t stage) const { return base + stage * kBytes; }
    __device__ __forceinline__ uint32_t v(uint32_t stage) const { return base + (kStages + stage) * kBytes; }
    __device__ __forceinline__ uint32_t q() const { return base + 2 * kStages * kBytes; }
    __device__ __forceinline__ uint32_t barrier(uint32_t i) const { return q() + kBytes + i * 8; }
    __device__ __forceinline__ uint32_t k_full(uint32_t stage) const { return barrier(stage); }
    __device__ __forceinline__ uint32_t k_empty(uint32_t stage) const { return barrier(kStages + stage); }
    __device__ __forceinline__ uint32_t v_full(uint32_t stage) const { return barrier(2 * kStages + stage); }
    __device__ __forceinline__ uint32_t v_empty(uint32_t stage) const { return barrier(3 * kStages + stage); }
    __device__ __forceinline__ uint32_t q_full() const { return barrier(4 * kStages); }
    __device__ __forceinline__ uint32_t q_empty() const { return barrier(4 * kStages + 1); }
};

/// The items of a block: round i takes item i * blocks + (its number, counted from the other end in odd rounds).
__device__ __forceinline__ int item_of(int round) {
    const int blocks = static_cast<int>(gridDim.x), me = static_cast<int>(blockIdx.x);
    return round * blocks + (round % 2 == 0 ? me : blocks - 1 - me);
}

/// Sparse attention: the query tile that the producer has taken for its block, beside the queries. Lists differ in
/// length, so tiles are not dealt in turn: who is done takes the next one.
struct Dealt {
    int row, rows, position, head, count;  // rows 0: none is left

    __device__ __forceinline__ QueryTile tile() const {
        QueryTile tile;
        tile.row = row, tile.rows = rows, tile.position = position, tile.head = head;
        tile.end_tile = position / kTile + 1;
        return tile;
    }
};

/// The next item for the producer's warp; the last block to find none clears the counter.
__device__ __forceinline__ int take_item(const AttendArgs& args, int items, bool leader) {
    int item = 0;
    if (leader) {
        item = atomicAdd(args.counter, 1);
        if (item == items + static_cast<int>(gridDim.x) - 1) *args.counter = 0;
    }
    return __shfl_sync(~0u, item, 0);
}

/// One warp. Lane 0 copies.
template <int kDim, bool kSparse>
__device__ __forceinline__ void produce(const AttendArgs& args, const Shared<kDim>& shared, int tiles, Dealt& dealt) {
    const int items = tiles * args.heads;
    constexpr uint32_t kBytes = Shared<kDim>::kBytes;
    const bool leader = threadIdx.x % 32 == 0;
    Ring ring;
    uint32_t q_parity = 0;
    for (int round = 0; kSparse || round * static_cast<int>(gridDim.x) < items; ++round) {
        const int item = kSparse ? take_item(args, items, leader) : item_of(round);
        if (item >= items) {
            if constexpr (!kSparse) continue;
            if (!leader) return;
            barrier_wait(shared.q_empty(), q_parity ^ 1);
            dealt.rows = 0;
            return barrier_arrive(shared.q_full());
        }
        const QueryTile tile(args, item, tiles);
        if (tile.rows == 0 || !leader) continue;
        barrier_wait(shared.q_empty(), q_parity ^ 1);
        q_parity ^= 1;
        const KeyTiles<kSparse> key_tiles(args, tile);
        if constexpr (kSparse) dealt = {tile.row, tile.rows, tile.position, tile.head, key_tiles.count};
        barrier_expect(shared.q_full(), kBytes);
        const int64_t first_row = int64_t{tile.head} * args.rows + tile.row;
        bulk_copy(shared.q(), static_cast<const char*>(args.q) + first_row * kDim * 2, kBytes, shared.q_full());
        const char* const origin = static_cast<const char*>(args.scratch) + tile.scratch_tile * 2 * kBytes;
        for (int i = 0; i < key_tiles.count; ++i, ring.next()) {
            const char* const source = origin + int64_t{key_tiles[i]} * 2 * kBytes;
            barrier_wait(shared.k_empty(ring.stage), ring.parity ^ 1);
            barrier_expect(shared.k_full(ring.stage), kBytes);
            bulk_copy(shared.k(ring.stage), source, kBytes, shared.k_full(ring.stage));
            barrier_wait(shared.v_empty(ring.stage), ring.parity ^ 1);
            barrier_expect(shared.v_full(ring.stage), kBytes);
            bulk_copy(shared.v(ring.stage), source + kBytes, kBytes, shared.v_full(ring.stage));
        }
    }
}

/// The lane's part of the warp's 16 rows of queries, from shared memory: A fragments of the kDim / 16 k-steps.
template <int kDim>
__device__ __forceinline__ void load_queries(uint32_t (&q)[kDim / 4], uint32_t tile, int row_in_tile, int row) {
    const int t = static_cast<int>(threadIdx.x % 4);
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int j = 0; j < kDim / 32; ++j) {
            const uint32_t at =
                tile + static_cast<uint32_t>((row_in_tile + 8 * h) * kDim * 2 + query_piece(j, t, row + 8 * h) * 16);
            uint32_t x, y, z, w;
            asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(x), "=r"(y), "=r"(z), "=r"(w) : "r"(at));
            q[8 * j + h] = x;
            q[8 * j + 2 + h] = y;
            q[8 * j + 4 + h] = z;
            q[8 * j + 6 + h] = w;
        }
}

/// s = q k^T: starts it.
template <class T, int kDim>
__device__ __forceinline__ void start_scores(float (&s)[kTile / 2], const uint32_t (&q)[kDim / 4], uint32_t k) {
    const uint64_t keys = matrix_descriptor(k, 16);
#pragma unroll
    for (int step = 0; step < kDim / 16; ++step) {
        // 16 columns on: 32 bytes within a panel of 64 columns.
        const uint64_t offset = static_cast<uint64_t>(step / 4 * (kTile * 128) + step % 4 * 32) / 16;
        wgmma<T, kTile, false>(s, q + 4 * step, keys + offset, step > 0);
    }
    wgmma_commit();
}

/// o += p v: starts it.
template <class T, int kDim>
__device__ __forceinline__ void start_values(float (&o)[kDim / 2], const uint32_t (&p)[kTile / 4], uint32_t v) {
    const uint64_t values = matrix_descriptor(v, kTile * 128);
#pragma unroll
    for (int step = 0; step < kTile / 16; ++step)  // 16 keys on: 16 rows of 128 bytes
        wgmma<T, kDim, true>(o, p + 4 * step, values + static_cast<uint64_t>(step * 16 * 128 / 16), 1);
    wgmma_commit();
}

/// One warpgroup: 64 rows of each query tile. `group` 0 or 1.
template <class T, int kDim, bool kSparse>
__device__ __forceinline__ void consume(const AttendArgs& args, const Shared<kDim>& shared, int tiles, int group,
                                        const Dealt& dealt) {
    const int items = tiles * args.heads;
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32 % 4);
    const int warp_row = group * 64 + warp * 16, window = args.plan.window;
    const float scale = __fmul_rn(args.scale, 1.44269504f);
    Ring k_ring, v_ring;
    uint32_t q_parity = 0;
    for (int round = 0; kSparse || round * static_cast<int>(gridDim.x) < items; ++round) {
        QueryTile tile;
        if constexpr (kSparse) {
            barrier_wait(shared.q_full(), q_parity);
            tile = dealt.tile();
            if (tile.rows == 0) return;
        } else {
            const int item = item_of(round);
            if (item >= items) continue;
            tile = QueryTile(args, item, tiles);
            if (tile.rows == 0) continue;
        }
        const int position = tile.position + warp_row + lane / 4;
        // Of a list only the last tile, the query tile's own, needs a mask: where the others lie does not matter here.
        const int begin = kSparse ? tile.end_tile - dealt.count : tile.first_tile;

        uint32_t q[kDim / 4], p[kTile / 4];
        float s[kTile / 2], o[kDim / 2] = {}, factor[2];
        Softmax softmax;
        const auto weigh = [&](int t) {
            if (needs_mask(t * kTile, kTile, tile.position + group * 64, 64, window))
                mask_scores<kTile>(s, t * kTile + lane % 4 * 2, position, window);
            softmax.step<kTile>(s, scale, factor);
        };

        if constexpr (!kSparse) barrier_wait(shared.q_full(), q_parity);
        q_parity ^= 1;
        load_queries<kDim>(q, shared.q(), warp_row + lane / 4, tile.row + warp_row + lane / 4);
        barrier_arrive(shared.q_empty());

        barrier_wait(shared.k_full(k_ring.stage), k_ring.parity);
        wgmma_fence();
        start_scores<T, kDim>(s, q, shared.k(k_ring.stage));
        wgmma_wait<0>();
        pin(s);
        if (lane == 0) barrier_arrive(shared.k_empty(k_ring.stage));
        k_ring.next();
        weigh(begin);
        weights_operand<T, kTile>(s, p);

        for (int t = begin + 1; t < tile.end_tile; ++t) {
            barrier_wait(shared.k_full(k_ring.stage), k_ring.parity);
            pin(s), pin(o), pin(p);
            wgmma_fence();
            start_scores<T, kDim>(s, q, shared.k(k_ring.stage));
            barrier_wait(shared.v_full(v_ring.stage), v_ring.parity);
            start_values<T, kDim>(o, p, shared.v(v_ring.stage));
            wgmma_wait<1>();
            pin(s);
            if (lane == 0) barrier_arrive(shared.k_empty(k_ring.stage));
            k_ring.next();
            weigh(t);
            wgmma_wait<0>();
            pin(o), pin(p);
            if (lane == 0) barrier_arrive(shared.v_empty(v_ring.stage));
            v_ring.next();
            rescale<kDim>(o, factor);
            weights_operand<T, kTile>(s, p);
        }

        barrier_wait(shared.v_full(v_ring.stage), v_ring.parity);
        pin(o), pin(p);
        wgmma_fence();
        start_values<T, kDim>(o, p, shared.v(v_ring.stage));
        wgmma_wait<0>();
        pin(o), pin(p);
        if (lane == 0) barrier_arrive(shared.v_empty(v_ring.stage));
        v_ring.next();
        store_rows<kDim>(args, o, softmax, tile.row + warp_row, tile.rows - warp_row, tile.head);
    }
}

#endif

template <class T, int kDim, bool kSparse>
__global__ void __launch_bounds__(kThreads, 1) prefill_sm90_kernel(const AttendArgs args) {
    pdl_trigger();
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ char memory[];
    __shared__ Dealt dealt;
    const Shared<kDim> shared{(shared_address(memory) + 1023) / 1024 * 1024};  // the permutation counts from 1 KiB
    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < kStages; ++i) {
            barrier_init(shared.k_full(i), 1);
            barrier_init(shared.v_full(i), 1);
            barrier_init(shared.k_empty(i), 8);  // warps that read
            barrier_init(shared.v_empty(i), 8);
        }
        barrier_init(shared.q_full(), 1);
        barrier_init(shared.q_empty(), 256);  // every lane: each read queries of its own
        barrier_init_fence();
    }
    __syncthreads();
    pdl_wait();
    const int tiles = count_tiles(args.plan);
    if (threadIdx.x < 128) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        if (threadIdx.x < 32) produce<kDim, kSparse>(args, shared, tiles, dealt);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
        consume<T, kDim, kSparse>(args, shared, tiles, static_cast<int>(threadIdx.x / 128) - 1, dealt);
    }
#endif
}

template <class T, int kDim, bool kSparse>
void start(const Gpu& gpu, const AttendArgs& args) {
    constexpr size_t kShared = shared_bytes(kDim);
    RT_CUDA(cudaFuncSetAttribute(prefill_sm90_kernel<T, kDim, kSparse>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(kShared)));
    const int items = args.plan.query_tiles * args.heads;
    const auto blocks = static_cast<unsigned>(std::min(gpu.info().sm_count, items));
    launch(gpu, prefill_sm90_kernel<T, kDim, kSparse>, dim3(blocks), dim3(kThreads), kShared, args);
}

}  // namespace

void attend_wgmma(const Gpu& gpu, const AttendArgs& args, Storage storage) {
    with_tiles(storage, static_cast<int>(args.head_dim), [&](auto zero, auto dim) {
        if (args.lists != nullptr) start<decltype(zero), decltype(dim)::value, true>(gpu, args);
        else start<decltype(zero), decltype(dim)::value, false>(gpu, args);
    });
}

}  // namespace riptide::ops::cuda::prefill
