#include "cache/host_heap.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <random>
#include <thread>

#include "tensor/resident.h"
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

TEST(host_heap, regions_made_behind_are_used_before_new_ones_and_each_once) {
    constexpr int64_t kRegions = 3;
    const std::shared_ptr<HostHeap> heap = HostHeap::make(test_gpu());
    heap->keep_ready((kRegions - 1) * HostHeap::kRegionBytes + 1, (kRegions - 1) * HostHeap::kRegionBytes + 1);
    std::vector<HostBytes> blocks;
    for (int64_t i = 0; i < kRegions + 2; ++i) {  // the last two are made when they are wanted
        blocks.push_back(heap->take(HostHeap::kRegionBytes));
        ASSERT_NE(blocks.back(), nullptr);
        std::memset(blocks.back()->data, static_cast<int>(i), 4096);
        EXPECT_EQ(heap->reserved(), (i + 1) * HostHeap::kRegionBytes);
    }
    for (int64_t i = 0; i < kRegions + 2; ++i)
        EXPECT_EQ(blocks[static_cast<size_t>(i)]->data[4095], static_cast<std::byte>(i));
    blocks.clear();
    EXPECT_EQ(heap->used(), 0);
    EXPECT_EQ(heap->reserved(), (kRegions + 2) * HostHeap::kRegionBytes);
}

TEST(host_heap, what_is_taken_of_the_regions_that_are_ready_is_made_up_for_until_all_have_been_made) {
    const std::shared_ptr<HostHeap> heap = HostHeap::make(test_gpu());
    heap->keep_ready(2 * HostHeap::kRegionBytes, 4 * HostHeap::kRegionBytes);
    std::vector<HostBytes> blocks;
    for (const int64_t ready : {2, 2, 2, 1, 0, 0}) {
        const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(100);
        while (heap->ready() != ready * HostHeap::kRegionBytes && std::chrono::steady_clock::now() < end)
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        ASSERT_EQ(heap->ready(), ready * HostHeap::kRegionBytes) << blocks.size() << " taken";
        blocks.push_back(heap->take(HostHeap::kRegionBytes));
        ASSERT_NE(blocks.back(), nullptr);
    }
}

size_t resident_pages(const HostBytes& block) {
    std::vector<unsigned char> pages(static_cast<size_t>(block->bytes / ::sysconf(_SC_PAGESIZE)));
    EXPECT_EQ(::mincore(block->data, static_cast<size_t>(block->bytes), pages.data()), 0);
    return static_cast<size_t>(std::count_if(pages.begin(), pages.end(), [](unsigned char page) { return page & 1; }));
}

TEST(host_heap, regions_made_behind_are_resident_on_the_cpu) {
    if (test_gpu() != nullptr) GTEST_SKIP() << "a GPU's are pinned";
    const auto fresh = HostHeap::make(nullptr), ahead = HostHeap::make(nullptr);
    ahead->keep_ready(HostHeap::kRegionBytes, HostHeap::kRegionBytes);
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(100);
    while (ahead->ready() == 0 && std::chrono::steady_clock::now() < end)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const HostBytes touched = ahead->take(HostHeap::kRegionBytes), untouched = fresh->take(HostHeap::kRegionBytes);
    EXPECT_EQ(resident_pages(untouched), 0U);
    make_resident(untouched->span(), [] { return false; });
    EXPECT_EQ(resident_pages(touched), resident_pages(untouched));  // all, if the system can
}

TEST(host_heap, a_heap_may_end_while_regions_are_being_made) {
    for (int i = 0; i < 20; ++i) {
        const std::shared_ptr<HostHeap> heap = HostHeap::make(test_gpu());
        heap->keep_ready(2 * HostHeap::kRegionBytes, (2 + i % 3) * HostHeap::kRegionBytes);
        if (i % 2 == 0) {
            EXPECT_NE(heap->take(1), nullptr);
        }
    }
}

}  // namespace
}  // namespace riptide
