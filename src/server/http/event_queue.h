// The way from the engine's thread to the connection that waits for an answer.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "engine/request.h"
#include "server/http/room.h"

namespace riptide::server {

/// An event of one of the engine requests that make up a reply.
struct Item {
    int32_t request = 0;  // 0, 1, ... in the order of the prompts
    Event event;
};

/// What the text and tokens of an event take.
int64_t payload_bytes(const Event& event);

/// A bounded queue. The engine's thread puts events in and never waits; one reader takes all that is there.
/// Thread-safe.
class EventQueue : public std::enable_shared_from_this<EventQueue> {
  public:
    /// A reader that lets so many events lie has stopped reading.
    static constexpr std::size_t kMost = 65536;

    /// What Engine::submit is given for prompt number `request`. It keeps the queue alive. It throws, which cancels the
    /// engine's request, once the queue is closed or full.
    Sink sink(int32_t request);

    /// Sets what is called, on the engine's thread, when the first event comes after take() has returned none. It must
    /// not block.
    void on_news(std::function<void()> wake);
    /// From now on what lies here counts as memory of requests, until close(). `room` must live so long.
    void count_in(HttpRoom& room);
    /// All that has come, in order.
    std::vector<Item> take();
    /// Nobody reads any more: `wake` is not called again, events are dropped.
    void close();

  private:
    void put(int32_t request, const Event& event);
    void become(int64_t bytes);

    std::mutex mutex_;
    std::vector<Item> items_;
    int64_t bytes_ = 0;  // of them
    std::optional<HttpRoom::Share> share_;
    std::function<void()> wake_;
    bool waiting_ = false, closed_ = false;
};

}  // namespace riptide::server
