#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <thread>

#include "tests/io/test_files.h"

namespace riptide {
namespace {

using test::expect_error;
using test::TempFolder;

TEST(MappedFile, gives_the_bytes_and_survives_moves) {
    TempFolder folder;
    MappedFile file(folder.put("a", "hello"));
    MappedFile moved(std::move(file));
    MappedFile target(folder.put("b", "other"));
    target = std::move(moved);
    ASSERT_EQ(target.bytes().size(), 5u);
    EXPECT_EQ(std::memcmp(target.bytes().data(), "hello", 5), 0);
    EXPECT_EQ(target.path(), folder.file("a"));
    EXPECT_TRUE(file.bytes().empty());
    target.check_intact();
    EXPECT_TRUE(MappedFile(folder.put("empty", "")).bytes().empty());
}

/// Pages of `bytes` that this process has in memory, by its own map (bit 63 of each of its words).
int64_t resident_pages(std::span<const std::byte> bytes) {
    const int64_t page = ::sysconf(_SC_PAGESIZE);
    const int fd = ::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    std::vector<uint64_t> words(bytes.size() / static_cast<size_t>(page));
    const auto first = static_cast<off_t>(reinterpret_cast<uintptr_t>(bytes.data()) / static_cast<uintptr_t>(page));
    EXPECT_EQ(::pread(fd, words.data(), words.size() * 8, first * 8), static_cast<ssize_t>(words.size() * 8));
    ::close(fd);
    return std::count_if(words.begin(), words.end(), [](uint64_t word) { return (word >> 63) != 0; });
}

TEST(MappedFile, what_is_let_go_leaves_memory_and_reads_the_same_again) {
    const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
    std::string text(64 * page, 'x');
    for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * 31 % 251);
    TempFolder folder;
    const MappedFile file(folder.put("a", text));
    const auto read = [&] { return std::string(reinterpret_cast<const char*>(file.bytes().data()), text.size()); };
    EXPECT_EQ(read(), text);
    EXPECT_EQ(resident_pages(file.bytes()), 64);
    file.let_go(file.bytes().subspan(page / 2, 8 * page));  // seven whole pages
    EXPECT_EQ(resident_pages(file.bytes()), 57);
    file.let_go(std::as_bytes(std::span(text)));  // not of the map
    EXPECT_EQ(read(), text);
}

TEST(MappedFile, errors_name_the_path_and_have_a_kind) {
    TempFolder folder;
    const std::string missing = folder.file("missing");
    EXPECT_EQ(expect_error([&] { MappedFile file(missing); }, {missing, "no such file"}), ErrorKind::no_input);
    EXPECT_EQ(expect_error([&] { MappedFile file(folder.path()); }, {folder.path(), "folder"}), ErrorKind::data);
    EXPECT_EQ(expect_error([&] { (void)read_file(missing, 10); }, {missing}), ErrorKind::no_input);
    EXPECT_EQ(expect_error([&] { (void)read_file(folder.path(), 10); }, {folder.path()}), ErrorKind::data);
    const std::string pipe = folder.file("pipe");
    ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
    EXPECT_EQ(expect_error([&] { MappedFile file(pipe); }, {pipe, "not a regular file"}), ErrorKind::data);
    if (::geteuid() == 0) return;  // root may read everything
    const std::string closed = folder.put("closed", "x");
    ASSERT_EQ(::chmod(closed.c_str(), 0), 0);
    EXPECT_EQ(expect_error([&] { MappedFile file(closed); }, {closed, "permission"}), ErrorKind::permission);
    EXPECT_EQ(expect_error([&] { (void)read_file(closed, 10); }, {closed}), ErrorKind::permission);
}

TEST(MappedFile, a_file_that_shrinks_is_an_error_and_not_a_crash) {
    TempFolder folder;
    const std::string path = folder.put("big", std::string(1 << 20, 'x'));
    MappedFile file(path), other(folder.put("other", std::string(1 << 16, 'y')));
    ASSERT_EQ(::truncate(path.c_str(), 5000), 0);
    const auto bytes = file.bytes();
    EXPECT_EQ(bytes[0], std::byte{'x'});
    EXPECT_EQ(bytes[4999], std::byte{'x'});
    std::vector<std::thread> readers;  // all fault at once
    for (size_t t = 0; t < 4; ++t)
        readers.emplace_back([&, t] {
            for (size_t i = 8192 + t; i < bytes.size(); i += 64) ASSERT_EQ(bytes[i], std::byte{0});
        });
    for (std::thread& reader : readers) reader.join();
    EXPECT_EQ(expect_error([&] { file.check_intact(); }, {path, "became shorter", "was 1048576", "is 5000"}),
              ErrorKind::io);
    other.check_intact();
    EXPECT_EQ(other.bytes()[60000], std::byte{'y'});

    ASSERT_EQ(::truncate(path.c_str(), 1 << 20), 0);  // grown again: what was read were zeros all the same
    EXPECT_EQ(expect_error([&] { file.check_intact(); }, {path, "could not be read"}), ErrorKind::io);
    MappedFile(path).check_intact();
}

TEST(MappedFile, a_cut_inside_a_page_is_noticed_without_a_fault) {
    TempFolder folder;
    const std::string path = folder.put("small", std::string(100, 'x'));
    MappedFile file(path);
    file.check_intact();
    ASSERT_EQ(::truncate(path.c_str(), 99), 0);
    EXPECT_EQ(expect_error([&] { file.check_intact(); }, {path, "was 100", "is 99"}), ErrorKind::io);
}

TEST(MappedFileDeathTest, other_bus_errors_still_reach_the_default_action) {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    TempFolder folder;
    const std::string path = folder.put("mine", std::string(100, 'x'));
    EXPECT_EXIT(
        {
            ::signal(SIGBUS, SIG_DFL);
            MappedFile file(path);
            ::raise(SIGBUS);
            std::_Exit(0);
        },
        ::testing::KilledBySignal(SIGBUS), "");
}

void answer_and_leave(int) { std::_Exit(42); }

TEST(MappedFileDeathTest, other_bus_errors_reach_the_handler_that_was_there) {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    TempFolder folder;
    const std::string path = folder.put("mine", std::string(100, 'x'));
    EXPECT_EXIT(
        {
            ::signal(SIGBUS, answer_and_leave);
            MappedFile file(path);
            ::raise(SIGBUS);
            std::_Exit(0);
        },
        ::testing::ExitedWithCode(42), "");
}

TEST(ReadFile, keeps_to_its_limit) {
    TempFolder folder;
    const std::string path = folder.put("text", std::string(100000, 'a') + "b");
    EXPECT_EQ(read_file(path, 100001), std::string(100000, 'a') + "b");
    expect_error([&] { (void)read_file(path, 100000); }, {path, "100001", "100000"});
    EXPECT_EQ(read_file(folder.put("none", ""), 0), "");
    EXPECT_FALSE(read_file("/proc/self/status", 1 << 20).empty());  // its size is given as 0
}

TEST(OutputFile, appears_only_when_committed) {
    TempFolder folder;
    const std::string path = folder.file("out");
    {
        OutputFile file(path);
        file.write(test::to_bytes("half"));
        EXPECT_FALSE(std::filesystem::exists(path));
    }
    EXPECT_TRUE(folder.list().empty());
    OutputFile file(path);
    file.write(test::to_bytes("who"));
    file.write(test::to_bytes("le"));
    EXPECT_EQ(file.written(), 5);
    file.commit();
    EXPECT_EQ(read_file(path, 100), "whole");
    EXPECT_EQ(folder.list(), std::vector<std::string>{"out"});
    write_file_atomic(path, std::string_view("again"));
    EXPECT_EQ(read_file(path, 100), "again");
}

TEST(OutputFile, refuses_what_a_rename_would_destroy) {
    TempFolder folder;
    expect_error([&] { OutputFile file(folder.path()); }, {folder.path(), "folder"});
    expect_error([] { OutputFile file("/dev/null"); }, {"/dev/null", "not a regular file"});
    const std::string nowhere = folder.file("no/such/folder");
    EXPECT_EQ(expect_error([&] { OutputFile file(nowhere); }, {nowhere}), ErrorKind::no_input);
}

TEST(OutputFile, a_full_disk_is_a_clear_error_and_leaves_the_old_file) {
    TempFolder folder;
    const std::string path = folder.put("out", "old");
    rlimit before = {};
    ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
    const auto old_handler = ::signal(SIGXFSZ, SIG_IGN);
    const rlimit small = {4096, before.rlim_max};  // stands for the end of the disk
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
    const ErrorKind kind = expect_error([&] { write_file_atomic(path, std::string(10000, 'x')); },
                                        {path, "cannot write after 4096 bytes"});
    ::setrlimit(RLIMIT_FSIZE, &before);
    ::signal(SIGXFSZ, old_handler);
    EXPECT_EQ(kind, ErrorKind::io);
    EXPECT_EQ(read_file(path, 100), "old");
    EXPECT_EQ(folder.list(), std::vector<std::string>{"out"});
}

}  // namespace
}  // namespace riptide
