// Laguna's stream parser: what happens inside a tool call. The rules stand in laguna.h.
#include "text/dialects/laguna.h"

#include <algorithm>

#include "text/dialects/laguna_tags.h"
#include "text/dialects/section_parser.h"

namespace riptide {
namespace {

using namespace laguna;
using Channel = DeltaWriter::Channel;

/// Where in a call the parser is.
enum class LagunaState {
    name,          // behind <tool_call>
    before_key,    // between arguments
    key,           // behind <arg_key>
    before_value,  // behind </arg_key>
    value,         // behind <arg_value>
    next_key,      // behind <arg_key> in a value, not yet sure that it ended it
    after_value,   // behind </arg_value>, not yet sure that it ended the value
    next_name,     // in what may be the name of a further call, behind </arg_value>
    after_close,   // behind </tool_call> in an open value, not yet sure that it ended the call
};

constexpr std::array<std::string_view, 1> kKeyTags = {kArgKey};
constexpr std::array<std::string_view, 2> kEndKeyTags = {kEndArgKey, kArgValue};
constexpr std::array<std::string_view, 1> kEndNextKeyTags = {kEndArgKey};
constexpr std::array<std::string_view, 2> kLagunaValueTags = {kArgValue, kArgKey};
constexpr std::array<std::string_view, 2> kEndValueTags = {kEndArgValue, kArgKey};
constexpr std::size_t kLongestNextKey = 256;

class LagunaParser final : public SectionParser {
  public:
    LagunaParser(ParserOptions options, DeltaWriter writer)
        : SectionParser(std::move(options), kEndAssistant, std::move(writer), false) {}

  private:
    void on_open() override {
        state_ = LagunaState::name;
        name_ = {};
    }
    std::span<const std::string_view> tags() const override;
    void on_tag(std::string_view tag) override;
    std::size_t on_call_text(std::string_view text) override;
    bool on_no_tag() override;
    bool on_opening_marker(Marker marker) override;
    void on_call_marker(Marker marker) override;
    void on_cut() override { close(state_ == LagunaState::after_close); }

    std::size_t on_name(std::string_view text);
    std::size_t on_between(std::string_view text);
    std::size_t on_held(std::string_view text);
    std::size_t on_next_key(std::string_view text);
    void end_next_key();
    std::size_t on_next_name(std::string_view text);
    bool next_call();
    void write_value(std::string_view text);
    void on_value_marker(Marker marker);
    void begin();
    void close(bool complete);
    void start_value();
    void value_goes_on();

