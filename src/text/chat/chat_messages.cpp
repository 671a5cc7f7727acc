#include "text/chat/chat_messages.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/json.h"

namespace riptide {
namespace {

constexpr std::string_view kRoles[] = {"system", "developer", "user", "assistant", "tool"};
constexpr std::string_view kReserved[] = {"messages",  "tools",     "documents", "functions", "add_generation_prompt",
                                          "bos_token", "eos_token", "pad_token", "unk_token", "chat_template"};
constexpr std::size_t kMaxKwargs = 64;

/// As much of a client's text as an error should show.
std::string shown(std::string_view text) { return std::string(text.substr(0, 40)); }

const json::object& need_object(const json::value& value, const std::string& where) {
    RT_CHECK(value.is_object(), "{}: expected an object, found {}", where, kind_of(value));
    return value.get_object();
}

std::string_view need_string(const json::object& object, std::string_view key, const std::string& where) {
    const json::value* value = object.if_contains(key);
    RT_CHECK(value != nullptr, "{}.{}: missing", where, key);
    RT_CHECK(value->is_string(), "{}.{}: expected a string, found {}", where, key, kind_of(*value));
    return value->get_string();
}

/// The texts of content parts, a newline between them.
std::string join_parts(const json::array& parts, const std::string& where) {
    std::string out;
    for (std::size_t i = 0; i < parts.size(); ++i) {
        const std::string place = fmt::format("{}[{}]", where, i);
        const json::object& part = need_object(parts[i], place);
        const std::string_view type = need_string(part, "type", place);
        RT_CHECK(type == "text", "{}.type: '{}' is not supported, only text is", place, shown(type));
        if (i > 0) out += '\n';
        out += need_string(part, "text", place);
    }
    return out;
}

void prepare_content(json::object& message, std::string_view role, const MessageForm& form, const std::string& where) {
    json::value& content = message["content"];  // null if absent
    if (content.is_string()) return;
    if (content.is_array()) {
        std::string text = join_parts(content.get_array(), where + ".content");
        if (!form.content_parts) content = json::string(text);
        return;
    }
    RT_CHECK(content.is_null(), "{}.content: expected a string or an array of parts, found {}", where,
             kind_of(content));
    RT_CHECK(role == "assistant", "{}.content: missing", where);
    content = json::string();
}

/// A string that holds an object, as the OpenAI API has it, or the object itself.
json::object parse_arguments(const json::value& arguments, const std::string& where) {
    if (arguments.is_object()) return arguments.get_object();
    RT_CHECK(arguments.is_string(), "{}: expected a string or an object, found {}", where, kind_of(arguments));
    const std::string_view text = arguments.get_string();
    if (text.find_first_not_of(" \t\r\n") == std::string_view::npos) return {};
    json::value parsed = parse_json_within(text, where, json_memory_of(text.size()));
    RT_CHECK(parsed.is_object(), "{}: expected the JSON of an object, found that of {}", where, kind_of(parsed));
    return std::move(parsed.get_object());
}

void prepare_tool_calls(json::object& message, std::string_view role, const std::string& where) {
    json::value* calls = message.if_contains("tool_calls");
    if (calls == nullptr || calls->is_null()) return;
    const std::string list = where + ".tool_calls";
    RT_CHECK(calls->is_array(), "{}: expected an array, found {}", list, kind_of(*calls));
    RT_CHECK(role == "assistant" || calls->get_array().empty(), "{}: only an assistant's message has tool calls", list);
    for (std::size_t i = 0; i < calls->get_array().size(); ++i) {
        const std::string place = fmt::format("{}[{}]", list, i);
        need_object(calls->get_array()[i], place);
        json::object& call = calls->get_array()[i].get_object();
        json::value* function = call.if_contains("function");
        RT_CHECK(function != nullptr, "{}.function: missing", place);
        need_object(*function, place + ".function");
        need_string(function->get_object(), "name", place + ".function");
        json::value& arguments = function->get_object()["arguments"];
        if (arguments.is_null()) arguments = json::object();
        else arguments = parse_arguments(arguments, place + ".function.arguments");
    }
}

/// The content of `more`, a string or parts, behind that of `message`, of which nothing is copied.
void append_content(json::object& message, json::value& more, std::string_view separator) {
    json::value& content = message["content"];
    if (content.is_string() && more.is_string()) {
        content.get_string().append(separator).append(more.get_string());
        return;
    }
    const auto part = [](json::value text) { return json::object{{"type", "text"}, {"text", std::move(text)}}; };
    if (content.is_string()) content = json::array{part(std::move(content))};
    json::array& parts = content.get_array();
    parts.push_back(part(json::string(separator)));
    if (more.is_string()) parts.push_back(part(std::move(more)));
    else std::move(more.get_array().begin(), more.get_array().end(), std::back_inserter(parts));
}

/// For templates that take one system message, at the beginning: those that follow it are joined to it, later ones to
/// the user's message before them, and others are the user's. An edit of the end changes nothing before it.
json::array fold_system_messages(json::array&& messages) {
    json::array out;
    bool at_start = true;
    for (json::value& message : messages) {
        json::object& object = message.get_object();
        const bool system = object.at("role") == "system" || object.at("role") == "developer";
        at_start = at_start && system;
        const bool joins = system && !out.empty() && (at_start || out.back().at("role") == "user");
        if (joins) {
            append_content(out.back().get_object(), object["content"], "\n\n");
            continue;
        }
        if (system && !out.empty()) object["role"] = "user";
        out.push_back(std::move(message));
    }
    return out;
}

}  // namespace

json::array prepare_messages(const json::array& messages, const MessageForm& form) {
    RT_CHECK(!messages.empty(), "messages: expected at least one message");
    json::array out = messages;
    for (std::size_t i = 0; i < out.size(); ++i) {
        const std::string where = fmt::format("messages[{}]", i);
        need_object(out[i], where);
        json::object& message = out[i].get_object();
        const std::string role(need_string(message, "role", where));
        RT_CHECK(std::find(std::begin(kRoles), std::end(kRoles), role) != std::end(kRoles),
                 "{}.role: unknown role '{}', expected system, developer, user, assistant or tool", where, shown(role));
        if (role == "developer" && !form.developer) message["role"] = "system";
        prepare_content(message, role, form, where);
        prepare_tool_calls(message, role, where);
        for (const std::string_view key : {"reasoning", "reasoning_content"}) {
            const json::value* text = message.if_contains(key);
            RT_CHECK(text == nullptr || text->is_null() || text->is_string(), "{}.{}: expected a string, found {}",
                     where, key, kind_of(*text));
        }
    }
    return form.late_system ? out : fold_system_messages(std::move(out));
}

std::string_view mark_final_message(json::array& messages) {
    constexpr std::string_view kMark = "riptide-goes-on-here";
    const std::string where = fmt::format("messages[{}]", messages.size() - 1);
    json::object& message = messages.back().get_object();
    const std::string_view role = message.at("role").get_string();
    RT_CHECK(role == "assistant", "{}.role: an answer goes on with a message of the assistant, found one of the {}",
             where, role);
    const json::value* calls = message.if_contains("tool_calls");
    RT_CHECK(calls == nullptr || calls->is_null() || calls->get_array().empty(),
             "{}.tool_calls: no answer can go on with calls of tools, expected their results behind them", where);
    json::value& content = message["content"];
    json::value* last = &content;
    if (content.is_array()) {
        json::array& parts = content.get_array();
        if (parts.empty()) parts.push_back({{"type", "text"}, {"text", ""}});
        last = &parts.back().get_object()["text"];
    }
    last->get_string().append(kMark);
    return kMark;
}

void check_tools(const json::array& tools) {
    for (std::size_t i = 0; i < tools.size(); ++i) {
        const std::string where = fmt::format("tools[{}]", i);
        const json::object& tool = need_object(tools[i], where);
        if (const json::value* type = tool.if_contains("type")) {
            RT_CHECK(type->is_string() && type->get_string() == "function", "{}.type: expected 'function'", where);
        }
        const json::value* function = tool.if_contains("function");
        RT_CHECK(function != nullptr, "{}.function: missing", where);
        RT_CHECK(!need_string(need_object(*function, where + ".function"), "name", where + ".function").empty(),
                 "{}.function.name: empty", where);
    }
}

void check_template_kwargs(const json::object& extra) {
    RT_CHECK(extra.size() <= kMaxKwargs, "chat_template_kwargs: {} entries, at most {} are allowed", extra.size(),
             kMaxKwargs);
    for (const auto& [key, value] : extra) {
        const std::string_view name = key;
        RT_CHECK(std::find(std::begin(kReserved), std::end(kReserved), name) == std::end(kReserved),
                 "chat_template_kwargs.{}: this name is set by the engine", name);
        RT_CHECK(!value.is_object() && !value.is_array(), "chat_template_kwargs.{}: expected a scalar, found {}",
                 shown(name), kind_of(value));
        RT_CHECK(name != "enable_thinking" || value.is_bool(),
                 "chat_template_kwargs.enable_thinking: expected true or false, found {}", kind_of(value));
    }
}

}  // namespace riptide
