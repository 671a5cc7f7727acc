#include "cache/kv_cache.h"

#include <algorithm>

#include "base/checked.h"
#include "ops/kv/kv_pack.h"
#include "quant/kv_codec.h"

namespace riptide {

namespace {

constexpr int32_t kRingAlign = 64;

const KvCacheOptions& checked(const KvCacheOptions& o) {
    RT_CHECK(o.page_rows >= 1, "K/V pages of {} tokens: a page holds at least one", o.page_rows);
    RT_CHECK(o.pages >= 0, "{} K/V pages: the number cannot be negative", o.pages);
    RT_CHECK(o.max_sequences >= 1, "room for {} sequences: at least one is needed", o.max_sequences);
    RT_CHECK(o.max_step_rows >= 1, "steps of {} rows: at least one is needed", o.max_step_rows);
    RT_CHECK(int64_t{o.pages} * o.page_rows <= INT32_MAX, "{} pages of {} tokens: more than {} tokens", o.pages,
             o.page_rows, INT32_MAX);
    return o;
}

void check_heads(const StateSpec& spec, size_t layer, DType type, const char* which) {
    RT_CHECK(can_hold_kv(type), "{} cannot store {}", dtype_name(type), which);
    RT_CHECK(spec.num_kv_heads >= 1 && spec.head_dim >= 1, "layer {}: {} K/V heads of {} values", layer,
             spec.num_kv_heads, spec.head_dim);
    const int64_t block = dtype_info(type).block_elements;
    RT_CHECK(spec.head_dim % block == 0, "layer {}: head_dim {} does not suit {} as {}: its blocks hold {} values",
             layer, spec.head_dim, dtype_name(type), which, block);
}

}  // namespace

KvCache::KvCache(std::span<const StateSpec> specs, const KvCacheOptions& options, Gpu* gpu, ThreadPool* threads)
    : gpu_(gpu),
      options_(checked(options)),
      pool_(options.pages),
      slot_held_(static_cast<size_t>(options.max_sequences), 0),
      views_(specs.size()),
      delta_(specs, options.max_sequences, int64_t{options.max_step_rows} * options.max_sequences, gpu, threads) {
    for (int32_t slot = options.max_sequences - 1; slot >= 0; --slot) free_slots_.push_back(slot);
    for (size_t layer = 0; layer < specs.size(); ++layer) {
        const StateSpec& spec = specs[layer];
        if (spec.has_kv()) add_layer(spec, layer);
    }
    bytes_per_sequence_ = checked_add(bytes_per_sequence_, delta_.bytes_per_sequence(), "recurrent state");
}

void KvCache::add_layer(const StateSpec& spec, size_t layer) {
    check_heads(spec, layer, options_.k_dtype, "K");
    check_heads(spec, layer, options_.v_dtype, "V");
    KvView& view = views_[layer];
    view.k_dtype = options_.k_dtype;
    view.v_dtype = options_.v_dtype;
    view.num_kv_heads = spec.num_kv_heads;
    view.head_dim = spec.head_dim;
    view.k_slot_bytes = checked_mul(spec.num_kv_heads, row_bytes(options_.k_dtype, spec.head_dim), "K/V cache");
    view.v_slot_bytes = checked_mul(spec.num_kv_heads, row_bytes(options_.v_dtype, spec.head_dim), "K/V cache");
    const int64_t token = checked_add(view.k_slot_bytes, view.v_slot_bytes, "K/V cache");
    int64_t slots = 0;
    if (spec.kind == StateSpec::Kind::paged) {
        view.page_rows = options_.page_rows;
        slots = int64_t{options_.pages} * options_.page_rows;
        bytes_per_token_ = checked_add(bytes_per_token_, token, "K/V cache");
    } else {
        RT_CHECK(spec.window >= 1, "layer {}: a window of {} tokens", layer, spec.window);
        const int64_t rows = int64_t{spec.window} - 1 + options_.max_step_rows;
        const int64_t ring = (rows + kRingAlign - 1) / kRingAlign * kRingAlign;
        RT_CHECK(ring <= INT32_MAX, "layer {}: a ring of {} tokens", layer, ring);
        view.window = spec.window;
        view.ring_rows = static_cast<int32_t>(ring);
        slots = checked_mul(options_.max_sequences, ring, "K/V cache");
        bytes_per_sequence_ = checked_add(bytes_per_sequence_, checked_mul(ring, token, "K/V cache"), "K/V cache");
    }
    view.k = memory_.emplace_back(gpu_, checked_mul(slots, view.k_slot_bytes, "K/V cache"), "K/V cache").data();
    view.v = memory_.emplace_back(gpu_, checked_mul(slots, view.v_slot_bytes, "K/V cache"), "K/V cache").data();
}

int32_t KvCache::pages_for(int64_t tokens) const {
    return static_cast<int32_t>((tokens + options_.page_rows - 1) / options_.page_rows);
}

int32_t KvCache::acquire_slot() {
    if (free_slots_.empty()) return -1;
    const int32_t slot = free_slots_.back();
    free_slots_.pop_back();
    slot_held_[static_cast<size_t>(slot)] = 1;
    return slot;
}

void KvCache::release_slot(int32_t slot) {
    RT_ASSERT(slot >= 0 && slot < options_.max_sequences && slot_held_[static_cast<size_t>(slot)] != 0);
    slot_held_[static_cast<size_t>(slot)] = 0;
    free_slots_.push_back(slot);
}

int64_t KvCache::total_bytes() const {
    return int64_t{options_.pages} * options_.page_rows * bytes_per_token_ +
           options_.max_sequences * (bytes_per_sequence_ - delta_.bytes_per_sequence()) + delta_.total_bytes();
}

std::vector<std::span<std::byte>> KvCache::used_first(int64_t most) const {
    RT_ASSERT(gpu_ == nullptr);
    int64_t all = 0;
    for (const DeviceMemory& memory : memory_) all += memory.bytes();
    const double share = std::min(1.0, static_cast<double>(most) / static_cast<double>(std::max<int64_t>(1, all)));
    std::vector<std::span<std::byte>> out;
    for (const DeviceMemory& memory : memory_)
        out.emplace_back(memory.data(), static_cast<size_t>(share * static_cast<double>(memory.bytes())));
    return out;
}

void KvCache::copy_page(int32_t from, int32_t to, int32_t rows) { ops::copy_page(gpu_, views_, from, to, rows); }

void KvCache::copy_state(int32_t from_slot, int32_t to_slot, int64_t length) {
    ops::copy_state(gpu_, bounded(), from_slot, to_slot, length);
}

}  // namespace riptide
