#include "text/json/json_schema_cases.h"

#include <algorithm>
#include <array>

#include "text/json/json_grammar.h"
#include "text/json/json_schema.h"

namespace riptide {

namespace {

constexpr std::size_t kMostCases = 512, kMostSteps = 400'000;
constexpr std::array kTypedWords = {"properties",
                                    "required",
                                    "additionalProperties",
                                    "patternProperties",
                                    "propertyNames",
                                    "minProperties",
                                    "items",
                                    "prefixItems",
                                    "additionalItems",
                                    "contains",
                                    "minContains",
                                    "maxProperties",
                                    "minItems",
                                    "maxItems",
                                    "maxContains",
                                    "uniqueItems",
                                    "minLength",
                                    "maxLength",
                                    "pattern",
                                    "format",
                                    "minimum",
                                    "maximum",
                                    "exclusiveMinimum",
                                    "exclusiveMaximum",
                                    "multipleOf"};
constexpr std::array kNotHeld = {"unevaluatedProperties", "unevaluatedItems", "$dynamicRef", "$recursiveRef"};

bool says_nothing(const json::value& schema) {
    return schema.is_bool() ? schema.get_bool() : schema.is_object() && schema.get_object().empty();
}

}  // namespace

uint8_t schema_type_set(const json::object& schema, const std::string& path) {
    const json::value* type = schema.if_contains("type");
    if (type == nullptr) return SchemaTypes::kAll;
    const json::array* list = type->if_array();
    if (!type->is_string() && (list == nullptr || list->empty()))
        throw GrammarError(path + ": 'type' is not the name of a type, or a list of names");
    uint8_t types = 0;
    const auto add = [&](const json::value& one) {
        if (!one.is_string()) throw GrammarError(path + ": 'type' is not the name of a type, or a list of names");
        const std::string_view name = one.get_string();
        if (SchemaTypes::named(name) == 0)
            throw GrammarError(fmt::format("{}: '{}' is not a type", path, name.substr(0, 80)));
        types = static_cast<uint8_t>(types | SchemaTypes::named(name));
    };
    if (list == nullptr) add(*type);
    else std::for_each(list->begin(), list->end(), add);
    return SchemaTypes::with_nullable(types, schema);
}

std::string schema_value_key(const json::value& value) {
    return value.is_structured() ? json_text(sorted_members(value)) : json_text(value);
}

void SchemaCases::wrong(const json::value* schema, std::string_view what) const {
    throw GrammarError(fmt::format("{}: {}", place(schema), what));
}

void SchemaCases::unsupported(const json::value* schema, std::string_view what) const {
    if (!lenient_) wrong(schema, what);
}

SchemaTerm SchemaCases::term(const json::value& schema, const std::string& place, bool negated) {
    places_.try_emplace(&schema, place);
    return {&schema, negated};
}

std::string SchemaCases::place(const json::value* schema) const {
    const auto found = places_.find(schema);
    return found == places_.end() ? "#" : found->second;
}

const json::value& SchemaCases::made(const void* of, const std::string& word, json::value schema) {
    const json::value*& known = made_for_[{of, word}];
    if (known == nullptr) known = &made_.emplace_back(std::move(schema));
    return *known;
}

const TextSet& SchemaCases::pattern(const std::string& regex) {
    const auto found = patterns_.find(regex);
    return found != patterns_.end() ? found->second
                                    : patterns_.emplace(regex, TextSet::of_regex(regex, true, budget_)).first->second;
}

const TextSet& SchemaCases::format(const std::string& name) {
    const auto found = formats_.find(name);
    if (found != formats_.end()) return found->second;
    return formats_.emplace(name, TextSet::of_regex(regex_of_format(name), false, budget_)).first->second;
}

void SchemaCases::count(std::size_t steps) {
    if (budget_ != nullptr) budget_->spend(static_cast<int64_t>(steps));
    work_ += steps;
    if (work_ > kMostSteps)
        throw GrammarError(fmt::format("#: more than {} steps to tell its parts apart", kMostSteps));
}

std::vector<SchemaCase> SchemaCases::of(const SchemaTerms& terms) {
    std::vector<SchemaCase> out;
    run(Walk{{}, terms, terms, {}, {}}, out, false);
    return out;
}

bool SchemaCases::nothing(const SchemaTerms& terms, uint8_t types) {
    constexpr int kDeepest = 4;  // looks into members of members
    if (looking_ >= kDeepest) return false;
    for (const SchemaTerm& one : terms)
        if (one.schema->is_bool() && one.schema->get_bool() == one.negated) return true;
    std::vector<SchemaCase> out;
    ++looking_;
    try {
        run(Walk{{.types = types}, terms, terms, {}, {}}, out, true);
        --looking_;
    } catch (const GrammarError&) {
        --looking_;
        if (work_ > kMostSteps) throw;
        return false;  // what is wrong is named where it is compiled
    }
    return out.empty();
}

void SchemaCases::run(Walk walk, std::vector<SchemaCase>& out, bool first_only) {
    for (std::size_t i = 0; i < walk.todo.size(); ++i)
        if (!take(walk, SchemaTerm(walk.todo[i])) || walk.made.types == 0) return;
    walk.todo.clear();
    if (walk.made.values) {  // each is judged by all that is said
        std::erase_if(*walk.made.values, [&](const json::value* value) {
            count(1);
            return !std::all_of(walk.whole.begin(), walk.whole.end(),
                                [&](const SchemaTerm& one) { return valid(*value, one); });
        });
        if (!walk.made.values->empty()) out.push_back(std::move(walk.made));
        return;
    }
    if (!live(walk.made)) return;
    if (walk.choices.empty() && !walk.made.strangers.empty()) {
        const json::value* schema = walk.made.strangers.back();
        walk.made.strangers.pop_back();
        if ((walk.made.types & ~SchemaTypes::kObject) == 0 && !has_stranger(walk.made, *schema))
            walk.choices.push_back(stranger_options(walk.made, *schema));
        return run(std::move(walk), out, first_only);
    }
    if (walk.choices.empty()) {
        out.push_back(std::move(walk.made));
        if (out.size() > kMostCases)
            wrong(walk.whole[0].schema, fmt::format("more than {} ways to be valid", kMostCases));
        return;
    }
    const std::vector<Option> options = std::move(walk.choices.front());
    walk.choices.pop_front();
    for (const Option& option : options) {
        count(1 + walk.made.parts.size() + walk.choices.size());
        Walk next = walk;
        next.meet(option);
        run(std::move(next), out, first_only);
        if (first_only && !out.empty()) return;
    }
}

/// False: no value is valid.
bool SchemaCases::take(Walk& walk, const SchemaTerm& one) {
    count(1);
    if (!walk.seen.insert(one).second) return true;
    if (one.schema->is_bool()) return one.schema->get_bool() != one.negated;
    const json::object* schema = one.schema->if_object();
    if (schema == nullptr) wrong(one.schema, "expected an object, true or false");
    if (one.negated) {
        walk.choices.push_back(opposite(*one.schema));
        return !walk.choices.back().empty();
    }
    if (schema->contains("$ref")) {
        const json::value* to = one.schema;
        std::set<const json::value*> chain;
        while (to->is_object() && to->get_object().contains("$ref")) {
            if (!chain.insert(to).second) wrong(one.schema, "'$ref' leads back to itself: nothing can match");
            to = &document_.target(to->get_object(), place(to));
            if (chain.size() == 1)
                if (const json::string* name = schema->at("$ref").if_string())
                    walk.todo.push_back(term(*to, std::string(*name)));
        }
        if (document_.references_stand_alone()) return true;
    }
    take_words(walk, *one.schema);
    return true;
}

void SchemaCases::take_words(Walk& walk, const json::value& at) {
    const json::object& schema = at.get_object();
    walk.made.types = static_cast<uint8_t>(walk.made.types & schema_type_set(schema, place(&at)));
    for (const char* word : kNotHeld)
        if (const json::value* value = schema.if_contains(word); value != nullptr && !says_nothing(*value))
            unsupported(&at, fmt::format("'{}' is not supported", word));
    std::optional<std::vector<const json::value*>> values;
    if (const json::value* list = schema.if_contains("enum")) {
        if (!list->is_array()) wrong(&at, "'enum' is not an array");
        values.emplace();
        for (const json::value& value : list->get_array()) values->push_back(&value);
    }
    if (const json::value* value = schema.if_contains("const")) values = {{value}};
    if (values && (!walk.made.values || walk.made.values->size() > values->size()))
        walk.made.values = std::move(values);
    const auto says = [&](const char* word) { return schema.contains(word); };
    if (std::any_of(kTypedWords.begin(), kTypedWords.end(), says)) walk.made.parts.push_back(&at);
    if (!walk.made.values) take_choices(walk, at);
}

/// Not seen to let nothing through.
bool SchemaCases::live(const SchemaCase& one) {
    if (one.values) return !one.values->empty();
    if (one.types == 0) return false;
    if ((one.types & ~(SchemaTypes::kObject | SchemaTypes::kNumber)) != 0) return true;
    if ((one.types & SchemaTypes::kNumber) != 0 && number_live(one)) return true;
    if ((one.types & SchemaTypes::kObject) == 0) return false;
    for (const json::value* part : one.parts) {
        const json::value* required = part->get_object().if_contains("required");
        if (required == nullptr || !required->is_array()) continue;
        for (const json::value& name : required->get_array()) {
            count(1 + one.parts.size());
            if (!name.is_string()) continue;
            if (const SchemaTerms terms = member(one, name.get_string()); !terms.empty() && nothing(terms))
                return false;
        }
    }
    return true;
}

/// Whether bounds of several parts leave a number; those of one are looked at where they become a grammar.
bool SchemaCases::number_live(const SchemaCase& one) const {
    if (one.parts.size() < 2) return true;
    double low = -1e308, high = 1e308;
    for (const json::value* part : one.parts)
        for (const char* word : {"minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"})
            if (const json::value* bound = part->get_object().if_contains(word); bound && bound->is_number()) {
                const double number = bound->to_number<double>();
                if (std::string_view(word).ends_with("inimum")) low = std::max(low, number);
                else high = std::min(high, number);
            }
    return low <= high;
}

}  // namespace riptide
