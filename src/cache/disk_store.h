// The third tier: records as files in one folder, under a byte budget, that may be killed at any instant.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/thread_pool.h"
#include "cache/disk_writer.h"
#include "cache/record_index.h"

namespace riptide {

/// The rule by which names of records are made. One more with every change of what they cover (PrefixSalt, the name of
/// the weights). 1: the weights' path, date and samples were part of the salt.
inline constexpr uint32_t kRecordNaming = 2;

/// One file for each record (cache/record_file.h), named by its group and key, which here begins with the name of the
/// weights. A file is written under a temporary name and then renamed. It is not forced to disk: what a
/// power cut leaves half-written fails its checksum and is a miss. A file that is cut, changed, misnamed or of another
/// version is removed and never read as data; files that are not named as ours are left alone. Records whose names were
/// made by another rule stay until room is wanted, and go first.
///
/// Checksums are of 64 bits and run at memory speed; only names, where collisions could be sought, are SHA-256.
///
/// A cache must never stop an engine: nothing here throws. A folder that cannot be used, or is used by another process,
/// gives a store that holds nothing and says why in problem() and refusal(); a failed write or read counts and is a
/// miss.
/// Files and folder are for the owner only. Not thread-safe.
class DiskStore {
  public:
    static constexpr int64_t kMostPending = int64_t{256} << 20;

    struct Stats {
        int64_t damaged = 0;  // files removed because they were not what they should be
        int64_t failed_writes = 0;
        int64_t dropped = 0;  // put_later: more was to be written than the disk takes
        int64_t evicted = 0;
    };

    /// Reads the headers of all files in `folder` (made if it is missing), removes leftovers, damage, and the least
    /// recently used files beyond `budget` bytes.
    DiskStore(std::string folder, int64_t budget, uint32_t naming = kRecordNaming);
    ~DiskStore();
    DiskStore(const DiskStore&) = delete;
    DiskStore& operator=(const DiskStore&) = delete;

    /// What is put and found from now on is state of these weights. Until the first call: of nobody's.
    void use_weights(const Digest& name);
    /// The weights in use have this name from now on, and so have all records of them, at once. Their files follow, on
    /// the writer's thread.
    void rename_weights(const Digest& name);

    bool has(const RecordKey& id) const;
    /// Bytes of a record's payload; -1: it is not held.
    int64_t payload_bytes(const RecordKey& id) const;
    /// Counts a record as used; its rank may rise, until the next start. False when it is not held.
    bool touch(const RecordKey& id, int32_t rank = 0);
    /// Whether the record is on disk afterwards. Removes less recently used records of no higher rank to make room.
    /// REQUIRES that the host may read the parts.
    bool put(Record record);
    /// The same without waiting for the disk: the record counts as held, and is written on another thread. Not taken
    /// when kMostPending bytes are waiting to be written already.
    void put_later(Record record);
    /// Waits until everything is written.
    void flush();

    struct Read {
        const RecordKey* id = nullptr;
        std::vector<std::span<std::byte>> to;  // one for each part, of its size
        int32_t tag = 0;                       // out
        bool done = false;                     // out: all bytes are there and fit their checksum
    };
    /// Reads records, on several threads if there are some. One that turns out to be damaged, or of other sizes, is
    /// removed and not done. Does not count as a use.
    void read(std::span<Read> reads, ThreadPool* threads = nullptr);
    void erase(const RecordKey& id);
    std::vector<std::string> keys(const Digest& group, std::string_view front) const;

    /// Who hears what is held of the weights in use from now on, and what no longer; not what use_weights and
    /// rename_weights bring and take.
    void on_change(RecordIndex::Hear hear);
    /// Tells `hear` of all that is held of them.
    void list(const RecordIndex::Hear& hear) const;

    /// Bytes of all files.
    int64_t bytes() const { return index_.bytes(); }
    int64_t count() const { return index_.count(); }
    const Stats& stats() const { return stats_; }
    /// What went wrong last; empty when nothing did.
    const std::string& problem() const { return problem_; }
    /// errno of why the store is off; 0: it is not, EWOULDBLOCK: another process uses the folder.
    int refusal() const { return refusal_; }
    /// Who hears of each record that could not be written; called by whoever calls the store.
    void on_failed_write(std::function<void(const std::string& problem)> hear) { hear_ = std::move(hear); }

  private:
    std::string path_of(const Digest& name) const;
    RecordKey stored(const RecordKey& id) const;
    bool touch_stored(const RecordKey& id, int32_t rank);
    DiskWriter& writer();
    void scan();
    void remove(const Digest& name);
    bool make_room(const Record& record);
    DiskWrite write_of(Record record);
    void insert(const Record& record);
    void settle(const Digest& name);
    void reap();
    void failed(const DiskWrite& write);
    void refuse(int code);

    std::string folder_;
    int64_t budget_;
    uint32_t naming_;
    std::string weights_;  // what keys begin with
    int lock_ = -1;        // held while open; -1: the store is off
    int refusal_ = 0;
    int64_t written_ = 0;
    RecordIndex index_;
    Stats stats_;
    std::string problem_;
    std::function<void(const std::string&)> hear_;
    std::unique_ptr<DiskWriter> writer_;  // once it is wanted
};

}  // namespace riptide
