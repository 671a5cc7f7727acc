// All that K/V and recurrent state hold of a sequence's tokens, as one number.
#pragma once

#include <cstring>
#include <vector>

#include "cache/sequence_state.h"

namespace riptide::testing {

/// Four multiplicative hashes over 8-byte words in turns: fast, and not for enemies.
class BytesHash {
  public:
    void add(const std::byte* bytes, size_t size) {
        for (; size >= 32; bytes += 32, size -= 32)
            for (size_t lane = 0; lane < 4; ++lane) mix(lane, word(bytes + 8 * lane, 8));
        for (; size > 0; size -= std::min<size_t>(size, 8), bytes += 8)
            mix(0, word(bytes, std::min<size_t>(size, 8)) ^ size << 56);
    }
    uint64_t value() const {
        uint64_t all = 0;
        for (const uint64_t lane : lanes_) all = (all ^ lane ^ lane >> 29) * kFactor;
        return all ^ all >> 32;
    }

  private:
    static constexpr uint64_t kFactor = 0x9E3779B97F4A7C15;

    static uint64_t word(const std::byte* bytes, size_t size) {
        uint64_t w = 0;
        std::memcpy(&w, bytes, size);
        return w;
    }
    void mix(size_t lane, uint64_t w) {
        lanes_[lane] = (lanes_[lane] ^ w) * kFactor;
        lanes_[lane] ^= lanes_[lane] >> 31;
    }

    uint64_t lanes_[4] = {1, 2, 3, 4};
};

/// Adds to a hash what lies in the memory of a sequence's device.
class StateReader {
  public:
    explicit StateReader(const SequenceState& sequence) : sequence_(sequence), cache_(sequence.cache()) {}

    /// K/V rows `begin` to `end` - 1 of every full layer.
    void add_rows(BytesHash& hash, int64_t begin, int64_t end) {
        for (const KvView& view : cache_.views()) {
            if (view.k == nullptr || view.window > 0) continue;
            for (int64_t row = begin; row < end;) {
                const int64_t page = row / view.page_rows, rows = std::min(end, (page + 1) * view.page_rows) - row;
                const int64_t slot =
                    int64_t{sequence_.pages()[static_cast<size_t>(page)]} * view.page_rows + row % view.page_rows;
                add(hash, view.k_row(slot, 0), rows * view.k_slot_bytes);
                add(hash, view.v_row(slot, 0), rows * view.v_slot_bytes);
                row += rows;
            }
        }
    }
    /// Of window layers the rows that a further token may see, and recurrent state, as SequenceState::save() has them.
    void add_bounded(BytesHash& hash) const {
        const std::vector<std::byte> bounded = sequence_.save().bytes();
        hash.add(bounded.data(), bounded.size());
    }

  private:
    void add(BytesHash& hash, const void* from, int64_t bytes) {
        const auto* at = static_cast<const std::byte*>(from);
        if (cache_.gpu() != nullptr) {
            copy_.resize(static_cast<size_t>(bytes));
            cache_.gpu()->to_host(copy_.data(), from, bytes);
            at = copy_.data();
        }
        hash.add(at, static_cast<size_t>(bytes));
    }

    const SequenceState& sequence_;
    const KvCache& cache_;
    std::vector<std::byte> copy_;
};

/// All of a sequence's K/V and recurrent state.
inline uint64_t state_hash(const SequenceState& sequence) {
    BytesHash hash;
    StateReader reader(sequence);
    reader.add_rows(hash, 0, sequence.length());
    reader.add_bounded(hash);
    return hash.value();
}

/// What a step may have changed: the K/V rows of the last page and of the one before it, and all that is bounded.
inline uint64_t newest_hash(const SequenceState& sequence) {
    const int64_t page_rows = sequence.cache().options().page_rows, length = sequence.length();
    BytesHash hash;
    StateReader reader(sequence);
    reader.add_rows(hash, std::max<int64_t>(0, ((length - 1) / page_rows - 1) * page_rows), length);
    reader.add_bounded(hash);
    return hash.value();
}

/// The K/V of every full page. Nobody writes there again, so what should not have been written is there to stay.
inline std::vector<uint64_t> page_hashes(const SequenceState& sequence) {
    const int64_t page_rows = sequence.cache().options().page_rows;
    std::vector<uint64_t> pages;
    StateReader reader(sequence);
    for (int64_t end = page_rows; end <= sequence.length(); end += page_rows) {
        BytesHash hash;
        reader.add_rows(hash, end - page_rows, end);
        pages.push_back(hash.value());
    }
    return pages;
}

}  // namespace riptide::testing
