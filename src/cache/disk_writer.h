// Writes records to files on a thread of its own.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "cache/record_index.h"

namespace riptide {

/// One file to be written, and how it went.
struct DiskWrite {
    Record record;
    std::string temp, path;
    bool renames = false;  // `temp` holds the payload already, under another key: rename_record
    int error = 0;         // errno; 0: it is there
};

/// Writes go in the order of add(), one at a time. All functions are for one thread, the owner's: finished writes wait
/// for it in take_finished(), because the blocks of a record may only be given back there.
class DiskWriter {
  public:
    /// `write` runs on the writer's thread and gives errno.
    explicit DiskWriter(std::function<int(const DiskWrite&)> write);
    /// Writes what is left first.
    ~DiskWriter();
    DiskWriter(const DiskWriter&) = delete;
    DiskWriter& operator=(const DiskWriter&) = delete;

    void add(DiskWrite write);
    /// Returns when the write of this record, if there was one, has ended.
    void wait(const Digest& name);
    void wait_all();
    std::vector<DiskWrite> take_finished();
    /// Payload bytes of writes that have not ended.
    int64_t pending_bytes() const;

  private:
    void work();

    const std::function<int(const DiskWrite&)> write_;
    mutable std::mutex mutex_;
    std::condition_variable more_, ended_;
    std::deque<DiskWrite> queue_;  // the first is being written
    std::vector<DiskWrite> finished_;
    int64_t pending_bytes_ = 0;
    bool stop_ = false;
    std::thread thread_;
};

}  // namespace riptide
