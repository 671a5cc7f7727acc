// What fuzz targets have in common: laws, and choices out of a fuzzer's bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

namespace riptide::fuzz {

/// Ends the program where a law does not hold, and says which, and what was found.
inline void require(bool law, std::string_view what = "a law", const std::string& found = "") {
    if (law) return;
    std::fprintf(stderr, "broken: %.*s\n%s\n", static_cast<int>(what.size()), what.data(), found.c_str());
    std::abort();
}

/// Choices, one byte each. Where there are no bytes left, all are 0: the plainest choice stands first.
class ByteSource {
  public:
    ByteSource(const uint8_t* data, std::size_t size) : at_(data), left_(size) {}

    /// 0 to n - 1. REQUIRES: 1 <= n <= 256.
    int next(int n) {
        if (left_ == 0) return 0;
        --left_;
        return *at_++ % n;
    }
    /// Once in n, and never where there are no bytes left.
    bool once_in(int n) { return next(n) == n - 1 && n > 1; }
    template <class T, std::size_t N>
    const T& one_of(const T (&list)[N]) {
        static_assert(N <= 256);
        return list[static_cast<std::size_t>(next(static_cast<int>(N)))];
    }
    bool empty() const { return left_ == 0; }

  private:
    const uint8_t* at_;
    std::size_t left_;
};

}  // namespace riptide::fuzz
