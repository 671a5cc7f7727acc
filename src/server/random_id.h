// Random numbers, and ids made of them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace riptide::server {

/// Each thread has its own source, seeded by the system. Thread-safe.
uint64_t random_number();

/// `prefix` and 24 random hexadecimal digits.
std::string random_id(std::string_view prefix);

}  // namespace riptide::server
