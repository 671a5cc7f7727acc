// Substrings, in time that is linear whatever the texts are.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "text/jinja/value.h"

namespace riptide::jinja {

/// Looks for one text in others. Source: Knuth, Morris & Pratt 1977.
class TextFinder {
  public:
    enum class From : uint8_t { front, back };
    /// The heap counts the work, and the 4 bytes of memory for each of `wanted`; both must outlive this.
    TextFinder(Heap& heap, std::string_view wanted, From from = From::front)
        : heap_(heap), wanted_(wanted), back_(from == From::back) {}
    ~TextFinder() { heap_.give_back(taken_); }
    TextFinder(const TextFinder&) = delete;
    TextFinder& operator=(const TextFinder&) = delete;

    /// Where it stands first (from the back: last), or npos. An empty one stands at either end.
    std::size_t find(std::string_view text);

  private:
    std::size_t skip(std::string_view text, std::size_t at) const;
    void learn();
    /// Byte i as the search meets it.
    char met(std::string_view text, std::size_t i) const { return text[back_ ? text.size() - 1 - i : i]; }

    Heap& heap_;
    std::string_view wanted_;
    bool back_;
    std::vector<int32_t> borders_;  // of each beginning of `wanted`: how long an end of it is a beginning, too
    int64_t taken_ = 0;
};

}  // namespace riptide::jinja
