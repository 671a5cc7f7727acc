#include "text/delta_writer.h"

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
    held_newline_ = false;
    visible_ = false;
    lead_ = framing_;
}

void DeltaWriter::write(Channel channel, std::string_view text) {
    if (text.empty()) return;
    if (lead_ && text[0] == '\n') text.remove_prefix(1);
    lead_ = false;
    if (text.empty()) return;
    if (held_newline_) write_verbatim(channel, "\n");
    held_newline_ = framing_ && text.back() == '\n';
    if (held_newline_) text.remove_suffix(1);
    if (text.find_first_not_of(" \t\r\n") != std::string_view::npos) visible_ = true;
    write_verbatim(channel, text);
}

void DeltaWriter::write_verbatim(Channel channel, std::string_view text) {
    if (text.empty()) return;
    if (channel == Channel::reasoning) {
        append_delta<ReasoningDelta>(*out_, first_, text);
    } else {
        append_delta<TextDelta>(*out_, first_, text);
    }
}

void DeltaWriter::begin_call(const std::string& name) {
    out_->emplace_back(std::in_place_type<ToolCallBegin>,
                       ToolCallBegin{calls_, call_id_prefix_ + std::to_string(calls_), name});
    ++calls_;
}

void DeltaWriter::write_arguments(const std::string& fragment) {
    if (fragment.empty()) return;
    auto* last = out_->size() > first_ ? std::get_if<ToolCallArguments>(&out_->back()) : nullptr;
    if (last != nullptr) {
        last->json_fragment += fragment;
    } else {
        out_->emplace_back(std::in_place_type<ToolCallArguments>, ToolCallArguments{calls_ - 1, fragment});
    }
}

void DeltaWriter::end_call(bool complete) {
    out_->emplace_back(std::in_place_type<ToolCallEnd>, ToolCallEnd{calls_ - 1, complete});
}

void DeltaWriter::finish(bool closed) { out_->emplace_back(std::in_place_type<Finish>, Finish{closed, calls_}); }

}  // namespace riptide
