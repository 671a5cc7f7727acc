#include "base/work_budget.h"

#include <gtest/gtest.h>

namespace riptide {
namespace {

TEST(WorkBudget, what_is_beyond_it_is_refused_and_stays_so) {
    WorkBudget work(1000);
    work.spend(900);
    EXPECT_EQ(work.steps_spent(), 900);
    work.spend_bytes(99 << 10);
    try {
        for (int i = 0; i < 1000; ++i) work.spend();
        ADD_FAILURE() << "1999 of 1000 steps";
    } catch (const TooMuchWork& error) {
        EXPECT_STREQ(error.what(), "takes more than 1000 steps");
        EXPECT_EQ(error.kind(), ErrorKind::data);
    }
    EXPECT_THROW(work.spend(), TooMuchWork);
    WorkBudget other(1000);
    EXPECT_THROW(other.spend(INT64_MAX), TooMuchWork);
}

TEST(WorkBudget, the_last_step_is_the_last) {
    for (const int64_t steps : {0, 1, 127, 128, 129, 1000}) {
        WorkBudget work(steps), small(steps);
        for (int64_t i = 0; i < steps; ++i) work.spend();
        EXPECT_THROW(work.spend(), TooMuchWork) << steps;
        EXPECT_EQ(work.steps_spent(), steps);
        for (int64_t i = 0; i < steps; ++i) small.spend_small(128);
        EXPECT_THROW(small.spend_small(1), TooMuchWork) << steps;
    }
}

TEST(WorkBudget, a_flag_stops_it_too) {
    std::atomic<bool> stop = false;
    WorkBudget work(WorkBudget::kUnlimited, &stop);
    work.spend(1 << 20);
    stop = true;
    EXPECT_THROW(work.spend(200), WorkStopped);
    WorkBudget nobodys(1000, nullptr);
    EXPECT_NO_THROW(nobodys.spend(1000));
}

TEST(WorkBudget, nothing_is_done_behind_the_end) {
    WorkBudget work(WorkBudget::kUnlimited);
    const auto begin = std::chrono::steady_clock::now();
    work.end_at(begin + std::chrono::milliseconds(5));
    EXPECT_THROW(while (std::chrono::steady_clock::now() < begin + std::chrono::seconds(10)) work.spend(), WorkLate);
    EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(5));
    EXPECT_THROW(work.look(), WorkLate);
}

TEST(WorkBudget, a_stop_is_heard_within_a_few_hundred_steps) {
    std::stop_source stop;
    WorkBudget work(WorkBudget::kSteps, stop.get_token());
    work.spend(1000);
    stop.request_stop();
    int steps = 0;
    try {
        for (; steps < 100'000; ++steps) work.spend();
    } catch (const WorkStopped& error) {
        EXPECT_EQ(error.kind(), ErrorKind::unavailable);
    }
    EXPECT_LT(steps, 300);
    EXPECT_THROW(work.look(), WorkStopped);
}

}  // namespace
}  // namespace riptide
