// A fingerprint of everything that a run computed.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

namespace riptide {

/// Eight FNV-1a hashes with 64 bits over the bit patterns of f32 values, one 32-bit word at a time: value i of a row
/// goes to hash i % 8. Their FNV-1a, one 64-bit word at a time, is the value: two runs with the same one had the same
/// logits, bit for bit. Eight, because one alone waits for its multiplication at every word.
class LogitsHash {
  public:
    void add(std::span<const float> logits) {
        std::array<uint64_t, kLanes> h = lanes_;
        const size_t whole = logits.size() / kLanes * kLanes;
        for (size_t i = 0; i < whole; i += kLanes)
#pragma GCC unroll 8
            for (size_t j = 0; j < kLanes; ++j) h[j] = (h[j] ^ std::bit_cast<uint32_t>(logits[i + j])) * kPrime;
        for (size_t i = whole; i < logits.size(); ++i)
            h[i - whole] = (h[i - whole] ^ std::bit_cast<uint32_t>(logits[i])) * kPrime;
        lanes_ = h;
    }
    uint64_t value() const {
        uint64_t h = kStart;
        for (const uint64_t lane : lanes_) h = (h ^ lane) * kPrime;
        return h;
    }

  private:
    static constexpr size_t kLanes = 8;
    static constexpr uint64_t kPrime = 0x100000001b3u, kStart = 0xcbf29ce484222325u;

    std::array<uint64_t, kLanes> lanes_ = {kStart, kStart, kStart, kStart, kStart, kStart, kStart, kStart};
};

}  // namespace riptide
