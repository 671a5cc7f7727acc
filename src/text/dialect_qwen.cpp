// Qwen's stream parser: what happens inside a tool call. The rules stand in dialect_qwen.h.
#include "text/dialect_qwen.h"

#include <algorithm>
#include <array>

#include "text/dialect_qwen_tags.h"
#include "text/json_call.h"
#include "text/section_parser.h"

namespace riptide {
namespace {

using namespace qwen;

/// Where in a call the parser is.
enum class QwenState {
    open,            // behind <tool_call>
    name,            // behind <function=
    between,         // behind the name, before the first <parameter=
    key,             // behind <parameter=
    value,           // behind the > of a key
    after_value,     // behind </parameter>, not yet sure that it ended the value
    after_function,  // behind that and </function>, not yet sure either
    lone_function,   // behind </function> in an open value
    after_close,     // behind </tool_call> in an open value or string, not yet sure that it ended the call
    object,          // in a JSON object
    rest,            // the arguments are closed, </tool_call> is to come
};

constexpr std::array<std::string_view, 1> kOpenTags = {kFunction};
constexpr std::array<std::string_view, 2> kBetweenTags = {kParameter, kEndFunction};
constexpr std::array<std::string_view, 2> kQwenValueTags = {kEndParameter, kEndFunction};

constexpr int kFraming = 2;  // newlines round markup, at most

class QwenParser final : public SectionParser {
  public:
    QwenParser(ParserOptions options, DeltaWriter writer)
        : SectionParser(std::move(options), kEndTurn, std::move(writer), true) {}

  private:
    void on_open() override { state_ = QwenState::open; }
    std::span<const std::string_view> tags() const override;
    void on_tag(std::string_view tag) override;
    std::size_t on_call_text(std::string_view text) override;
    bool on_no_tag() override;
    bool on_opening_marker(Marker marker) override;
    void on_call_marker(Marker marker) override;
    void on_cut() override;

    std::size_t on_name(std::string_view text);
    std::size_t on_key(std::string_view text);
    std::size_t on_space(std::string_view text);
    std::size_t on_open_text(std::string_view text);
    std::size_t on_object(std::string_view text);
    void on_held_marker(Marker marker);
    bool is_held() const;
    void write_value(std::string_view text);
    void start_value();
    void finish_arguments(bool complete);
    void close(bool complete);
    void leave(Marker marker);
    void goes_on();

