// JSON by Boost.JSON, with the limits that untrusted text needs. Objects keep the order of their keys.
#pragma once

#include <boost/json.hpp>
#include <string>
#include <string_view>

#include "base/json_fwd.h"

namespace riptide {

/// Parses one JSON text (RFC 8259, UTF-8). `what` names the source in errors ("config.json").
/// Throws Error with the byte offset on malformed text, trailing bytes, or nesting deeper than `max_depth`.
json::value parse_json(std::string_view text, std::string_view what, int max_depth = 128);

/// "null", "a string", ...: what was found, for errors.
std::string_view kind_of(const json::value& value);

}  // namespace riptide
