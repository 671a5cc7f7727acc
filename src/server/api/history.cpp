#include "server/api/history.h"

#include <algorithm>

#include "server/api/custom_tools.h"
#include "server/api/fields.h"
#include "text/utf8.h"

namespace riptide::server {

namespace {

constexpr std::size_t kMostMessages = 4096;

/// As much of a text as stands in a block's name, whole characters.
std::string_view shortened(std::string_view text, std::size_t most) {
    text = text.substr(0, most);
    return text.substr(0, utf8_valid_prefix(text));
}

std::string_view string_in(const json::object& object, std::string_view key) {
    const json::value* value = object.if_contains(key);
    return value != nullptr && value->is_string() ? std::string_view(value->get_string()) : std::string_view();
}

/// What a block, or what it holds, is called; "" if nothing says.
std::string name_of_block(const json::object& block) {
    for (const std::string_view key : {"tool_name", "name", "title", "filename", "query"})
        if (const std::string_view name = string_in(block, key); !name.empty())
            return std::string(shortened(name, 120));
    std::string out;
    const auto add = [&](const json::value* inner) {
        const json::object* object = inner != nullptr ? inner->if_object() : nullptr;
        const std::string name = object != nullptr ? name_of_block(*object) : "";
        if (!name.empty() && out.size() < 400) out += (out.empty() ? "" : "; ") + name;
    };
    add(block.if_contains("file"));
    const json::value* content = block.if_contains("content");
    add(content);
    if (content != nullptr && content->is_array())
        for (const json::value& each : content->get_array()) add(&each);
    return out;
}

void copy_reasoning(json::object& message) {
    const json::value* text = nullptr;
    for (const std::string_view key : {"reasoning_content", "reasoning"})
        if (const json::value* found = message.if_contains(key);
            text == nullptr && found != nullptr && found->is_string())
            text = found;
    if (text == nullptr) return;
    const json::string reasoning = text->get_string();
    message["reasoning_content"] = reasoning;
    message["reasoning"] = reasoning;
}

/// `asked`: the message is the last of the user.
void keep_text_of_parts(json::object& message, const std::string& where, bool asked) {
    json::value* content = message.if_contains("content");
    if (content == nullptr || !content->is_array()) return;
    json::array parts;
    for (std::size_t i = 0; i < content->get_array().size(); ++i) {
        const json::value& part = content->get_array()[i];
        const std::string place = fmt::format("{}.content[{}]", where, i);
        if (!part.is_object()) refuse(place, "{}: expected an object, found {}", place, kind_of(part));
        const Fields fields(part.get_object(), place + ".");
        const std::string_view type = fields.string("type").value_or("");
        const bool readable = type == "text" || type == "input_text" || type == "output_text" || type == "refusal";
        if (!readable && (type.empty() || (asked && !is_trace(type))))
            refuse(place + ".type", "{}.type: '{}' is not supported: this model reads text only", place,
                   type.substr(0, 40));
        if (!readable) {
            parts.push_back({{"type", "text"}, {"text", named_block(part.get_object())}});
            continue;
        }
        const auto text = fields.string(type == "refusal" ? "refusal" : "text");
        if (!text) refuse(place + ".text", "{}.text: missing", place);
        parts.push_back({{"type", "text"}, {"text", *text}});
    }
    *content = std::move(parts);
}

bool holds_object(const json::value& arguments) {
    if (arguments.is_object() || arguments.is_null()) return true;
    if (!arguments.is_string()) return true;  // the template's own check names it
    const std::string_view text = arguments.get_string();
    if (text.find_first_not_of(" \t\r\n") == std::string_view::npos) return true;
    try {
        return parse_json_within(text, "arguments", json_memory_of(text.size())).is_object();
    } catch (const Error&) {
        return false;
    }
}

void mend_arguments(json::object& message) {
    json::value* calls = message.if_contains("tool_calls");
    if (calls == nullptr || !calls->is_array()) return;
    for (json::value& call : calls->get_array()) {
        if (call.is_object()) call_as_function(call.get_object());
        json::value* function = call.is_object() ? call.get_object().if_contains("function") : nullptr;
        json::value* arguments =
            function != nullptr && function->is_object() ? function->get_object().if_contains("arguments") : nullptr;
        if (arguments != nullptr && !holds_object(*arguments)) *arguments = json::object{{"arguments", *arguments}};
    }
}

}  // namespace

std::string named_block(const json::object& block) {
    const std::string_view type = shortened(string_in(block, "type"), 60);
    const std::string name = name_of_block(block);
    return name.empty() ? fmt::format("[{}]", type) : fmt::format("[{}: {}]", type, name);
}

bool is_trace(std::string_view type) {
    return type == "tool_reference" || type == "server_tool_use" || type == "mcp_tool_use" ||
           type.ends_with("_tool_result");
}

std::size_t last_of_user(const json::array& messages) {
    for (std::size_t i = messages.size(); i-- > 0;) {
        const json::object* message = messages[i].if_object();
        if (message != nullptr && string_in(*message, "role") == "user") return i;
    }
    return messages.size();
}

json::array prepare_history(json::array messages) {
    if (messages.empty()) refuse("messages", "messages: expected at least one message");
    if (messages.size() > kMostMessages)
        refuse("messages", "messages: {} messages, expected at most {}", messages.size(), kMostMessages);
    const std::size_t last = last_of_user(messages);
    for (std::size_t i = 0; i < messages.size(); ++i) {
        const std::string where = fmt::format("messages[{}]", i);
        if (!messages[i].is_object()) refuse(where, "{}: expected an object, found {}", where, kind_of(messages[i]));
        json::object& message = messages[i].get_object();
        keep_text_of_parts(message, where, i == last);
        copy_reasoning(message);
        mend_arguments(message);
    }
    return messages;
}

}  // namespace riptide::server
