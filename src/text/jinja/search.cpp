#include "text/jinja/search.h"

#include <cstring>

namespace riptide::jinja {

void TextFinder::learn() {
    const auto bytes = static_cast<int64_t>(wanted_.size() * sizeof(int32_t));
    heap_.take(bytes);
    taken_ = bytes;
    borders_.resize(wanted_.size());
    for (std::size_t i = 1; i < wanted_.size(); ++i) {
        heap_.step_bytes(4);
        int32_t border = borders_[i - 1];
        while (border > 0 && met(wanted_, i) != met(wanted_, static_cast<std::size_t>(border)))
            border = borders_[static_cast<std::size_t>(border) - 1];
        borders_[i] = border + (met(wanted_, i) == met(wanted_, static_cast<std::size_t>(border)) ? 1 : 0);
    }
}

/// From `at` on, the next byte that may begin what is wanted.
std::size_t TextFinder::skip(std::string_view text, std::size_t at) const {
    const std::size_t rest = text.size() - at;
    const char first = met(wanted_, 0);
    const void* const found = back_ ? ::memrchr(text.data(), first, rest) : std::memchr(text.data() + at, first, rest);
    std::size_t to = text.size();
    if (found != nullptr) {
        const auto place = static_cast<std::size_t>(static_cast<const char*>(found) - text.data());
        to = back_ ? text.size() - 1 - place : place;
    }
    heap_.step_bytes(static_cast<int64_t>(to - at) / 4);
    return to;
}

std::size_t TextFinder::find(std::string_view text) {
    if (wanted_.empty()) return back_ ? text.size() : 0;
    if (wanted_.size() > text.size()) return std::string_view::npos;
    if (borders_.empty()) learn();
    std::size_t matched = 0;
    for (std::size_t at = 0; at < text.size(); ++at) {
        if (matched == 0 && (at = skip(text, at)) == text.size()) break;
        heap_.step_bytes(4);
        const char byte = met(text, at);
        while (matched > 0 && met(wanted_, matched) != byte) matched = static_cast<std::size_t>(borders_[matched - 1]);
        if (met(wanted_, matched) == byte) ++matched;
        if (matched == wanted_.size()) return back_ ? text.size() - 1 - at : at + 1 - matched;
    }
    return std::string_view::npos;
}

}  // namespace riptide::jinja
