// What the tests were built with: under sanitizers all takes longer, and stacks are larger.
#pragma once

namespace riptide {

#if defined(__SANITIZE_ADDRESS__)  // g++'s word
inline constexpr bool kAddressSanitizer = true;
#elif defined(__has_feature)  // clang's
inline constexpr bool kAddressSanitizer = __has_feature(address_sanitizer);
#else
inline constexpr bool kAddressSanitizer = false;
#endif

}  // namespace riptide
