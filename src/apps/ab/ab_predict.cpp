#include "apps/ab/ab_predict.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/error.h"
#include "engine/speculation/draft_tree.h"

namespace riptide::apps {

std::vector<StepCost> read_costs(const std::string& text) {
    std::vector<StepCost> costs;
    const char* at = text.data();
    const char* const end = at + text.size();
    const auto expect = [&](bool good) {
        if (!good)
            fail(ErrorKind::usage,
                 "--costs {}: expected ROWS:MS,ROWS:MS,... with rows that begin with 1 and grow, and times "
                 "above 0",
                 text);
    };
    while (at != end) {
        StepCost cost;
        const auto rows = std::from_chars(at, end, cost.rows);
        expect(rows.ec == std::errc() && rows.ptr != end && *rows.ptr == ':');
        const auto ms = std::from_chars(rows.ptr + 1, end, cost.ms);
        expect(ms.ec == std::errc() && cost.ms > 0);
        expect(costs.empty() ? cost.rows == 1 : cost.rows > costs.back().rows);
        costs.push_back(cost);
        at = ms.ptr;
        expect(at == end || (*at == ',' && at + 1 != end));
        if (at != end) ++at;
    }
    expect(!costs.empty());
    return costs;
}

namespace {

/// Between measured numbers of rows, a straight line.
double step_ms(const std::vector<StepCost>& costs, int64_t rows) {
    const auto above = std::find_if(costs.begin(), costs.end(), [&](const StepCost& c) { return c.rows >= rows; });
    if (above->rows == rows) return above->ms;
    const StepCost& below = *(above - 1);
    return below.ms + (above->ms - below.ms) * static_cast<double>(rows - below.rows) /
                          static_cast<double>(above->rows - below.rows);
}

}  // namespace

std::vector<Prediction> predict_chains(const std::vector<StepCost>& costs, double acceptance, double draft_ms) {
    std::vector<Prediction> all;
    double tokens = 0, chance = 1;
    for (int64_t rows = 1; rows <= costs.back().rows; ++rows, chance *= acceptance) {
        tokens += chance;
        all.push_back({rows - 1, tokens, step_ms(costs, rows) + (rows > 1 ? draft_ms : 0)});
    }
    return all;
}

std::vector<Prediction> predict_trees(const std::vector<StepCost>& costs, const std::vector<double>& choices,
                                      double draft_ms) {
    const int64_t most = costs.back().rows - 1;
    Draft draft;
    for (int64_t slot = 0; slot < most; ++slot) {
        draft.slots.emplace_back();
        for (size_t c = 0; c < choices.size(); ++c)
            draft.slots.back().push_back({static_cast<int32_t>(c), static_cast<float>(std::log(choices[c]))});
    }
    std::vector<Prediction> all = {{0, 1, costs.front().ms}};
    for (int64_t drafts = 1; drafts <= most; ++drafts) {
        DraftTree tree;
        build_tree(draft, drafts, (drafts + 1) / 2, tree);
        std::vector<double> chances;
        double tokens = 1;
        for (size_t i = 0; i < tree.tokens.size(); ++i) {
            const double before = tree.parents[i] < 0 ? 1 : chances[static_cast<size_t>(tree.parents[i])];
            chances.push_back(before * choices[static_cast<size_t>(tree.tokens[i])]);
            tokens += chances.back();
        }
        all.push_back({drafts, tokens, step_ms(costs, drafts + 1) + draft_ms});
    }
    return all;
}

std::string prediction_table(const std::vector<StepCost>& costs, const std::vector<Prediction>& predictions) {
    const auto best = std::max_element(predictions.begin(), predictions.end(),
                                       [](const Prediction& a, const Prediction& b) { return a.rate() < b.rate(); });
    std::string out =
        fmt::format("{:<10} {:>12} {:>10} {:>10} {:>9}\n", "drafts", "tokens/step", "ms", "tok/s", "speed-up");
    for (const Prediction& p : predictions) {
        const bool measured =
            std::any_of(costs.begin(), costs.end(), [&](const StepCost& c) { return c.rows == p.width + 1; });
        if (!measured && p.width != best->width) continue;
        out += fmt::format("{:<10} {:>12.2f} {:>10.2f} {:>10.0f} {:>8.2f}x{}\n",
                           p.width == 0 ? "plain" : std::to_string(p.width), p.tokens, p.ms, p.rate(),
                           p.rate() / predictions.front().rate(), p.width == best->width ? "  the fastest" : "");
    }
    return out;
}

}  // namespace riptide::apps
