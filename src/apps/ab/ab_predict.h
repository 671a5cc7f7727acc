// What speculative decoding would gain, from what steps cost and how often a draft is right.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace riptide::apps {

/// What a step over so many rows takes.
struct StepCost {
    int64_t rows = 0;
    double ms = 0;
};
/// "1:1.13,4:2.97,16:3.99": rows and milliseconds, as `riptide bench --verify-rows` measures them. Throws Error (usage)
/// unless rows begin with 1 and grow, and times are above 0.
std::vector<StepCost> read_costs(const std::string& text);

struct Prediction {
    int64_t width = 0;  // drafts in a step; 0: plain decoding
    double tokens = 1;  // a step, expected
    double ms = 0;      // draft and step
    double rate() const { return 1000 * tokens / ms; }
};
/// Chains of 0, 1, ... drafts, as far as steps have been measured (between measured numbers of rows costs lie on a
/// straight line). Each draft is right with probability `acceptance` if all before it are:
///     tokens = 1 + p + p^2 + ... + p^width;   ms = draft_ms (0 for width 0) + cost(width + 1 rows)
/// A model of one sequence: the drafter's own accuracy in later slots and the host are not in it.
std::vector<Prediction> predict_chains(const std::vector<StepCost>& costs, double acceptance, double draft_ms);

/// Trees of 0, 1, ... drafts, as the engine builds them (build_tree, half of a tree its chain) for a drafter whose
/// first, second, ... choice for each token is right with probability choices[0], choices[1], ..., and knows it:
///     tokens = 1 + sum over nodes of the product of the probabilities on its way
std::vector<Prediction> predict_trees(const std::vector<StepCost>& costs, const std::vector<double>& choices,
                                      double draft_ms);

/// A line for each width that was measured, and for the fastest.
std::string prediction_table(const std::vector<StepCost>& costs, const std::vector<Prediction>& predictions);

}  // namespace riptide::apps
