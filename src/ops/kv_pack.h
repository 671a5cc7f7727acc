// Stored K/V of all layers as one block of bytes and back: saving, restoring and forking sequences.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "ops/kv_view.h"
#include "tensor/gpu.h"

namespace riptide::ops {

// All of these copy bits. `gpu`: where views and packed bytes lie, in stream order; null for the host.
//
// Packed rings: for each window layer the K slots of the last min(length, window - 1) tokens in order, then their V
// slots. Packed pages: page after page; in each, for every paged layer, the K slots of its first `rows` tokens, then
// their V slots. Layers of the other kind, and empty views, are left out.
//
// REQUIRES of packed memory on a GPU: an address that is a multiple of 16, for speed alone (any address gives the same
// bytes). Cost on a GPU: one launch for each 64 arrays (K and V of 32 layers) and 64 pages; every byte is read once and
// written once.

/// Bytes of one sequence's packed rings.
int64_t packed_ring_bytes(std::span<const KvView> views, int64_t length);
/// Bytes of one packed page.
int64_t packed_page_bytes(std::span<const KvView> views, int64_t rows);

/// The rings of state slot `slot`, of a sequence of `length` tokens, and back into the places of these tokens.
void pack_rings(Gpu* gpu, std::span<const KvView> views, int64_t slot, int64_t length, std::byte* packed);
void unpack_rings(Gpu* gpu, std::span<const KvView> views, int64_t slot, int64_t length, const std::byte* packed);
/// From one state slot to another. REQUIRES from != to.
void copy_rings(Gpu* gpu, std::span<const KvView> views, int64_t from, int64_t to, int64_t length);

/// The first `rows` tokens of pages, and back into any pages. REQUIRES rows <= page_rows.
void pack_pages(Gpu* gpu, std::span<const KvView> views, std::span<const int32_t> pages, int64_t rows,
                std::byte* packed);
void unpack_pages(Gpu* gpu, std::span<const KvView> views, std::span<const int32_t> pages, int64_t rows,
                  const std::byte* packed);
/// From one page to another. REQUIRES from != to.
void copy_page(Gpu* gpu, std::span<const KvView> views, int32_t from, int32_t to, int64_t rows);

}  // namespace riptide::ops
