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

/// Every K/V row of every full layer up to the sequence's length; of window layers the rows that a further token may
/// see, and recurrent state, as SequenceState::save() has them.
inline uint64_t state_hash(const SequenceState& sequence) {
    const KvCache& cache = sequence.cache();
    BytesHash hash;
    std::vector<std::byte> copy;
    const auto add = [&](const void* from, int64_t bytes) {
        const auto* at = static_cast<const std::byte*>(from);
        if (cache.gpu() != nullptr) {
            copy.resize(static_cast<size_t>(bytes));
            cache.gpu()->to_host(copy.data(), from, bytes);
            at = copy.data();
        }
        hash.add(at, static_cast<size_t>(bytes));
    };
    for (const KvView& view : cache.views()) {
        if (view.k == nullptr || view.window > 0) continue;
        int64_t left = sequence.length();
        for (const int32_t page : sequence.pages()) {
            const int64_t rows = std::min<int64_t>(left, view.page_rows), slot = int64_t{page} * view.page_rows;
            if (rows <= 0) break;
            add(view.k_row(slot, 0), rows * view.k_slot_bytes);
            add(view.v_row(slot, 0), rows * view.v_slot_bytes);
            left -= rows;
        }
    }
    const std::vector<std::byte> bounded = sequence.save();
    hash.add(bounded.data(), bounded.size());
    return hash.value();
}

}  // namespace riptide::testing
