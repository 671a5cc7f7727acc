#include "base/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/error.h"

namespace riptide {

namespace {

[[noreturn]] void fail_errno(const std::string& path, const char* action, int code) {
    if (code == ENOENT || code == ENOTDIR)
        fail(ErrorKind::no_input, "{}: cannot {}: no such file or folder", path, action);
    if (code == EACCES || code == EPERM) fail(ErrorKind::permission, "{}: cannot {}: permission denied", path, action);
    if (code == EISDIR) fail(ErrorKind::data, "{}: cannot {}: it is a folder", path, action);
    fail(ErrorKind::io, "{}: cannot {}: {}", path, action, std::strerror(code));
}

struct Descriptor {
    int fd = -1;
    ~Descriptor() {
        if (fd >= 0) ::close(fd);
    }
    int release() { return std::exchange(fd, -1); }
};

FileStamp stamp_from(const struct stat& status) {
    constexpr int64_t kSecond = 1'000'000'000;
    return {.device = static_cast<uint64_t>(status.st_dev),
            .inode = static_cast<uint64_t>(status.st_ino),
            .size = status.st_size,
            .modified_ns = status.st_mtim.tv_sec * kSecond + status.st_mtim.tv_nsec,
            .changed_ns = status.st_ctim.tv_sec * kSecond + status.st_ctim.tv_nsec};
}

// --- Surviving files that shrink ---
// A signal handler can be handed neither an object nor a lock, so the maps are listed in a fixed table of atomics.

struct Mapping {
    std::atomic<uintptr_t> begin{0};  // 0: free
    std::atomic<uintptr_t> end{
        0};  // stored last when taken and cleared first when freed: begin >= end matches no address
    std::atomic<bool> lost{false};
};
static_assert(std::atomic<uintptr_t>::is_always_lock_free && std::atomic<bool>::is_always_lock_free);

constexpr int kMaxMappings = 4096;
constinit std::array<Mapping, kMaxMappings> g_mappings;
struct sigaction g_previous_sigbus;

// Zeros from the faulting page to the end of the map: past the end of a file every later page is gone too, and one call
// for all of them keeps the number of memory areas small. The raw system call is safe in a handler; errno is the
// caller's to save.
bool cover_with_zeros(uintptr_t address) {
    for (Mapping& mapping : g_mappings) {
        const uintptr_t begin = mapping.begin.load(std::memory_order_acquire);
        const uintptr_t end = mapping.end.load(std::memory_order_acquire);
        if (begin == 0 || address < begin || address >= end) continue;
        mapping.lost.store(true, std::memory_order_release);
        const uintptr_t page = address & ~(static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE)) - 1);
        const long got = ::syscall(SYS_mmap, page, end - page, PROT_READ,
                                   MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        return got == static_cast<long>(page);
    }
    return false;
}

void on_sigbus(int signal, siginfo_t* info, void* context) {
    const int saved = errno;
    const bool covered = info->si_code > 0 && cover_with_zeros(reinterpret_cast<uintptr_t>(info->si_addr));
    errno = saved;
    if (covered) return;
    if (g_previous_sigbus.sa_flags & SA_SIGINFO) {
        g_previous_sigbus.sa_sigaction(signal, info, context);
    } else if (g_previous_sigbus.sa_handler != SIG_DFL && g_previous_sigbus.sa_handler != SIG_IGN) {
        g_previous_sigbus.sa_handler(signal);
    } else {  // the instruction faults again, or the signal is sent again, under the default action
        ::signal(SIGBUS, SIG_DFL);
        if (info->si_code <= 0) ::raise(SIGBUS);
    }
}

bool install_sigbus_handler() {
    // The old handler must be known before ours can run.
    if (::sigaction(SIGBUS, nullptr, &g_previous_sigbus) != 0) return false;
    struct sigaction action = {};
    action.sa_sigaction = on_sigbus;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    ::sigemptyset(&action.sa_mask);
    return ::sigaction(SIGBUS, &action, nullptr) == 0;
}

int register_mapping(uintptr_t begin, uintptr_t end) {
    static const bool installed = install_sigbus_handler();
    if (!installed) return -1;
    for (int i = 0; i < kMaxMappings; ++i) {
        Mapping& mapping = g_mappings[static_cast<size_t>(i)];
        uintptr_t free = 0;
        if (!mapping.begin.compare_exchange_strong(free, begin)) continue;
        mapping.lost.store(false);
        mapping.end.store(end, std::memory_order_release);
        return i;
    }
    return -1;
}

void unregister_mapping(int slot) {
    Mapping& mapping = g_mappings[static_cast<size_t>(slot)];
    mapping.end.store(0, std::memory_order_release);
    mapping.begin.store(0, std::memory_order_release);
}

}  // namespace

