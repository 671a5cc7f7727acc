// Fields of JSON objects that came from a file, with errors that name file and field.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "base/json.h"

namespace riptide {

/// The field, or nullptr if it is absent or null.
inline const json::value* find_field(const json::object& object, std::string_view key) {
    const json::value* value = object.if_contains(key);
    return value == nullptr || value->is_null() ? nullptr : value;
}

/// The field; throws Error naming `what` (the file and place) if it is absent, null, or of another type.
inline const json::object& field_object(const json::object& object, std::string_view key, std::string_view what) {
    const json::value* value = find_field(object, key);
    RT_CHECK(value != nullptr && value->is_object(), "{}: '{}' is missing or not an object", what, key);
    return value->get_object();
}
inline const json::array& field_array(const json::object& object, std::string_view key, std::string_view what) {
    const json::value* value = find_field(object, key);
    RT_CHECK(value != nullptr && value->is_array(), "{}: '{}' is missing or not an array", what, key);
    return value->get_array();
}
inline std::string_view field_string(const json::object& object, std::string_view key, std::string_view what) {
    const json::value* value = find_field(object, key);
    RT_CHECK(value != nullptr && value->is_string(), "{}: '{}' is missing or not a string", what, key);
    return value->get_string();
}

/// The field, or `fallback` if it is absent or null; throws Error if it has another type.
inline bool field_bool_or(const json::object& object, std::string_view key, bool fallback, std::string_view what) {
    const json::value* value = find_field(object, key);
    RT_CHECK(value == nullptr || value->is_bool(), "{}: '{}' is not true or false", what, key);
    return value == nullptr ? fallback : value->get_bool();
}

/// A whole number in [0, limit); throws Error naming `what` and the number otherwise.
inline int64_t index_below(const json::value& value, int64_t limit, std::string_view what) {
    RT_CHECK(value.is_int64() || value.is_uint64(), "{}: expected a whole number", what);
    if (value.is_uint64()) {
        RT_CHECK(value.get_uint64() < static_cast<uint64_t>(limit), "{}: {} is not below {}", what, value.get_uint64(),
                 limit);
        return static_cast<int64_t>(value.get_uint64());
    }
    const int64_t number = value.get_int64();
    RT_CHECK(number >= 0 && number < limit, "{}: {} is not in 0..{}", what, number, limit - 1);
    return number;
}

}  // namespace riptide
