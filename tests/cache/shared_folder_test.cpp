#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <csignal>
#include <functional>
#include <iterator>

#include "base/error.h"
#include "cache/shared/place.h"
#include "cache/shared/seal.h"
#include "tests/cache/disk_world.h"
#include "tests/sanitizers.h"
#include "tests/test_device.h"

namespace riptide {
namespace {

using Status = SharedPlace::Status;
using Bytes = std::vector<std::byte>;

std::string name_of_piece(int i) { return std::string(1, "0123456789abcdef"[i % 16]) + fmt::format("{:063x}", i); }

fs::path file_of(const std::string& folder, const std::string& name) {
    return fs::path(folder) / name.substr(0, 2) / (name + ".rec");
}

Bytes piece(int i, size_t bytes = 1000) { return Bytes(bytes, static_cast<std::byte>(i)); }

bool puts(SharedPlace& place, int i, size_t bytes = 1000) {
    return place.put(name_of_piece(i), piece(i, bytes)) == Status::done;
}

Status gets(SharedPlace& place, int i, size_t bytes = 1000) {
    Bytes got(bytes);
    const Status status = place.get(name_of_piece(i), got);
    EXPECT_TRUE(status != Status::done || got == piece(i, bytes)) << i;
    return status;
}

void set_age(const fs::path& file, int64_t seconds) {
    const timespec then{.tv_sec = ::time(nullptr) - seconds, .tv_nsec = 0}, times[2] = {then, then};
    ASSERT_EQ(::utimensat(AT_FDCWD, file.c_str(), times, 0), 0);
}

int64_t age_of(const fs::path& file) {
    struct stat status = {};
    EXPECT_EQ(::stat(file.c_str(), &status), 0);
    return ::time(nullptr) - status.st_mtime;
}

/// Runs `work` in a process of its own; its exit status.
int in_child(const std::function<int()>& work) {
    const pid_t child = ::fork();
    if (child == 0) ::_exit(work());
    int status = 0;
    ::waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(shared_folder, a_piece_is_one_private_file_that_all_find_by_its_name) {
    const StoreFolder folder;
    const auto one = open_shared_place("dir:" + folder.path + "/kv/", 0),
               two = open_shared_place(folder.path + "/kv", 0);
    EXPECT_EQ(gets(*one, 1), Status::missing);
    EXPECT_TRUE(puts(*one, 1));
    EXPECT_TRUE(puts(*one, 1));
    const fs::path file = file_of(folder.path + "/kv", name_of_piece(1));
    struct stat status = {};
    ASSERT_EQ(::stat(file.c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, 0600u);
    for (const fs::path& above : {file.parent_path(), fs::path(folder.path + "/kv")}) {
        ASSERT_EQ(::stat(above.c_str(), &status), 0);
        EXPECT_EQ(status.st_mode & 0777, 0700u);
    }
    EXPECT_EQ(gets(*two, 1), Status::done);
    EXPECT_EQ(gets(*two, 1, 999), Status::missing);
    EXPECT_EQ(gets(*two, 1, 1001), Status::missing);
    const std::string names[] = {name_of_piece(0), name_of_piece(1)};
    EXPECT_EQ(two->sizes(names), (std::vector<int64_t>{-1, 1000}));
    two->erase(names[1]);
    EXPECT_EQ(gets(*one, 1), Status::missing);
    EXPECT_EQ(std::distance(fs::directory_iterator(file.parent_path()), {}), 0);  // and nothing else lies there
}

TEST(shared_folder, what_is_not_a_file_is_missing_and_links_are_not_followed) {
    const StoreFolder folder;
    const auto place = open_shared_place(folder.path, 0);
    for (int i = 0; i < 4; ++i) ASSERT_TRUE(puts(*place, i));
    const auto file = [&](int i) { return file_of(folder.path, name_of_piece(i)); };
    fs::rename(file(0), folder.path + "/elsewhere");
    fs::create_symlink(folder.path + "/elsewhere", file(0));
    fs::remove(file(1));
    fs::create_directory(file(1));
    spit(file(2), "");
    fs::remove(file(3));
    ASSERT_EQ(::mkfifo(file(3).c_str(), 0600), 0);
    for (int i = 0; i < 4; ++i) EXPECT_EQ(gets(*place, i), Status::missing) << i;
    const std::string names[] = {name_of_piece(0), name_of_piece(1), name_of_piece(2), name_of_piece(3)};
    EXPECT_EQ(place->sizes(names), (std::vector<int64_t>{-1, -1, 0, -1}));
    EXPECT_FALSE(puts(*place, 1));
    for (const int i : {0, 2, 3}) EXPECT_TRUE(puts(*place, i) && gets(*place, i) == Status::done) << i;
    EXPECT_EQ(fs::file_size(folder.path + "/elsewhere"), 1000u);  // the link was replaced, not its target
}

TEST(shared_folder, keeps_its_budget_by_what_was_unused_longest) {
    const StoreFolder folder;
    {
        const auto place = open_shared_place(folder.path, 0);
        for (int i = 0; i < 40; ++i) {
            ASSERT_TRUE(puts(*place, i));
            set_age(file_of(folder.path, name_of_piece(i)), 10000 - 100 * i);
        }
        EXPECT_EQ(gets(*place, 3), Status::done);  // used now
        EXPECT_LT(age_of(file_of(folder.path, name_of_piece(3))), 100);
        EXPECT_EQ(gets(*place, 39), Status::done);  // 6,100 s ago
        set_age(file_of(folder.path, name_of_piece(38)), 3000);
        EXPECT_EQ(gets(*place, 38), Status::done);
        EXPECT_GE(age_of(file_of(folder.path, name_of_piece(38))), 3000);  // not twice an hour
    }
    const fs::path shelf = file_of(folder.path, name_of_piece(1)).parent_path();
    spit(shelf / ".other-7-1.tmp", "left");
    spit(shelf / ".other-7-2.tmp", "being written");
    spit(shelf / "notes.txt", "mine");
    set_age(shelf / ".other-7-1.tmp", 4000);
    set_age(shelf / "notes.txt", 400000);
    const auto held = [&] {
        int64_t count = 0;
        for (const auto& one : fs::recursive_directory_iterator(folder.path)) count += one.path().extension() == ".rec";
        return count;
    };
    spit(folder.path + "/.evicting", "");  // another process is at it
    ASSERT_TRUE(puts(*open_shared_place(folder.path, 32000), 40));
    EXPECT_EQ(held(), 41);
    set_age(folder.path + "/.evicting", 100);  // and has died
    const auto place = open_shared_place(folder.path, 32000);
    ASSERT_TRUE(puts(*place, 41));
    EXPECT_EQ(held(), 30);  // 15/16
    EXPECT_FALSE(fs::exists(folder.path + "/.evicting"));
    for (int i = 0; i < 13; ++i) EXPECT_EQ(gets(*place, i), i == 3 ? Status::done : Status::missing) << i;
    for (int i = 13; i < 42; ++i) EXPECT_EQ(gets(*place, i), Status::done) << i;
    EXPECT_FALSE(fs::exists(shelf / ".other-7-1.tmp"));
    EXPECT_TRUE(fs::exists(shelf / ".other-7-2.tmp") && fs::exists(shelf / "notes.txt"));
    for (int i = 42; i < 50; ++i) ASSERT_TRUE(puts(*place, i));
    EXPECT_EQ(held(), 38);  // the next pass is due in ten seconds
}

TEST(shared_folder, a_folder_lost_under_way_fails_and_comes_back) {
    const StoreFolder folder;
    const auto place = open_shared_place(folder.path + "/kv", 1000);
    const std::string name = name_of_piece(1);
    ASSERT_TRUE(puts(*place, 1));
    fs::remove_all(folder.path + "/kv");
    const auto nothing = [&](Status expected) {
        EXPECT_FALSE(puts(*place, 1));
        EXPECT_EQ(gets(*place, 1), expected);
        EXPECT_TRUE(place->sizes({&name, 1}).empty());
        place->erase(name);
    };
    nothing(Status::missing);
    spit(folder.path + "/kv", "a file");
    nothing(Status::failed);
    fs::remove(folder.path + "/kv");
    fs::create_directory(folder.path + "/kv");
    EXPECT_TRUE(puts(*place, 1));
    EXPECT_EQ(gets(*place, 1), Status::done);
    RT_CPU_ONLY("a forked process cannot use the GPU");
    EXPECT_EQ(
        in_child([&] {
            fs::permissions(folder.path + "/kv", fs::perms::none);
            if (::getuid() == 0 && ::setuid(65534) != 0) return 9;
            return !puts(*place, 2) && gets(*place, 1) == Status::failed && place->sizes({&name, 1}).empty() ? 0 : 1;
        }),
        0);
    fs::permissions(folder.path + "/kv", fs::perms::owner_all);
}

TEST(shared_folder, an_address_that_cannot_be_used_is_an_error) {
    const StoreFolder folder;
    spit(folder.path + "/file", "x");
    const auto kind = [](const std::string& address) {
        try {
            open_shared_place(address, 0);
        } catch (const Error& error) {
            return error.kind();
        }
        return ErrorKind{};
    };
    for (const char* address : {"", "dir:", "rediss://host:6379", "s3:bucket/a", "http://a/b"})
        EXPECT_EQ(kind(address), ErrorKind::usage) << address;
    EXPECT_EQ(kind(folder.path + "/missing/kv"), ErrorKind::no_input);
    EXPECT_EQ(kind("dir:" + folder.path + "/file"), ErrorKind::io);
    EXPECT_EQ(kind(folder.path + "/a:b"), ErrorKind{});
}

/// With file systems of its own, which nobody else sees. 77: this machine does not let it.
int with_small_disk(const std::string& folder, const std::function<int()>& work) {
    if (::getuid() != 0 || ::unshare(CLONE_NEWNS) != 0) return 77;
    if (::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return 77;
    if (::mount("tmpfs", folder.c_str(), "tmpfs", 0, "size=1m,mode=700") != 0) return 77;
    return work();
}

TEST(shared_folder, a_full_disk_makes_room_and_a_read_only_one_is_read) {
    RT_CPU_ONLY("a forked process cannot use the GPU");
    const StoreFolder folder;
    const int result = in_child([&] {
        return with_small_disk(folder.path, [&] {
            {
                const auto place = open_shared_place(folder.path, 0);
                int i = 0;
                while (i < 100 && puts(*place, i, 50000)) ++i;
                if (i < 10 || i > 25) return 1;
                for (int j = 0; j < i; ++j)
                    if (gets(*place, j, 50000) != Status::done) return 2;
                for (const auto& one : fs::recursive_directory_iterator(folder.path))
                    if (one.path().extension() == ".tmp") return 3;
            }
            const auto place = open_shared_place(folder.path, 1 << 30);  // more than there is
            if (puts(*place, 100, 60000) || !puts(*place, 100, 60000)) return 4;
            if (::mount(nullptr, folder.path.c_str(), nullptr, MS_REMOUNT | MS_RDONLY, "size=1m") != 0) return 77;
            const auto read_only = open_shared_place(folder.path, 1 << 20);
            if (puts(*read_only, 200) || gets(*read_only, 100, 60000) != Status::done) return 5;
            return 0;
        });
    });
    if (result == 77) GTEST_SKIP() << "this machine lets nobody mount a file system";
    EXPECT_EQ(result, 0);
}

TEST(shared_folder, kills_at_random_instants_leave_only_whole_records) {
    RT_CPU_ONLY("a forked process cannot use the GPU");
    constexpr unsigned kSeed = 31;
    printf("seed %u\n", kSeed);
    std::mt19937 rng(kSeed);
    const StoreFolder folder;
    const SealKey key = SealKey::of_secret(piece(9, 32));
    const auto place = open_shared_place(folder.path, 0);
    const auto digest = [](uint32_t i) { return record(i).id.name; };
    int64_t found = 0;
    const auto check = [&](uint32_t i) {
        const Record expected = record(i);
        Bytes sealed(static_cast<size_t>(sealed_bytes(expected.payload_bytes())));
        if (place->get(to_hex(digest(i)), sealed) != Status::done) return;
        std::string got(payload_of(expected).size(), 0);
        const auto part = std::as_writable_bytes(std::span(got));
        int32_t tag = 0;
        EXPECT_TRUE(unseal(key, digest(i), sealed, {&part, 1}, tag)) << i;
        EXPECT_TRUE(got == payload_of(expected) && tag == expected.tag) << i;
        ++found;
    };
    const unsigned kills = kThreadSanitizer || kAddressSanitizer ? 20 : 200;  // where a fork takes 0.3 s
    for (unsigned kill = 0; kill < kills; ++kill) {
        const pid_t child = ::fork();
        ASSERT_GE(child, 0);
        if (child == 0) {
            std::mt19937 own(kSeed + kill);
            for (const auto writer = open_shared_place(folder.path, 30000);;) {
                const Record one = record(static_cast<uint32_t>(own() % 30));
                std::vector<std::span<const std::byte>> parts;
                for (const HostBytes& part : one.parts) parts.push_back(part->span());
                writer->put(to_hex(one.id.name), seal(key, one.id.name, one.tag, parts));
            }
        }
        for (auto reads = rng() % 100; reads > 0; --reads) check(static_cast<uint32_t>(rng() % 30));  // while it writes
        ::kill(child, SIGKILL);
        ::waitpid(child, nullptr, 0);
        for (uint32_t i = 0; i < 30; ++i) check(i);
    }
    printf("%lld records read\n", static_cast<long long>(found));
    EXPECT_GT(found, 5 * kills);
}

}  // namespace
}  // namespace riptide
