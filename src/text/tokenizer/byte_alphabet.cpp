#include "text/tokenizer/byte_alphabet.h"

#include <array>

#include "text/utf8.h"

namespace riptide {
namespace {

constexpr bool is_printable(int byte) {
    return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || (byte >= 0xAE && byte <= 0xFF);
}

/// Of a character; -1: of none.
constexpr std::array<int, 0x144> bytes_of_characters() {
    std::array<int, 0x144> bytes{};
    for (int& entry : bytes) entry = -1;
    std::size_t next = 0x100;  // where the unprintable bytes begin
    for (int byte = 0; byte < 256; ++byte) bytes[is_printable(byte) ? static_cast<std::size_t>(byte) : next++] = byte;
    return bytes;
}
constexpr auto kByteOf = bytes_of_characters();

}  // namespace

bool from_byte_alphabet(std::string_view text, std::string& bytes) {
    std::string out;
    out.reserve(text.size());
    for (std::size_t at = 0; at < text.size();) {
        const Utf8Char c = utf8_at(text, at);
        if (c.kind != Utf8Char::Kind::character || c.code_point >= kByteOf.size()) return false;
        const int byte = kByteOf[c.code_point];
        if (byte < 0) return false;
        out.push_back(static_cast<char>(static_cast<unsigned char>(byte)));
        at += static_cast<std::size_t>(c.length);
    }
    bytes = std::move(out);
    return true;
}

}  // namespace riptide
