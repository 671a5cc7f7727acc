#include "apps/chat/typed_line.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>

#include "apps/support/terminal.h"

namespace riptide::apps {

namespace {

constexpr int kLookMilliseconds = 100;  // a signal may be taken by another thread, and then wakes nobody here

}  // namespace

int InputBytes::next() {
    while (at_ == size_) {
        if (interrupted()) return kInterrupted;
        pollfd input{STDIN_FILENO, POLLIN, 0};
        if (::poll(&input, 1, kLookMilliseconds) <= 0) continue;
        const ssize_t got = ::read(STDIN_FILENO, held_.data(), held_.size());
        if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
        if (got <= 0) return kEnd;
        at_ = 0;
        size_ = static_cast<std::size_t>(got);
    }
    return held_[at_++];
}

TypedLine read_plain_line(InputBytes& bytes) {
    TypedLine line;
    for (int byte = 0; (byte = bytes.next()) != '\n';) {
        if (byte == InputBytes::kInterrupted) return {TypedLine::Kind::interrupted, ""};
        if (byte == InputBytes::kEnd) {
            if (line.text.empty()) line.kind = TypedLine::Kind::end;
            break;
        }
        line.text.push_back(static_cast<char>(byte));
    }
    if (line.text.ends_with('\r')) line.text.pop_back();
    return line;
}

}  // namespace riptide::apps
