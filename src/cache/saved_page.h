// The contents of a page as bytes, for the tiers below the cache.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cache/kv_cache.h"

namespace riptide {

/// Bytes of the first `rows` tokens of a page in all paged layers: for each layer K, then V, as stored.
int64_t saved_page_bytes(const KvCache& cache, int32_t rows);
/// Writes them to `to`, of saved_page_bytes(cache, rows) bytes.
void save_page(const KvCache& cache, int32_t page, int32_t rows, std::span<std::byte> to);
/// Puts them back into any page. REQUIRES saved.size() == saved_page_bytes(cache, rows).
void load_page(KvCache& cache, int32_t page, int32_t rows, std::span<const std::byte> saved);

}  // namespace riptide
