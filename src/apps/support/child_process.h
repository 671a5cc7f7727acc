// Programs that riptide starts.
#pragma once

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

namespace riptide::apps {

/// Runs until it is told to end, or until this object goes (SIGTERM, and SIGKILL after some seconds).
class ChildProcess {
  public:
    struct Start {
        std::vector<std::string> command;                              // a path, then arguments
        std::vector<std::pair<std::string, std::string>> environment;  // in place of or beside this process's own
        std::string log;         // a file for stdout and stderr; empty: this process's own
        bool own_group = false;  // Ctrl-C at the terminal does not reach it
        std::string input;       // a file for stdin; empty: this process's own
    };
    /// Throws Error (system).
    explicit ChildProcess(const Start& start);
    ~ChildProcess();
    ChildProcess(const ChildProcess&) = delete;
    ChildProcess& operator=(const ChildProcess&) = delete;

    bool running();
    /// Waits for the end: its exit status, or 128 and the signal that ended it.
    int wait();
    /// Leaves it alone from now on.
    void release() { pid_ = -1; }

  private:
    pid_t pid_ = -1;
    int status_ = -1;  // of waitpid; -1: not ended
};

}  // namespace riptide::apps