    LagunaState state_ = LagunaState::name;
    CallName name_, next_name_;
    std::string key_;
    std::string hold_;           // a closing tag and white space, in after_value and after_close
    bool held_newline_ = false;  // of a value: before a key whose value's end is missing it is the template's
    bool junk_ = false;          // text where none belongs, between the parts of a call
    ToolArguments arguments_;
};

std::span<const std::string_view> LagunaParser::tags() const {
    switch (state_) {
        case LagunaState::name:
        case LagunaState::before_key:
        case LagunaState::after_value:
        case LagunaState::next_name:
            return kKeyTags;
        case LagunaState::key:
            return kEndKeyTags;
        case LagunaState::before_value:
            return kLagunaValueTags;
        case LagunaState::value:
            return kEndValueTags;
        case LagunaState::next_key:
            return kEndNextKeyTags;
        case LagunaState::after_close:
            break;
    }
    return {};
}

std::size_t LagunaParser::on_call_text(std::string_view text) {
    switch (state_) {
        case LagunaState::name:
            return on_name(text);
        case LagunaState::before_key:
        case LagunaState::before_value:
            return on_between(text);
        case LagunaState::key:
            key_.append(text);
            break;
        case LagunaState::value:
            write_value(text);
            break;
        case LagunaState::next_key:
            return on_next_key(text);
        case LagunaState::next_name:
            return on_next_name(text);
        case LagunaState::after_value:
        case LagunaState::after_close:
            return on_held(text);
    }
    return text.size();
}

void LagunaParser::on_tag(std::string_view tag) {
    std::string fragment;
    if (state_ == LagunaState::next_name && !next_call()) {
        on_call_text(tag);
    } else if (state_ == LagunaState::next_key) {
        end_next_key();
    } else if (state_ == LagunaState::value && tag == kArgKey) {
        state_ = LagunaState::next_key;
        hold_ = tag;
    } else if (tag == kEndArgKey) {
        state_ = LagunaState::before_value;
        junk_ = false;
    } else if (tag == kArgValue) {
        start_value();
    } else if (tag == kEndArgValue) {
        state_ = LagunaState::after_value;
        hold_ = tag;
    } else {  // <arg_key>
        if (state_ == LagunaState::after_value) {
            write_value("");
            arguments_.end_value(fragment);
        }
        writer_.write_arguments(fragment);
        if (state_ == LagunaState::name) {
            raw_.append(tag);
            if (!is_tool_name(name_.text())) return abandon_call();
            begin();
        }
        state_ = LagunaState::key;
        key_.clear();
    }
}

bool LagunaParser::on_no_tag() {
    const bool held =
        state_ == LagunaState::after_value || state_ == LagunaState::next_key || state_ == LagunaState::next_name;
    if (held) value_goes_on();
    return held;
}

bool LagunaParser::on_opening_marker(Marker marker) {
    if (marker != Marker::end_tool_call || !is_tool_name(name_.text())) return false;
    begin();
    close(true);
    return true;
}

void LagunaParser::on_call_marker(Marker marker) {
    if (state_ == LagunaState::next_key) value_goes_on();
    if (state_ == LagunaState::next_name) next_call();
    if (state_ == LagunaState::value || state_ == LagunaState::after_value || state_ == LagunaState::after_close)
        return on_value_marker(marker);
    if (marker == Marker::think || marker == Marker::end_think) return;
    close(marker == Marker::end_tool_call || state_ == LagunaState::before_key);
    if (marker == Marker::tool_call) start_call();
    if (marker == Marker::end_turn) turn_ends();
}

std::size_t LagunaParser::on_name(std::string_view text) {
    for (std::size_t i = 0; i < text.size(); ++i) {
        raw_ += text[i];
        const CallName::Step step = name_.push(text[i], '\n');
        if (step == CallName::Step::more) continue;
        if (step == CallName::Step::complete && is_tool_name(name_.text())) begin();
        else abandon_call();
        return i + 1;
    }
    return text.size();
}

std::size_t LagunaParser::on_between(std::string_view text) {
    if (!junk_) {
        const std::size_t space = std::min(text.find_first_not_of(kCallSpace), text.size());
        if (space > 0) return space;
    }
    junk_ = true;
    writer_.write_verbatim(Channel::text, text);
    return text.size();
}

std::size_t LagunaParser::on_held(std::string_view text) {
    const std::size_t space = std::min(text.find_first_not_of(kCallSpace), text.size());
    hold_.append(text.substr(0, space));
    if (space == text.size()) return space;
    if (state_ == LagunaState::after_value) {
        state_ = LagunaState::next_name;
        next_name_ = {};
    } else {
        value_goes_on();
    }
    return space;
}

std::size_t LagunaParser::on_next_name(std::string_view text) {
    for (std::size_t i = 0; i < text.size(); ++i) {
        const CallName::Step step = next_name_.push(text[i], '\n');
        if (step == CallName::Step::more) {
            hold_ += text[i];
            continue;
        }
        const bool begun = step == CallName::Step::complete && next_call();
        if (!begun && state_ == LagunaState::next_name) value_goes_on();
        return begun ? i + 1 : i;
    }
    return text.size();
}

// What stands behind a value's end begins a further call, if it is the name of a tool that is offered; else nothing has
// ended.
bool LagunaParser::next_call() {
    if (!options_.tools.offers(next_name_.text())) {
        value_goes_on();
        return false;
    }
    hold_.clear();
    close(true);
    name_ = next_name_;
    begin();
    return true;
}

// In a value, or behind what may have been its end.
void LagunaParser::on_value_marker(Marker marker) {
    const bool ended = state_ == LagunaState::after_value;
    const bool closed = state_ == LagunaState::after_close;
    if (marker == Marker::end_turn || (marker == Marker::tool_call && (ended || closed)) ||
        (marker == Marker::end_tool_call && ended)) {
        close(ended || closed);
        if (marker == Marker::tool_call) start_call();
        if (marker == Marker::end_turn) turn_ends();
        return;
    }
    if (ended || closed) value_goes_on();
    const std::string_view spelling = spelling_of(marker);
    if (marker == Marker::end_tool_call) {
        state_ = LagunaState::after_close;
        hold_ = spelling;
    } else {
        on_call_text(spelling);
    }
}

void LagunaParser::begin() {
    state_ = LagunaState::before_key;
    junk_ = false;
    arguments_ = {};
    begin_call(name_.text());
}

void LagunaParser::close(bool complete) {
    std::string fragment;
    write_value("");
    if (complete) arguments_.end(fragment);
    writer_.write_arguments(fragment);
    end_call(complete);
}

void LagunaParser::start_value() {
    const std::size_t first = std::min(key_.find_first_not_of(kCallSpace), key_.size());
    const std::size_t last = key_.find_last_not_of(kCallSpace);
    const std::string key = key_.substr(first, last + 1 - first);
    std::string fragment;
    arguments_.begin_value(key, options_.tools.type_of(name_.text(), key), fragment);
    writer_.write_arguments(fragment);
    state_ = LagunaState::value;
    held_newline_ = false;
}

void LagunaParser::write_value(std::string_view text) {
    std::string fragment;
    if (held_newline_) arguments_.append("\n", fragment);
    held_newline_ = options_.newline_framing && text.ends_with('\n');
    if (held_newline_) text.remove_suffix(1);
    arguments_.append(text, fragment);
    writer_.write_arguments(fragment);
}

std::size_t LagunaParser::on_next_key(std::string_view text) {
    const std::size_t plain = std::min(text.find_first_of("<\n"), text.size());
    hold_.append(text.substr(0, plain));
    if (plain < text.size() || hold_.size() > kLongestNextKey) value_goes_on();
    return plain;
}

// A whole key stands in a value: where the tool has such a parameter and no value of it has come, the value's end is
// missing.
void LagunaParser::end_next_key() {
    const std::string key = hold_.substr(kArgKey.size());
    if (!options_.tools.declares(name_.text(), key) || arguments_.has(key)) {
        hold_.append(kEndArgKey);
        return value_goes_on();
    }
    std::string fragment;
    arguments_.end_value(fragment);
    writer_.write_arguments(fragment);
    held_newline_ = false;
    hold_.clear();
    key_ = key;
    state_ = LagunaState::before_value;
    junk_ = false;
}

// The closing tag that was held is part of the value.
void LagunaParser::value_goes_on() {
    state_ = LagunaState::value;
    std::string held;
    held.swap(hold_);
    on_call_text(held);
}

}  // namespace

std::unique_ptr<StreamParser> make_laguna_parser(ParserOptions options) {
    const int framing = options.newline_framing ? 1 : 0;
    DeltaWriter writer(framing, framing, options.call_id_prefix);
    return std::make_unique<LagunaParser>(std::move(options), std::move(writer));
}

}  // namespace riptide
