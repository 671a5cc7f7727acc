// Load on an engine in this process: what `riptide bench --serve` measures. No HTTP; prompts are made-up token ids,
// answers never end by themselves.
#pragma once

#include <cstdint>
#include <vector>

#include "apps/bench/load_figures.h"
#include "engine/engine.h"

namespace riptide::apps {

struct LoadOptions {
    int64_t gen = 64;  // answer tokens of a stretch, or of an answer
    int repeat = 3;    // stretches
    uint64_t seed = 1;
    double temperature = 0;  // of the answers
};

/// So many answers decode together. They are asked for at once; when all have begun and eight further tokens have
/// come, `repeat` stretches of `gen` tokens each are measured, one behind the other.
struct ClosedLoad {
    int64_t sequences = 0, prompt = 0;
    Repeats rates;            // tokens per second of all answers together, of each stretch
    double context = 0;       // mean tokens behind which they decode, in the middle of the stretches
    Percentiles ttft;         // from submit to the first token, of all prompts at once
    Percentiles gaps;         // inter-token times in the stretches
    int64_t steps = 0;        // in the stretches, and of them the mean
    double step_seconds = 0;  // of a step
    double host_seconds = 0;  // of it, in the engine's own code: EngineStats::host_seconds
    int64_t preempted = 0;
};

/// Requests that come when they come.
struct OpenLoad {
    double rate = 0;  // asked for, requests a second
    int64_t requests = 0, refused = 0;
    double seconds = 0;  // from the first submit to the last token
    int64_t prompt_tokens = 0, answer_tokens = 0;
    Percentiles ttft, gaps, queue;
    int64_t most_at_once = 0;  // requests that had come and were not complete
    int64_t preempted = 0;
};

/// Answers that decode while a long prompt is read beside them, `repeat` times, each after a stretch without.
struct BesideLoad {
    int64_t sequences = 0, prompt = 0, beside = 0;  // tokens of the answers' prompts, and of the long one
    Percentiles alone, together;                    // inter-token times
    Repeats ratios;                                 // P99 together / P99 alone, of each repeat
    Repeats ttft;                                   // of the long prompt
    int64_t parts = 0;                              // in which it was read: EngineStats::prompt_parts, of each repeat
};

/// A conversation that grows: each turn's prompt is the last one, its answer and a tool result.
struct AgentTurn {
    int64_t prompt = 0, cached = 0;  // tokens
    int64_t known = 0;               // of the prompt, computed before: the last turn's prompt and answer
    double ttft = 0;
};
struct AgentLoad {
    std::vector<AgentTurn> turns;
    Repeats again;          // TTFT when the last prompt is asked for again, `repeat` times
    int64_t again_new = 0;  // tokens of it that were not cached, at most: 1 if all is well
    Repeats side_ttft;      // of side requests between turns, each with a prompt of its own
    int64_t side_prompt = 0;
    /// From turn 2 on, cached tokens as a share of those computed before, or of all.
    double known_share() const;
    double prompt_share() const;
    /// From turn 2 on.
    Repeats ttft() const;
};

/// Each runs until it is done or Ctrl-C: what was measured by then comes back. Nothing of them runs afterwards; the
/// prefix cache keeps what it keeps, but no prompt is used twice in a process, except where the text above says so.
/// Throw Error (usage) for lengths that the context cannot hold, and Error if a request fails.
///
/// REQUIRES of the engine max_running >= sequences, and K/V for all of them: if answers are preempted, the figures say
/// nothing about decoding (ClosedLoad::preempted).
ClosedLoad bench_closed(Engine& engine, const LoadOptions& options, int64_t prompt, int64_t sequences);
/// Each prompt has a length drawn from `prompts`.
OpenLoad bench_open(Engine& engine, const LoadOptions& options, const std::vector<int64_t>& prompts, double rate,
                    int64_t requests);
BesideLoad bench_beside(Engine& engine, const LoadOptions& options, int64_t prompt, int64_t sequences, int64_t beside);
/// The first prompt has an eighth of `tokens` (system prompt, tools and task), the last all; answers have `gen` tokens,
/// tool results between are uneven (uneven_sizes). After every third turn comes a side request.
AgentLoad bench_agent(Engine& engine, const LoadOptions& options, int64_t turns, int64_t tokens);

}  // namespace riptide::apps
