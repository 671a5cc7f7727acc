// Whether a value that a schema lists is valid by the rest of it.
#include <algorithm>
#include <compare>
#include <set>

#include "text/json/decimal.h"
#include "text/json/json_grammar.h"
#include "text/json/json_schema.h"
#include "text/json/json_schema_cases.h"

namespace riptide {

namespace {

std::size_t length_of(std::string_view text) {
    return static_cast<std::size_t>(
        std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; }));
}

bool count_fits(const json::object& schema, const char* least, const char* most, std::size_t count) {
    const auto size = static_cast<int64_t>(count);
    return size >= schema_count(schema, least, "#").value_or(0) &&
           size <= schema_count(schema, most, "#").value_or(size);
}

/// Whole numbers as they are, others as doubles.
std::partial_ordering compare_numbers(const json::value& a, const json::value& b) {
    if (a.is_double() || b.is_double()) return a.to_number<double>() <=> b.to_number<double>();
    const auto is_below_zero = [](const json::value& number) { return number.is_int64() && number.get_int64() < 0; };
    if (is_below_zero(a) || is_below_zero(b))
        return is_below_zero(a) && is_below_zero(b) ? a.get_int64() <=> b.get_int64()
                                                    : is_below_zero(b) <=> is_below_zero(a);
    return a.to_number<uint64_t>() <=> b.to_number<uint64_t>();
}

/// Of multipleOf.
Decimal unit_of(const json::value& number) {
    Decimal unit = decimal_of(json_text(number));
    const std::string digits = unit.whole + unit.fraction;
    if (unit.negative || unit.is_zero()) throw GrammarError("#: 'multipleOf' is not above 0");
    if (digits.find_last_not_of('0') - digits.find_first_not_of('0') >= 18)
        throw GrammarError(fmt::format("#: 'multipleOf' of more than 18 digits, {}, is not supported", digits));
    return unit;
}

}  // namespace

const std::set<std::string>& SchemaCases::keys_of(const json::value& list) {
    const auto [found, is_new] = keys_.try_emplace(&list);
    if (!is_new) return found->second;
    count(list.get_array().size() / 4);  // before the first of them is kept; they are cheap
    for (const json::value& one : list.get_array()) found->second.insert(key_of(one));
    return found->second;
}

/// A long value costs what it is long, each time.
std::string SchemaCases::key_of(const json::value& value) {
    constexpr std::size_t kStep = 64;
    std::string key = schema_value_key(value);
    count(key.size() / kStep);
    return key;
}

bool SchemaCases::valid(const json::value& value, const SchemaTerm& one, int depth) {
    count(1);
    if (depth > 200) wrong(one.schema, "references go on and on");
    const json::value* at = one.schema;
    if (at->is_bool()) return at->get_bool() != one.negated;
    if (one.negated) return !valid(value, {at, false}, depth + 1);
    const json::object* schema = at->if_object();
    if (schema == nullptr) wrong(at, "expected an object, true or false");
    if (schema->contains("$ref")) {
        const json::value& to = document_.target(*schema, place(at));
        if (!valid(value, {&to, false}, depth + 1)) return false;
        if (document_.references_stand_alone()) return true;
    }
    if ((schema_type_set(*schema, place(at)) & SchemaTypes::of(value)) == 0) return false;
    const json::value *listed = schema->if_contains("const"), *list = schema->if_contains("enum");
    if (listed != nullptr && key_of(*listed) != key_of(value)) return false;
    if (list != nullptr && list->is_array() && !keys_of(*list).contains(key_of(value))) return false;
    if (!joined_valid(value, *schema, at, depth)) return false;
    if (const json::object* object = value.if_object()) return object_valid(*object, *schema, at, depth);
    if (const json::array* array = value.if_array()) return array_valid(*array, *schema, at, depth);
    if (value.is_string()) return string_valid(value.get_string(), *schema);
    return !value.is_number() || number_valid(value, *schema);
}

/// allOf, anyOf, oneOf, not, if.
bool SchemaCases::joined_valid(const json::value& value, const json::object& schema, const json::value* at, int depth) {
    for (const char* word : {"allOf", "anyOf", "oneOf"}) {
        const json::value* list = schema.if_contains(word);
        if (list == nullptr || !list->is_array()) continue;
        std::ptrdiff_t count = 0;
        for (const json::value& part : list->get_array())
            count += valid(value, term(part, fmt::format("{}/{}", place(at), word)), depth + 1);
        const std::string_view name = word;
        if (name == "allOf" ? count != std::ssize(list->get_array()) : name == "anyOf" ? count == 0 : count != 1)
            return false;
    }
    if (const json::value* inner = schema.if_contains("not"))
        if (valid(value, term(*inner, place(at) + "/not"), depth + 1)) return false;
    if (const json::value* condition = schema.if_contains("if")) {
        const bool holds = valid(value, term(*condition, place(at) + "/if"), depth + 1);
        if (const json::value* next = schema.if_contains(holds ? "then" : "else"))
            return valid(value, term(*next, place(at) + (holds ? "/then" : "/else")), depth + 1);
    }
    return true;
}

