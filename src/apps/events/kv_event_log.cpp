#include "apps/events/kv_event_log.h"

#include <algorithm>
#include <utility>

namespace riptide::apps {

namespace {

/// Pages in a message, as far as whole events allow.
constexpr size_t kPagesAtOnce = UsablePages::kMostPages;

}  // namespace

KvEventMessage KvEventLog::keep(std::span<const PageNews> news, double time) {
    kept_.push_back({kept_.size(), std::make_shared<const std::string>(kv_event_batch(news, time, options_.form))});
    bytes_ += static_cast<int64_t>(kept_.back().payload->size());
    for (const PageNews& one : news) feed_.told.events += std::max<int64_t>(1, std::ssize(one.pages));
    return kept_.back();
}

std::vector<KvEventMessage> KvEventLog::next(double time) {
    feed_.take(changes_);
    pages_.hear(changes_);
    const bool full = kept_.size() - begun_with_ >= options_.most_messages ||
                      bytes_ >= std::max(options_.most_bytes, 4 * begun_bytes_);
    const bool begins = std::exchange(renew_, false) || changes_.lost || changes_.fresh || full;
    if (begins) {
        kept_.clear();
        bytes_ = 0;
        pages_.forget_told();
        ++feed_.told.epochs;
    }
    std::vector<PageNews> news = pages_.news();
    if (begins) news.insert(news.begin(), {.kind = PageNews::Kind::cleared});
    std::vector<KvEventMessage> messages;
    for (size_t begin = 0, end = 0; begin < news.size(); begin = end) {
        size_t pages = news[begin].pages.size();
        for (end = begin + 1; end < news.size() && pages + news[end].pages.size() <= kPagesAtOnce; ++end)
            pages += news[end].pages.size();
        messages.push_back(keep(std::span(news).subspan(begin, end - begin), time));
    }
    if (begins) {
        begun_with_ = kept_.size();
        begun_bytes_ = bytes_;
    }
    return messages;
}

KvEventMessage KvEventLog::last(double time) {
    const PageNews cleared{.kind = PageNews::Kind::cleared};
    return keep({&cleared, 1}, time);
}

}  // namespace riptide::apps
