// JSON Schema: which words there are, what they refer to, alternatives.
#include "text/json_schema.h"

#include <algorithm>
#include <array>

#include "base/json.h"
#include "base/percent.h"
#include "text/json_schema_builder.h"

namespace riptide {

namespace {

using Expr = Grammar::Expr;

constexpr int kDeepestSchema = 64;
constexpr int64_t kMostSchemas = 20'000;

constexpr std::array kAnnotations = {"$schema",        "$id",       "$comment",      "$defs",
                                     "definitions",    "$anchor",   "title",         "description",
                                     "default",        "examples",  "example",       "deprecated",
                                     "readOnly",       "writeOnly", "discriminator", "contentMediaType",
                                     "contentEncoding"};
constexpr std::array kObjectWords = {"properties", "required", "additionalProperties"};
constexpr std::array kArrayWords = {"items", "minItems", "maxItems"};
constexpr std::array kStringWords = {"minLength", "maxLength", "pattern", "format"};
constexpr std::array kNumberWords = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"};
constexpr std::array kOtherWords = {"type", "enum", "const", "anyOf", "oneOf", "allOf", "$ref"};
constexpr std::array kTypes = {"object", "array", "string", "number", "integer", "boolean", "null"};

template <class List>
bool in(const List& list, std::string_view word) {
    return std::find(list.begin(), list.end(), word) != list.end();
}

bool is_annotation(std::string_view word) { return in(kAnnotations, word) || word.starts_with("x-"); }

template <class List>
bool has_any(const json::object& schema, const List& words) {
    return std::any_of(words.begin(), words.end(), [&](const char* word) { return schema.contains(word); });
}

/// The words of a schema that say something, besides these.
std::string other_word(const json::object& schema, std::initializer_list<std::string_view> known) {
    for (const auto& [word, value] : schema)
        if (!is_annotation(word) && !in(known, std::string_view(word))) return std::string(word);
    return {};
}

}  // namespace

std::vector<std::string> schema_types(const json::object& schema) {
    std::vector<std::string> types;
    if (const json::value* type = schema.if_contains("type")) {
        if (type->is_string()) return {std::string(type->get_string())};
        if (const json::array* list = type->if_array())
            for (const json::value& one : *list)
                if (one.is_string()) types.emplace_back(one.get_string());
        return types;
    }
    if (has_any(schema, kObjectWords)) types.emplace_back("object");
    else if (has_any(schema, kArrayWords)) types.emplace_back("array");
    else if (has_any(schema, kStringWords)) types.emplace_back("string");
    else if (has_any(schema, kNumberWords)) types.emplace_back("number");
    return types;
}

std::optional<int64_t> schema_count(const json::object& schema, std::string_view word, const std::string& path) {
    const json::value* value = schema.if_contains(word);
    if (value == nullptr) return std::nullopt;
    json::error_code error;
    const auto count = value->is_number() ? value->to_number<int64_t>(error) : -1;
    if (error || count < 0) throw GrammarError(fmt::format("{}: '{}' is not a whole number from 0 on", path, word));
    return count;
}

void SchemaBuilder::wrong(const std::string& path, std::string_view what) {
    throw GrammarError(fmt::format("{}: {}", path, what));
}

void SchemaBuilder::check_words(const json::object& schema, const std::string& path) const {
    for (const auto& [key, value] : schema) {
        const std::string_view word = key;
        const bool known = is_annotation(word) || in(kObjectWords, word) || in(kArrayWords, word) ||
                           in(kStringWords, word) || in(kNumberWords, word) || in(kOtherWords, word);
        if (!known) wrong(path, fmt::format("'{}' is not supported", word.substr(0, 80)));
    }
}

Expr SchemaBuilder::schema(const json::value& value, const std::string& path) {
    if (++schemas_ > kMostSchemas) wrong(path, fmt::format("more than {} schemas", kMostSchemas));
    if (depth_ >= kDeepestSchema) wrong(path, fmt::format("schemas nest deeper than {}", kDeepestSchema));
    const int depth = depth_++;
    Expr out = g_.empty();
    try {
        out = exact(value, path);
    } catch (const GrammarError&) {
        if (!options_.lenient || schemas_ > kMostSchemas) throw;
        out = whatever(value);
    }
    depth_ = depth;
    return out;
}

/// Of a part that cannot be used, what its type allows.
Expr SchemaBuilder::whatever(const json::value& value) {
    const json::object* schema = value.if_object();
    std::vector<Expr> ways;
    for (const std::string& type : schema != nullptr ? schema_types(*schema) : std::vector<std::string>())
        if (in(kTypes, type)) ways.push_back(typed({}, type, ""));
    return ways.empty() ? json_.any() : g_.choice(std::move(ways));
}

Expr SchemaBuilder::exact(const json::value& value, const std::string& path) {
    if (value.is_bool()) return value.get_bool() ? json_.any() : g_.choice({});
    const json::object* schema = value.if_object();
    if (schema == nullptr) wrong(path, "expected an object, true or false");
    if (!options_.lenient) check_words(*schema, path);
    if (schema->contains("$ref")) return reference(*schema, path);
    if (schema->contains("enum") || schema->contains("const")) return constants(*schema, path);
    for (const char* word : {"anyOf", "oneOf", "allOf"})
        if (schema->contains(word)) return alternatives(*schema, word, path);
    const json::value* type = schema->if_contains("type");
    const std::vector<std::string> types = schema_types(*schema);
    if (type != nullptr && (types.empty() || (type->is_array() && types.size() != type->get_array().size())))
        wrong(path, "'type' is not the name of a type, or a list of names");
    if (types.empty()) return json_.any();
    std::vector<Expr> ways;
    for (const std::string& one : types) {
        if (!in(kTypes, one)) wrong(path, fmt::format("'{}' is not a type", one.substr(0, 80)));
        ways.push_back(typed(*schema, one, path));
    }
    return g_.choice(std::move(ways));
}

Expr SchemaBuilder::typed(const json::object& schema, std::string_view type, const std::string& path) {
    if (type == "object") return object(schema, path);
    if (type == "array") return array(schema, path);
    if (type == "string") return string(schema, path);
    if (type == "number") return number(schema, path, false);
    if (type == "integer") return number(schema, path, true);
    return type == "boolean" ? json_.boolean() : g_.text("null");
}

const json::value& SchemaBuilder::target(std::string_view pointer, const std::string& path) const {
    const auto missing = [&] {
        wrong(path, fmt::format("'$ref': there is no '{}' in this schema", pointer.substr(0, 200)));
    };
    if (!pointer.starts_with('#'))
        wrong(path, fmt::format("'$ref' to '{}': only '#' and '#/...' are supported", pointer.substr(0, 200)));
    const json::value* at = &root_;
    const std::string fragment = percent_decoded(pointer.substr(1));  // it is a URI's: RFC 6901, 6
    for (std::string_view rest = fragment; !rest.empty();) {
        if (rest[0] != '/') missing();
        const std::size_t end = std::min(rest.find('/', 1), rest.size());
        std::string key;
        for (std::size_t i = 1; i < end; ++i) {
            const bool escape = rest[i] == '~' && i + 1 < end;
            key += !escape ? rest[i] : rest[++i] == '1' ? '/' : '~';
        }
        rest.remove_prefix(end);
        const json::object* object = at->if_object();
        const json::array* array = at->if_array();
        if (object != nullptr) {
            at = object->if_contains(key);
        } else {
            const bool number = array != nullptr && !key.empty() && key.size() < 6 &&
                                key.find_first_not_of("0123456789") == std::string::npos;
            at = number ? array->if_contains(static_cast<std::size_t>(std::stoi(key))) : nullptr;
        }
        if (at == nullptr) missing();
    }
    return *at;
}

Expr SchemaBuilder::reference(const json::object& schema, const std::string& path) {
    const json::value& pointer = schema.at("$ref");
    if (!pointer.is_string()) wrong(path, "'$ref' is not a string");
    if (const std::string other = other_word(schema, {"$ref"}); !other.empty() && !options_.lenient)
        wrong(path, fmt::format("'{}' beside '$ref' is not supported", other));
    const std::string name(pointer.get_string());
    const json::value& to = target(name, path);
    const auto [known, is_new] = references_.try_emplace(name, -1);
    if (!is_new) return g_.call(known->second);
    const Grammar::Rule rule = known->second = g_.declare();
    g_.define(rule, this->schema(to, name));
    return g_.call(rule);
}

Expr SchemaBuilder::constants(const json::object& schema, const std::string& path) {
    if (const std::string other = other_word(schema, {"enum", "const", "type"}); !other.empty() && !options_.lenient)
        wrong(path, fmt::format("'{}' beside 'enum' or 'const' is not supported", other));
    const json::value* list = schema.if_contains("enum");
    const json::value* constant = schema.if_contains("const");
    if (list != nullptr && !list->is_array()) wrong(path, "'enum' is not an array");
    const std::vector<std::string> types = schema_types(schema);
    const auto has_type = [&](const json::value& value) {
        if (!schema.contains("type")) return true;
        const auto is = [&](const char* type) { return in(types, std::string_view(type)); };
        if (value.is_object()) return is("object");
        if (value.is_array()) return is("array");
        if (value.is_string()) return is("string");
        if (value.is_bool()) return is("boolean");
        if (value.is_null()) return is("null");
        const double number = value.to_number<double>();
        return is("number") || (is("integer") && number == static_cast<double>(static_cast<int64_t>(number)));
    };
    std::vector<std::string> texts;
    const auto add = [&](const json::value& value) {
        if (has_type(value) && (constant == nullptr || value == *constant)) texts.push_back(json_text(value));
    };
    if (list == nullptr) add(*constant);
    else
        for (const json::value& value : list->get_array()) add(value);
    if (texts.empty()) wrong(path, "'enum', 'const' and 'type' leave no value");
    return g_.words(std::move(texts));
}

Expr SchemaBuilder::alternatives(const json::object& schema, const std::string& word, const std::string& path) {
    const std::string place = path + "/" + word;
    const json::array* parts = schema.at(word).if_array();
    if (parts == nullptr || parts->empty()) wrong(place, "expected an array of schemas");
    if (const std::string other = other_word(schema, {word, "type"}); !other.empty())
        wrong(path, fmt::format("'{}' beside '{}' is not supported", other, word));
    if (word == "allOf" && parts->size() > 1) wrong(path, "'allOf' of more than one schema is not supported");
    if (word == "oneOf") check_disjoint(*parts, path);
    std::vector<Expr> ways;
    for (std::size_t i = 0; i < parts->size(); ++i) {
        const std::string where = fmt::format("{}/{}", place, i);
        json::value part = (*parts)[i];
        // A type beside the parts holds for each: it is written into those that have none.
        if (const json::value* type = schema.if_contains("type"); type != nullptr) {
            json::object* inner = part.if_object();
            if (inner == nullptr || inner->contains("$ref"))
                wrong(path, fmt::format("'type' beside '{}' is not supported here", word));
            if (!inner->contains("type")) (*inner)["type"] = *type;
            else if (inner->at("type") != *type)
                wrong(path, fmt::format("'type' beside '{}' is not supported here", word));
        }
        ways.push_back(this->schema(part, where));
    }
    return g_.choice(std::move(ways));
}

const json::object& SchemaBuilder::resolved(const json::object& schema) const {
    const json::object* at = &schema;
    for (int i = 0; i < 8; ++i) {
        const json::value* pointer = at->if_contains("$ref");
        if (pointer == nullptr || !pointer->is_string()) break;
        const json::object* next = target(pointer->get_string(), "#").if_object();
        if (next == nullptr) break;
        at = next;
    }
    return *at;
}

/// Whether it can be seen that no value is valid by both.
bool SchemaBuilder::disjoint(const json::object& a, const json::object& b) const {
    const auto values = [](const json::object& schema) {
        std::vector<std::string> out;
        if (const json::value* one = schema.if_contains("const")) out.push_back(json_text(*one));
        else if (const json::value* list = schema.if_contains("enum"); list != nullptr && list->is_array())
            for (const json::value& value : list->get_array()) out.push_back(json_text(value));
        return out;
    };
    const auto apart = [](const std::vector<std::string>& x, const std::vector<std::string>& y) {
        return !x.empty() && !y.empty() &&
               std::none_of(x.begin(), x.end(), [&](const std::string& v) { return in(y, v); });
    };
    if (apart(values(a), values(b))) return true;
    std::vector<std::string> types_a = schema_types(a), types_b = schema_types(b);
    for (auto* types : {&types_a, &types_b})
        for (std::string& type : *types)
            if (type == "integer") type = "number";
    if (apart(types_a, types_b)) return true;
    const json::value *properties_a = a.if_contains("properties"), *properties_b = b.if_contains("properties");
    if (properties_a == nullptr || !properties_a->is_object() || properties_b == nullptr || !properties_b->is_object())
        return false;
    const auto required = [](const json::object& schema, std::string_view name) {
        const json::value* list = schema.if_contains("required");
        return list != nullptr && list->is_array() &&
               std::any_of(list->get_array().begin(), list->get_array().end(),
                           [&](const json::value& v) { return v.is_string() && v.get_string() == name; });
    };
    for (const auto& [name, value] : properties_a->get_object()) {
        const json::value* other = properties_b->get_object().if_contains(name);
        if (other == nullptr || !value.is_object() || !other->is_object()) continue;
        if (required(a, name) && required(b, name) && apart(values(value.get_object()), values(other->get_object())))
            return true;
    }
    return false;
}

void SchemaBuilder::check_disjoint(const json::array& parts, const std::string& path) const {
    constexpr std::size_t kMostParts = 256;  // each is compared with each
    if (options_.lenient) return;
    if (parts.size() > kMostParts) wrong(path, fmt::format("'oneOf' of more than {} schemas", kMostParts));
    for (std::size_t i = 0; i < parts.size(); ++i)
        for (std::size_t j = 0; j < i; ++j) {
            const json::object *a = parts[i].if_object(), *b = parts[j].if_object();
            if (a == nullptr || b == nullptr || !disjoint(resolved(*a), resolved(*b)))
                wrong(path, fmt::format("'oneOf': parts {} and {} may both be valid for one value; use 'anyOf'", j, i));
        }
}

Expr add_json_schema(Grammar& grammar, const json::value& schema, const SchemaOptions& options) {
    return SchemaBuilder(grammar, schema, options).build();
}

Expr add_json_schema(Grammar& grammar, const json::value& root, const json::value& part, const std::string& path,
                     const SchemaOptions& options) {
    return SchemaBuilder(grammar, root, options).schema(part, path);
}

Expr add_json_object(Grammar& grammar) { return JsonGrammar(grammar).object(); }

}  // namespace riptide
