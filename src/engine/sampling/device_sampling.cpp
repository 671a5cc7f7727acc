#include "engine/sampling/device_sampling.h"

namespace riptide {

bool plainly_greedy(const SamplingParams& p) {
    return p.temperature == 0 && p.logprobs < 0 && p.logit_bias.empty() && p.min_tokens == 0 &&
           p.repetition_penalty == 1 && p.frequency_penalty == 0 && p.presence_penalty == 0;
}

bool device_draws(const SamplingParams& p, int64_t vocab_size) {
    return p.logprobs < 0 && std::ssize(p.logit_bias) <= ops::SampleState::kMaxBiases &&
           vocab_size <= ops::SampleState::kMostVocab;
}

bool draws_rows(const SamplingParams& p, int64_t answer_tokens) {
    return p.repetition_penalty == 1 && p.frequency_penalty == 0 && p.presence_penalty == 0 &&
           answer_tokens >= p.min_tokens;
}

ops::SampleStart sample_start(const SamplingParams& p, std::span<const int32_t> stop_ids,
                              std::span<const int32_t> prompt, std::span<const int32_t> answer) {
    ops::SampleStart start;
    start.params = {.temperature = p.temperature,
                    .top_p = p.top_p,
                    .min_p = p.min_p,
                    .repetition = p.repetition_penalty,
                    .frequency = p.frequency_penalty,
                    .presence = p.presence_penalty,
                    .top_k = p.top_k,
                    .min_tokens = p.min_tokens,
                    .seed = p.seed};
    start.logit_bias = p.logit_bias;
    start.stop_ids = stop_ids;
    start.prompt = prompt;
    start.answer = answer;
    return start;
}

}  // namespace riptide
