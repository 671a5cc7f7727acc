#include "text/tokenizer/bpe.h"

#include <algorithm>
#include <bit>
#include <functional>

#include "base/error.h"

namespace riptide {
namespace {

uint64_t pair_of(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
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

void Bpe::offer(Scratch& scratch, int32_t at) const {
    const Scratch::Symbol& left = scratch.symbols[static_cast<std::size_t>(at)];
    if (left.next < 0) return;
    const Merge merge = find(left.id, scratch.symbols[static_cast<std::size_t>(left.next)].id);
    if (merge.rank < 0) return;
    scratch.heap.push_back(pair_of(merge.rank, at));
    std::push_heap(scratch.heap.begin(), scratch.heap.end(), std::greater<>());
}

void Bpe::merge_all(Scratch& scratch, WorkBudget* work) const {
    auto& symbols = scratch.symbols;
    auto& heap = scratch.heap;
    while (!heap.empty()) {
        if (work != nullptr) work->spend_bytes(kBytesOfWork);
        std::pop_heap(heap.begin(), heap.end(), std::greater<>());
        const auto at = static_cast<int32_t>(heap.back() & 0xFFFFFFFFu);
        const auto rank = static_cast<int32_t>(heap.back() >> 32);
        heap.pop_back();
        Scratch::Symbol& left = symbols[static_cast<std::size_t>(at)];
        if (left.id < 0 || left.next < 0) continue;
        Scratch::Symbol& right = symbols[static_cast<std::size_t>(left.next)];
        const Merge merge = find(left.id, right.id);
        if (merge.rank != rank) continue;  // one side has changed since the offer
        left.id = merge.result;
        right.id = -1;
        left.next = right.next;
        if (left.next >= 0) symbols[static_cast<std::size_t>(left.next)].previous = at;
        for (const int32_t side : {left.previous, at}) {
            if (side >= 0) offer(scratch, side);
        }
    }
}

void Bpe::encode(std::string_view piece, Scratch& scratch, std::vector<int32_t>& ids, WorkBudget* work) const {
    auto& symbols = scratch.symbols;
    symbols.clear();
    scratch.heap.clear();
    RT_CHECK(piece.size() < 0x7FFFFFFF, "a piece of text of {} bytes is too long", piece.size());
    const auto n = static_cast<int32_t>(piece.size());
    symbols.reserve(piece.size());
    for (int32_t i = 0; i < n; ++i) {
        const auto byte = static_cast<unsigned char>(piece[static_cast<std::size_t>(i)]);
        RT_CHECK(byte_ids_[byte] >= 0, "the vocabulary has no token for byte 0x{:02X}", byte);
        symbols.push_back({byte_ids_[byte], i - 1, i + 1 < n ? i + 1 : -1});
    }
    for (int32_t i = 0; i + 1 < n; ++i) {
        if (work != nullptr) work->spend_bytes(kBytesOfWork);
        offer(scratch, i);
    }
    merge_all(scratch, work);
    for (int32_t at = n > 0 ? 0 : -1; at >= 0; at = symbols[static_cast<std::size_t>(at)].next) {
        ids.push_back(symbols[static_cast<std::size_t>(at)].id);
    }
}

}  // namespace riptide
