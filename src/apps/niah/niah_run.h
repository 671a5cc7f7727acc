// What `riptide niah` measures: answers to questions about long texts, from whole prompts and from compressed ones.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "apps/niah/niah_cases.h"
#include "engine/engine.h"

namespace riptide::apps {

struct NiahOptions {
    std::vector<NiahTask> tasks;
    std::vector<int64_t> lengths;  // tokens of prompt and answer together
    std::vector<int> depths;       // percent
    std::vector<double> keeps;     // share of the prompt's tokens that the model reads; 1: all of them
    int count = 1;                 // questions of each task, length and depth
    uint64_t seed = 1;
    int64_t max_tokens = 64;  // of an answer
    bool think = false;
};

/// One question and its answer.
struct NiahAnswer {
    NiahTask task = NiahTask::single;
    int64_t length = 0;
    int depth = 0;
    double keep = 1;
    int index = 0;

    int64_t tokens = 0, kept = 0;  // of the prompt; of them, read by the model
    bool right = false;
    std::string expected, answer;
    double ttft = 0, seconds = 0;  // from the question to the first token, and to the last
    double scoring = 0;            // of ttft
};

/// Asks one question after the other: every task, length, depth, index and keep, except those that `known` has an
/// answer to. The same questions for every keep. `on_answer` gets each answer, and how many of how many there are.
/// Stops early, without the answer under way, once `stop` is true. Throws Error (usage) for a length beyond the model's
/// context or too short for a task, for shares where the engine has no scorer, and what a failed request said.
void run_niah(Engine& engine, const NiahOptions& options, const std::vector<NiahAnswer>& known,
              const std::function<void(NiahAnswer, int64_t done, int64_t total)>& on_answer,
              const std::atomic<bool>& stop);

}  // namespace riptide::apps
