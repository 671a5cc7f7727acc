// The model of a server that has only one: there, or asleep.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>

#include "server/api/live_requests.h"
#include "server/model_pool.h"

namespace riptide::server {

/// Thread-safe. Asleep, the engine is gone with all its memory, the device's too; to wake is to open it again.
class OnlyModel {
  public:
    enum class State { loading, awake, falling_asleep, asleep, waking };
    using Open = std::function<ServedModel()>;

    /// It has been loaded. `open` loads it once more, and throws Error; empty: it cannot sleep. REQUIRES
    /// State::loading.
    void serve(ServedModel model, Open open);
    State state() const { return state_; }
    /// Null unless it is awake.
    ModelLease lease() const;
    /// Of the last that was awake; nullopt while it is loaded for the first time.
    std::optional<EngineInfo> info() const;
    /// Why there is none, for a request that comes now.
    ApiError absent() const;

    /// Takes no further requests, calls `begun`, waits until answers have ended and their replies have been read, and
    /// destroys the engine, which writes what the cache holds to the disk tier; with `forget` it is forgotten first.
    /// Throws ApiError (400: it cannot sleep; 409: other weights have been loaded, which only `forget` may lose), or
    /// what `work` does, and then it is awake as it was. Nothing happens if it is asleep.
    void sleep(bool forget, const std::function<void(const Engine&)>& begun, WorkBudget& work);
    /// Nothing happens if it is awake. Throws ApiError (503: why it cannot be loaded; it stays asleep), or what `work`
    /// does while somebody else lets it sleep or wakes it.
    void wake(WorkBudget& work);

  private:
    using Lock = std::unique_lock<std::mutex>;
    void settle(Lock& lock, WorkBudget& work);
    void become(State state, ModelLease model);

    mutable std::mutex mutex_;
    std::condition_variable changed_;
    std::atomic<State> state_ = State::loading;
    ModelLease model_;
    std::optional<EngineInfo> info_;
    Open open_;
};

/// POST /sleep (`query`: level, mode), POST /wake_up and GET /is_sleeping. Throw ApiError as above, or 400.
HttpReply post_sleep(OnlyModel& only, const LiveRequests& live, std::string_view query, WorkBudget& work);
HttpReply post_wake_up(OnlyModel& only, WorkBudget& work);
HttpReply get_is_sleeping(const OnlyModel& only);

}  // namespace riptide::server
