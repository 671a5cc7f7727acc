// What a case says of the members of an object and the items of an array.
#include <algorithm>

#include "text/json/json_grammar.h"
#include "text/json/json_schema.h"
#include "text/json/json_schema_cases.h"

namespace riptide {

namespace {

const json::value kNothing(false);

}  // namespace

SchemaTerms SchemaCases::member(const SchemaCase& one, std::string_view name) {
    SchemaTerms out;
    for (const json::value* part : one.parts) {
        const json::object& schema = part->get_object();
        bool named = false;
        const json::value *properties = schema.if_contains("properties"), *names = schema.if_contains("propertyNames");
        if (properties != nullptr && properties->is_object())
            if (const json::value* own = properties->get_object().if_contains(name)) {
                out.push_back(term(*own, fmt::format("{}/properties/{}", place(part), escaped_pointer(name))));
                named = true;
            }
        if (const json::value* patterns = schema.if_contains("patternProperties"); patterns && patterns->is_object())
            for (const auto& [regex, inner] : patterns->get_object())
                if (pattern(std::string(regex)).contains(name)) {
                    out.push_back(term(inner, place(part) + "/patternProperties"));
                    named = true;
                }
        if (const json::value* additional = schema.if_contains("additionalProperties"); additional && !named)
            out.push_back(term(*additional, place(part) + "/additionalProperties"));
        if (names != nullptr && !valid(json::value(name), term(*names, place(part) + "/propertyNames")))
            out.push_back({&kNothing, false});
    }
    return out;
}

SchemaTerms SchemaCases::other_member(const SchemaCase& one, const std::set<std::string, std::less<>>& patterns) {
    SchemaTerms out;
    for (const json::value* part : one.parts) {
        const json::object& schema = part->get_object();
        bool named = false;
        if (const json::value* list = schema.if_contains("patternProperties"); list && list->is_object())
            for (const auto& [regex, inner] : list->get_object())
                if (patterns.contains(std::string_view(regex))) {
                    out.push_back(term(inner, place(part) + "/patternProperties"));
                    named = true;
                }
        if (const json::value* additional = schema.if_contains("additionalProperties"); additional && !named)
            out.push_back(term(*additional, place(part) + "/additionalProperties"));
    }
    return out;
}

SchemaTerms SchemaCases::item(const SchemaCase& one, std::size_t index) {
    SchemaTerms out;
    for (const json::value* part : one.parts) {
        const json::object& schema = part->get_object();
        const json::value *first = schema.if_contains("prefixItems"), *rest = schema.if_contains("items");
        std::string first_word = "prefixItems", rest_word = "items";
        if (first == nullptr && rest != nullptr && rest->is_array()) {
            first = rest;
            first_word = "items";
            rest_word = "additionalItems";
            rest = schema.if_contains(rest_word);
        }
        if (first != nullptr && first->is_array() && index < first->get_array().size())
            out.push_back(term(first->get_array()[index], fmt::format("{}/{}/{}", place(part), first_word, index)));
        else if (rest != nullptr) out.push_back(term(*rest, fmt::format("{}/{}", place(part), rest_word)));
    }
    return out;
}

bool SchemaCases::names_member(const json::value& schema, std::string_view name) {
    const json::object& words = schema.get_object();
    const json::value *properties = words.if_contains("properties"), *patterns = words.if_contains("patternProperties");
    if (properties != nullptr && properties->is_object() && properties->get_object().contains(name)) return true;
    if (patterns == nullptr || !patterns->is_object()) return false;
    return std::any_of(patterns->get_object().begin(), patterns->get_object().end(),
                       [&](const auto& one) { return pattern(std::string(one.key())).contains(name); });
}

/// Whether a member that must be there is none that `schema` names.
bool SchemaCases::has_stranger(const SchemaCase& one, const json::value& schema) {
    for (const json::value* part : one.parts) {
        const json::value* required = part->get_object().if_contains("required");
        if (required == nullptr || !required->is_array()) continue;
        for (const json::value& name : required->get_array())
            if (name.is_string() && !names_member(schema, name.get_string())) return true;
    }
    return false;
}

/// The members of a closed object that `schema` does not name: one of them is there.
std::vector<SchemaOption> SchemaCases::stranger_options(const SchemaCase& one, const json::value& schema) {
    const auto has_patterns = [](const json::value* part) { return part->get_object().contains("patternProperties"); };
    const SchemaTerms others = other_member(one, {});
    const bool closed = std::any_of(others.begin(), others.end(), [](const SchemaTerm& term) {
        return term.schema->is_bool() && !term.schema->get_bool();
    });
    if (!closed || std::any_of(one.parts.begin(), one.parts.end(), has_patterns)) {
        unsupported(&schema, not_opposed("additionalProperties"));
        return {{}};
    }
    std::vector<Option> out;
    for (const json::value* part : one.parts) {
        const json::value* properties = part->get_object().if_contains("properties");
        if (properties == nullptr || !properties->is_object()) continue;
        for (const auto& [name, inner] : properties->get_object()) {
            count(1);
            if (names_member(schema, name)) continue;
            out.push_back(
                {{term(made(&inner, "stranger", {{"type", "object"}, {"required", json::array{name}}}), place(part))}});
        }
    }
    return out;
}

}  // namespace riptide
