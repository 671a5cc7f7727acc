// What a person at a terminal sees and can do: output, progress bars, colours, Ctrl-C.
#pragma once

#include <fmt/core.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace riptide::apps {

/// A bar on stderr for long work: label, share, amount, rate, time left. Draws nothing unless stderr is a terminal, and
/// nothing for work that ends within half a second. One thread at a time.
class Progress {
  public:
    /// `unit`: "B" prints sizes in MiB and GiB, anything else counts in thousands ("tok").
    Progress(const std::string& label, std::string unit);
    ~Progress();
    Progress(const Progress&) = delete;
    Progress& operator=(const Progress&) = delete;
    void update(int64_t done, int64_t total);

  private:
    std::string label_, unit_;
    std::chrono::steady_clock::time_point start_, drawn_;
    bool enabled_, visible_ = false;
};

/// True after the first Ctrl-C (SIGINT or SIGTERM), until a command that goes on makes it false.
std::atomic<bool>& interrupted();
/// True after a SIGTERM: there is nothing to go on with.
bool terminated();
/// Starts listening for Ctrl-C. Called by commands that can stop cleanly. The signal number `patience` while
/// interrupted() is true ends the process at once with status 130.
void catch_interrupts(int patience = 2);

/// Each of the standard streams that the caller has closed becomes one that takes or gives nothing. Otherwise the next
/// file that is opened would get its number, and with it what is meant for the stream. Writing to stdout fails then.
void open_standard_streams();

/// `text` as a terminal may have it: control characters (C0, DEL, C1), what turns the direction of text, what ends a
/// line in Unicode, and bytes that are no UTF-8, become \u001b or \x9b. (In JSON the former mean the same as before.)
/// `lines`: line ends and tabs stay.
std::string visible(std::string_view text, bool lines = false);

/// A text of several lines. As an argument of say() and tell() it keeps them.
struct Lines {
    std::string text;
};

/// An argument as say() and tell() print it.
template <class T>
decltype(auto) told(const T& value) {
    if constexpr (std::is_same_v<T, Lines>) return visible(value.text, true);
    else if constexpr (std::is_convertible_v<const T&, std::string_view>) return visible(value);
    else return (value);
}
template <class T>
using Told = std::remove_cvref_t<decltype(told(std::declval<const T&>()))>;

/// The one way from a format to a stream: whatever a file or a client has put into the arguments is visible().
template <class... Args>
void print_visible(std::FILE* to, fmt::string_view format, const Args&... args) {
    std::fputs(visible(fmt::vformat(format, fmt::make_format_args(args...)), true).c_str(), to);
}
/// For stderr. What nobody can read is no reason to fail.
template <class... Args>
void say(fmt::format_string<Told<Args>...> format, const Args&... args) {
    print_visible(stderr, format, told(args)...);
}
/// For stdout.
template <class... Args>
void tell(fmt::format_string<Told<Args>...> format, const Args&... args) {
    print_visible(stdout, format, told(args)...);
}
/// For stdout, byte for byte; visible() if that is a terminal. REQUIRES: a character is in one text.
void put_text(std::string_view text);

/// Flushes stdout. Throws Error (io) if not all that was written to it since the start has arrived; a pipe whose reader
/// has gone has had what it wanted.
void finish_output();

/// Is stdout a terminal (colours allowed)?
bool stdout_is_terminal();

/// "12.3 GiB", "640 KiB".
std::string human_bytes(int64_t bytes);
/// 20270574592 -> "20,270,574,592".
std::string grouped(int64_t number);

}  // namespace riptide::apps
