// JSON by Boost.JSON, with the limits that untrusted text needs. Objects keep the order of their keys.
#pragma once

#include <boost/json.hpp>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "base/json_fwd.h"

namespace riptide {

class WorkBudget;

/// Parses one JSON text (RFC 8259, UTF-8). `what` names the source in errors ("config.json").
/// Throws Error with the byte offset on malformed text, trailing bytes, or nesting deeper than `max_depth`.
json::value parse_json(std::string_view text, std::string_view what, int max_depth = 128);
/// Members of an object in a stranger's text: it is made in one go, which nothing can stop.
constexpr std::size_t kMostJsonMembers = std::size_t{1} << 15;
/// What the values of so many bytes of a request's text may need.
constexpr int64_t json_memory_of(std::size_t bytes) { return (int64_t{48} << 20) + 24 * static_cast<int64_t>(bytes); }
/// The same for a stranger's text: throws Error as soon as the values need more than `max_bytes` of memory, while they
/// are parsed or, where they grow, later; and where an object has more than kMostJsonMembers members. `work`, where it
/// is not null, is looked at while they are parsed; nothing is taken from it.
json::value parse_json_within(std::string_view text, std::string_view what, int64_t max_bytes,
                              WorkBudget* work = nullptr, int max_depth = 128);

/// Where parse_json_within() puts values. Names that a stranger chose to have one hash have it only by luck there (one
/// table in sixteen; kMostJsonMembers of them then take half a second). It is given back when the last of its values
/// has gone; small ones that go earlier leave a gap.
json::storage_ptr json_memory(std::string_view what, int64_t max_bytes);

/// A value that its copies share; null unless given.
class SharedJson {
  public:
    SharedJson() = default;
    SharedJson(json::value value) : value_(std::make_shared<const json::value>(std::move(value))) {}
    const json::value& operator*() const;

  private:
    std::shared_ptr<const json::value> value_;
};

/// The same value, the members of each object in the order of their names; in the memory that it lies in itself.
json::value sorted_members(const json::value& value);

/// "null", "a string", ...: what was found, for errors.
std::string_view kind_of(const json::value& value);

}  // namespace riptide
