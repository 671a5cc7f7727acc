// Qwen's stream parser: what happens inside a tool call. The rules stand in qwen.h.
#include "text/dialects/qwen_parser.h"

#include <algorithm>
#include <array>
#include <utility>

#include "text/dialects/qwen.h"
#include "text/dialects/qwen_tags.h"

namespace riptide {

namespace {

using namespace qwen;

constexpr std::array<std::string_view, 1> kOpenTags = {kFunction};
constexpr std::array<std::string_view, 2> kBareTags = {kParameter, kEndFunction};
constexpr std::array<std::string_view, 3> kBetweenTags = {kParameter, kEndFunction, kFunction};
constexpr std::array<std::string_view, 3> kQwenValueTags = {kEndParameter, kEndFunction, kParameter};

constexpr int kFraming = 2;               // newlines round markup, at most
constexpr std::size_t kLongestKey = 256;  // of one that ends a value

}  // namespace

QwenParser::QwenParser(ParserOptions options)
    : SectionParser(options, kEndTurn, DeltaWriter(kFraming, options.thinking ? kFraming : 0, options.call_id_prefix),
                    true) {}

bool QwenParser::is_held() const {
    return state_ == State::after_value || state_ == State::after_function || state_ == State::lone_function ||
           state_ == State::after_close;
}

void QwenParser::on_open() {
    state_ = State::open;
    bare_ = false;
}

void QwenParser::on_bare_open() {
    state_ = State::name;
    name_ = {};
    bare_ = true;
}

std::span<const std::string_view> QwenParser::bare_tags() const { return kOpenTags; }

std::span<const std::string_view> QwenParser::tags() const {
    switch (state_) {
        case State::open:
        case State::after_function:
        case State::lone_function:
            return kOpenTags;
        case State::rest:
            return is_object_ ? std::span<const std::string_view>() : kOpenTags;
        case State::bare:
            return kBareTags;
        case State::between:
        case State::after_value:
            return kBetweenTags;
        case State::value:
            return kQwenValueTags;
        default:
            return {};
    }
}

void QwenParser::on_tag(std::string_view tag) {
    if (tag == kFunction) return on_function();
    if (state_ == State::bare) begin_function();
    if (tag == kParameter && state_ == State::value) {
        hold_ = tag;
        state_ = State::next_key;
        if (!held_newline_) goes_on();
    } else if (tag == kParameter) {
        start_key();
    } else if (state_ == State::between || (bare_ && state_ == State::after_value)) {
        finish_arguments(true);
    } else if (tag == kEndParameter) {
        state_ = State::after_value;
        hold_ = tag;
    } else {
        state_ = state_ == State::value ? State::lone_function : State::after_function;
        hold_.append(tag);
    }
}

/// <function=
void QwenParser::on_function() {
    if (state_ == State::open) {
        raw_.append(kFunction);
        state_ = State::name;
        name_ = {};
        return;
    }
    back_ = state_;
    state_ = State::next_name;
    next_name_ = {};
    hold_.append(kFunction);
}

/// What may have ended a value, if it was open, is over: a key follows.
void QwenParser::start_key() {
    std::string fragment;
    if (state_ != State::between) arguments_.end_value(fragment);
    writer_.write_arguments(fragment);
    state_ = State::key;
    key_.clear();
    hold_.clear();
}

std::size_t QwenParser::on_call_text(std::string_view text) {
    switch (state_) {
        case State::open:
            return on_open_text(text);
        case State::name:
            return on_name(text);
        case State::bare:
            return on_bare(text);
        case State::next_name:
            return on_next_name(text);
        case State::key:
            return on_key(text);
        case State::next_key:
            return on_next_key(text);
        case State::value:
            write_value(text);
            return text.size();
        case State::object:
            return on_object(text);
        case State::between:
        case State::rest:
            return on_space(text);
        case State::after_value:
        case State::after_function:
        case State::lone_function:
        case State::after_close:
            break;
    }
    return on_held(text);
}

std::size_t QwenParser::on_held(std::string_view text) {
    const std::size_t space = std::min(text.find_first_not_of(kCallSpace), text.size());
    hold_.append(text.substr(0, space));
    if (space < text.size()) goes_on();
    return space;
}

bool QwenParser::on_no_tag() {
    if (!is_held() || state_ == State::after_close) return false;
    goes_on();
    return true;
}

std::size_t QwenParser::on_open_text(std::string_view text) {
    const std::size_t space = std::min(text.find_first_not_of(kCallSpace), text.size());
    raw_.append(text.substr(0, space));
    if (space == text.size()) return space;
    if (text[space] != '{') {
        abandon_call();
        return space;
    }
    state_ = State::object;
    is_object_ = true;
    object_ = {};
    return space;
}

std::size_t QwenParser::on_name(std::string_view text) {
    for (std::size_t i = 0; i < text.size(); ++i) {
        raw_ += text[i];
        const CallName::Step step = name_.push(text[i], '>');
        if (step == CallName::Step::more) continue;
        const bool known = bare_ ? options_.tools.offers(name_.text()) : is_tool_name(name_.text());
        if (step == CallName::Step::wrong || !known) abandon_call();
        else if (bare_) state_ = State::bare;
        else begin_function();
        return i + 1;
    }
    return text.size();
}

std::size_t QwenParser::on_bare(std::string_view text) {
    const std::size_t space = std::min(text.find_first_not_of(kCallSpace), text.size());
    raw_.append(text.substr(0, space));
    if (space < text.size()) abandon_call();
    return space;
}

// The name of a tool that is offered begins a call; else nothing has ended.
std::size_t QwenParser::on_next_name(std::string_view text) {
    for (std::size_t i = 0; i < text.size(); ++i) {
        const CallName::Step step = next_name_.push(text[i], '>');
        if (step != CallName::Step::wrong) hold_ += text[i];
        if (step == CallName::Step::more) continue;
        if (step == CallName::Step::wrong || !options_.tools.offers(next_name_.text())) {
            give_back();
            return step == CallName::Step::wrong ? i : i + 1;
        }
        if (back_ != State::rest) finish_arguments(true);
        end_call(complete_);
        name_ = next_name_;
        begin_function();
        return i + 1;
    }
    return text.size();
}

// No further call after all.
void QwenParser::give_back() {
    state_ = back_;
    if (is_held()) return goes_on();
    junk_ = true;
    writer_.write_verbatim(DeltaWriter::Channel::text, std::exchange(hold_, {}));
    if (bare_ && state_ == State::rest) end_call(complete_);
}

void QwenParser::begin_function() {
    state_ = State::between;
    is_object_ = junk_ = false;
    hold_.clear();
    arguments_ = {};
    begin_call(name_.text());
}

std::size_t QwenParser::on_key(std::string_view text) {
    const std::size_t end = text.find('>');
    key_.append(text.substr(0, end));
    if (end == std::string_view::npos) return text.size();
    start_value();
    return end + 1;
}

// Behind <parameter= at the beginning of a line of a value: where the tool has such a parameter and no value of it has
// come, the end of the value is missing.
std::size_t QwenParser::on_next_key(std::string_view text) {
    for (std::size_t i = 0; i < text.size(); ++i) {
        const bool ends = text[i] == '>';
        const std::string key = ends ? hold_.substr(kParameter.size()) : "";
        if (ends && options_.tools.declares(name_.text(), key) && !arguments_.has(key)) {
            start_key();
            key_ = key;
            start_value();
            return i + 1;
        }
        if (ends || text[i] == '\n' || text[i] == '<' || hold_.size() >= kLongestKey) {
            goes_on();
            return i;
        }
        hold_ += text[i];
    }
    return text.size();
}

// White space between the parts of a call, and what else comes there.
std::size_t QwenParser::on_space(std::string_view text) {
    const std::size_t space = junk_ ? 0 : std::min(text.find_first_not_of(kCallSpace), text.size());
    const bool over = state_ == State::rest && !junk_ && space < text.size();
    if (over && (bare_ || (is_object_ && text[space] == '{'))) {
        const bool next = !bare_;  // another object
        end_call(complete_);
        if (next) start_next_call();
        return space;
    }
    junk_ = space < text.size();
    writer_.write_verbatim(DeltaWriter::Channel::text, text.substr(space));
    return text.size();
}

std::size_t QwenParser::on_object(std::string_view text) {
    const std::size_t used = object_.push(text);
    if (place() == Place::opening) {
        raw_.append(text.substr(0, used));
        const bool ready = object_.has_arguments() || object_.state() == JsonCall::State::closed;
        const bool named = !object_.name().empty();
        if (named && !is_tool_name(object_.name())) {
            abandon_call();
            return used;
        }
        if (named && ready) begin_call(object_.name());
        else if (object_.state() != JsonCall::State::open) abandon_call();
    }
    if (place() != Place::call) return used;
    writer_.write_arguments(object_.take());
    if (object_.state() != JsonCall::State::open) finish_arguments(object_.complete());
    return used;
}

void QwenParser::write_value(std::string_view text) {
    if (text.empty()) return;
    if (lead_ && text[0] == '\n') text.remove_prefix(1);
    lead_ = false;
    if (text.empty()) return;
    std::string fragment;
    if (held_newline_) arguments_.append("\n", fragment);
    held_newline_ = text.back() == '\n';
    if (held_newline_) text.remove_suffix(1);
    arguments_.append(text, fragment);
    writer_.write_arguments(fragment);
}

void QwenParser::start_value() {
    const std::size_t first = std::min(key_.find_first_not_of(kCallSpace), key_.size());
    const std::size_t last = key_.find_last_not_of(kCallSpace);
    const std::string key = key_.substr(first, last + 1 - first);
    std::string fragment;
    arguments_.begin_value(key, options_.tools.type_of(name_.text(), key), fragment);
    writer_.write_arguments(fragment);
    state_ = State::value;
    lead_ = true;
    held_newline_ = false;
}

// What was held is part of the value or string.
void QwenParser::goes_on() {
    state_ = is_object_ ? State::object : State::value;
    std::string held;
    held.swap(hold_);
    on_call_text(held);
}

void QwenParser::finish_arguments(bool complete) {
    std::string fragment;
    if (complete && is_object_) fragment = object_.end();
    else if (complete) arguments_.end(fragment);
    writer_.write_arguments(fragment);
    state_ = State::rest;
    complete_ = complete;
    junk_ = false;
    hold_.clear();
}

void QwenParser::close(bool complete) {
    if (state_ != State::rest) finish_arguments(complete);
    end_call(complete_);
}

bool QwenParser::on_opening_marker(Marker marker) {
    if (state_ != State::object || !object_.in_string()) return false;
    const bool far = !object_.name().empty() || object_.has_arguments();  // else a quote is missing, most likely
    if (marker == Marker::end_turn || (marker == Marker::end_tool_call && !far)) return false;
    on_object(spelling_of(marker));
    return true;
}

void QwenParser::on_call_marker(Marker marker) {
    if (state_ == State::next_name) give_back();
    if (state_ == State::next_key) goes_on();
    if (is_held()) return on_held_marker(marker);
    const bool in_text = state_ == State::value || (state_ == State::object && object_.in_string());
    if (in_text && marker == Marker::end_tool_call) {
        state_ = State::after_close;
        hold_ = spelling_of(marker);
    } else if (in_text && marker != Marker::end_turn) {
        on_call_text(spelling_of(marker));
    } else if (marker != Marker::think && marker != Marker::end_think) {
        leave(marker);
    }
}

// Behind what may have been the end of a value or of the call.
void QwenParser::on_held_marker(Marker marker) {
    if (marker == Marker::end_tool_call && state_ == State::lone_function) {
        hold_.append(spelling_of(marker));
        state_ = State::after_close;
    } else if (marker == Marker::think || marker == Marker::end_think ||
               (marker == Marker::end_tool_call && state_ == State::after_close) ||
               (marker == Marker::tool_call && state_ == State::lone_function)) {
        goes_on();
        on_call_marker(marker);
    } else {
        leave(marker);
    }
}

// The marker ends the call.
void QwenParser::leave(Marker marker) {
    bool whole = marker == Marker::end_tool_call || state_ == State::after_function || state_ == State::after_close;
    if (state_ == State::between || state_ == State::after_value) whole = true;
    if (is_object_) whole = object_.complete();
    close(whole);
    if (marker == Marker::tool_call) start_call();
    if (marker == Marker::end_turn) turn_ends();
}

void QwenParser::on_cut() {
    if (state_ == State::next_name) state_ = back_;
    const bool whole = state_ == State::after_function || state_ == State::after_close;
    close(is_object_ ? object_.complete() : whole);
}

std::unique_ptr<StreamParser> make_qwen_parser(ParserOptions options) {
    return std::make_unique<QwenParser>(std::move(options));
}

}  // namespace riptide
