#include "text/jinja/text.h"

#include <algorithm>

namespace riptide::jinja {

std::vector<TextSpan>::const_iterator Text::span_after(int64_t at) const {
    return std::upper_bound(spans_.begin(), spans_.end(), at,
                            [](int64_t a, const TextSpan& span) { return a < span.end; });
}

void Text::mix() {
    if (trust_ == Trust::mixed) return;
    spans_.clear();
    if (trust_ == Trust::all && !bytes_.empty()) spans_.push_back({0, size()});
    trust_ = Trust::mixed;
}

void Text::add_span(int64_t begin, int64_t end) {
    if (!spans_.empty() && spans_.back().end == begin) spans_.back().end = end;
    else spans_.push_back({begin, end});
}

void Text::append(std::string_view bytes, bool trusted) {
    if (bytes.empty()) return;
    if (bytes_.empty()) {
        trust_ = trusted ? Trust::all : Trust::none;
        spans_.clear();
    } else if (trust_ != (trusted ? Trust::all : Trust::none)) {
        mix();
        if (trusted) add_span(size(), size() + static_cast<int64_t>(bytes.size()));
    }
    bytes_.append(bytes);
}

void Text::append(const Text& other, int64_t begin, int64_t end) {
    const auto piece = [&](int64_t from, int64_t to) {
        return std::string_view(other.bytes_)
            .substr(static_cast<std::size_t>(from), static_cast<std::size_t>(to - from));
    };
    if (other.trust_ != Trust::mixed) {
        append(piece(begin, end), other.trust_ == Trust::all);
        return;
    }
    for (auto span = other.span_after(begin); begin < end; ++span) {
        const bool past = span == other.spans_.end();
        const int64_t from = past ? end : std::clamp(span->begin, begin, end);
        const int64_t to = past ? end : std::clamp(span->end, begin, end);
        append(piece(begin, from), false);
        append(piece(from, to), true);
        begin = to;
    }
}

Text Text::part(int64_t begin, int64_t end) const {
    Text out;
    out.append(*this, begin, end);
    return out;
}

bool Text::trusted_at(int64_t at) const {
    if (trust_ != Trust::mixed) return trust_ == Trust::all;
    const auto span = span_after(at);
    return span != spans_.end() && span->begin <= at;
}

int64_t Text::run_end(int64_t at) const {
    if (trust_ != Trust::mixed) return size();
    const auto span = span_after(at);
    if (span == spans_.end()) return size();
    return span->begin <= at ? span->end : span->begin;
}

std::vector<TextSpan> Text::trusted() const {
    if (trust_ == Trust::mixed) return spans_;
    if (trust_ == Trust::none || bytes_.empty()) return {};
    return {{0, size()}};
}

}  // namespace riptide::jinja
