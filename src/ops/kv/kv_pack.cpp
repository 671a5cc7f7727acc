#include "ops/kv/kv_pack.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "ops/cuda/backend.h"
#include "ops/kv/kv_pack_job.h"

namespace riptide::ops {

namespace {

int64_t ring_tokens(const KvView& view, int64_t length) {
    return view.window > 0 ? std::min<int64_t>(length, view.window - 1) : 0;
}

constexpr int64_t kFloat = sizeof(float);

/// The arrays of a delta layer's slot.
void add_delta(const DeltaView& view, std::vector<PackArray>& arrays, int64_t& packed) {
    const auto add = [&](void* base, int64_t bytes) {
        arrays.push_back({static_cast<std::byte*>(base), bytes, 0, bytes, packed});
        packed += bytes;
    };
    add(view.conv, view.conv_floats() * kFloat);
    add(view.state, view.state_bytes());
}

/// The arrays of bounded state, of a sequence of `length` tokens.
std::vector<PackArray> state_arrays(const BoundedViews& views, int64_t length) {
    std::vector<PackArray> arrays;
    int64_t packed = 0;
    for (size_t l = 0; l < std::max(views.kv.size(), views.delta.size()); ++l) {
        if (l < views.delta.size() && views.delta[l].conv_width > 0 && length > 0)
            add_delta(views.delta[l], arrays, packed);
        if (l >= views.kv.size()) continue;
        const KvView& view = views.kv[l];
        const int64_t tokens = ring_tokens(view, length);
        if (tokens == 0) continue;
        RT_ASSERT(tokens <= view.ring_rows);
        const auto add = [&](void* base, int64_t slot_bytes) {
            arrays.push_back({static_cast<std::byte*>(base), view.ring_rows * slot_bytes,
                              (length - tokens) % view.ring_rows * slot_bytes, tokens * slot_bytes, packed});
            packed += tokens * slot_bytes;
        };
        add(view.k, view.k_slot_bytes);
        add(view.v, view.v_slot_bytes);
    }
    return arrays;
}

/// The arrays of the paged layers, of the first `rows` tokens of pages.
std::vector<PackArray> page_arrays(std::span<const KvView> views, int64_t rows) {
    std::vector<PackArray> arrays;
    int64_t packed = 0;
    for (const KvView& view : views) {
        if (view.page_rows == 0 || rows == 0) continue;
        RT_ASSERT(rows <= view.page_rows);
        const auto add = [&](void* base, int64_t slot_bytes) {
            arrays.push_back(
                {static_cast<std::byte*>(base), view.page_rows * slot_bytes, 0, rows * slot_bytes, packed});
            packed += rows * slot_bytes;
        };
        add(view.k, view.k_slot_bytes);
        add(view.v, view.v_slot_bytes);
    }
    return arrays;
}

/// The widest word that divides everything that addresses are made of.
int64_t word_of(const PackJob& job) {
    auto all = reinterpret_cast<uint64_t>(job.packed) | static_cast<uint64_t>(job.packed_stride);
    for (const PackArray& a : job.arrays)
        all |= reinterpret_cast<uint64_t>(a.base) | static_cast<uint64_t>(a.item_bytes | a.begin | a.bytes | a.packed);
    return all % 16 == 0 ? 16 : all % 4 == 0 ? 4 : 1;
}

/// Calls copy(offset in the item, offset in the run of bytes, bytes) for the one or two contiguous parts.
template <class Copy>
void for_each_part(const PackArray& array, const Copy& copy) {
    const int64_t first = std::min(array.bytes, array.item_bytes - array.begin);
    copy(array.begin, 0, static_cast<size_t>(first));
    if (first < array.bytes) copy(0, first, static_cast<size_t>(array.bytes - first));
}

void run_on_host(const PackJob& job) {
    for (size_t j = 0; j < job.items.size(); ++j)
        for (const PackArray& array : job.arrays) {
            std::byte* const item = array.base + job.items[j] * array.item_bytes;
            const bool copies = job.move == PackJob::Move::copy;
            const int64_t at = static_cast<int64_t>(j) * job.packed_stride + array.packed;
            std::byte* const other =
                copies ? array.base + job.to[j] * array.item_bytes : job.packed + at;  // copies have no packed memory
            for_each_part(array, [&](int64_t in_item, int64_t in_run, size_t bytes) {
                std::byte* const there = other + (copies ? in_item : in_run);
                if (job.move == PackJob::Move::unpack) std::memcpy(item + in_item, there, bytes);
                else std::memcpy(there, item + in_item, bytes);
            });
        }
}

void run(Gpu* gpu, PackJob job) {
    if (job.arrays.empty() || job.items.empty()) return;
    RT_ASSERT(std::all_of(job.items.begin(), job.items.end(), [](int32_t item) { return item >= 0; }));
    RT_ASSERT(std::all_of(job.to.begin(), job.to.end(), [](int32_t item) { return item >= 0; }));
    job.word = word_of(job);
    if (gpu != nullptr) cuda::kv_pack(*gpu, job);
    else run_on_host(job);
}

int32_t item_of(int64_t slot) {
    RT_ASSERT(slot >= 0 && slot <= INT32_MAX);
    return static_cast<int32_t>(slot);
}

}  // namespace

int64_t packed_state_bytes(const BoundedViews& views, int64_t length) {
    int64_t bytes = 0;
    for (const KvView& view : views.kv) bytes += ring_tokens(view, length) * (view.k_slot_bytes + view.v_slot_bytes);
    for (const DeltaView& view : views.delta)
        if (length > 0) bytes += view.conv_floats() * kFloat + view.state_bytes();
    return bytes;
}

int64_t packed_page_bytes(std::span<const KvView> views, int64_t rows) {
    int64_t bytes = 0;
    for (const KvView& view : views)
        if (view.page_rows > 0) bytes += rows * (view.k_slot_bytes + view.v_slot_bytes);
    return bytes;
}

void pack_state(Gpu* gpu, const BoundedViews& views, int64_t slot, int64_t length, std::byte* packed) {
    const std::vector<PackArray> arrays = state_arrays(views, length);
    const int32_t item = item_of(slot);
    run(gpu, {.move = PackJob::Move::pack, .arrays = arrays, .items = {&item, 1}, .packed = packed});
}

void unpack_state(Gpu* gpu, const BoundedViews& views, int64_t slot, int64_t length, const std::byte* packed) {
    const std::vector<PackArray> arrays = state_arrays(views, length);
    const int32_t item = item_of(slot);
    run(gpu, {.move = PackJob::Move::unpack,
              .arrays = arrays,
              .items = {&item, 1},
              .packed = const_cast<std::byte*>(packed)});
}

void copy_state(Gpu* gpu, const BoundedViews& views, int64_t from, int64_t to, int64_t length) {
    RT_ASSERT(from != to);
    const std::vector<PackArray> arrays = state_arrays(views, length);
    const int32_t item = item_of(from), other = item_of(to);
    run(gpu, {.move = PackJob::Move::copy, .arrays = arrays, .items = {&item, 1}, .to = {&other, 1}});
}

void pack_pages(Gpu* gpu, std::span<const KvView> views, std::span<const int32_t> pages, int64_t rows,
                std::byte* packed) {
    const std::vector<PackArray> arrays = page_arrays(views, rows);
    run(gpu, {.move = PackJob::Move::pack,
              .arrays = arrays,
              .items = pages,
              .packed = packed,
              .packed_stride = packed_page_bytes(views, rows)});
}

void unpack_pages(Gpu* gpu, std::span<const KvView> views, std::span<const int32_t> pages, int64_t rows,
                  const std::byte* packed) {
    const std::vector<PackArray> arrays = page_arrays(views, rows);
    run(gpu, {.move = PackJob::Move::unpack,
              .arrays = arrays,
              .items = pages,
              .packed = const_cast<std::byte*>(packed),
              .packed_stride = packed_page_bytes(views, rows)});
}

void copy_page(Gpu* gpu, std::span<const KvView> views, int32_t from, int32_t to, int64_t rows) {
    RT_ASSERT(from != to);
    const std::vector<PackArray> arrays = page_arrays(views, rows);
    run(gpu, {.move = PackJob::Move::copy, .arrays = arrays, .items = {&from, 1}, .to = {&to, 1}});
}

}  // namespace riptide::ops
