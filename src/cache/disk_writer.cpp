#include "cache/disk_writer.h"

#include <algorithm>
#include <utility>

namespace riptide {

DiskWriter::DiskWriter(std::function<int(const DiskWrite&)> write)
    : write_(std::move(write)), thread_([this] { work(); }) {}

DiskWriter::~DiskWriter() {
    {
        const std::lock_guard lock(mutex_);
        stop_ = true;
    }
    more_.notify_one();
    thread_.join();
}

void DiskWriter::work() {
    std::unique_lock lock(mutex_);
    for (;;) {
        more_.wait(lock, [&] { return stop_ || !queue_.empty(); });
        if (queue_.empty()) return;
        DiskWrite& first = queue_.front();  // stays where it is while others are added behind it
        lock.unlock();
        first.error = write_(first);
        lock.lock();
        pending_bytes_ -= first.record.payload_bytes();
        finished_.push_back(std::move(first));
        queue_.pop_front();
        ended_.notify_all();
    }
}

void DiskWriter::add(DiskWrite write) {
    {
        const std::lock_guard lock(mutex_);
        pending_bytes_ += write.record.payload_bytes();
        queue_.push_back(std::move(write));
    }
    more_.notify_one();
}

void DiskWriter::wait(const Digest& name) {
    std::unique_lock lock(mutex_);
    ended_.wait(lock, [&] {
        return std::none_of(queue_.begin(), queue_.end(), [&](const auto& one) { return one.record.id.name == name; });
    });
}

void DiskWriter::wait_all() {
    std::unique_lock lock(mutex_);
    ended_.wait(lock, [&] { return queue_.empty(); });
}

std::vector<DiskWrite> DiskWriter::take_finished() {
    const std::lock_guard lock(mutex_);
    return std::exchange(finished_, {});
}

int64_t DiskWriter::pending_bytes() const {
    const std::lock_guard lock(mutex_);
    return pending_bytes_;
}

}  // namespace riptide
