// Names that a reader of an error message may have meant.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace riptide {

/// Up to `limit` of `known`, the most similar to `name` first (fewest single-character edits; at most a third of its
/// length).
std::vector<std::string> similar_names(std::string_view name, std::span<const std::string> known, size_t limit);

}  // namespace riptide
