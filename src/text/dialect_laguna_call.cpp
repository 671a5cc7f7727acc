// Laguna's stream parser, inside a tool call.
#include <algorithm>

#include "text/dialect_laguna_parser.h"

namespace riptide::laguna {
namespace {

constexpr std::size_t kMaxName = 256;

}  // namespace

std::size_t LagunaParser::on_name(std::string_view text) {
    constexpr std::string_view forbidden = "<>{}[]\"";
    for (std::size_t i = 0; i < text.size(); ++i) {
        const char c = text[i];
        raw_ += c;
        if (c == '\n' && !name_.empty()) {
            begin_call();
            return i + 1;
        }
        const bool space = kSpace.find(c) != std::string_view::npos;
        const bool control = static_cast<unsigned char>(c) < 0x20;
        if (space) {
            name_ended_ = !name_.empty();
        } else if (name_ended_ || control || forbidden.find(c) != std::string_view::npos) {
            abandon_call();
            return i + 1;
        } else {
            name_ += c;
        }
        if (raw_.size() > kMaxName + spelling_of(Marker::tool_call).size()) {
            abandon_call();
            return i + 1;
        }
    }
    return text.size();
}

std::size_t LagunaParser::on_between(std::string_view text) {
    if (!junk_) {
        const std::size_t space = std::min(text.find_first_not_of(kSpace), text.size());
        if (space > 0) return space;
    }
    junk_ = true;
    writer_.write_verbatim(DeltaWriter::Channel::text, text);
    return text.size();
}

std::size_t LagunaParser::on_held(std::string_view text) {
    const std::size_t space = std::min(text.find_first_not_of(kSpace), text.size());
    hold_.append(text.substr(0, space));
    if (space < text.size()) value_goes_on();
    return space;
}

// In a call, outside values.
void LagunaParser::on_call_marker(Marker marker) {
    if (marker == Marker::think || marker == Marker::end_think) return;
    close_call(marker == Marker::end_tool_call || (marker == Marker::tool_call && state_ == State::before_key));
    if (marker == Marker::tool_call) start_call();
    if (marker == Marker::end_assistant) done_ = true;
}

// In a value, or behind what may have been its end.
void LagunaParser::on_value_marker(Marker marker) {
    const bool ended = state_ == State::after_value;
    const bool closed = state_ == State::after_close;
    if (marker == Marker::end_assistant || (marker == Marker::tool_call && (ended || closed)) ||
        (marker == Marker::end_tool_call && ended)) {
        close_call(closed || marker != Marker::end_assistant);
        if (marker == Marker::tool_call) start_call();
        if (marker == Marker::end_assistant) done_ = true;
        return;
    }
    if (ended || closed) value_goes_on();
    const std::string_view spelling = spelling_of(marker);
    if (marker == Marker::end_tool_call) {
        state_ = State::after_close;
        hold_ = spelling;
    } else {
        on_plain(spelling);
    }
}

void LagunaParser::start_call() {
    origin_ = state_;
    state_ = State::name;
    raw_ = spelling_of(Marker::tool_call);
    name_.clear();
    name_ended_ = false;
}

void LagunaParser::begin_call() {
    state_ = State::before_key;
    junk_ = false;
    arguments_ = {};
    writer_.end_section();
    writer_.begin_call(name_);
}

// No call after all: its text goes where it came from.
void LagunaParser::abandon_call() {
    state_ = origin_;
    write(raw_);
    raw_.clear();
}

void LagunaParser::close_call(bool complete) {
    std::string fragment;
    arguments_.end(fragment);
    writer_.write_arguments(fragment);
    writer_.end_call(complete);
    writer_.expect_newline();
    state_ = State::content;
    tag_.clear();
    hold_.clear();
}

void LagunaParser::start_value() {
    const std::size_t first = std::min(key_.find_first_not_of(kSpace), key_.size());
    const std::size_t last = key_.find_last_not_of(kSpace);
    const std::string key = key_.substr(first, last + 1 - first);
    std::string fragment;
    arguments_.begin_value(key, options_.tools.type_of(name_, key), fragment);
    writer_.write_arguments(fragment);
    state_ = State::value;
}

// The closing tag that was held is part of the value.
void LagunaParser::value_goes_on() {
    state_ = State::value;
    std::string held;
    held.swap(hold_);
    on_plain(held);
}

}  // namespace riptide::laguna
