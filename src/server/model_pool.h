// Several models in one server: loaded when first asked for, put away when others need their memory.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/work_budget.h"
#include "engine/engine.h"
#include "server/api/api_error.h"
#include "server/api/generation_request.h"

namespace riptide::server {

/// A model that is loaded.
struct ServedModel {
    std::string name;
    std::unique_ptr<Engine> own;  // a pool's; else null: somebody else owns the engine
    Engine* engine = nullptr;
    RequestDefaults defaults;  // with what the model's makers say
};
/// Who holds it keeps the model loaded.
using ModelLease = std::shared_ptr<const ServedModel>;

enum class ModelState { unloaded, loading, ready, unloading, failed };
std::string_view model_state_name(ModelState state);

struct ModelStatus {
    std::string name;
    ModelState state = ModelState::unloaded;
    std::string reason;              // failed: why
    std::optional<EngineInfo> info;  // once it has been loaded
};

struct PoolOptions {
    struct Model {
        std::string name;
        int64_t bytes = 0;  // that it takes at least; how much it is shows when it has been loaded
    };
    std::vector<Model> models;  // the first is for requests that name none; empty: there is no pool
    /// On the pool's thread, one at a time. Throws Error.
    std::function<std::unique_ptr<Engine>(const std::string& name)> load;
    int64_t memory_bytes = INT64_MAX;         // for all that are loaded, as EngineInfo::memory_bytes counts them
    std::chrono::milliseconds keep_alive{0};  // so long unused, a model goes; 0: none does for that
    std::chrono::milliseconds patience{std::chrono::minutes(2)};  // how long a request waits for its model
    int most_waiting = 32;  // requests that wait so; each holds a worker thread of its own
};

/// Names, states, leases and the memory of all. A thread of its own loads, one model at a time, and puts away those
/// that nobody has used for `keep_alive`. What has a lease, or requests that wait for it, is never put away. When room
/// is needed, what was used least recently goes first. A model that could not be loaded is tried again when it is asked
/// for again. Thread-safe.
class ModelPool {
  public:
    /// REQUIRES names that differ, at least one. `make` turns an engine that options.load gave into what is served.
    using Make = std::function<ServedModel(const std::string& name, std::unique_ptr<Engine> engine)>;
    ModelPool(PoolOptions options, Make make);
    /// A load that has begun ends first. REQUIRES that no lease is left.
    ~ModelPool();
    ModelPool(const ModelPool&) = delete;
    ModelPool& operator=(const ModelPool&) = delete;

    bool has(const std::string& name) const;
    /// REQUIRES has(name).
    bool ready(const std::string& name) const;
    const std::string& first() const { return models_.front().name; }
    /// Waits until it is loaded. Throws ApiError (503: too many wait, it takes too long, models in use leave no room,
    /// or why it cannot be loaded), and what `work` does. REQUIRES has(name).
    ModelLease lease(const std::string& name, WorkBudget& work);
    /// To look at it, which is no use of it; null: it is being loaded, and has been asked for if nobody had. Who asks
    /// first after an attempt that came to nothing is told why: throws ApiError (503) as lease() does. REQUIRES
    /// has(name).
    ModelLease look(const std::string& name);
    /// All that are loaded, to look at.
    std::vector<ModelLease> loaded();
    /// Puts it away at once. Throws ApiError (409) if it is in use or being loaded. REQUIRES has(name).
    void unload(const std::string& name);
    /// In the order of the options.
    std::vector<ModelStatus> list() const;
    /// An engine has ended by itself.
    bool broken() const;

  private:
    using Lock = std::unique_lock<std::mutex>;
    using Clock = std::chrono::steady_clock;
    struct Entry {
        std::string name;
        int64_t bytes = 0;
        ModelState state = ModelState::unloaded;
        std::string reason = {};  // why the last attempt to load it came to nothing
        int64_t attempts = 0;     // that have ended
        bool no_room = false;     // the last one found none: others were in use
        int64_t leases = 0, looks = 0, waiting = 0;
        Clock::time_point used = {};  // last
        std::unique_ptr<const ServedModel> model = nullptr;
        std::optional<EngineInfo> info = {};

        bool idle() const { return state == ModelState::ready && leases == 0 && waiting == 0; }
    };

    /// Of an attempt to load a model.
    struct Ending {
        ModelState state;
        std::string reason;
        bool no_room = false;  // models in use left none
    };

    Entry& find(const std::string& name);
    ModelLease lend(Entry& entry, int64_t Entry::*count);
    bool want(Entry& entry);
    static ApiError why_not(const Entry& entry);
    void run();
    void load(Lock& lock, Entry& entry);
    std::optional<Ending> make_room(Lock& lock, Entry& entry);
    void put_away(Lock& lock, Entry& entry);
    void ended(Entry& entry, const Ending& how);
    Entry* least_recent();
    bool being_unloaded() const;
    int64_t bytes_in_use() const;

    const PoolOptions options_;
    const Make make_;
    mutable std::mutex mutex_;
    std::condition_variable changed_;
    std::vector<Entry> models_;
    std::deque<Entry*> wanted_;
    int waiting_ = 0;
    bool ended_ = false;
    std::thread thread_;
};

}  // namespace riptide::server
