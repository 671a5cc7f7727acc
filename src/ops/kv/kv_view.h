// What an op needs to read and write one layer's K/V: pointers, formats, and where a storage index lies.
#pragma once

#include <cstdint>
#include <span>

#include "ops/batch.h"
#include "tensor/dtype.h"

namespace riptide {

/// One layer's K/V storage. A slot holds one token: num_kv_heads rows of head_dim values, K and V in separate arrays,
/// each row encoded by itself in k_dtype / v_dtype (quant/kv_codec.h). Paged (window == 0): slot = page_table[s][index
/// / page_rows] * page_rows + index % page_rows. Ring  (window  > 0): slot = state_slot[s] * ring_rows + index %
/// ring_rows, ring_rows >= window - 1 + rows of a step.
struct KvView {
    void* k = nullptr;
    void* v = nullptr;
    DType k_dtype = DType::f32;
    DType v_dtype = DType::f32;
    int64_t num_kv_heads = 0;
    int64_t head_dim = 0;
    int64_t k_slot_bytes = 0;  // num_kv_heads * row_bytes(k_dtype, head_dim)
    int64_t v_slot_bytes = 0;
    int32_t page_rows = 0;  // tokens in a page
    int32_t window = 0;     // 0: full attention
    int32_t ring_rows = 0;

    int64_t slot(const Batch& batch, int64_t sequence, int64_t index) const {
        const auto s = static_cast<size_t>(sequence);
        if (window > 0) return int64_t{batch.state_slot[s]} * ring_rows + index % ring_rows;
        const auto entry = s * static_cast<size_t>(batch.max_pages) + static_cast<size_t>(index / page_rows);
        return int64_t{batch.page_table[entry]} * page_rows + index % page_rows;
    }
    /// Of a sequence with these pages (one by one, on the host).
    int64_t slot(int32_t state_slot, std::span<const int32_t> pages, int64_t index) const {
        if (window > 0) return int64_t{state_slot} * ring_rows + index % ring_rows;
        return int64_t{pages[static_cast<size_t>(index / page_rows)]} * page_rows + index % page_rows;
    }
    const char* k_row(int64_t slot, int64_t head) const {
        return static_cast<const char*>(k) + slot * k_slot_bytes + head * (k_slot_bytes / num_kv_heads);
    }
    const char* v_row(int64_t slot, int64_t head) const {
        return static_cast<const char*>(v) + slot * v_slot_bytes + head * (v_slot_bytes / num_kv_heads);
    }
};

}  // namespace riptide
