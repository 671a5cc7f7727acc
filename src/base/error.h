// Errors that a user, a file, a client or the machine can cause (Error), and bugs that only a programmer can (RT_ASSERT).
#pragma once

#include <fmt/core.h>

#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <utility>

namespace riptide {

/// Process exit codes, after BSD sysexits: what kind of thing was wrong.
enum class ErrorKind : int {
    usage = 64,        // a flag or its value
    data = 65,         // the contents of a file or a request
    no_input = 66,     // a file that is not there
    unavailable = 69,  // a device or a feature that this build or machine lacks
    system = 71,       // the operating system refused something
    io = 74,           // reading or writing failed
    permission = 77,
};

/// An error with one clear line: the thing, what was found, what was expected, the fix if known.
class Error : public std::runtime_error {
  public:
    explicit Error(const std::string& message, ErrorKind kind = ErrorKind::data)
        : std::runtime_error(message), kind_(kind) {}
    ErrorKind kind() const { return kind_; }

  private:
    ErrorKind kind_;
};

/// Throws Error(format(args...), kind).
template <class... Args>
[[noreturn]] void fail(ErrorKind kind, fmt::format_string<Args...> format, Args&&... args) {
    throw Error(fmt::format(format, std::forward<Args>(args)...), kind);
}
template <class... Args>
[[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
    throw Error(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace riptide

/// Throws riptide::Error with the formatted sentence unless `condition` holds. For everything that input can cause.
#define RT_CHECK(condition, ...)                      \
    do {                                              \
        if (!(condition)) ::riptide::fail(__VA_ARGS__); \
    } while (0)

/// Aborts with file and line unless `condition` holds. Stays on in release builds. For programming errors only.
#define RT_ASSERT(condition)                                                                       \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            std::fprintf(stderr, "%s:%d: assertion failed: %s\n", __FILE__, __LINE__, #condition); \
            std::abort();                                                                          \
        }                                                                                          \
    } while (0)
