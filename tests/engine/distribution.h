// The distribution that a sampler's header defines, and whether draws follow it.
#pragma once

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "engine/sampling/sampling_params.h"

namespace riptide::testing {

using Distribution = std::map<int32_t, double>;

inline Distribution normalised(const Distribution& weights) {
    double total = 0;
    for (const auto& [token, w] : weights) total += w;
    Distribution p;
    for (const auto& [token, w] : weights)
        if (w > 0) p[token] = w / total;
    return p;
}

/// The header's chain after the penalties, written down a second time, slowly.
inline Distribution exact(const std::vector<double>& logits, const SamplingParams& s) {
    std::vector<double> sorted = logits;
    std::sort(sorted.rbegin(), sorted.rend());
    const double kth =
        s.top_k > 0 && s.top_k < std::ssize(sorted) ? sorted[static_cast<size_t>(s.top_k - 1)] : -INFINITY;
    Distribution p;
    for (size_t i = 0; i < logits.size(); ++i)
        if (logits[i] >= kth && logits[i] > -INFINITY)
            p[static_cast<int32_t>(i)] = std::exp((logits[i] - sorted[0]) / s.temperature);
    p = normalised(p);
    std::vector<std::pair<double, int32_t>> order;
    for (const auto& [token, w] : p) order.emplace_back(-w, token);
    std::sort(order.begin(), order.end());
    double sum = 0, largest = -order[0].first;
    Distribution kept;
    for (const auto& [w, token] : order) {
        if (s.top_p < 1 && sum >= s.top_p && !kept.empty()) break;
        kept[token] = -w;
        sum -= w;
    }
    for (auto it = kept.begin(); it != kept.end();)
        it = it->second < s.min_p * largest ? kept.erase(it) : std::next(it);
    return normalised(kept);
}

/// Upper quantile of chi-square at alpha 1e-4 (Wilson and Hilferty 1931; within 1 % for df >= 3).
inline double chi2_limit(double df) {
    const double z = 3.719, c = 2 / (9 * df);
    return df * std::pow(1 - c + z * std::sqrt(c), 3);
}

/// Pearson's test over the draws from any number of distributions; of each, tokens of expected count below 20 are one
/// cell.
struct ChiSquare {
    double value = 0;
    int cells = 0, sources = 0;

    void add(const std::map<int32_t, int>& counts, const Distribution& p, int64_t draws) {
        double pooled = 0, pooled_count = 0;
        for (const auto& [token, probability] : p) {
            const double expected = probability * static_cast<double>(draws);
            const auto found = counts.find(token);
            const double seen = found == counts.end() ? 0 : found->second;
            if (expected < 20) pooled += expected, pooled_count += seen;
            else value += (seen - expected) * (seen - expected) / expected, ++cells;
        }
        if (pooled >= 20) value += (pooled_count - pooled) * (pooled_count - pooled) / pooled, ++cells;
        ++sources;
    }
    double df() const { return cells - sources; }
    double limit() const { return chi2_limit(df()); }
};

}  // namespace riptide::testing
