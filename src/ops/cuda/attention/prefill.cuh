// Prefill attention: what its kernels share. Internal to ops.
//
// A call runs: prepare (norm and rope; q to 16 bits; K and V to the cache), and then for each group of sequences that
// the scratch memory holds: gather (stored K/V -> scratch), attend. Tiles are cut by absolute storage index and are
// reduced in ascending order; a tile in which a row sees no key leaves the row's sums as they are, bit for bit: so a
// row's value does not depend on where its query tile begins, that is on the chunking.
//
// Scratch: tiles of 128 keys, [kv head][tile][K, V]. Two layouts:
//   images (tensor-core kernels)  f16 or bf16, as shared memory holds them: panels of 64 columns, [panel][key][64], the
//                                 16-byte pieces of a row of a panel permuted by piece ^ (key % 8). A tile of a head, K
//                                 or V, is one copy of 32 KiB (d = 128) that is free of bank conflicts.
//   plain (generic kernel)        f32 [key][d]
// Keys that no row sees are zero: a masked weight is 0 and 0 times whatever lies in memory might be NaN.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "base/error.h"
#include "ops/batch.h"
#include "ops/cuda/attention/plan.h"
#include "ops/cuda/attention/prefill_layout.h"
#include "ops/cuda/device/key_chunks.h"
#include "ops/kv/kv_view.h"
#include "tensor/gpu.h"

namespace riptide::ops::cuda::prefill {

/// The sequences [first, end) of a step whose K/V is in the scratch, and how it is cut.
struct Plan {
    Batch batch;
    int32_t window;
    int32_t first, end;
    int32_t query_tiles;  // at least as many as the sequences have
    int32_t key_tiles;
};

/// One sequence of a plan, or none (rows == 0).
struct Place {
    int32_t sequence = 0;
    int32_t rows = 0;  // of this step
    int32_t row = 0;   // the first
    int32_t committed = 0;
    int32_t tile = 0;       // query or key tile within the sequence, from 0
    int32_t key_tiles = 0;  // key tiles of the scratch before the sequence's
};

#ifdef __CUDACC__

/// Tile `index` of the plan, counted over its sequences in order: query tiles or key tiles. By a whole warp.
__device__ __forceinline__ Place find_tile(const Plan& plan, int index, bool keys) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    int queries_before = 0, keys_before = 0;
    for (int base = plan.first; base < plan.end; base += 32) {
        const int s = base + lane;
        Place place;
        if (s < plan.end) {
            place.sequence = s;
            place.row = plan.batch.row_begin[static_cast<size_t>(s)];
            place.rows = plan.batch.row_begin[static_cast<size_t>(s) + 1] - place.row;
            place.committed = plan.batch.committed[static_cast<size_t>(s)];
        }
        const int nq = count_query_tiles(place.rows), nk = count_key_tiles(place.rows, place.committed, plan.window);
        int q_end = nq, k_end = nk;
        for (int step = 1; step < 32; step *= 2) {
            const int q = __shfl_up_sync(0xFFFFFFFFu, q_end, step), k = __shfl_up_sync(0xFFFFFFFFu, k_end, step);
            if (lane >= step) q_end += q, k_end += k;
        }
        q_end += queries_before;
        k_end += keys_before;
        place.key_tiles = k_end - nk;
        const int begin = keys ? k_end - nk : q_end - nq, end = keys ? k_end : q_end;
        place.tile = index - begin;
        const unsigned found = __ballot_sync(0xFFFFFFFFu, index >= begin && index < end);
        if (found != 0) {
            const int source = __ffs(static_cast<int>(found)) - 1;
            place.sequence = __shfl_sync(0xFFFFFFFFu, place.sequence, source);
            place.rows = __shfl_sync(0xFFFFFFFFu, place.rows, source);
            place.row = __shfl_sync(0xFFFFFFFFu, place.row, source);
            place.committed = __shfl_sync(0xFFFFFFFFu, place.committed, source);
            place.tile = __shfl_sync(0xFFFFFFFFu, place.tile, source);
            place.key_tiles = __shfl_sync(0xFFFFFFFFu, place.key_tiles, source);
            return place;
        }
        queries_before = __shfl_sync(0xFFFFFFFFu, q_end, 31);
        keys_before = __shfl_sync(0xFFFFFFFFu, k_end, 31);
    }
    return {};
}

