#include "server/model_pool.h"

#include <algorithm>

#include "base/error.h"

namespace riptide::server {

namespace {

constexpr std::chrono::milliseconds kLookAtWork{20};

std::string mebibytes(int64_t bytes) { return fmt::format("{} MiB", (bytes >> 20) + 1); }

ApiError come_again(const std::string& message, int64_t seconds) {
    ApiError error(503, message);
    error.retry_after_us = seconds * 1'000'000;
    return error;
}

}  // namespace

std::string_view model_state_name(ModelState state) {
    constexpr std::string_view kNames[] = {"unloaded", "loading", "ready", "unloading", "failed"};
    return kNames[static_cast<std::size_t>(state)];
}

ModelPool::ModelPool(PoolOptions options, Make make) : options_(std::move(options)), make_(std::move(make)) {
    for (const auto& [name, bytes] : options_.models) models_.push_back({.name = name, .bytes = bytes});
    RT_ASSERT(!models_.empty());
    thread_ = std::thread([this] { run(); });
}

ModelPool::~ModelPool() {
    {
        const std::lock_guard lock(mutex_);
        ended_ = true;
    }
    changed_.notify_all();
    thread_.join();
}

bool ModelPool::has(const std::string& name) const {
    return std::any_of(models_.begin(), models_.end(), [&](const Entry& entry) { return entry.name == name; });
}

bool ModelPool::ready(const std::string& name) const {
    const std::lock_guard lock(mutex_);
    return std::any_of(models_.begin(), models_.end(),
                       [&](const Entry& entry) { return entry.name == name && entry.state == ModelState::ready; });
}

ModelPool::Entry& ModelPool::find(const std::string& name) {
    return *std::find_if(models_.begin(), models_.end(), [&](const Entry& entry) { return entry.name == name; });
}

/// REQUIRES the mutex, and that it is ready. `count`: leases or looks.
ModelLease ModelPool::lend(Entry& entry, int64_t Entry::*count) {
    ++(entry.*count);
    if (count == &Entry::leases) entry.used = Clock::now();
    return {entry.model.get(), [this, &entry, count](const ServedModel*) {
                const std::lock_guard lock(mutex_);
                --(entry.*count);
                if (count == &Entry::leases) entry.used = Clock::now();
                changed_.notify_all();
            }};
}

/// False: somebody has asked for it already.
bool ModelPool::want(Entry& entry) {
    if (entry.state == ModelState::loading || std::find(wanted_.begin(), wanted_.end(), &entry) != wanted_.end())
        return false;
    wanted_.push_back(&entry);
    changed_.notify_all();
    return true;
}

/// What the last attempt to load it came to.
ApiError ModelPool::why_not(const Entry& entry) {
    if (entry.no_room) return come_again(entry.reason, 5);
    return {503, entry.reason, "model", "model_not_loaded"};
}

ModelLease ModelPool::lease(const std::string& name, WorkBudget& work) {
    Lock lock(mutex_);
    Entry& entry = find(name);
    if (entry.state == ModelState::ready) return lend(entry, &Entry::leases);
    if (waiting_ >= options_.most_waiting)
        throw come_again(fmt::format("the model '{}' is being loaded, and {} requests wait for models already", name,
                                     options_.most_waiting),
                         2);
    struct Waiting {
        Waiting(Entry& e, int& all) : one(e.waiting), total(all) { ++one, ++total; }
        ~Waiting() { --one, --total; }
        int64_t& one;
        int& total;
    } const waiting(entry, waiting_);
    const int64_t before = entry.attempts;
    const Clock::time_point until = Clock::now() + options_.patience;
    want(entry);
    while (entry.state != ModelState::ready) {
        if (entry.attempts != before) throw why_not(entry);
        if (Clock::now() > until) throw come_again(fmt::format("the model '{}' is still being loaded", name), 5);
        changed_.wait_for(lock, kLookAtWork);
        work.look();
    }
    return lend(entry, &Entry::leases);
}

ModelLease ModelPool::look(const std::string& name) {
    const std::lock_guard lock(mutex_);
    Entry& entry = find(name);
    if (entry.state == ModelState::ready) return lend(entry, &Entry::looks);
    if (want(entry) && !entry.reason.empty()) throw why_not(entry);
    return nullptr;
}

std::vector<ModelLease> ModelPool::loaded() {
    const std::lock_guard lock(mutex_);
    std::vector<ModelLease> out;
    for (Entry& entry : models_)
        if (entry.state == ModelState::ready) out.push_back(lend(entry, &Entry::looks));
    return out;
}

void ModelPool::unload(const std::string& name) {
    Lock lock(mutex_);
    Entry& entry = find(name);
    changed_.wait(lock, [&] { return entry.state != ModelState::unloading; });
    if (entry.state == ModelState::loading || entry.waiting > 0)
        throw ApiError(409, fmt::format("the model '{}' is being loaded: unload it later", name), "model");
    if (entry.leases > 0)
        throw ApiError(409, fmt::format("the model '{}' answers {} requests: unload it later", name, entry.leases),
                       "model");
    if (entry.state == ModelState::ready) put_away(lock, entry);
    entry.state = ModelState::unloaded;
    entry.reason.clear();
}

std::vector<ModelStatus> ModelPool::list() const {
    const std::lock_guard lock(mutex_);
    std::vector<ModelStatus> out;
    for (const Entry& entry : models_)
        out.push_back({entry.name, entry.state, entry.state == ModelState::failed ? entry.reason : "", entry.info});
    return out;
}

bool ModelPool::broken() const {
    const std::lock_guard lock(mutex_);
    return std::any_of(models_.begin(), models_.end(), [](const Entry& entry) {
        return entry.state == ModelState::ready && entry.model->engine->stats().broken;
    });
}

/// The pool's thread.
void ModelPool::run() {
    Lock lock(mutex_);
    while (!ended_) {
        const auto next = std::find_if(wanted_.begin(), wanted_.end(),
                                       [](const Entry* entry) { return entry->state != ModelState::unloading; });
        if (next != wanted_.end()) {
            Entry& entry = **next;
            wanted_.erase(next);
            if (entry.state != ModelState::ready) load(lock, entry);
            continue;
        }
        Entry* const oldest = options_.keep_alive.count() > 0 ? least_recent() : nullptr;
        if (oldest == nullptr) changed_.wait(lock);
        else if (oldest->used + options_.keep_alive <= Clock::now()) put_away(lock, *oldest);
        else changed_.wait_until(lock, oldest->used + options_.keep_alive);
    }
}

void ModelPool::load(Lock& lock, Entry& entry) {
    entry.state = ModelState::loading;
    if (const auto refusal = make_room(lock, entry)) return ended(entry, *refusal);
    std::unique_ptr<const ServedModel> model;
    std::string reason;
    lock.unlock();
    try {
        model = std::make_unique<const ServedModel>(make_(entry.name, options_.load(entry.name)));
    } catch (const std::exception& error) {
        reason = error.what();
    }
    lock.lock();
    if (!model)
        return ended(entry,
                     {ModelState::failed, fmt::format("the model '{}' cannot be loaded: {}", entry.name, reason)});
    entry.info = model->engine->info();
    entry.bytes = std::max(entry.bytes, entry.info->memory_bytes);
    entry.model = std::move(model);
    if (const auto refusal = make_room(lock, entry)) {
        put_away(lock, entry);
        return ended(entry, *refusal);
    }
    entry.used = Clock::now();
    ended(entry, {ModelState::ready, ""});
}

/// For an entry that is being loaded; its bytes count. What it returns, if there is none, is how the attempt ends.
std::optional<ModelPool::Ending> ModelPool::make_room(Lock& lock, Entry& entry) {
    if (entry.bytes > options_.memory_bytes)
        return Ending{
            ModelState::failed,
            fmt::format("the model '{}' takes {} of memory, but all models together may have {}: --models-memory",
                        entry.name, mebibytes(entry.bytes), mebibytes(options_.memory_bytes))};
    while (bytes_in_use() > options_.memory_bytes) {
        if (Entry* const old = least_recent()) put_away(lock, *old);
        else if (being_unloaded()) changed_.wait(lock);
        else
            return Ending{ModelState::unloaded,
                          fmt::format("the model '{}' takes {} of memory, and the models in use leave no room for it",
                                      entry.name, mebibytes(entry.bytes)),
                          true};
    }
    return std::nullopt;
}

/// Whoever looks at it ends first; its memory is free when this returns.
void ModelPool::put_away(Lock& lock, Entry& entry) {
    entry.state = ModelState::unloading;
    changed_.wait(lock, [&] { return entry.looks == 0; });
    std::unique_ptr<const ServedModel> model = std::move(entry.model);
    lock.unlock();
    model.reset();
    lock.lock();
    entry.state = ModelState::unloaded;
    changed_.notify_all();
}

void ModelPool::ended(Entry& entry, const Ending& how) {
    entry.state = how.state;
    entry.reason = how.reason;
    entry.no_room = how.no_room;
    ++entry.attempts;
    changed_.notify_all();
}

ModelPool::Entry* ModelPool::least_recent() {
    Entry* oldest = nullptr;
    for (Entry& entry : models_)
        if (entry.idle() && (oldest == nullptr || entry.used < oldest->used)) oldest = &entry;
    return oldest;
}

bool ModelPool::being_unloaded() const {
    return std::any_of(models_.begin(), models_.end(),
                       [](const Entry& entry) { return entry.state == ModelState::unloading; });
}

int64_t ModelPool::bytes_in_use() const {
    int64_t bytes = 0;
    for (const Entry& entry : models_)
        if (entry.state != ModelState::unloaded && entry.state != ModelState::failed) bytes += entry.bytes;
    return bytes;
}

}  // namespace riptide::server
