// JSON Schema: objects, arrays, strings, numbers.
#include <algorithm>

#include "base/json.h"
#include "text/json_schema_builder.h"
#include "text/tool_arguments.h"

namespace riptide {

namespace {

using Expr = Grammar::Expr;

std::string escaped_pointer(std::string_view key) {
    std::string out;
    for (const char c : key) {
        if (c == '~') out += "~0";
        else if (c == '/') out += "~1";
        else out += c;
    }
    return out;
}

std::string key_text(std::string_view name) {
    std::string out;
    append_json_escaped(name, out);
    return out;
}

}  // namespace

Expr SchemaBuilder::object(const json::object& schema, const std::string& path) {
    const json::value* properties = schema.if_contains("properties");
    const json::value* required = schema.if_contains("required");
    const json::value* additional = schema.if_contains("additionalProperties");
    if (properties != nullptr && !properties->is_object()) wrong(path, "'properties' is not an object");
    if (required != nullptr && !required->is_array()) wrong(path, "'required' is not an array");
    std::vector<std::string> needed;
    if (required != nullptr)
        for (const json::value& name : required->get_array()) {
            if (!name.is_string()) wrong(path, "'required' holds what is not a string");
            needed.emplace_back(name.get_string());
        }
    const auto is_needed = [&](std::string_view name) {
        return std::find(needed.begin(), needed.end(), name) != needed.end();
    };
    std::vector<std::pair<Expr, bool>> members;
    std::vector<std::string> names;
    const auto add = [&](std::string_view name, Expr value, bool must) {
        const std::string key = key_text(name);
        members.emplace_back(json_.member(g_.text("\"" + key + "\""), value), must);
        names.emplace_back(name);
    };
    if (properties != nullptr)
        for (const auto& [name, value] : properties->get_object()) {
            // A member that can have no value is left out; where it must be there, nothing can match.
            const Expr inner = this->schema(value, fmt::format("{}/properties/{}", path, escaped_pointer(name)));
            add(name, inner, is_needed(name));
        }
    const bool closed = additional != nullptr ? additional->is_bool() && !additional->get_bool() : !names.empty();
    const bool stated = additional != nullptr && !closed;
    std::optional<Expr> other;
    if (stated || !closed)
        other = additional == nullptr ? json_.any() : this->schema(*additional, path + "/additionalProperties");
    for (const std::string& name : needed) {
        if (std::find(names.begin(), names.end(), name) != names.end()) continue;
        if (closed && additional != nullptr)
            wrong(path, fmt::format("'{}' is required, but it is no property, and there may be no others",
                                    name.substr(0, 80)));
        add(name, other ? *other : json_.any(), true);
    }
    std::optional<Expr> more;
    if (other) more = json_.member(names.empty() ? json_.string() : json_.other_string(names), g_.named(*other));
    return json_.object_of(members, more);
}

Expr SchemaBuilder::array(const json::object& schema, const std::string& path) {
    const json::value* items = schema.if_contains("items");
    const int64_t least = schema_count(schema, "minItems", path).value_or(0);
    const int64_t most = schema_count(schema, "maxItems", path).value_or(Grammar::kUnbounded);
    if (least > Grammar::kMostRepeats || most > Grammar::kMostRepeats)
        wrong(path, fmt::format("'minItems' and 'maxItems' of more than {} are not supported", Grammar::kMostRepeats));
    if (most != Grammar::kUnbounded && least > most) wrong(path, "'minItems' is more than 'maxItems'");
    const Expr item = items != nullptr ? this->schema(*items, path + "/items") : json_.any();
    return json_.array_of(item, least, most);
}

Expr SchemaBuilder::string(const json::object& schema, const std::string& path) {
    const TextRules rules = text_rules(schema, path);
    try {
        return json_.string_of(rules);
    } catch (const GrammarError& error) {
        wrong(path, error.what());
    }
}

Expr SchemaBuilder::number(const json::object& schema, const std::string& path, bool whole) {
    try {
        return json_.number_of(schema, whole);
    } catch (const GrammarError& error) {
        wrong(path, error.what());
    }
}

}  // namespace riptide
