#include "apps/support/log_writer.h"

#include <fmt/core.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "apps/support/terminal.h"

namespace riptide::apps {

namespace {

constexpr std::size_t kMostLines = 4096;
constexpr int kPatienceMs = 1000;  // for the last lines

/// False: stderr takes nothing now.
bool takes_more(int milliseconds) {
    pollfd state{STDERR_FILENO, POLLOUT, 0};
    return ::poll(&state, 1, milliseconds) > 0;
}

void put(std::string_view text) {
    while (!text.empty()) {
        const auto written = ::write(STDERR_FILENO, text.data(), text.size());
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) return;  // nobody reads it, and there is nobody to tell
        text.remove_prefix(static_cast<std::size_t>(written));
    }
}

}  // namespace

LogWriter::LogWriter() : thread_([this] { run(); }) {}

LogWriter::~LogWriter() {
    {
        const std::lock_guard lock(mutex_);
        stopping_ = true;
        news_.notify_one();
    }
    thread_.join();
}

void LogWriter::write(const std::string& line) {
    const std::lock_guard lock(mutex_);
    if (lines_.size() >= kMostLines) {
        ++dropped_;
        return;
    }
    lines_.push_back(visible(line) + '\n');
    news_.notify_one();
}

void LogWriter::run() {
    std::unique_lock lock(mutex_);
    for (;;) {
        news_.wait(lock, [this] { return stopping_ || !lines_.empty(); });
        if (lines_.empty()) return;
        const std::string line = std::move(lines_.front());
        lines_.pop_front();
        const int64_t dropped = std::exchange(dropped_, 0);
        const bool last = stopping_;
        lock.unlock();
        bool ready = takes_more(kPatienceMs);
        while (!ready && !last) {
            lock.lock();
            const bool ending = stopping_;
            lock.unlock();
            if (ending) break;
            ready = takes_more(kPatienceMs);
        }
        if (!ready) return;
        put(line);
        if (dropped > 0) put(fmt::format("({} lines were lost: nobody read them)\n", dropped));
        lock.lock();
    }
}

}  // namespace riptide::apps
