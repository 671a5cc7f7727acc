#include "server/api/responses/responses_tools.h"

#include <set>
#include <utility>

#include "base/json.h"
#include "server/api/custom_tools.h"
#include "server/api/fields.h"

namespace riptide::server {

namespace {

/// {"type": "function", "name", ...} -> {"type": "function", "function": {"name", ...}}
json::object chat_function(const json::object& tool) {
    if (tool.contains("function")) return tool;
    json::object function;
    for (const std::string_view key : {"name", "description", "parameters", "strict"})
        if (const json::value* value = tool.if_contains(key); value != nullptr && !value->is_null())
            function[key] = *value;
    return {{"type", "function"}, {"function", std::move(function)}};
}

/// The model knows tools by their names alone: a call to one of two that a namespace tells apart could go to the wrong
/// one.
void refuse_namesakes(const json::array& functions, const ResponsesRequest& out) {
    std::set<std::string, std::less<>> names;
    for (const json::value& each : functions) {
        const json::value* function = each.is_object() ? each.get_object().if_contains("function") : nullptr;
        const std::string name =
            function != nullptr && function->is_object() ? string_of(function->get_object(), "name") : "";
        if (!names.insert(name).second && out.namespaces.contains(name))
            refuse("tools",
                   "tools: two are called '{}', one of them in the namespace '{}'; expected names of their own",
                   name.substr(0, 80), out.namespaces.at(name).substr(0, 80));
    }
}

}  // namespace

std::string_view item_type(const json::object& item) {
    const json::value* type = item.if_contains("type");
    return type != nullptr && type->is_string() ? std::string_view(type->get_string()) : "message";
}

std::string string_of(const json::object& item, std::string_view key) {
    const json::value* value = item.if_contains(key);
    return value != nullptr && value->is_string() ? std::string(value->get_string()) : std::string();
}

json::array chat_tools(const json::array& tools, ResponsesRequest& out) {
    json::array functions;
    const auto is_ours = [](const json::object& tool) {
        return item_type(tool) == "function" || item_type(tool) == "custom";
    };
    const auto add = [&](const json::object& tool, const std::string& where) {
        const std::string in_chat = fmt::format("tools[{}]", functions.size());
        functions.push_back(item_type(tool) == "custom" ? custom_function(tool, where, in_chat, out.generation.custom)
                                                        : chat_function(tool));
        out.origins.tools.push_back({where, tool.contains("function") ? where + ".function" : where});
    };
    for (std::size_t i = 0; i < tools.size(); ++i) {
        const std::string where = fmt::format("tools[{}]", i);
        if (!tools[i].is_object()) {
            functions.push_back(tools[i]);  // refused by name
            out.origins.tools.push_back({where, where});
            continue;
        }
        const json::object& tool = tools[i].get_object();
        if (is_ours(tool)) add(tool, where);
        if (item_type(tool) != "namespace") continue;
        const json::value* inner = tool.if_contains("tools");
        if (inner == nullptr || !inner->is_array()) continue;
        for (std::size_t j = 0; j < inner->get_array().size(); ++j) {
            const json::value& each = inner->get_array()[j];
            if (!each.is_object() || !is_ours(each.get_object())) continue;
            add(each.get_object(), fmt::format("{}.tools[{}]", where, j));
            out.namespaces.emplace(string_of(each.get_object(), "name"), string_of(tool, "name"));
        }
    }
    refuse_namesakes(functions, out);
    return functions;
}

json::value chat_tool_choice(const json::value& choice) {
    if (!choice.is_object()) return choice;
    const json::object& object = choice.get_object();
    if (item_type(object) != "function" && item_type(object) != "custom") return choice;
    return json::object{{"type", "function"}, {"function", {{"name", string_of(object, "name")}}}};
}

}  // namespace riptide::server
