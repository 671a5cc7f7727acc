// A scorer that can be held up, and prompts for it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <string>
#include <vector>

#include "base/error.h"
#include "engine/compression/prompt_scorer.h"

namespace riptide::testing {

/// Scores all tokens alike but those of a word; can be held up.
class Gate {
  public:
    PromptScorer scorer(const std::string& name = "gate") {
        return {name, nullptr, [this](const ScoreCall& call) { return score(call); }};
    }
    void close() { set(false); }
    void open() { set(true); }
    /// Until a call is inside.
    void wait_for_call() {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return inside_ > 0; });
    }
    std::atomic<int> calls = 0;
    std::atomic<bool> broken = false;

  private:
    std::vector<float> score(const ScoreCall& call) {
        std::unique_lock lock(mutex_);
        ++calls;
        ++inside_;
        changed_.notify_all();
        changed_.wait(lock, [&] { return open_; });
        --inside_;
        RT_CHECK(!broken, "the scorer is broken");
        std::vector<float> out(call.tokens.size());
        for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<float>(call.tokens[i] % 7);
        return out;
    }
    void set(bool open) {
        const std::lock_guard lock(mutex_);
        open_ = open;
        changed_.notify_all();
    }
    std::mutex mutex_;
    std::condition_variable changed_;
    bool open_ = true;
    int inside_ = 0;
};

inline std::string short_pump_log(int lines) {
    std::string out;
    for (int i = 0; i < lines; ++i) out += fmt::format("Entry {}: the pump of hall {} ran {} min.\n", i, i % 7, i % 50);
    return out;
}

}  // namespace riptide::testing
