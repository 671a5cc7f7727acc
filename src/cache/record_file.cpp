#include "cache/record_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <ctime>

namespace riptide {

namespace {

constexpr uint64_t kStoreMagic = 0x31444B5054504952;  // "RIPTPKD1"
constexpr uint32_t kStoreVersion = 2;

struct RecordFileHeader {
    uint64_t magic = kStoreMagic;
    uint32_t version = kStoreVersion;
    int32_t rank = 0;
    int32_t tag = 0;
    uint32_t naming = 0;
    Digest group{};
    uint64_t key_bytes = 0;
    uint64_t payload_bytes = 0;
    uint64_t payload_sum = 0;
    uint64_t head_sum = 0;  // of everything above and the key
};
static_assert(sizeof(RecordFileHeader) == 88);

constexpr uint64_t kA = 0x9E3779B97F4A7C15, kB = 0xD6E8FEB86659FD93;

/// A bijection of the state and of the word.
uint64_t step(uint64_t state, uint64_t word) { return std::rotl(state ^ (word * kA), 29) * kB; }

/// A 64-bit checksum at memory speed: four lanes of bijections, so that a change within one word never goes unseen and
/// any other change with 2^-64.
uint64_t checksum(std::span<const std::byte> bytes, uint64_t seed) {
    uint64_t lane[4] = {seed, seed ^ kA, seed ^ kB, ~seed};
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

uint64_t head_checksum(const RecordFileHeader& header, std::string_view key) {
    const auto front = std::as_bytes(std::span(&header, 1)).first(offsetof(RecordFileHeader, head_sum));
    return checksum(std::as_bytes(std::span(key)), checksum(front, kStoreMagic));
}

/// Of a payload in parts. Which bytes belong to which part is known to whoever reads.
template <class Parts>
uint64_t payload_checksum(const Parts& parts) {
    uint64_t sum = kStoreMagic;
    for (const std::span<const std::byte> part : parts) sum = step(sum, checksum(part, part.size()));
    return sum;
}

struct Descriptor {
    int fd = -1;
    ~Descriptor() {
        if (fd >= 0) ::close(fd);
    }
};

int open_record(const std::string& path, int mode) {
    return ::open(path.c_str(), mode | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
}

/// Reads header and key, leaving the file at the payload. False unless they are whole and as they were written.
bool read_head(int fd, RecordFileHeader& header, std::string& key) {
    struct stat status = {};
    if (::fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) return false;
    if (!read_all(fd, &header, sizeof header)) return false;
    if (header.magic != kStoreMagic || header.version != kStoreVersion || header.key_bytes > kMostKeyBytes)
        return false;
    const auto size = static_cast<uint64_t>(status.st_size);
    if (header.payload_bytes > size || size != sizeof header + header.key_bytes + header.payload_bytes) return false;
    key.resize(header.key_bytes);
    return read_all(fd, key.data(), key.size()) && header.head_sum == head_checksum(header, key);
}

/// The system's own stamps are too coarse to order a burst.
void set_used(int fd, const char* path) {
    timespec times[2] = {};
    ::clock_gettime(CLOCK_REALTIME, &times[0]);
    times[1] = times[0];
    if (path != nullptr) ::utimensat(fd, path, times, 0);
    else ::futimens(fd, times);
}

/// Closes, and renames what is whole. Gives errno.
int finish_record(int fd, bool done, const DiskWrite& write) {
    const int code = errno;
    if (::close(fd) != 0 && done) return errno;
    if (!done) return code != 0 ? code : EIO;
    return ::rename(write.temp.c_str(), write.path.c_str()) == 0 ? 0 : errno;
}

}  // namespace

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

int64_t record_file_bytes(const std::string& key, int64_t payload_bytes) {
    return static_cast<int64_t>(sizeof(RecordFileHeader) + key.size()) + payload_bytes;
}

std::optional<RecordHead> read_record_head(const std::string& path) {
    RecordFileHeader header;
    RecordHead head;
    struct stat status = {};
    const Descriptor in{open_record(path, O_RDONLY)};
    if (in.fd < 0 || !read_head(in.fd, header, head.key) || ::fstat(in.fd, &status) != 0) return std::nullopt;
    head.group = header.group;
    head.rank = header.rank;
    head.tag = header.tag;
    head.naming = header.naming;
    head.used = status.st_mtim;
    head.file_bytes = status.st_size;
    return head;
}

bool read_record(const std::string& path, const RecordKey& id, std::span<const std::span<std::byte>> to, int32_t& tag) {
    uint64_t bytes = 0;
    for (const auto part : to) bytes += part.size();
    RecordFileHeader header;
    std::string key;
    const Descriptor in{open_record(path, O_RDONLY)};
    if (in.fd < 0 || !read_head(in.fd, header, key)) return false;
    if (header.group != id.group || key != id.key || header.payload_bytes != bytes) return false;
    for (const auto part : to)
        if (!read_all(in.fd, part.data(), part.size())) return false;
    if (header.payload_sum != payload_checksum(to)) return false;
    tag = header.tag;
    return true;
}

int write_record(const DiskWrite& write, uint32_t naming) {
    const Record& record = write.record;
    std::vector<std::span<const std::byte>> parts;
    for (const HostBytes& part : record.parts) parts.push_back(part->span());
    RecordFileHeader header{.rank = record.rank,
                            .tag = record.tag,
                            .naming = naming,
                            .group = record.id.group,
                            .key_bytes = record.id.key.size(),
                            .payload_bytes = static_cast<uint64_t>(record.payload_bytes()),
                            .payload_sum = payload_checksum(parts)};
    header.head_sum = head_checksum(header, record.id.key);
    const int fd = ::open(write.temp.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) return errno;
    errno = 0;
    bool done = write_all(fd, &header, sizeof header) && write_all(fd, record.id.key.data(), record.id.key.size());
    for (size_t i = 0; done && i < parts.size(); ++i) done = write_all(fd, parts[i].data(), parts[i].size());
    const int code = errno;
    set_used(fd, nullptr);
    errno = code;
    return finish_record(fd, done, write);
}

int rename_record(const DiskWrite& write) {
    const int fd = open_record(write.temp, O_RDWR);
    if (fd < 0) return errno;
    RecordFileHeader header;
    std::string key;
    struct stat status = {};
    errno = 0;
    bool done = read_head(fd, header, key) && key.size() == write.record.id.key.size() && ::fstat(fd, &status) == 0;
    if (done) {
        header.group = write.record.id.group;
        header.head_sum = head_checksum(header, write.record.id.key);
        done = ::lseek(fd, 0, SEEK_SET) == 0 && write_all(fd, &header, sizeof header) &&
               write_all(fd, write.record.id.key.data(), key.size());
        const timespec dates[2] = {status.st_atim, status.st_mtim};  // it was not used for that
        ::futimens(fd, dates);
    }
    return finish_record(fd, done, write);
}

void mark_record_used(const std::string& path) { set_used(AT_FDCWD, path.c_str()); }

}  // namespace riptide
