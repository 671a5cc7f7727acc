#include "text/tokenizer/byte_alphabet.h"

#include <array>

#include "text/utf8.h"

namespace riptide {
namespace {

constexpr char32_t kShifted = 0x100;  // where the unprintable bytes begin

constexpr bool is_printable(int byte) {
    return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || (byte >= 0xAE && byte <= 0xFF);
}

struct Tables {
    std::array<char32_t, 256> to{};
    std::array<int, 0x144> from{};
    constexpr Tables() {
        for (int& entry : from) entry = -1;
        char32_t next = kShifted;
        for (int byte = 0; byte < 256; ++byte) {
            const auto b = static_cast<std::size_t>(byte);
            to[b] = is_printable(byte) ? static_cast<char32_t>(byte) : next++;
            from[to[b]] = byte;
        }
    }
};
constexpr Tables kTables;

}  // namespace

std::string to_byte_alphabet(std::string_view bytes) {
    std::string out;
    for (const char c : bytes) append_utf8(out, kTables.to[static_cast<unsigned char>(c)]);
    return out;
}

bool from_byte_alphabet(std::string_view text, std::string& bytes) {
    std::string out;
    out.reserve(text.size());
    for (std::size_t at = 0; at < text.size();) {
        const Utf8Char c = utf8_at(text, at);
        if (c.kind != Utf8Char::Kind::character || c.code_point >= kTables.from.size()) return false;
        const int byte = kTables.from[c.code_point];
        if (byte < 0) return false;
        out.push_back(static_cast<char>(static_cast<unsigned char>(byte)));
        at += static_cast<std::size_t>(c.length);
    }
    bytes = std::move(out);
    return true;
}

}  // namespace riptide
