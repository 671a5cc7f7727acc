// One question to an engine, for commands that wait for the answer.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "apps/support/terminal.h"
#include "engine/engine.h"

namespace riptide::apps {

struct Reply {
    std::vector<int32_t> tokens;  // if the request wants them
    std::string text;             // that a reader sees
    Done done;

    double prefill_rate() const;  // computed prompt tokens per second; 0 if none
    double decode_rate() const;   // tokens per second, behind the first; 0 if none
    double step_rate() const;     // their steps per second
    double tokens_per_step() const;
};

/// Asks and waits; `hear` is called with each event, on the engine's thread. When `cancel` becomes true the answer ends
/// with what is there. Throws what submit does, what a request that failed says, and what `hear` throws. `work`: as in
/// Engine::submit. REQUIRES request.n == 1.
Reply ask(Engine& engine, Request request, const std::function<void(const EventBody&)>& hear = {},
          const std::atomic<bool>& cancel = interrupted(), WorkBudget* work = nullptr);

}  // namespace riptide::apps
