// What a SharedStore and its threads share.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <iterator>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "cache/record_index.h"
#include "cache/shared/store.h"

namespace riptide {

using ShareClock = std::chrono::steady_clock;

inline double seconds_since(ShareClock::time_point then) {
    return std::chrono::duration<double>(ShareClock::now() - then).count();
}

/// The latest names that were inserted. One that comes and goes may be forgotten early.
class LatestNames {
  public:
    static constexpr size_t kMostKnown = 65536;

    bool has(const Digest& name) const { return names_.contains(name); }
    void erase(const Digest& name) { names_.erase(name); }
    void insert(const Digest& name) {
        if (!names_.insert(name).second) return;
        order_.push_back(name);
        if (order_.size() <= kMostKnown) return;
        names_.erase(order_.front());
        order_.pop_front();
    }

  private:
    std::unordered_set<Digest, DigestHash> names_;
    std::deque<Digest> order_;
};

constexpr double kLatelySeconds = 60;

/// A quotient of sums in which each addition counts half of the one after it.
class LatelyMean {
  public:
    void add(double amount, double weight) {
        const double keep = seconds_since(at_) < kLatelySeconds ? 0.5 : 0;
        amount_ = keep * amount_ + amount;
        weight_ = keep * weight_ + weight;
        at_ = ShareClock::now();
    }
    double value() const { return weight_ > 0 && seconds_since(at_) < kLatelySeconds ? amount_ / weight_ : 0; }

  private:
    double amount_ = 0, weight_ = 0;
    ShareClock::time_point at_;
};

/// The least of the last three amounts, so that a machine which is busy now and then is not taken for a slow place.
class LatelyLeast {
  public:
    void add(double amount) {
        last_[added_++ % std::size(last_)] = amount;
        at_ = ShareClock::now();
    }
    /// 0: there were fewer, or none in the last minute.
    double value() const {
        const bool any = added_ >= std::size(last_) && seconds_since(at_) < kLatelySeconds;
        return any ? *std::min_element(std::begin(last_), std::end(last_)) : 0;
    }

  private:
    double last_[3] = {};
    size_t added_ = 0;
    ShareClock::time_point at_;
};

/// Names that are not asked for until a time.
class RejectedNames {
  public:
    bool has(const Digest& name) const {
        const auto found = until_.find(name);
        return found != until_.end() && ShareClock::now() < found->second;
    }
    void insert(const Digest& name) {
        const auto now = ShareClock::now();
        std::erase_if(until_, [&](const auto& one) { return one.second <= now; });
        if (until_.size() >= kMostRejected) until_.clear();
        until_[name] = now + std::chrono::minutes(10);
    }

  private:
    static constexpr size_t kMostRejected = 4096;
    std::unordered_map<Digest, ShareClock::time_point, DigestHash> until_;
};

/// Memory for one record at a time.
class RecordBuffer {
  public:
    std::span<std::byte> of(int64_t bytes) {
        const auto size = static_cast<size_t>(bytes);
        if (size > size_) {
            bytes_ = nullptr;
            bytes_ = std::make_unique_for_overwrite<std::byte[]>(size);
            size_ = size;
        }
        return {bytes_.get(), size};
    }

  private:
    std::unique_ptr<std::byte[]> bytes_;
    size_t size_ = 0;
};

struct LookupAsk {
    std::shared_ptr<SharedLookup> lookup;  // null: it has ended
    ShareClock::time_point asked;
    bool begun = false;
};

struct LoadAsk {
    std::shared_ptr<SharedLoad> load;  // null: it has ended
    ShareClock::time_point started;
    size_t next = 0;  // the first piece that nobody has begun
    int reading = 0;  // pieces that are being read
    int pinned = 0;   // of these: whose blocks a thread touches now
};

struct SharedWrite {
    Digest name{};
    int32_t tag = 0;
    std::vector<HostBytes> parts;
    int64_t bytes = 0;

    static int64_t bytes_of(const std::vector<HostBytes>& parts) {
        int64_t bytes = 0;
        for (const HostBytes& part : parts) bytes += part->bytes;
        return bytes;
    }
};

/// All but what is const under the mutex. Blocks of memory are only in `loads`, `writes`, `ended_loads` and `used`,
/// which the owner empties before it goes.
struct SharedStore::State {
    using Lock = std::unique_lock<std::mutex>;

    const std::shared_ptr<SharedPlace> place;
    const SealKey key;
    const std::chrono::milliseconds ask_again;
    std::mutex news_mutex;
    std::function<void()> on_news;  // under news_mutex; empty when the owner has gone

    mutable std::mutex mutex;
    std::condition_variable to_read, to_write, ended;
    std::deque<std::shared_ptr<LookupAsk>> lookups;
    std::deque<std::shared_ptr<LoadAsk>> loads;
    std::deque<SharedWrite> writes;
    std::vector<std::shared_ptr<SharedLoad>> ended_loads;  // for the owner to drop
    std::vector<HostBytes> used;                           // the same
    int64_t pending_bytes = 0;
    int threads = 0, pinned = 0;  // pinned: threads that touch blocks, none of which waits for the place
    bool stop = false, news = false;
    bool off = false;                               // the place has failed
    int failures = 0, late = 0, failed_writes = 0;  // in a row
    ShareClock::time_point ask_at, write_at, known_since = ShareClock::now();
    std::string problem;  // the place's, for the owner
    LatestNames known;
    int64_t losses = 0;      // SharedStore::losses
    bool unwritten = false;  // something was not written since a write was well
    RejectedNames rejected;
    LatelyMean rate;
    LatelyLeast lookup_time;
    Stats stats;

    State(std::shared_ptr<SharedPlace> at, const SealKey& with, std::function<void()> hear,
          std::chrono::milliseconds again)
        : place(std::move(at)), key(with), ask_again(again), on_news(std::move(hear)) {}

    void run(void (State::*work)(Lock&));
    void turn_off();
    void not_answered();
    void failed_once();
    void gave_up();
    void answered() { failures = late = 0; }
    void know_nothing();
    void settle(LookupAsk& ask, bool failed);
    void settle(LoadAsk& ask);
    void settle_all();
    void drop_writes();
    void read(Lock& lock);
    void ask_whether_well(Lock& lock);
    void look(Lock& lock, LookupAsk& ask);
    void read_piece(Lock& lock, const std::shared_ptr<LoadAsk>& ask, RecordBuffer& buffer);
    SharedPlace::Status open_piece(Lock& lock, LoadAsk& ask, SharedPiece& piece, std::span<const std::byte> sealed);
    void write(Lock& lock);
    bool seal_next(Lock& lock, SharedWrite& one, std::vector<std::byte>& sealed);
};

}  // namespace riptide
