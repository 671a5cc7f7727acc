// What systemd wants to hear from a service, over the socket that it names (sd_notify(3), without its library).
#pragma once

#include <chrono>
#include <string>

namespace riptide::apps {

class Systemd {
  public:
    /// Reads NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID; without them all functions do nothing.
    Systemd();

    void ready(const std::string& status) { send("READY=1\nSTATUS=" + status); }
    void stopping() { send("STOPPING=1"); }
    /// To be called often: tells the watchdog, twice in its interval, that the service lives.
    void alive();

  private:
    void send(const std::string& message) const;

    std::string socket_;
    std::chrono::microseconds interval_{0};  // 0: no watchdog
    std::chrono::steady_clock::time_point last_{};
};

}  // namespace riptide::apps
