// The byte alphabet of GPT-2: every byte as one printable character, so that vocabulary files are text.
#pragma once

#include <string>
#include <string_view>

namespace riptide {

/// The raw bytes behind a vocabulary spelling: printable Latin-1 stands for itself, U+0100 onwards for the other 68
/// bytes (space is U+0120, newline U+010A). Source: bytes_to_unicode of the GPT-2 release. False, with `bytes`
/// unchanged, if `text` has a character outside the alphabet (then the token stands for its own text, as Hugging Face's
/// ByteLevel decoder has it).
bool from_byte_alphabet(std::string_view text, std::string& bytes);

}  // namespace riptide
