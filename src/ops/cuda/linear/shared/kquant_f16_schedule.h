// Who multiplies what in kquant_f16_mma_sm90.cu: all teams of a CTA have equally many quads, or some would be alone at
// the end.
#pragma once

#include <cstdint>

#include "tensor/host_device.h"

namespace riptide::ops {

/// Quads `from` .. `to` - 1 of a strip.
struct F16Part {
    int strip, from, to;
};

/// Before quad `quad` of strip `strip`.
struct F16Begin {
    int16_t strip, quad;
};

/// Where team `team` of `teams` begins and the one before ends in `strips` strips of `quads` quads: all have equally
/// many (of a strip a multiple of `by`). Fewer strips than teams: one each. The host's: divisions would delay what a
/// CTA asks for first.
inline F16Begin f16_begin(int strips, int quads, int teams, int team, int by) {
    const auto at = [](int strip, int quad) {
        return F16Begin{static_cast<int16_t>(strip), static_cast<int16_t>(quad)};
    };
    if (team >= teams) return at(strips, 0);
    if (strips < teams) return at(team < strips ? team : strips, 0);
    const int here = strips * quads * team / teams, quad = here % quads / by * by;
    return quad + by > quads ? at(here / quads + 1, 0) : at(here / quads, quad);
}

/// What a team multiplies, from where it begins to where the next one does, so that one may begin a strip and the next
/// one end it. In the order of time comes first what the next team will end, and last what the team before has begun,
/// which was the first thing it did.
struct F16Share {
    int quads;
    int first, at, last, to;  // from quad `at` of strip `first` to before quad `to` of strip `last`
    int parts;

    RT_HD F16Share(int quads_, F16Begin from, F16Begin end)
        : quads(quads_),
          first(from.strip),
          at(from.quad),
          last(end.strip),
          to(end.quad),
          parts(last - first + (to > 0 ? 1 : 0)) {}
    /// In the order of time; i < parts.
    RT_HD F16Part part(int i) const {
        const int early = to > 0 ? 1 : 0, strip = first + (at > 0 ? 1 : 0) + i - early;
        if (i < early) return {last, last == first ? at : 0, to};
        return strip < last ? F16Part{strip, 0, quads} : F16Part{first, at, quads};
    }
};

/// Where the teams of clusters begin: of the first `many` clusters, which have a strip more ([1]), and of the others.
struct F16Plan {
    static constexpr int kTeams = 8;
    int32_t many = 0;
    F16Begin begin[2][kTeams + 1] = {};
};

}  // namespace riptide::ops
