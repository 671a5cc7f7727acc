// Sparse attention: the choice of key tiles. Internal to ops.
#pragma once

#include "ops/cuda/attention/prefill.cuh"
#include "ops/scoring/sparse_attention.h"

namespace riptide::ops::cuda::prefill {

/// One sequence whose committed tokens are whole tiles. Item: a query tile and head.
struct ChooseArgs {
    AttendArgs attend;  // lists: written
    SparseOptions options;
    void* means;   // images of T [kv head][mean_tiles()]; plain: f32 [kv head][key tile][d]
    float* mass;   // [items][mass_stride()]
    float* bases;  // [items][steps()]: largest score of 64 tiles, to which their masses are relative

    RT_HD int mean_tiles() const { return (attend.plan.key_tiles + kTile - 1) / kTile; }
    RT_HD int steps() const { return (attend.plan.key_tiles + 63) / 64; }
    RT_HD int mass_stride() const { return 64 * steps(); }
#ifdef __CUDACC__
    template <class Tile>
    __device__ __forceinline__ int64_t item(const Tile& tile) const {
        return int64_t{tile.row / kTile} * attend.heads + tile.head;
    }
#endif
};

/// Writes args.attend.lists, from prepared queries and gathered keys.
void choose_tiles(const Gpu& gpu, const ChooseArgs& args, Storage storage);

}  // namespace riptide::ops::cuda::prefill
