// Teams of a CTA share strips: every quad once and in order, no team with more than others, nobody waits.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "ops/cuda/linear/shared/kquant_f16_schedule.h"

namespace riptide::ops {
namespace {

/// When a team is done with the part of a strip that another one ends.
struct Begun {
    int strip, to, done;
};

TEST(F16Share, teams_have_every_quad_once_and_end_together) {
    for (const int by : {1, 2})
        for (const int teams : {2, 3, 4, 5, 7, 8})
            for (const int quads : {3, 4, 5, 6, 8, 9, 17, 25})
                for (int strips = 0; strips < 40; ++strips) {
                    SCOPED_TRACE(::testing::Message()
                                 << strips << " strips of " << quads << " quads, " << teams << " teams, by " << by);
                    std::vector<int> done(static_cast<size_t>(strips), 0);  // quads of each strip
                    std::vector<Begun> begun;
                    int least = 1 << 30, most = 0;
                    for (int team = 0; team < teams; ++team) {
                        const F16Share share(quads, f16_begin(strips, quads, teams, team, by),
                                             f16_begin(strips, quads, teams, team + 1, by));
                        int time = 0;
                        std::vector<F16Part> late;
                        for (int i = 0; i < share.parts; ++i) {
                            const F16Part part = share.part(i);
                            ASSERT_TRUE(part.strip >= 0 && part.strip < strips);
                            ASSERT_TRUE(part.from >= 0 && part.from < part.to && part.to <= quads);
                            ASSERT_TRUE(part.from % by == 0 && (part.to % by == 0 || part.to == quads));
                            ASSERT_GE(part.to - part.from, std::min(by, quads)) << "a warp without a quad";
                            if (part.from > 0) {  // the team before began it, as its first thing
                                ASSERT_FALSE(begun.empty());
                                const Begun& other = begun.back();
                                ASSERT_TRUE(other.strip == part.strip && other.to == part.from);
                                EXPECT_LE(other.done, time + by) << "it has to wait";
                                EXPECT_EQ(i, share.parts - 1);
                            }
                            time += part.to - part.from;
                            done[static_cast<size_t>(part.strip)] += part.to - part.from;
                            if (part.to < quads) {
                                EXPECT_EQ(i, 0);
                                late.push_back(part);
                            }
                        }
                        for (const F16Part& part : late) begun.push_back({part.strip, part.to, part.to - part.from});
                        least = std::min(least, time), most = std::max(most, time);
                    }
                    for (const int count : done) ASSERT_EQ(count, quads);
                    if (strips >= teams) {
                        EXPECT_LE(most - least, 2 * by);
                    }
                    const F16Begin end = f16_begin(strips, quads, teams, teams, by);
                    EXPECT_EQ(F16Share(quads, end, end).parts, 0);
                }
}

}  // namespace
}  // namespace riptide::ops
