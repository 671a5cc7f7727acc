#include "tensor/resident.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <thread>
#include <utility>

namespace riptide {

namespace {

/// Others who map or unmap memory wait for a piece, and then get the lock only if nobody takes it again at once.
constexpr uintptr_t kAtOnce = uintptr_t{256} << 10;
constexpr std::chrono::microseconds kRest{50};
constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE, which older headers lack

}  // namespace

void make_resident(std::span<std::byte> memory, const std::function<bool()>& stop) {
    const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
    const auto end = reinterpret_cast<uintptr_t>(memory.data() + memory.size()) & ~(page - 1);
    auto at = (reinterpret_cast<uintptr_t>(memory.data()) + page - 1) & ~(page - 1);
    while (at < end && !stop()) {
        const uintptr_t next = std::min<uintptr_t>(end, (at + kAtOnce) & ~(kAtOnce - 1));
        if (madvise(reinterpret_cast<void*>(at), next - at, kPopulateWrite) != 0) return;
        at = next;
        std::this_thread::sleep_for(kRest);
    }
}

ResidentBehind::ResidentBehind(std::vector<std::span<std::byte>> memory)
    : thread_([memory = std::move(memory)](const std::stop_token& stop) {
          ::setpriority(PRIO_PROCESS, 0, 19);  // of this thread
          for (const std::span<std::byte> one : memory) make_resident(one, [&] { return stop.stop_requested(); });
      }) {}

}  // namespace riptide
