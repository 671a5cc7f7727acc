// Fields of a request's body, with errors that name them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/json.h"
#include "server/api/api_error.h"

namespace riptide::server {

/// A view of an object. A field that is absent or null has no value; one of another type than expected, or out of
/// range, throws ApiError(400) naming it. Nothing is clamped.
class Fields {
  public:
    /// `where` stands in front of the names of fields ("thinking.").
    explicit Fields(const json::object& object, std::string where = "") : object_(object), where_(std::move(where)) {}

    const json::value* find(std::string_view key) const;
    std::optional<bool> boolean(std::string_view key) const;
    /// Finite.
    std::optional<double> number(std::string_view key) const;
    /// A whole number (written as 5 or 5.0) from `low` to `high`.
    std::optional<int64_t> integer(std::string_view key, int64_t low, int64_t high) const;
    std::optional<std::string_view> string(std::string_view key) const;
    /// A string that is there and not empty.
    std::string_view filled(std::string_view key) const;
    const json::array* array(std::string_view key) const;
    const json::object* object(std::string_view key) const;

    std::string name(std::string_view key) const { return where_ + std::string(key); }

  private:
    const json::object& object_;
    std::string where_;
};

/// The object that a request's body must be. Throws ApiError(400) with the byte offset of what is not JSON, and if its
/// values need more memory than 24 times the body and 48 MiB; WorkStopped and WorkLate as `work` does.
json::object parse_body(std::string_view body, WorkBudget& work);

}  // namespace riptide::server
