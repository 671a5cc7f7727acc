// Text to hide things in, made up by rule: the same on every machine, and nobody's.
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <string_view>

namespace riptide::apps {

/// Draws that depend on the seed alone. Two never stand in one call: compilers differ in which argument they compute
/// first. Not thread-safe.
class Draw {
  public:
    explicit Draw(uint64_t seed) : rng_(seed) {}
    /// 0 to n - 1. REQUIRES: n > 0.
    int64_t below(int64_t n) { return static_cast<int64_t>(rng_() % static_cast<uint64_t>(n)); }
    std::string_view pick(std::span<const std::string_view> words) {
        return words[static_cast<size_t>(below(std::ssize(words)))];
    }
    /// A word that no language has: three or four syllables, lower case ("drukezon").
    std::string name();
    /// A number of `count` digits, the first not 0.
    std::string digits(int64_t count);

  private:
    std::mt19937_64 rng_;
};

enum class Haystack { prose, code, logs };
inline constexpr Haystack kHaystacks[] = {Haystack::prose, Haystack::code, Haystack::logs};

/// One line, not empty, without a line break: a sentence or two, a line of Python, a log entry.
std::string haystack_line(Haystack kind, Draw& draw);

}  // namespace riptide::apps
