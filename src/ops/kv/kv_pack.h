// Stored K/V and recurrent state of all layers as one block of bytes and back: saving, restoring, forking sequences.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "ops/delta_view.h"
#include "ops/kv/kv_view.h"
#include "tensor/gpu.h"

namespace riptide::ops {

// All of these copy bits. `gpu`: where views and packed bytes lie, in stream order; null for the host.
//
// Packed bounded state: for each window layer the K slots of the last min(length, window - 1) tokens in order, then
// their V slots; for each delta layer its slot's inputs of the convolution, then its state (nothing of either at length
// 0). Packed pages: page after page; in each, for every paged layer, the K slots of its first `rows` tokens, then
// their V slots. Layers of the other kind, and empty views, are left out.
//
// BoundedViews: one KvView and one DeltaView for each layer, either of which is empty (all zeros).
//
// REQUIRES of packed memory on a GPU: an address that is a multiple of 16, for speed alone (any address gives the same
// bytes). Cost on a GPU: one launch for each 64 arrays (two of 32 layers) and 64 pages; every byte is read once and
// written once.

struct BoundedViews {
    std::span<const KvView> kv;        // or none: recurrent state alone
    std::span<const DeltaView> delta;  // or none

    BoundedViews layers(size_t begin, size_t count) const {
        return {kv.empty() ? kv : kv.subspan(begin, count), delta.empty() ? delta : delta.subspan(begin, count)};
    }
};

/// Bytes of one sequence's packed bounded state.
int64_t packed_state_bytes(const BoundedViews& views, int64_t length);
/// Bytes of one packed page.
int64_t packed_page_bytes(std::span<const KvView> views, int64_t rows);

/// What state slot `slot` holds of a sequence of `length` tokens, and back into the places of these tokens.
void pack_state(Gpu* gpu, const BoundedViews& views, int64_t slot, int64_t length, std::byte* packed);
void unpack_state(Gpu* gpu, const BoundedViews& views, int64_t slot, int64_t length, const std::byte* packed);
/// From one state slot to another. REQUIRES from != to.
void copy_state(Gpu* gpu, const BoundedViews& views, int64_t from, int64_t to, int64_t length);

/// The first `rows` tokens of pages, and back into any pages. REQUIRES rows <= page_rows.
void pack_pages(Gpu* gpu, std::span<const KvView> views, std::span<const int32_t> pages, int64_t rows,
                std::byte* packed);
void unpack_pages(Gpu* gpu, std::span<const KvView> views, std::span<const int32_t> pages, int64_t rows,
                  const std::byte* packed);
/// From one page to another. REQUIRES from != to.
void copy_page(Gpu* gpu, std::span<const KvView> views, int32_t from, int32_t to, int64_t rows);

}  // namespace riptide::ops
