// What somebody may have meant.
#pragma once

#include <string>
#include <vector>

namespace riptide::apps {

/// " (did you mean X?)" if a known word is near `word` by edit distance, else "".
std::string did_you_mean(const std::string& word, const std::vector<std::string>& known);

}  // namespace riptide::apps
