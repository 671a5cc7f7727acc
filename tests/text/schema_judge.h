// A validator of JSON Schema, written apart from the grammars that it judges: it looks at values, not at texts.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>

#include "base/json.h"
#include "text/regex.h"

namespace riptide::testing {

class SchemaJudge {
  public:
    explicit SchemaJudge(const json::value& root) : root_(root) {}
    bool valid(const json::value& value) const { return valid(root_, value); }
    bool valid(const json::value& schema, const json::value& value) const {
        if (schema.is_bool()) return schema.get_bool();
        const json::object& s = schema.as_object();
        if (const json::value* ref = s.if_contains("$ref")) {
            const std::string pointer(ref->as_string());
            boost::json::error_code error;
            return valid(*root_.find_pointer(pointer.substr(1), error), value);
        }
        return type_fits(s, value) && choices_fit(s, value) && number_fits(s, value) && string_fits(s, value) &&
               array_fits(s, value) && object_fits(s, value);
    }

  private:
    static const json::value* get(const json::object& s, const char* key) { return s.if_contains(key); }

    static bool is_type(std::string_view type, const json::value& v) {
        if (type == "object") return v.is_object();
        if (type == "array") return v.is_array();
        if (type == "string") return v.is_string();
        if (type == "boolean") return v.is_bool();
        if (type == "null") return v.is_null();
        if (type == "number") return v.is_number();
        return v.is_int64() || v.is_uint64() || (v.is_double() && std::floor(v.get_double()) == v.get_double());
    }
    static bool type_fits(const json::object& s, const json::value& v) {
        const json::value* type = get(s, "type");
        if (type == nullptr) return true;
        if (type->is_string()) return is_type(type->get_string(), v);
        const json::array& list = type->as_array();
        return std::any_of(list.begin(), list.end(), [&](const auto& t) { return is_type(t.as_string(), v); });
    }
    bool choices_fit(const json::object& s, const json::value& v) const {
        if (const auto* one = get(s, "const"); one != nullptr && *one != v) return false;
        if (const auto* list = get(s, "enum"))
            if (std::find(list->as_array().begin(), list->as_array().end(), v) == list->as_array().end()) return false;
        for (const char* word : {"anyOf", "oneOf", "allOf"}) {
            const auto* list = get(s, word);
            if (list == nullptr) continue;
            const auto count = std::count_if(list->as_array().begin(), list->as_array().end(),
                                             [&](const auto& part) { return valid(part, v); });
            const std::string_view name = word;
            const auto all = std::ssize(list->as_array());
            if (name == "anyOf" ? count == 0 : name == "oneOf" ? count != 1 : count != all) return false;
        }
        return true;
    }
    static bool number_fits(const json::object& s, const json::value& v) {
        if (!v.is_number()) return true;
        const double x = v.to_number<double>();
        const auto bound = [&](const char* key, auto fits) {
            const json::value* b = get(s, key);
            return b == nullptr || fits(x, b->to_number<double>());
        };
        return bound("minimum", std::greater_equal<>()) && bound("maximum", std::less_equal<>()) &&
               bound("exclusiveMinimum", std::greater<>()) && bound("exclusiveMaximum", std::less<>());
    }
    static int64_t count_of(const json::object& s, const char* key, int64_t otherwise) {
        const json::value* v = get(s, key);
        return v == nullptr ? otherwise : v->to_number<int64_t>();
    }
    static bool string_fits(const json::object& s, const json::value& v) {
        if (!v.is_string()) return true;
        const std::string text(v.get_string());
        const auto characters =
            std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; });
        if (characters < count_of(s, "minLength", 0) || characters > count_of(s, "maxLength", 1 << 30)) return false;
        const json::value* pattern = get(s, "pattern");
        if (pattern == nullptr) return true;
        Regex::Scratch scratch;
        Regex::Match match;
        return Regex(pattern->as_string(), "pattern").find(text, 0, scratch, match);
    }
    bool array_fits(const json::object& s, const json::value& v) const {
        if (!v.is_array()) return true;
        const json::array& list = v.get_array();
        if (std::ssize(list) < count_of(s, "minItems", 0) || std::ssize(list) > count_of(s, "maxItems", 1 << 30))
            return false;
        const json::value* items = get(s, "items");
        return items == nullptr ||
               std::all_of(list.begin(), list.end(), [&](const auto& item) { return valid(*items, item); });
    }
    bool object_fits(const json::object& s, const json::value& v) const {
        if (!v.is_object()) return true;
        const json::object& object = v.get_object();
        if (const auto* required = get(s, "required"))
            for (const json::value& name : required->as_array())
                if (!object.contains(name.as_string())) return false;
        const json::value* properties = get(s, "properties");
        const json::value* additional = get(s, "additionalProperties");
        for (const auto& [key, inner] : object) {
            const json::value* own = properties == nullptr ? nullptr : properties->as_object().if_contains(key);
            if (own != nullptr ? !valid(*own, inner) : additional != nullptr && !valid(*additional, inner))
                return false;
        }
        return true;
    }

    json::value root_;
};

}  // namespace riptide::testing
