#include "server/api/custom_tools.h"

#include <utility>

#include "base/json.h"
#include "server/api/fields.h"
#include "text/dialects/response_grammar.h"

namespace riptide::server {

namespace {

/// The pattern of a string that matches a regular expression as a whole.
std::string whole_pattern(std::string_view definition) {
    if (definition.find('|') == std::string_view::npos) {  // then anchors are those of the whole
        if (definition.starts_with('^')) definition.remove_prefix(1);
        if (definition.ends_with('$') && !definition.ends_with("\\$")) definition.remove_suffix(1);
    }
    return fmt::format("^(?:{})$", definition);
}

/// Of the format of a custom tool: what its text must be, in the function or in the schema of `input`. Where in the
/// format that stands; "" if there is no such form.
std::string hold_input(const Fields& format, json::object& function, json::object& input) {
    const std::string_view type = format.string("type").value_or("text");
    if (type == "text") return {};
    if (type != "grammar")
        refuse(format.name("type"), "{}: expected text or grammar, found '{}'", format.name("type"),
               type.substr(0, 40));
    const json::object* inner = format.object("grammar");  // as the chat API has it
    const Fields grammar = inner != nullptr ? Fields(*inner, format.name("grammar") + ".") : format;
    const std::string_view syntax = grammar.string("syntax").value_or("");
    if (syntax != "regex" && syntax != "lark")
        refuse(grammar.name("syntax"), "{}: expected lark or regex, found '{}'", grammar.name("syntax"),
               syntax.substr(0, 40));
    const std::string_view definition = grammar.filled("definition");
    if (syntax == "regex") input["pattern"] = whole_pattern(definition);
    else function[kInputGrammar] = {{"syntax", "lark"}, {"definition", definition}};
    return inner != nullptr ? "grammar.definition" : "definition";
}

}  // namespace

json::object custom_function(const json::object& tool, const std::string& where, const std::string& in_chat,
                             CustomTools& custom) {
    const Fields fields(tool, where + ".");
    json::object input = {{"type", "string"}}, function = {{"name", fields.filled("name")}};
    const json::object* format = fields.object("format");
    const std::string held =
        format != nullptr ? hold_input(Fields(*format, where + ".format."), function, input) : std::string();
    if (const auto text = fields.string("description")) function["description"] = *text;
    function["parameters"] = {{"type", "object"},
                              {"properties", {{"input", std::move(input)}}},
                              {"required", {"input"}},
                              {"additionalProperties", false}};
    function["strict"] = !held.empty();
    custom.emplace(fields.filled("name"), held.empty() ? std::string() : in_chat + ".format." + held);
    return {{"type", "function"}, {"function", std::move(function)}};
}

json::array with_custom_functions(const json::array& tools, CustomTools& custom) {
    json::array out;
    for (const json::value& tool : tools) {
        const json::object* object = tool.if_object();
        const json::value* type = object != nullptr ? object->if_contains("type") : nullptr;
        const std::string where = fmt::format("tools[{}]", out.size());
        if (type == nullptr || *type != "custom") {
            out.push_back(tool);
            continue;
        }
        const json::object* inner = Fields(*object, where + ".").object("custom");
        if (inner == nullptr) refuse(where + ".custom", "{}.custom: missing", where);
        out.push_back(custom_function(*inner, where + ".custom", where + ".custom", custom));
    }
    return out;
}

std::optional<ApiError> grammar_error(const ToolError& error, const CustomTools& custom) {
    const auto tool = custom.find(error.tool);
    if (tool == custom.end() || tool->second.empty()) return std::nullopt;
    std::string_view why = error.why;  // behind the place in a schema that the client has not written
    if (const auto place = why.find(": "); why.starts_with('#') && place != why.npos) why.remove_prefix(place + 2);
    return ApiError(400, fmt::format("{}: {}", tool->second, why), tool->second);
}

std::string text_of_input(std::string_view arguments) {
    for (const char* end : {"", "\"}"})  // the second: the answer ended inside it
        try {
            const json::value parsed = parse_json(std::string(arguments) + end, "arguments");
            const json::object* object = parsed.if_object();
            const json::value* input = object != nullptr ? object->if_contains("input") : nullptr;
            if (object != nullptr)
                return input != nullptr && input->is_string() ? std::string(input->get_string()) : std::string();
        } catch (const Error&) {  // then it was cut elsewhere
        }
    return {};
}

void call_as_function(json::object& call) {
    const json::value* custom = call.if_contains("custom");
    if (custom == nullptr || !custom->is_object() || call.contains("function")) return;
    const json::object made = custom->get_object();
    const json::value *name = made.if_contains("name"), *input = made.if_contains("input");
    json::object function = {{"arguments", {{"input", input != nullptr ? *input : json::value("")}}}};
    if (name != nullptr) function["name"] = *name;
    call.erase("custom");
    call["type"] = "function";
    call["function"] = std::move(function);
}

}  // namespace riptide::server
