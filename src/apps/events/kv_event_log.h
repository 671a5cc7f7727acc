// K/V events in the order in which routers get them: messages, sequence numbers, epochs.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "apps/events/kv_event_batch.h"
#include "cache/cache_feed.h"
#include "cache/usable_pages.h"

namespace riptide::apps {

struct KvEventLogOptions {
    bool disk = false;  // blocks on disk are told of too
    KvEventForm form = KvEventForm::array;
    size_t most_messages = 8000;             // that are kept beyond those that an epoch began with
    int64_t most_bytes = int64_t{32} << 20;  // of messages that are kept, or four times what the epoch began with
};

struct KvEventMessage {
    uint64_t sequence = 0;
    std::shared_ptr<const std::string> payload;  // kv_event_batch()
};

/// Makes messages of what a cache says of itself. All since the last epoch began are kept, so that whoever asks from
/// number 0 on gets them without a gap. An epoch begins with AllBlocksCleared and all usable pages, at number 0: at the
/// start, when renew() was called, when changes were lost, and when too much would be kept. To a router that looks as
/// if the server had been started again.
///
/// Not thread-safe. Cost: what has changed; an epoch costs what is held.
class KvEventLog {
  public:
    /// The feed must outlive it. Counts in feed.told.
    KvEventLog(CacheFeed& feed, const KvEventLogOptions& options)
        : feed_(feed), options_(options), pages_(options.disk) {}

    /// Takes what the feed has, and makes messages of it. `time`: kv_event_batch().
    std::vector<KvEventMessage> next(double time);
    /// The next messages begin an epoch.
    void renew() { renew_ = true; }
    /// The last message of a server that ends: nothing is there any more.
    KvEventMessage last(double time);

    /// Number i of this epoch.
    const std::vector<KvEventMessage>& kept() const { return kept_; }

  private:
    KvEventMessage keep(std::span<const PageNews> news, double time);

    CacheFeed& feed_;
    KvEventLogOptions options_;
    UsablePages pages_;
    CacheChanges changes_;
    bool renew_ = true;
    std::vector<KvEventMessage> kept_;
    int64_t bytes_ = 0;        // of those kept
    size_t begun_with_ = 0;    // messages that began the epoch,
    int64_t begun_bytes_ = 0;  // and their bytes
};

}  // namespace riptide::apps
