#include "text/json/json_schema_document.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/json.h"
#include "base/percent.h"
#include "text/grammar/grammar.h"

namespace riptide {

namespace {

constexpr std::array kData = {"enum", "const", "default", "examples", "example"};  // hold values, not schemas

const json::string* string_at(const json::object& object, std::string_view key) {
    const json::value* value = object.if_contains(key);
    return value == nullptr ? nullptr : value->if_string();
}

/// A reference within a document (RFC 3986, 5.2, without steps upwards).
std::string resolved_address(std::string_view base, std::string_view reference) {
    if (reference.starts_with('#')) return std::string(base.substr(0, base.find('#'))) + std::string(reference);
    const std::size_t colon = reference.find(':'), scheme = base.find(':');
    if (colon != std::string_view::npos && reference.find_first_of("/?#") > colon) return std::string(reference);
    base = base.substr(0, base.find_first_of("?#"));
    std::size_t path = scheme == std::string_view::npos ? 0 : scheme + 1;
    if (base.substr(path).starts_with("//")) path = std::min(base.find('/', path + 2), base.size());
    if (reference.starts_with('/')) return std::string(base.substr(0, path)) + std::string(reference);
    const std::size_t slash = base.rfind('/');
    const bool under = slash != std::string_view::npos && slash >= path;
    return std::string(base.substr(0, under ? slash + 1 : path)) + std::string(reference);
}

/// What a JSON pointer (RFC 6901) leads to, or nullptr.
const json::value* pointed(const json::value* at, std::string_view rest) {
    while (!rest.empty() && at != nullptr) {
        if (rest[0] != '/') return nullptr;
        const std::size_t end = std::min(rest.find('/', 1), rest.size());
        std::string key;
        for (std::size_t i = 1; i < end; ++i) {
            const bool escape = rest[i] == '~' && i + 1 < end;
            key += !escape ? rest[i] : rest[++i] == '1' ? '/' : '~';
        }
        rest.remove_prefix(end);
        if (const json::object* object = at->if_object()) {
            at = object->if_contains(key);
            continue;
        }
        const json::array* array = at->if_array();
        const bool number = array != nullptr && !key.empty() && key.size() < 6 &&
                            key.find_first_not_of("0123456789") == std::string::npos;
        at = number ? array->if_contains(static_cast<std::size_t>(std::stoi(key))) : nullptr;
    }
    return at;
}

}  // namespace

uint8_t SchemaTypes::named(std::string_view name) {
    if (name == "null") return kNull;
    if (name == "boolean") return kBoolean;
    if (name == "integer") return kInteger;
    if (name == "number") return kNumber;
    if (name == "string") return kString;
    if (name == "array") return kArray;
    return name == "object" ? kObject : 0;
}

uint8_t SchemaTypes::of(const json::value& value) {
    if (value.is_null()) return kNull;
    if (value.is_bool()) return kBoolean;
    if (value.is_string()) return kString;
    if (value.is_array()) return kArray;
    if (value.is_object()) return kObject;
    return value.is_double() && std::floor(value.get_double()) != value.get_double() ? kFraction : kInteger;
}

uint8_t SchemaTypes::with_nullable(uint8_t types, const json::object& schema) {
    const json::value* nullable = schema.if_contains("nullable");
    return nullable != nullptr && *nullable == json::value(true) ? static_cast<uint8_t>(types | kNull) : types;
}

SchemaDocument::SchemaDocument(const json::value& root) : root_(root) {
    const json::object* object = root.if_object();
    if (object == nullptr) return;
    if (const json::string* draft = string_at(*object, "$schema"))
        for (const char* old : {"/draft-04/", "/draft-06/", "/draft-07/"})
            references_stand_alone_ = references_stand_alone_ || draft->find(old) != json::string::npos;
    index(root, "", 0);
    for (const char* word : {"$id", "id"})
        if (const json::string* id = string_at(*object, word); id != nullptr && base_.empty())
            base_ = std::string_view(*id).substr(0, id->find('#'));
}

/// Addresses and names of all parts.
void SchemaDocument::index(const json::value& at, const std::string& base, int depth) {
    if (depth > 500) return;  // deeper schemas are refused
    if (const json::array* array = at.if_array()) {
        for (const json::value& one : *array) index(one, base, depth + 1);
        return;
    }
    const json::object* object = at.if_object();
    if (object == nullptr) return;
    std::string here = base;
    const bool reference_alone = references_stand_alone_ && string_at(*object, "$ref") != nullptr;
    for (const char* word : {"$id", "id"}) {
        const json::string* id = string_at(*object, word);
        if (id == nullptr || reference_alone) continue;
        const std::string address = resolved_address(base, *id);
        if (id->starts_with('#')) {
            names_.try_emplace(address, &at);
            continue;
        }
        here = address.substr(0, address.find('#'));
        names_.try_emplace(here, &at);
    }
    for (const char* word : {"$anchor", "$dynamicAnchor"})
        if (const json::string* anchor = string_at(*object, word))
            names_.try_emplace(here + "#" + std::string(*anchor), &at);
    if (!here.empty() && string_at(*object, "$ref") != nullptr) bases_.emplace(object, here);
    for (const auto& [key, value] : *object)
        if (std::find(kData.begin(), kData.end(), std::string_view(key)) == kData.end()) index(value, here, depth + 1);
}

const json::value* SchemaDocument::found(const std::string& base, std::string_view reference) const {
    const std::string address = resolved_address(base, reference);
    const std::size_t hash = std::min(address.find('#'), address.size());
    const std::string resource = address.substr(0, hash);
    // It is a URI's: RFC 6901, 6.
    const std::string fragment = percent_decoded(std::string_view(address).substr(std::min(hash + 1, address.size())));
    const auto named = names_.find(resource);
    const json::value* at = resource.empty() || resource == base_ ? &root_
                            : named != names_.end()               ? named->second
                                                                  : nullptr;
    if (at == nullptr || fragment.empty()) return at;
    if (fragment[0] == '/') return pointed(at, fragment);
    const auto anchor = names_.find(resource + "#" + fragment);
    return anchor == names_.end() ? nullptr : anchor->second;
}

const json::value& SchemaDocument::target(const json::object& schema, const std::string& path) const {
    const json::string* reference = string_at(schema, "$ref");
    if (reference == nullptr) throw GrammarError(path + ": '$ref' is not a string");
    const auto base = bases_.find(&schema);
    const json::value* at = found(base == bases_.end() ? base_ : base->second, *reference);
    // Many parts carry an `id` that is no address; their references mean the whole.
    if (at == nullptr && reference->starts_with('#')) at = found(base_, *reference);
    if (at != nullptr) return *at;
    const std::string_view shown = std::string_view(*reference).substr(0, 200);
    if (reference->starts_with('#'))
        throw GrammarError(fmt::format("{}: '$ref': there is no '{}' in this schema", path, shown));
    throw GrammarError(fmt::format("{}: '$ref' to '{}': only what this schema holds can be referred to", path, shown));
}

uint8_t SchemaDocument::types_of(const json::value& schema) const {
    int work = 0;
    return types_of(schema, 0, work);
}

uint8_t SchemaDocument::types_of(const json::value& schema, int depth, int& work) const {
    if (schema.is_bool()) return schema.get_bool() ? SchemaTypes::kAll : 0;
    const json::object* object = schema.if_object();
    if (object == nullptr || depth > 32 || ++work > 1000) return SchemaTypes::kAll;
    uint8_t types = SchemaTypes::kAll;
    const auto meet = [&](uint8_t more) { types = static_cast<uint8_t>(types & more); };
    const auto inner = [&](const json::value& one) { return types_of(one, depth + 1, work); };
    const auto any_of = [&](const json::array& list, const auto& types_of_one) {
        uint8_t all = 0;
        for (const json::value& one : list) all = static_cast<uint8_t>(all | types_of_one(one));
        meet(all);
    };
    if (object->contains("$ref")) {
        try {
            meet(inner(target(*object, "#")));
        } catch (const GrammarError&) {  // it is named where the schema is compiled
        }
        if (references_stand_alone_) return types;
    }
    if (const json::value* type = object->if_contains("type")) {
        const auto named = [](const json::value& one) {
            const uint8_t set = one.is_string() ? SchemaTypes::named(one.get_string()) : uint8_t{0};
            return set == 0 ? SchemaTypes::kAll : set;
        };
        uint8_t all = 0;
        if (type->is_string()) all = named(*type);
        else if (const json::array* list = type->if_array())
            for (const json::value& one : *list) all = static_cast<uint8_t>(all | named(one));
        else all = SchemaTypes::kAll;
        meet(SchemaTypes::with_nullable(all, *object));
    }
    if (const json::value* one = object->if_contains("const")) meet(SchemaTypes::of(*one));
    for (const char* word : {"enum", "anyOf", "oneOf", "allOf"}) {
        const json::value* value = object->if_contains(word);
        if (value == nullptr || !value->is_array()) continue;
        const json::array& list = value->get_array();
        if (std::string_view(word) == "enum") any_of(list, [](const json::value& v) { return SchemaTypes::of(v); });
        else if (std::string_view(word) != "allOf") any_of(list, inner);
        else
            for (const json::value& one : list) meet(inner(one));
    }
    return types;
}

}  // namespace riptide
