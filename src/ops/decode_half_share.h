// Who multiplies what in decode_half.cu: all teams of a CTA have equally many quads, or some would be alone at the end.
#pragma once

#include <cstdint>

#include "tensor/host_device.h"

namespace riptide::ops {

/// Quads `from` .. `to` - 1 of a strip.
struct HalfPart {
    int strip, from, to;
};

/// What a team multiplies of `strips` strips of `quads` quads: all teams have equally many (of a strip a multiple of
/// `by`), so that one may begin a strip and the next one end it. In the order of time comes first what the next team
/// will end, and last what the team before has begun, which was the first thing it did. Fewer strips than teams: one
/// each.
struct HalfShare {
    int quads;
    int first, at, last, to;  // from quad `at` of strip `first` to before quad `to` of strip `last`
    int parts;

    RT_HD HalfShare(int strips, int quads_, int teams, int team, int by) : quads(quads_) {
        first = last = strips, at = to = 0;
        if (team < teams && strips < teams) {
            first = team < strips ? team : strips, last = team < strips ? team + 1 : strips;
        } else if (team < teams) {
            begin(strips, teams, team, by, first, at);
            begin(strips, teams, team + 1, by, last, to);
        }
        parts = last - first + (to > 0 ? 1 : 0);
    }
    /// In the order of time; i < parts.
    RT_HD HalfPart part(int i) const {
        const int early = to > 0 ? 1 : 0, strip = first + (at > 0 ? 1 : 0) + i - early;
        if (i < early) return {last, last == first ? at : 0, to};
        return strip < last ? HalfPart{strip, 0, quads} : HalfPart{first, at, quads};
    }

  private:
    RT_HD void begin(int strips, int teams, int team, int by, int& strip, int& quad) const {
        const auto all = static_cast<int>(static_cast<uint32_t>(strips * quads * team) / static_cast<uint32_t>(teams));
        strip = all / quads, quad = all % quads / by * by;
        if (quad + by > quads) ++strip, quad = 0;
    }
};

}  // namespace riptide::ops
