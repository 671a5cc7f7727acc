#include "tests/cache/disk_world.h"

#include <sys/stat.h>
#include <sys/wait.h>

#include <atomic>
#include <csignal>

#include "tests/test_device.h"

namespace riptide {
namespace {

TEST(disk_store, keeps_records_over_restarts) {
    const StoreFolder folder;
    for (uint32_t round = 0; round < 3; ++round) {
        DiskStore store(folder.path, 1 << 20);
        EXPECT_EQ(store.problem(), "");
        EXPECT_EQ(store.count(), 20 * round);
        for (uint32_t i = 0; i < 20 * round; ++i) EXPECT_TRUE(held(store, i));
        for (uint32_t i = 20 * round; i < 20 * round + 20; ++i) EXPECT_TRUE(store.put(record(i)));
        EXPECT_FALSE(held(store, 1000));
    }
    DiskStore store(folder.path, 1 << 20);
    int64_t bytes = 0;
    for (const fs::path& file : folder.files()) bytes += static_cast<int64_t>(fs::file_size(file));
    EXPECT_EQ(store.bytes(), bytes);
    EXPECT_EQ(store.keys(record(3).id.group, "record").size(), 9u);    // 3, 10, ..., 59
    EXPECT_EQ(store.keys(record(3).id.group, "record 3").size(), 3u);  // 3, 31, 38
    store.erase(record(3).id);
    EXPECT_FALSE(store.has(record(3).id));
    EXPECT_EQ(store.count(), 59);
    struct stat status = {};
    ASSERT_EQ(::stat(folder.files()[0].c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, 0600u);
}

TEST(disk_store, stays_in_its_budget_and_drops_what_was_unused_longest) {
    const StoreFolder folder;
    DiskStore store(folder.path, 40000);
    for (uint32_t i = 0; i < 200; ++i) {
        EXPECT_TRUE(store.put(record(i)));
        EXPECT_LE(store.bytes(), 40000);
        EXPECT_TRUE(held(store, 0)) << i;  // used each time
    }
    EXPECT_FALSE(held(store, 1));
    EXPECT_GT(store.stats().evicted, 100);
    EXPECT_FALSE(store.put(record(7777, 0, 40000)));
    EXPECT_GT(store.count(), 10);
}

TEST(disk_store, a_lower_rank_never_drives_out_a_higher_one) {
    const StoreFolder folder;
    DiskStore store(folder.path, 20000);
    uint32_t main = 0;
    while (store.stats().evicted == 0) store.put(record(main++, 1));
    const int64_t count = store.count();
    for (uint32_t i = 1000; i < 1100; ++i) store.put(record(i, 0));
    int64_t still = 0;
    for (uint32_t i = 0; i < main; ++i) still += held(store, i);
    EXPECT_EQ(still, count);
}

TEST(disk_store, a_smaller_budget_at_the_next_start_is_kept) {
    const StoreFolder folder;
    {
        DiskStore store(folder.path, 1 << 20);
        for (uint32_t i = 0; i < 50; ++i) store.put(record(i));
    }
    DiskStore store(folder.path, 20000);
    EXPECT_LE(store.bytes(), 20000);
    EXPECT_GT(store.count(), 3);
    EXPECT_EQ(static_cast<int64_t>(folder.files().size()), store.count());
}

TEST(disk_store, a_file_cut_anywhere_is_removed_and_a_miss) {
    const StoreFolder folder;
    const Record small = record(5, 0, 100);
    {
        DiskStore store(folder.path, 1 << 20);
        ASSERT_TRUE(store.put(small));
    }
    const fs::path file = folder.files().at(0);
    const std::string whole = slurp(file);
    for (size_t size = 0; size <= whole.size(); ++size) {
        // A kill before the rename leaves a cut temporary file; a power cut after it a cut or zeroed one.
        spit(fs::path(folder.path) / "writing-3", whole.substr(0, size));
        spit(file, size % 2 != 0 ? whole.substr(0, size) : whole.substr(0, size) + std::string(whole.size() - size, 0));
        DiskStore store(folder.path, 1 << 20);
        EXPECT_EQ(store.problem(), "");
        EXPECT_FALSE(fs::exists(fs::path(folder.path) / "writing-3"));
        const bool intact = slurp(file) == whole;
        const bool found = held(store, small);
        EXPECT_EQ(found, intact) << size;
        EXPECT_EQ(folder.files().empty(), !found) << size;
    }
    DiskStore store(folder.path, 1 << 20);
    EXPECT_TRUE(held(store, small));  // the last one was whole
}

TEST(disk_store, a_file_cut_while_open_is_a_miss_and_can_be_written_again) {
    const StoreFolder folder;
    DiskStore store(folder.path, 1 << 20);
    ASSERT_TRUE(store.put(record(1)));
    fs::resize_file(folder.files().at(0), 90);
    EXPECT_FALSE(held(store, 1));
    EXPECT_NE(store.problem(), "");
    EXPECT_EQ(store.stats().damaged, 1);
    EXPECT_EQ(store.bytes(), 0);
    ASSERT_TRUE(store.put(record(1)));
    fs::remove(folder.files().at(0));
    EXPECT_FALSE(held(store, 1));
    EXPECT_TRUE(store.put(record(1)));
    EXPECT_TRUE(held(store, 1));
}

TEST(disk_store, what_is_written_later_is_held_at_once_and_there_after_a_restart) {
    constexpr unsigned kSeed = 99;
    printf("seed %u\n", kSeed);
    std::mt19937 rng(kSeed);
    const StoreFolder folder;
    for (int round = 0; round < 20; ++round) {
        DiskStore store(folder.path, 30000);  // evicts what is being written
        EXPECT_EQ(store.problem(), "");
        EXPECT_EQ(store.stats().damaged, 0);
        for (int step = 0; step < 200; ++step) {
            const auto i = static_cast<uint32_t>(rng() % 60);
            const auto what = rng() % 8;
            if (what < 4) {
                store.put_later(record(i));
                EXPECT_TRUE(store.has(record(i).id));
                EXPECT_TRUE(what != 0 || held(store, i));
            } else if (what == 4) {
                store.erase(record(i).id);
                EXPECT_FALSE(held(store, i));
            } else if (what == 5) {
                EXPECT_TRUE(store.put(record(i)));
            } else {
                EXPECT_EQ(store.has(record(i).id), held(store, i));
            }
            EXPECT_LE(store.bytes(), 30000);
        }
        EXPECT_EQ(store.stats().damaged, 0);
        if (round % 2 == 0) {
            store.flush();
            EXPECT_EQ(std::ssize(folder.files()), store.count());
        }
    }
    DiskStore store(folder.path, 30000);
    EXPECT_GT(store.count(), 10);
    for (uint32_t i = 0; i < 60; ++i) EXPECT_EQ(store.has(record(i).id), held(store, i));
}

TEST(disk_store, a_write_that_fails_later_leaves_a_miss) {
    const StoreFolder folder;
    DiskStore store(folder.path + "/cache", 1 << 20);
    fs::remove_all(folder.path + "/cache");
    store.put_later(record(1));
    store.flush();
    EXPECT_FALSE(store.has(record(1).id));
    EXPECT_EQ(store.stats().failed_writes, 1);
    EXPECT_EQ(store.bytes(), 0);
    EXPECT_NE(store.problem(), "");
}

TEST(disk_store, flipped_bits_never_give_wrong_bytes_nor_stop_a_start) {
    constexpr unsigned kSeed = 20261121;
    RecordProperty("seed", static_cast<int>(kSeed));
    printf("seed %u\n", kSeed);
    std::mt19937 rng(kSeed);
    const StoreFolder folder;
    auto store = std::make_unique<DiskStore>(folder.path, 1 << 20);
    for (uint32_t i = 0; i < 6; ++i) ASSERT_TRUE(store->put(record(i)));
    const int flips = full_counts() ? 10000 : 2000;
    int64_t missed = 0;
    for (int flip = 0; flip < flips; ++flip) {
        const std::vector<fs::path> files = folder.files();
        const fs::path& file = files[rng() % files.size()];
        const std::string bytes = slurp(file);
        uint32_t hit = 0;
        while (bytes.find(record(hit).id.key) == std::string::npos) ++hit;
        const bool head = flip % 3 == 0;  // the payload is most of a file: aim at the header often enough
        const size_t at = rng() % (head ? std::min<size_t>(bytes.size(), 96) : bytes.size());
        {  // in place: rewriting a whole file makes some file systems wait for the disk
            std::fstream out(file, std::ios::binary | std::ios::in | std::ios::out);
            out.seekp(static_cast<std::streamoff>(at));
            out.put(static_cast<char>(bytes[at] ^ (1 << rng() % 8)));
        }
        if (flip % 4 == 0) {
            store.reset();
            store = std::make_unique<DiskStore>(folder.path, 1 << 20);
            EXPECT_EQ(store->problem(), "");
        }
        // The one hit is a miss, any other is there.
        int lost = 0;
        for (uint32_t i = 0; i < 6; ++i) {
            if (i != hit && i != static_cast<uint32_t>(flip) % 6) continue;
            if (held(*store, i)) continue;
            ++lost;
            EXPECT_TRUE(store->put(record(i)));
        }
        EXPECT_EQ(lost, 1) << "flip " << flip << " byte " << at;
        missed += lost;
    }
    EXPECT_EQ(missed, flips);
    printf("%d flips, %lld misses\n", flips, static_cast<long long>(missed));
}

TEST(disk_store, foreign_and_misnamed_files_are_never_served) {
    const StoreFolder folder;
    {
        DiskStore store(folder.path, 1 << 20);
        store.put(record(1));
        store.put(record(2));
    }
    const auto files = folder.files();
    const std::string first = slurp(files[0]);
    spit(files[1], first);  // one record's bytes under the other's name
    spit(fs::path(folder.path) / "notes.txt", "mine");
    fs::create_directory(fs::path(folder.path) / (std::string(64, 'a') + ".record"));
    fs::create_symlink(files[0], fs::path(folder.path) / (std::string(64, 'b') + ".record"));
    DiskStore store(folder.path, 1 << 20);
    EXPECT_EQ(store.count(), 1);
    EXPECT_EQ(held(store, 1) + held(store, 2), 1);
    EXPECT_EQ(slurp(fs::path(folder.path) / "notes.txt"), "mine");
    EXPECT_EQ(folder.files().size(), 2u);
    EXPECT_EQ(slurp(files[0]), first);
}

TEST(disk_store, a_folder_that_cannot_be_used_gives_an_empty_store) {
    const StoreFolder folder;
    spit(fs::path(folder.path) / "file", "x");
    DiskStore nowhere(folder.path + "/file/cache", 1 << 20);
    EXPECT_NE(nowhere.problem().find("/file/cache"), std::string::npos);
    EXPECT_EQ(nowhere.refusal(), ENOTDIR);
    EXPECT_FALSE(nowhere.put(record(1)));
    EXPECT_FALSE(held(nowhere, 1));

    DiskStore first(folder.path + "/deep/cache", 1 << 20), second(folder.path + "/deep/cache", 1 << 20);
    EXPECT_EQ(first.problem(), "");
    EXPECT_EQ(first.refusal(), 0);
    EXPECT_TRUE(first.put(record(1)));
    EXPECT_NE(second.problem().find("another process"), std::string::npos);
    EXPECT_EQ(second.refusal(), EWOULDBLOCK);
    EXPECT_FALSE(second.put(record(2)));
    EXPECT_FALSE(held(second, 1));
}

TEST(disk_store, a_folder_lost_under_way_costs_writes_and_nothing_else) {
    const StoreFolder folder;
    DiskStore store(folder.path + "/cache", 1 << 20);
    store.put(record(1));
    std::string heard;
    store.on_failed_write([&](const std::string& problem) { heard = problem; });
    fs::remove_all(folder.path + "/cache");
    EXPECT_FALSE(store.put(record(2)));
    EXPECT_NE(heard.find("cannot be written"), std::string::npos) << heard;
    EXPECT_EQ(store.stats().failed_writes, 1);
    EXPECT_FALSE(held(store, 1));
    EXPECT_EQ(store.count(), 0);
}

/// Opens the store and works on it until killed; a byte into `progress` after each operation.
[[noreturn]] void work_until_killed(const std::string& folder, unsigned seed, int progress) {
    std::mt19937 rng(seed);
    DiskStore store(folder, 20000);  // evicts all the time
    for (;;) {
        const auto i = static_cast<uint32_t>(rng() % 30);
        if (rng() % 4 == 0) {
            held(store, i);
            if (::testing::Test::HasFailure()) ::_exit(1);
        } else if (rng() % 2 == 0) {
            store.put(record(i));
        } else {
            store.put_later(record(i));
        }
        if (::write(progress, "", 1) != 1) ::_exit(2);
    }
}

TEST(disk_store, kills_at_random_instants_leave_only_whole_records) {
    RT_CPU_ONLY("a forked process cannot use the GPU");
    constexpr unsigned kSeed = 4711;
    printf("seed %u\n", kSeed);
    std::mt19937 rng(kSeed);
    const StoreFolder folder;
    const unsigned kills = full_counts() ? 1000 : 200;
    int64_t found = 0;
    for (unsigned kill = 0; kill < kills; ++kill) {
        int pipe[2];
        ASSERT_EQ(::pipe(pipe), 0);
        const pid_t child = ::fork();
        ASSERT_GE(child, 0);
        if (child == 0) {
            ::close(pipe[0]);
            work_until_killed(folder.path, kSeed + kill, pipe[1]);
        }
        ::close(pipe[1]);
        char byte = 0;
        for (auto steps = rng() % 40; steps > 0 && ::read(pipe[0], &byte, 1) == 1; --steps) {
        }
        std::atomic<unsigned> spin{1 + static_cast<unsigned>(rng() % 50000)};
        while (spin.fetch_sub(1) > 1) {
        }
        ::kill(child, SIGKILL);
        int status = 0;
        ASSERT_EQ(::waitpid(child, &status, 0), child);
        EXPECT_TRUE(WIFSIGNALED(status)) << "the child ended by itself with " << WEXITSTATUS(status);
        ::close(pipe[0]);
        DiskStore store(folder.path, 20000);
        EXPECT_EQ(store.problem(), "") << kill;
        EXPECT_EQ(store.stats().damaged, 0) << kill;
        EXPECT_EQ(static_cast<int64_t>(folder.files().size()), store.count()) << kill;
        for (uint32_t i = 0; i < 30; ++i) found += held(store, i);
    }
    EXPECT_GT(found, 4 * static_cast<int64_t>(kills));
    printf("%u kills, %lld whole records found\n", kills, static_cast<long long>(found));
}

TEST(host_store, gives_out_what_falls_out_and_keeps_to_budget_and_rank) {
    HostStore store(20000);
    const auto bytes_of = [](const Record& r) { return r.payload_bytes() + std::ssize(r.id.key); };
    int64_t held_bytes = 0, out_bytes = 0;
    for (uint32_t i = 0; i < 100; ++i) {
        const Record r = record(i, i < 50 ? 1 : 2);
        held_bytes += bytes_of(r);
        for (const Record& out : store.put(r)) {
            out_bytes += bytes_of(out);
            EXPECT_FALSE(store.has(out.id));
            EXPECT_EQ(payload_of(out), payload_of(record(static_cast<uint32_t>(out.tag))));
        }
        EXPECT_LE(store.bytes(), 20000);
        const std::optional<Record> got = store.get(r.id);
        ASSERT_TRUE(got.has_value());
        EXPECT_EQ(payload_of(*got), payload_of(r));
        EXPECT_EQ(got->tag, r.tag);
    }
    EXPECT_EQ(held_bytes - out_bytes, store.bytes());
    const int64_t count = store.count();
    const Record low = record(500, 1, 5000);
    const std::vector<Record> out = store.put(low);
    EXPECT_EQ(out.back().id.key, low.id.key);
    EXPECT_EQ(store.count() + static_cast<int64_t>(out.size()), count + 1);
    EXPECT_EQ(std::ssize(store.all()), store.count());
}

TEST(host_store, a_record_in_use_stays_readable_when_it_has_to_go) {
    HostStore store(1000);
    store.put(record(1, 0, 800));
    const std::optional<Record> used = store.get(record(1).id);
    EXPECT_EQ(store.put(record(2, 0, 900)).size(), 1u);
    EXPECT_FALSE(store.has(record(1).id));
    EXPECT_EQ(payload_of(*used), payload_of(record(1, 0, 800)));
}

}  // namespace
}  // namespace riptide
