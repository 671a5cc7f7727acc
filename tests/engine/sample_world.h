// What tests of drawing share: parameters of all kinds, logits of all kinds, and the CPU's sampler to compare with.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "engine/sampling/sampler.h"
#include "ops/sample.h"
#include "tests/ops/op_fixture.h"

namespace riptide::testing {

inline constexpr float kInf = std::numeric_limits<float>::infinity();
inline const std::vector<int32_t> kStops = {0, 2, 3};

/// One sequence: what it draws with, and the CPU's sampler of it.
struct SampledAnswer {
    SamplingParams params;
    std::vector<int32_t> prompt;
    Sampler sampler;

    SampledAnswer(const SamplingParams& params_, const std::vector<int32_t>& prompt_, int64_t vocab)
        : params(params_), prompt(prompt_), sampler(params_, vocab, kStops, prompt_) {}
    ops::SampleStart start() const {
        ops::SampleStart start;
        start.params = {params.temperature,
                        params.top_p,
                        params.min_p,
                        params.repetition_penalty,
                        params.frequency_penalty,
                        params.presence_penalty,
                        params.top_k,
                        params.min_tokens,
                        params.seed};
        start.logit_bias = params.logit_bias;
        start.stop_ids = kStops;
        start.prompt = prompt;
        return start;
    }
    /// -1 for a row that cannot be drawn from.
    int32_t draw(std::span<const float> logits, int64_t position, std::span<const uint64_t> allowed = {}) {
        try {
            return sampler.sample(logits, position, allowed).token;
        } catch (const Error&) {
            return -1;
        }
    }
};

/// A bit of everything; the first eight are what people use.
inline std::vector<SamplingParams> settings(int64_t vocab) {
    const auto make = [](double temperature, int64_t top_k, double top_p, double min_p) {
        SamplingParams p;
        p.temperature = temperature, p.top_k = top_k, p.top_p = top_p, p.min_p = min_p;
        return p;
    };
    std::vector<SamplingParams> all = {
        make(0, 0, 1, 0),       make(0.7, 20, 1, 0),      make(1, 0, 1, 0),        make(0.6, 20, 0.95, 0),
        make(1, 0, 0.95, 0),    make(1, 40, 0.9, 0.05),   make(0.8, 0, 1, 0.05),   make(0.7, 64, 0.8, 0),
        make(1.5, 1, 1, 0),     make(1, 256, 0.99, 0),    make(1, 257, 1, 0),      make(0.9, 700, 0.9, 0.01),
        make(100, 0, 1, 0),     make(100, 0, 0.5, 0),     make(100, 0, 0.999, 1),  make(1e-4, 0, 1, 0),
        make(1e-300, 0, 1, 0),  make(0.1, 3, 0.05, 0),    make(0.3, 0, 0.01, 0),   make(2, 0, 1, 1),
        make(1, vocab, 0.7, 0), make(1, vocab + 5, 1, 0), make(50, 100, 0.5, 0.9), make(1.2, 0, 0.999999, 0)};
    for (size_t i = 0, plain = all.size(); i < plain; ++i) {  // each once more with penalties
        SamplingParams p = all[i];
        p.repetition_penalty = i % 3 == 0 ? 1.3 : i % 3 == 1 ? 0.8 : 1;
        p.frequency_penalty = i % 2 == 0 ? 0.7 : -0.3;
        p.presence_penalty = i % 4 == 0 ? 1.1 : 0;
        p.min_tokens = static_cast<int64_t>(i % 5);
        if (i % 2 == 0)
            p.logit_bias = {{static_cast<int32_t>(vocab / 2), 3.25}, {static_cast<int32_t>(vocab - 1), -100}};
        if (vocab == 1) p.logit_bias.clear();
        all.push_back(p);
    }
    for (size_t i = 0; i < all.size(); ++i) all[i].seed = 0x123456789ABCDEFull * (i + 1);
    return all;
}

/// All of them; with --brief and a vocabulary that has more than one way of drawing those at `few`: a row that filters
/// by top_p over the whole vocabulary takes a cluster about fifteen exchanges, some seconds of a sanitizer's time.
inline std::vector<SamplingParams> some_settings(int64_t vocab, const std::vector<size_t>& few) {
    const std::vector<SamplingParams> all = settings(vocab);
    if (!brief_counts() || vocab <= 512) return all;
    std::vector<SamplingParams> some;
    for (const size_t i : few) some.push_back(all[i]);
    return some;
}

/// Rows of logits of six kinds in turn.
inline void fill_logits(std::span<float> row, size_t kind, std::mt19937& random) {
    std::normal_distribution<float> normal(0, kind % 6 == 1 ? 5.0f : 2.0f);
    for (float& logit : row) logit = normal(random);
    if (kind % 6 == 2)
        for (float& logit : row) logit = std::round(logit * 4) / 4;  // many equals, -0 among them
    if (kind % 6 == 3) std::fill(row.begin(), row.end(), 1.5f);
    if (kind % 6 == 4)
        for (size_t i = 0; i + 1 < row.size(); ++i) row[i] = i % 50 == 7 ? row[i] : -kInf;
    if (kind % 6 == 5) std::sort(row.begin(), row.end());  // the largest are neighbours
}

}  // namespace riptide::testing
