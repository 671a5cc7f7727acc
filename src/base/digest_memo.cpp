#include "base/digest_memo.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <vector>

#include "base/error.h"

namespace riptide {

namespace {

constexpr std::string_view kMemoHead = "riptide digests 1\n";
constexpr int64_t kMostMemoBytes = int64_t{4} << 20;

Digest digest_of_text(std::string_view text) { return sha256(std::as_bytes(std::span(text.data(), text.size()))); }

/// What follows the digest in a line. Empty for a path that no line can hold.
std::string memo_line(const std::string& file, const FileStamp& s) {
    std::error_code failed;
    const std::string path = std::filesystem::weakly_canonical(file, failed).string();
    if (failed || path.empty() || path.size() > 4096 || path.find('\n') != std::string::npos) return {};
    return fmt::format(" {} {} {} {} {} {}", s.device, s.inode, s.size, s.modified_ns, s.changed_ns, path);
}

std::string_view path_in(std::string_view line) {
    size_t at = 0;  // behind the digest and five numbers
    for (int word = 0; word < 6 && at != std::string_view::npos; ++word) at = line.find(' ', at + 1);
    return at == std::string_view::npos ? std::string_view() : line.substr(at + 1);
}

/// The lines of a memo; none unless it is whole.
std::vector<std::string> read_memo(const std::string& path) {
    std::string text;
    try {
        text = read_file(path, kMostMemoBytes);
    } catch (const Error&) {
        return {};  // there is none yet, or nobody can read it
    }
    constexpr size_t kSum = 65;  // 64 digits and the end of the line
    if (!text.starts_with(kMemoHead) || text.size() < kMemoHead.size() + kSum) return {};
    const std::string_view body = std::string_view(text).substr(0, text.size() - kSum);
    if (text.substr(body.size()) != to_hex(digest_of_text(body)) + "\n") return {};
    std::vector<std::string> lines;
    for (size_t at = kMemoHead.size(); at < body.size();) {
        const size_t end = body.find('\n', at);
        if (end == std::string_view::npos) return {};
        lines.emplace_back(body.substr(at, end - at));
        at = end + 1;
    }
    return lines;
}

/// Held while it lives, against other processes and other threads.
class MemoLock {
  public:
    explicit MemoLock(const std::string& path) : fd_(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)) {
        int code = fd_ < 0 ? errno : 0;
        while (code == 0 && ::flock(fd_, LOCK_EX) != 0)
            if (errno != EINTR) code = errno;
        if (code == 0) return;
        if (fd_ >= 0) ::close(fd_);
        fail(ErrorKind::io, "{}: cannot be locked: {}", path, std::strerror(code));
    }
    ~MemoLock() { ::close(fd_); }
    MemoLock(const MemoLock&) = delete;
    MemoLock& operator=(const MemoLock&) = delete;

  private:
    int fd_;
};

}  // namespace

std::optional<Digest> DigestMemo::find(const std::string& file, const FileStamp& stamp) const {
    if (path_.empty()) return std::nullopt;
    const std::string wanted = memo_line(file, stamp);
    if (wanted.empty()) return std::nullopt;
    for (const std::string& line : read_memo(path_))
        if (line.size() == 64 + wanted.size() && line.ends_with(wanted))
            return digest_of_hex(std::string_view(line).substr(0, 64));
    return std::nullopt;
}

void DigestMemo::add(const std::string& file, const FileStamp& stamp, const Digest& digest) const {
    if (path_.empty()) return;
    const std::string what = memo_line(file, stamp), line = to_hex(digest) + what;
    if (what.empty()) return;
    const std::string folder = std::filesystem::path(path_).parent_path().string();
    std::error_code failed;
    if (makes_folder_ && !folder.empty()) std::filesystem::create_directories(folder, failed);  // opening the lock says what is wrong
    const MemoLock lock(path_ + ".lock");
    std::vector<std::string> lines = read_memo(path_);
    std::erase_if(lines, [&](const std::string& one) { return path_in(one) == path_in(line); });
    lines.push_back(line);
    std::string text(kMemoHead);
    for (size_t i = lines.size() - std::min(lines.size(), kMost); i < lines.size(); ++i) text += lines[i] + "\n";
    text += to_hex(digest_of_text(text)) + "\n";
    write_file_atomic(path_, text);
}

}  // namespace riptide
