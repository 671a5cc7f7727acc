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

TEST(page_pool, what_the_cache_alone_holds_is_not_used) {
    PagePool pool(3);
    const int32_t shared = pool.acquire(), own = pool.acquire();
    pool.keep(shared);
    pool.keep(shared);
    EXPECT_EQ(pool.used_count(), 2);
    EXPECT_EQ(pool.kept_count(), 1) << "each page once";
    pool.release(shared);
    EXPECT_EQ(pool.used_count(), 1);
    EXPECT_EQ(pool.spare_count(), 1);
    pool.retain(shared);
    EXPECT_EQ(pool.used_count(), 2);
    EXPECT_EQ(pool.spare_count(), 0);
    pool.drop(shared);
    pool.drop(shared);
    EXPECT_EQ(pool.kept_count(), 0);
    pool.release(shared);
    pool.release(own);
    EXPECT_EQ(pool.used_count(), 0);
    EXPECT_EQ(pool.free_count(), 3);
}

TEST(page_pool, random_use_keeps_the_counts) {
    std::mt19937 rng(1);
    PagePool pool(17);
    std::vector<int32_t> users(17, 0), kept(17, 0);
    const auto any = [](const std::vector<int32_t>& counts) {
        return 17 - std::count(counts.begin(), counts.end(), 0);
    };
    for (int i = 0; i < 20000; ++i) {
        const auto page = static_cast<int32_t>(rng() % 17);
        int32_t &user = users[static_cast<size_t>(page)], &cached = kept[static_cast<size_t>(page)];
        const bool held = user + cached > 0;
        switch (rng() % 5) {
            case 0:
                if (const int32_t got = pool.acquire(); got >= 0) {
                    ASSERT_EQ(users[static_cast<size_t>(got)]++, 0);
                    ASSERT_EQ(kept[static_cast<size_t>(got)], 0);
                } else {
                    ASSERT_EQ(pool.free_count(), 0);
                }
                break;
            case 1:
                if (held) pool.retain(page), ++user;
                break;
            case 2:
                if (user > 0) pool.release(page), --user;
                break;
            case 3:
                if (held) pool.keep(page), ++cached;
                break;
            default:
                if (cached > 0) pool.drop(page), --cached;
        }
        ASSERT_EQ(pool.used_count(), any(users));
        ASSERT_EQ(pool.kept_count(), any(kept));
        ASSERT_EQ(pool.refcount(page), user + cached);
        ASSERT_EQ(pool.kept(page), cached);
        int32_t free = 0;
        for (size_t p = 0; p < 17; ++p) free += users[p] + kept[p] == 0;
        ASSERT_EQ(pool.free_count(), free);
        ASSERT_EQ(pool.spare_count(), 17 - free - any(users));
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
    EXPECT_DEATH(pool.keep(1), "assertion failed");
    EXPECT_DEATH(pool.drop(page), "assertion failed");
    pool.release(page);
    EXPECT_DEATH(pool.release(page), "assertion failed");
}

}  // namespace
}  // namespace riptide
