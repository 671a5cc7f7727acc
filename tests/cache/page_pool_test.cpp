#include "cache/page_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace riptide {
namespace {

TEST(page_pool, hands_out_every_page_once_and_then_none) {
    PagePool pool(3);
    EXPECT_EQ(pool.acquire(), 0);
    EXPECT_EQ(pool.acquire(), 1);
    EXPECT_EQ(pool.acquire(), 2);
    EXPECT_EQ(pool.acquire(), -1);
    EXPECT_EQ(pool.free_count(), 0);
    pool.release(1);
    EXPECT_EQ(pool.refcount(1), 0);
    EXPECT_EQ(pool.acquire(), 1);
}

TEST(page_pool, a_page_lives_as_long_as_a_reference) {
    PagePool pool(1);
    const int32_t page = pool.acquire();
    pool.retain(page);
    EXPECT_EQ(pool.refcount(page), 2);
    pool.release(page);
    EXPECT_EQ(pool.free_count(), 0);
    pool.release(page);
    EXPECT_EQ(pool.free_count(), 1);
}

TEST(page_pool, an_empty_pool_has_nothing) {
    PagePool pool(0);
    EXPECT_EQ(pool.acquire(), -1);
}

TEST(page_pool, random_use_keeps_the_count) {
    std::mt19937 rng(1);
    PagePool pool(17);
    std::vector<int32_t> refs(17, 0);
    for (int i = 0; i < 20000; ++i) {
        const auto page = static_cast<int32_t>(rng() % 17);
        int32_t& count = refs[static_cast<size_t>(page)];
        if (rng() % 3 == 0) {
            const int32_t got = pool.acquire();
            if (got >= 0) {
                ASSERT_EQ(refs[static_cast<size_t>(got)]++, 0);
            } else {
                ASSERT_EQ(std::count(refs.begin(), refs.end(), 0), 0);
            }
        } else if (count > 0 && rng() % 2 == 0) {
            pool.retain(page);
            ++count;
        } else if (count > 0) {
            pool.release(page);
            --count;
        }
        ASSERT_EQ(pool.free_count(), std::count(refs.begin(), refs.end(), 0));
        ASSERT_EQ(pool.refcount(page), refs[static_cast<size_t>(page)]);
    }
}

TEST(page_pool_death, misuse_aborts) {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    PagePool pool(2);
    const int32_t page = pool.acquire();
    EXPECT_DEATH(pool.retain(1), "assertion failed");
    EXPECT_DEATH(pool.release(1), "assertion failed");
    EXPECT_DEATH(pool.release(-1), "assertion failed");
    EXPECT_DEATH(pool.refcount(2), "assertion failed");
    pool.release(page);
    EXPECT_DEATH(pool.release(page), "assertion failed");
}

}  // namespace
}  // namespace riptide
