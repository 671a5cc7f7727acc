#include "base/percent.h"

namespace riptide {

namespace {

/// -1: it is none.
int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    const char small = static_cast<char>(c | 0x20);
    return small >= 'a' && small <= 'f' ? small - 'a' + 10 : -1;
}

}  // namespace

std::string percent_decoded(std::string_view text) {
    std::string out;
    for (std::size_t i = 0; i < text.size(); ++i) {
        const bool room = text[i] == '%' && i + 2 < text.size();
        const int high = room ? hex_digit(text[i + 1]) : -1, low = room ? hex_digit(text[i + 2]) : -1;
        const bool escape = high >= 0 && low >= 0;
        out += escape ? static_cast<char>(high * 16 + low) : text[i];
        if (escape) i += 2;
    }
    return out;
}

}  // namespace riptide
