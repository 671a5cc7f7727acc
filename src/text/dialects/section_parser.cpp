#include "text/dialects/section_parser.h"

#include <algorithm>

#include "text/dialects/tag_match.h"

namespace riptide {

CallName::Step CallName::push(char c, char end) {
    constexpr std::size_t kLongest = 256;
    constexpr std::string_view kForbidden = "<>{}[]\"";
    if (c == end && !text_.empty()) return Step::complete;
    const bool space = kCallSpace.find(c) != std::string_view::npos;
    if (space) {
        ended_ = !text_.empty();
    } else if (ended_ || static_cast<unsigned char>(c) < 0x20 || kForbidden.find(c) != std::string_view::npos) {
        return Step::wrong;
    } else {
        text_ += c;
    }
    return ++read_ > kLongest ? Step::wrong : Step::more;
}

void SectionParser::push_token(std::string_view text, bool is_special, StreamEvents& out) {
    writer_.attach(out);
    if (done_) return;
    const auto marker = std::find(markers_.begin(), markers_.end(), text);
    std::string characters;
    if (is_special && marker != markers_.end()) {
        utf8_.finish(characters);
        on_characters(characters);
        flush_marker();
        on_marker(static_cast<Marker>(marker - markers_.begin()));
        return;
    }
    utf8_.push(text, characters);
    on_characters(characters);
}

void SectionParser::end_turn(StreamEvents& out) { push_token(spelling_of(Marker::end_turn), true, out); }

void SectionParser::finish(StreamEvents& out) {
    writer_.attach(out);
    if (!done_) {
        std::string characters;
        utf8_.finish(characters);
        on_characters(characters);
        if (place_ == Place::section) {  // in a call a half-written tag is dropped
            flush_marker();
            if (place_ == Place::section) flush_tag();
        }
        if (place_ == Place::opening) drop_opening();
        if (place_ == Place::call) on_cut();
    }
    if (keep_last_newlines_)
        writer_.release(in_reasoning_ ? DeltaWriter::Channel::reasoning : DeltaWriter::Channel::text);
    writer_.finish(done_);
}

// Plain text, whole characters. Without strict specials it may spell markers.
void SectionParser::on_characters(std::string_view text) {
    if (options_.strict_specials) return on_text(text);
    while (!text.empty()) {
        if (marker_.empty()) {
            const std::size_t plain = std::min(text.find('<'), text.size());
            on_text(text.substr(0, plain));
            text.remove_prefix(plain);
            if (text.empty()) break;
        }
        const TagStep step = step_tag(markers_, marker_, text[0]);
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

void SectionParser::flush_marker() {
    std::string text;
    text.swap(marker_);
    on_text(text);
}

// Plain text that spells no marker: finds the plain-text tags.
void SectionParser::on_text(std::string_view text) {
    while (!text.empty()) {
        const bool bare = place_ == Place::section && options_.calls && !in_reasoning_;
        const auto known = bare ? bare_tags() : place_ == Place::section ? std::span<const std::string_view>() : tags();
        if (tag_.empty()) {
            const std::size_t plain = known.empty() ? text.size() : std::min(text.find('<'), text.size());
            if (plain > 0) {
                text.remove_prefix(on_plain(text.substr(0, plain)));
                continue;
            }
        }
        const TagStep step = step_tag(known, tag_, text[0]);
        if (!step.possible) {
            if (place_ == Place::section || !on_no_tag()) flush_tag();
            continue;
        }
        tag_ += text[0];
        text.remove_prefix(1);
        if (step.complete < 0) continue;
        tag_.clear();
        const std::string_view tag = known[static_cast<std::size_t>(step.complete)];
        if (place_ == Place::section) start_bare_call(tag);
        else on_tag(tag);
    }
}

// What looked like the start of a tag is text.
void SectionParser::flush_tag() {
    if (tag_.empty()) return;
    if (place_ != Place::section) on_no_tag();
    std::string text;
    text.swap(tag_);
    for (std::string_view rest = text; !rest.empty();) rest.remove_prefix(on_plain(rest));
}

/// Cut before anybody knows what is called: the client is told that the answer was cut, and markup is not for its eyes.
void SectionParser::drop_opening() {
    place_ = Place::section;
    raw_.clear();
    writer_.end_section();
}

std::size_t SectionParser::on_plain(std::string_view text) {
    if (place_ != Place::section) return on_call_text(text);
    write(text);
    return text.size();
}

void SectionParser::on_marker(Marker marker) {
    flush_tag();
    if (place_ == Place::opening) {
        if (on_opening_marker(marker)) return;
        abandon_call();
    }
    if (place_ == Place::call) return on_call_marker(marker);
    on_section_marker(marker);
}

void SectionParser::on_section_marker(Marker marker) {
    switch (marker) {
        case Marker::tool_call:
            if (options_.calls) start_call();
            else write(spelling_of(marker));
            break;
        case Marker::end_turn:
            done_ = true;
            break;
        case Marker::end_tool_call:
            write(spelling_of(Marker::end_tool_call));
            break;
        case Marker::think:
            if (writer_.visible() || (!in_reasoning_ && writer_.calls() > 0)) {
                write(spelling_of(Marker::think));
                ++literal_thinks_;
            } else {
                enter(true);
            }
            break;
        case Marker::end_think:
            if (in_reasoning_) {
                enter(false);
                literal_thinks_ = 0;
            } else if (literal_thinks_ > 0) {
                write(spelling_of(Marker::end_think));
                --literal_thinks_;
            } else if (!writer_.visible()) {
                writer_.expect_newlines();
            }
            break;
    }
}

void SectionParser::enter(bool reasoning) {
    in_reasoning_ = reasoning;
    line_begins_ = true;
    writer_.start_section();
}

void SectionParser::write(std::string_view text) {
    if (!text.empty()) line_begins_ = text.back() == '\n';
    writer_.write(in_reasoning_ ? DeltaWriter::Channel::reasoning : DeltaWriter::Channel::text, text);
}

bool SectionParser::is_tool_name(std::string_view name) const {
    constexpr std::size_t kLongest = 128;
    const bool plain = std::all_of(name.begin(), name.end(), [](char c) {
        const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
        return letter || (c >= '0' && c <= '9') || std::string_view("_.-/:").find(c) != std::string_view::npos;
    });
    return (plain && !name.empty() && name.size() <= kLongest) || options_.tools.offers(name);
}

void SectionParser::start_call() {
    place_ = Place::opening;
    raw_ = spelling_of(Marker::tool_call);
    on_open();
}

void SectionParser::start_next_call() {
    start_call();
    raw_.clear();
}

void SectionParser::start_bare_call(std::string_view tag) {
    if (!line_begins_) return write(tag);
    place_ = Place::opening;
    raw_ = tag;
    on_bare_open();
}

void SectionParser::begin_call(const std::string& name) {
    place_ = Place::call;
    raw_.clear();
    writer_.end_section();
    writer_.begin_call(name);
}

void SectionParser::end_call(bool complete) {
    writer_.end_call(complete);
    writer_.expect_newlines();
    place_ = Place::section;
    in_reasoning_ = false;
    line_begins_ = true;
    tag_.clear();
}

void SectionParser::abandon_call() {
    place_ = Place::section;
    write(raw_);
    raw_.clear();
}

}  // namespace riptide
