#include "server/http/event_queue.h"

#include <utility>

namespace riptide::server {

namespace {

int64_t bytes_of_tokens(const std::vector<Sampled>& tokens) {
    int64_t bytes = 0;
    for (const Sampled& token : tokens)
        bytes += static_cast<int64_t>(sizeof token + token.top.size() * sizeof token.top[0]);
    return bytes;
}

}  // namespace

int64_t payload_bytes(const Event& event) {
    if (const auto* text = std::get_if<TextDelta>(&event.body)) return std::ssize(text->text);
    if (const auto* thought = std::get_if<ReasoningDelta>(&event.body)) return std::ssize(thought->text);
    if (const auto* part = std::get_if<ToolCallArguments>(&event.body)) return std::ssize(part->json_fragment);
    if (const auto* drawn = std::get_if<TokensDrawn>(&event.body)) return bytes_of_tokens(drawn->tokens);
    if (const auto* row = std::get_if<RowRead>(&event.body)) return std::ssize(row->values) * int64_t{sizeof(float)};
    if (const auto* scored = std::get_if<PromptScored>(&event.body)) return bytes_of_tokens(scored->tokens);
    return 0;
}

Sink EventQueue::sink(int32_t request) {
    return [self = shared_from_this(), request](const Event& event) { self->put(request, event); };
}

void EventQueue::on_news(std::function<void()> wake) {
    const std::lock_guard lock(mutex_);
    wake_ = std::move(wake);
}

void EventQueue::count_in(HttpRoom& room) {
    const std::lock_guard lock(mutex_);
    share_.emplace(room);
    become(bytes_);
}

void EventQueue::become(int64_t bytes) {
    bytes_ = bytes;
    if (share_) share_->become(bytes);
}

std::vector<Item> EventQueue::take() {
    const std::lock_guard lock(mutex_);
    waiting_ = items_.empty();
    become(0);
    return std::exchange(items_, {});
}

void EventQueue::close() {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    wake_ = nullptr;
    items_.clear();
    share_.reset();
}

void EventQueue::put(int32_t request, const Event& event) {
    const std::lock_guard lock(mutex_);
    if (closed_) fail(ErrorKind::unavailable, "nobody reads the answer");
    if (items_.size() >= kMost) fail(ErrorKind::unavailable, "the client reads too slowly");
    items_.push_back({request, event});
    become(bytes_ + static_cast<int64_t>(sizeof(Item)) + payload_bytes(event));
    if (std::exchange(waiting_, false) && wake_) wake_();
}

}  // namespace riptide::server
