#include "text/bpe.h"

#include <algorithm>
#include <bit>

#include "base/error.h"

namespace riptide {
namespace {

uint64_t pair_of(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

// std::push_heap keeps the greatest on top: the lowest rank is the greatest here, then the leftmost place.
bool later(const Bpe::Scratch::Candidate& a, const Bpe::Scratch::Candidate& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.at > b.at;
}

}  // namespace

Bpe::Bpe(const std::array<int32_t, 256>& byte_ids, std::size_t merge_count)
    : byte_ids_(byte_ids), table_(std::bit_ceil(2 * merge_count + 2)) {}

std::size_t Bpe::slot_of(uint64_t pair) const {
    const std::size_t mask = table_.size() - 1;
    std::size_t slot = static_cast<std::size_t>((pair * 0x9E3779B97F4A7C15u) >> 20) & mask;
    while (table_[slot].pair != kNoPair && table_[slot].pair != pair) slot = (slot + 1) & mask;
    return slot;
}

bool Bpe::add(int32_t left, int32_t right, int32_t result) {
    RT_ASSERT(static_cast<std::size_t>(count_) + 1 < table_.size());
    Entry& entry = table_[slot_of(pair_of(left, right))];
    if (entry.pair != kNoPair) return false;
    entry = {pair_of(left, right), {count_++, result}};
    return true;
}

Bpe::Merge Bpe::find(int32_t left, int32_t right) const { return table_[slot_of(pair_of(left, right))].merge; }

void Bpe::offer(Scratch& scratch, int64_t at) const {
    const auto& symbols = scratch.symbols;
    const int64_t next = symbols[static_cast<std::size_t>(at)].next;
    if (next < 0) return;
    const Merge merge = find(symbols[static_cast<std::size_t>(at)].id, symbols[static_cast<std::size_t>(next)].id);
    if (merge.rank < 0) return;
    scratch.heap.push_back({at, merge.rank, merge.result});
    std::push_heap(scratch.heap.begin(), scratch.heap.end(), later);
}

void Bpe::merge_all(Scratch& scratch) const {
    auto& symbols = scratch.symbols;
    auto& heap = scratch.heap;
    while (!heap.empty()) {
        std::pop_heap(heap.begin(), heap.end(), later);
        const Scratch::Candidate top = heap.back();
        heap.pop_back();
        Scratch::Symbol& left = symbols[static_cast<std::size_t>(top.at)];
        if (left.id < 0 || left.next < 0) continue;
        Scratch::Symbol& right = symbols[static_cast<std::size_t>(left.next)];
        if (find(left.id, right.id).rank != top.rank) continue;  // one side has changed since the offer
        left.id = top.result;
        right.id = -1;
        left.next = right.next;
        if (left.next >= 0) symbols[static_cast<std::size_t>(left.next)].previous = top.at;
        if (left.previous >= 0) offer(scratch, left.previous);
        offer(scratch, top.at);
    }
}

void Bpe::encode(std::string_view piece, Scratch& scratch, std::vector<int32_t>& ids) const {
    auto& symbols = scratch.symbols;
    symbols.clear();
    scratch.heap.clear();
    const auto n = static_cast<int64_t>(piece.size());
    for (int64_t i = 0; i < n; ++i) {
        const auto byte = static_cast<unsigned char>(piece[static_cast<std::size_t>(i)]);
        RT_CHECK(byte_ids_[byte] >= 0, "the vocabulary has no token for byte 0x{:02X}", byte);
        symbols.push_back({byte_ids_[byte], i - 1, i + 1 < n ? i + 1 : -1});
    }
    for (int64_t i = 0; i + 1 < n; ++i) offer(scratch, i);
    merge_all(scratch);
    for (int64_t at = n > 0 ? 0 : -1; at >= 0; at = symbols[static_cast<std::size_t>(at)].next) {
        ids.push_back(symbols[static_cast<std::size_t>(at)].id);
    }
}

}  // namespace riptide
