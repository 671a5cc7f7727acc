// Schemas with alternatives: anyOf, oneOf, if, dependencies.
#include <algorithm>

#include "text/json/json_grammar.h"
#include "text/json/json_schema.h"
#include "text/json/json_schema_cases.h"

namespace riptide {

namespace {

constexpr std::size_t kMostParts = 256;

}  // namespace

/// Whether it can be seen that no value is valid by both.
bool SchemaCases::apart(const SchemaTerm& a, const SchemaTerm& b, uint8_t types) {
    const auto [known, is_new] = apart_.try_emplace({a, b, types}, false);  // false while it is found out
    if (!is_new) return known->second;
    const bool types_meet = (document_.types_of(*a.schema) & document_.types_of(*b.schema) & types) != 0;
    return known->second = !types_meet || nothing({a, b}, types);
}

void SchemaCases::take_choices(Walk& walk, const json::value& at) {
    const json::object& schema = at.get_object();
    for (const char* word : {"allOf", "anyOf", "oneOf"}) {
        const json::value* value = schema.if_contains(word);
        if (value == nullptr) continue;
        const json::array* parts = value->if_array();
        const std::string where = fmt::format("{}/{}", place(&at), word);
        if (parts == nullptr || parts->empty()) throw GrammarError(where + ": expected an array of schemas");
        if (std::string_view(word) == "allOf") {
            for (std::size_t i = 0; i < parts->size(); ++i)
                walk.todo.push_back(term((*parts)[i], fmt::format("{}/{}", where, i)));
            continue;
        }
        std::vector<Option> options = options_of(at, word);
        walk.choices.push_back(std::string_view(word) == "oneOf" ? one_of(at, std::move(options), walk.made.types)
                                                                 : std::move(options));
    }
    if (const json::value* inner = schema.if_contains("not"))
        walk.todo.push_back(term(*inner, place(&at) + "/not", true));
    take_conditions(walk, at);
}

/// if, dependencies, dependentRequired, dependentSchemas.
void SchemaCases::take_conditions(Walk& walk, const json::value& at) {
    const json::object& schema = at.get_object();
    const json::value *condition = schema.if_contains("if"), *then = schema.if_contains("then"),
                      *otherwise = schema.if_contains("else");
    if (condition != nullptr && (then != nullptr || otherwise != nullptr)) {
        Option yes{{term(*condition, place(&at) + "/if")}}, no{{term(*condition, place(&at) + "/if", true)}};
        if (then != nullptr) yes.terms.push_back(term(*then, place(&at) + "/then"));
        if (otherwise != nullptr) no.terms.push_back(term(*otherwise, place(&at) + "/else"));
        walk.choices.push_back({std::move(yes), std::move(no)});
    }
    if ((walk.made.types & SchemaTypes::kObject) == 0) return;
    for (const char* word : {"dependencies", "dependentRequired", "dependentSchemas"}) {
        const json::value* value = schema.if_contains(word);
        if (value == nullptr) continue;
        const std::string where = fmt::format("{}/{}", place(&at), word);
        if (!value->is_object()) throw GrammarError(where + ": expected an object");
        for (const auto& [name, needs] : value->get_object()) {
            const std::string key(name);
            const json::value& absent = made(&needs, "absent", {{"properties", json::object{{name, false}}}});
            const json::value& present = made(&needs, "present", {{"type", "object"}, {"required", json::array{name}}});
            Option with{{term(present, where)}};
            if (needs.is_array() || needs.is_string()) {
                const json::value list = needs.is_array() ? needs : json::value(json::array{needs});
                with.terms.push_back(term(made(&needs, "needs", {{"required", list}}), where));
            } else {
                with.terms.push_back(term(needs, fmt::format("{}/{}", where, key)));
            }
            walk.choices.push_back({Option{{term(absent, where)}}, std::move(with)});
        }
    }
}

/// The parts of anyOf or oneOf; those that list their values are one.
std::vector<SchemaCases::Option> SchemaCases::options_of(const json::value& at, const std::string& word) {
    const std::string where = fmt::format("{}/{}", place(&at), word);
    const json::array& parts = at.get_object().at(word).get_array();
    std::vector<Option> out;
    std::map<std::string, std::pair<const json::value*, int>> values;
    std::vector<std::string> order;
    for (std::size_t i = 0; i < parts.size(); ++i) {
        const SchemaTerm part = term(parts[i], fmt::format("{}/{}", where, i));
        const json::object* object = parts[i].if_object();
        const json::value* list = object == nullptr ? nullptr : object->if_contains("enum");
        const json::value* one = object == nullptr ? nullptr : object->if_contains("const");
        const bool listed = one != nullptr || (list != nullptr && list->is_array());
        if (!listed) {
            out.push_back({{part}});
            continue;
        }
        std::set<std::string> own;  // a list may hold a value twice
        const auto add = [&](const json::value& value) {
            count(1);
            std::string key = key_of(value);
            if (!valid(value, part) || !own.insert(key).second) return;
            auto& [known, times] = values[key];
            if (times++ == 0) order.push_back(key);
            known = &value;
        };
        if (one != nullptr) add(*one);
        else std::for_each(list->get_array().begin(), list->get_array().end(), add);
    }
    Option listed;
    listed.values.emplace();
    for (const std::string& key : order)
        if (word == "anyOf" || values.at(key).second == 1) listed.values->push_back(values.at(key).first);
    std::vector<const json::value*> all;
    for (const std::string& key : order) all.push_back(values.at(key).first);
    if (word == "oneOf") {
        // What is valid by another part too is valid by neither.
        for (Option& other : out)
            for (const json::value* value : all) {
                count(1);
                if (!valid(*value, other.terms[0])) continue;
                other.excluded.push_back(value);
                std::erase(*listed.values, value);
            }
    }
    if (!order.empty()) out.push_back(std::move(listed));
    return out;
}

/// Each part, and none of those that may be valid at once.
std::vector<SchemaCases::Option> SchemaCases::one_of(const json::value& at, std::vector<Option> options,
                                                     uint8_t types) {
    if (lenient_) return options;
    if (options.size() > kMostParts) wrong(&at, fmt::format("'oneOf' of more than {} schemas", kMostParts));
    const std::vector<Option> parts = options;
    for (std::size_t i = 0; i < parts.size(); ++i)
        for (std::size_t j = 0; j < i; ++j) {
            if (parts[i].values || parts[j].values) continue;  // looked at already
            const SchemaTerm a = parts[i].terms[0], b = parts[j].terms[0];
            count(1);
            if (apart(a, b, types)) continue;
            options[i].terms.push_back({b.schema, true});
            options[j].terms.push_back({a.schema, true});
        }
    return options;
}

}  // namespace riptide
