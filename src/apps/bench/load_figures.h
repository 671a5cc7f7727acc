// The arithmetic of `riptide bench --serve`: what times of arrival say about an engine under load. Times are seconds of
// one clock.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace riptide::apps {

/// When the tokens of one answer came, ascending.
using TokenTimes = std::vector<double>;

/// By nearest rank: p99 is the smallest value that at least 99 % of all values do not exceed. All 0 without values.
struct Percentiles {
    int64_t count = 0;
    double p50 = 0, p90 = 0, p99 = 0, most = 0;
};
Percentiles percentiles(std::vector<double> values);

/// Repeats of one figure, sorted.
struct Repeats {
    std::vector<double> values;
    void add(double value);
    double median() const;
    double spread() const;  // (largest - smallest) / median
};

/// Inter-token times of all answers: from each token that came in (from, to] back to the one before it.
std::vector<double> gaps(std::span<const TokenTimes> answers, double from, double to);

/// Tokens per second of answers that decode together: of up to `windows` stretches, one behind the other, of
/// `steps` tokens of the first answer each, the first of which begins with its first token not before `from`. Cut at
/// that answer's tokens because they come once a step: a cut by the clock would count up to a step too many or too few.
/// Only stretches in which every answer has begun and none has ended: fewer, or none, if there are no more.
Repeats steady_rates(std::span<const TokenTimes> answers, double from, int64_t steps, int64_t windows);

/// The most spans [begin, end) that hold one instant.
int64_t most_at_once(std::span<const std::pair<double, double>> spans);

/// Ascending times of `count` arrivals at `rate` a second that know nothing of each other (a Poisson process from 0).
/// The same seed gives the same times.
std::vector<double> poisson_arrivals(double rate, int64_t count, uint64_t seed);

/// `parts` sizes of at least `least` that add up to `total`, as uneven as what tools return: each beyond `least` in
/// proportion to a draw from a log-normal distribution (sigma 1: one in ten is 3.6 times the median). The same seed
/// gives the same sizes. REQUIRES total >= parts * least.
std::vector<int64_t> uneven_sizes(int64_t total, int64_t parts, int64_t least, uint64_t seed);

}  // namespace riptide::apps
