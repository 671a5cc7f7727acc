// What is remembered of large files: only of the very file, and never from a memo that is not whole.
#include "base/digest_memo.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/error.h"

namespace riptide {
namespace {

namespace fs = std::filesystem;

Digest some_digest(int i) {
    const std::string text = std::to_string(i);
    return sha256(std::as_bytes(std::span(text.data(), text.size())));
}

class DigestMemoTest : public ::testing::Test {
  protected:
    DigestMemoTest() {
        std::string name = ::testing::TempDir() + "/riptide-memo-XXXXXX";
        folder = ::mkdtemp(name.data());
        memo = folder + "/cache/digests";
    }
    ~DigestMemoTest() override { fs::remove_all(folder); }
    std::string file(const std::string& name, const std::string& text = "weights") const {
        write_file_atomic(folder + "/" + name, text);
        return folder + "/" + name;
    }
    std::string folder, memo;
};

TEST_F(DigestMemoTest, a_file_is_known_by_its_path_and_stamp_and_not_by_either_alone) {
    const std::string a = file("a"), b = file("b");
    const FileStamp stamp = stamp_of(a);
    EXPECT_EQ(DigestMemo(memo).find(a, stamp), std::nullopt);
    DigestMemo(memo).add(a, stamp, some_digest(1));
    EXPECT_EQ(DigestMemo(memo).find(a, stamp), some_digest(1));
    EXPECT_EQ(DigestMemo(memo).find(folder + "/./cache/../a", stamp), some_digest(1)) << "another way to it";
    EXPECT_EQ(DigestMemo(memo).find(b, stamp), std::nullopt);
    EXPECT_EQ(DigestMemo(memo).find(b, stamp_of(b)), std::nullopt);
    for (const auto change :
         {+[](FileStamp& s) { ++s.device; }, +[](FileStamp& s) { ++s.inode; }, +[](FileStamp& s) { ++s.size; },
          +[](FileStamp& s) { ++s.modified_ns; }, +[](FileStamp& s) { ++s.changed_ns; }}) {
        FileStamp other = stamp;
        change(other);
        EXPECT_EQ(DigestMemo(memo).find(a, other), std::nullopt);
    }
    DigestMemo(memo).add(a, stamp, some_digest(2));
    EXPECT_EQ(DigestMemo(memo).find(a, stamp), some_digest(2)) << "the last word counts";
    EXPECT_EQ(DigestMemo("").find(a, stamp), std::nullopt);
    DigestMemo("").add(a, stamp, some_digest(1));
}

TEST_F(DigestMemoTest, a_change_with_size_and_date_kept_is_another_stamp) {
    const std::string a = file("a");
    const FileStamp before = stamp_of(a);
    struct stat status = {};
    ASSERT_EQ(::stat(a.c_str(), &status), 0);
    const int fd = ::open(a.c_str(), O_WRONLY);
    ASSERT_EQ(::pwrite(fd, "W", 1, 0), 1);
    const timespec dates[2] = {status.st_atim, status.st_mtim};
    ASSERT_EQ(::futimens(fd, dates), 0);
    ::close(fd);
    FileStamp after = stamp_of(a);
    EXPECT_NE(after, before);
    after.changed_ns = before.changed_ns;
    EXPECT_EQ(after, before) << "all else is as it was";
}

TEST_F(DigestMemoTest, a_memo_cut_changed_or_foreign_is_empty_and_written_anew) {
    const std::string a = file("a"), b = file("b");
    DigestMemo(memo).add(a, stamp_of(a), some_digest(1));
    const std::string whole = read_file(memo, 1 << 20);
    std::vector<std::string> wrong = {"", "\n", "notes of mine\n", std::string(100'000, '\0')};
    for (size_t size = 0; size < whole.size(); ++size) wrong.push_back(whole.substr(0, size));
    for (size_t at = 0; at < whole.size(); ++at) {
        wrong.push_back(whole);
        wrong.back()[at] = static_cast<char>(wrong.back()[at] ^ 1);
    }
    for (const std::string& text : wrong) {
        std::ofstream(memo, std::ios::binary) << text;
        ASSERT_EQ(DigestMemo(memo).find(a, stamp_of(a)), std::nullopt) << text;
    }
    DigestMemo(memo).add(b, stamp_of(b), some_digest(2));
    EXPECT_EQ(DigestMemo(memo).find(b, stamp_of(b)), some_digest(2));
    EXPECT_EQ(DigestMemo(memo).find(a, stamp_of(a)), std::nullopt);
}

TEST_F(DigestMemoTest, what_cannot_be_written_is_said_and_what_cannot_be_read_is_not_known) {
    const std::string a = file("a");
    fs::create_directories(memo);  // a folder where the file belongs
    EXPECT_EQ(DigestMemo(memo).find(a, stamp_of(a)), std::nullopt);
    EXPECT_THROW(DigestMemo(memo).add(a, stamp_of(a), some_digest(1)), Error);
    EXPECT_THROW(DigestMemo(a + "/digests").add(a, stamp_of(a), some_digest(1)), Error);
    EXPECT_THROW(DigestMemo(folder + "/gone/digests", false).add(a, stamp_of(a), some_digest(1)), Error);
    EXPECT_FALSE(fs::exists(folder + "/gone"));
}

TEST_F(DigestMemoTest, the_files_added_last_are_kept) {
    const std::string a = file("a");
    FileStamp stamp = stamp_of(a);
    for (int i = 0; i < 3; ++i) DigestMemo(memo).add(file("f" + std::to_string(i)), stamp, some_digest(i));
    std::string text = read_file(memo, 1 << 20);
    text.resize(text.size() - 65);
    for (size_t i = 0; i < DigestMemo::kMost; ++i)
        text += to_hex(some_digest(0)) + " 1 2 3 4 5 /nowhere/" + std::to_string(i) + "\n";
    text += to_hex(sha256(std::as_bytes(std::span(text.data(), text.size())))) + "\n";
    write_file_atomic(memo, text);
    EXPECT_EQ(DigestMemo(memo).find(folder + "/f0", stamp), some_digest(0)) << "a memo made by hand is whole";
    DigestMemo(memo).add(a, stamp, some_digest(9));
    EXPECT_EQ(DigestMemo(memo).find(folder + "/f2", stamp), std::nullopt);
    EXPECT_EQ(DigestMemo(memo).find(a, stamp), some_digest(9));
}

TEST_F(DigestMemoTest, processes_that_add_at_once_lose_nothing) {
    constexpr int kProcesses = 4, kEach = 12;
    std::vector<std::string> files;
    for (int i = 0; i < kProcesses * kEach; ++i) files.push_back(file("f" + std::to_string(i)));
    std::vector<pid_t> children;
    for (int p = 0; p < kProcesses; ++p) {
        const pid_t child = ::fork();
        ASSERT_GE(child, 0);
        if (child == 0) {
            int lost = 0;
            for (int i = p * kEach; i < (p + 1) * kEach; ++i) {
                const std::string& one = files[static_cast<size_t>(i)];
                DigestMemo(memo).add(one, stamp_of(one), some_digest(i));
                lost += DigestMemo(memo).find(one, stamp_of(one)) != some_digest(i);
            }
            ::_exit(lost);
        }
        children.push_back(child);
    }
    for (const pid_t child : children) {
        int status = -1;
        ASSERT_EQ(::waitpid(child, &status, 0), child);
        EXPECT_EQ(status, 0);
    }
    for (int i = 0; i < kProcesses * kEach; ++i) {
        const std::string& one = files[static_cast<size_t>(i)];
        EXPECT_EQ(DigestMemo(memo).find(one, stamp_of(one)), some_digest(i)) << i;
    }
}

}  // namespace
}  // namespace riptide
