// Lines for stderr that never hold anybody up.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <thread>

namespace riptide::apps {

/// A thread writes; who logs only queues. If stderr takes nothing (a full pipe), lines are dropped, and their number is
/// said later; if it is closed, they are lost. Thread-safe.
class LogWriter {
  public:
    LogWriter();
    /// Writes what is queued, unless stderr takes nothing.
    ~LogWriter();
    LogWriter(const LogWriter&) = delete;
    LogWriter& operator=(const LogWriter&) = delete;

    /// The line as visible() shows it.
    void write(const std::string& line);

  private:
    void run();

    std::mutex mutex_;
    std::condition_variable news_;
    std::deque<std::string> lines_;
    int64_t dropped_ = 0;
    bool stopping_ = false;
    std::thread thread_;
};

}  // namespace riptide::apps
