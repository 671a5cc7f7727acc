#include "cache/shared/store.h"

#include <algorithm>
#include <system_error>
#include <thread>
#include <utility>

#include "base/error.h"
#include "cache/shared/state.h"

namespace riptide {

namespace {

constexpr int kSharedReaders = 4;
constexpr std::chrono::seconds kLastWait{1};
constexpr std::chrono::hours kKnownFor{12};  // where records go that nobody has used for a day

}  // namespace

SharedStore::SharedStore(std::shared_ptr<SharedPlace> place, const SealKey& key, std::function<void()> on_news,
                         std::chrono::milliseconds ask_again)
    : state_(std::make_shared<State>(std::move(place), key, std::move(on_news), ask_again)) {
    const auto start = [this](void (State::*work)(State::Lock&)) {
        const std::lock_guard lock(state_->mutex);
        std::thread([state = state_, work] { state->run(work); }).detach();
        ++state_->threads;
    };
    try {
        start(&State::write);
        for (int i = 0; i < kSharedReaders; ++i) start(&State::read);
    } catch (const std::system_error& error) {
        const std::lock_guard lock(state_->mutex);
        state_->stop = true;
        state_->to_read.notify_all();
        state_->to_write.notify_all();
        fail(ErrorKind::system, "the shared cache cannot have threads: {}", error.what());
    }
}

SharedStore::~SharedStore() {
    State& s = *state_;
    {
        const std::lock_guard hearing(s.news_mutex);
        s.on_news = nullptr;
    }
    std::vector<std::shared_ptr<SharedLoad>> loads;
    std::vector<HostBytes> blocks;
    State::Lock lock(s.mutex);
    s.stop = true;
    s.to_read.notify_all();
    s.to_write.notify_all();
    s.ended.wait_until(lock, ShareClock::now() + kLastWait, [&] { return s.threads == 0; });
    s.drop_writes();
    s.ended.wait(lock, [&] { return s.pinned == 0; });
    // Threads that hang find no load any more, and know nothing else of blocks.
    s.turn_off();
    loads.swap(s.ended_loads);
    blocks.swap(s.used);
    lock.unlock();
}

bool SharedStore::usable() const {
    const std::lock_guard lock(state_->mutex);
    return !state_->off;
}

void SharedStore::look(std::shared_ptr<SharedLookup> lookup) {
    const std::lock_guard lock(state_->mutex);
    lookup->there.assign(lookup->names.size(), 0);
    const bool off = state_->off, empty = lookup->names.empty();
    state_->lookups.push_back(std::make_shared<LookupAsk>(LookupAsk{std::move(lookup), ShareClock::now()}));
    if (off || empty) state_->settle(*state_->lookups.back(), off);
    state_->settle_all();
    state_->to_read.notify_one();
}

void SharedStore::load(std::shared_ptr<SharedLoad> load) {
    const std::lock_guard lock(state_->mutex);
    state_->loads.push_back(std::make_shared<LoadAsk>(LoadAsk{std::move(load), {}}));
    state_->settle_all();
    state_->to_read.notify_all();
}

void SharedStore::give_up() {
    const std::lock_guard lock(state_->mutex);
    state_->gave_up();
}

bool SharedStore::put_later(const Digest& name, int32_t tag, std::vector<HostBytes> parts) {
    const int64_t bytes = std::max<int64_t>(1, SharedWrite::bytes_of(parts));  // without a payload it waits, too
    const std::lock_guard lock(state_->mutex);
    if (state_->known.has(name)) return true;
    if (state_->off || ShareClock::now() < state_->write_at ||
        (state_->pending_bytes > 0 && state_->pending_bytes + bytes > kMostPending)) {
        ++state_->stats.dropped;
        state_->unwritten = true;
        return false;
    }
    state_->known.insert(name);
    state_->pending_bytes += bytes;
    state_->writes.push_back({name, tag, std::move(parts), bytes});
    state_->to_write.notify_one();
    return true;
}

bool SharedStore::known(const Digest& name) const {
    const std::lock_guard lock(state_->mutex);
    return state_->known.has(name);
}

void SharedStore::assume(std::span<const Digest> names) {
    const std::lock_guard lock(state_->mutex);
    for (const Digest& name : names) state_->known.insert(name);
}

int64_t SharedStore::losses() const {
    const std::lock_guard lock(state_->mutex);
    if (ShareClock::now() - state_->known_since > kKnownFor) state_->know_nothing();
    return state_->losses;
}

int64_t SharedStore::pending_bytes() const {
    const std::lock_guard lock(state_->mutex);
    return state_->pending_bytes;
}

void SharedStore::reap() {
    std::vector<std::shared_ptr<SharedLoad>> loads;
    std::vector<HostBytes> blocks;
    const std::lock_guard lock(state_->mutex);
    state_->settle_all();
    loads.swap(state_->ended_loads);
    blocks.swap(state_->used);
}

double SharedStore::read_rate() const {
    const std::lock_guard lock(state_->mutex);
    return state_->rate.value();
}

double SharedStore::lookup_seconds() const {
    const std::lock_guard lock(state_->mutex);
    return state_->lookup_time.value();
}

std::string SharedStore::problem() {
    const std::lock_guard lock(state_->mutex);
    return std::exchange(state_->problem, {});
}

SharedStore::Stats SharedStore::stats() const {
    const std::lock_guard lock(state_->mutex);
    return state_->stats;
}

}  // namespace riptide
