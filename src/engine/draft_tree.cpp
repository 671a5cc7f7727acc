#include "engine/draft_tree.h"

#include <algorithm>
#include <queue>

#include "base/error.h"

namespace riptide {

void DraftTree::clear() { shorten(0); }

int32_t DraftTree::add(int32_t parent, const Guess& guess) {
    RT_ASSERT(parent >= -1 && parent < size());
    tokens.push_back(guess.token);
    parents.push_back(parent);
    depths.push_back(parent < 0 ? 0 : depths[static_cast<size_t>(parent)] + 1);
    logprobs.push_back(guess.logprob);
    return static_cast<int32_t>(size() - 1);
}

void DraftTree::shorten(int64_t nodes) {
    const auto n = static_cast<size_t>(std::min(nodes, size()));
    tokens.resize(n);
    parents.resize(n);
    depths.resize(n);
    logprobs.resize(n);
}

int32_t DraftTree::child(int32_t parent, int32_t token) const {
    for (auto i = static_cast<size_t>(parent + 1); i < tokens.size(); ++i)
        if (parents[i] == parent && tokens[i] == token) return static_cast<int32_t>(i);
    return -1;
}

bool DraftTree::is_chain() const {
    for (size_t i = 0; i < parents.size(); ++i)
        if (parents[i] != static_cast<int32_t>(i) - 1) return false;
    return true;
}

void build_chain(const Draft& draft, int64_t width, DraftTree& tree) {
    tree.clear();
    for (const std::vector<Guess>& slot : draft.slots) {
        if (tree.size() >= width || slot.empty()) return;
        tree.add(static_cast<int32_t>(tree.size()) - 1, slot[0]);
    }
}

namespace {

/// A prefix that is not in the tree, but whose parent is.
struct Prefix {
    double logprob;  // of the whole way
    size_t slot, choice;
    int32_t parent;
    int64_t found;  // how many were found before it
};

/// Whether b goes before a.
struct Later {
    bool operator()(const Prefix& a, const Prefix& b) const {
        if (a.logprob != b.logprob) return a.logprob < b.logprob;
        return a.slot != b.slot ? a.slot > b.slot : a.found > b.found;
    }
};

class Builder {
  public:
    Builder(const Draft& draft, DraftTree& tree) : draft_(draft), tree_(tree) {}

    /// The prefix `parent` + choice, if the draft has it. `before`: ln of the parent's way.
    void find(size_t slot, size_t choice, int32_t parent, double before) {
        if (slot >= draft_.slots.size() || choice >= draft_.slots[slot].size()) return;
        const double logprob = before + double{draft_.slots[slot][choice].logprob};
        if (logprob == logprob) open_.push({logprob, slot, choice, parent, found_++});  // not NaN
    }
    /// Inserts the best, and finds its sibling and its first child. False if there is none.
    bool take() {
        if (open_.empty()) return false;
        const Prefix best = open_.top();
        open_.pop();
        const Guess& guess = draft_.slots[best.slot][best.choice];
        const int32_t node = tree_.add(best.parent, guess);
        find(best.slot, best.choice + 1, best.parent, best.logprob - double{guess.logprob});
        find(best.slot + 1, 0, node, best.logprob);
        return true;
    }

  private:
    const Draft& draft_;
    DraftTree& tree_;
    std::priority_queue<Prefix, std::vector<Prefix>, Later> open_;
    int64_t found_ = 0;
};

}  // namespace

void build_tree(const Draft& draft, int64_t budget, int64_t seed, DraftTree& tree) {
    tree.clear();
    Builder builder(draft, tree);
    const int64_t chain = std::min({seed, budget, std::ssize(draft.slots)});
    double way = 0;
    int32_t parent = -1;
    for (int64_t d = 0; d < chain && !draft.slots[static_cast<size_t>(d)].empty(); ++d) {
        const Guess& first = draft.slots[static_cast<size_t>(d)][0];
        builder.find(static_cast<size_t>(d), 1, parent, way);
        parent = tree.add(parent, first);
        way += double{first.logprob};
    }
    builder.find(tree.tokens.size(), 0, parent, way);
    while (tree.size() < budget && builder.take()) {
    }
}

void row_parents(const DraftTree& tree, std::vector<int32_t>& parents) {
    parents.clear();
    if (tree.is_chain()) return;
    parents.push_back(-1);
    for (const int32_t parent : tree.parents) parents.push_back(parent + 1);
}

}  // namespace riptide
