#include "engine/sampling/sampler.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "base/error.h"
#include "ops/cpu/lanes.h"
#include "ops/noise.h"
#include "ops/topk.h"

namespace riptide {

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr double kImpossible = -std::numeric_limits<double>::infinity();

/// Whether all are less than +infinity and none is NaN.
bool all_below_infinity(std::span<const float> row) {
    const float* p = row.data();
    const int64_t n = std::ssize(row);
    auto below = ops::Float4{} < kInfinity;
    int64_t i = 0;
    for (; i + 4 <= n; i += 4) below &= ops::load4(p + i) < kInfinity;
    bool all = below[0] && below[1] && below[2] && below[3];
    for (; i < n; ++i) all = all && p[i] < kInfinity;
    return all;
}

}  // namespace

Sampler::Sampler(const SamplingParams& params, int64_t vocab_size, std::span<const int32_t> stop_ids,
                 std::span<const int32_t> prompt)
    : params_(params), vocab_size_(vocab_size), stop_ids_(stop_ids.begin(), stop_ids.end()) {
    RT_ASSERT(vocab_size > 0);
    check_sampling_params(params, vocab_size);
    if (params_.repetition_penalty != 1)
        for (const int32_t token : prompt) seen_[token].prompt = true;
}

void Sampler::accept(int32_t token) {
    ++answer_tokens_;
    ++seen_[token].answer;
}

/// Whether the token is the largest of the raw logits and nothing else is asked for.
bool Sampler::takes_largest() const {
    const bool penalised =
        params_.repetition_penalty != 1 || params_.frequency_penalty != 0 || params_.presence_penalty != 0;
    const bool forbidden = answer_tokens_ < params_.min_tokens && !stop_ids_.empty();
    return params_.temperature == 0 && params_.logprobs < 0 && params_.logit_bias.empty() && !penalised && !forbidden;
}

void Sampler::check_finite(std::span<const float> logits) const {
    RT_ASSERT(std::ssize(logits) == vocab_size_);
    if (all_below_infinity(logits)) return;
    for (size_t i = 0; i < logits.size(); ++i)
        RT_CHECK(logits[i] < kInfinity, "the logit of token {} is {}: the model's weights or its K/V are damaged", i,
                 logits[i]);
}

/// Fills candidates_ with one entry per token: its logit after bias and penalties.
void Sampler::penalize(std::span<const float> logits) {
    candidates_.resize(logits.size());
    for (size_t i = 0; i < logits.size(); ++i) candidates_[i] = {static_cast<int32_t>(i), double{logits[i]}};
    const auto logit = [&](int32_t token) -> double& { return candidates_[static_cast<size_t>(token)].value; };
    for (const auto& [token, bias] : params_.logit_bias) logit(token) += bias;
    if (answer_tokens_ < params_.min_tokens)
        for (const int32_t token : stop_ids_)
            if (token >= 0 && token < vocab_size_) logit(token) = kImpossible;
    for (const auto& [token, seen] : seen_) {
        if (token < 0 || token >= vocab_size_) continue;
        double& value = logit(token);
        value = value > 0 ? value / params_.repetition_penalty : value * params_.repetition_penalty;
        if (seen.answer == 0) continue;
        value -= params_.frequency_penalty * static_cast<double>(seen.answer) + params_.presence_penalty;
    }
}

void Sampler::keep_top_k() {
    const auto k = static_cast<size_t>(std::min(params_.top_k, vocab_size_));
    if (k == 0 || k >= candidates_.size()) return;
    scratch_.clear();
    for (const Candidate& c : candidates_) scratch_.push_back(c.value);
    std::nth_element(scratch_.begin(), scratch_.begin() + static_cast<ptrdiff_t>(k - 1), scratch_.end(),
                     std::greater<>());
    const double threshold = scratch_[k - 1];
    std::erase_if(candidates_, [&](const Candidate& c) { return c.value < threshold; });
}

/// Logits become weights exp((logit - max) / temperature): the largest is 1. Those that vanish go.
void Sampler::apply_temperature() {
    double largest = kImpossible;
    for (const Candidate& c : candidates_) largest = std::max(largest, c.value);
    RT_CHECK(largest > kImpossible, "no token is possible: every logit is -infinity");
    for (Candidate& c : candidates_) c.value = std::exp((c.value - largest) / params_.temperature);
    std::erase_if(candidates_, [](const Candidate& c) { return c.value <= 0; });
}

double Sampler::total_weight() const {
    double total = 0;
    for (const Candidate& c : candidates_) total += c.value;
    return total;
}

