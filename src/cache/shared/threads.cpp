#include <algorithm>
#include <exception>

#include "cache/shared/state.h"

namespace riptide {

namespace {

constexpr int kFailuresInARow = 3;
constexpr std::chrono::milliseconds kQuickAnswer{250};

/// What the place says; `failed` when there is not even the memory to ask it.
template <class T, class Ask>
T answer_or(T failed, const Ask& ask) {
    try {
        return ask();
    } catch (const std::exception&) {
        return failed;
    }
}

}  // namespace

void SharedStore::State::run(void (State::*work)(Lock&)) {
    Lock lock(mutex);
    (this->*work)(lock);
    --threads;
    ended.notify_all();
}

void SharedStore::State::turn_off() {
    off = true;
    ask_at = ShareClock::now() + ask_again;
    for (const auto& ask : lookups) settle(*ask, true);
    settle_all();
    to_read.notify_all();
}

void SharedStore::State::not_answered() {
    ++stats.errors;
    if (!problem.empty()) return;  // nobody has heard of the last
    problem = answer_or(std::string(), [&] { return place->problem(); });
    news = news || !problem.empty();
}

void SharedStore::State::failed_once() {
    not_answered();
    if (++failures >= kFailuresInARow && !off) turn_off();
}

void SharedStore::State::gave_up() {
    ++stats.gave_up;
    if (++late >= kFailuresInARow && !off) turn_off();
    settle_all();
}

/// Whatever was there may have gone.
void SharedStore::State::know_nothing() {
    known = {};
    known_since = ShareClock::now();
    ++losses;
}

void SharedStore::State::settle(LookupAsk& ask, bool failed) {
    if (ask.lookup == nullptr) return;
    ask.lookup->failed = failed;
    ask.lookup->done = true;
    ask.lookup = nullptr;
    news = true;
}

/// Ends a load that nobody works on any more, or whose answers nobody waits for. One that broke off at a missing record
/// says nothing of the rate: it may have read a record or two beside it.
void SharedStore::State::settle(LoadAsk& ask) {
    if (ask.load == nullptr || ask.pinned > 0) return;
    SharedLoad& load = *ask.load;
    const bool whole = ask.reading == 0 && (load.failed || ask.next == load.pieces.size());
    if (!whole && !load.cancel && !off) return;
    const bool broke_off = whole && load.failed;
    if (!whole) load.failed = true;
    if (ask.next > 0 && !broke_off) rate.add(static_cast<double>(load.bytes), seconds_since(ask.started));
    ended_loads.push_back(std::move(ask.load));
    load.done = true;
    news = true;
}

void SharedStore::State::settle_all() {
    for (const auto& ask : loads) settle(*ask);
    std::erase_if(loads, [](const auto& ask) { return ask->load == nullptr; });
    std::erase_if(lookups, [](const auto& ask) { return ask->lookup == nullptr; });
    if (news) to_read.notify_one();
}

void SharedStore::State::read(Lock& lock) {
    RecordBuffer buffer;
    while (!stop) {
        if (std::exchange(news, false)) {
            lock.unlock();
            {
                const std::lock_guard hearing(news_mutex);
                if (on_news) on_news();
            }
            lock.lock();
            continue;
        }
        const auto lookup =
            std::find_if(lookups.begin(), lookups.end(), [](const auto& ask) { return ask->lookup && !ask->begun; });
        const auto load = std::find_if(loads.begin(), loads.end(), [](const auto& ask) {
            return ask->load != nullptr && !ask->load->failed && !ask->load->cancel &&
                   ask->next < ask->load->pieces.size();
        });
        if (off) {
            ask_whether_well(lock);
        } else if (lookup != lookups.end()) {
            const std::shared_ptr<LookupAsk> ask = *lookup;
            look(lock, *ask);
            settle_all();
        } else if (load != loads.end()) {
            const std::shared_ptr<LoadAsk> ask = *load;
            read_piece(lock, ask, buffer);
            settle_all();
        } else {
            buffer = {};
            to_read.wait(lock);
        }
    }
}

/// The first question may have to make a connection; how long the second takes is the place's.
void SharedStore::State::ask_whether_well(Lock& lock) {
    auto asked = ShareClock::now();
    if (asked < ask_at) {
        to_read.wait_until(lock, ask_at);
        return;
    }
    ask_at = asked + ask_again;  // another thread asks again if this one hangs
    lock.unlock();
    const bool answer = answer_or(false, [&] {
        const std::string name = to_hex(Digest{});
        if (place->sizes({&name, 1}).empty()) return false;
        asked = ShareClock::now();
        return !place->sizes({&name, 1}).empty();
    });
    lock.lock();
    if (!answer) not_answered();
    if (!off || !answer || ShareClock::now() - asked > kQuickAnswer) return;
    off = false;
    answered();
    rate = {};
    lookup_time = {};
    know_nothing();
}

void SharedStore::State::look(Lock& lock, LookupAsk& ask) {
    ask.begun = true;
    const std::vector<Digest> names = ask.lookup->names;
    lock.unlock();
    const std::vector<int64_t> sizes = answer_or(std::vector<int64_t>{}, [&] {
        std::vector<std::string> hex;
        for (const Digest& name : names) hex.push_back(sealed_name(key, name));
        return place->sizes(hex);
    });
    lock.lock();
    const bool answer = sizes.size() == names.size();
    for (size_t i = 0; answer && i < names.size(); ++i) {
        const bool there = sizes[i] >= sealed_bytes(0) && !rejected.has(names[i]);
        if (there) known.insert(names[i]);
        else known.erase(names[i]);
        if (ask.lookup) ask.lookup->there[i] = there;
    }
    settle(ask, !answer);
    if (!answer) return failed_once();
    answered();
    lookup_time.add(seconds_since(ask.asked));
}

void SharedStore::State::read_piece(Lock& lock, const std::shared_ptr<LoadAsk>& ask, RecordBuffer& buffer) {
    if (ask->next == 0) ask->started = ShareClock::now();
    SharedPiece& piece = ask->load->pieces[ask->next++];
    ++ask->reading;
    const Digest name = piece.name;
    const int64_t bytes = SharedWrite::bytes_of(piece.parts);
    SharedPlace::Status status = SharedPlace::Status::missing;
    std::span<std::byte> sealed;
    if (!rejected.has(name)) {
        lock.unlock();
        status = answer_or(SharedPlace::Status::failed, [&] {
            sealed = buffer.of(sealed_bytes(bytes));
            return place->get(sealed_name(key, name), sealed);
        });
        lock.lock();
        if (status != SharedPlace::Status::failed) answered();
    }
    const bool wanted = ask->load != nullptr && !ask->load->cancel && !stop;
    const bool held = status == SharedPlace::Status::done;
    if (held && wanted) status = open_piece(lock, *ask, piece, sealed);
    --ask->reading;
    if (wanted && status == SharedPlace::Status::done) {
        ++stats.hits;
        stats.bytes_read += bytes;
        ask->load->bytes += bytes;
        known.insert(name);
        return;
    }
    if (wanted) ask->load->failed = true;
    if (status == SharedPlace::Status::failed) return failed_once();
    if (status == SharedPlace::Status::done) return;  // nobody wants it
    ++stats.misses;
    known.erase(name);
    // What comes behind it is not read, and may be missing as well.
    for (size_t i = ask->next; wanted && i < ask->load->pieces.size(); ++i) known.erase(ask->load->pieces[i].name);
    if (!held || rejected.has(name)) return;
    ++stats.rejected;
    rejected.insert(name);
    settle_all();
    lock.unlock();
    answer_or(false, [&] {
        place->erase(sealed_name(key, name));
        return true;
    });
    lock.lock();
}

/// Missing: it is not what was put.
SharedPlace::Status SharedStore::State::open_piece(Lock& lock, LoadAsk& ask, SharedPiece& piece,
                                                   std::span<const std::byte> sealed) {
    ++pinned;
    ++ask.pinned;
    lock.unlock();
    const auto status = answer_or(SharedPlace::Status::failed, [&] {
        std::vector<std::span<std::byte>> parts;
        for (const HostBytes& part : piece.parts) parts.push_back(part->span());
        return unseal(key, piece.name, sealed, parts, piece.tag) ? SharedPlace::Status::done
                                                                 : SharedPlace::Status::missing;
    });
    piece.there = status == SharedPlace::Status::done;
    lock.lock();
    --ask.pinned;
    --pinned;
    ended.notify_all();
    return status;
}

/// False if there is no memory for it. Its blocks are the owner's again afterwards.
bool SharedStore::State::seal_next(Lock& lock, SharedWrite& one, std::vector<std::byte>& sealed) {
    ++pinned;
    lock.unlock();
    const bool done = answer_or(false, [&] {
        std::vector<std::span<const std::byte>> parts;
        for (const HostBytes& part : one.parts) parts.push_back(part->span());
        sealed = seal(key, one.name, one.tag, parts);
        return true;
    });
    lock.lock();
    --pinned;
    for (HostBytes& part : one.parts) used.push_back(std::move(part));
    ended.notify_all();
    return done;
}

/// When the owner goes it writes on until nothing is left.
void SharedStore::State::write(Lock& lock) {
    for (;;) {
        to_write.wait(lock, [this] { return stop || !writes.empty(); });
        if (writes.empty()) return;
        SharedWrite one = std::move(writes.front());
        writes.pop_front();
        std::vector<std::byte> sealed;
        bool done = seal_next(lock, one, sealed);
        lock.unlock();
        done = done && answer_or(SharedPlace::Status::failed, [&] {
                           return place->put(sealed_name(key, one.name), sealed);
                       }) == SharedPlace::Status::done;
        lock.lock();
        pending_bytes -= one.bytes;
        if (done) {
            ++stats.written;
            stats.bytes_written += one.bytes;
            failed_writes = 0;
            if (std::exchange(unwritten, false)) ++losses;
            continue;
        }
        not_answered();
        if (news) to_read.notify_one();
        known.erase(one.name);
        unwritten = true;
        if (++failed_writes < kFailuresInARow) continue;
        write_at = ShareClock::now() + ask_again;
        drop_writes();
    }
}

void SharedStore::State::drop_writes() {
    for (SharedWrite& one : writes) {
        for (HostBytes& part : one.parts) used.push_back(std::move(part));
        known.erase(one.name);
        pending_bytes -= one.bytes;
        ++stats.dropped;
        unwritten = true;
    }
    writes.clear();
}

}  // namespace riptide
