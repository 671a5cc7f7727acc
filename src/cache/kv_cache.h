// The memory of all layers' state: pages for full attention; for each sequence a ring for windows, a slot for DeltaNet.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cache/delta_states.h"
#include "cache/page_pool.h"
#include "cache/state_spec.h"
#include "ops/kv/kv_pack.h"
#include "tensor/gpu.h"

namespace riptide {

struct KvCacheOptions {
    DType k_dtype = DType::f16;
    DType v_dtype = DType::f16;
    int32_t page_rows = 64;     // tokens in a page
    int32_t pages = 0;          // pages shared by all sequences; a page holds its tokens in every paged layer
    int32_t max_sequences = 1;  // that have rings and recurrent state
    int32_t max_step_rows = 1;  // the most rows of one sequence in one step
};

/// Owns the memory, the pool of pages and the free ring slots. Layers of kind `paged` share one page numbering; layers
/// of kind `window` get, in each of max_sequences slots, a ring of window - 1 + max_step_rows tokens, rounded up to 64:
/// a rejected tree overwrites nothing that is still needed. Layers of kind `delta` get a state in each of these slots
/// (DeltaStates). Memory is address space until it is written. Not thread-safe; must outlive its SequenceStates.
class KvCache {
  public:
    /// Throws Error for options out of range, a head_dim that is no whole number of the K/V type's blocks (naming
    /// both), or sizes that overflow or that the system refuses.
    /// `gpu`: where the memory lies; null: on the host. `threads`: for recurrent state on the CPU; may be null.
    KvCache(std::span<const StateSpec> specs, const KvCacheOptions& options, Gpu* gpu = nullptr,
            ThreadPool* threads = nullptr);
    KvCache(const KvCache&) = delete;
    KvCache& operator=(const KvCache&) = delete;

    Gpu* gpu() const { return gpu_; }
    const KvCacheOptions& options() const { return options_; }
    /// One view for each layer; kind none: an empty view.
    std::span<const KvView> views() const { return views_; }
    const KvView& view(int64_t layer) const { return views_[static_cast<size_t>(layer)]; }
    DeltaStates& delta() { return delta_; }
    const DeltaStates& delta() const { return delta_; }
    /// What sequences have of bounded state.
    ops::BoundedViews bounded() const { return {views_, delta_.views()}; }

    PagePool& pool() { return pool_; }
    const PagePool& pool() const { return pool_; }
    /// Whether any layer is paged.
    bool has_pages() const { return bytes_per_token_ > 0; }
    /// Pages that hold `tokens` tokens.
    int32_t pages_for(int64_t tokens) const;

    /// Slots of bounded state. acquire_slot gives -1 when none is free; a fresh cache gives 0, 1, 2, ...
    int32_t acquire_slot();
    void release_slot(int32_t slot);
    int32_t free_slots() const { return static_cast<int32_t>(free_slots_.size()); }

    /// K/V bytes that a further token takes in the paged layers.
    int64_t bytes_per_token() const { return bytes_per_token_; }
    /// Bytes of bounded state of one sequence.
    int64_t bytes_per_sequence() const { return bytes_per_sequence_; }
    /// All pages and all bounded state.
    int64_t total_bytes() const;
    /// What is used first of the memory, which lies on the host: the same share of each layer's, `most` bytes together.
    std::vector<std::span<std::byte>> used_first(int64_t most) const;

    /// Copies the first `rows` tokens of a page in every paged layer.
    void copy_page(int32_t from, int32_t to, int32_t rows);
    /// Copies what a sequence of `length` tokens needs of bounded state from one slot to another.
    void copy_state(int32_t from_slot, int32_t to_slot, int64_t length);

  private:
    void add_layer(const StateSpec& spec, size_t layer);

    Gpu* gpu_;
    KvCacheOptions options_;
    PagePool pool_;
    std::vector<int32_t> free_slots_;
    std::vector<char> slot_held_;
    std::vector<KvView> views_;
    std::vector<DeviceMemory> memory_;
    int64_t bytes_per_token_ = 0;
    int64_t bytes_per_sequence_ = 0;
    DeltaStates delta_;
};

}  // namespace riptide
