// Redis, or another server of its protocol: Valkey, KeyDB, Dragonfly.
//
// rk1:<name> holds 32 hexadecimal digits, the piece's size and a number of whoever wrote it, and behind them the first
// 4 MiB of the piece; rk1:<name>:<number>:<i> holds the i-th 4 MiB. Redis does one thing at a time, so nothing that it
// is asked is longer. rk1:<name> is written last: who finds it finds the rest, by the same writer. What nobody has
// used for a day goes by itself.
#include <fmt/format.h>
#include <hiredis/hiredis.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <initializer_list>
#include <new>
#include <optional>
#include <random>
#include <utility>

#include "base/error.h"
#include "base/percent.h"
#include "cache/shared/place.h"

namespace riptide {

namespace {

using RedisClock = std::chrono::steady_clock;

constexpr size_t kRedisPart = size_t{4} << 20, kRedisHead = 32, kRedisLine = 65536;
constexpr std::string_view kRedisKept = "86400";  // seconds
constexpr timeval kRedisConnect{.tv_sec = 0, .tv_usec = 200'000};
constexpr std::chrono::seconds kRedisAnswer{2};  // of a lookup, and of each part; a new connection has as much before
constexpr std::string_view kRedisCrowded = "ERR max number of clients";
constexpr size_t kMostRedisLinks = 8;  // that are kept

struct RedisAddress {
    std::string shown, host, socket, user, password, database;
    int port = 6379;
};

struct FreeRedisReply {
    void operator()(redisReply* reply) const { freeReplyObject(reply); }
};
using RedisReply = std::unique_ptr<redisReply, FreeRedisReply>;

std::string_view text_of(const redisReply& reply) { return {reply.str, static_cast<size_t>(reply.len)}; }

/// One connection. hiredis connects, and knows how questions and answers are written; they are sent and received here,
/// so that each has a deadline and no signal is raised.
class RedisLink {
  public:
    explicit RedisLink(const RedisAddress& at) {
        context_.reset(at.socket.empty() ? redisConnectWithTimeout(at.host.c_str(), at.port, kRedisConnect)
                                         : redisConnectUnixWithTimeout(at.socket.c_str(), kRedisConnect));
        lost_ = context_ == nullptr || context_->err != 0;
        // So that a server which has gone without a word is noticed; a lookup does not depend on it.
        if (!lost_ && at.socket.empty()) redisEnableKeepAlive(context_.get());
    }
    bool lost() const { return lost_; }
    /// Why it could not connect.
    std::string why() const { return context_ == nullptr ? "no memory" : context_->errstr; }
    /// Nothing is to be expected, and nothing came.
    bool quiet() const {
        pollfd one{.fd = context_->fd, .events = POLLIN, .revents = 0};
        return !lost_ && owed_ == 0 && context_->reader->len == context_->reader->pos && ::poll(&one, 1, 0) == 0;
    }
    /// All that is asked from now on is to be answered by then.
    void set_deadline(RedisClock::time_point until) { until_ = until; }
    void ask(std::initializer_list<std::string_view> words);
    /// The answer to the first question that has none yet; null: none comes, and the link is of no use any more.
    /// Answers of much more than `most` bytes are none.
    RedisReply answer(size_t most);

  private:
    bool ready(short events) const;
    bool send_all();
    bool receive(size_t most);

    struct Free {
        void operator()(redisContext* context) const { redisFree(context); }
    };
    std::unique_ptr<redisContext, Free> context_;
    std::string to_send_;
    RedisClock::time_point until_;
    int owed_ = 0;  // answers
    bool lost_ = false;
};

void RedisLink::ask(std::initializer_list<std::string_view> words) {
    std::vector<const char*> at;
    std::vector<size_t> bytes;
    for (const std::string_view word : words) {
        at.push_back(word.data());
        bytes.push_back(word.size());
    }
    char* command = nullptr;
    const auto size = redisFormatCommandArgv(&command, static_cast<int>(at.size()), at.data(), bytes.data());
    if (size < 0) throw std::bad_alloc();
    const std::unique_ptr<char, decltype(&redisFreeCommand)> owner(command, redisFreeCommand);
    to_send_.append(command, static_cast<size_t>(size));
    ++owed_;
}

bool RedisLink::ready(short events) const {
    for (;;) {
        const auto left = std::chrono::ceil<std::chrono::milliseconds>(until_ - RedisClock::now()).count();
        pollfd one{.fd = context_->fd, .events = events, .revents = 0};
        const int found = ::poll(&one, 1, static_cast<int>(std::max<int64_t>(0, left)));
        if (found >= 0 || errno != EINTR) return found > 0;
    }
}

bool RedisLink::send_all() {
    for (size_t sent = 0; sent < to_send_.size();) {
        if (!ready(POLLOUT)) return false;
        const ssize_t some =
            ::send(context_->fd, to_send_.data() + sent, to_send_.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (some < 0 && errno != EAGAIN && errno != EINTR) return false;
        sent += static_cast<size_t>(std::max<ssize_t>(0, some));
    }
    to_send_.clear();
    return true;
}

bool RedisLink::receive(size_t most) {
    redisReader& reader = *context_->reader;
    char bytes[kRedisLine];
    if (reader.len - reader.pos > most + kRedisLine || !ready(POLLIN)) return false;
    const ssize_t some = ::recv(context_->fd, bytes, sizeof bytes, MSG_DONTWAIT);
    if (some < 0) return errno == EAGAIN || errno == EINTR;
    return some > 0 && redisReaderFeed(&reader, bytes, static_cast<size_t>(some)) == REDIS_OK;
}

RedisReply RedisLink::answer(size_t most) {
    const bool sent = !lost_ && send_all();  // else what the server said before it ended the connection may be here
    redisReader& reader = *context_->reader;
    void* reply = nullptr;
    while (!lost_ && reply == nullptr) {
        if (reader.len == reader.pos) {
            lost_ = !receive(most);
            continue;
        }
        // Nothing that is asked has a list for an answer; hiredis would believe the length of one.
        const bool odd = reader.ridx == -1 && std::strchr("+-:$", reader.buf[reader.pos]) == nullptr;
        lost_ = odd || redisReaderGetReply(&reader, &reply) != REDIS_OK || (reply == nullptr && !receive(most));
    }
    lost_ = lost_ || !sent;
    --owed_;
    return RedisReply(static_cast<redisReply*>(reply));
}

/// What the head says.
struct RedisHead {
    int64_t bytes = 0;
    std::string_view number;

    static std::optional<RedisHead> of(std::string_view text) {
        if (text.size() < kRedisHead) return std::nullopt;
        RedisHead head{.number = text.substr(kRedisHead / 2, kRedisHead / 2)};
        const char* const middle = text.data() + kRedisHead / 2;
        const auto [end, error] = std::from_chars(text.data(), middle, head.bytes, 16);
        const bool well = error == std::errc() && end == middle && head.bytes >= 0 &&
                          head.number.find_first_not_of("0123456789abcdef") == std::string_view::npos;
        return well ? std::optional(head) : std::nullopt;
    }
};

class RedisPlace final : public SharedPlace {
  public:
    explicit RedisPlace(RedisAddress address) : address_(std::move(address)) {
        std::random_device random;
        next_ = uint64_t{random()} << 32 | random();
    }
    std::vector<int64_t> sizes(std::span<const std::string> names) override;
    Status get(const std::string& name, std::span<std::byte> to) override;
    Status put(const std::string& name, std::span<const std::byte> bytes) override;
    void erase(const std::string& name) override;

  private:
    using Link = std::unique_ptr<RedisLink>;

    static std::string key_of(const std::string& name) { return "rk1:" + name; }
    static std::string part_key(const std::string& name, std::string_view number, size_t i) {
        return fmt::format("rk1:{}:{}:{}", name, number, i);
    }
    Link take();
    Link connected();
    void give(Link link);
    Status status_of(const redisReply* reply, int expected);
    Status read(RedisLink& link, const std::string& key, size_t bytes, RedisReply& reply);
    Status write(RedisLink& link, const std::string& key, std::string_view value);
    static void remove(RedisLink& link, const std::string& name);

    const RedisAddress address_;
    std::atomic<uint64_t> next_;
    std::mutex mutex_;
    std::vector<Link> links_;  // under it: those that nobody uses
};

/// A link that is quiet, or a new one; null, and told: none can be had.
RedisPlace::Link RedisPlace::take() {
    {
        const std::lock_guard lock(mutex_);
        while (!links_.empty()) {
            Link link = std::move(links_.back());
            links_.pop_back();
            if (link->quiet()) return link;  // else the server has ended it
        }
    }
    return connected();
}

RedisPlace::Link RedisPlace::connected() {
    auto link = std::make_unique<RedisLink>(address_);
    if (link->lost()) {
        tell(fmt::format("{}: cannot be reached: {}", address_.shown, link->why()));
        return nullptr;
    }
    link->set_deadline(RedisClock::now() + kRedisAnswer);
    const bool authenticates = !address_.password.empty(), selects = !address_.database.empty();
    if (authenticates && address_.user.empty()) link->ask({"AUTH", address_.password});
    else if (authenticates) link->ask({"AUTH", address_.user, address_.password});
    if (selects) link->ask({"SELECT", address_.database});
    const RedisReply known = authenticates ? link->answer(0) : nullptr;
    const RedisReply selected = selects ? link->answer(0) : nullptr;
    // What the server says of it may hold the password, and is not told.
    const auto refused = [](const RedisReply& reply) {
        if (reply == nullptr || reply->type != REDIS_REPLY_ERROR) return false;
        return text_of(*reply).starts_with("ERR ") && !text_of(*reply).starts_with(kRedisCrowded);
    };
    if (refused(known)) tell(fmt::format("{}: does not take the password", address_.shown));
    else if (refused(selected)) tell(fmt::format("{}: has no database {}", address_.shown, address_.database));
    const bool well = (!authenticates || status_of(known.get(), REDIS_REPLY_STATUS) == Status::done) &&
                      (!selects || status_of(selected.get(), REDIS_REPLY_STATUS) == Status::done);
    return well ? std::move(link) : nullptr;
}

void RedisPlace::give(Link link) {
    const std::lock_guard lock(mutex_);
    if (!link->lost() && links_.size() < kMostRedisLinks) links_.push_back(std::move(link));
}

/// Done: it is an answer of the kind expected. What is under a key but is no text is none of ours.
SharedPlace::Status RedisPlace::status_of(const redisReply* reply, int expected) {
    if (reply == nullptr) return Status::failed;
    if (reply->type == expected) return Status::done;
    if (reply->type == REDIS_REPLY_NIL) return Status::missing;
    if (reply->type != REDIS_REPLY_ERROR) return Status::failed;
    const std::string_view text = text_of(*reply);
    if (text.starts_with("WRONGTYPE")) return Status::missing;
    constexpr std::pair<std::string_view, std::string_view> kMeanings[] = {
        {"NOAUTH", "wants a password"},
        {"WRONGPASS", "does not take the password"},
        {"DENIED", "is in protected mode: give it a password (requirepass)"},
        {kRedisCrowded, "has as many clients as it takes (maxclients)"},
        {"NOPERM", "does not let this user do GETRANGE, SET, EXPIRE and DEL of rk1:*"},
        {"OOM", "is full and keeps what it has: set maxmemory-policy allkeys-lru"},
        {"READONLY", "can only be read: it is a replica of another"},
        {"MISCONF", "takes nothing while it cannot save to its disk: set save ''"},
        {"MOVED", "is a cluster, which is not supported"},
        {"CROSSSLOT", "is a cluster, which is not supported"},
    };
    for (const auto& [known, meaning] : kMeanings)
        if (text.starts_with(known)) tell(fmt::format("{}: {}", address_.shown, meaning));
    return Status::failed;
}

std::vector<int64_t> RedisPlace::sizes(std::span<const std::string> names) {
    Link link = take();
    if (link == nullptr) return {};
    link->set_deadline(RedisClock::now() + kRedisAnswer);
    for (const std::string& name : names) link->ask({"GETRANGE", key_of(name), "0", "31"});
    std::vector<int64_t> sizes;
    for (size_t i = 0; i < names.size(); ++i) {
        const RedisReply reply = link->answer(kRedisHead);
        const Status status = status_of(reply.get(), REDIS_REPLY_STRING);
        if (status == Status::failed) return {};  // and the link goes: more answers may come
        const auto head = status == Status::done ? RedisHead::of(text_of(*reply)) : std::nullopt;
        sizes.push_back(head ? head->bytes : -1);
    }
    give(std::move(link));
    return sizes;
}

/// Done: `reply` is a value of so many bytes, which is kept for another day.
SharedPlace::Status RedisPlace::read(RedisLink& link, const std::string& key, size_t bytes, RedisReply& reply) {
    link.set_deadline(RedisClock::now() + kRedisAnswer);
    link.ask({"GETRANGE", key, "0", std::to_string(bytes)});  // a byte more, by which a value that is too long is known
    link.ask({"EXPIRE", key, kRedisKept});
    reply = link.answer(bytes);
    const RedisReply kept = link.answer(0);  // or not: a replica that can only be read says no
    const Status status = status_of(reply.get(), REDIS_REPLY_STRING);
    if (status != Status::done || kept == nullptr) return status == Status::missing ? status : Status::failed;
    return text_of(*reply).size() == bytes ? Status::done : Status::missing;
}

SharedPlace::Status RedisPlace::get(const std::string& name, std::span<std::byte> to) {
    Link link = take();
    if (link == nullptr) return Status::failed;
    RedisReply first, reply;
    const auto some = to.first(std::min(to.size(), kRedisPart));
    Status status = read(*link, key_of(name), kRedisHead + some.size(), first);
    const auto head = status == Status::done ? RedisHead::of(text_of(*first)) : std::nullopt;
    if (status == Status::done && (!head || head->bytes != std::ssize(to))) status = Status::missing;
    if (status == Status::done) std::memcpy(some.data(), first->str + kRedisHead, some.size());
    for (size_t at = some.size(); status == Status::done && at < to.size(); at += kRedisPart) {
        const auto part = to.subspan(at, std::min(kRedisPart, to.size() - at));
        status = read(*link, part_key(name, head->number, at / kRedisPart), part.size(), reply);
        if (status == Status::done) std::memcpy(part.data(), reply->str, part.size());
        if (status == Status::missing) remove(*link, name);  // else it would be found for as long as it is asked for
    }
    if (status != Status::failed) give(std::move(link));
    return status;
}

SharedPlace::Status RedisPlace::write(RedisLink& link, const std::string& key, std::string_view value) {
    link.set_deadline(RedisClock::now() + kRedisAnswer);
    link.ask({"SET", key, value, "EX", kRedisKept});
    return status_of(link.answer(0).get(), REDIS_REPLY_STATUS) == Status::done ? Status::done : Status::failed;
}

SharedPlace::Status RedisPlace::put(const std::string& name, std::span<const std::byte> bytes) {
    Link link = take();
    if (link == nullptr) return Status::failed;
    const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    const std::string number = fmt::format("{:016x}", next_++);
    Status status = Status::done;
    for (size_t at = kRedisPart; status == Status::done && at < text.size(); at += kRedisPart)
        status = write(*link, part_key(name, number, at / kRedisPart), text.substr(at, kRedisPart));
    if (status == Status::done)
        status = write(*link, key_of(name),
                       fmt::format("{:016x}{}", text.size(), number).append(text.substr(0, kRedisPart)));
    if (status == Status::done) give(std::move(link));
    return status;
}

/// What lies under other keys goes with its day.
void RedisPlace::remove(RedisLink& link, const std::string& name) {
    link.set_deadline(RedisClock::now() + kRedisAnswer);
    link.ask({"DEL", key_of(name)});
    link.answer(0);
}

void RedisPlace::erase(const std::string& name) {
    Link link = take();
    if (link == nullptr) return;
    remove(*link, name);
    give(std::move(link));
}

bool is_number(std::string_view text, int64_t most, int64_t& number) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    return error == std::errc() && end == text.data() + text.size() && number >= 0 && number <= most;
}

}  // namespace

std::shared_ptr<SharedPlace> open_redis_place(std::string_view address, const SharedAccess& access) {
    RedisAddress at{.shown = without_password(address), .password = access.redis_password};
    std::string_view rest = address.substr(address.find("://") + 3);
    if (const size_t user_end = rest.rfind('@'); user_end != std::string_view::npos) {
        const std::string_view user = rest.substr(0, user_end);
        const size_t colon = user.find(':');
        RT_CHECK(colon != std::string_view::npos, ErrorKind::usage, "{}: what is in front of @ is no USER:PASSWORD",
                 at.shown);
        at.user = percent_decoded(user.substr(0, colon));
        if (colon + 1 < user.size()) at.password = percent_decoded(user.substr(colon + 1));
        rest = rest.substr(user_end + 1);
    }
    int64_t number = 0;
    if (address.starts_with("redis+unix:")) {
        at.socket = percent_decoded(rest);
        RT_CHECK(rest.starts_with('/') && rest.size() > 1, ErrorKind::usage, "{}: expected redis+unix:///a/socket",
                 at.shown);
        return std::make_shared<RedisPlace>(std::move(at));
    }
    const size_t slash = std::min(rest.find('/'), rest.size());
    std::string_view host = rest.substr(0, slash), database = rest.substr(std::min(slash + 1, rest.size()));
    const size_t port = host.find(':', host.starts_with('[') ? std::min(host.find(']'), host.size()) : 0);
    bool well = database.empty() || is_number(database, 1 << 20, number);
    if (port != std::string_view::npos) {
        well = well && is_number(host.substr(port + 1), 65535, number) && number > 0;
        at.port = static_cast<int>(number);
        host = host.substr(0, port);
    }
    if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
    RT_CHECK(well && !host.empty(), ErrorKind::usage, "{}: expected redis://[[USER]:PASSWORD@]HOST[:PORT][/DATABASE]",
             at.shown);
    at.host = host;
    if (database != "0") at.database = database;
    return std::make_shared<RedisPlace>(std::move(at));
}

}  // namespace riptide
