// Whoever says how much the tokens of a prompt matter to its questions: a Scorer, or a test's function.
#pragma once

#include <atomic>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "models/scorer.h"
#include "text/tokenizer/tokenizer.h"

namespace riptide {

struct ScoreCall {
    std::span<const int32_t> tokens;       // of the scorer's vocabulary
    std::span<const QueryWindow> windows;  // ascending, disjoint, not empty
    /// Either may be empty or null. A scorer that can does look at them now and then.
    std::function<void(int64_t done, int64_t total)> on_progress = {};
    const std::atomic<bool>* cancel = nullptr;
};

struct PromptScorer {
    std::string name;                            // in messages, and of what is remembered
    std::shared_ptr<const Tokenizer> tokenizer;  // null: that of the model which answers
    /// One value for each token, at least 0 and finite: its share of the windows' attention. Called by one thread at a
    /// time. What it throws fails the request; nothing is returned if it was cancelled.
    std::function<std::vector<float>(const ScoreCall&)> score;
    int64_t most_tokens = std::numeric_limits<int64_t>::max();  // that it can read

    std::function<int64_t()> device_bytes = {};  // of a GPU's memory, the most so far; empty: none. From any thread
    std::string memory;                          // what it keeps there and why so much, in a sentence; or nothing

    explicit operator bool() const { return static_cast<bool>(score); }
};

}  // namespace riptide
