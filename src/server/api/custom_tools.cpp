#include "server/api/custom_tools.h"

#include <utility>

#include "base/json.h"
#include "server/api/fields.h"
#include "text/dialects/response_grammar.h"
#include "text/grammar/grammar_regex.h"
#include "text/structured/grammar_lark.h"

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

/// Of the format of a custom tool: what its text must be, in the function or in the schema of `input`. Whether there is
/// such a form.
bool hold_input(const Fields& format, std::size_t& bytes, WorkBudget* work, json::object& function,
                json::object& input) {
    const std::string_view type = format.string("type").value_or("text");
    if (type == "text") return false;
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
    bytes += syntax == "lark" ? definition.size() : 0;
    if (bytes > kMostInputGrammars)
        refuse(grammar.name("definition"), "{}: grammars of tools have {} bytes up to here, expected at most {} in all",
               grammar.name("definition"), bytes, kMostInputGrammars);
    try {
        Grammar scratch(work);
        if (syntax == "lark") {
            add_lark(scratch, definition);
            function[kInputGrammar] = {{"syntax", "lark"}, {"definition", definition}};
        } else {
            const std::string pattern = whole_pattern(definition);
            add_regex(scratch, pattern, true);
            input["pattern"] = pattern;
        }
    } catch (const GrammarError& error) {
        refuse(grammar.name("definition"), "{}: {}", grammar.name("definition"), error.what());
    }
    return true;
}

}  // namespace

json::object custom_function(const json::object& tool, const std::string& where, std::size_t& bytes, WorkBudget* work) {
    const Fields fields(tool, where + ".");
    json::object input = {{"type", "string"}}, function = {{"name", fields.filled("name")}};
    const json::object* format = fields.object("format");
    const bool held =
        format != nullptr && hold_input(Fields(*format, where + ".format."), bytes, work, function, input);
    if (const auto text = fields.string("description")) function["description"] = *text;
    function["parameters"] = {{"type", "object"},
                              {"properties", {{"input", std::move(input)}}},
                              {"required", {"input"}},
                              {"additionalProperties", false}};
    function["strict"] = held;
    return {{"type", "function"}, {"function", std::move(function)}};
}

json::array with_custom_functions(const json::array& tools, CustomNames& names, WorkBudget* work) {
    json::array out;
    std::size_t bytes = 0;
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
        out.push_back(custom_function(*inner, where + ".custom", bytes, work));
        names.emplace(std::string_view(inner->at("name").as_string()));
    }
    return out;
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
