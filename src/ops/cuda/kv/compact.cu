// Keeping the K/V of an accepted way: kv_compact.h.
//
// Bytes: what is moved, read and written once: Laguna XS.2 with one byte a value has 2 KB for K and V of a token and
// layer, 82 KB in all; a way of 8 rows out of a tree moves up to 0.6 MB. Floor on the H200: the launch, about 1 us.
// Design: a thread owns one word of a layer's slot and carries it from row to row, up to kAtOnce rows loaded before the
// first is stored; so rows need no order between threads. Where the host knows the way, its rows come as arguments: two
// copies for each row and layer, as it was, are 90 calls for a way of 5 rows in 9 layers. Not timed yet.
#include <algorithm>

#include "ops/cuda/backend.h"
#include "tensor/launch.cuh"

namespace riptide::ops {

namespace {

constexpr int kThreads = 128, kAtOnce = 8;
constexpr int kMostLayers = 64;

struct Layer {
    std::byte* base[2];  // K, V
    int64_t slot_bytes[2];
    int32_t page_rows, ring_rows;  // ring_rows 0: paged
};
constexpr int kMostMoves = 16;

/// A way that only the device knows.
struct DeviceWay {
    const int32_t *page_table, *state_slot, *committed, *path, *kept;

    __device__ __forceinline__ int64_t slot(const Layer& layer, int index) const {
        if (layer.ring_rows > 0) return int64_t{*state_slot} * layer.ring_rows + index % layer.ring_rows;
        return int64_t{page_table[index / layer.page_rows]} * layer.page_rows + index % layer.page_rows;
    }
    /// Rows to carry; none where they are in their places.
    __device__ __forceinline__ int moves() const {
        const int n = *kept;
        return path[n - 1] == n - 1 ? 0 : n;
    }
    __device__ __forceinline__ int64_t from(const Layer& layer, int i) const {
        return slot(layer, *committed + path[i]);
    }
    __device__ __forceinline__ int64_t to(const Layer& layer, int i) const { return slot(layer, *committed + i); }
};

/// Rows that the host knows, which has looked up the pages.
struct HostWay {
    struct Place {
        int32_t index, paged;  // the storage index, and the slot on layers with pages
    };
    Place places[2][kMostMoves];  // from, to
    int32_t state_slot, count;

    __device__ __forceinline__ int64_t slot(const Layer& layer, const Place& place) const {
        if (layer.ring_rows > 0) return int64_t{state_slot} * layer.ring_rows + place.index % layer.ring_rows;
        return place.paged;
    }
    __device__ __forceinline__ int moves() const { return count; }
    __device__ __forceinline__ int64_t from(const Layer& layer, int i) const { return slot(layer, places[0][i]); }
    __device__ __forceinline__ int64_t to(const Layer& layer, int i) const { return slot(layer, places[1][i]); }
};

template <class Way>
struct CompactArgs {
    Layer layers[kMostLayers];
    Way way;
};
static_assert(sizeof(CompactArgs<DeviceWay>) <= 4000 && sizeof(CompactArgs<HostWay>) <= 4000,
              "kernel parameters: 4 KB on older chips");

/// CTA (x, layer, K or V): kThreads words of each slot. Row i of the way comes from index >= i, so going up never
/// overwrites a row that is still to be carried.
template <class Word, class Way>
__global__ void __launch_bounds__(kThreads) kv_compact_kernel(const __grid_constant__ CompactArgs<Way> a) {
    pdl_trigger();
    pdl_wait();
    const Layer& layer = a.layers[blockIdx.y];
    const int64_t slot_bytes = layer.slot_bytes[blockIdx.z];
    const int64_t offset = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * sizeof(Word);
    const int moves = a.way.moves();
    if (offset >= slot_bytes || moves == 0) return;
    std::byte* const base = layer.base[blockIdx.z] + offset;
    const auto word_at = [&](int64_t slot) { return reinterpret_cast<Word*>(base + slot * slot_bytes); };
    for (int first = 0; first < moves; first += kAtOnce) {
        Word words[kAtOnce];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i)
            if (first + i < moves) words[i] = *word_at(a.way.from(layer, first + i));
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i)
            if (first + i < moves) *word_at(a.way.to(layer, first + i)) = words[i];
    }
}

template <class Word, class Way>
void launch_compact(const Gpu& gpu, const CompactArgs<Way>& args, int layers, int64_t most) {
    constexpr int64_t kBytes = kThreads * sizeof(Word);
    const dim3 grid(static_cast<unsigned>((most + kBytes - 1) / kBytes), static_cast<unsigned>(layers), 2);
    launch(gpu, kv_compact_kernel<Word, Way>, grid, dim3(kThreads), 0, args);
}

/// In all layers, kMostLayers at a time.
template <class Way>
void compact(const Gpu& gpu, std::span<const KvView> views, const Way& way) {
    CompactArgs<Way> args;
    args.way = way;
    for (size_t l = 0; l < views.size();) {
        int layers = 0;
        int64_t most = 0, all = 0;  // all: the bits of every size
        for (; l < views.size() && layers < kMostLayers; ++l) {
            const KvView& view = views[l];
            if (view.num_kv_heads == 0) continue;
            args.layers[layers++] = {{static_cast<std::byte*>(view.k), static_cast<std::byte*>(view.v)},
                                     {view.k_slot_bytes, view.v_slot_bytes},
                                     view.page_rows,
                                     view.window > 0 ? view.ring_rows : 0};
            most = std::max({most, view.k_slot_bytes, view.v_slot_bytes});
            all |= view.k_slot_bytes | view.v_slot_bytes;
        }
        if (layers == 0) return;
        if (all % 16 == 0) launch_compact<uint4>(gpu, args, layers, most);
        else if (all % 4 == 0) launch_compact<uint32_t>(gpu, args, layers, most);
        else launch_compact<unsigned char>(gpu, args, layers, most);
    }
}

}  // namespace

namespace cuda {

void kv_compact(Context& ctx, std::span<const KvView> views, const Batch& batch, const int32_t* path,
                const int32_t* kept) {
    compact(*ctx.gpu, views,
            DeviceWay{batch.page_table.data(), batch.state_slot.data(), batch.committed.data(), path, kept});
}

void kv_compact(Gpu& gpu, std::span<const KvView> views, const KvWay& way) {
    const auto paged =
        std::find_if(views.begin(), views.end(), [](const KvView& v) { return v.num_kv_heads > 0 && v.window == 0; });
    HostWay rows;
    rows.state_slot = way.state_slot;
    rows.count = 0;
    const auto put = [&](int which, int64_t index) {
        rows.places[which][rows.count] = {
            static_cast<int32_t>(index),
            paged == views.end() ? 0 : static_cast<int32_t>(paged->slot(way.state_slot, way.pages, index))};
    };
    for (size_t i = 0; i < way.path.size(); ++i) {
        if (way.path[i] == static_cast<int32_t>(i)) continue;
        put(0, way.committed + way.path[i]);
        put(1, way.committed + static_cast<int64_t>(i));
        if (++rows.count < kMostMoves) continue;
        compact(gpu, views, rows);
        rows.count = 0;
    }
    if (rows.count > 0) compact(gpu, views, rows);
}

}  // namespace cuda

}  // namespace riptide::ops
