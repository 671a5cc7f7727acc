#include "server/only_model.h"

#include <thread>

#include "base/error.h"
#include "base/json.h"
#include "server/api/api.h"

namespace riptide::server {

namespace {

constexpr std::chrono::milliseconds kLookAgain{5};

}  // namespace

void OnlyModel::serve(ServedModel model, Open open) {
    const Lock lock(mutex_);
    open_ = std::move(open);
    become(State::awake, std::make_shared<const ServedModel>(std::move(model)));
}

ModelLease OnlyModel::lease() const {
    const Lock lock(mutex_);
    return model_;
}

std::optional<EngineInfo> OnlyModel::info() const {
    const Lock lock(mutex_);
    return model_ ? model_->engine->info() : info_;
}

ApiError OnlyModel::absent() const {
    const State state = state_;
    const bool sleeps = state == State::asleep || state == State::falling_asleep;
    ApiError error(503,
                   sleeps ? "the server sleeps: POST /wake_up loads the model again" : "the model is being loaded");
    error.retry_after_us = 2'000'000;
    return error;
}

/// Under the mutex.
void OnlyModel::become(State state, ModelLease model) {
    model_ = std::move(model);
    if (model_) info_ = model_->engine->info();
    state_ = state;
    changed_.notify_all();
}

/// Waits until nobody lets it sleep or wakes it.
void OnlyModel::settle(Lock& lock, WorkBudget& work) {
    while (state_ == State::falling_asleep || state_ == State::waking) {
        changed_.wait_for(lock, kLookAgain);
        work.look();
    }
    if (state_ == State::loading) throw absent();
}

void OnlyModel::sleep(bool forget, const std::function<void(const Engine&)>& begun, WorkBudget& work) {
    Lock lock(mutex_);
    settle(lock, work);
    if (state_ == State::asleep) return;
    if (!open_) throw ApiError(400, "this server was not told how to load its model again, so it cannot sleep");
    ModelLease mine = model_;
    const auto refuse_to_lose = [&] {
        const int64_t version = mine->engine->info().version;
        if (version != 1 && !forget)
            throw ApiError(409, fmt::format("the weights are no longer the file's (version {}), and would be lost: "
                                            "POST /sleep?level=2 may lose them",
                                            version));
    };
    refuse_to_lose();
    become(State::falling_asleep, nullptr);
    lock.unlock();
    try {
        begun(*mine->engine);
        mine->engine->drain(&work);
        // Replies hold it until their clients have read them. Nobody can get it any more, so this only falls.
        for (; mine.use_count() > 1; std::this_thread::sleep_for(kLookAgain)) work.look();
        refuse_to_lose();  // /update_weights may have been under way
        if (forget) mine->engine->forget_cache(&work);
    } catch (...) {
        mine->engine->resume();
        lock.lock();
        become(State::awake, std::move(mine));
        throw;
    }
    mine.reset();
    lock.lock();
    become(State::asleep, nullptr);
}

void OnlyModel::wake(WorkBudget& work) {
    Lock lock(mutex_);
    settle(lock, work);
    if (state_ == State::awake) return;
    become(State::waking, nullptr);
    lock.unlock();
    ModelLease model;
    std::string reason;
    try {
        model = std::make_shared<const ServedModel>(open_());
    } catch (const std::exception& error) {
        reason = error.what();
    }
    lock.lock();
    become(model ? State::awake : State::asleep, model);
    if (!model) throw ApiError(503, "the model cannot be loaded again: " + reason);
}

HttpReply post_sleep(OnlyModel& only, const LiveRequests& live, std::string_view query, WorkBudget& work) {
    const auto value = [&](const char* key, std::string_view usual) {
        const bool said = fmt::format("&{}", query).find(fmt::format("&{}=", key)) != std::string::npos;
        return said ? query_value(query, key) : usual;
    };
    const std::string_view level = value("level", "1"), mode = value("mode", "wait");
    if (level != "1" && level != "2") refuse("level", "level: expected 1 or 2, found '{}'", level.substr(0, 40));
    if (mode != "wait" && mode != "abort")
        refuse("mode", "mode: expected wait or abort, found '{}'", mode.substr(0, 40));
    const auto begun = [&](const Engine& engine) {
        if (mode == "abort") live.cancel_all(engine);
    };
    only.sleep(level == "2", begun, work);
    return get_is_sleeping(only);
}

HttpReply post_wake_up(OnlyModel& only, WorkBudget& work) {
    only.wake(work);
    return get_is_sleeping(only);
}

HttpReply get_is_sleeping(const OnlyModel& only) {
    const bool sleeps = only.state() == OnlyModel::State::asleep;
    return {200, json::serialize(json::object{{"is_sleeping", sleeps}})};
}

}  // namespace riptide::server