    QwenState state_ = QwenState::open;
    bool is_object_ = false;  // the call
    CallName name_;
    std::string key_;
    bool lead_ = false;  // a newline now would be the one before the value
    bool held_newline_ = false;
    std::string hold_;      // what may have ended a value or the call
    bool junk_ = false;     // text where none belongs
    bool complete_ = true;  // in rest
    ToolArguments arguments_;
    JsonCall object_;
};

bool QwenParser::is_held() const {
    return state_ == QwenState::after_value || state_ == QwenState::after_function || state_ == QwenState::lone_function ||
           state_ == QwenState::after_close;
}

std::span<const std::string_view> QwenParser::tags() const {
    switch (state_) {
        case QwenState::open:
            return kOpenTags;
        case QwenState::between:
        case QwenState::after_value:
            return kBetweenTags;
        case QwenState::value:
            return kQwenValueTags;
        default:
            return {};
    }
}

void QwenParser::on_tag(std::string_view tag) {
    std::string fragment;
    if (tag == kFunction) {
        raw_.append(tag);
        state_ = QwenState::name;
        name_ = {};
    } else if (tag == kParameter) {
        if (state_ == QwenState::after_value) arguments_.end_value(fragment);
        writer_.write_arguments(fragment);
        state_ = QwenState::key;
        key_.clear();
        hold_.clear();
    } else if (state_ == QwenState::between) {
        finish_arguments(true);
    } else if (tag == kEndParameter) {
        state_ = QwenState::after_value;
        hold_ = tag;
    } else {
        state_ = state_ == QwenState::value ? QwenState::lone_function : QwenState::after_function;
        hold_.append(tag);
    }
}

std::size_t QwenParser::on_call_text(std::string_view text) {
    switch (state_) {
        case QwenState::open:
            return on_open_text(text);
        case QwenState::name:
            return on_name(text);
        case QwenState::key:
            return on_key(text);
        case QwenState::value:
            write_value(text);
            return text.size();
        case QwenState::object:
            return on_object(text);
        case QwenState::between:
        case QwenState::rest:
            return on_space(text);
        case QwenState::after_value:
        case QwenState::after_function:
        case QwenState::lone_function:
        case QwenState::after_close:
            break;
    }
    const std::size_t space = std::min(text.find_first_not_of(kCallSpace), text.size());
    hold_.append(text.substr(0, space));
    if (space < text.size()) goes_on();
    return space;
}

bool QwenParser::on_no_tag() {
    if (state_ != QwenState::after_value) return false;
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
    state_ = QwenState::object;
    is_object_ = true;
    object_ = {};
    return space;
}

std::size_t QwenParser::on_name(std::string_view text) {
    for (std::size_t i = 0; i < text.size(); ++i) {
        raw_ += text[i];
        const CallName::Step step = name_.push(text[i], '>');
        if (step == CallName::Step::more) continue;
        if (step == CallName::Step::wrong || !is_tool_name(name_.text())) {
            abandon_call();
        } else {
            state_ = QwenState::between;
            is_object_ = junk_ = false;
            arguments_ = {};
            begin_call(name_.text());
        }
        return i + 1;
    }
    return text.size();
}

std::size_t QwenParser::on_key(std::string_view text) {
    const std::size_t end = text.find('>');
    key_.append(text.substr(0, end));
    if (end == std::string_view::npos) return text.size();
    start_value();
    return end + 1;
}

// White space between the parts of a call, and what else comes there.
std::size_t QwenParser::on_space(std::string_view text) {
    const std::size_t space = junk_ ? 0 : std::min(text.find_first_not_of(kCallSpace), text.size());
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
    state_ = QwenState::value;
    lead_ = true;
    held_newline_ = false;
}

// What was held is part of the value or string.
void QwenParser::goes_on() {
    state_ = is_object_ ? QwenState::object : QwenState::value;
    std::string held;
    held.swap(hold_);
    on_call_text(held);
}

void QwenParser::finish_arguments(bool complete) {
    std::string fragment;
    if (complete && is_object_) fragment = object_.end();
    else if (complete) arguments_.end(fragment);
    writer_.write_arguments(fragment);
    state_ = QwenState::rest;
    complete_ = complete;
    junk_ = false;
    hold_.clear();
}

void QwenParser::close(bool complete) {
    if (state_ != QwenState::rest) finish_arguments(complete);
    end_call(complete_);
}

bool QwenParser::on_opening_marker(Marker marker) {
    if (state_ != QwenState::object || !object_.in_string()) return false;
    const bool far = !object_.name().empty() || object_.has_arguments();  // else a quote is missing, most likely
    if (marker == Marker::end_turn || (marker == Marker::end_tool_call && !far)) return false;
    on_object(spelling_of(marker));
    return true;
}

void QwenParser::on_call_marker(Marker marker) {
    if (is_held()) return on_held_marker(marker);
    const bool in_text = state_ == QwenState::value || (state_ == QwenState::object && object_.in_string());
    if (in_text && marker == Marker::end_tool_call) {
        state_ = QwenState::after_close;
        hold_ = spelling_of(marker);
    } else if (in_text && marker != Marker::end_turn) {
        on_call_text(spelling_of(marker));
    } else if (marker != Marker::think && marker != Marker::end_think) {
        leave(marker);
    }
}

// Behind what may have been the end of a value or of the call.
void QwenParser::on_held_marker(Marker marker) {
    if (marker == Marker::end_tool_call && state_ == QwenState::lone_function) {
        hold_.append(spelling_of(marker));
        state_ = QwenState::after_close;
    } else if (marker == Marker::think || marker == Marker::end_think ||
               (marker == Marker::end_tool_call && state_ == QwenState::after_close) ||
               (marker == Marker::tool_call && state_ == QwenState::lone_function)) {
        goes_on();
        on_call_marker(marker);
    } else {
        leave(marker);
    }
}

// The marker ends the call.
void QwenParser::leave(Marker marker) {
    bool whole = marker == Marker::end_tool_call || state_ == QwenState::after_function || state_ == QwenState::after_close;
    if (state_ == QwenState::between || state_ == QwenState::after_value) whole = true;
    if (is_object_) whole = object_.complete();
    close(whole);
    if (marker == Marker::tool_call) start_call();
    if (marker == Marker::end_turn) turn_ends();
}

void QwenParser::on_cut() {
    const bool whole = state_ == QwenState::after_function || state_ == QwenState::after_close;
    close(is_object_ ? object_.complete() : whole);
}

}  // namespace

std::unique_ptr<StreamParser> make_qwen_parser(ParserOptions options) {
    DeltaWriter writer(kFraming, options.thinking ? kFraming : 0, options.call_id_prefix);
    return std::make_unique<QwenParser>(std::move(options), std::move(writer));
}

}  // namespace riptide
