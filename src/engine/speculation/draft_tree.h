// Which drafts a step checks: a chain, or a tree of them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/speculation/drafter.h"

namespace riptide {

/// Drafted tokens below the last token of a sequence. A node comes behind its parent, so the first n nodes are a tree
/// too, for every n.
struct DraftTree {
    std::vector<int32_t> tokens;
    std::vector<int32_t> parents;  // the parent's number; -1: the sequence's last token
    std::vector<int32_t> depths;   // 0 for children of the last token: the slot that drafted it
    std::vector<float> logprobs;   // ln of the draft alone

    int64_t size() const { return static_cast<int64_t>(tokens.size()); }
    bool empty() const { return tokens.empty(); }
    void clear();
    /// Appends a node; returns its number.
    int32_t add(int32_t parent, const DraftToken& drafted);
    /// Keeps the first `nodes`.
    void shorten(int64_t nodes);
    /// The child of `parent` with this token; -1 if there is none.
    int32_t child(int32_t parent, int32_t token) const;
    /// Whether each node is the child of the one before it.
    bool is_chain() const;
};

/// The first draft of each slot, at most `width` of them.
void build_chain(const Draft& draft, int64_t width, DraftTree& tree);

inline constexpr int32_t kTreeChoices = 8;  // drafts in a slot of a tree, at most

/// At most `budget` nodes, the first `seed` of them the chain of the best drafts: ops::draft_rows. (The marginals of
/// DFlash do not know of each other.) O(budget log budget).
void build_tree(const Draft& draft, int64_t budget, int64_t seed, DraftTree& tree);

/// The way through a tree whose rows have been verified: from the root (row 0; node i is row i + 1), `draw(row)` draws
/// the token that follows a row, and the walk goes on where the tree has drafted it. Rows are asked for in order, only
/// those of the way. draw returns -1 to end the walk. Returns the rows: 0, then accepted ones.
template <class Draw>
void walk(const DraftTree& tree, std::vector<int32_t>& path, const Draw& draw) {
    path.clear();
    for (int32_t row = 0; row >= 0;) {
        path.push_back(row);
        const int32_t token = draw(row);
        row = token < 0 ? -1 : tree.child(row - 1, token) + 1;
        if (row == 0) row = -1;  // no such child
    }
}

/// Parents as StepItem has them: of rows, with the last token as row 0. Empty for a chain.
void row_parents(const DraftTree& tree, std::vector<int32_t>& parents);

}  // namespace riptide
