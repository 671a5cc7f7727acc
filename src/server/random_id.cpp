#include "server/random_id.h"

#include <fmt/format.h>

#include <random>

namespace riptide::server {

uint64_t random_number() {
    thread_local std::mt19937_64 source = [] {
        std::random_device device;
        std::seed_seq seed{device(), device(), device(), device()};
        return std::mt19937_64(seed);
    }();
    return source();
}

std::string random_id(std::string_view prefix) {
    return fmt::format("{}{:016x}{:08x}", prefix, random_number(), static_cast<uint32_t>(random_number()));
}

}  // namespace riptide::server
