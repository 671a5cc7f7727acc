// Memory that is there before it is touched.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <thread>
#include <vector>

namespace riptide {

/// Has the system provide what lies behind pages that nobody has touched: a first touch costs up to 17 us for each
/// 4 KiB where the machine is a virtual one. Contents stay, and others may use the memory meanwhile. Ends early,
/// between pieces of 256 KiB, when `stop` says so; does nothing where the system cannot (Linux before 5.14).
void make_resident(std::span<std::byte> memory, const std::function<bool()>& stop);

/// make_resident on a thread that yields to all others, which the destructor ends.
class ResidentBehind {
  public:
    explicit ResidentBehind(std::vector<std::span<std::byte>> memory);

  private:
    std::jthread thread_;
};

}  // namespace riptide
