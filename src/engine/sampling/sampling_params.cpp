#include "engine/sampling/sampling_params.h"

#include <algorithm>
#include <limits>
#include <string_view>

#include "base/error.h"

namespace riptide {

namespace {

/// Written so that NaN fails.
void check_range(std::string_view name, double value, double low, double high) {
    if (!(value >= low && value <= high)) fail(ErrorKind::usage, "{} is {}, expected {} to {}", name, value, low, high);
}

void check_range(std::string_view name, int64_t value, int64_t low, int64_t high) {
    if (value < low || value > high) fail(ErrorKind::usage, "{} is {}, expected {} to {}", name, value, low, high);
}

void check_positive(std::string_view name, double value, double high) {
    if (!(value > 0 && value <= high))
        fail(ErrorKind::usage, "{} is {}, expected more than 0 and at most {}", name, value, high);
}

void check_stops(const SamplingParams& p, int64_t vocab_size) {
    for (const int32_t id : p.stop_ids) check_range("a token of stop_ids", int64_t{id}, 0, vocab_size - 1);
    check_range("the number of stop_strings", std::ssize(p.stop_strings), 0, 64);
    for (const std::string& stop : p.stop_strings)
        check_range("the length of a string of stop_strings", std::ssize(stop), 1, 1024);
}

}  // namespace

void check_sampling_params(const SamplingParams& p, int64_t vocab_size) {
    constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
    check_range("temperature", p.temperature, 0, 100);
    check_range("top_k", p.top_k, 0, kMost);
    check_positive("top_p", p.top_p, 1);
    check_range("min_p", p.min_p, 0, 1);
    check_positive("repetition_penalty", p.repetition_penalty, 100);
    check_range("frequency_penalty", p.frequency_penalty, -2, 2);
    check_range("presence_penalty", p.presence_penalty, -2, 2);
    check_range("logprobs", p.logprobs, -1, 1000);
    if (p.max_tokens != -1) check_range("max_tokens", p.max_tokens, 1, kMost);
    check_range("min_tokens", p.min_tokens, 0, p.max_tokens == -1 ? kMost : p.max_tokens);
    std::vector<int32_t> biased;
    for (const auto& [id, bias] : p.logit_bias) {
        check_range("a token of logit_bias", int64_t{id}, 0, vocab_size - 1);
        check_range("a value of logit_bias", bias, -100, 100);
        biased.push_back(id);
    }
    std::sort(biased.begin(), biased.end());
    const auto twice = std::adjacent_find(biased.begin(), biased.end());
    if (twice != biased.end()) fail(ErrorKind::usage, "logit_bias names token {} twice", *twice);
    check_stops(p, vocab_size);
}

}  // namespace riptide
