// What a person at a terminal sees and can do: output, progress bars, colours, Ctrl-C.
#pragma once

#include <fmt/core.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>

namespace riptide::apps {

/// A bar on stderr for long work: label, share, amount, rate, time left. Draws nothing unless stderr is a terminal, and
/// nothing for work that ends within half a second. One thread at a time.
class Progress {
  public:
    /// `unit`: "B" prints sizes in MiB and GiB, anything else counts in thousands ("tok").
    Progress(std::string label, std::string unit);
    ~Progress();
    Progress(const Progress&) = delete;
    Progress& operator=(const Progress&) = delete;
    void update(int64_t done, int64_t total);

  private:
    std::string label_, unit_;
    std::chrono::steady_clock::time_point start_, drawn_;
    bool enabled_, visible_ = false;
};

/// True after the first Ctrl-C (SIGINT or SIGTERM). The second ends the process at once with status 130.
std::atomic<bool>& interrupted();
/// Starts listening for Ctrl-C. Called by commands that can stop cleanly.
void catch_interrupts();

/// Each of the standard streams that the caller has closed becomes one that takes or gives nothing. Otherwise the next
/// file that is opened would get its number, and with it what is meant for the stream. Writing to stdout fails then.
void open_standard_streams();

/// For stderr. What nobody can read is no reason to fail.
template <class... Args>
void say(fmt::format_string<Args...> format, Args&&... args) {
    std::fputs(fmt::format(format, std::forward<Args>(args)...).c_str(), stderr);
}

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
