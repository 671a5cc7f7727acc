// Keeping the K/V of an accepted way: kv_compact.h.
//
// Bytes: what is moved, read and written once: Laguna XS.2 with one byte a value has 2 KB for K and V of a token and
// layer, 82 KB in all; a way of 8 rows out of a tree moves up to 0.6 MB. Floor on the H200: the launch, about 1 us.
// Design: a thread owns one word of a layer's slot and carries it from row to row, up to kAtOnce rows loaded before the
// first is stored; so rows need no order between threads. Not timed yet.
#include <algorithm>

#include "ops/cuda.h"
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
struct CompactArgs {
    Layer layers[kMostLayers];
    const int32_t *page_table, *state_slot, *committed, *path, *kept;
};
static_assert(sizeof(CompactArgs) <= 4000, "kernel parameters: 4 KB on older chips");

__device__ __forceinline__ int64_t slot_of(const CompactArgs& a, const Layer& layer, int index) {
    if (layer.ring_rows > 0) return int64_t{*a.state_slot} * layer.ring_rows + index % layer.ring_rows;
    return int64_t{a.page_table[index / layer.page_rows]} * layer.page_rows + index % layer.page_rows;
}

/// CTA (x, layer, K or V): kThreads words of each slot.
template <class Word>
__global__ void __launch_bounds__(kThreads) kv_compact_kernel(const __grid_constant__ CompactArgs a) {
    pdl_trigger();
    pdl_wait();
    const Layer& layer = a.layers[blockIdx.y];
    const int64_t slot_bytes = layer.slot_bytes[blockIdx.z];
    const int64_t offset = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * sizeof(Word);
    const int kept = *a.kept, committed = *a.committed;
    if (offset >= slot_bytes || a.path[kept - 1] == kept - 1) return;
    std::byte* const base = layer.base[blockIdx.z] + offset;
    const auto word_at = [&](int index) {
        return reinterpret_cast<Word*>(base + slot_of(a, layer, committed + index) * slot_bytes);
    };
    for (int first = 0; first < kept; first += kAtOnce) {
        Word words[kAtOnce];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i)
            if (first + i < kept) words[i] = *word_at(a.path[first + i]);
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i)
            if (first + i < kept) *word_at(first + i) = words[i];
    }
}

template <class Word>
void launch_compact(const Gpu& gpu, const CompactArgs& args, int layers, int64_t most) {
    constexpr int64_t kBytes = kThreads * sizeof(Word);
    const dim3 grid(static_cast<unsigned>((most + kBytes - 1) / kBytes), static_cast<unsigned>(layers), 2);
    launch(gpu, kv_compact_kernel<Word>, grid, dim3(kThreads), 0, args);
}

}  // namespace

namespace cuda {

void kv_compact(Context& ctx, std::span<const KvView> views, const Batch& batch, const int32_t* path,
                const int32_t* kept) {
    CompactArgs args{.page_table = batch.page_table.data(),
                     .state_slot = batch.state_slot.data(),
                     .committed = batch.committed.data(),
                     .path = path,
                     .kept = kept};
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
        if (all % 16 == 0) launch_compact<uint4>(*ctx.gpu, args, layers, most);
        else if (all % 4 == 0) launch_compact<uint32_t>(*ctx.gpu, args, layers, most);
        else launch_compact<unsigned char>(*ctx.gpu, args, layers, most);
    }
}

}  // namespace cuda

}  // namespace riptide::ops
