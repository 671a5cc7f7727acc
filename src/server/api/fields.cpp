#include "server/api/fields.h"

#include <cmath>

#include "base/json.h"
#include "base/work_budget.h"
#include "text/utf8.h"

namespace riptide::server {

const json::value* Fields::find(std::string_view key) const {
    const json::value* value = object_.if_contains(key);
    return value == nullptr || value->is_null() ? nullptr : value;
}

std::optional<bool> Fields::boolean(std::string_view key) const {
    const json::value* value = find(key);
    if (value == nullptr) return std::nullopt;
    if (!value->is_bool()) refuse(name(key), "{}: expected true or false, found {}", name(key), kind_of(*value));
    return value->get_bool();
}

std::optional<double> Fields::number(std::string_view key) const {
    const json::value* value = find(key);
    if (value == nullptr) return std::nullopt;
    if (!value->is_number()) refuse(name(key), "{}: expected a number, found {}", name(key), kind_of(*value));
    const double number = value->to_number<double>();
    if (!std::isfinite(number)) refuse(name(key), "{}: expected a finite number", name(key));
    return number;
}

std::optional<int64_t> Fields::integer(std::string_view key, int64_t low, int64_t high) const {
    const json::value* value = find(key);
    if (value == nullptr) return std::nullopt;
    if (!value->is_number()) refuse(name(key), "{}: expected a whole number, found {}", name(key), kind_of(*value));
    const auto out_of_range = [&] {
        refuse(name(key), "{} is {}, expected {} to {}", name(key), json::serialize(*value), low, high);
    };
    if (value->is_uint64()) {  // beyond int64
        out_of_range();
    } else if (value->is_double()) {
        const double number = value->get_double();
        if (number != std::floor(number)) refuse(name(key), "{} is {}, expected a whole number", name(key), number);
        if (!(number >= static_cast<double>(low) && number <= static_cast<double>(high) && std::abs(number) < 0x1p53))
            out_of_range();
        return static_cast<int64_t>(number);
    }
    const int64_t number = value->get_int64();
    if (number < low || number > high) out_of_range();
    return number;
}

std::optional<std::string_view> Fields::string(std::string_view key) const {
    const json::value* value = find(key);
    if (value == nullptr) return std::nullopt;
    if (!value->is_string()) refuse(name(key), "{}: expected a string, found {}", name(key), kind_of(*value));
    return std::string_view(value->get_string());
}

std::string_view Fields::filled(std::string_view key) const {
    const std::optional<std::string_view> value = string(key);
    if (!value) refuse(name(key), "{}: missing", name(key));
    if (value->empty()) refuse(name(key), "{}: empty", name(key));
    return *value;
}

const json::array* Fields::array(std::string_view key) const {
    const json::value* value = find(key);
    if (value == nullptr) return nullptr;
    if (!value->is_array()) refuse(name(key), "{}: expected an array, found {}", name(key), kind_of(*value));
    return &value->get_array();
}

const json::object* Fields::object(std::string_view key) const {
    const json::value* value = find(key);
    if (value == nullptr) return nullptr;
    if (!value->is_object()) refuse(name(key), "{}: expected an object, found {}", name(key), kind_of(*value));
    return &value->get_object();
}

json::object parse_body(std::string_view body, WorkBudget& work) {
    if (const std::size_t valid = utf8_valid_prefix(body); valid < body.size())
        refuse("", "the body is not valid UTF-8 at byte {}", valid);
    try {
        json::value value = parse_json_within(body, "the body", json_memory_of(body.size()), &work);
        if (!value.is_object()) refuse("", "the body: expected a JSON object, found {}", kind_of(value));
        return std::move(value.get_object());
    } catch (const Error& error) {
        if (error.kind() == ErrorKind::unavailable) throw;  // stopped
        throw ApiError(400, error.what());
    }
}

}  // namespace riptide::server
