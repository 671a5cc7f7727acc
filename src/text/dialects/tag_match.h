// Finding tags in text that comes in pieces.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

namespace riptide {

/// How the start of a tag, with one more character, compares with a list of tags.
struct TagStep {
    int complete = -1;      // index of the tag that it now is, or -1
    bool possible = false;  // it is a tag or could become one
};

/// `seen` is a proper prefix of some tag (or empty), `next` what follows. REQUIRES: no tag is a prefix of another, and
/// '<' stands only at the start of tags; then on failure nothing inside `seen` but its first character can start a tag.
inline TagStep step_tag(std::span<const std::string_view> tags, std::string_view seen, char next) {
    TagStep step;
    for (std::size_t i = 0; i < tags.size(); ++i) {
        if (!tags[i].starts_with(seen) || tags[i].size() <= seen.size() || tags[i][seen.size()] != next) continue;
        step.possible = true;
        if (tags[i].size() == seen.size() + 1) step.complete = static_cast<int>(i);
    }
    return step;
}

}  // namespace riptide
