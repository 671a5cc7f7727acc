// What a schema under 'not' leaves: some word of it does not hold.
#include <algorithm>
#include <array>

#include "text/json/json_schema.h"
#include "text/json/json_schema_cases.h"

namespace riptide {

namespace {

constexpr std::array kNotOpposed = {"patternProperties", "propertyNames",   "dependencies", "dependentRequired",
                                    "dependentSchemas",  "additionalItems", "prefixItems",  "minContains",
                                    "maxContains",       "uniqueItems",     "multipleOf",   "unevaluatedItems",
                                    "$dynamicRef",       "$recursiveRef",   "oneOf",        "unevaluatedProperties"};

}  // namespace

std::string not_opposed(std::string_view word) {
    return fmt::format(
        "'{}' is not supported under 'not', nor in a part of 'oneOf' that may be valid together with "
        "another, nor under 'if'",
        word);
}

/// Ways to be not valid; none: all is valid.
std::vector<SchemaOption> SchemaCases::opposite(const json::value& at) {
    std::vector<Option> out;
    const json::object& schema = at.get_object();
    const bool alone = document_.references_stand_alone() && schema.contains("$ref");
    for (const auto& [key, value] : schema) {
        const std::string_view word = key;
        if (alone && word != "$ref") continue;
        if (not_joined(out, at, word) || not_members(out, at, word) || not_bound(out, at, word)) continue;
        const bool is_known = std::find(kNotOpposed.begin(), kNotOpposed.end(), word) != kNotOpposed.end() ||
                              (word == "items" && !value.is_bool()) || word == "contains" ||
                              (word == "format" && value.is_string() &&
                               (is_known_format(value.get_string()) || number_format(schema) != nullptr));
        const bool holds_all = (value.is_bool() && (value.get_bool() || word == "uniqueItems")) ||
                               (value.is_object() && value.get_object().empty());
        if (!is_known || (holds_all && !(word == "uniqueItems" && value.get_bool()))) continue;
        unsupported(&at, not_opposed(word));
        out.emplace_back();
    }
    return out;
}

bool SchemaCases::not_joined(std::vector<Option>& out, const json::value& at, std::string_view word) {
    const json::object& schema = at.get_object();
    const json::value& value = schema.at(word);
    const std::string where = fmt::format("{}/{}", place(&at), word);
    const auto no = [&](const json::value& part) { return term(part, where, true); };
    if (word == "$ref") {
        out.push_back({{no(document_.target(schema, place(&at)))}});
    } else if (word == "type") {
        out.push_back({.types = static_cast<uint8_t>(SchemaTypes::kAll & ~schema_type_set(schema, place(&at)))});
    } else if (word == "const") {
        out.push_back({.excluded = {&value}});
    } else if (word == "enum" && value.is_array()) {
        Option& option = out.emplace_back();
        for (const json::value& one : value.get_array()) option.excluded.push_back(&one);
    } else if (word == "allOf" && value.is_array()) {
        for (const json::value& part : value.get_array()) out.push_back({{no(part)}});
    } else if (word == "anyOf" && value.is_array()) {
        Option& option = out.emplace_back();
        for (const json::value& part : value.get_array()) option.terms.push_back(no(part));
    } else if (word == "not") {
        out.push_back({{term(value, where)}});
    } else if (word == "if") {
        if (const json::value* then = schema.if_contains("then")) out.push_back({{term(value, where), no(*then)}});
        if (const json::value* other = schema.if_contains("else")) out.push_back({{no(value), no(*other)}});
    } else {
        return word == "then" || word == "else";
    }
    return true;
}

bool SchemaCases::not_members(std::vector<Option>& out, const json::value& at, std::string_view word) {
    const json::value& value = at.get_object().at(word);
    const std::string where = fmt::format("{}/{}", place(&at), word);
    const auto add = [&](const void* of, json::value schema) {
        out.push_back({{term(made(of, "not", std::move(schema)), where)}});
    };
    const auto opposed = [](const json::value& schema) {
        return schema.is_bool() ? json::value(!schema.get_bool()) : json::value(json::object{{"not", schema}});
    };
    if (word == "additionalProperties") {
        if (value.is_bool() && !value.get_bool()) {
            out.push_back({.types = SchemaTypes::kObject, .strangers = {&at}});
        } else if (value.is_object() && !value.get_object().empty()) {
            unsupported(&at, not_opposed(word));
            out.emplace_back();
        }
    } else if (word == "required" && value.is_array()) {
        for (const json::value& name : value.get_array())
            if (name.is_string())
                add(&name, {{"type", "object"}, {"properties", json::object{{name.get_string(), false}}}});
    } else if (word == "properties" && value.is_object()) {
        for (const auto& [name, inner] : value.get_object()) {
            if (inner.is_bool() && inner.get_bool()) continue;
            add(&inner, {{"type", "object"},
                         {"required", json::array{name}},
                         {"properties", json::object{{name, opposed(inner)}}}});
        }
    } else if (word == "items" && value.is_object()) {
        if (at.get_object().contains("prefixItems")) return false;
        if (!value.get_object().empty()) add(&value, {{"type", "array"}, {"contains", opposed(value)}});
    } else if (word == "items" && value.is_bool() && !value.get_bool()) {  // prefixItems is refused
        add(&value, {{"type", "array"}, {"minItems", 1}});
    } else if (word == "contains" && !at.get_object().contains("minContains") &&
               !at.get_object().contains("maxContains")) {
        add(&value, {{"type", "array"}, {"items", opposed(value)}});
    } else if (word == "pattern" && value.is_string()) {
        out.push_back({.types = SchemaTypes::kString, .not_patterns = {std::string(value.get_string())}});
    } else {
        return false;
    }
    return true;
}

bool SchemaCases::not_bound(std::vector<Option>& out, const json::value& at, std::string_view word) {
    const json::object& schema = at.get_object();
    const json::value& value = schema.at(word);
    struct Count {
        const char *least, *most, *type;
    };
    for (const Count& c : {Count{"minLength", "maxLength", "string"}, Count{"minItems", "maxItems", "array"},
                           Count{"minProperties", "maxProperties", "object"}}) {
        if (word != c.least && word != c.most) continue;
        const int64_t count = schema_count(schema, word, place(&at)).value_or(0);
        if (word == c.least && count == 0) return true;
        json::object other = {{"type", c.type}};
        other[word == c.least ? c.most : c.least] = word == c.least ? count - 1 : count + 1;
        out.push_back({{term(made(&value, "not", std::move(other)), place(&at))}});
        return true;
    }
    const bool low = word == "minimum" || word == "exclusiveMinimum";
    if (!low && word != "maximum" && word != "exclusiveMaximum") return false;
    const bool exclusive = word.starts_with("exclusive");
    const json::value* draft4 = schema.if_contains(low ? "exclusiveMinimum" : "exclusiveMaximum");
    const bool open = exclusive || (draft4 != nullptr && draft4->is_bool() && draft4->get_bool());
    if (!value.is_number()) return true;  // of draft 4, with its bound
    const char* const opposite =
        low ? (open ? "maximum" : "exclusiveMaximum") : (open ? "minimum" : "exclusiveMinimum");
    json::object other = {{"type", "number"}};
    other[opposite] = value;
    out.push_back({{term(made(&value, "not", std::move(other)), place(&at))}});
    return true;
}

}  // namespace riptide
