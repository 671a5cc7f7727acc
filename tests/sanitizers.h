// What the tests were built with: under sanitizers all takes longer, and stacks are larger.
#pragma once

namespace riptide {

// g++ defines a macro for each, clang a feature.
#if defined(__has_feature)
inline constexpr bool kAddressSanitizer = __has_feature(address_sanitizer);
#elif defined(__SANITIZE_ADDRESS__)
inline constexpr bool kAddressSanitizer = true;
#else
inline constexpr bool kAddressSanitizer = false;
#endif

/// Under it a demo model says a few tokens a second: tests have fewer cases then of what one thread does by itself,
/// where only the number of threads' meetings counts (docs/results/engine.md).
#if defined(__has_feature)
inline constexpr bool kThreadSanitizer = __has_feature(thread_sanitizer);
#elif defined(__SANITIZE_THREAD__)
inline constexpr bool kThreadSanitizer = true;
#else
inline constexpr bool kThreadSanitizer = false;
#endif

}  // namespace riptide
