#include "server/event_queue.h"

#include <utility>

namespace riptide::server {

Sink EventQueue::sink(int32_t request) {
    return [self = shared_from_this(), request](const Event& event) { self->put(request, event); };
}

void EventQueue::on_news(std::function<void()> wake) {
    const std::lock_guard lock(mutex_);
    wake_ = std::move(wake);
}

std::vector<Item> EventQueue::take() {
    const std::lock_guard lock(mutex_);
    waiting_ = items_.empty();
    return std::exchange(items_, {});
}

void EventQueue::close() {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    wake_ = nullptr;
    items_.clear();
}

void EventQueue::put(int32_t request, const Event& event) {
    const std::lock_guard lock(mutex_);
    if (closed_) fail(ErrorKind::unavailable, "nobody reads the answer");
    if (items_.size() >= kMost) fail(ErrorKind::unavailable, "the client reads too slowly");
    items_.push_back({request, event});
    if (std::exchange(waiting_, false) && wake_) wake_();
}

}  // namespace riptide::server
