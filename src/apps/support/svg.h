// What the programs' plots share.
#pragma once

#include <string>
#include <string_view>

namespace riptide::apps {

/// Text as it may stand in an XML element or attribute; control characters are left out.
std::string svg_escaped(std::string_view text);

}  // namespace riptide::apps
