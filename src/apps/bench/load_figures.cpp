#include "apps/bench/load_figures.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <numeric>
#include <random>

#include "base/error.h"

namespace riptide::apps {

namespace {

/// In (0, 1]. (Distributions of the standard library differ from one to the next.)
double uniform(std::mt19937_64& rng) { return static_cast<double>((rng() >> 11) + 1) * 0x1p-53; }

int64_t tokens_until(const TokenTimes& times, double until) {
    return std::upper_bound(times.begin(), times.end(), until) - times.begin();
}

}  // namespace

Percentiles percentiles(std::vector<double> values) {
    if (values.empty()) return {};
    std::sort(values.begin(), values.end());
    const auto count = std::ssize(values);
    const auto at = [&](int64_t percent) {  // whole numbers: 0.99 * 100 is more than 99
        return values[static_cast<size_t>((percent * count + 99) / 100 - 1)];
    };
    return {count, at(50), at(90), at(99), values.back()};
}

void Repeats::add(double value) { values.insert(std::upper_bound(values.begin(), values.end(), value), value); }

double Repeats::median() const { return values.empty() ? 0 : values[values.size() / 2]; }

double Repeats::spread() const { return median() == 0 ? 0 : (values.back() - values.front()) / median(); }

std::vector<double> gaps(std::span<const TokenTimes> answers, double from, double to) {
    std::vector<double> result;
    for (const TokenTimes& times : answers)
        for (size_t i = 1; i < times.size(); ++i)
            if (times[i] > from && times[i] <= to) result.push_back(times[i] - times[i - 1]);
    return result;
}

Repeats steady_rates(std::span<const TokenTimes> answers, double from, int64_t steps, int64_t windows) {
    RT_ASSERT(steps >= 1);
    Repeats rates;
    double begin = from, end = std::numeric_limits<double>::infinity();
    for (const TokenTimes& times : answers) {
        if (times.empty()) return rates;
        begin = std::max(begin, times.front());
        end = std::min(end, times.back());
    }
    if (answers.empty()) return rates;
    const TokenTimes& clock = answers.front();
    const auto first = static_cast<size_t>(std::lower_bound(clock.begin(), clock.end(), begin) - clock.begin());
    for (int64_t w = 0; w < windows; ++w) {
        const size_t a = first + static_cast<size_t>(w * steps), b = a + static_cast<size_t>(steps);
        if (b >= clock.size() || clock[b] > end) break;
        int64_t tokens = 0;
        for (const TokenTimes& times : answers) tokens += tokens_until(times, clock[b]) - tokens_until(times, clock[a]);
        rates.add(static_cast<double>(tokens) / (clock[b] - clock[a]));
    }
    return rates;
}

int64_t most_at_once(std::span<const std::pair<double, double>> spans) {
    std::vector<std::pair<double, int>> changes;  // ends before begins at one instant
    for (const auto& [begin, end] : spans) {
        changes.emplace_back(begin, 1);
        changes.emplace_back(end, -1);
    }
    std::sort(changes.begin(), changes.end());
    int64_t now = 0, most = 0;
    for (const auto& [time, change] : changes) most = std::max(most, now += change);
    return most;
}

std::vector<double> poisson_arrivals(double rate, int64_t count, uint64_t seed) {
    RT_ASSERT(rate > 0);
    std::mt19937_64 rng(seed);
    std::vector<double> times;
    double now = 0;
    for (int64_t i = 0; i < count; ++i) times.push_back(now += -std::log(uniform(rng)) / rate);
    return times;
}

std::vector<int64_t> uneven_sizes(int64_t total, int64_t parts, int64_t least, uint64_t seed) {
    RT_ASSERT(parts >= 1 && least >= 0 && total >= parts * least);
    std::mt19937_64 rng(seed);
    std::vector<double> weights;
    for (int64_t i = 0; i < parts; ++i) {
        const double radius = std::sqrt(-2 * std::log(uniform(rng)));  // Box and Muller's normal variate
        weights.push_back(std::exp(radius * std::cos(2 * std::numbers::pi * uniform(rng))));
    }
    const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
    const int64_t more = total - parts * least;
    std::vector<int64_t> sizes;
    double upto = 0;
    int64_t given = 0;
    for (int64_t i = 0; i < parts; ++i) {
        upto += weights[static_cast<size_t>(i)];
        const int64_t until =
            i + 1 == parts ? more
                           : std::clamp(static_cast<int64_t>(upto / sum * static_cast<double>(more)), given, more);
        sizes.push_back(least + until - given);
        given = until;
    }
    return sizes;
}

}  // namespace riptide::apps
