// Tells routers over ZeroMQ which prefixes this server can go on from.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "apps/events/kv_event_batch.h"
#include "cache/cache_feed.h"

namespace riptide::apps {

struct KvEventsOptions {
    std::string endpoint;  // "tcp://127.0.0.1:5557"; empty: nobody is told
    std::string replay;    // where what was missed can be asked for; empty: nowhere
    std::string topic;     // "kv@ADDRESS:PORT@MODEL": who tells
    bool disk = false;     // KvEventLogOptions::disk
    KvEventForm form = KvEventForm::array;
};

/// Both sockets, and a thread that publishes what comes by a CacheFeed, every 50 ms:
/// - XPUB at `endpoint`, of three frames: topic, number of the message (8 bytes, big-endian), payload (KvEventLog).
///   What a subscriber has no room for it misses; nobody waits for it, and kMostWaiting messages at most wait for it.
///   Without `replay` whoever subscribes makes all be told anew, at most once in five seconds.
/// - ROUTER at `replay`: a request ["", number] is answered by ["", topic, number, payload] for each message of this
///   epoch from that number on, then ["", "", eight bytes 0xff, ""].
/// The end of it says that nothing is held any more.
class KvEvents {
  public:
    static constexpr int kMostWaiting = 1024;

    /// Was riptide built with libzmq? Otherwise the rest throws.
    static bool available();
    /// Binds the sockets. Throws Error (usage, unavailable) naming the flag and the address.
    KvEvents(const KvEventsOptions& options, std::shared_ptr<CacheFeed> feed);
    ~KvEvents();
    KvEvents(const KvEvents&) = delete;
    KvEvents& operator=(const KvEvents&) = delete;

    /// Where they are bound, with the ports that were free; replay: empty without.
    const std::string& endpoint() const;
    const std::string& replay() const;

  private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace riptide::apps
