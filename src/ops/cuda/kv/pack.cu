// Stored K/V of all layers into one block of bytes, out of one, or from one ring or page to another.
//
// Bytes: what is packed, read once and written once. Laguna XS.2 with one byte a value: the rings of a sequence are
// 31.4 MB (60 arrays of 511 KiB), a page of 64 tokens 1.3 MB (20 arrays of 64 KiB). Floor on the H200: 63 MB at
// 4.5 TB/s = 14 us for rings, 26 us for 25 pages, both far below the 0.65 ms that the same bytes take over PCIe.
// Design: one CTA moves 1024 words (16 KB) of one array of one item, four loads in flight for each thread; arrays and
// items travel in the kernel's parameters, so nothing is uploaded and a launch waits for nothing.
// Limit: PCIe for what goes to the host (docs/results/cache.md); these kernels have not been timed alone.
#include <algorithm>

#include "ops/cuda/backend.h"
#include "ops/kv/kv_pack_job.h"
#include "tensor/launch.cuh"

namespace riptide::ops {

namespace {

constexpr int kThreads = 256, kWordsPerThread = 4;
constexpr int kMostArrays = 64, kMostItems = 64;

struct PackArgs {
    PackArray arrays[kMostArrays];
    int32_t items[kMostItems];
    int32_t to[kMostItems];
    std::byte* packed;
    int64_t packed_stride;
    PackJob::Move move;
};
static_assert(sizeof(PackArgs) <= 4000, "kernel parameters: 4 KB on older chips");

/// Where byte x of what is meant of an item lies.
__device__ __forceinline__ std::byte* stored_at(const PackArray& array, int32_t item, int64_t x) {
    int64_t at = array.begin + x;
    if (at >= array.item_bytes) at -= array.item_bytes;
    return array.base + item * array.item_bytes + at;
}

template <class Word>
__global__ void __launch_bounds__(kThreads) kv_pack_kernel(const __grid_constant__ PackArgs a) {
    pdl_trigger();
    pdl_wait();
    const PackArray& array = a.arrays[blockIdx.y];
    const auto j = static_cast<int>(blockIdx.z);
    std::byte* const packed = a.packed + j * a.packed_stride + array.packed;
    const int64_t first = (int64_t{blockIdx.x} * (kThreads * kWordsPerThread) + threadIdx.x) * sizeof(Word);
    constexpr int64_t kStep = kThreads * sizeof(Word);
    Word words[kWordsPerThread];
#pragma unroll
    for (int i = 0; i < kWordsPerThread; ++i) {
        const int64_t x = first + i * kStep;
        const std::byte* const from = a.move == PackJob::Move::unpack ? packed + x : stored_at(array, a.items[j], x);
        if (x < array.bytes) words[i] = *reinterpret_cast<const Word*>(from);
    }
#pragma unroll
    for (int i = 0; i < kWordsPerThread; ++i) {
        const int64_t x = first + i * kStep;
        std::byte* const to = a.move == PackJob::Move::pack     ? packed + x
                              : a.move == PackJob::Move::unpack ? stored_at(array, a.items[j], x)
                                                                : stored_at(array, a.to[j], x);
        if (x < array.bytes) *reinterpret_cast<Word*>(to) = words[i];
    }
}

template <class Word>
void launch_kv_pack(const Gpu& gpu, const PackArgs& args, int64_t arrays, int64_t items) {
    int64_t most = 0;
    for (int64_t i = 0; i < arrays; ++i) most = std::max(most, args.arrays[i].bytes);
    constexpr int64_t kBlockBytes = kThreads * kWordsPerThread * sizeof(Word);
    const dim3 grid(static_cast<unsigned>((most + kBlockBytes - 1) / kBlockBytes), static_cast<unsigned>(arrays),
                    static_cast<unsigned>(items));
    launch(gpu, kv_pack_kernel<Word>, grid, dim3(kThreads), 0, args);
}

}  // namespace

namespace cuda {

void kv_pack(Gpu& gpu, const PackJob& job) {
    PackArgs args;
    args.move = job.move;
    args.packed_stride = job.packed_stride;
    for (size_t j = 0; j < job.items.size(); j += kMostItems) {
        const size_t items = std::min<size_t>(kMostItems, job.items.size() - j);
        std::copy_n(job.items.begin() + static_cast<ptrdiff_t>(j), items, args.items);
        if (!job.to.empty()) std::copy_n(job.to.begin() + static_cast<ptrdiff_t>(j), items, args.to);
        args.packed = job.packed + static_cast<int64_t>(j) * job.packed_stride;
        for (size_t i = 0; i < job.arrays.size(); i += kMostArrays) {
            const size_t arrays = std::min<size_t>(kMostArrays, job.arrays.size() - i);
            std::copy_n(job.arrays.begin() + static_cast<ptrdiff_t>(i), arrays, args.arrays);
            const auto n = static_cast<int64_t>(arrays), m = static_cast<int64_t>(items);
            if (job.word == 16) launch_kv_pack<uint4>(gpu, args, n, m);
            else if (job.word == 4) launch_kv_pack<uint32_t>(gpu, args, n, m);
            else launch_kv_pack<unsigned char>(gpu, args, n, m);
        }
    }
}

}  // namespace cuda

}  // namespace riptide::ops
