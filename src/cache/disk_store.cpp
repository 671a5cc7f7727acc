#include "cache/disk_store.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <span>
#include <utility>

namespace riptide {

namespace {

constexpr uint64_t kMagic = 0x31444B5054504952;  // "RIPTPKD1"
constexpr uint32_t kVersion = 1;
constexpr uint64_t kMaxKey = uint64_t{1} << 24;
constexpr std::string_view kSuffix = ".record", kTemp = "writing-";

struct Header {
    uint64_t magic = kMagic;
    uint32_t version = kVersion;
    int32_t rank = 0;
    Digest group{};
    uint64_t key_bytes = 0;
    uint64_t payload_bytes = 0;
    uint64_t payload_sum = 0;
    uint64_t head_sum = 0;  // of everything above and the key
};
static_assert(sizeof(Header) == 80);

/// A 64-bit checksum at memory speed: four lanes, each step a bijection of the lane and of the word, so that a change
/// within one word never goes unseen and any other change with 2^-64.
uint64_t checksum(std::span<const std::byte> bytes, uint64_t seed) {
    constexpr uint64_t kA = 0x9E3779B97F4A7C15, kB = 0xD6E8FEB86659FD93;
    uint64_t lane[4] = {seed, seed ^ kA, seed ^ kB, ~seed};
    const auto step = [](uint64_t state, uint64_t word) { return std::rotl(state ^ (word * kA), 29) * kB; };
    size_t i = 0;
    for (; i + 32 <= bytes.size(); i += 32) {
        uint64_t words[4];
        std::memcpy(words, bytes.data() + i, sizeof words);
        for (size_t j = 0; j < 4; ++j) lane[j] = step(lane[j], words[j]);
    }
    for (size_t j = 0; i < bytes.size(); i += 8, ++j) {
        uint64_t word = 0;
        std::memcpy(&word, bytes.data() + i, std::min<size_t>(8, bytes.size() - i));
        lane[j] = step(lane[j], word);
    }
    uint64_t sum = bytes.size();
    for (const uint64_t one : lane) sum = step(sum, one ^ (one >> 32));
    return sum ^ (sum >> 31);
}

uint64_t head_checksum(const Header& header, std::string_view key) {
    const auto front = std::as_bytes(std::span(&header, 1)).first(offsetof(Header, head_sum));
    return checksum(std::as_bytes(std::span(key)), checksum(front, kMagic));
}

struct Descriptor {
    int fd = -1;
    ~Descriptor() {
        if (fd >= 0) ::close(fd);
    }
};

bool read_all(int fd, void* to, size_t bytes) {
    for (auto* at = static_cast<char*>(to); bytes > 0;) {
        const ssize_t got = ::read(fd, at, bytes);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return false;
        at += got;
        bytes -= static_cast<size_t>(got);
    }
    return true;
}

bool write_all(int fd, const void* from, size_t bytes) {
    for (const auto* at = static_cast<const char*>(from); bytes > 0;) {
        const ssize_t put = ::write(fd, at, bytes);
        if (put < 0 && errno == EINTR) continue;
        if (put <= 0) return false;
        at += put;
        bytes -= static_cast<size_t>(put);
    }
    return true;
}

int open_to_read(const std::string& path) {
    return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
}

/// Reads header and key, leaving the file at the payload. False unless they are whole and as they were written.
bool read_head(int fd, Header& header, std::string& key) {
    struct stat status = {};
    if (::fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) return false;
    if (!read_all(fd, &header, sizeof header)) return false;
    if (header.magic != kMagic || header.version != kVersion || header.key_bytes > kMaxKey) return false;
    const auto size = static_cast<uint64_t>(status.st_size);
    if (header.payload_bytes > size || size != sizeof header + header.key_bytes + header.payload_bytes) return false;
    key.resize(header.key_bytes);
    return read_all(fd, key.data(), key.size()) && header.head_sum == head_checksum(header, key);
}

bool is_record_name(std::string_view name) {
    return name.size() == 64 + kSuffix.size() && name.ends_with(kSuffix) &&
           name.find_first_not_of("0123456789abcdef") == 64;
}

}  // namespace

DiskStore::DiskStore(std::string folder, int64_t budget) : folder_(std::move(folder)), budget_(budget) {
    std::error_code error;
    std::filesystem::create_directories(std::filesystem::path(folder_).parent_path(), error);
    ::mkdir(folder_.c_str(), 0700);
    const std::string path = folder_ + "/lock";
    lock_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (lock_ < 0) {
        problem_ = fmt::format("{}: cannot be used as a cache: {}", folder_, std::strerror(errno));
        return;
    }
    if (::flock(lock_, LOCK_EX | LOCK_NB) != 0) {
        problem_ = fmt::format("{}: is in use by another process; this one goes without a disk cache", folder_);
        ::close(std::exchange(lock_, -1));
        return;
    }
    scan();
}

DiskStore::~DiskStore() {
    if (lock_ >= 0) ::close(lock_);
}

std::string DiskStore::path_of(const Digest& name) const {
    return fmt::format("{}/{}{}", folder_, to_hex(name), kSuffix);
}

void DiskStore::scan() {
    struct Found {
        int64_t seconds = 0, nanoseconds = 0;
        std::string file;
        Digest name{};
        RecordIndex::Entry entry;
    };
    std::vector<Found> found;
    std::error_code error;
    std::filesystem::directory_iterator at(folder_, error);
    for (; !error && at != std::filesystem::directory_iterator(); at.increment(error)) {
        const std::string file = at->path().filename().string(), path = folder_ + "/" + file;
        if (file.starts_with(kTemp)) ::unlink(path.c_str());
        if (!is_record_name(file)) continue;
        Header header;
        std::string key;
        struct stat status = {};
        const Descriptor in{open_to_read(path)};
        const bool whole = in.fd >= 0 && read_head(in.fd, header, key) && ::fstat(in.fd, &status) == 0;
        const Digest name = whole ? record_name(header.group, key) : Digest{};
        if (!whole || file != to_hex(name) + std::string(kSuffix)) {
            std::error_code ignored;
            std::filesystem::remove_all(path, ignored);  // what cannot be removed is not in the index: a miss
            ++stats_.damaged;
            continue;
        }
        found.push_back({status.st_mtim.tv_sec,
                         status.st_mtim.tv_nsec,
                         file,
                         name,
                         {.group = header.group,
                          .key = std::move(key),
                          .rank = header.rank,
                          .bytes = static_cast<int64_t>(status.st_size)}});
    }
    if (error) problem_ = fmt::format("{}: cannot be listed: {}", folder_, error.message());
    std::sort(found.begin(), found.end(), [](const Found& a, const Found& b) {
        return std::tie(a.seconds, a.nanoseconds, a.file) < std::tie(b.seconds, b.nanoseconds, b.file);
    });
    for (Found& one : found) index_.insert(one.name, std::move(one.entry));
    while (index_.bytes() > budget_) {
        remove(*index_.victim(INT32_MAX));
        ++stats_.evicted;
    }
}

void DiskStore::remove(const Digest& name) {
    std::error_code ignored;
    std::filesystem::remove_all(path_of(name), ignored);
    index_.erase(name);
}

bool DiskStore::has(const Digest& group, const std::string& key) const {
    return index_.find(record_name(group, key), group, key) != nullptr;
}

bool DiskStore::write(const std::string& temp, const std::string& path, const Record& record) {
    Header header{.rank = record.rank,
                  .group = record.group,
                  .key_bytes = record.key.size(),
                  .payload_bytes = record.payload.size(),
                  .payload_sum = checksum(record.payload, record.payload.size())};
    header.head_sum = head_checksum(header, record.key);
    const int fd = ::open(temp.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) return false;
    bool done = write_all(fd, &header, sizeof header) && write_all(fd, record.key.data(), record.key.size()) &&
                write_all(fd, record.payload.data(), record.payload.size());
    const int code = errno;
    if (::close(fd) != 0 && done) return false;
    if (!done) errno = code;
    return done && ::rename(temp.c_str(), path.c_str()) == 0;
}

bool DiskStore::put(const Record& record) {
    if (lock_ < 0) return false;
    const Digest name = record_name(record.group, record.key);
    if (index_.find(name) != nullptr) {
        index_.touch(name, record.rank);
        ::utimensat(AT_FDCWD, path_of(name).c_str(), nullptr, 0);
        return true;
    }
    const auto bytes = static_cast<int64_t>(sizeof(Header) + record.key.size() + record.payload.size());
    if (bytes > budget_ || record.key.size() > kMaxKey) return false;
    while (index_.bytes() + bytes > budget_) {
        const std::optional<Digest> victim = index_.victim(record.rank);
        if (!victim) return false;
        remove(*victim);
        ++stats_.evicted;
    }
    const std::string temp = fmt::format("{}/{}{}", folder_, kTemp, written_++), path = path_of(name);
    if (!write(temp, path, record)) {
        problem_ = fmt::format("{}: cannot be written: {}", path, std::strerror(errno));
        ::unlink(temp.c_str());
        ++stats_.failed_writes;
        return false;
    }
    index_.insert(name, {.group = record.group, .key = record.key, .rank = record.rank, .bytes = bytes});
    return true;
}

std::optional<std::vector<std::byte>> DiskStore::get(const Digest& group, const std::string& key) {
    const Digest name = record_name(group, key);
    if (index_.find(name, group, key) == nullptr) return std::nullopt;
    const std::string path = path_of(name);
    Header header;
    std::string found;
    const Descriptor in{open_to_read(path)};
    if (in.fd >= 0 && read_head(in.fd, header, found) && header.group == group && found == key) {
        std::vector<std::byte> payload(header.payload_bytes);
        if (read_all(in.fd, payload.data(), payload.size()) &&
            header.payload_sum == checksum(payload, payload.size())) {
            index_.touch(name, 0);
            ::utimensat(AT_FDCWD, path.c_str(), nullptr, 0);
            return payload;
        }
    }
    problem_ = fmt::format("{}: is gone or damaged; removed", path);
    ++stats_.damaged;
    remove(name);
    return std::nullopt;
}

void DiskStore::erase(const Digest& group, const std::string& key) {
    const Digest name = record_name(group, key);
    if (index_.find(name, group, key) != nullptr) remove(name);
}

}  // namespace riptide
