#include "server/http/reply_ending.h"

namespace riptide::server {

namespace {

using How = ReplyEnding::How;

std::pair<int, std::string> told_of(const ReplyEnding& ending) {
    if (ending.how == How::mistake) return {500, "the server has made a mistake"};
    return {503, "the answer was broken off: the server stops"};
}

}  // namespace

ReplyGuard::~ReplyGuard() {
    reply.events->close();
    if (is.how != How::complete) reply.cancel();
    reply.ended(is);
}

void take_all(PendingReply& reply, const std::vector<Item>& items, std::string& out, ReplyEnding& ending) {
    try {
        for (const Item& item : items) {
            if (!reply.take(item, out)) continue;
            ending.how = How::complete;
            return;
        }
    } catch (const std::exception& error) {
        ending = {How::mistake, error.what()};
    }
}

void tell_ending(const PendingReply& reply, const ReplyEnding& ending, std::string& out) {
    if (ending.how == How::client_gone || ending.how == How::complete) return;
    const auto [status, message] = told_of(ending);
    reply.abort(status, message, out);
}

HttpReply whole_of(const PendingReply& reply, ReplyEnding& ending) {
    try {
        if (ending.how == How::complete) return reply.finish();
    } catch (const std::exception& error) {
        ending = {How::mistake, error.what()};
    }
    const auto [status, message] = told_of(ending);
    return reply.refusal(status, message);
}

}  // namespace riptide::server
