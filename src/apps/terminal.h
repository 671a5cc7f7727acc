// What a person at a terminal sees and can do: progress bars, colours, Ctrl-C.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>

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

/// Is stdout a terminal (colours allowed)?
bool stdout_is_terminal();

/// "12.3 GiB", "640 KiB".
std::string human_bytes(int64_t bytes);
/// 20270574592 -> "20,270,574,592".
std::string grouped(int64_t number);

}  // namespace riptide::apps