bool SchemaCases::object_valid(const json::object& value, const json::object& schema, const json::value* at,
                               int depth) {
    if (!count_fits(schema, "minProperties", "maxProperties", value.size())) return false;
    if (const json::value* required = schema.if_contains("required"); required != nullptr && required->is_array())
        for (const json::value& name : required->get_array())
            if (name.is_string() && !value.contains(name.get_string())) return false;
    SchemaCase own;
    own.parts = {at};
    for (const auto& [name, inner] : value)
        for (const SchemaTerm& one : member(own, name))
            if (!valid(inner, one, depth + 1)) return false;
    for (const char* word : {"dependencies", "dependentRequired", "dependentSchemas"}) {
        const json::value* all = schema.if_contains(word);
        if (all == nullptr || !all->is_object()) continue;
        for (const auto& [name, needs] : all->get_object()) {
            if (!value.contains(name)) continue;
            if (needs.is_array() || needs.is_string()) {
                const json::array list = needs.is_array() ? needs.get_array() : json::array{needs};
                for (const json::value& other : list)
                    if (other.is_string() && !value.contains(other.get_string())) return false;
            } else if (!valid(value, term(needs, place(at) + "/" + word), depth + 1)) {
                return false;
            }
        }
    }
    return true;
}

bool SchemaCases::array_valid(const json::array& value, const json::object& schema, const json::value* at, int depth) {
    if (!count_fits(schema, "minItems", "maxItems", value.size())) return false;
    SchemaCase own;
    own.parts = {at};
    for (std::size_t i = 0; i < value.size(); ++i)
        for (const SchemaTerm& one : item(own, i))
            if (!valid(value[i], one, depth + 1)) return false;
    if (const json::value* unique = schema.if_contains("uniqueItems");
        unique && unique->is_bool() && unique->get_bool()) {
        std::set<std::string> seen;
        for (const json::value& one : value)
            if (!seen.insert(key_of(one)).second) return false;
    }
    const json::value* contains = schema.if_contains("contains");
    if (contains == nullptr) return true;
    const auto hits = std::count_if(value.begin(), value.end(), [&](const json::value& one) {
        return valid(one, term(*contains, place(at) + "/contains"), depth + 1);
    });
    return hits >= schema_count(schema, "minContains", place(at)).value_or(1) &&
           hits <= schema_count(schema, "maxContains", place(at)).value_or(hits);
}

bool SchemaCases::string_valid(std::string_view value, const json::object& schema) {
    count(value.size() / 64);
    if (!count_fits(schema, "minLength", "maxLength", length_of(value))) return false;
    if (const json::value* regex = schema.if_contains("pattern"); regex != nullptr && regex->is_string())
        if (!pattern(std::string(regex->get_string())).contains(value)) return false;
    const json::value* name = schema.if_contains("format");
    return name == nullptr || !name->is_string() || !is_known_format(name->get_string()) ||
           format(std::string(name->get_string())).contains(value);
}

bool SchemaCases::number_valid(const json::value& value, const json::object& schema) const {
    const auto bound = [&](const char* word, const char* strict, bool low) {
        const json::value *limit = schema.if_contains(word), *open = schema.if_contains(strict);
        const auto inside = [&](const json::value& end, bool is_open) {
            const auto order = low ? compare_numbers(value, end) : compare_numbers(end, value);
            return is_open ? order > 0 : order >= 0;
        };
        const bool draft4 = open != nullptr && open->is_bool() && open->get_bool();
        return (limit == nullptr || !limit->is_number() || inside(*limit, draft4)) &&
               (open == nullptr || !open->is_number() || inside(*open, true));
    };
    if (!bound("minimum", "exclusiveMinimum", true) || !bound("maximum", "exclusiveMaximum", false)) return false;
    const json::value* unit = schema.if_contains("multipleOf");
    if (unit != nullptr && unit->is_number() && !is_multiple(decimal_of(json_text(value)), unit_of(*unit)))
        return false;
    const json::object* format = number_format(schema);
    return format == nullptr || ((!format->contains("type") || SchemaTypes::of(value) == SchemaTypes::kInteger) &&
                                 number_valid(value, *format));
}

}  // namespace riptide
