#include "apps/events/kv_events.h"

#include <zmq.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <optional>
#include <string_view>
#include <thread>
#include <vector>

#include "apps/events/kv_event_log.h"
#include "base/error.h"

namespace riptide::apps {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kPause{50};
constexpr std::chrono::seconds kBetweenRenewals{5};
constexpr int kLinger = 200;              // ms that the last message gets
constexpr int kMostReplayed = 1 << 14;    // messages that wait for one client: more than an epoch keeps
constexpr int kRequestsAtOnce = 16;       // between two looks at the cache
constexpr int64_t kMostRequest = 1 << 8;  // bytes of a frame that others send
constexpr std::string_view kEnd("\xff\xff\xff\xff\xff\xff\xff\xff", 8);

struct Terminate {
    void operator()(void* context) const {
        while (zmq_ctx_term(context) != 0 && zmq_errno() == EINTR) {
        }
    }
};
struct Close {
    void operator()(void* socket) const { zmq_close(socket); }
};
using Context = std::unique_ptr<void, Terminate>;
using Socket = std::unique_ptr<void, Close>;
using Payload = std::shared_ptr<const std::string>;

void set(void* socket, int option, int value) { RT_ASSERT(zmq_setsockopt(socket, option, &value, sizeof value) == 0); }

Socket bound(void* context, int type, const char* flag, const std::string& endpoint, int most_waiting) {
    RT_CHECK(endpoint.starts_with("tcp://") || endpoint.starts_with("ipc://"), ErrorKind::usage,
             "{} {}: expected tcp://ADDRESS:PORT or ipc://PATH", flag, endpoint);
    Socket socket(zmq_socket(context, type));
    RT_CHECK(socket != nullptr, ErrorKind::system, "{}: a socket cannot be made: {}", flag, zmq_strerror(zmq_errno()));
    set(socket.get(), ZMQ_LINGER, kLinger);
    set(socket.get(), ZMQ_SNDHWM, most_waiting);
    const int64_t most = kMostRequest;
    RT_ASSERT(zmq_setsockopt(socket.get(), ZMQ_MAXMSGSIZE, &most, sizeof most) == 0);
    if (endpoint.find('[') != std::string::npos) set(socket.get(), ZMQ_IPV6, 1);
    if (type == ZMQ_XPUB) set(socket.get(), ZMQ_XPUB_VERBOSE, 1);
    if (type == ZMQ_ROUTER) set(socket.get(), ZMQ_ROUTER_MANDATORY, 1);  // else what has no room is dropped in silence
    RT_CHECK(zmq_bind(socket.get(), endpoint.c_str()) == 0, ErrorKind::unavailable, "{} {}: cannot be bound: {}", flag,
             endpoint, zmq_strerror(zmq_errno()));
    return socket;
}

std::string endpoint_of(void* socket) {
    std::array<char, 512> text{};
    size_t size = text.size();
    RT_ASSERT(zmq_getsockopt(socket, ZMQ_LAST_ENDPOINT, text.data(), &size) == 0);
    return text.data();
}

/// Never waits. False when there is no room.
bool send(void* socket, std::string_view frame, bool more) {
    return zmq_send(socket, frame.data(), frame.size(), ZMQ_DONTWAIT | (more ? ZMQ_SNDMORE : 0)) >= 0;
}

/// The last frame: shared with all who wait for it, not copied.
bool send_payload(void* socket, const Payload& payload) {
    auto* const shared = new Payload(payload);
    zmq_msg_t message;
    const auto release = [](void*, void* hint) { delete static_cast<Payload*>(hint); };
    zmq_msg_init_data(&message, const_cast<char*>(payload->data()), payload->size(), release, shared);
    if (zmq_msg_send(&message, socket, ZMQ_DONTWAIT) >= 0) return true;
    zmq_msg_close(&message);
    return false;
}

std::string number_frame(uint64_t number) {
    std::string out;
    for (int shift = 56; shift >= 0; shift -= 8) out += static_cast<char>(number >> shift);
    return out;
}

/// All frames of one message; nothing when none is there.
std::vector<std::string> receive(void* socket) {
    std::vector<std::string> frames;
    for (int more = 1; more != 0;) {
        zmq_msg_t message;
        zmq_msg_init(&message);
        if (zmq_msg_recv(&message, socket, ZMQ_DONTWAIT) < 0) {
            zmq_msg_close(&message);
            return {};
        }
        more = zmq_msg_more(&message);
        if (frames.size() < 4)
            frames.emplace_back(static_cast<const char*>(zmq_msg_data(&message)), zmq_msg_size(&message));
        zmq_msg_close(&message);
    }
    return frames;
}

double unix_time() {
    return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

struct KvEvents::Impl {
    Impl(const KvEventsOptions& options, std::shared_ptr<CacheFeed> changes)
        : topic(options.topic),
          feed(std::move(changes)),
          log(*feed, {.disk = options.disk, .form = options.form}),
          context(zmq_ctx_new()),
          publisher(bound(context.get(), ZMQ_XPUB, "--kv-events", options.endpoint, kMostWaiting)),
          endpoint(endpoint_of(publisher.get())) {
        if (options.replay.empty()) return;
        replayer = bound(context.get(), ZMQ_ROUTER, "--kv-events-replay", options.replay, kMostReplayed);
        replay = endpoint_of(replayer.get());
    }

    void run() {
        auto due = Clock::now();
        while (!stopping) {
            wait(due);
            hear_subscribers();
            if (replayer) answer_replays();
            if (Clock::now() < due) continue;
            due = Clock::now() + kPause;
            if (subscribed && (!renewed || due - *renewed >= kBetweenRenewals)) {
                log.renew();
                subscribed = false;
                renewed = due;
            }
            for (const KvEventMessage& message : log.next(unix_time())) publish(message);
        }
        publish(log.last(unix_time()));
    }

    void wait(Clock::time_point until) {
        std::array<zmq_pollitem_t, 2> items{{{publisher.get(), 0, ZMQ_POLLIN, 0}, {replayer.get(), 0, ZMQ_POLLIN, 0}}};
        const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
        zmq_poll(items.data(), replayer ? 2 : 1, std::max<long>(0, left));  // an interrupted wait is a short one
    }

    void publish(const KvEventMessage& message) {
        if (send(publisher.get(), topic, true) && send(publisher.get(), number_frame(message.sequence), true))
            send_payload(publisher.get(), message.payload);
    }

    /// A frame of 1 and what topics begin with, or 0 and what they no longer need begin with.
    void hear_subscribers() {
        for (std::vector<std::string> frames = receive(publisher.get()); !frames.empty();
             frames = receive(publisher.get()))
            if (!replayer && frames[0].starts_with('\1') && topic.starts_with(frames[0].substr(1))) subscribed = true;
    }

    void answer_replays() {
        for (int i = 0; i < kRequestsAtOnce; ++i) {
            const std::vector<std::string> frames = receive(replayer.get());
            if (frames.empty()) return;
            if (frames.size() == 3 && frames[1].empty() && frames[2].size() == 8) answer(frames[0], frames[2]);
        }
    }

    /// A client that has no room for all of it misses the end, and knows that by it.
    void answer(const std::string& client, const std::string& number) {
        uint64_t from = 0;
        for (const char byte : number) from = from << 8 | static_cast<uint8_t>(byte);
        void* const to = replayer.get();
        const auto begin = [&](std::string_view name, std::string_view sequence) {
            return send(to, client, true) && send(to, "", true) && send(to, name, true) && send(to, sequence, true);
        };
        for (uint64_t i = from; i < log.kept().size(); ++i)
            if (!begin(topic, number_frame(i)) || !send_payload(to, log.kept()[i].payload)) return;
        if (begin("", kEnd)) send(to, "", false);
    }

    std::string topic;
    std::shared_ptr<CacheFeed> feed;
    KvEventLog log;
    Context context;
    Socket publisher, replayer;
    std::string endpoint, replay;
    bool subscribed = false;                   // and has been told nothing yet
    std::optional<Clock::time_point> renewed;  // for the last time, for subscribers
    std::atomic<bool> stopping = false;
    std::thread thread;
};

bool KvEvents::available() { return true; }

KvEvents::KvEvents(const KvEventsOptions& options, std::shared_ptr<CacheFeed> feed)
    : impl_(std::make_unique<Impl>(options, std::move(feed))) {
    impl_->thread = std::thread([impl = impl_.get()] { impl->run(); });
}

KvEvents::~KvEvents() {
    impl_->stopping = true;
    impl_->thread.join();
}

const std::string& KvEvents::endpoint() const { return impl_->endpoint; }
const std::string& KvEvents::replay() const { return impl_->replay; }

}  // namespace riptide::apps
