#include "text/utf8.h"

#include <cstring>

namespace riptide {
namespace {

// What a lead byte promises: how many bytes follow, and the range of the first of them (Unicode 15, table 3-7).
struct Lead {
    int follow;
    unsigned char low, high;
};

Lead lead_of(unsigned char byte) {
    if (byte < 0xC2) return {-1, 0, 0};
    if (byte < 0xE0) return {1, 0x80, 0xBF};
    if (byte == 0xE0) return {2, 0xA0, 0xBF};
    if (byte == 0xED) return {2, 0x80, 0x9F};
    if (byte < 0xF0) return {2, 0x80, 0xBF};
    if (byte == 0xF0) return {3, 0x90, 0xBF};
    if (byte < 0xF4) return {3, 0x80, 0xBF};
    if (byte == 0xF4) return {3, 0x80, 0x8F};
    return {-1, 0, 0};
}

}  // namespace

Utf8Char utf8_at(std::string_view text, std::size_t at) {
    using Kind = Utf8Char::Kind;
    const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
    const unsigned char first = byte(at);
    if (first < 0x80) return {Kind::character, first, 1};
    const Lead lead = lead_of(first);
    if (lead.follow < 0) return {Kind::invalid, 0, 1};
    char32_t code = first & (0x3Fu >> lead.follow);
    for (int i = 1; i <= lead.follow; ++i) {
        if (at + i == text.size()) return {Kind::incomplete, 0, i};
        const unsigned char low = i == 1 ? lead.low : 0x80;
        const unsigned char high = i == 1 ? lead.high : 0xBF;
        if (byte(at + i) < low || byte(at + i) > high) return {Kind::invalid, 0, i};
        code = code << 6 | (byte(at + i) & 0x3Fu);
    }
    return {Kind::character, code, lead.follow + 1};
}

std::size_t utf8_valid_prefix(std::string_view text) {
    std::size_t at = 0;
    while (at < text.size()) {
        std::uint64_t word = 0;
        if (text.size() - at >= 8) {
            std::memcpy(&word, text.data() + at, 8);
            if ((word & 0x8080808080808080u) == 0) {
                at += 8;
                continue;
            }
        }
        const Utf8Char here = utf8_at(text, at);
        if (here.kind != Utf8Char::Kind::character) return at;
        at += static_cast<std::size_t>(here.length);
    }
    return at;
}

void append_utf8(std::string& out, char32_t c) {
    const auto put = [&](char32_t byte) { out.push_back(static_cast<char>(static_cast<unsigned char>(byte))); };
    if (c < 0x80) {
        put(c);
    } else if (c < 0x800) {
        put(0xC0 | c >> 6);
        put(0x80 | (c & 0x3F));
    } else if (c < 0x10000) {
        put(0xE0 | c >> 12);
        put(0x80 | (c >> 6 & 0x3F));
        put(0x80 | (c & 0x3F));
    } else {
        put(0xF0 | c >> 18);
        put(0x80 | (c >> 12 & 0x3F));
        put(0x80 | (c >> 6 & 0x3F));
        put(0x80 | (c & 0x3F));
    }
}

void Utf8Stream::push(std::string_view bytes, std::string& out) {
    std::string joined;
    if (!held_.empty()) {
        joined.swap(held_);
        joined.append(bytes);
        bytes = joined;
    }
    while (!bytes.empty()) {
        const std::size_t valid = utf8_valid_prefix(bytes);
        out.append(bytes.substr(0, valid));
        bytes.remove_prefix(valid);
        if (bytes.empty()) break;
        const Utf8Char bad = utf8_at(bytes, 0);
        if (bad.kind == Utf8Char::Kind::incomplete) {
            held_.assign(bytes);
            return;
        }
        out.append(kReplacement);
        bytes.remove_prefix(static_cast<std::size_t>(bad.length));
    }
}

void Utf8Stream::finish(std::string& out) {
    if (!held_.empty()) out.append(kReplacement);
    held_.clear();
}

}  // namespace riptide
