#include "tensor/resident.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <vector>

#include "tensor/host_memory.h"

namespace riptide {
namespace {

constexpr int64_t kBytes = int64_t{8} << 20;

size_t resident_pages(const HostMemory& memory) {
    std::vector<unsigned char> pages(static_cast<size_t>(memory.bytes() / ::sysconf(_SC_PAGESIZE)));
    EXPECT_EQ(::mincore(memory.data(), static_cast<size_t>(memory.bytes()), pages.data()), 0);
    return static_cast<size_t>(std::count_if(pages.begin(), pages.end(), [](unsigned char page) { return page & 1; }));
}

size_t all_pages() { return static_cast<size_t>(kBytes / ::sysconf(_SC_PAGESIZE)); }

bool can_be_made_resident() {
    const HostMemory memory(kBytes, "a probe");
    make_resident({memory.data(), static_cast<size_t>(kBytes)}, [] { return false; });
    return resident_pages(memory) == all_pages();
}

TEST(resident, memory_is_there_untouched_and_as_it_was) {
    if (!can_be_made_resident()) GTEST_SKIP() << "MADV_POPULATE_WRITE needs Linux 5.14";
    const HostMemory memory(kBytes, "a test");
    memory.data()[kBytes - 1] = std::byte{7};
    EXPECT_LT(resident_pages(memory), all_pages());
    {
        const ResidentBehind behind({{memory.data() + 1, static_cast<size_t>(kBytes - 1)}});
        const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(100);
        while (resident_pages(memory) + 1 < all_pages() && std::chrono::steady_clock::now() < end)
            std::this_thread::yield();
    }
    EXPECT_GE(resident_pages(memory) + 1, all_pages());  // the first page is not whole
    EXPECT_EQ(memory.data()[kBytes - 1], std::byte{7});
    EXPECT_EQ(memory.data()[kBytes / 2], std::byte{0});
}

TEST(resident, it_ends_when_it_should) {
    const HostMemory memory(kBytes, "a test");
    make_resident({memory.data(), static_cast<size_t>(kBytes)}, [] { return true; });
    EXPECT_EQ(resident_pages(memory), 0U);
    { const ResidentBehind behind({std::span(memory.data(), static_cast<size_t>(kBytes))}); }
    { const ResidentBehind nothing(std::vector<std::span<std::byte>>(1)); }
}

}  // namespace
}  // namespace riptide
