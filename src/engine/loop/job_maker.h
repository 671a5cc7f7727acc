// From a request to what the engine's thread needs. Internal to the engine.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "engine/compression/compressor.h"
#include "engine/engine.h"
#include "engine/loop/answer.h"
#include "engine/prompt/model_text.h"

namespace riptide {

/// Immutable; threads share it.
class JobMaker {
  public:
    /// What text and options point to must outlive it. `compressor`: null if prompts are never compressed.
    JobMaker(const ModelText& text, const EngineOptions& options, const ModelInfo& model, int64_t context_length,
             Compressor* compressor);

    /// Renders, tokenises and checks; see Engine::submit. If the prompt is to be compressed, and a scorer must be asked
    /// for it, job.plan says so: then the job is incomplete until complete().
    std::unique_ptr<Job> make(Request&& request, Sink&& sink, WorkBudget* work = nullptr) const;
    /// Makes the answers; of a job with a plan first the shorter prompt, if the plan's tokens have been chosen.
    void complete(Job& job, bool chosen) const;
    /// For whom the scheduler counts a request without a session.
    uint64_t share_of(RequestId id) const;

  private:
    std::shared_ptr<CompressionPlan> plan(const Request& request, const Job& job) const;
    void check(const Request& request) const;
    void check_task(const Request& request) const;
    void check_tokens(const Job& job) const;

    const ModelText& text_;
    const EngineOptions& options_;
    Task task_;
    int64_t vocab_, positions_, context_;
    Compressor* compressor_;
    uint64_t secret_;
};

}  // namespace riptide
