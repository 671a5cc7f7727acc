#include "text/dialects/delta_writer.h"

#include <algorithm>
#include <utility>

namespace riptide {
namespace {

template <class Delta>
void append_delta(StreamEvents& out, std::size_t first, std::string_view text) {
    Delta* last = out.size() > first ? std::get_if<Delta>(&out.back()) : nullptr;
    if (last != nullptr) {
        last->text.append(text);
    } else {
        out.emplace_back(std::in_place_type<Delta>, Delta{std::string(text)});
    }
}

}  // namespace

void DeltaWriter::attach(StreamEvents& out) {
    out_ = &out;
    first_ = out.size();
}

void DeltaWriter::start_section() {
    held_ = 0;
    visible_ = false;
    lead_ = framing_;
}

void DeltaWriter::release(Channel channel) {
    write_verbatim(channel, std::string(held_, '\n'));
    held_ = 0;
}

void DeltaWriter::write(Channel channel, std::string_view text) {
    for (; lead_ > 0 && text.starts_with('\n'); --lead_) text.remove_prefix(1);
    if (text.empty()) return;
    lead_ = 0;
    // The last of all newlines that the text so far ends with, those that are held included.
    const std::size_t last = text.find_last_not_of('\n');
    const bool only_newlines = last == std::string_view::npos;
    const std::size_t newlines = only_newlines ? held_ + text.size() : text.size() - last - 1;
    const std::size_t hold = std::min(newlines, static_cast<std::size_t>(framing_));
    if (only_newlines) {
        write_verbatim(channel, std::string(newlines - hold, '\n'));
    } else {
        release(channel);
        write_verbatim(channel, text.substr(0, text.size() - hold));
    }
    held_ = hold;
    if (text.find_first_not_of(" \t\r\n") != std::string_view::npos) visible_ = true;
}

void DeltaWriter::write_verbatim(Channel channel, std::string_view text) {
    if (text.empty()) return;
    if (in_call_) {
        aside_.append(text);
    } else if (channel == Channel::reasoning) {
        append_delta<ReasoningDelta>(*out_, first_, text);
    } else {
        append_delta<TextDelta>(*out_, first_, text);
    }
}

void DeltaWriter::begin_call(const std::string& name) {
    out_->emplace_back(std::in_place_type<ToolCallBegin>,
                       ToolCallBegin{calls_, call_id_prefix_ + std::to_string(calls_), name});
    ++calls_;
    in_call_ = true;
    has_arguments_ = false;
}

void DeltaWriter::write_arguments(const std::string& fragment) {
    if (fragment.empty()) return;
    has_arguments_ = true;
    auto* last = out_->size() > first_ ? std::get_if<ToolCallArguments>(&out_->back()) : nullptr;
    if (last != nullptr) {
        last->json_fragment += fragment;
    } else {
        out_->emplace_back(std::in_place_type<ToolCallArguments>, ToolCallArguments{calls_ - 1, fragment});
    }
}

void DeltaWriter::end_call(bool complete) {
    if (!complete && !has_arguments_) write_arguments("{");  // nothing is what some take for no arguments
    out_->emplace_back(std::in_place_type<ToolCallEnd>, ToolCallEnd{calls_ - 1, complete});
    in_call_ = false;
    write_verbatim(Channel::text, std::exchange(aside_, {}));
}

void DeltaWriter::finish(bool closed) { out_->emplace_back(std::in_place_type<Finish>, Finish{closed, calls_}); }

}  // namespace riptide
