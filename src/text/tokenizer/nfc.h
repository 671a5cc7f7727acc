// Unicode Normalization Form C, which Qwen's tokenizer applies before it cuts text.
#pragma once

#include <string>
#include <string_view>

namespace riptide {

/// The text in NFC (Unicode 14 data, UAX #15), exact for all valid UTF-8. Bytes that are not UTF-8 stay as they are and
/// separate what stands before from what stands after. Text without any code point from U+0300 up is returned
/// unchanged after one scan. Time n log n in the worst case (a long run of combining marks is sorted).
std::string to_nfc(std::string_view text);

}  // namespace riptide
