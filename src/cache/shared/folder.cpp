// A folder that replicas share: on one machine's disk, or any network file system that renames atomically.
//
// FOLDER/<2 digits>/<name>.rec, written as .<host>-<pid>-<n>.tmp beside it and renamed. No index and no locks: whoever
// wants a record opens it by its name. A file's date is its last use, give or take an hour.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <optional>
#include <random>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "cache/record_file.h"
#include "cache/shared/place.h"

namespace riptide {

namespace {

constexpr std::string_view kSharedSuffix = ".rec", kSharedTemp = ".tmp";
constexpr int64_t kUsedSeconds = 3600, kLeftoverSeconds = 3600, kLeaseSeconds = 60;
constexpr std::chrono::seconds kBetweenPasses{10};

/// What begins the temporary names of this process. Containers share host names and process ids: what follows is
/// counted from a random number.
std::string temp_front() {
    char host[HOST_NAME_MAX + 1] = {};
    ::gethostname(host, sizeof host - 1);
    std::string name = host;
    std::replace(name.begin(), name.end(), '/', '_');
    return fmt::format(".{}-{}-", name, ::getpid());
}

/// A piece that is not there, or that another process has just removed, is missing; a place that is not there has
/// failed.
SharedPlace::Status status_of(int code) {
    const bool missing = code == ENOENT || code == ESTALE || code == ELOOP || code == ENXIO;
    return missing ? SharedPlace::Status::missing : SharedPlace::Status::failed;
}

bool is_shared_record(std::string_view file, std::string_view shelf) {
    return file.size() == 64 + kSharedSuffix.size() && file.ends_with(kSharedSuffix) && file.starts_with(shelf) &&
           file.find_first_not_of("0123456789abcdef") == 64;
}

class SharedFolder final : public SharedPlace {
  public:
    SharedFolder(std::string folder, int64_t budget)
        : folder_(std::move(folder)), lease_(folder_ + "/.evicting"), budget_(budget), temp_(temp_front()) {
        std::random_device random;
        next_ = uint64_t{random()} << 32;
    }
    std::vector<int64_t> sizes(std::span<const std::string> names) override;
    Status get(const std::string& name, std::span<std::byte> to) override;
    Status put(const std::string& name, std::span<const std::byte> bytes) override;
    void erase(const std::string& name) override { ::unlink(path_of(name).c_str()); }

  private:
    struct Held {
        int64_t used_ns = 0, bytes = 0;
        std::string path;
    };

    std::string shelf_of(const std::string& name) const { return folder_ + "/" + name.substr(0, 2); }
    std::string path_of(const std::string& name) const {
        return fmt::format("{}/{}{}", shelf_of(name), name, kSharedSuffix);
    }
    int write_new(const std::string& name, std::span<const std::byte> bytes);
    void make_room(bool full);
    std::optional<int64_t> take_lease() const;
    std::vector<Held> list(int64_t now) const;

