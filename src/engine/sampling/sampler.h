// From logits to a token.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/sampling/sampling_params.h"

namespace riptide {

struct TokenLogprob {
    int32_t token = -1;
    float logprob = 0;
};

/// A drawn token and, if asked for, how likely it was.
struct Sampled {
    int32_t token = -1;
    float logprob = 0;              // ln of the model's own probability: log-softmax of the raw logits
    float sampling_logprob = 0;     // ln of the probability with which it was drawn; 0 at temperature 0
    std::vector<TokenLogprob> top;  // of the raw logits, most likely first
};

/// A token that was not drawn, with its probability and those of the `top` most likely ones.
Sampled score_token(std::span<const float> logits, int32_t token, int64_t top);

/// The chain for one sequence. In this order, all in double from the f32 logits:
///   allowed      tokens that are not allowed are out, as if their logits were -infinity
///   bias         logit += logit_bias;  while the answer has fewer than min_tokens tokens, stop ids become impossible
///   repetition   for tokens of prompt or answer: logit > 0 ? logit / penalty : logit * penalty
///   frequency, presence   for tokens of the answer: logit -= frequency * count + presence
///   temperature 0: the largest logit, the lowest id of equals. Done.
///   top_k        keep logits >= the k-th largest (ties stay)
///   temperature  p = softmax(logit / temperature)
///   top_p        in order of p, equals by id, keep the shortest prefix whose sum reaches top_p
///   min_p        keep p >= min_p * max p
///   draw         the token with the smallest -ln(u) / p, u = sampling_noise(seed, position, token)
/// The draw is the Gumbel-max trick: exactly proportional to p, and a function of (seed, position, logits, history)
/// alone. It does not matter how many draws came before or whether the row was computed in a batch, in a chunk or while
/// verifying a draft, so speculation that accepts a draft only if this function draws it gives the very tokens of plain
/// decoding. Source: Holtzman et al. 2020 (top-p); Keskar et al. 2019 (repetition); Nguyen et al. 2024 (min-p);
/// transformers, logits_process.py.
///
/// Not thread-safe.
class Sampler {
  public:
    /// `stop_ids` are those that end the answer (params.stop_ids and the model's own unless ignore_eos). `prompt`
    /// counts for the repetition penalty. Throws Error for parameters out of range.
    Sampler(const SamplingParams& params, int64_t vocab_size, std::span<const int32_t> stop_ids = {},
            std::span<const int32_t> prompt = {});

    /// The token for `position` (the number of tokens before it). logits [vocab_size]. Does not change the sampler's
    /// history. `allowed`: bit i % 64 of word i / 64 for token i; empty: all are. Throws Error if a logit is NaN or
    /// +infinity, or if no token is possible.
    Sampled sample(std::span<const float> logits, int64_t position, std::span<const uint64_t> allowed = {});
    /// Makes a token part of the answer.
    void accept(int32_t token);

    /// The distribution that sample() draws from: tokens with their probabilities, in order of id. One token at
    /// temperature 0.
    std::vector<std::pair<int32_t, double>> distribution(std::span<const float> logits,
                                                         std::span<const uint64_t> allowed = {});

  private:
    struct Candidate {
        int32_t token;
        double value;  // logit, then weight relative to the largest
    };
    struct Seen {
        int64_t answer = 0;
        bool prompt = false;
    };

    bool takes_largest() const;
    void check_finite(std::span<const float> logits) const;
    void penalize(std::span<const float> logits);
    void keep_top_k();
    void apply_temperature();
    void keep_top_p();
    void keep_min_p();
    void filter(std::span<const float> logits, std::span<const uint64_t> allowed);
    double total_weight() const;
    void report(std::span<const float> logits, double total, double weight, Sampled& out) const;

    SamplingParams params_;
    int64_t vocab_size_;
    std::vector<int32_t> stop_ids_;
    std::unordered_map<int32_t, Seen> seen_;
    int64_t answer_tokens_ = 0;
    std::vector<Candidate> candidates_;  // of the row at hand; kept for its memory
    std::vector<double> scratch_;
};

}  // namespace riptide
