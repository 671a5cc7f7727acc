#include "apps/support/terminal.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "text/utf8.h"

namespace riptide::apps {

namespace {

using Clock = std::chrono::steady_clock;

// The only things that a signal handler may touch.
std::atomic<bool> g_interrupted{false}, g_terminated{false};
std::atomic<int> g_signals{0}, g_patience{2};

extern "C" void on_interrupt(int number) {
    if (number == SIGTERM) g_terminated = true;
    if (!g_interrupted.exchange(true)) g_signals = 0;
    if (++g_signals >= g_patience) _exit(130);
}

std::string amount(double value, const std::string& unit) {
    if (unit == "B") return human_bytes(static_cast<int64_t>(value));
    return value < 10000 ? fmt::format("{:.0f} {}", value, unit) : fmt::format("{:.1f}K {}", value / 1000, unit);
}

/// C0, DEL, C1; marks, embeddings, overrides and isolates of direction; line and paragraph separators.
bool is_hidden(char32_t c) {
    return c < 0x20 || (c >= 0x7f && c < 0xa0) || c == 0x61c || c == 0x200e || c == 0x200f ||
           (c >= 0x2028 && c <= 0x202e) || (c >= 0x2066 && c <= 0x2069);
}

}  // namespace

Progress::Progress(const std::string& label, std::string unit)
    : label_(visible(label)), unit_(std::move(unit)), start_(Clock::now()), drawn_(start_), enabled_(isatty(2) == 1) {}

Progress::~Progress() {
    if (visible_) std::fputs("\r\033[K", stderr);
}

void Progress::update(int64_t done, int64_t total) {
    if (!enabled_ || total <= 0) return;
    const auto now = Clock::now();
    const double elapsed = std::chrono::duration<double>(now - start_).count();
    if (elapsed < 0.5 || (now - drawn_ < std::chrono::milliseconds(80) && done < total)) return;
    drawn_ = now;
    visible_ = true;
    const double share = std::clamp(static_cast<double>(done) / static_cast<double>(total), 0.0, 1.0);
    const double rate = static_cast<double>(done) / elapsed;
    const int width = 28, filled = static_cast<int>(share * width);
    const std::string bar =
        std::string(static_cast<size_t>(filled), '#') + std::string(static_cast<size_t>(width - filled), '.');
    const double left = rate > 0 ? static_cast<double>(total - done) / rate : 0;
    const std::string line = fmt::format("\r\033[K{} [{}] {:3.0f}%  {}  {}/s  {:.0f} s left", label_, bar, 100 * share,
                                         amount(static_cast<double>(done), unit_), amount(rate, unit_), left);
    std::fputs(line.c_str(), stderr);
    std::fflush(stderr);
}

std::atomic<bool>& interrupted() { return g_interrupted; }

bool terminated() { return g_terminated; }

void catch_interrupts(int patience) {
    g_patience = patience;
    struct sigaction action = {};
    action.sa_handler = on_interrupt;
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, nullptr);
    sigaction(SIGTERM, &action, nullptr);
    signal(SIGPIPE, SIG_IGN);
}

void open_standard_streams() {
    for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
        if (::fcntl(stream, F_GETFD) >= 0 || errno != EBADF) continue;
        // The lowest number that is free is this one. Not writable for stdout: a lost answer must not look like a good
        // end.
        (void)::open("/dev/null", stream == STDERR_FILENO ? O_WRONLY : O_RDONLY);
    }
}

void finish_output() {
    const int code = std::fflush(stdout) != 0 ? errno : 0;
    if (code == 0 && std::ferror(stdout) == 0) return;
    pollfd state{STDOUT_FILENO, POLLOUT, 0};
    if (::poll(&state, 1, 0) > 0 && (state.revents & (POLLERR | POLLHUP)) != 0) return;
    fail(ErrorKind::io, "standard output cannot be written{}{}: what came out is cut short", code != 0 ? ": " : "",
         code != 0 ? std::strerror(code) : "");
}

std::string visible(std::string_view text, bool lines) {
    std::string out;
    out.reserve(text.size());
    for (std::size_t at = 0; at < text.size();) {
        const Utf8Char c = utf8_at(text, at);
        const std::string_view bytes = text.substr(at, static_cast<std::size_t>(c.length));
        at += bytes.size();
        if (c.kind != Utf8Char::Kind::character)
            for (const char byte : bytes) out += fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
        else if (is_hidden(c.code_point) && !(lines && (bytes == "\n" || bytes == "\t")))
            out += fmt::format("\\u{:04x}", static_cast<uint32_t>(c.code_point));
        else out += bytes;
    }
    return out;
}

void put_text(std::string_view text) {
    const std::string shown = stdout_is_terminal() ? visible(text, true) : std::string(text);
    std::fwrite(shown.data(), 1, shown.size(), stdout);
}

bool stdout_is_terminal() { return isatty(1) == 1; }

std::string human_bytes(int64_t bytes) {
    const double b = static_cast<double>(bytes);
    if (b < 1024) return fmt::format("{} B", bytes);
    if (b < 1024.0 * 1024) return fmt::format("{:.1f} KiB", b / 1024);
    if (b < 1024.0 * 1024 * 1024) return fmt::format("{:.1f} MiB", b / (1024.0 * 1024));
    return fmt::format("{:.2f} GiB", b / (1024.0 * 1024 * 1024));
}

std::string grouped(int64_t number) {
    std::string digits = std::to_string(number < 0 ? -number : number);
    for (int at = static_cast<int>(digits.size()) - 3; at > 0; at -= 3) digits.insert(static_cast<size_t>(at), ",");
    return number < 0 ? "-" + digits : digits;
}

}  // namespace riptide::apps
