// Random numbers that are a function of where they are used, not of when they are drawn.
#pragma once

#include <array>
#include <cstdint>

namespace riptide {

/// Philox4x32-10: 128 random bits from a 128-bit counter and a 64-bit key.
/// Source: Salmon, Moraes, Dror, Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011, figure 2 and table 2.
constexpr std::array<uint32_t, 4> philox(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
    for (int round = 0; round < 10; ++round) {
        const uint64_t a = uint64_t{0xD2511F53u} * counter[0], b = uint64_t{0xCD9E8D57u} * counter[2];
        counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(b),
                   static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(a)};
        key[0] += 0x9E3779B9u;
        key[1] += 0xBB67AE85u;
    }
    return counter;
}

/// The uniform number of (seed, position, token), in (0, 1): an odd multiple of 2^-53, so neither 0 nor 1.
constexpr double sampling_noise(uint64_t seed, uint64_t position, uint32_t token) {
    const auto bits = philox({token, static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32), 0},
                             {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
    const uint64_t word = (uint64_t{bits[0]} << 32 | bits[1]) >> 12;
    return (static_cast<double>(word) + 0.5) * 0x1p-52;
}

}  // namespace riptide
