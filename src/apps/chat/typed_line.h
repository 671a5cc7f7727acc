// Lines from standard input, whoever types them.
#pragma once

#include <array>
#include <string>

namespace riptide::apps {

/// One line, or why there is none.
struct TypedLine {
    enum class Kind { text, end, interrupted };
    Kind kind = Kind::text;
    std::string text;  // without its line end
};

/// Standard input byte by byte. Nothing else may read it. One thread.
class InputBytes {
  public:
    static constexpr int kEnd = -1, kInterrupted = -2;
    /// Waits for the next byte, or until interrupted() is true.
    int next();

  private:
    std::array<unsigned char, 4096> held_{};
    std::size_t at_ = 0, size_ = 0;
};

/// A line as the terminal or the pipe gives it. A last line need not have an end.
TypedLine read_plain_line(InputBytes& bytes);

}  // namespace riptide::apps
