// Which answers a GPU can draw by itself, and what it is told for them.
#pragma once

#include <cstdint>
#include <span>

#include "engine/sampling/sampling_params.h"
#include "ops/sample.h"

namespace riptide {

/// Whether the answer is nothing but the largest logit each time.
bool plainly_greedy(const SamplingParams& params);

/// Whether ops::sample can draw the answer. For all else the logits of each step go to the host: log-probabilities are
/// made there, and the device has room for so many biases only.
bool device_draws(const SamplingParams& params, int64_t vocab_size);

/// Whether what follows each of several rows of an answer can be drawn at once: no token depends on what is drawn for
/// another. `answer_tokens`: drawn before them.
bool draws_rows(const SamplingParams& params, int64_t answer_tokens);

/// `answer`: its tokens so far. The result points to all that is passed in.
ops::SampleStart sample_start(const SamplingParams& params, std::span<const int32_t> stop_ids,
                              std::span<const int32_t> prompt, std::span<const int32_t> answer);

}  // namespace riptide
