#include "server/api/constraint_fields.h"

#include <algorithm>
#include <limits>
#include <span>

#include "base/json.h"

namespace riptide::server {

namespace {

using FormKind = AnswerFormat::Kind;

/// A field that holds the answer to a form, and how it says it.
struct FormField {
    const char* name;
    FormKind kind;
};
/// This server's own, and those of other engines.
constexpr FormField kForms[] = {
    {"regex", FormKind::regex},
    {"grammar", FormKind::grammar},
    {"json_schema", FormKind::json_schema},
    {"guided_json", FormKind::json_schema},
    {"guided_regex", FormKind::regex},
    {"guided_choice", FormKind::choice},
    {"guided_grammar", FormKind::grammar},
};
/// Members of structured_outputs.
constexpr FormField kStructuredForms[] = {
    {"json", FormKind::json_schema},        {"regex", FormKind::regex},
    {"choice", FormKind::choice},           {"grammar", FormKind::grammar},
    {"json_object", FormKind::json_object},
};

/// A copy, in memory of its own, of a value that may be a schema; the engine looks at what is in it.
json::value checked_schema(const json::value& schema, const std::string& where) {
    if (!schema.is_object() && !schema.is_bool())
        refuse(where, "{}: expected an object, true or false, found {}", where, kind_of(schema));
    return json::value(schema, json_memory(where, std::numeric_limits<int64_t>::max()));
}

/// A schema, or the text of one.
json::value schema_in(const Fields& fields, const char* name) {
    const json::value& given = *fields.find(name);
    if (!given.is_string()) return checked_schema(given, fields.name(name));
    try {
        const std::string_view text = given.get_string();
        return checked_schema(parse_json_within(text, fields.name(name), json_memory_of(text.size())),
                              fields.name(name));
    } catch (const Error& error) {
        throw ApiError(400, error.what(), fields.name(name));
    }
}

json::value words_in(const Fields& fields, const char* name) {
    const json::array& words = *fields.array(name);
    if (words.empty()) refuse(fields.name(name), "{}: expected at least one string", fields.name(name));
    for (const json::value& word : words)
        if (!word.is_string())
            refuse(fields.name(name), "{}: expected strings, found {}", fields.name(name), kind_of(word));
    return words;
}

/// The form that one of the fields asks for, into `out`, which must not have one yet.
void add_forms(const Fields& fields, std::span<const FormField> known, AnswerFormat& out) {
    for (const auto& [name, kind] : known) {
        if (fields.find(name) == nullptr) continue;
        AnswerFormat form{.kind = kind};
        if (kind == FormKind::json_object && !fields.boolean(name).value_or(false)) continue;
        if (kind == FormKind::json_schema) form.schema = schema_in(fields, name);
        if (kind == FormKind::choice) form.schema = words_in(fields, name);
        if (kind == FormKind::regex || kind == FormKind::grammar) form.text = *fields.string(name);
        if (out.kind != FormKind::any)
            refuse(fields.name(name), "{}: the answer has a form already, of {}; expected one of the two",
                   fields.name(name), out.field);
        form.place_in(fields.name(name));
        out = std::move(form);
    }
}

/// What else structured_outputs says of the answer; how it is done is the server's affair.
void refuse_other_forms(const json::object& forms) {
    for (const auto& [key, value] : forms) {
        const std::string_view name = key;
        const bool known = std::any_of(std::begin(kStructuredForms), std::end(kStructuredForms),
                                       [&](const FormField& form) { return name == form.name; });
        const bool off = value.is_null() || (value.is_bool() && !value.get_bool());
        if (known || off || name == "backend" || name.starts_with('_')) continue;
        const std::string where = "structured_outputs." + std::string(name.substr(0, 80));
        refuse(where, "{}: not supported; expected json, regex, choice, grammar or json_object", where);
    }
}

}  // namespace

AnswerFormat parse_format_object(const json::object& format, const std::string& where) {
    const Fields fields(format, where + ".");
    const std::string type(fields.string("type").value_or(""));
    if (type == "text") return {};
    AnswerFormat out;
    out.place_in(where);
    if (type == "json_object" && fields.find("schema") == nullptr) {
        out.kind = FormKind::json_object;
        return out;
    }
    if (type != "json_schema" && type != "json_object")
        refuse(where, "{}.type: expected text, json_object or json_schema, found '{}'", where, type.substr(0, 40));
    const json::object* inner = fields.object("json_schema");
    const std::string place = inner != nullptr ? where + ".json_schema" : where;
    const Fields holder(inner != nullptr ? *inner : format, place + ".");
    const json::value* schema = holder.find("schema");
    if (schema == nullptr) refuse(where, "{}.schema: missing", place);
    out.kind = FormKind::json_schema;
    out.schema = checked_schema(*schema, place + ".schema");
    out.lenient = !holder.boolean("strict").value_or(true);
    out.place_in(place + ".schema");
    return out;
}

AnswerFormat parse_format(const Fields& fields) {
    AnswerFormat out;
    if (const json::object* format = fields.object("response_format"))
        out = parse_format_object(*format, "response_format");
    add_forms(fields, kForms, out);
    if (const json::object* forms = fields.object("structured_outputs")) {
        const Fields inner(*forms, "structured_outputs.");
        add_forms(inner, kStructuredForms, out);
        refuse_other_forms(*forms);
    }
    if (fields.find("guided_whitespace_pattern") != nullptr)
        refuse("guided_whitespace_pattern", "guided_whitespace_pattern: not supported; a grammar can say it");
    const std::optional<bool> strict = fields.boolean("strict");
    if (strict) out.lenient = !*strict;
    if (strict.value_or(false) && out.kind == AnswerFormat::Kind::any)
        refuse("strict", "strict: there is no schema beside it; expected inside a tool's function or in json_schema");
    return out;
}

namespace {

/// The name of a function or of a tool that takes free text, as either API writes it: inside or beside its type.
std::optional<std::string_view> name_of_tool(const Fields& tool) {
    for (const char* kind : {"function", "custom"})
        if (const json::object* inner = tool.object(kind)) return Fields(*inner, tool.name(kind) + ".").string("name");
    return tool.string("name");
}

/// The names in a list of tools.
std::vector<std::string> names_of_tools(const Fields& allowed) {
    const json::array* tools = allowed.array("tools");
    std::vector<std::string> out;
    for (std::size_t i = 0; tools != nullptr && i < tools->size(); ++i) {
        const std::string where = fmt::format("{}[{}]", allowed.name("tools"), i);
        const json::object* tool = (*tools)[i].if_object();
        if (tool == nullptr) refuse("tool_choice", "{}: expected an object, found {}", where, kind_of((*tools)[i]));
        const auto name = name_of_tool(Fields(*tool, where + "."));
        if (name && !name->empty()) out.emplace_back(*name);  // web_search and the like have none
    }
    if (out.empty()) refuse("tool_choice", "{}: expected at least one function", allowed.name("tools"));
    return out;
}

void parse_choice_word(std::string_view word, const std::string& where, std::string_view expected, ToolChoice& out) {
    if (word == "required") out.kind = ToolChoice::Kind::required;
    else if (word != "auto") refuse("tool_choice", "{}: expected {}, found '{}'", where, expected, word.substr(0, 40));
}

}  // namespace

ToolOffer parse_tool_choice(const Fields& fields, ToolChoice& out) {
    const json::value* choice = fields.find("tool_choice");
    if (choice == nullptr) return {};
    if (choice->is_string()) {
        const std::string_view word = choice->get_string();
        if (word == "none") return {.none = true};
        parse_choice_word(word, "tool_choice", "auto, none, required or a function", out);
        return {};
    }
    const Fields named(*fields.object("tool_choice"), "tool_choice.");
    const std::string_view type = named.string("type").value_or("function");
    if (type == "allowed_tools") {
        const json::object* inner = named.object("allowed_tools");
        const Fields allowed = inner != nullptr ? Fields(*inner, "tool_choice.allowed_tools.") : named;
        parse_choice_word(allowed.string("mode").value_or("auto"), allowed.name("mode"), "auto or required", out);
        return {.only = names_of_tools(allowed)};
    }
    if (type != "function" && type != "custom")
        refuse("tool_choice", "tool_choice.type: expected function, custom or allowed_tools, found '{}'",
               type.substr(0, 40));
    const auto name = name_of_tool(named);
    if (!name || name->empty()) refuse("tool_choice", "tool_choice.{}.name: missing", type);
    out.kind = ToolChoice::Kind::named;
    out.name = *name;
    return {};
}

void keep_offered(const ToolOffer& offer, json::array& tools) {
    if (offer.none) tools.clear();
    if (offer.only.empty()) return;
    const auto name_of = [](const json::value& tool) {
        return std::string_view(tool.at("function").at("name").as_string());
    };
    for (const std::string& name : offer.only)
        if (std::none_of(tools.begin(), tools.end(), [&](const json::value& tool) { return name_of(tool) == name; }))
            refuse("tool_choice", "tool_choice: there is no tool '{}'", name.substr(0, 80));
    json::array kept;
    for (json::value& tool : tools)
        if (std::find(offer.only.begin(), offer.only.end(), name_of(tool)) != offer.only.end())
            kept.push_back(std::move(tool));
    tools = std::move(kept);
}

bool parse_anthropic_tool_choice(const Fields& fields, ToolChoice& out) {
    const json::object* choice = fields.object("tool_choice");
    if (choice == nullptr) return true;
    const Fields inner(*choice, "tool_choice.");
    out.single = inner.boolean("disable_parallel_tool_use").value_or(false);
    const std::string_view type = inner.string("type").value_or("auto"), name = inner.string("name").value_or("");
    if (type == "none") return false;
    if (type == "any") {
        out.kind = ToolChoice::Kind::required;
    } else if (type == "tool") {
        out.kind = ToolChoice::Kind::named;
        out.name = name;
        if (name.empty()) refuse("tool_choice", "tool_choice.name: missing");
    } else if (type != "auto") {
        refuse("tool_choice", "tool_choice.type: expected auto, none, any or tool, found '{}'", type.substr(0, 40));
    }
    return true;
}

}  // namespace riptide::server
