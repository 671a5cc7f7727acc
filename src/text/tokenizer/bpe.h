// Byte-pair merging: from the bytes of one piece to token ids.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/work_budget.h"

namespace riptide {

/// The merge rules of a vocabulary, by token id. Filled once, then immutable and shareable between threads.
class Bpe {
  public:
    /// What a pair of neighbouring tokens becomes. Lower ranks merge first.
    struct Merge {
        int32_t rank = -1;
        int32_t result = -1;
    };
    /// Working memory of one thread, kept over the pieces of a text.
    struct Scratch {
        struct Symbol {
            int32_t id = -1;
            int32_t previous = -1, next = -1;
        };
        std::vector<Symbol> symbols;
        std::vector<uint64_t> heap;  // rank << 32 | index of the left symbol, the least on top
    };

    /// `byte_ids[b]` is the token of the single byte b, or -1 if the vocabulary has none.
    explicit Bpe(const std::array<int32_t, 256>& byte_ids, std::size_t merge_count);

    /// Adds the next merge rule (ranks count up from 0). False, without effect, if the pair has a rule already.
    bool add(int32_t left, int32_t right, int32_t result);

    /// Appends the tokens of `piece`: from single bytes, the pair of lowest rank is merged, leftmost first, until no
    /// pair has a rule. Time n log n in the bytes of the piece. Throws Error naming the byte if a byte has no token, or
    /// if the piece has 2^31 bytes or more. `work`, unless null, counts kBytesOfWork for each pair.
    void encode(std::string_view piece, Scratch& scratch, std::vector<int32_t>& ids, WorkBudget* work = nullptr) const;
    static constexpr int64_t kBytesOfWork = 16;

    const std::array<int32_t, 256>& byte_ids() const { return byte_ids_; }

  private:
    struct Entry {
        uint64_t pair = kNoPair;
        Merge merge;
    };
    static constexpr uint64_t kNoPair = ~uint64_t{0};

    Merge find(int32_t left, int32_t right) const;
    std::size_t slot_of(uint64_t pair) const;
    void offer(Scratch& scratch, int32_t at) const;  // puts the pair at `at` into the heap, if it has a rule
    void merge_all(Scratch& scratch, WorkBudget* work) const;

    std::array<int32_t, 256> byte_ids_;
    std::vector<Entry> table_;  // open addressing, a power of two at least twice the rules
    int32_t count_ = 0;
};

}  // namespace riptide
