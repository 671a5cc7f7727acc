// From the events of a pending reply to how it ends. Internal to the HTTP server.
#pragma once

#include <string>
#include <vector>

#include "server/http/message.h"

namespace riptide::server {

/// Whatever happens, the engine learns that nobody waits any more.
struct ReplyGuard {
    PendingReply& reply;
    ReplyEnding is = {};

    explicit ReplyGuard(PendingReply& r) : reply(r) {}
    ~ReplyGuard();
    ReplyGuard(const ReplyGuard&) = delete;
    ReplyGuard& operator=(const ReplyGuard&) = delete;
};

/// Takes `items` and says in `ending` if the reply is complete, or a mistake.
void take_all(PendingReply& reply, const std::vector<Item>& items, std::string& out, ReplyEnding& ending);

/// Appends the error of a stream that ends before its time; nothing for others. What a mistake was is not the client's:
/// `ending.why` is for the log.
void tell_ending(const PendingReply& reply, const ReplyEnding& ending, std::string& out);

/// What is sent in place of a stream. A reply that cannot be made turns `ending` into a mistake.
HttpReply whole_of(const PendingReply& reply, ReplyEnding& ending);

}  // namespace riptide::server