FileStamp stamp_of(const std::string& path) {
    struct stat status = {};
    if (::stat(path.c_str(), &status) != 0) fail_errno(path, "read its dates", errno);
    return stamp_from(status);
}

MappedFile::MappedFile(const std::string& path) : path_(path) {
    // O_NONBLOCK: opening a pipe without a writer must not hang; for a regular file it means nothing.
    Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
    if (file.fd < 0) fail_errno(path, "open", errno);
    struct stat status = {};
    if (::fstat(file.fd, &status) != 0) fail_errno(path, "read its size", errno);
    if (S_ISDIR(status.st_mode)) fail_errno(path, "open", EISDIR);
    RT_CHECK(S_ISREG(status.st_mode), "{}: is not a regular file", path);
    if (status.st_size > 0) {
        const auto length = static_cast<size_t>(status.st_size);
        void* map = ::mmap(nullptr, length, PROT_READ, MAP_PRIVATE, file.fd, 0);
        if (map == MAP_FAILED) fail_errno(path, "map", errno);
        const auto begin = reinterpret_cast<uintptr_t>(map);
        const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
        slot_ = register_mapping(begin, (begin + length + page - 1) & ~(page - 1));
        if (slot_ < 0) {
            ::munmap(map, length);
            fail(ErrorKind::system, "{}: cannot map: {} files are mapped already", path, kMaxMappings);
        }
        data_ = static_cast<const std::byte*>(map);
        size_ = status.st_size;
    }
    stamp_ = stamp_from(status);
    fd_ = file.release();
}

