// Requests under way on an engine, and when their tokens came.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "apps/bench/load_figures.h"
#include "engine/engine.h"

namespace riptide::apps {

/// What is known of one request.
struct LoadRequest {
    double submitted = 0;
    TokenTimes times;             // of the answer's tokens
    std::vector<int32_t> tokens;  // themselves
    std::optional<Done> done;
    bool over = false;
    double ttft() const { return times.front() - submitted; }
};

/// Submits requests and notes what comes back. One thread submits and waits; at the end all requests are
/// cancelled and waited for.
class LoadDriver {
  public:
    LoadDriver(Engine& engine, double temperature)
        : engine_(engine), temperature_(temperature), vocab_(engine.info().model.vocab_size) {}
    ~LoadDriver();
    LoadDriver(const LoadDriver&) = delete;
    LoadDriver& operator=(const LoadDriver&) = delete;

    /// Tokens that no other call in this process has returned or begins with.
    std::vector<int32_t> fresh_prompt(int64_t tokens) const;
    /// `max_tokens` -1: until the context is full. Returns the request's number here: 0, 1, 2 ... Throws as
    /// Engine::submit does.
    size_t submit(std::vector<int32_t> prompt, int64_t max_tokens, const std::string& session = "", bool side = false);
    void cancel(size_t request);

    /// Waits until `ready` says so; it is asked, under the lock, whenever an answer begins or ends, and every few
    /// milliseconds. False after Ctrl-C. Throws Error if a request has failed.
    bool wait(const std::function<bool(const std::vector<std::unique_ptr<LoadRequest>>&)>& ready);
    /// wait() until each of `count` requests from `first` on has `more` tokens beyond those it has now, or is over.
    bool wait_for_tokens(size_t first, size_t count, int64_t more);
    /// wait() until the request is over.
    bool wait_for_end(size_t request);

    LoadRequest get(size_t request) const;
    /// Of `count` requests from `first` on.
    std::vector<TokenTimes> times(size_t first, size_t count) const;
    /// Seconds of the clock that times are measured by.
    double now() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - epoch_).count(); }

    /// The engine's counts between two steps, exact: steps that run ahead end first.
    EngineStats settled_stats();

  private:
    void take(LoadRequest& request, const Event& event);

    Engine& engine_;
    double temperature_;
    int64_t vocab_;
    std::chrono::steady_clock::time_point epoch_ = std::chrono::steady_clock::now();
    mutable std::mutex mutex_;
    std::condition_variable changed_;
    std::vector<std::unique_ptr<LoadRequest>> requests_;
    std::vector<RequestId> ids_;
    std::optional<Failed> failure_;
};

}  // namespace riptide::apps
