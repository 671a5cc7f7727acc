// Ending an answer at a string that may be cut over several tokens.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace riptide {

/// Lets text through up to the first stop string. Text that may be the beginning of one is held back until it is clear.
/// Of several, the one that is complete first counts; of those that end together, the longest. The joined output does
/// not depend on how the input was cut. Time per byte: the total length of the stop strings, at worst.
class StopMatcher {
  public:
    /// REQUIRES no empty string.
    explicit StopMatcher(std::vector<std::string> stops);

    /// What can be delivered now. Nothing after a match.
    std::string push(std::string_view text);
    /// The rest, at the end of the answer. Nothing after a match.
    std::string finish();

    bool matched() const { return matched_; }
    /// The stop string that was found.
    const std::string& match() const { return match_; }

  private:
    size_t held_back() const;

    std::vector<std::string> stops_;
    std::string held_;
    bool matched_ = false;
    std::string match_;
};

}  // namespace riptide
