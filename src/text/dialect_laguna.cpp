// Laguna's stream parser, the input side: bytes to characters to text and tags, and what tags mean outside calls.
#include "text/dialect_laguna.h"

#include <algorithm>
#include <span>

#include "text/dialect_laguna_parser.h"
#include "text/tag_match.h"

namespace riptide {
namespace laguna {
namespace {

constexpr std::array<std::string_view, 2> kKeyTags = {kArgKey};
constexpr std::array<std::string_view, 2> kEndKeyTags = {kEndArgKey};
constexpr std::array<std::string_view, 2> kValueTags = {kArgValue, kArgKey};
constexpr std::array<std::string_view, 2> kEndValueTags = {kEndArgValue};

// The plain-text tags that mean something in a state.
std::span<const std::string_view> tags_of(State state) {
    switch (state) {
        case State::name:
        case State::before_key:
        case State::after_value:
            return std::span(kKeyTags).first(1);
        case State::key:
            return std::span(kEndKeyTags).first(1);
        case State::before_value:
            return kValueTags;
        case State::value:
            return std::span(kEndValueTags).first(1);
        default:
            return {};
    }
}

}  // namespace

void LagunaParser::push_token(std::string_view text, bool is_special, StreamEvents& out) {
    writer_.attach(out);
    if (done_) return;
    const auto marker = std::find(kMarkers.begin(), kMarkers.end(), text);
    std::string characters;
    if (is_special && marker != kMarkers.end()) {
        utf8_.finish(characters);
        on_characters(characters);
        flush_marker();
        on_marker(static_cast<Marker>(marker - kMarkers.begin()));
        return;
    }
    utf8_.push(text, characters);
    on_characters(characters);
}

void LagunaParser::finish(StreamEvents& out) {
    writer_.attach(out);
    if (!done_) {
        std::string characters;
        utf8_.finish(characters);
        on_characters(characters);
        const bool in_call = state_ != State::reasoning && state_ != State::content && state_ != State::name;
        if (!in_call) {
            flush_marker();
            flush_tag();
        }
        if (state_ == State::name) abandon_call();
        if (in_call) close_call(state_ == State::after_close);
    }
    writer_.finish(done_);
}

// Plain text, whole characters. Without strict specials it may spell markers.
void LagunaParser::on_characters(std::string_view text) {
    if (options_.strict_specials) return on_text(text);
    while (!text.empty()) {
        if (marker_.empty()) {
            const std::size_t plain = std::min(text.find('<'), text.size());
            on_text(text.substr(0, plain));
            text.remove_prefix(plain);
            if (text.empty()) break;
        }
        const TagStep step = step_tag(kMarkers, marker_, text[0]);
        if (!step.possible) {
            flush_marker();
            continue;
        }
        marker_ += text[0];
        text.remove_prefix(1);
        if (step.complete < 0) continue;
        marker_.clear();
        on_marker(static_cast<Marker>(step.complete));
        if (done_) return;
    }
}

void LagunaParser::flush_marker() {
    std::string text;
    text.swap(marker_);
    on_text(text);
}

// Plain text that spells no marker: finds the arg tags.
void LagunaParser::on_text(std::string_view text) {
    while (!text.empty()) {
        const auto tags = tags_of(state_);
        if (tag_.empty()) {
            const std::size_t plain = tags.empty() ? text.size() : std::min(text.find('<'), text.size());
            if (plain > 0) {
                text.remove_prefix(on_plain(text.substr(0, plain)));
                continue;
            }
        }
        const TagStep step = step_tag(tags, tag_, text[0]);
        if (!step.possible) {
            if (state_ == State::after_value) {
                value_goes_on();  // and what looked like one tag may still be the other
            } else {
                flush_tag();
            }
            continue;
        }
        tag_ += text[0];
        text.remove_prefix(1);
        if (step.complete < 0) continue;
        tag_.clear();
        on_tag(tags[static_cast<std::size_t>(step.complete)]);
    }
}

// What looked like the start of a tag is text.
void LagunaParser::flush_tag() {
    if (tag_.empty()) return;
    if (state_ == State::after_value) value_goes_on();
    std::string text;
    text.swap(tag_);
    on_all_plain(text);
}

void LagunaParser::on_all_plain(std::string_view text) {
    while (!text.empty()) text.remove_prefix(on_plain(text));
}

// Text without tags; returns how much of it was used before the state changed (possibly 0, if it changed at once).
std::size_t LagunaParser::on_plain(std::string_view text) {
    std::string fragment;
    switch (state_) {
        case State::reasoning:
        case State::content:
            write(text);
            return text.size();
        case State::name:
            return on_name(text);
        case State::before_key:
        case State::before_value:
            return on_between(text);
        case State::key:
            key_.append(text);
            return text.size();
        case State::value:
            arguments_.append(text, fragment);
            writer_.write_arguments(fragment);
            return text.size();
        case State::after_value:
        case State::after_close:
            return on_held(text);
    }
    return text.size();
}

void LagunaParser::on_tag(std::string_view tag) {
    std::string fragment;
    if (tag == kEndArgKey) {
        state_ = State::before_value;
        junk_ = false;
    } else if (tag == kArgValue) {
        start_value();
    } else if (tag == kEndArgValue) {
        state_ = State::after_value;
        hold_ = tag;
    } else {  // <arg_key>
        if (state_ == State::after_value) arguments_.end_value(fragment);
        writer_.write_arguments(fragment);
        if (state_ == State::name) {
            raw_.append(tag);
            if (name_.empty()) return abandon_call();
            begin_call();
        }
        state_ = State::key;
        key_.clear();
    }
}

void LagunaParser::on_marker(Marker marker) {
    flush_tag();
    if (state_ == State::name) {
        if (marker == Marker::end_tool_call && !name_.empty()) {
            begin_call();
            return close_call(true);
        }
        abandon_call();
    }
    if (on_section_marker(marker)) return;
    if (state_ == State::value || state_ == State::after_value || state_ == State::after_close) {
        on_value_marker(marker);
    } else {
        on_call_marker(marker);
    }
}

// Outside calls. False if the state is inside one.
bool LagunaParser::on_section_marker(Marker marker) {
    if (state_ != State::reasoning && state_ != State::content) return false;
    const bool in_reasoning = state_ == State::reasoning;
    const auto enter = [&](State state) {
        state_ = state;
        writer_.start_section();
    };
    switch (marker) {
        case Marker::tool_call:
            start_call();
            break;
        case Marker::end_assistant:
            done_ = true;
            break;
        case Marker::end_tool_call:
            write(spelling_of(Marker::end_tool_call));
            break;
        case Marker::think:
            if (writer_.visible() || (!in_reasoning && writer_.calls() > 0)) {
                write(spelling_of(Marker::think));
                ++literal_thinks_;
            } else {
                enter(State::reasoning);
            }
            break;
        case Marker::end_think:
            if (in_reasoning) {
                enter(State::content);
                literal_thinks_ = 0;
            } else if (literal_thinks_ > 0) {
                write(spelling_of(Marker::end_think));
                --literal_thinks_;
            } else if (!writer_.visible()) {
                writer_.expect_newline();
            }
            break;
    }
    return true;
}

void LagunaParser::write(std::string_view text) {
    using Channel = DeltaWriter::Channel;
    writer_.write(state_ == State::reasoning ? Channel::reasoning : Channel::text, text);
}

}  // namespace laguna

std::unique_ptr<StreamParser> make_laguna_parser(LagunaParserOptions options) {
    return std::make_unique<laguna::LagunaParser>(std::move(options));
}

}  // namespace riptide
