#include "apps/chat/conversation.h"

#include <algorithm>
#include <filesystem>

#include "apps/support/chat_message.h"
#include "base/error.h"
#include "base/file.h"
#include "text/chat/chat_messages.h"
#include "text/utf8.h"

namespace riptide::apps {

namespace {

constexpr int kFormatVersion = 1;
constexpr int64_t kMostConversationBytes = int64_t{64} << 20;
constexpr int64_t kMostConversationMemory = int64_t{1} << 30;
constexpr std::size_t kMostTitleBytes = 80;

/// A member that is a string, or is not there.
std::string optional_text(const json::object& object, const char* key) {
    const json::value* value = object.if_contains(key);
    if (value == nullptr || value->is_null()) return {};
    RT_CHECK(value->is_string(), "{}: expected a string, found {}", key, kind_of(*value));
    return std::string(value->get_string());
}

Conversation conversation_of(const json::value& parsed) {
    RT_CHECK(parsed.is_object(), "expected a conversation, found {}", kind_of(parsed));
    const json::object& object = parsed.get_object();
    const json::value* version = object.if_contains("riptide_conversation");
    RT_CHECK(version != nullptr, "not a conversation of riptide: \"riptide_conversation\" is missing");
    RT_CHECK(version->is_int64() && version->get_int64() == kFormatVersion,
             "a conversation of version {}, expected {}: a newer riptide may read it",
             json::serialize(*version).substr(0, 40), kFormatVersion);
    Conversation out{
        optional_text(object, "title"), optional_text(object, "model"), optional_text(object, "system"), {}};
    const json::value* messages = object.if_contains("messages");
    RT_CHECK(messages != nullptr && messages->is_array(), "messages: expected an array");
    out.messages = messages->get_array();
    if (!out.messages.empty()) prepare_messages(out.messages, {});  // throws what is wrong with them
    return out;
}

/// Where the last question is; the end if there is none.
json::array::iterator last_question(json::array& messages) {
    for (auto at = messages.end(); at != messages.begin();)
        if ((--at)->at("role") == "user") return at;
    return messages.end();
}

/// The first line of the first question.
std::string title_of(const json::array& messages) {
    for (const json::value& message : messages) {
        if (message.at("role") != "user" || !message.at("content").is_string()) continue;
        const std::string_view text = message.at("content").get_string();
        std::string title(text.substr(0, std::min({text.find('\n'), text.size(), kMostTitleBytes})));
        title.resize(utf8_valid_prefix(title));
        return title;
    }
    return {};
}

}  // namespace

json::array all_messages(const Conversation& conversation) {
    json::array out;
    if (!conversation.system.empty()) out.push_back(chat_message("system", conversation.system));
    out.insert(out.end(), conversation.messages.begin(), conversation.messages.end());
    return out;
}

Conversation load_conversation(const std::string& path) {
    const std::string text = read_file(path, kMostConversationBytes);
    const json::value parsed = parse_json_within(text, path, kMostConversationMemory);
    try {
        return conversation_of(parsed);
    } catch (const Error& error) {
        fail("{}: {}", path, error.what());
    }
}

void save_conversation(const Conversation& conversation, const std::string& path) {
    std::error_code ec;
    if (std::filesystem::exists(path, ec)) {
        try {
            load_conversation(path);
        } catch (const Error& error) {
            fail("{}; it is not replaced: save under another name", error.what());
        }
    }
    const json::object out = {
        {"riptide_conversation", kFormatVersion},
        {"title", conversation.title.empty() ? title_of(conversation.messages) : conversation.title},
        {"model", conversation.model},
        {"system", conversation.system},
        {"messages", conversation.messages}};
    write_file_atomic(path, json::serialize(out) + "\n");
}

bool undo_question(json::array& messages) {
    const auto at = last_question(messages);
    if (at == messages.end()) return false;
    messages.erase(at, messages.end());
    return true;
}

bool undo_answer(json::array& messages) {
    const auto at = last_question(messages);
    if (at == messages.end()) return false;
    messages.erase(at + 1, messages.end());
    return true;
}

}  // namespace riptide::apps
