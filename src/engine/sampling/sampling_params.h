// How tokens are chosen and when an answer ends.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace riptide {

/// The defaults change nothing about the model's own distribution.
struct SamplingParams {
    double temperature = 1.0;  // 0 to 100; 0: the most likely token
    int64_t top_k = 0;         // keep the k largest logits, ties with the k-th included; 0: all
    double top_p = 1.0;        // keep the smallest set of largest probabilities that reaches p; more than 0, at most 1
    double min_p = 0.0;        // keep probabilities of at least min_p times the largest; 0 to 1
    double repetition_penalty = 1.0;                     // more than 0, at most 100; tokens of prompt and answer
    double frequency_penalty = 0.0;                      // -2 to 2; times the number of occurrences in the answer
    double presence_penalty = 0.0;                       // -2 to 2; once for tokens of the answer
    std::vector<std::pair<int32_t, double>> logit_bias;  // -100 to 100 each, no token twice
    uint64_t seed = 0;
    int64_t logprobs = -1;  // most likely alternatives to report, 0 to 1000; -1: report no log-probabilities

    int64_t max_tokens = -1;                // at least 1; -1: until the context is full
    int64_t min_tokens = 0;                 // before these, stop ids cannot be drawn and stop strings do not end
    std::vector<int32_t> stop_ids;          // besides the model's own
    std::vector<std::string> stop_strings;  // at most 64, of 1 to 1024 bytes
    bool ignore_eos = false;                // the model's own stop ids do not end the answer
};

/// Throws Error naming the field, its value and the allowed range.
void check_sampling_params(const SamplingParams& params, int64_t vocab_size);

}  // namespace riptide
