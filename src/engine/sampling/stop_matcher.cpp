#include "engine/sampling/stop_matcher.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace riptide {

StopMatcher::StopMatcher(std::vector<std::string> stops) : stops_(std::move(stops)) {
    for (const std::string& stop : stops_) RT_ASSERT(!stop.empty());
}

/// Length of the longest end of held_ that begins a stop string.
size_t StopMatcher::held_back() const {
    size_t longest = 0;
    for (const std::string& stop : stops_) {
        for (size_t n = std::min(stop.size() - 1, held_.size()); n > longest; --n) {
            if (held_.ends_with(std::string_view(stop).substr(0, n))) longest = n;
        }
    }
    return longest;
}

std::string StopMatcher::push(std::string_view text) {
    if (matched_) return {};
    held_ += text;
    size_t best_end = std::string::npos, best_begin = 0;
    for (const std::string& stop : stops_) {
        const size_t begin = held_.find(stop);
        if (begin == std::string::npos) continue;
        const size_t end = begin + stop.size();
        if (end > best_end || (end == best_end && begin >= best_begin)) continue;
        best_end = end;
        best_begin = begin;
    }
    if (best_end != std::string::npos) {
        matched_ = true;
        match_ = held_.substr(best_begin, best_end - best_begin);
        return std::exchange(held_, {}).substr(0, best_begin);
    }
    const size_t ready = held_.size() - held_back();
    std::string out = held_.substr(0, ready);
    held_.erase(0, ready);
    return out;
}

std::string StopMatcher::finish() { return matched_ ? std::string() : std::exchange(held_, {}); }

}  // namespace riptide
