// Percent-encoding of URIs.
#pragma once

#include <string>
#include <string_view>

namespace riptide {

/// The bytes that `text` stands for (RFC 3986, 2.1). A '%' that begins no escape stays as it is.
std::string percent_decoded(std::string_view text);

}  // namespace riptide
