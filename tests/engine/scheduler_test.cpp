// What the scheduler promises, one thing at a time. scheduler_scenarios_test.cpp has the law.
#include "engine/scheduler/scheduler.h"

#include <gtest/gtest.h>

#include "tests/engine/scheduler_world.h"
#include "tests/test_device.h"

namespace riptide {
namespace {

const std::vector<int32_t> kPrompt = {5, 6, 7, 8, 9, 10, 11};

ScheduledRequest request(std::vector<int32_t> prompt, int64_t max_tokens, uint64_t session = 0, int priority = 1) {
    return {.prompt = std::move(prompt), .max_tokens = max_tokens, .session = session, .priority = priority};
}

TEST(scheduler, decoding_rows_come_first_and_prompts_fill_the_row_budget) {
    WorldOptions o = small(60, 4);
    SchedulerWorld world(o, 1);
    world.submit(request(world.invent(3), 20));
    world.step();
    EXPECT_EQ(world.last_rows(), 3);
    world.submit(request(world.invent(30), 4));
    world.step();
    EXPECT_EQ(world.last_rows(), 1 + o.scheduler.prefill_rows_beside);
    ASSERT_EQ(world.last_plan()->decode_ids, std::vector<RequestId>{1});
    ASSERT_EQ(world.last_plan()->prefill_ids, std::vector<RequestId>{2});
    EXPECT_EQ(world.scheduler().longest_prompt(), 30);
    world.scheduler().read_beside(5);
    world.step();
    EXPECT_EQ(world.last_rows(), 1 + 5);
    world.cancel(1);
    world.step();
    EXPECT_EQ(world.last_rows(), o.scheduler.prefill_rows);  // nobody waits for it any more
    drain(world);
    EXPECT_EQ(world.scheduler().longest_prompt(), 0);
}

TEST(scheduler, decoding_requests_beyond_the_row_budget_take_turns) {
    WorldOptions o = small(200, 9);
    o.scheduler.decode_rows = 3;
    SchedulerWorld world(o, 2);
    for (uint64_t i = 0; i < 9; ++i) world.submit(request(world.invent(7, 40), 40, i));
    while (world.scheduler().decoding().size() < 9) world.step();
    for (int i = 0; i < 3; ++i) world.step();
    for (int round = 0; round < 3; ++round) {
        std::set<RequestId> fed;
        for (int i = 0; i < 3; ++i) {
            world.step();
            fed.insert(world.last_plan()->decode_ids.begin(), world.last_plan()->decode_ids.end());
        }
        EXPECT_EQ(fed.size(), 9U);
    }
    drain(world);
}

TEST(scheduler, answers_are_computed_again_beside_any_number_of_decoding_requests) {
    WorldOptions o = small(200, 5);
    o.scheduler.decode_rows = 4;
    SchedulerWorld world(o, 18);
    for (uint64_t i = 0; i < 5; ++i) world.submit(request(world.invent(4, 70), 70, i));
    while (std::ssize(world.scheduler().tokens(5)) < 4 + 20) world.step();
    world.steal(1000);
    while (world.asked().at(5).preemptions == 0) world.step();
    world.give_back();
    const int64_t begin = world.steps();
    while (world.scheduler().decoding().size() < 5 && world.steps() < begin + 100) world.step();
    EXPECT_LE(world.steps() - begin, 35);  // 24 tokens or a few more, at one row a step
    EXPECT_EQ(world.scheduler().decoding().size(), 5U);
    drain(world);
}

TEST(scheduler, a_failed_step_leaves_nothing_behind) {
    SchedulerWorld world(small(60, 2), 19);
    world.submit(request(world.invent(40), 20));
    world.step([] {}, 1);
    EXPECT_EQ(world.cache().pool().free_count(), 60);
    drain(world);
}

TEST(scheduler, right_drafts_are_accepted_whole) {
    for (const bool tree : {false, true}) {
        SchedulerWorld world(small(60, 1), 20);
        const std::vector<int32_t> prompt = world.invent(5, 20), answer = FakeModel::answer(prompt, 20);
        const RequestId id = world.submit(request(prompt, 20));
        world.step();
        // The right tokens, in the tree each beside a wrong one.
        std::vector<int32_t> tokens, parents;
        for (size_t i = 1; i <= 5; ++i) {
            const auto above = tree ? static_cast<int32_t>(tokens.size()) - 1 : 0;
            if (tree) tokens.push_back(answer[i] % 60 + 1), parents.push_back(above);
            tokens.push_back(answer[i]);
            if (tree) parents.push_back(above);
        }
        world.scheduler().propose(id, tokens, parents);
        world.accept_all = true;
        world.step();
        EXPECT_EQ(world.scheduler().tokens(id).size(), 6U + 5 + 1);
        drain(world);
    }
}

TEST(scheduler, cancelling_frees_everything_within_a_step) {
    RT_CPU_ONLY("a fake model");
    for (int when = 0; when < 4; ++when) {  // waiting; in the prompt; decoding; while a step runs
        SchedulerWorld world(small(60, 2), 3);
        const RequestId id = world.submit(request(world.invent(40), 20));
        for (int i = 0; i < when * when; ++i) world.step();
        if (when == 3) world.step([&] { world.cancel(id); });
        else world.cancel(id);
        EXPECT_EQ(world.asked().at(id).why, Leaving::cancelled);
        EXPECT_EQ(world.alive(), 0);
        EXPECT_EQ(world.cache().pool().free_count(), 60);
        EXPECT_EQ(world.cache().free_slots(), 2);
        world.cancel(id);  // again: nothing
    }
}

TEST(scheduler, a_deadline_ends_a_request_wherever_it_is) {
    SchedulerWorld world(small(60, 1), 4);
    ScheduledRequest first = request(kPrompt, 50), second = request(kPrompt, 5);
    first.deadline_us = 6'000;  // a step takes 1000 us here
    second.deadline_us = 3'000;
    const RequestId a = world.submit(first), b = world.submit(second);
    drain(world);
    EXPECT_LE(world.asked().at(a).left, 6);
    EXPECT_EQ(world.asked().at(b).left, 3);
    EXPECT_EQ(world.asked().at(b).why, Leaving::deadline);
}

TEST(scheduler, a_full_queue_says_when_to_come_back) {
    WorldOptions o = small(60, 1);
    o.scheduler.max_queue = 3;
    SchedulerWorld world(o, 5);
    // A place becomes free every few steps.
    int64_t refused = 0, last = 0;
    for (int i = 0; i < 400; ++i) {
        try {
            world.submit(request(kPrompt, 5));
        } catch (const QueueFull& full) {
            EXPECT_NE(std::string(full.what()).find("3 requests wait already; try again in"), std::string::npos);
            last = full.retry_after_us;
            ++refused;
        }
        EXPECT_LE(world.scheduler().waiting(), 3);
        world.step();
    }
    EXPECT_GT(refused, 100);
    EXPECT_GE(last, 1'000);
    EXPECT_LE(last, 8'000);  // an answer takes at most 5 steps here, its prompt 1
    drain(world);
}

TEST(scheduler, requests_that_can_never_run_are_refused) {
    SchedulerWorld world(small(10, 1), 6);
    EXPECT_THROW(world.submit(request({}, 5)), Error);
    EXPECT_THROW(world.submit(request(kPrompt, -1)), Error);
    EXPECT_THROW(world.submit(request(kPrompt, 5, 0, 3)), Error);
    EXPECT_THROW(world.submit(request(kPrompt, 34)), Error);  // 41 tokens in 10 pages of 4
    EXPECT_THROW(world.submit(request(kPrompt, std::numeric_limits<int64_t>::max())), Error);
    EXPECT_THROW(world.submit(request(world.invent(41, 0), 0)), Error);
    world.submit(request(kPrompt, 33));
    drain(world);
    world.submit(request(world.invent(40, 0), 0));  // the prompt alone fills all pages
    drain(world);
    WorldOptions bad = small(10, 1);
    bad.scheduler.quantum = 0;
    EXPECT_THROW(SchedulerWorld(bad, 1), Error);
}

TEST(scheduler, the_youngest_is_preempted_and_loses_nothing) {
    WorldOptions o = small(12, 3);
    SchedulerWorld world(o, 7);
    // 3 * (7 + 25) tokens want 24 pages; there are 12.
    for (uint64_t i = 0; i < 3; ++i) world.submit(request(world.invent(7, 25), 25, i));
    drain(world);
    EXPECT_EQ(world.asked().at(1).preemptions, 0);
    EXPECT_GT(world.scheduler().counts().preempted, 0);
    EXPECT_GT(world.scheduler().counts().recomputed_rows, 0);
}

TEST(scheduler, admission_by_the_worst_case_preempts_nobody) {
    WorldOptions o = small(20, 6);
    o.scheduler.optimistic = false;
    SchedulerWorld world(o, 8);
    for (uint64_t i = 0; i < 40; ++i) {
        const auto tokens = static_cast<int64_t>(1 + world.pick(30));
        world.submit(request(world.invent(1 + world.pick(20)), tokens, i % 3));
        world.propose(4);
        world.step();
    }
    drain(world);
    EXPECT_EQ(world.scheduler().counts().preempted, 0);
}

TEST(scheduler, a_higher_priority_takes_the_place_of_a_lower_one) {
    SchedulerWorld world(small(60, 2), 9);
    const RequestId low = world.submit(request(world.invent(6), 40, 1, 0));
    world.submit(request(world.invent(6), 40, 2, 1));
    world.step();
    const RequestId high = world.submit(request(world.invent(6), 5, 3, 2));
    world.step();
    EXPECT_EQ(world.asked().at(low).preemptions, 1);
    EXPECT_EQ(world.last_plan()->prefill_ids, std::vector<RequestId>{high});
    drain(world);
}

TEST(scheduler, of_those_that_wait_the_highest_priority_starts_first) {
    SchedulerWorld world(small(60, 1), 21);
    world.submit(request(world.invent(6), 10, 1, 2));
    world.step();
    for (int priority : {0, 1, 2, 1, 0}) world.submit(request(world.invent(6), 3, 2, priority));
    drain(world);
    const auto left = [&](RequestId id) { return world.asked().at(id).left; };
    EXPECT_LT(left(4), left(3));
    EXPECT_LT(left(3), left(5));
    EXPECT_LT(left(5), left(2));
    EXPECT_LT(left(2), left(6));
}

TEST(scheduler, an_old_background_request_does_not_block_a_higher_one_that_can_make_room) {
    WorldOptions o = small(60, 2);
    o.scheduler.aging_us = 5'000;
    SchedulerWorld world(o, 22);
    world.submit(request(world.invent(6, 60), 60, 1, 0));
    world.submit(request(world.invent(6, 60), 60, 2, 1));
    world.submit(request(world.invent(6), 3, 3, 0));
    for (int i = 0; i < 30; ++i) world.step();
    const RequestId high = world.submit(request(world.invent(6), 3, 4, 2));
    world.step();
    EXPECT_EQ(world.last_plan()->prefill_ids, std::vector<RequestId>{high});
    EXPECT_EQ(world.asked().at(1).preemptions, 1);
    drain(world);
}

TEST(scheduler, sessions_share_evenly_however_much_they_ask_for) {
    // One session asks for a hundred long prompts, then another asks for one.
    WorldOptions o = small(200, 8);
    o.scheduler.max_queue = 200;
    SchedulerWorld world(o, 10);
    for (int i = 0; i < 100; ++i) world.submit(request(world.invent(40), 1, 1));
    for (int i = 0; i < 5; ++i) world.step();
    const RequestId lone = world.submit(request(world.invent(40), 1, 2));
    drain(world);
    // Its 40 rows are half of 80, or less than half as the other is ahead; a slot is free after at most 40 * 8 / 16.
    const SchedulerWorld::Asked& a = world.asked().at(lone);
    EXPECT_LE(a.left - a.submitted, 20 + 80 / o.scheduler.prefill_rows_beside);
    int64_t before = 0;
    for (const auto& [id, other] : world.asked()) before += other.left < a.left;
    EXPECT_LT(before, 25);
}

TEST(scheduler, rows_are_shared_evenly_while_two_sessions_want_them) {
    WorldOptions o = small(400, 6);
    SchedulerWorld world(o, 11);
    // Five prompts against one.
    for (int i = 0; i < 5; ++i) world.submit(request(world.invent(200), 1, 1));
    world.submit(request(world.invent(200), 1, 2));
    std::map<RequestId, int64_t> rows;
    for (int i = 0; i < 20; ++i) {
        world.step();
        for (size_t k = 0; k < world.last_plan()->prefill.size(); ++k) {
            // The spans end with the step; their sizes do not.
            rows[world.last_plan()->prefill_ids[k]] += std::ssize(world.last_plan()->prefill[k].tokens);
        }
    }
    int64_t first = 0;
    for (const auto& [id, n] : rows) first += id <= 5 ? n : 0;
    EXPECT_NEAR(static_cast<double>(first), static_cast<double>(rows[6]), 2.0 * o.scheduler.quantum);
    drain(world);
}

TEST(scheduler, no_flood_of_higher_priorities_starves_a_background_request) {
    for (const bool optimistic : {true, false}) {
        WorldOptions o = small(24, 3);
        o.scheduler.aging_us = 20'000;  // 20 steps
        o.scheduler.optimistic = optimistic;
        SchedulerWorld world(o, 12);
        uint64_t session = 100;
        for (int i = 0; i < 30; ++i) world.submit(request(world.invent(8), 12, ++session, 2));
        const RequestId poor = world.submit(request(world.invent(30), 20, 1, 0));
        while (!world.asked().at(poor).why && world.steps() < 2000 && !::testing::Test::HasFatalFailure()) {
            // Always 30 others, each of a new session.
            while (world.scheduler().waiting() < 30) world.submit(request(world.invent(8), 12, ++session, 2));
            world.step();
        }
        // 40 steps to count as the highest, then a share of its own among 33 sessions of 20 tokens each in which three
        // run at a time, and up to max_preemptions new beginnings of 50 rows at 8 a step.
        EXPECT_LE(world.asked().at(poor).left, 40 + 33 * 20 / 3 + 3 * 50 + 50) << "optimistic " << optimistic;
        EXPECT_TRUE(world.asked().at(poor).why.has_value());
        drain(world);
    }
}

TEST(scheduler, a_large_request_is_not_overtaken_by_small_ones_for_ever) {
    WorldOptions o = small(20, 4);
    o.scheduler.max_queue = 100;
    SchedulerWorld world(o, 13);
    for (uint64_t i = 0; i < 4; ++i) world.submit(request(world.invent(8), 12, i));
    const RequestId large = world.submit(request(world.invent(72), 8, 99));  // every page there is
    while (!world.asked().at(large).why && world.steps() < 1000 && !::testing::Test::HasFatalFailure()) {
        while (world.scheduler().waiting() < 10) world.submit(request(world.invent(8), 12, world.pick(1000)));
        world.step();
    }
    EXPECT_LE(world.asked().at(large).left, 100);
    drain(world);
}

TEST(scheduler, one_that_finds_no_page_anywhere_says_so_and_goes_on_later) {
    SchedulerWorld world(small(10, 2), 14);
    world.submit(request(kPrompt, 20));
    world.step();
    world.steal(100);
    while (!world.last_plan()->stalled && world.steps() < 10) world.step();
    EXPECT_TRUE(world.last_plan()->stalled);
    world.give_back();
    drain(world);
}

TEST(scheduler, drafts_share_the_rows_that_are_left) {
    WorldOptions o = small(100, 3);
    o.scheduler.decode_rows = 10;
    SchedulerWorld world(o, 15);
    for (uint64_t i = 0; i < 3; ++i) world.submit(request(world.invent(5), 100, i));
    world.step();
    const std::vector<int32_t> draft(8, 1);
    const std::vector<RequestId> ids = world.scheduler().decoding();
    ASSERT_EQ(ids.size(), 3U);
    world.scheduler().propose(ids[0], std::span(draft).first(1));
    world.scheduler().propose(ids[1], draft);
    world.step();
    EXPECT_EQ(world.last_rows(), 3 + 1 + 6);
    for (const RequestId id : ids) world.cancel(id);
}

TEST(scheduler, equal_calls_give_equal_plans) {
    const auto story = [](uint64_t seed) {
        SchedulerWorld world(small(20, 4), seed);
        std::vector<int64_t> decisions;
        for (int i = 0; i < 300; ++i) {
            if (world.pick(3) == 0) {
                try {
                    const auto priority = static_cast<int>(world.pick(3));
                    const uint64_t session = world.pick(3);
                    const auto tokens = static_cast<int64_t>(1 + world.pick(20));
                    world.submit(request(world.invent(1 + world.pick(20)), tokens, session, priority));
                } catch (const QueueFull& full) {
                    decisions.push_back(full.retry_after_us);
                }
            }
            world.propose(3);
            world.step();
            for (const RequestId id : world.last_plan()->decode_ids) decisions.push_back(id);
            for (const RequestId id : world.last_plan()->prefill_ids) decisions.push_back(-id);
            decisions.push_back(world.last_rows());
        }
        drain(world);
        return decisions;
    };
    EXPECT_EQ(story(16), story(16));
    EXPECT_NE(story(16), story(17));
}

TEST(scheduler, steps_run_ahead_leave_what_single_steps_leave) {
    SchedulerWorld world(small(60, 5), 21);
    int64_t ahead = 0;
    for (uint64_t i = 0; i < 40; ++i) {
        const auto tokens = static_cast<int64_t>(1 + world.pick(30));
        world.submit(request(world.invent(1 + world.pick(12)), tokens, i % 3));
        for (int s = 0; s < 4; ++s) ahead += world.step_ahead(9) > 1;
        if (i % 7 == 0) world.cancel(static_cast<RequestId>(1 + i / 2));
    }
    while (world.alive() > 0 && !::testing::Test::HasFatalFailure()) ahead += world.step_ahead(9) > 1;
    EXPECT_GT(ahead, 20);
}

TEST(scheduler, nothing_runs_ahead_of_a_prompt_or_of_one_that_has_no_page) {
    SchedulerWorld world(small(40, 3), 22);
    world.submit(request(world.invent(4, 20), 20));
    world.step();
    EXPECT_EQ(world.step_ahead(6), 6);
    EXPECT_EQ(std::ssize(world.scheduler().tokens(1)), 4 + 7);
    world.submit(request(world.invent(30, 20), 20));
    EXPECT_EQ(world.step_ahead(6), 1);
    while (world.scheduler().decoding().size() < 2) world.step();
    world.steal(1000);
    const int64_t most = world.step_ahead(16);
    EXPECT_LE(most, 4) << "a page holds four rows";
    world.give_back();
    drain(world);
}

TEST(scheduler, while_nobody_new_may_start_those_that_have_begun_end) {
    SchedulerWorld world(small(12, 4), 24);
    for (int i = 0; i < 3; ++i) world.submit(request(world.invent(8, 20), 20));
    for (int i = 0; i < 4; ++i) world.step();
    world.scheduler().admit_new(false);
    const RequestId late = world.submit(request(world.invent(3), 3));
    const int64_t begun = world.scheduler().begun();
    EXPECT_GE(begun, 2);
    for (int i = 0; i < 200 && world.scheduler().begun() > 0; ++i) world.step();
    EXPECT_EQ(world.scheduler().begun(), 0);
    EXPECT_FALSE(world.asked().at(late).why);
    world.scheduler().admit_new(true);
    drain(world);
}

TEST(fair_share, sessions_are_forgotten_when_the_clock_has_passed_them) {
    FairShare share(100);
    for (uint64_t round = 0; round < 1000; ++round) {
        share.join(2 * round);
        share.join(2 * round + 1);
        share.charge(2 * round, 30);
        share.charge(2 * round + 1, 10);
        EXPECT_GT(share.served(2 * round), share.served(2 * round + 1));
        share.leave(2 * round);
        share.leave(2 * round + 1);
        EXPECT_EQ(share.known(), 0);
    }
    share.join(1);
    share.join(2);
    share.charge(1, 1'000'000);  // no further behind than the lag
    share.leave(1);
    share.join(1);  // back again: nothing won
    EXPECT_GT(share.served(1), share.served(2));
    for (int i = 0; i < 50; ++i) share.charge(2, 10);
    EXPECT_GT(share.served(2), share.served(1));
}

}  // namespace
}  // namespace riptide
