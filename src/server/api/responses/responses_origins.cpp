#include "server/api/responses/responses_origins.h"

#include <charconv>
#include <string_view>

namespace riptide::server {

namespace {

/// The entry of `list` that a path begins with, as in "NAME[3].rest", cut off its front; null if it begins otherwise.
template <class Entry>
const Entry* take_entry(std::string_view& path, std::string_view name, const std::vector<Entry>& list) {
    if (!path.starts_with(name) || !path.substr(name.size()).starts_with('[')) return nullptr;
    const std::string_view rest = path.substr(name.size() + 1);
    std::size_t index = list.size();
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), index);
    if (error != std::errc() || end == rest.data() + rest.size() || *end != ']' || index >= list.size()) return nullptr;
    path = rest.substr(static_cast<std::size_t>(end + 1 - rest.data()));
    return &list[index];
}

/// Cuts a member off the front of a path: ".content" of ".content[0]", not of ".contents".
bool take_member(std::string_view& path, std::string_view member) {
    if (!path.starts_with(member)) return false;
    const std::string_view rest = path.substr(member.size());
    if (!rest.empty() && rest[0] != '.' && rest[0] != '[') return false;
    path = rest;
    return true;
}

/// The client's path of a field of the chat.
std::string renamed(std::string_view field, const ChatOrigins& origins) {
    std::string_view rest = field;
    if (const MessageOrigin* message = take_entry(rest, "messages", origins.messages)) {
        if (take_member(rest, ".content")) return message->content + std::string(rest);
        const std::string* call = take_entry(rest, ".tool_calls", message->calls);
        if (call != nullptr) take_member(rest, ".function");
        return (call != nullptr ? *call : message->item) + std::string(rest);
    }
    if (const ToolOrigin* tool = take_entry(rest, "tools", origins.tools)) {
        const std::string& origin = take_member(rest, ".function") ? tool->function : tool->tool;
        return origin + std::string(rest);
    }
    if (field == "messages") return "input";
    if (field == "max_completion_tokens") return "max_output_tokens";
    if (field.starts_with("response_format")) return "text.format";
    if (field == "reasoning_effort") return "reasoning.effort";
    return std::string(field);
}

}  // namespace

ApiError in_its_words(const ApiError& error, const ChatOrigins& origins) {
    const std::string field = renamed(error.param(), origins);
    std::string text = error.what();
    if (!field.empty() && text.starts_with(error.param())) text.replace(0, error.param().size(), field);
    ApiError out(error.status(), text, field, error.code());
    out.retry_after_us = error.retry_after_us;
    return out;
}

}  // namespace riptide::server