MappedFile::~MappedFile() {
    if (slot_ >= 0) unregister_mapping(slot_);
    if (data_) ::munmap(const_cast<std::byte*>(data_), static_cast<size_t>(size_));
    if (fd_ >= 0) ::close(fd_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept { swap(other); }

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
    MappedFile taken(std::move(other));
    swap(taken);
    return *this;
}

void MappedFile::swap(MappedFile& other) noexcept {
    std::swap(path_, other.path_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(fd_, other.fd_);
    std::swap(slot_, other.slot_);
    std::swap(stamp_, other.stamp_);
}

void MappedFile::read(int64_t offset, std::span<std::byte> to) const {
    while (!to.empty()) {
        const ssize_t got = ::pread(fd_, to.data(), to.size(), offset);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) fail_errno(path_, "read", errno);
        RT_CHECK(got > 0, ErrorKind::io, "{}: became shorter while in use (was {} bytes, is {})", path_, size_, offset);
        offset += got;
        to = to.subspan(static_cast<size_t>(got));
    }
    struct stat status = {};
    if (::fstat(fd_, &status) != 0) fail_errno(path_, "read its dates", errno);
    RT_CHECK(stamp_from(status) == stamp_, ErrorKind::io, "{}: was changed while in use", path_);
}

void MappedFile::let_go(std::span<const std::byte> part) const {
    if (data_ == nullptr || part.data() < data_ || part.data() + part.size() > data_ + size_) return;
    const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
    const auto begin = (reinterpret_cast<uintptr_t>(part.data()) + page - 1) / page * page;
    const auto end = reinterpret_cast<uintptr_t>(part.data() + part.size()) / page * page;
    if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

bool MappedFile::unchanged() const {
    struct stat status = {};
    if (::fstat(fd_, &status) != 0) return false;
    const FileStamp now = stamp_from(status);
    return now.size == stamp_.size && now.modified_ns == stamp_.modified_ns;
}

void MappedFile::check_intact() const {
    if (fd_ < 0) return;
    struct stat status = {};
    if (::fstat(fd_, &status) != 0) fail_errno(path_, "read its size", errno);
    if (status.st_size < size_)
        fail(ErrorKind::io, "{}: became shorter while in use (was {} bytes, is {})", path_, size_,
             static_cast<int64_t>(status.st_size));
    if (slot_ >= 0 && g_mappings[static_cast<size_t>(slot_)].lost.load(std::memory_order_acquire))
        fail(ErrorKind::io, "{}: part of it could not be read while in use (cut and written again, or a failing disk)",
             path_);
}

std::string read_file(const std::string& path, int64_t max_bytes) {
    Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
    if (file.fd < 0) fail_errno(path, "open", errno);
    struct stat status = {};
    if (::fstat(file.fd, &status) != 0) fail_errno(path, "read its size", errno);
    if (S_ISDIR(status.st_mode)) fail_errno(path, "read", EISDIR);
    RT_CHECK(status.st_size <= max_bytes, "{}: has {} bytes, at most {} are allowed", path,
             static_cast<int64_t>(status.st_size), max_bytes);
    std::string text;
    constexpr size_t kPiece = size_t{1} << 16;
    // Read to the end rather than to st_size: pipes and /proc say 0, and a file may grow.
    for (size_t have = 0;;) {
        text.resize(have + std::max(kPiece, have == 0 ? static_cast<size_t>(status.st_size) + 1 : 0));
        const ssize_t got = ::read(file.fd, text.data() + have, text.size() - have);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) fail_errno(path, "read", errno);
        have += static_cast<size_t>(got);
        RT_CHECK(have <= static_cast<size_t>(max_bytes), "{}: has more than the {} bytes that are allowed", path,
                 max_bytes);
        if (got == 0) {
            text.resize(have);
            return text;
        }
    }
}

OutputFile::OutputFile(const std::string& path) : path_(path) {
    struct stat status = {};
    if (::stat(path.c_str(), &status) == 0) {
        if (S_ISDIR(status.st_mode)) fail_errno(path, "write", EISDIR);
        RT_CHECK(S_ISREG(status.st_mode), "{}: cannot write: it exists and is not a regular file", path);
    }
    for (int attempt = 0; fd_ < 0; ++attempt) {
        temp_ = fmt::format("{}.part-{}-{}", path, ::getpid(), attempt);
        fd_ = ::open(temp_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (fd_ < 0 && (errno != EEXIST || attempt == 999)) fail_errno(path, "create", errno);
    }
}

OutputFile::~OutputFile() {
    if (fd_ < 0) return;
    ::close(fd_);
    ::unlink(temp_.c_str());
}

void OutputFile::write(std::span<const std::byte> bytes) {
    RT_ASSERT(fd_ >= 0);
    while (!bytes.empty()) {
        const ssize_t put = ::write(fd_, bytes.data(), bytes.size());
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) fail(ErrorKind::io, "{}: cannot write after {} bytes: {}", path_, written_, std::strerror(errno));
        written_ += put;
        bytes = bytes.subspan(static_cast<size_t>(put));
    }
}

void OutputFile::commit() {
    RT_ASSERT(fd_ >= 0);
    if (::fsync(fd_) != 0) fail_errno(path_, "write to disk", errno);
    const int fd = std::exchange(fd_, -1);
    int code = ::close(fd) == 0 ? 0 : errno;
    if (code == 0 && ::rename(temp_.c_str(), path_.c_str()) != 0) code = errno;
    if (code != 0) {
        ::unlink(temp_.c_str());
        fail_errno(path_, "put into place", code);
    }
    // The rename itself is on disk only when the folder is. A file system that cannot sync folders has done what it
    // can.
    const std::string folder = std::filesystem::path(path_).parent_path().string();
    Descriptor parent{::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
    if (parent.fd >= 0 && ::fsync(parent.fd) != 0 && errno != EINVAL && errno != EROFS && errno != EBADF)
        fail_errno(path_, "write its folder to disk", errno);
}

void write_file_atomic(const std::string& path, std::span<const std::byte> bytes) {
    OutputFile file(path);
    file.write(bytes);
    file.commit();
}

}  // namespace riptide
