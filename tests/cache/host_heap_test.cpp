#include "cache/host_heap.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "tests/test_device.h"

namespace riptide {
namespace {

TEST(host_heap, blocks_never_overlap_and_freed_memory_is_joined_and_used_again) {
    constexpr unsigned kSeed = 77;
    printf("seed %u\n", kSeed);
    std::mt19937 rng(kSeed);
    const std::shared_ptr<HostHeap> heap = HostHeap::make(test_gpu());
    std::vector<std::pair<HostBytes, int>> held;
    const auto intact = [](const std::pair<HostBytes, int>& one) {
        return std::all_of(one.first->span().begin(), one.first->span().end(),
                           [&](std::byte b) { return b == static_cast<std::byte>(one.second); });
    };
    for (int i = 0; i < 20000; ++i) {
        if (rng() % 2 == 0 || held.empty()) {
            HostBytes block = heap->take(rng() % 8 == 0 ? rng() % 20000 : rng() % 500);
            ASSERT_NE(block, nullptr);
            std::memset(block->data, i & 255, static_cast<size_t>(block->bytes));
            held.emplace_back(std::move(block), i & 255);
        } else {
            const size_t one = rng() % held.size();
            EXPECT_TRUE(intact(held[one]));
            std::swap(held[one], held.back());
            held.pop_back();
        }
    }
    EXPECT_TRUE(std::all_of(held.begin(), held.end(), intact));
    EXPECT_EQ(heap->reserved(), HostHeap::kRegionBytes);
    heap->reserve(HostHeap::kRegionBytes);  // is there already
    held.clear();
    EXPECT_EQ(heap->used(), 0);
    EXPECT_NE(heap->take(HostHeap::kRegionBytes), nullptr);  // all of it is one range again
    EXPECT_EQ(heap->reserved(), HostHeap::kRegionBytes);
}

TEST(host_heap, a_block_larger_than_a_region_gets_one_of_its_own_and_outlives_the_owner_of_the_heap) {
    std::shared_ptr<HostHeap> heap = HostHeap::make(test_gpu());
    const HostBytes small = heap->take(1), large = heap->take(HostHeap::kRegionBytes + 1);
    EXPECT_GT(heap->reserved(), 2 * HostHeap::kRegionBytes);
    heap.reset();
    std::memset(large->data, 1, 4096);
    std::memset(small->data, 2, 1);
    EXPECT_EQ(large->data[4095], std::byte{1});
}

}  // namespace
}  // namespace riptide
