// In which order the nodes of a tree are computed from their parents' states, with few states kept. Runs on both sides.
//
// Depth first, and of the children of a node the one with the largest subtree last: a node's state is kept only while
// its lighter subtrees are computed, and each of them has at most half of its nodes. So n nodes never keep more than
// log2(n + 1) states, while node-by-node order would keep up to n.
#pragma once

#include <cstdint>

#include "tensor/host_device.h"

namespace riptide::ops {

/// The most states kept at once for n nodes: a node that keeps its state has two children or more, and a lighter
/// subtree at most half of what is below its parent, the committed state counting as a node above all.
RT_HD constexpr int delta_slots(int64_t n) {
    int slots = 0;
    for (int64_t nodes = n + 1; nodes >= 3; nodes = (nodes - 1) / 2) ++slots;
    return slots;
}

/// One node, in the order of computing.
struct DeltaVisit {
    int32_t node = 0;
    int32_t load = -1;  // the slot that keeps its parent's state; -1: the state at hand is the parent's
    int32_t save = -1;  // the slot that keeps its own state behind it; -1: nobody will ask
};

/// The order for n < 32768 nodes with parent(i) < i, -1 for children of the committed state. Run begin(i) for all i in
/// [0, n], then count, choose, and place for all i in [0, n), everybody done with one before anybody starts the next:
/// that leaves `visits`. The committed state itself is kept in slot 0 if saves_root(). Arrays of n + 1 entries.
template <class Parent>
struct DeltaSchedule {
    Parent parent;
    int32_t n = 0;
    int32_t* size = nullptr;      // [i] nodes below and including i
    int32_t* heavy = nullptr;     // [i + 1] the key of i's heaviest child, the earliest of equals; [0] of the root's
    int32_t* children = nullptr;  // [i + 1] likewise
    int32_t* before = nullptr;    // [i] nodes computed between the parent and i, times two, plus one if i is not heavy
    DeltaVisit* visits = nullptr;

    RT_HD void begin(int32_t i) const {
        size[i] = 1;
        heavy[i] = 0;
        children[i] = 0;
    }
    template <class Add>
    RT_HD void count(int32_t i, const Add& add) const {
        add(&children[parent(i) + 1], 1);
        for (int32_t p = parent(i); p >= 0; p = parent(p)) add(&size[p], 1);
    }
    template <class Max>
    RT_HD void choose(int32_t i, const Max& max) const {
        max(&heavy[parent(i) + 1], (size[i] << 16) + 0xFFFF - i);
    }
    RT_HD void arrange(int32_t i) const {
        const int32_t p = parent(i), last = 0xFFFF - (heavy[p + 1] & 0xFFFF);
        int32_t nodes = 0;
        if (i == last) nodes = (p < 0 ? n : size[p] - 1) - size[i];
        else
            for (int32_t j = p + 1; j < i; ++j)
                if (parent(j) == p && j != last) nodes += size[j];
        before[i] = 2 * nodes + (i == last ? 0 : 1);
    }
    RT_HD void place(int32_t i) const {
        int32_t at = -1, light = 0;
        for (int32_t j = i; j >= 0; j = parent(j)) {
            at += 1 + before[j] / 2;
            light += before[j] % 2;
        }
        visits[at] = {i, before[i] / 2 == 0 ? -1 : light - before[i] % 2, children[i + 1] > 1 ? light : -1};
    }
    RT_HD bool saves_root() const { return children[0] > 1; }
};

}  // namespace riptide::ops
