// Prompts whose state another replica may have, while it is looked for and fetched. Internal to the engine.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "cache/prefix_cache.h"
#include "engine/loop/answer.h"

namespace riptide {

/// A request waits here before the scheduler sees it, and no longer than is worth it: the place must have answered
/// within a twentieth of the time that reading the prompt would take (10 ms at least), and from then on the fetch must
/// be on its way to end before 1.5 times that time. A place that has not answered so quickly lately is not asked. What
/// was fetched lies in the host tier then, where attach finds it; else the prompt is read. Of several requests that
/// want the same one fetches, and all together fetch no more at a time than the host tier may hold.
///
/// All functions are for the engine's thread; none waits.
class FetchQueue {
  public:
    struct Stats {
        int64_t fetched = 0, tokens = 0;  // requests whose state came, and tokens of it
        int64_t late = 0;                 // requests that went on without
        int64_t slower = 0;               // whose state would come, or be found, later than is worth it
    };

    /// `read_seconds(tokens)`: of a prompt's tokens; 0: nobody knows yet.
    FetchQueue(PrefixCache& prefix, SharedStore& store, std::function<double(int64_t tokens)> read_seconds)
        : prefix_(prefix), store_(store), read_seconds_(std::move(read_seconds)) {}

    /// Takes the job, and begins, unless too little could be found.
    bool add(std::unique_ptr<Job>& job, int64_t vocab, int64_t now_us);
    /// Null if it is not here.
    std::unique_ptr<Job> remove(RequestId id);
    /// Those that go on now.
    std::vector<std::unique_ptr<Job>> take_ready(int64_t now_us);
    std::vector<std::unique_ptr<Job>> remove_all();
    int64_t size() const { return std::ssize(fetches_); }
    /// When take_ready should be called, whatever the store says until then; the largest number if never.
    int64_t look_us() const;
    const Stats& stats() const { return stats_; }

  private:
    struct Fetch {
        std::unique_ptr<Job> job;
        int64_t vocab = 0;
        PrefixCache::Wanted wanted;
        std::shared_ptr<SharedLookup> lookup;
        std::shared_ptr<SharedLoad> load;       // once it is known what is there
        const PrefixCache::Wanted::End* end{};  // that `load` leads to
        bool own = true;                        // the load; else that of another request, which began it
        int64_t begun_us = 0, look_us = 0;
        double read_seconds = 0;  // of the prompt, from what is held on to the last end
    };
    bool goes_on(Fetch& fetch, int64_t now_us);
    bool still_wanted(Fetch& fetch);
    bool begin_load(Fetch& fetch);
    int64_t loading_bytes() const;
    void give_up(Fetch& fetch);

    PrefixCache& prefix_;
    SharedStore& store_;
    std::function<double(int64_t)> read_seconds_;
    std::map<RequestId, Fetch> fetches_;
    Stats stats_;
};

}  // namespace riptide
