#include "text/grammar/text_reader.h"

#include <algorithm>

#include "text/utf8.h"

namespace riptide {

std::string line_and_column(std::string_view text, std::size_t at) {
    const std::string_view before = text.substr(0, at);
    const auto line = std::count(before.begin(), before.end(), '\n') + 1;
    const std::size_t start = before.rfind('\n');
    return fmt::format("line {} column {}", line,
                       start == std::string_view::npos ? before.size() + 1 : before.size() - start);
}

void TextReader::check_text(std::size_t most, std::string_view kind) {
    if (text_.size() > most)
        throw GrammarError(fmt::format("{} of {} bytes, expected at most {}", kind, text_.size(), most));
    if (const std::size_t valid = utf8_valid_prefix(text_); valid < text_.size()) wrong_at(valid, "not valid UTF-8");
}

char32_t TextReader::character() {
    const Utf8Char c = utf8_at(text_, at_);
    at_ += static_cast<std::size_t>(c.length);
    return c.code_point;
}

int64_t TextReader::count() {
    int64_t value = 0;
    while (peek() >= '0' && peek() <= '9') {
        value = value * 10 + (text_[at_++] - '0');
        if (value > Grammar::kMostRepeats) wrong(fmt::format("more than {} repetitions", Grammar::kMostRepeats));
    }
    return value;
}

char32_t TextReader::hex(int digits) {
    char32_t value = 0;
    for (int i = 0; i < digits; ++i, ++at_) {
        const char c = peek();
        if (c >= '0' && c <= '9') value = value * 16 + static_cast<char32_t>(c - '0');
        else if (c >= 'a' && c <= 'f') value = value * 16 + static_cast<char32_t>(c - 'a' + 10);
        else if (c >= 'A' && c <= 'F') value = value * 16 + static_cast<char32_t>(c - 'A' + 10);
        else wrong("expected a hexadecimal digit");
    }
    return value;
}

char32_t TextReader::hex_character(int digits) {
    const char32_t value = hex(digits);
    if (value > 0x10FFFF || (value >= 0xD800 && value < 0xE000)) wrong("no such character");
    return value;
}

std::optional<char32_t> TextReader::plain_escape() {
    const char c = peek();
    ++at_;
    switch (c) {
        case 'n':
            return '\n';
        case 'r':
            return '\r';
        case 't':
            return '\t';
        case 'x':
            return hex_character(2);
        case 'u':
            return hex_character(4);
        case 'U':
            return hex_character(8);
        default:
            --at_;
            return std::nullopt;
    }
}

}  // namespace riptide
