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
#include <ctime>
#include <filesystem>
#include <span>
#include <utility>

namespace riptide {

namespace {

constexpr uint64_t kStoreMagic = 0x31444B5054504952;  // "RIPTPKD1"
constexpr uint32_t kStoreVersion = 2;
constexpr uint64_t kMaxKey = uint64_t{1} << 24;
constexpr std::string_view kSuffix = ".record", kTemp = "writing-";

struct Header {
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
static_assert(sizeof(Header) == 88);

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

uint64_t head_checksum(const Header& header, std::string_view key) {
    const auto front = std::as_bytes(std::span(&header, 1)).first(offsetof(Header, head_sum));
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
    if (header.magic != kStoreMagic || header.version != kStoreVersion || header.key_bytes > kMaxKey) return false;
    const auto size = static_cast<uint64_t>(status.st_size);
    if (header.payload_bytes > size || size != sizeof header + header.key_bytes + header.payload_bytes) return false;
    key.resize(header.key_bytes);
    return read_all(fd, key.data(), key.size()) && header.head_sum == head_checksum(header, key);
}

/// When a file was used last is its modification time; the system's own stamps are too coarse to order a burst.
void set_used(int fd, const char* path) {
    timespec times[2] = {};
    ::clock_gettime(CLOCK_REALTIME, &times[0]);
    times[1] = times[0];
    if (path != nullptr) ::utimensat(fd, path, times, 0);
    else ::futimens(fd, times);
}

bool is_record_name(std::string_view name) {
    return name.size() == 64 + kSuffix.size() && name.ends_with(kSuffix) &&
           name.find_first_not_of("0123456789abcdef") == 64;
}

int64_t file_bytes(const Record& record) {
    return static_cast<int64_t>(sizeof(Header) + record.id.key.size()) + record.payload_bytes();
}

/// Under its temporary name, then renamed. Gives errno.
int write_file(const DiskWrite& write, uint32_t naming) {
    const Record& record = write.record;
    std::vector<std::span<const std::byte>> parts;
    for (const HostBytes& part : record.parts) parts.push_back(part->span());
    Header header{.rank = record.rank,
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
    if (::close(fd) != 0 && done) return errno;
    if (!done) return code != 0 ? code : EIO;
    return ::rename(write.temp.c_str(), write.path.c_str()) == 0 ? 0 : errno;
}

}  // namespace

DiskStore::DiskStore(std::string folder, int64_t budget, uint32_t naming)
    : folder_(std::move(folder)), budget_(budget), naming_(naming) {
    std::error_code error;
    const std::filesystem::path parent = std::filesystem::path(folder_).parent_path();
    if (!parent.empty()) std::filesystem::create_directories(parent, error);
    ::mkdir(folder_.c_str(), 0700);
    const std::string path = folder_ + "/lock";
    lock_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (lock_ < 0) refuse(error ? error.value() : errno);  // the first thing that went wrong says most
    else if (::flock(lock_, LOCK_EX | LOCK_NB) != 0) refuse(errno);
    else scan();
}

void DiskStore::refuse(int code) {
    refusal_ = code;
    problem_ = code == EWOULDBLOCK
                   ? fmt::format("{}: is in use by another process; this one goes without a disk cache", folder_)
                   : fmt::format("{}: cannot be used as a cache: {}", folder_, std::strerror(code));
    if (lock_ >= 0) ::close(std::exchange(lock_, -1));
}

DiskStore::~DiskStore() {
    writer_.reset();
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
        const Digest name = whole ? RecordKey::of(header.group, key).name : Digest{};
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
                          .rank = header.naming == naming_ ? header.rank : INT32_MIN,
                          .tag = header.tag,
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
    settle(name);
    if (index_.find(name) == nullptr) return;
    std::error_code ignored;
    std::filesystem::remove_all(path_of(name), ignored);
    index_.erase(name);
}

int64_t DiskStore::payload_bytes(const RecordKey& id) const {
    const RecordIndex::Entry* entry = index_.find(id);
    if (entry == nullptr) return -1;
    return entry->bytes - static_cast<int64_t>(sizeof(Header) + entry->key.size());
}

bool DiskStore::touch(const RecordKey& id, int32_t rank) {
    if (!has(id)) return false;
    index_.touch(id.name, rank);
    set_used(AT_FDCWD, path_of(id.name).c_str());
    return true;
}

/// Removes what has to go for a new record. False when it must not, or would not do.
bool DiskStore::make_room(const Record& record) {
    const int64_t bytes = file_bytes(record);
    if (bytes > budget_ || record.id.key.size() > kMaxKey) return false;
    while (index_.bytes() + bytes > budget_) {
        const std::optional<Digest> victim = index_.victim(record.rank);
        if (!victim) return false;
        remove(*victim);
        ++stats_.evicted;
    }
    return true;
}

DiskWrite DiskStore::write_of(Record record) {
    std::string path = path_of(record.id.name);
    return {std::move(record), fmt::format("{}/{}{}", folder_, kTemp, written_++), std::move(path)};
}

void DiskStore::insert(const Record& record) {
    index_.insert(record.id.name, {.group = record.id.group,
                                   .key = record.id.key,
                                   .rank = record.rank,
                                   .tag = record.tag,
                                   .bytes = file_bytes(record)});
}

void DiskStore::failed(const DiskWrite& write) {
    problem_ = fmt::format("{}: cannot be written: {}", write.path, std::strerror(write.error));
    ::unlink(write.temp.c_str());
    ++stats_.failed_writes;
    if (hear_) hear_(problem_);
}

bool DiskStore::put(const Record& record) {
    if (lock_ < 0) return false;
    settle(record.id.name);
    if (touch(record.id, record.rank)) return true;
    if (!make_room(record)) return false;
    DiskWrite write = write_of(record);
    write.error = write_file(write, naming_);
    if (write.error != 0) failed(write);
    else insert(record);
    return write.error == 0;
}

void DiskStore::put_later(Record record) {
    if (lock_ < 0) return;
    reap();
    if (touch(record.id, record.rank)) return;
    if (writer_ == nullptr)
        writer_ = std::make_unique<DiskWriter>(
            [naming = naming_](const DiskWrite& write) { return write_file(write, naming); });
    const int64_t pending = writer_->pending_bytes();
    if (pending > 0 && pending + record.payload_bytes() > kMostPending) {
        ++stats_.dropped;
        return;
    }
    if (!make_room(record)) return;
    insert(record);
    writer_->add(write_of(std::move(record)));
}

/// What the writer has done since.
void DiskStore::reap() {
    if (writer_ == nullptr) return;
    for (const DiskWrite& write : writer_->take_finished()) {
        if (write.error == 0) continue;
        failed(write);
        index_.erase(write.record.id.name);  // nothing removes a record before its write has been reaped
    }
}

/// Until this record is a file or not held.
void DiskStore::settle(const Digest& name) {
    if (writer_ == nullptr) return;
    writer_->wait(name);
    reap();
}

void DiskStore::flush() {
    if (writer_ == nullptr) return;
    writer_->wait_all();
    reap();
}

/// Everything about a read that other threads may do at the same time.
bool DiskStore::read_one(Read& read) const {
    if (!has(*read.id)) return false;
    const std::string path = path_of(read.id->name);
    uint64_t bytes = 0;
    for (const auto part : read.to) bytes += part.size();
    Header header;
    std::string key;
    const Descriptor in{open_to_read(path)};
    if (in.fd < 0 || !read_head(in.fd, header, key)) return false;
    if (header.group != read.id->group || key != read.id->key || header.payload_bytes != bytes) return false;
    for (const auto part : read.to)
        if (!read_all(in.fd, part.data(), part.size())) return false;
    if (header.payload_sum != payload_checksum(read.to)) return false;
    read.tag = header.tag;
    return true;
}

void DiskStore::read(std::span<Read> reads, ThreadPool* threads) {
    const auto some = [&](int64_t begin, int64_t end, int) {
        for (Read& one : reads.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)))
            one.done = read_one(one);
    };
    for (const Read& one : reads) settle(one.id->name);
    const auto count = static_cast<int64_t>(reads.size());
    if (threads != nullptr && count > 1) threads->parallel_for(count, 1, some);
    else some(0, count, 0);
    for (const Read& one : reads) {
        if (one.done || !has(*one.id)) continue;
        problem_ = fmt::format("{}: is gone or damaged; removed", path_of(one.id->name));
        ++stats_.damaged;
        remove(one.id->name);
    }
}

void DiskStore::erase(const RecordKey& id) {
    if (has(id)) remove(id.name);
}

}  // namespace riptide
