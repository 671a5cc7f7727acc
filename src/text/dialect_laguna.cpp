#include "text/dialect_laguna.h"

#include <algorithm>
#include <array>

#include "text/delta_writer.h"
#include "text/tag_match.h"
#include "text/utf8.h"

namespace riptide {
namespace {

constexpr std::size_t kMaxName = 256;
constexpr std::string_view kSpace = " \t\r\n";

enum class Marker { think, end_think, tool_call, end_tool_call, end_assistant };
constexpr std::array<std::string_view, 5> kMarkers = {"<think>", "</think>", "<tool_call>", "</tool_call>", "</assistant>"};

enum class State {
    reasoning,
    content,
    name,          // behind <tool_call>
    before_key,    // in a call, between arguments
    key,           // behind <arg_key>
    before_value,  // behind </arg_key>
    value,         // behind <arg_value>
    after_value,   // behind </arg_value>, not yet sure that it ended the value
    after_close,   // behind </tool_call> in an open value, not yet sure that it ended the call
};

constexpr std::string_view kArgKey = "<arg_key>", kEndArgKey = "</arg_key>";
constexpr std::string_view kArgValue = "<arg_value>", kEndArgValue = "</arg_value>";

constexpr std::array<std::string_view, 2> kKeyTags = {kArgKey};
constexpr std::array<std::string_view, 2> kEndKeyTags = {kEndArgKey};
constexpr std::array<std::string_view, 2> kValueTags = {kArgValue, kArgKey};
constexpr std::array<std::string_view, 2> kEndValueTags = {kEndArgValue};

// The plain-text tags that mean something in a state.
std::span<const std::string_view> tags_of(State state) {
    switch (state) {
        case State::name:
        case State::before_key:
        case State::after_value: return std::span(kKeyTags).first(1);
        case State::key: return std::span(kEndKeyTags).first(1);
        case State::before_value: return kValueTags;
        case State::value: return std::span(kEndValueTags).first(1);
        default: return {};
    }
}

class LagunaParser final : public StreamParser {
  public:
    explicit LagunaParser(LagunaParserOptions options)
        : options_(std::move(options)),
          state_(options_.thinking ? State::reasoning : State::content),
          writer_(options_.newline_framing, options_.call_id_prefix) {}

    void push_token(std::string_view text, bool is_special, StreamEvents& out) override;
    void finish(StreamEvents& out) override;

  private:
    // Input, from bytes to whole characters to text and markers.
    void on_characters(std::string_view text);
    void flush_marker();
    void on_text(std::string_view text);
    std::size_t on_plain(std::string_view text);
    void on_all_plain(std::string_view text);
    void flush_tag();
    void on_tag(std::string_view tag);
    void on_marker(Marker marker);
    bool on_section_marker(Marker marker);
    void on_call_marker(Marker marker);
    void on_value_marker(Marker marker);
    std::size_t on_name(std::string_view text);
    std::size_t on_between(std::string_view text);
    std::size_t on_held(std::string_view text);

    // Steps of a call.
    void start_call();
    void begin_call();
    void abandon_call();
    void close_call(bool complete);
    void start_value();
    void value_goes_on();

    // Output to the section that the parser is in.
    void write(std::string_view text);

    LagunaParserOptions options_;
    State state_;
    bool done_ = false;     // </assistant> has come
    DeltaWriter writer_;

    Utf8Stream utf8_;
    std::string marker_;  // start of a marker in plain text (strict_specials off)
    std::string tag_;     // start of a plain-text tag
    std::string hold_;    // a closing tag and white space, in after_value and after_close

    int literal_thinks_ = 0;  // <think> tags that were shown as text

    State origin_ = State::content;  // where <tool_call> came
    std::string raw_;                // of a call whose name is not complete
    std::string name_;
    bool name_ended_ = false;  // white space behind the name
    std::string key_;
    bool junk_ = false;  // text where none belongs, between the parts of a call
    ToolArguments arguments_;
};

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
        case State::content: write(text); return text.size();
        case State::name: return on_name(text);
        case State::before_key:
        case State::before_value: return on_between(text);
        case State::key: key_.append(text); return text.size();
        case State::value:
            arguments_.append(text, fragment);
            writer_.write_arguments(fragment);
            return text.size();
        case State::after_value:
        case State::after_close: return on_held(text);
    }
    return text.size();
}

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
        if (raw_.size() > kMaxName + kMarkers[2].size()) {
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
        case Marker::tool_call: start_call(); break;
        case Marker::end_assistant: done_ = true; break;
        case Marker::end_tool_call: write(kMarkers[3]); break;
        case Marker::think:
            if (writer_.visible() || (!in_reasoning && writer_.calls() > 0)) {
                write(kMarkers[0]);
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
                write(kMarkers[1]);
                --literal_thinks_;
            } else if (!writer_.visible()) {
                writer_.expect_newline();
            }
            break;
    }
    return true;
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
    const std::string_view spelling = kMarkers[static_cast<std::size_t>(marker)];
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
    raw_ = kMarkers[2];
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

void LagunaParser::write(std::string_view text) {
    using Channel = DeltaWriter::Channel;
    writer_.write(state_ == State::reasoning ? Channel::reasoning : Channel::text, text);
}

}  // namespace

std::unique_ptr<StreamParser> make_laguna_parser(LagunaParserOptions options) {
    return std::make_unique<LagunaParser>(std::move(options));
}

bool laguna_starts_thinking(std::span<const int32_t> prompt, int32_t think, int32_t end_think, int32_t assistant) {
    for (std::size_t i = prompt.size(); i-- > 0;) {
        const int32_t id = prompt[i];
        if (id == think || id == end_think || id == assistant) return id == think;
    }
    return false;
}

}  // namespace riptide
