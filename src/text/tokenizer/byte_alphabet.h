// The byte alphabet of GPT-2: every byte as one printable character, so that vocabulary files are text.
#pragma once

#include <string>
#include <string_view>

namespace riptide {

/// The vocabulary's spelling of raw bytes: printable Latin-1 stands for itself, the other 68 bytes for U+0100 onwards
/// (space is U+0120, newline U+010A). Source: bytes_to_unicode of the GPT-2 release.
std::string to_byte_alphabet(std::string_view bytes);

/// The raw bytes behind a vocabulary spelling; false, with `bytes` unchanged, if `text` has a character outside the
/// alphabet (then the token stands for its own text, as Hugging Face's ByteLevel decoder has it).
bool from_byte_alphabet(std::string_view text, std::string& bytes);

}  // namespace riptide
