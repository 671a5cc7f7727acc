// A fingerprint of everything that a run computed.
#pragma once

#include <bit>
#include <cstdint>
#include <span>

namespace riptide {

/// FNV-1a with 64 bits over the bit patterns of f32 values, one 32-bit word at a time: two runs with the same hash had
/// the same logits, bit for bit.
class LogitsHash {
  public:
    void add(std::span<const float> logits) {
        uint64_t h = hash_;
        for (const float value : logits) h = (h ^ std::bit_cast<uint32_t>(value)) * 0x100000001b3u;
        hash_ = h;
    }
    uint64_t value() const { return hash_; }

  private:
    uint64_t hash_ = 0xcbf29ce484222325u;
};

}  // namespace riptide