void Sampler::keep_top_p() {
    if (params_.top_p >= 1) return;
    const double total = total_weight();
    // All tokens below this together weigh less than (1 - top_p) of the total, so the prefix ends before them: they
    // need not be sorted. Half of the exact bound leaves room for rounding.
    const double certain = 0.5 * (1 - params_.top_p) * total / static_cast<double>(candidates_.size());
    std::erase_if(candidates_, [&](const Candidate& c) { return c.value < certain; });
    std::sort(candidates_.begin(), candidates_.end(), [](const Candidate& a, const Candidate& b) {
        return a.value != b.value ? a.value > b.value : a.token < b.token;
    });
    double sum = 0;
    size_t kept = 0;
    while (kept < candidates_.size() && (kept == 0 || sum < params_.top_p * total)) sum += candidates_[kept++].value;
    candidates_.resize(kept);
}

void Sampler::keep_min_p() {
    if (params_.min_p > 0) std::erase_if(candidates_, [&](const Candidate& c) { return c.value < params_.min_p; });
}

/// The whole chain before the draw; candidates_ are what may be drawn, with their weights.
void Sampler::filter(std::span<const float> logits, std::span<const uint64_t> allowed) {
    penalize(logits);
    if (!allowed.empty()) {
        RT_ASSERT(std::ssize(allowed) * 64 >= vocab_size_);
        std::erase_if(candidates_, [&](const Candidate& c) {
            return (allowed[static_cast<size_t>(c.token) / 64] >> (c.token % 64) & 1) == 0;
        });
        RT_CHECK(!candidates_.empty(), "no token is possible: none is allowed");
    }
    if (params_.temperature == 0) {
        const auto best = std::max_element(candidates_.begin(), candidates_.end(),  // the first of equals
                                           [](const Candidate& a, const Candidate& b) { return a.value < b.value; });
        RT_CHECK(best->value > kImpossible, "no token is possible: every logit is -infinity");
        candidates_ = {Candidate{best->token, 1.0}};
        return;
    }
    keep_top_k();
    apply_temperature();
    keep_top_p();
    keep_min_p();
}

Sampled Sampler::sample(std::span<const float> logits, int64_t position, std::span<const uint64_t> allowed) {
    check_finite(logits);
    if (allowed.empty() && takes_largest()) {
        const int32_t largest = ops::argmax(logits);
        if (logits[static_cast<size_t>(largest)] > -kInfinity) return {largest, 0, 0, {}};
    }
    filter(logits, allowed);
    const Candidate* best = &candidates_[0];
    double best_key = std::numeric_limits<double>::infinity();
    if (candidates_.size() > 1) {
        constexpr double kSurely = 1 + 0x1p-40;  // room for the rounding of what is compared
        for (const Candidate& c : candidates_) {
            const double noise =
                sampling_noise(params_.seed, static_cast<uint64_t>(position), static_cast<uint32_t>(c.token));
            if (1 - noise > best_key * c.value * kSurely) continue;  // -ln(noise) >= 1 - noise: most need no logarithm
            const double key = -std::log(noise) / c.value;
            if (key < best_key || (key == best_key && c.token < best->token)) {
                best = &c;
                best_key = key;
            }
        }
    }
    Sampled out;
    out.token = best->token;
    if (params_.logprobs >= 0) report(logits, total_weight(), best->value, out);
    return out;
}

Sampled score_token(std::span<const float> logits, int32_t token, int64_t top) {
    const double normaliser = ops::log_sum_exp<double>(logits);
    const auto logprob = [&](float logit) { return static_cast<float>(double{logit} - normaliser); };
    Sampled out;
    out.token = token;
    out.logprob = logprob(logits[static_cast<size_t>(token)]);
    if (top <= 0) return out;
    for (const ops::Scored& scored : ops::top_k(logits, top)) out.top.push_back({scored.index, logprob(scored.value)});
    return out;
}

void Sampler::report(std::span<const float> logits, double total, double weight, Sampled& out) const {
    out = score_token(logits, out.token, params_.logprobs);
    out.sampling_logprob = static_cast<float>(std::log(weight / total));
}

std::vector<std::pair<int32_t, double>> Sampler::distribution(std::span<const float> logits,
                                                              std::span<const uint64_t> allowed) {
    check_finite(logits);
    filter(logits, allowed);
    const double total = total_weight();
    std::vector<std::pair<int32_t, double>> result;
    for (const Candidate& c : candidates_) result.emplace_back(c.token, c.value / total);
    std::sort(result.begin(), result.end());
    return result;
}

}  // namespace riptide
