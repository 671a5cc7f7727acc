#include "apps/support/child_process.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <thread>

#include "base/error.h"

namespace riptide::apps {

namespace {

constexpr std::chrono::seconds kPatience{10};

std::vector<std::string> merged_environment(const std::vector<std::pair<std::string, std::string>>& changes) {
    std::vector<std::string> out;
    for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
        const std::string text = *entry;
        bool changed = false;
        for (const auto& [name, value] : changes) changed = changed || text.starts_with(name + "=");
        if (!changed) out.push_back(text);
    }
    for (const auto& [name, value] : changes) out.push_back(name + "=" + value);
    return out;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
    std::vector<char*> out;
    for (std::string& text : texts) out.push_back(text.data());
    out.push_back(nullptr);
    return out;
}

/// Closed when it goes. Without a path: none.
struct OpenFile {
    OpenFile(const std::string& path, int flags) {
        if (path.empty()) return;
        number = ::open(path.c_str(), flags | O_CLOEXEC, 0600);
        if (number < 0) fail(ErrorKind::io, "{}: {}", path, std::strerror(errno));
    }
    ~OpenFile() {
        if (number >= 0) ::close(number);
    }
    OpenFile(const OpenFile&) = delete;
    OpenFile& operator=(const OpenFile&) = delete;
    int number = -1;
};

}  // namespace

ChildProcess::ChildProcess(const Start& start) {
    std::vector<std::string> command = start.command, variables = merged_environment(start.environment);
    std::vector<char*> arguments = pointers(command), environment = pointers(variables);
    const OpenFile log(start.log, O_WRONLY | O_CREAT | O_APPEND), input(start.input, O_RDONLY);
    pid_ = ::fork();
    if (pid_ == 0) {  // only what is safe between fork and exec
        if (start.own_group) ::setpgid(0, 0);
        if (input.number >= 0) ::dup2(input.number, STDIN_FILENO);
        if (log.number >= 0) {
            ::dup2(log.number, STDOUT_FILENO);
            ::dup2(log.number, STDERR_FILENO);
        }
        for (const int number : {SIGINT, SIGTERM, SIGPIPE, SIGQUIT}) ::signal(number, SIG_DFL);
        ::execve(arguments[0], arguments.data(), environment.data());
        ::_exit(127);
    }
    if (pid_ < 0) fail(ErrorKind::system, "{}: cannot be started: {}", start.command.at(0), std::strerror(errno));
}

ChildProcess::~ChildProcess() {
    if (!running()) return;
    ::kill(pid_, SIGTERM);
    const auto until = std::chrono::steady_clock::now() + kPatience;
    while (running() && std::chrono::steady_clock::now() < until)
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
    if (!running()) return;
    ::kill(pid_, SIGKILL);
    wait();
}

bool ChildProcess::running() {
    if (pid_ < 0 || status_ >= 0) return false;
    int status = 0;
    if (::waitpid(pid_, &status, WNOHANG) != pid_) return true;
    status_ = status;
    return false;
}

int ChildProcess::wait() {
    while (pid_ >= 0 && status_ < 0) {
        int status = 0;
        if (::waitpid(pid_, &status, 0) == pid_) status_ = status;
        else if (errno != EINTR) break;
    }
    return WIFEXITED(status_) ? WEXITSTATUS(status_) : 128 + WTERMSIG(status_);
}

}  // namespace riptide::apps
