// UTF-8: strict decoding of one character, and a stream that turns any bytes into valid UTF-8.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace riptide {

/// U+FFFD in UTF-8, which stands for bytes that are no character.
inline constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

/// What stands at one place of a text.
struct Utf8Char {
    enum class Kind { character, invalid, incomplete };
    Kind kind = Kind::character;
    char32_t code_point = 0;  // only for `character`
    int length = 1;  // bytes: of the character, or of the maximal invalid (or unfinished) prefix of one; 1 to 4
};

/// The character of `text` at byte `at`. Strict: no overlong forms, surrogates, or code points above U+10FFFF.
/// `incomplete` means that the text ends inside something that could still become a character (at most 3 bytes).
/// REQUIRES at < text.size().
Utf8Char utf8_at(std::string_view text, std::size_t at);

/// Length in bytes of the longest valid UTF-8 prefix of `text`. Time linear in the result.
std::size_t utf8_valid_prefix(std::string_view text);

/// Appends one code point (REQUIRES: a Unicode scalar value).
void append_utf8(std::string& out, char32_t code_point);

/// Makes valid UTF-8 of bytes that arrive in any pieces. Output ends at character borders; at most 3 bytes are held
/// back. Each maximal invalid prefix of a character (Unicode 15, section 3.9, table 3-8) becomes one U+FFFD. push(a)
/// then push(b) gives the same bytes as push(a + b).
class Utf8Stream {
  public:
    /// Appends to `out` the characters that `bytes` completes.
    void push(std::string_view bytes, std::string& out);
    /// Appends U+FFFD if bytes of an unfinished character are held, and forgets them.
    void finish(std::string& out);

  private:
    std::string held_;
};

}  // namespace riptide