/// How many query tiles the sequences have. By a whole warp.
__device__ __forceinline__ int count_tiles(const Plan& plan) {
    int tiles = 0;
    for (int s = plan.first + static_cast<int>(threadIdx.x % 32); s < plan.end; s += 32)
        tiles += count_query_tiles(plan.batch.row_begin[static_cast<size_t>(s) + 1] -
                                   plan.batch.row_begin[static_cast<size_t>(s)]);
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) tiles += __shfl_xor_sync(0xFFFFFFFFu, tiles, mask);
    return tiles;
}

#endif

enum class Storage { f16, bf16, f32 };  // of the scratch and of q; f32: plain layouts

/// softplus(gate) multiplies the output of a head, or each of its elements.
struct Gate {
    const float* data = nullptr;
    int64_t stride = 0;  // of rows
    bool elements = false;
};

/// What an attention kernel reads and writes.
struct AttendArgs {
    Plan plan;
    const void* q;  // 16 bits [H][n][d] as query_offset has it; generic: f32 [n][H][d]
    const void* scratch;
    float* out;                    // f32 [n, H * d]
    uint16_t* out_bf16 = nullptr;  // bf16 in its place, nearest even; not by the generic kernel
    Gate gate;
    int32_t rows;  // n
    int32_t heads, kv_heads, head_dim;
    float scale;
    // Sparse attention: which key tiles a query tile reads: [query tile][head][stride], how many and then which,
    // ascending, the tile's own last. One sequence, no window. Null: all that it sees.
    const int32_t* lists = nullptr;
    int32_t list_stride = 0;
    int32_t* counter = nullptr;  // of Gpu::counters(): query tiles that have been taken
};

/// Where the rows of a step go in the cache, and the values that go there.
struct StoredRows {
    KeyPlaces places;
    void* k;
    void* v;
    DType k_dtype, v_dtype;
    int64_t k_slot_bytes, v_slot_bytes;
    const float* values;  // f32 [n, Hkv, d]
    int64_t values_stride;
};

/// Everything before the products: norm and rope of q and k, both optional. Writes q16 (tensor cores) or q32 (generic)
/// and stores K and V, or writes k in place.
struct PrepareArgs {
    Batch batch;
    const float* q;              // f32 [n, H, d]
    float* k;                    // f32 [n, Hkv, d], or null
    int64_t q_stride, k_stride;  // of rows
    const float* q_weight;       // null: no norm
    const float* k_weight;
    float q_eps, k_eps;
    float inv_freq[kMostDim / 2];
    float magnitude;
    int32_t rotary_dim;  // 0: no rope
    int32_t heads, kv_heads, head_dim;
    void* to;  // q as the attention kernel wants it
    Storage storage;
    StoredRows stored;  // if k is set
};

using attn::has_tiles, attn::has_wide_tiles;

/// f(T{}, std::integral_constant<int, head_dim>{}) for a tensor-core kernel: T is what tiles hold.
template <bool kWide = false, class F>
void with_tiles(Storage storage, int head_dim, const F& f) {
    RT_ASSERT(has_tiles(head_dim) || (kWide && has_wide_tiles(head_dim)));
    const auto with_dim = [&](auto zero) {
        if constexpr (kWide)
            if (has_wide_tiles(head_dim)) return f(zero, std::integral_constant<int, 256>{});
        if (head_dim == 128) f(zero, std::integral_constant<int, 128>{});
        else f(zero, std::integral_constant<int, 64>{});
    };
    if (storage == Storage::bf16) with_dim(__nv_bfloat16{});
    else with_dim(__half{});
}

/// Whether nothing is left to be stored: false if kv_append must take k, now ready in place, and the values.
bool prepare(const Gpu& gpu, const PrepareArgs& args);
void gather(const Gpu& gpu, const Plan& plan, const KvView& view, Storage storage, void* scratch);
void attend_wgmma(const Gpu& gpu, const AttendArgs& args, Storage storage);
void attend_mma(const Gpu& gpu, const AttendArgs& args, Storage storage);
void attend_generic(const Gpu& gpu, const AttendArgs& args);

}  // namespace riptide::ops::cuda::prefill
