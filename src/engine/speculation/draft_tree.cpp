#include "engine/speculation/draft_tree.h"

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "ops/draft_round.h"

namespace riptide {

void DraftTree::clear() { shorten(0); }

int32_t DraftTree::add(int32_t parent, const DraftToken& drafted) {
    RT_ASSERT(parent >= -1 && parent < size());
    tokens.push_back(drafted.token);
    parents.push_back(parent);
    depths.push_back(parent < 0 ? 0 : depths[static_cast<size_t>(parent)] + 1);
    logprobs.push_back(drafted.logprob);
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
    for (const std::vector<DraftToken>& slot : draft.slots) {
        if (tree.size() >= width || slot.empty()) return;
        tree.add(static_cast<int32_t>(tree.size()) - 1, slot[0]);
    }
}

void build_tree(const Draft& draft, int64_t budget, int64_t seed, DraftTree& tree) {
    tree.clear();
    size_t k = 1;
    int64_t prefixes = 0, longest = 1;  // as many as there may be at all; of the slot's length
    for (const std::vector<DraftToken>& slot : draft.slots) {
        k = std::max(k, slot.size());
        longest = std::min(budget, longest * std::ssize(slot));
        prefixes = std::min(budget, prefixes + longest);
    }
    std::vector<int32_t> words(draft.slots.size() * k, -1);
    std::vector<float> logprobs(words.size(), std::numeric_limits<float>::quiet_NaN());
    for (size_t s = 0; s < draft.slots.size(); ++s)
        for (size_t c = 0; c < draft.slots[s].size(); ++c) {
            words[s * k + c] = draft.slots[s][c].token;
            logprobs[s * k + c] = draft.slots[s][c].logprob;
        }
    const auto rows = static_cast<size_t>(prefixes + 1);
    std::vector<int32_t> tokens(rows), positions(rows), parents(rows);
    std::vector<float> row_logprobs(rows);
    int32_t count = 0;
    ops::draft_rows_ref(words, logprobs, std::ssize(draft.slots), static_cast<int64_t>(k), {},
                        {.rows = static_cast<int32_t>(rows),
                         .chain = static_cast<int32_t>(seed),
                         .slots = static_cast<int32_t>(draft.slots.size()),
                         .choices = static_cast<int32_t>(k)},
                        {tokens.data(), positions.data(), parents.data(), row_logprobs.data(), &count});
    for (size_t i = 1; i < static_cast<size_t>(count); ++i) tree.add(parents[i] - 1, {tokens[i], row_logprobs[i]});
}

void row_parents(const DraftTree& tree, std::vector<int32_t>& parents) {
    parents.clear();
    if (tree.is_chain()) return;
    parents.push_back(-1);
    for (const int32_t parent : tree.parents) parents.push_back(parent + 1);
}

}  // namespace riptide
