// What Python's str knows about characters: white space, letter case, classes, code point positions.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace riptide::jinja {

/// One character of a text. A byte that is no part of valid UTF-8 counts as one character, with code U+FFFD.
struct Char {
    char32_t code = 0;
    int bytes = 1;
};
/// REQUIRES at < text.size().
Char char_at(std::string_view text, int64_t at);
/// Where the character that ends before `at` begins. REQUIRES 0 < at <= text.size().
int64_t char_before(std::string_view text, int64_t at);
int64_t count_chars(std::string_view text);
/// The byte position of character `index`, text.size() if there are fewer.
int64_t byte_of_char(std::string_view text, int64_t index);

/// str.isspace: what strip() removes.
bool is_space(char32_t code);
/// What splitlines() splits at.
bool is_line_end(char32_t code);
bool is_upper(char32_t code);  // has a lower case, or is listed as upper
bool is_lower(char32_t code);
bool is_alpha(char32_t code);  // Unicode category L*
bool is_digit(char32_t code);  // Unicode category Nd
/// str.isprintable: what repr() shows as it is.
bool is_printable(char32_t code);

enum class Case { upper, lower, title };
/// Appends the full case mapping of one character (final sigma not treated).
void append_case(std::string& out, char32_t code, Case to);

/// Text without the characters of `chars` (or white space if null) at its ends: the range of bytes kept.
struct Kept {
    int64_t begin = 0;
    int64_t end = 0;
};
/// `count`, if there is one, is told how many bytes each step looks at, before it does.
Kept strip_range(std::string_view text, const std::string_view* chars, bool left, bool right,
                 const std::function<void(int64_t)>& count = {});

}  // namespace riptide::jinja
