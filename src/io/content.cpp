#include "io/content.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace riptide {

namespace {

std::string_view head_of(std::span<const std::byte> bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), std::min<size_t>(bytes.size(), 512)};
}

bool is_plain_text(std::string_view head) {
    return std::all_of(head.begin(), head.end(), [](char c) {
        const auto u = static_cast<unsigned char>(c);
        return u >= 0x20 ? u < 0x7f : (u == '\n' || u == '\r' || u == '\t');
    });
}

}  // namespace

bool looks_like_gguf(std::span<const std::byte> bytes) { return head_of(bytes).starts_with("GGUF"); }

bool looks_like_safetensors(std::span<const std::byte> bytes) {
    if (bytes.size() < 10) return false;
    uint64_t length = 0;
    std::memcpy(&length, bytes.data(), sizeof length);
    return length <= 100'000'000 && static_cast<char>(bytes[8]) == '{';
}

bool looks_like_pickle(std::span<const std::byte> bytes) {
    const std::string_view head = head_of(bytes);
    const bool zip = head.starts_with("PK\x03\x04");
    const bool pickle = head.size() > 2 && head[0] == '\x80' && head[1] >= 2 && head[1] <= 5;
    return zip || pickle;
}

std::string describe_content(std::span<const std::byte> bytes) {
    std::string_view head = head_of(bytes);
    if (head.empty()) return "it is empty";
    if (head.starts_with("version https://git-lfs")) return "it looks like a Git LFS pointer: run git lfs pull";
    if (looks_like_gguf(bytes)) return "it is a GGUF file";
    if (head.starts_with("FUGG")) return "it is a GGUF file of a big-endian writer, which is not supported";
    if (head.starts_with("ggjt") || head.starts_with("tjgg") || head.starts_with("lmgg") || head.starts_with("fmgg"))
        return "it is a ggml file older than GGUF: convert it";
    if (looks_like_pickle(bytes)) return "it looks like a zip or pickle checkpoint, and those are never loaded";
    if (looks_like_safetensors(bytes)) return "it looks like safetensors";
    const size_t start = head.find_first_not_of(" \t\r\n");
    if (start != std::string_view::npos && head[start] == '<')
        return "it looks like an HTML or XML page: the download failed";
    if (start != std::string_view::npos && (head[start] == '{' || head[start] == '[') && is_plain_text(head))
        return "it looks like JSON";
    if (head.find_first_not_of('\0') == std::string_view::npos)
        return "it begins with zeros: the download is not complete";
    if (is_plain_text(head)) return fmt::format("it begins with the text \"{}\"", printable(head.substr(0, 24)));
    std::string hex;
    for (const char c : head.substr(0, 4))
        hex += fmt::format("{}{:02x}", hex.empty() ? "" : " ", static_cast<uint8_t>(c));
    return fmt::format("it begins with the bytes {}", hex);
}

std::string printable(std::string_view name) {
    constexpr size_t kLimit = 96;
    std::string shown;
    for (const char c : name) {
        if (shown.size() >= kLimit) return shown + "...";
        const auto u = static_cast<unsigned char>(c);
        if (u >= 0x20 && u < 0x7f) {
            shown += c;
        } else {
            shown += fmt::format("\\x{:02x}", u);
        }
    }
    return shown;
}

}  // namespace riptide
