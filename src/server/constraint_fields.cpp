#include "server/constraint_fields.h"

#include "base/json.h"

namespace riptide::server {

namespace {

/// Whatever is wrong with the form itself is said here, with the field; what does not fit the vocabulary or is too
/// large when compiled is said by submit.
void check(const AnswerFormat& format, const std::string& where) {
    if (format.kind == AnswerFormat::Kind::any) return;
    try {
        Grammar grammar;
        add_format(grammar, format);
    } catch (const GrammarError& error) {
        refuse(where.substr(0, where.find('.')), "{}: {}", where, error.what());
    }
}

}  // namespace

AnswerFormat parse_format_object(const json::object& format, const std::string& where) {
    const Fields fields(format, where + ".");
    const std::string type(fields.string("type").value_or(""));
    if (type == "text") return {};
    if (type == "json_object") return {.kind = AnswerFormat::Kind::json_object};
    if (type != "json_schema")
        refuse(where, "{}.type: expected text, json_object or json_schema, found '{}'", where, type.substr(0, 40));
    const json::object* inner = fields.object("json_schema");
    const std::string place = inner != nullptr ? where + ".json_schema" : where;
    const json::value* schema = Fields(inner != nullptr ? *inner : format, place + ".").find("schema");
    if (schema == nullptr) refuse(where, "{}.schema: missing", place);
    AnswerFormat out{.kind = AnswerFormat::Kind::json_schema, .schema = *schema};
    check(out, place + ".schema");
    return out;
}

AnswerFormat parse_format(const Fields& fields) {
    AnswerFormat out;
    if (const json::object* format = fields.object("response_format"))
        out = parse_format_object(*format, "response_format");
    for (const std::string field : {"regex", "grammar"}) {
        const auto text = fields.string(field);
        if (!text) continue;
        if (out.kind != AnswerFormat::Kind::any)
            refuse(field, "{}: only one of response_format, regex and grammar may be given", field);
        out.kind = field == "regex" ? AnswerFormat::Kind::regex : AnswerFormat::Kind::grammar;
        out.text = *text;
        check(out, field);
    }
    return out;
}

bool parse_tool_choice(const Fields& fields, ToolChoice& out) {
    const json::value* choice = fields.find("tool_choice");
    if (choice == nullptr) return true;
    if (choice->is_string()) {
        if (choice->get_string() == "none") return false;
        if (choice->get_string() == "required") out.kind = ToolChoice::Kind::required;
        else if (choice->get_string() != "auto")
            refuse("tool_choice", "tool_choice: expected auto, none, required or a function, found '{}'",
                   std::string_view(choice->get_string()).substr(0, 40));
        return true;
    }
    const Fields named(*fields.object("tool_choice"), "tool_choice.");
    if (named.string("type").value_or("function") != "function")
        refuse("tool_choice", "tool_choice.type: expected function, found '{}'",
               named.string("type").value_or("").substr(0, 40));
    const json::object* function = named.object("function");
    const auto name =
        function != nullptr ? Fields(*function, "tool_choice.function.").string("name") : named.string("name");
    if (!name || name->empty()) refuse("tool_choice", "tool_choice.function.name: missing");
    out.kind = ToolChoice::Kind::named;
    out.name = *name;
    return true;
}

bool parse_anthropic_tool_choice(const Fields& fields, ToolChoice& out) {
    const json::object* choice = fields.object("tool_choice");
    if (choice == nullptr) return true;
    const Fields inner(*choice, "tool_choice.");
    out.single = inner.boolean("disable_parallel_tool_use").value_or(false);
    const std::string_view type = inner.string("type").value_or("auto");
    if (type == "none") return false;
    if (type == "any") {
        out.kind = ToolChoice::Kind::required;
    } else if (type == "tool") {
        out.kind = ToolChoice::Kind::named;
        out.name = inner.string("name").value_or("");
        if (out.name.empty()) refuse("tool_choice", "tool_choice.name: missing");
    } else if (type != "auto") {
        refuse("tool_choice", "tool_choice.type: expected auto, none, any or tool, found '{}'", type.substr(0, 40));
    }
    return true;
}

}  // namespace riptide::server
