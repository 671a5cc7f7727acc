// What answers of a given form may say next is found out beside the engine's thread where it takes long: no token
// depends on it, nobody else waits for it.
#include "tests/engine/formed_crowd.h"
#include "tests/engine/scheduler_world.h"

namespace riptide::testing {
namespace {

constexpr EngineLoop::MaskSteps kAllAside = {.mask = 0, .step = 0};

/// A text can be read in as many ways as there are trees over its words: masks take longer with each.
AnswerFormat slow_grammar() {
    return {.kind = AnswerFormat::Kind::grammar, .text = "root ::= s\ns ::= s s s? | [a-z]+ \" \""};
}

/// Reading a few letters takes more ways than are allowed, and no text ends before them.
AnswerFormat hopeless_grammar() {
    std::string text = "root ::= [b-z]{5} e{40}\ne ::= ";
    for (int i = 0; i < 200; ++i) text += fmt::format("{}x{}", i > 0 ? " | " : "", i);
    for (int i = 0; i < 200; ++i) text += fmt::format("\nx{} ::= \"a\" e e | \"a\" e | \"a\"", i);
    return {.kind = AnswerFormat::Kind::grammar, .text = text};
}

/// Slow ones among quick ones.
std::vector<Request> slow_and_quick(bool greedy) {
    std::vector<Request> requests = formed_requests(greedy);
    for (const size_t i : {0u, 7u, 9u}) requests[i].format = slow_grammar();
    return requests;
}

TEST(MasksAside, found_by_another_thread_they_change_no_token) {
    Crowd crowd{.requests = slow_and_quick(false)};
    const Outcome host = crowd.run(DrawnBy::host);
    crowd.mask_steps = kAllAside;
    for (const uint64_t seed : brief<uint64_t>({1, 2}, 1))
        for (const DrawnBy drawn : {DrawnBy::host, DrawnBy::device}) {
            crowd.seed = seed;
            const Outcome aside = crowd.run(drawn);
            expect_same_outcome(aside, host);
            EXPECT_GT(aside.stats.masks_aside, 200);
            EXPECT_EQ(aside.stats.most_mask_steps, 0);
        }
    for (const size_t i : {1u, 7u}) {  // nobody else is there to run
        const Crowd one{.requests = {crowd.requests[i]}, .mask_steps = kAllAside};
        for (const DrawnBy drawn : {DrawnBy::host, DrawnBy::device})
            EXPECT_EQ(one.run(drawn).heard[0].tokens, host.heard[i].tokens);
    }
}

TEST(MasksAside, the_engines_thread_does_so_much_in_a_step_and_no_more) {
    Crowd crowd{.requests = slow_and_quick(false)};
    crowd.mask_steps = {.mask = 1 << 20, .step = 1 << 30};
    const Outcome all = crowd.run(DrawnBy::host);
    EXPECT_EQ(all.stats.masks_aside, 0);
    EXPECT_GT(all.stats.most_mask_steps, 80) << "so that there is something to leave to others";
    for (const DrawnBy drawn : {DrawnBy::host, DrawnBy::device}) {
        crowd.mask_steps = {.mask = 10, .step = 20};
        const Outcome some = crowd.run(drawn);
        expect_same_outcome(some, all);
        EXPECT_LE(some.stats.most_mask_steps, 20);
        EXPECT_GT(some.stats.masks_aside, 10);
    }
}

TEST(MasksAside, drafts_behind_which_it_takes_long_are_not_looked_at) {
    Crowd crowd{.requests = slow_and_quick(true)};
    const Outcome host = crowd.run(DrawnBy::host);
    draft_well(crowd, host, 12);
    const int64_t accepted = crowd.run(DrawnBy::device).stats.accepted_rows;
    for (const DrawnBy drawn : {DrawnBy::host, DrawnBy::device}) {
        crowd.mask_steps = kAllAside;
        const Outcome drafted = crowd.run(drawn);
        expect_same_outcome(drafted, host);
        EXPECT_GT(drafted.stats.masks_aside, 50);
        EXPECT_GT(drafted.stats.accepted_rows, 20);
        EXPECT_LT(drafted.stats.accepted_rows, accepted);
    }
}

TEST(MasksAside, an_error_ends_its_answer_alone) {
    Crowd crowd{.requests = slow_and_quick(false)};
    crowd.requests[4].format = hopeless_grammar();
    const Outcome host = crowd.run(DrawnBy::host);
    ASSERT_TRUE(host.heard[4].failed);
    EXPECT_NE(host.heard[4].failed->message.find("too ambiguous"), std::string::npos) << host.heard[4].failed->message;
    EXPECT_EQ(host.heard[4].failed->kind, ErrorKind::data);
    crowd.mask_steps = kAllAside;
    for (const DrawnBy drawn : {DrawnBy::host, DrawnBy::device}) expect_same_outcome(crowd.run(drawn), host);
}

TEST(MasksAside, who_is_cancelled_meanwhile_leaves_the_others_alone) {
    Crowd crowd{.requests = slow_and_quick(false), .mask_steps = kAllAside};
    const Outcome whole = crowd.run(DrawnBy::host);
    for (const int64_t cancelled : {1, 7}) {
        crowd.cancelled = cancelled;
        const Outcome without = crowd.run(DrawnBy::host);
        for (size_t i = 0; i < crowd.requests.size(); ++i) {
            ASSERT_TRUE(without.heard[i].done) << i;
            if (static_cast<int64_t>(i) == cancelled) {
                EXPECT_EQ(without.heard[i].done->reason, FinishReason::cancelled);
            } else {
                EXPECT_EQ(without.heard[i].tokens, whole.heard[i].tokens) << i;
            }
        }
    }
}

TEST(MasksAside, the_loop_may_end_meanwhile) {
    Crowd crowd{.requests = slow_and_quick(false), .mask_steps = kAllAside};
    for (const int64_t end_at : {1, 30, 150}) {
        crowd.end_at = end_at;
        for (const Heard& heard : crowd.run(DrawnBy::host).heard) EXPECT_TRUE(heard.over());
    }
}

TEST(MasksAside, the_end_of_the_worker_stops_what_it_is_at) {
    const auto checkpoint = open_checkpoint(demo_path());
    const ModelText text(*checkpoint);
    Constrainer constrainer;
    const auto constraint = constrainer.get(*text.tokenizer(), slow_grammar());
    std::string words;
    for (int i = 0; i < 2000; ++i) words += "a ";
    const std::vector<int32_t> tokens = text.tokenizer()->encode(words);  // for seconds
    const auto first = std::make_shared<MaskSearch>(constraint->start(), tokens),
               second = std::make_shared<MaskSearch>(constraint->start(), tokens);
    {
        MaskWorker worker;
        worker.add(first);
        worker.add(second);
        for (bool busy = false; !busy;) {  // who must not wait is told so
            WorkBudget work;
            try {
                constraint->start().try_next(std::span(tokens).first(1), &work);
            } catch (const TooMuchWork&) {
                busy = true;
            }
        }
    }
    EXPECT_THROW(first->next(), WorkStopped);
    EXPECT_FALSE(second->done());
}

TEST(MasksAside, a_stop_is_heard_inside_a_mask_and_loses_nothing) {
    const auto checkpoint = open_checkpoint(demo_path());
    const ModelText text(*checkpoint);
    Constrainer constrainer;
    const auto constraint = constrainer.get(*text.tokenizer(), slow_grammar());
    std::atomic<bool> stop = false;
    AllowedTokens stopped(constraint, text.stop_ids(), text.tokenizer()->vocab_size()),
        plain(constraint, text.stop_ids(), text.tokenizer()->vocab_size());
    int heard = 0;
    for (const int32_t token : text.tokenizer()->encode("a cat and a dog and a horse and a cow go home ")) {
        stopped.accept(token);
        plain.accept(token);
        stop = true;
        try {
            WorkBudget work(WorkBudget::kUnlimited, &stop);
            stopped.try_find(work);
        } catch (const WorkStopped&) {
            ++heard;
        }
        stop = false;
        const auto of = [](std::span<const uint64_t> words) {
            return std::vector<uint64_t>(words.begin(), words.end());
        };
        EXPECT_EQ(of(stopped.next()), of(plain.next()));
    }
    EXPECT_GT(heard, 10);
}

TEST(MasksAside, rows_that_are_not_drawn_run_again_and_who_sits_out_is_in_no_step) {
    for (const uint64_t seed : {1u, 2u, 3u, 4u}) {
        SchedulerWorld world(small(40, 5), seed);
        world.undrawn_one_in = 3;
        for (uint64_t i = 0; i < 12; ++i)
            world.submit(
                {.prompt = world.invent(1 + i), .max_tokens = static_cast<int64_t>(5 + 3 * i), .session = i % 3});
        for (int i = 0; i < 5000 && world.alive() > 0 && !HasFatalFailure(); ++i) {
            world.propose(4);
            if (i == 20) world.steal(20);
            if (i == 60) world.give_back();
            world.step();
        }
        EXPECT_EQ(world.alive(), 0);
        EXPECT_GT(world.undrawn, 30);
    }
}

TEST(MasksAside, where_all_sit_out_nothing_is_stalled) {
    SchedulerWorld world(small(60, 2), 3);
    world.submit({.prompt = world.invent(5, 8), .max_tokens = 8});
    while (world.scheduler().decoding().empty()) world.step();
    world.scheduler().sit_out(1, true);
    for (int i = 0; i < 3; ++i) {
        world.step();
        EXPECT_TRUE(world.last_plan()->decode.empty());
        EXPECT_FALSE(world.last_plan()->stalled);
    }
    EXPECT_TRUE(world.scheduler().decoding().empty());
    world.scheduler().sit_out(1, false);
    drain(world);
}

}  // namespace
}  // namespace riptide::testing
