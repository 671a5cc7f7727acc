#include "text/chat/chat_parts.h"

#include <algorithm>
#include <optional>
#include <string_view>

namespace riptide {

namespace {

using Kind = ChatPart::Kind;

/// Markup, and what stands behind it. Of two that begin at one place the longer counts.
struct Mark {
    std::string_view text;
    enum class Means { opens, closes, call, call_end } means;
    Kind kind = Kind::fixed;
};
constexpr Mark kPartMarks[] = {
    {"<system>", Mark::Means::opens, Kind::fixed},
    {"<user>", Mark::Means::opens, Kind::user},
    {"<assistant>", Mark::Means::opens, Kind::assistant},
    {"<tool_response>", Mark::Means::opens, Kind::tool},
    {"<tool>", Mark::Means::opens, Kind::tool},
    {"</system>", Mark::Means::closes},
    {"</user>", Mark::Means::closes},
    {"</assistant>", Mark::Means::closes},
    {"</tool_response>", Mark::Means::closes},
    {"</tool>", Mark::Means::closes},
    {"<|im_start|>", Mark::Means::opens, Kind::fixed},  // another role
    {"<|im_start|>system", Mark::Means::opens, Kind::fixed},
    {"<|im_start|>user", Mark::Means::opens, Kind::user},
    {"<|im_start|>assistant", Mark::Means::opens, Kind::assistant},
    {"<|im_start|>tool", Mark::Means::opens, Kind::tool},
    {"<|im_end|>", Mark::Means::closes},
    {"<tool_call>", Mark::Means::call},
    {"</tool_call>", Mark::Means::call_end},
};

const Mark* mark_at(std::string_view text) {
    const Mark* longest = nullptr;
    for (const Mark& mark : kPartMarks)
        if (text.starts_with(mark.text) && (longest == nullptr || mark.text.size() > longest->text.size()))
            longest = &mark;
    return longest;
}

/// A stretch of one kind, in bytes.
struct PartStretch {
    TextSpan bytes;
    Kind kind;
    int32_t message;
};

/// Reads the template's markup from left to right.
class Reader {
  public:
    explicit Reader(std::string_view text) : text_(text) {}

    /// What the client wrote, between two pieces of markup.
    void client(int64_t begin, int64_t end) { add(begin, end, in_call_ ? Kind::fixed : kind_); }

    void markup(int64_t begin, int64_t end) {
        const std::string_view part = text_.substr(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
        int64_t from = begin;
        for (size_t at = part.find('<'); at != std::string_view::npos; at = part.find('<', at + 1)) {
            const Mark* mark = mark_at(part.substr(at));
            if (mark == nullptr) continue;
            if (mark->means == Mark::Means::opens && !in_system_) {  // the next message begins with its tag
                add(from, begin + static_cast<int64_t>(at), Kind::markup);
                from = begin + static_cast<int64_t>(at);
            }
            take(*mark);
        }
        add(from, end, Kind::markup);
    }

    std::vector<PartStretch> stretches;

  private:
    void add(int64_t begin, int64_t end, Kind kind) {
        if (begin < end) stretches.push_back({{begin, end}, kind, message_});
    }

    /// A system prompt that explains tools may show what calls and responses look like.
    void take(const Mark& mark) {
        if (in_system_ && mark.text != "</system>" && mark.text != "<|im_end|>") return;
        switch (mark.means) {
            case Mark::Means::opens:
                ++message_;
                kind_ = mark.kind;
                in_system_ = mark.text == "<system>" || mark.text == "<|im_start|>system";
                in_call_ = false;
                break;
            case Mark::Means::closes:
                kind_ = Kind::fixed;
                in_system_ = in_call_ = false;
                break;
            case Mark::Means::call:
                in_call_ = kind_ == Kind::assistant;
                break;
            case Mark::Means::call_end:
                in_call_ = false;
        }
    }

    std::string_view text_;
    Kind kind_ = Kind::fixed;
    int32_t message_ = 0;
    bool in_system_ = false, in_call_ = false;
};

std::vector<PartStretch> stretches_of(const jinja::Rendered& prompt) {
    Reader reader(prompt.text);
    int64_t at = 0;
    for (const TextSpan& span : prompt.trusted) {
        reader.client(at, span.begin);
        reader.markup(span.begin, span.end);
        at = span.end;
    }
    reader.client(at, static_cast<int64_t>(prompt.text.size()));
    return std::move(reader.stretches);
}

}  // namespace

std::vector<ChatPart> chat_parts(const jinja::Rendered& prompt, std::span<const TextSpan> spans) {
    const std::vector<PartStretch> stretches = stretches_of(prompt);
    std::vector<ChatPart> parts;
    size_t first = 0;
    for (size_t i = 0; i < spans.size(); ++i) {
        while (first + 1 < stretches.size() && stretches[first].bytes.end <= spans[i].begin) ++first;
        Kind kind = Kind::markup;
        int32_t message = 0;
        if (!stretches.empty()) {
            kind = stretches[first].kind;
            message = stretches[first].message;
            for (size_t s = first; s < stretches.size() && stretches[s].bytes.begin < spans[i].end; ++s)
                if (stretches[s].kind == Kind::markup) kind = Kind::markup;
        }
        const auto at = static_cast<int64_t>(i);
        if (!parts.empty() && parts.back().kind == kind && parts.back().message == message) ++parts.back().tokens.end;
        else parts.push_back({kind, message, {at, at + 1}});
    }
    return parts;
}

}  // namespace riptide
