// The fourth tier: sealed records in a place that replicas share.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/sha256.h"
#include "cache/host_heap.h"
#include "cache/shared/place.h"
#include "cache/shared/seal.h"

namespace riptide {

/// Which of some records are there.
struct SharedLookup {
    std::vector<Digest> names;
    std::vector<char> there;  // out, one for each name
    std::atomic<bool> done = false, failed = false;
};

/// One record to be read: parts of these sizes, one after the other.
struct SharedPiece {
    Digest name{};
    std::vector<HostBytes> parts;
    int32_t tag = 0;     // out
    bool there = false;  // out: all bytes are there, and are what was put under this name
};

/// Some records to be read, by several threads at once.
struct SharedLoad {
    std::vector<SharedPiece> pieces;
    std::atomic<int64_t> bytes = 0;    // read so far
    std::atomic<bool> cancel = false;  // nobody wants them any more: the threads stop at the next piece
    std::atomic<bool> done = false;    // no thread touches it any more
    std::atomic<bool> failed = false;  // a piece is not there: the threads stop at the next piece
};

/// Looks for, reads and writes records on threads of its own: no caller ever waits for the place. Every oddity (gone,
/// cut, changed, sealed with another key) is a miss that is counted. A record that is there but not what it should be
/// is erased once, and its name is not asked for again for ten minutes.
///
/// When the place fails three times in a row, or whoever asked gave up three times while it answered nothing, the store
/// is not usable() until the place answers a question of the store's own quickly; it asks every five seconds. Until
/// then lookups and loads fail at once. Writes that fail three times in a row are not tried for as long: a place that
/// is full or read-only can still be read.
///
/// All functions are for one thread, the owner's: blocks of memory may only be given back there, in reap(). No thread
/// touches blocks while it waits for the place, so that one which hangs keeps none. The destructor writes what is left,
/// for a second at most.
class SharedStore {
  public:
    static constexpr int64_t kMostPending = int64_t{256} << 20;

    struct Stats {
        int64_t hits = 0, misses = 0;  // records read; records asked for that were not there
        int64_t errors = 0;            // questions that the place did not answer
        int64_t rejected = 0;          // records that were not what they should be
        int64_t dropped = 0;           // put_later: too much was waiting
        int64_t written = 0;           // records
        int64_t bytes_read = 0, bytes_written = 0;
        int64_t gave_up = 0;  // questions whose answer came too late for whoever asked
    };

    /// `on_news`: an answer is there, or a problem; called on the store's threads. It must not wait for the owner's
    /// thread.
    SharedStore(std::shared_ptr<SharedPlace> place, const SealKey& key, std::function<void()> on_news,
                std::chrono::milliseconds ask_again = std::chrono::seconds(5));
    ~SharedStore();
    SharedStore(const SharedStore&) = delete;
    SharedStore& operator=(const SharedStore&) = delete;

    /// False while the place has failed: whoever can do without should.
    bool usable() const;
    void look(std::shared_ptr<SharedLookup> lookup);
    /// REQUIRES that the host may write the parts (HostHeap::take_for_host).
    void load(std::shared_ptr<SharedLoad> load);
    /// The caller waits no longer for a lookup or a load. A load that it has cancelled before is done as soon as nobody
    /// touches its blocks, at the latest in the next reap().
    void give_up();
    /// Writes a record unless it is known to be there. REQUIRES that the host may read the parts. Not taken, and false,
    /// when kMostPending bytes wait already or the place fails. Records are written in this order.
    bool put_later(const Digest& name, int32_t tag, std::vector<HostBytes> parts);
    /// Whether a record was written, read or found there lately: most likely it still is.
    bool known(const Digest& name) const;
    /// Takes these for known: what was written behind them is there.
    void assume(std::span<const Digest> names);
    /// Changes when records that were put may not be there: some were not written and others now are, the place is
    /// back, or half a day has gone. known() of most of them is false then, and they should be put again.
    int64_t losses() const;
    /// Payload bytes of records that are not written yet.
    int64_t pending_bytes() const;
    /// Gives back the memory of what has ended.
    void reap();
    /// Bytes a second of the loads of the last minute, those aside that broke off at a missing record; 0: there were
    /// none.
    double read_rate() const;
    /// Seconds that the quickest of the last three lookups took; 0: there were fewer, or none in the last minute.
    double lookup_seconds() const;
    Stats stats() const;
    /// What somebody must see to at the place (SharedPlace::problem), once; "": nothing new.
    std::string problem();

  private:
    struct State;  // shared with the threads, which may outlive the store
    std::shared_ptr<State> state_;
};

}  // namespace riptide
