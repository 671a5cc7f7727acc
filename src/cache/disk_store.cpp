#include "cache/disk_store.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <tuple>
#include <utility>

#include "cache/record_file.h"

namespace riptide {

namespace {

constexpr std::string_view kSuffix = ".record", kTemp = "writing-";

bool is_record_name(std::string_view name) {
    return name.size() == 64 + kSuffix.size() && name.ends_with(kSuffix) &&
           name.find_first_not_of("0123456789abcdef") == 64;
}

int64_t file_bytes(const Record& record) { return record_file_bytes(record.id.key, record.payload_bytes()); }

/// What keys of records of these weights begin with.
std::string front_of(const Digest& weights) { return {reinterpret_cast<const char*>(weights.data()), weights.size()}; }

}  // namespace

DiskStore::DiskStore(std::string folder, int64_t budget, uint32_t naming)
    : folder_(std::move(folder)), budget_(budget), naming_(naming), weights_(front_of({})) {
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
        std::optional<RecordHead> head = read_record_head(path);
        const Digest name = head ? RecordKey::of(head->group, head->key).name : Digest{};
        if (!head || file != to_hex(name) + std::string(kSuffix)) {
            std::error_code ignored;
            std::filesystem::remove_all(path, ignored);  // what cannot be removed is not in the index: a miss
            ++stats_.damaged;
            continue;
        }
        found.push_back({head->used.tv_sec,
                         head->used.tv_nsec,
                         file,
                         name,
                         {.group = head->group,
                          .key = std::move(head->key),
                          .rank = head->naming == naming_ ? head->rank : INT32_MIN,
                          .tag = head->tag,
                          .bytes = head->file_bytes}});
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

RecordKey DiskStore::stored(const RecordKey& id) const { return RecordKey::of(id.group, weights_ + id.key); }

void DiskStore::use_weights(const Digest& name) { weights_ = front_of(name); }

void DiskStore::rename_weights(const Digest& name) {
    const std::string old = std::exchange(weights_, front_of(name));
    if (lock_ < 0 || old == weights_) return;
    for (const Digest& from : index_.names()) {
        const RecordIndex::Entry* const held = index_.find(from);
        if (held == nullptr || !held->key.starts_with(old)) continue;  // null: its write has failed meanwhile
        RecordIndex::Entry entry = *held;
        RecordKey to = RecordKey::of(entry.group, weights_ + entry.key.substr(old.size()));
        if (index_.find(to.name) != nullptr) {  // it was computed once more
            remove(from);
            continue;
        }
        index_.erase(from);
        const Digest name_to = to.name;
        entry.key = to.key;
        Record record{.id = std::move(to), .rank = entry.rank, .tag = entry.tag, .parts = {}};
        index_.insert(name_to, std::move(entry));
        writer().add({std::move(record), path_of(from), path_of(name_to), true});
    }
}

void DiskStore::remove(const Digest& name) {
    settle(name);
    if (index_.find(name) == nullptr) return;
    std::error_code ignored;
    std::filesystem::remove_all(path_of(name), ignored);
    index_.erase(name);
}

bool DiskStore::has(const RecordKey& id) const { return index_.find(stored(id)) != nullptr; }

std::vector<std::string> DiskStore::keys(const Digest& group, std::string_view front) const {
    std::vector<std::string> keys = index_.keys(group, weights_ + std::string(front));
    for (std::string& key : keys) key.erase(0, weights_.size());
    return keys;
}

void DiskStore::on_change(RecordIndex::Hear hear) {
    index_.on_change([this, hear = std::move(hear)](const Digest& group, const std::string& key, bool held) {
        if (key.starts_with(weights_)) hear(group, key.substr(weights_.size()), held);
    });
}

void DiskStore::list(const RecordIndex::Hear& hear) const {
    for (const Digest& name : index_.names())
        if (const RecordIndex::Entry& one = *index_.find(name); one.key.starts_with(weights_))
            hear(one.group, one.key.substr(weights_.size()), true);
}

int64_t DiskStore::payload_bytes(const RecordKey& id) const {
    const RecordIndex::Entry* entry = index_.find(stored(id));
    return entry == nullptr ? -1 : entry->bytes - record_file_bytes(entry->key, 0);
}

bool DiskStore::touch(const RecordKey& id, int32_t rank) { return touch_stored(stored(id), rank); }

bool DiskStore::touch_stored(const RecordKey& id, int32_t rank) {
    if (index_.find(id) == nullptr) return false;
    index_.touch(id.name, rank);
    mark_record_used(path_of(id.name));
    return true;
}

/// Removes what has to go for a new record. False when it must not, or would not do.
bool DiskStore::make_room(const Record& record) {
    const int64_t bytes = file_bytes(record);
    if (bytes > budget_ || record.id.key.size() > kMostKeyBytes) return false;
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

bool DiskStore::put(Record record) {
    if (lock_ < 0) return false;
    record.id = stored(record.id);
    settle(record.id.name);
    if (touch_stored(record.id, record.rank)) return true;
    if (!make_room(record)) return false;
    DiskWrite write = write_of(std::move(record));
    write.error = write_record(write, naming_);
    if (write.error != 0) failed(write);
    else insert(write.record);
    return write.error == 0;
}

DiskWriter& DiskStore::writer() {
    if (writer_ == nullptr)
        writer_ = std::make_unique<DiskWriter>([naming = naming_](const DiskWrite& write) {
            return write.renames ? rename_record(write) : write_record(write, naming);
        });
    return *writer_;
}

void DiskStore::put_later(Record record) {
    if (lock_ < 0) return;
    reap();
    record.id = stored(record.id);
    if (touch_stored(record.id, record.rank)) return;
    const int64_t pending = writer().pending_bytes();
    if (pending > 0 && pending + record.payload_bytes() > kMostPending) {
        ++stats_.dropped;
        return;
    }
    if (!make_room(record)) return;
    insert(record);
    writer().add(write_of(std::move(record)));
}

/// What the writer has done since.
void DiskStore::reap() {
    if (writer_ == nullptr) return;
    for (const DiskWrite& write : writer_->take_finished()) {
        if (write.error == 0) continue;
        failed(write);
        // Nothing removes a record before its write has been reaped, but it may have another name since.
        if (index_.find(write.record.id.name) != nullptr) index_.erase(write.record.id.name);
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

void DiskStore::read(std::span<Read> reads, ThreadPool* threads) {
    std::vector<RecordKey> ids;
    for (const Read& one : reads) ids.push_back(stored(*one.id));
    for (const RecordKey& id : ids) settle(id.name);
    const auto some = [&](int64_t begin, int64_t end, int) {
        for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i)
            reads[i].done =
                index_.find(ids[i]) != nullptr && read_record(path_of(ids[i].name), ids[i], reads[i].to, reads[i].tag);
    };
    const auto count = static_cast<int64_t>(reads.size());
    if (threads != nullptr && count > 1) threads->parallel_for(count, 1, some);
    else some(0, count, 0);
    for (size_t i = 0; i < reads.size(); ++i) {
        if (reads[i].done || index_.find(ids[i]) == nullptr) continue;
        problem_ = fmt::format("{}: is gone or damaged; removed", path_of(ids[i].name));
        ++stats_.damaged;
        remove(ids[i].name);
    }
}

void DiskStore::erase(const RecordKey& id) {
    const RecordKey held = stored(id);
    if (index_.find(held) != nullptr) remove(held.name);
}

}  // namespace riptide
