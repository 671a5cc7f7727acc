#include "engine/speculation/speculation.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "base/error.h"
#include "engine/session_options.h"
#include "engine/speculation/ngram_drafter.h"

namespace riptide {

namespace {

/// Numbers of drafts in a round of the device. Each is a graph whose first two
/// rounds are slow, so not every number is one.
constexpr int64_t kAheadNodes[] = {1, 2, 3, 4, 5, 7, 11, 15, 23, 31, 47};

std::vector<int64_t> ahead_nodes(int64_t most) {
    std::vector<int64_t> nodes(std::begin(kAheadNodes),
                               std::lower_bound(std::begin(kAheadNodes), std::end(kAheadNodes), most));
    nodes.push_back(most);
    return nodes;
}

/// Drafts in a round of the device, at most.
int64_t most_ahead(const SpeculationOptions& options) {
    return std::min<int64_t>(options.tree > 0 ? options.tree : options.width, ops::kMostRoundRows - 1);
}

}  // namespace

void check_speculation(const SpeculationOptions& o) {
    check_option("draft_width", o.width, 1, SpeculationOptions::kMostWidth);
    check_option("draft_tree", o.tree, 0, SpeculationOptions::kMostTree);
}

std::unique_ptr<Drafter> make_drafter(const SpeculationOptions& options, const DraftTarget& target) {
    if (options.make) return options.make();
    if (options.drafter == "ngram") {
        NgramOptions ngram;
        ngram.slots = SpeculationOptions::kMostWidth;
        return std::make_unique<NgramDrafter>(ngram);
    }
    auto checkpoint = options.open ? options.open() : open_checkpoint(options.drafter);
    RT_CHECK(is_dflash(*checkpoint), ErrorKind::usage, "{}: no DFlash drafter; expected one, or ngram",
             options.drafter);
    return std::make_unique<DflashDrafter>(std::move(checkpoint), target);
}

Speculator::Speculator(std::shared_ptr<Drafter> drafter, const SpeculationOptions& options)
    : drafter_(std::move(drafter)), options_(options), width_(drafter_->slots()), ahead_width_(0) {
    check_speculation(options);
    options_.width = std::min(options.width, drafter_->slots());
    ahead_width_ = DraftWidth(drafter_->slots(), ahead_nodes(most_ahead(options_)));
    clear_stats();
}

void Speculator::clear_stats() {
    stats_ = {};
    stats_.slots.resize(static_cast<size_t>(options_.width));
}

std::span<const DraftTree> Speculator::propose(std::span<const Wanted> wanted) {
    const auto start = std::chrono::steady_clock::now();
    requests_.clear();
    drafts_.resize(wanted.size());
    trees_.resize(wanted.size());
    for (const Wanted& w : wanted)
        requests_.push_back({w.sequence, static_cast<int32_t>(std::min<int64_t>(options_.width, w.most)),
                             options_.tree > 0 ? std::min(kTreeChoices, options_.tree) : 1});
    drafter_->propose(requests_, drafts_);
    for (size_t i = 0; i < wanted.size(); ++i) {
        // Half of a tree is its chain: drafts that are too humble would else make it broad and short.
        if (options_.tree == 0) build_chain(drafts_[i], requests_[i].slots, trees_[i]);
        else
            build_tree(drafts_[i], std::min<int64_t>(options_.tree, wanted[i].most), (options_.tree + 1) / 2,
                       trees_[i]);
    }
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    stats_.draft_seconds += seconds;
    if (!options_.adaptive) return trees_;
    const bool any = std::any_of(trees_.begin(), trees_.end(), [](const DraftTree& tree) { return !tree.empty(); });
    if (any) width_.drafted(seconds);
    for (DraftTree& tree : trees_) choose(tree, std::ssize(wanted));
    return trees_;
}

void Speculator::choose(DraftTree& tree, int64_t sequences) {
    chances_.clear();
    for (size_t i = 0; i < tree.tokens.size(); ++i) {
        const double own = width_.chance(tree.depths[i], std::exp(double{tree.logprobs[i]}));
        chances_.push_back(tree.parents[i] < 0 ? own : own * chances_[static_cast<size_t>(tree.parents[i])]);
    }
    tree.shorten(width_.choose(chances_, sequences));
}

bool Speculator::wants_rounds(bool on_gpu) const {
    using Rounds = SpeculationOptions::Rounds;
    const bool device = options_.rounds == Rounds::device || (options_.rounds == Rounds::choose && on_gpu);
    return device && options_.tree < ops::kMostRoundRows && drafter_->dflash() != nullptr;
}

ops::DraftPlan Speculator::plan_ahead(int64_t most) {
    const bool tree = options_.tree > 0;
    most = std::min(most, most_ahead(options_));
    if (options_.adaptive) {
        ahead_width_.usual(most, chances_);
        most = ahead_width_.choose(chances_);
    }
    ops::DraftPlan plan;
    plan.rows = static_cast<int32_t>(most) + 1;
    if (most == 0) return plan;
    plan.chain = tree ? (options_.tree + 1) / 2 : plan.rows - 1;
    plan.slots = options_.width;
    plan.choices = tree ? std::min(kTreeChoices, options_.tree) : 1;
    return plan;
}

void Speculator::ran_ahead(uint64_t sequence, const DraftTree& tree, std::span<const int32_t> path,
                           std::span<const int32_t> tokens, int64_t rows, double seconds) {
    ahead_width_.checked(tree.size(), path);
    ahead_width_.gained(std::ssize(path) - 1);
    if (seconds > 0) ahead_width_.stepped(rows, seconds);
    settle(sequence, tree, path, tokens);
}

void Speculator::ran_plain(uint64_t sequence, std::span<const int32_t> tokens, double seconds) {
    ++stats_.steps;
    ahead_width_.skip(1);
    if (seconds > 0) ahead_width_.stepped(1, seconds);
    drafter_->extend(sequence, tokens);
}

void Speculator::idled(int64_t steps, double seconds, int64_t rows) {
    if (steps <= 0) return;
    stats_.steps += steps * rows;
    width_.skip(steps);
    width_.stepped(rows, seconds / static_cast<double>(steps));
}

void Speculator::settle(uint64_t sequence, const DraftTree& tree, std::span<const int32_t> path,
                        std::span<const int32_t> tokens) {
    RT_ASSERT(!path.empty() && path[0] == 0);
    ++stats_.steps;
    stats_.drafted += tree.size();
    stats_.accepted += std::ssize(path) - 1;
    // The walk has looked at the children of every row that it kept. The last row's token may have been the answer's
    // end, in which case none of them was wrong: tokens is as long as the path only if a token follows.
    for (size_t i = 0; i < path.size(); ++i) {
        const int32_t node = path[i] - 1, next = i + 1 < path.size() ? path[i + 1] - 1 : -1;
        if (next < 0 && tokens.size() < path.size()) break;
        bool any = false;
        for (size_t c = static_cast<size_t>(node + 1); c < tree.tokens.size(); ++c) {
            if (tree.parents[c] != node) continue;
            any = true;
            width_.reached(static_cast<int32_t>(i), std::exp(double{tree.logprobs[c]}),
                           static_cast<int32_t>(c) == next);
        }
        if (any && i < stats_.slots.size()) {
            ++stats_.slots[i].reached;
            stats_.slots[i].accepted += next >= 0;
        }
    }
    width_.gained(std::ssize(path) - 1);
    drafter_->extend(sequence, tokens);
}

}  // namespace riptide
