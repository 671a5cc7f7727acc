// What the prefix cache holds, told to another thread as it changes.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/sha256.h"

namespace riptide {

enum class CacheTier : uint8_t { device, host, disk };
inline constexpr int kCacheTiers = 3;

/// A page or a checkpoint that a tier holds from now on, or no longer; or all of a tier, gone.
struct CacheChange {
    enum class Kind : uint8_t { page, checkpoint, cleared };
    Kind kind = Kind::page;
    CacheTier tier = CacheTier::device;
    bool held = false;
    bool first = false;   // page: nothing is before it
    uint64_t name = 0;    // short_name() of the node's or the record's
    uint64_t parent = 0;  // page: the one before it, or what its salt is called; checkpoint: the page that it hangs at
    size_t tokens = 0;    // page, held: where its tokens begin in CacheChanges::tokens,
    size_t rows = 0;      // and how many they are
    size_t owner = 0;     // page, first and held: one more than its PrefixSalt::isolation in CacheChanges; 0: none
};

/// The first eight bytes of a name, big-endian; 1 in place of 0. Equal on machines that hold equal state.
uint64_t short_name(const Digest& name);

/// Changes in the order in which they came, one page's tokens after the other.
struct CacheChanges {
    std::vector<CacheChange> list;
    std::vector<int32_t> tokens;
    std::vector<std::string> owners;
    bool lost = false;   // there were more than the feed holds, and what was heard before is out of date
    bool fresh = false;  // these are all that is held: nothing heard before counts
    void clear();
};

/// A queue from the thread that owns a PrefixCache to one that tells others. The first never waits for the second, and
/// allocates nothing once buffers have grown: the second takes them whole. When `most` changes wait, all are dropped
/// and the second hears that they are lost; it is then told everything anew (PrefixCache), with the next request.
class CacheFeed {
  public:
    explicit CacheFeed(size_t most = size_t{1} << 16) : most_(most) {}
    CacheFeed(const CacheFeed&) = delete;
    CacheFeed& operator=(const CacheFeed&) = delete;

    // The cache's thread.

    /// `isolation`: of the first page of a salt.
    void page(CacheTier tier, const Digest& name, const Digest& parent, std::span<const int32_t> tokens, bool first,
              std::string_view isolation);
    void checkpoint(CacheTier tier, const Digest& name, const Digest& page);
    void gone(CacheChange::Kind kind, CacheTier tier, const Digest& name);
    void cleared(CacheTier tier);
    /// Whether changes were lost and the second thread knows.
    bool wants_all() const { return wants_all_.load(std::memory_order_relaxed); }
    /// What comes between the two is everything, and does not count towards `most`.
    void begin_all();
    void end_all();

    // The other one.

    /// All that has come since, in place of what `changes` held.
    void take(CacheChanges& changes);

    /// What the other thread has told, for metrics; from any thread.
    struct Told {
        std::atomic<int64_t> events = 0;  // pages stored or removed, and clearings
        std::atomic<int64_t> lost = 0;    // times that changes were lost
        std::atomic<int64_t> epochs = 0;  // times that all was told anew, the start too
    };
    Told told;

  private:
    bool has_room();
    void add(CacheChange change);

    const size_t most_;
    std::mutex mutex_;
    CacheChanges waiting_;
    bool telling_all_ = false;
    size_t all_ = 0;  // of those that wait: told as everything
    std::atomic<bool> wants_all_ = false;
};

}  // namespace riptide
