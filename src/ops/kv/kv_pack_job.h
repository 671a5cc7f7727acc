// What kv_pack.h asks for, spelled out in addresses: shared by its CPU path and its kernel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace riptide::ops {

/// K or V of one layer, cut into items of item_bytes: pages, or the rings of state slots. Of each item the `bytes` from
/// `begin` on are meant, going on at its beginning behind its end.
struct PackArray {
    std::byte* base = nullptr;
    int64_t item_bytes = 0;
    int64_t begin = 0;
    int64_t bytes = 0;
    int64_t packed = 0;  // offset in the packed item
};

/// Item `items[j]` of every array goes to or comes from packed + j * packed_stride, or (copy) goes to item `to[j]`.
struct PackJob {
    enum class Move { pack, unpack, copy };
    Move move = Move::pack;
    std::span<const PackArray> arrays;
    std::span<const int32_t> items;
    std::span<const int32_t> to;  // copy only
    std::byte* packed = nullptr;
    int64_t packed_stride = 0;
    int64_t word = 1;  // 16, 4 or 1: divides all addresses and sizes
};

}  // namespace riptide::ops