    const std::string folder_, lease_;
    const int64_t budget_;
    const std::string temp_;
    std::atomic<uint64_t> next_;
    std::atomic<int64_t> written_ = 0;  // since the last pass
    std::mutex passing_;
    std::optional<std::chrono::steady_clock::time_point> passed_;  // under it
};

std::vector<int64_t> SharedFolder::sizes(std::span<const std::string> names) {
    struct stat status = {};
    // Nothing is found in a folder that is gone: it does not answer.
    if (::stat(folder_.c_str(), &status) != 0 || !S_ISDIR(status.st_mode)) return {};
    std::vector<int64_t> sizes;
    for (const std::string& name : names) {
        const bool found = ::lstat(path_of(name).c_str(), &status) == 0;
        if (!found && status_of(errno) == Status::failed) return {};
        sizes.push_back(found && S_ISREG(status.st_mode) ? status.st_size : -1);
    }
    return sizes;
}

SharedPlace::Status SharedFolder::get(const std::string& name, std::span<std::byte> to) {
    const int fd = ::open(path_of(name).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) return status_of(errno);
    struct stat status = {};
    errno = 0;
    Status result = Status::missing;
    if (::fstat(fd, &status) != 0) result = status_of(errno);
    else if (S_ISREG(status.st_mode) && status.st_size == std::ssize(to))
        result = read_all(fd, to.data(), to.size()) ? Status::done : errno == 0 ? Status::missing : status_of(errno);
    if (result == Status::done && ::time(nullptr) - status.st_mtime > kUsedSeconds) ::futimens(fd, nullptr);
    ::close(fd);
    return result;
}

/// Gives errno.
int SharedFolder::write_new(const std::string& name, std::span<const std::byte> bytes) {
    const std::string shelf = shelf_of(name), temp = fmt::format("{}/{}{}{}", shelf, temp_, next_++, kSharedTemp);
    const auto create = [&] {
        return ::open(temp.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    };
    int fd = create();
    if (fd < 0 && errno == ENOENT && (::mkdir(shelf.c_str(), 0700) == 0 || errno == EEXIST)) fd = create();
    if (fd < 0) return errno;
    errno = 0;
    int code = write_all(fd, bytes.data(), bytes.size()) ? 0 : errno != 0 ? errno : EIO;
    if (::close(fd) != 0 && code == 0) code = errno;  // a network file system may say only now that it is full
    if (code == 0 && ::rename(temp.c_str(), path_of(name).c_str()) != 0) code = errno;
    if (code != 0) ::unlink(temp.c_str());
    return code;
}

SharedPlace::Status SharedFolder::put(const std::string& name, std::span<const std::byte> bytes) {
    const int code = write_new(name, bytes);
    if (code == 0) written_ += std::ssize(bytes);
    make_room(code == ENOSPC || code == EDQUOT);
    return code == 0 ? Status::done : Status::failed;
}

/// The file system's time if this process may remove files now. Two processes that take over the same old lease at the
/// same time both may: they remove the same files.
std::optional<int64_t> SharedFolder::take_lease() const {
    struct stat status = {};
    for (int attempt = 0; attempt < 2; ++attempt) {
        const int fd = ::open(lease_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (fd >= 0) {
            const bool known = ::fstat(fd, &status) == 0;
            ::close(fd);
            return known ? status.st_mtime : ::time(nullptr);
        }
        if (errno == ENOSPC || errno == EDQUOT) return ::time(nullptr);  // all the more
        if (errno != EEXIST || ::lstat(lease_.c_str(), &status) != 0) return std::nullopt;
        if (std::abs(::time(nullptr) - status.st_mtime) <= kLeaseSeconds) return std::nullopt;
        ::unlink(lease_.c_str());  // whoever had it is dead
    }
    return std::nullopt;
}

/// All records. Removes what writers that died have left.
std::vector<SharedFolder::Held> SharedFolder::list(int64_t now) const {
    std::vector<Held> held;
    for (int i = 0; i < 256; ++i) {
        const std::string digits = fmt::format("{:02x}", i), shelf = folder_ + "/" + digits;
        ::utimensat(AT_FDCWD, lease_.c_str(), nullptr, AT_SYMLINK_NOFOLLOW);  // alive
        std::error_code error;
        std::filesystem::directory_iterator at(shelf, error);
        for (; !error && at != std::filesystem::directory_iterator(); at.increment(error)) {
            const std::string file = at->path().filename().string();
            const bool leftover = file.starts_with('.') && file.ends_with(kSharedTemp);
            std::string path = shelf + "/" + file;
            struct stat status = {};
            if (!leftover && !is_shared_record(file, digits)) continue;
            if (::lstat(path.c_str(), &status) != 0) continue;
            if (!leftover)
                held.push_back({int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec, status.st_size,
                                std::move(path)});
            else if (now - status.st_mtime > kLeftoverSeconds) ::unlink(path.c_str());
        }
    }
    return held;
}

/// Removes the least recently used records when it is time to: at the first put, and when 1/16 of the budget has been
/// written since the last pass, which leaves as much free. A folder that is full sooner than its budget says loses 1/16
/// of what it holds.
void SharedFolder::make_room(bool full) {
    const std::unique_lock lock(passing_, std::try_to_lock);
    if (!lock) return;
    const auto now = std::chrono::steady_clock::now();
    const int64_t spare = budget_ / 16;
    if (passed_ && (now - *passed_ < kBetweenPasses || budget_ == 0 || (!full && written_ <= spare))) return;
    const std::optional<int64_t> time = take_lease();
    passed_ = now;
    if (!time) return;  // another process does it
    written_ = 0;
    std::vector<Held> held = list(*time);
    int64_t bytes = 0;
    for (const Held& one : held) bytes += one.bytes;
    const int64_t most = budget_ == 0 ? INT64_MAX
                         : full       ? std::min(budget_ - spare, bytes - bytes / 16)
                                      : budget_ - spare;
    std::sort(held.begin(), held.end(), [](const Held& a, const Held& b) { return a.used_ns < b.used_ns; });
    for (const Held& one : held) {
        if (bytes <= most) break;
        if (::unlink(one.path.c_str()) == 0 || errno == ENOENT) bytes -= one.bytes;
    }
    ::unlink(lease_.c_str());
}

}  // namespace

std::shared_ptr<SharedPlace> open_folder_place(std::string folder, int64_t budget) {
    while (folder.size() > 1 && folder.ends_with('/')) folder.pop_back();
    ::mkdir(folder.c_str(), 0700);  // the last folder of its path only: more would be a mount that is missing
    struct stat status = {};
    int code = ::stat(folder.c_str(), &status) != 0 ? errno : S_ISDIR(status.st_mode) ? 0 : ENOTDIR;
    // One that cannot be written to now can be read.
    if (code == 0 && ::access(folder.c_str(), R_OK | W_OK | X_OK) != 0 && errno != EROFS) code = errno;
    const ErrorKind kind = code == ENOENT                    ? ErrorKind::no_input
                           : code == EACCES || code == EPERM ? ErrorKind::permission
                                                             : ErrorKind::io;
    RT_CHECK(code == 0, kind, "{}: cannot be used as a shared cache: {}", folder, std::strerror(code));
    return std::make_shared<SharedFolder>(std::move(folder), budget);
}

}  // namespace riptide
