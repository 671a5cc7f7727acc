#include "tests/cache/prefix_world.h"

namespace riptide {
namespace {

TEST(prefix_cache, a_growing_conversation_computes_only_what_is_new) {
    std::mt19937 rng(1);
    World world(400);
    Conversation c = talk(rng, 0, 1, {30});
    EXPECT_EQ(world.turn(c).rest, PrefixMatch::Rest::nothing);
    for (int turn = 0; turn < 20; ++turn) {
        const auto before = static_cast<int64_t>(c.tokens.size());
        say(c, rng, 1 + static_cast<int64_t>(rng() % 30));
        const PrefixMatch match = world.turn(c);
        EXPECT_EQ(match.cached, before);
        EXPECT_EQ(match.rest, PrefixMatch::Rest::new_tokens) << match.why();
        world.expect_exact();
    }
}

TEST(prefix_cache, the_same_prompt_again_computes_from_its_last_checkpoint) {
    std::mt19937 rng(2);
    World world(100);
    const Conversation c = talk(rng, 0, 1, {30, 21, 9});
    world.turn(c);
    const PrefixMatch match = world.turn(c);
    EXPECT_EQ(match.cached, 51);  // a checkpoint at 60 is no use: the last token has to be computed
    EXPECT_EQ(match.known, 60);
}

TEST(prefix_cache, editing_the_last_message_keeps_everything_before_it_and_says_what_differs) {
    std::mt19937 rng(3);
    World world(100);
    Conversation c = talk(rng, 0, 1, {30, 21, 9, 14});
    world.turn(c);
    Conversation edited = c;
    edited.tokens[66] = 5000;
    const PrefixMatch match = world.turn(edited);
    EXPECT_EQ(match.cached, 64);  // the checkpoint every 16
    EXPECT_EQ(match.rest, PrefixMatch::Rest::differs);
    EXPECT_EQ(match.first_difference, 66);
    EXPECT_EQ(match.message, 3);
    EXPECT_EQ(match.cached_token, c.tokens[66]);
    EXPECT_EQ(match.prompt_token, 5000);
    EXPECT_NE(match.why().find("message 3"), std::string::npos) << match.why();
    c.tokens[61] = 6000;
    EXPECT_EQ(world.turn(c).cached, 60);  // the message boundary
}

TEST(prefix_cache, a_match_computes_at_most_the_checkpoint_distance_again) {
    constexpr unsigned kSeed = 99;
    printf("seed %u\n", kSeed);
    std::mt19937 rng(kSeed);
    World world(4000);
    std::vector<Conversation> all;
    for (int i = 0; i < 200; ++i) {
        Conversation c = all.empty() || rng() % 4 == 0 ? talk(rng, 0, 0, {}) : all[rng() % all.size()];
        if (!c.tokens.empty()) {
            c.tokens.resize(1 + rng() % c.tokens.size());
            while (!c.ends.empty() && c.ends.back() > static_cast<int64_t>(c.tokens.size())) c.ends.pop_back();
        }
        say(c, rng, 1 + static_cast<int64_t>(rng() % 40));
        int64_t shared = 0;
        for (const Conversation& old : all) {
            const size_t n = std::min(old.tokens.size(), c.tokens.size());
            shared = std::max<int64_t>(
                shared,
                std::mismatch(c.tokens.begin(), c.tokens.begin() + static_cast<ptrdiff_t>(n), old.tokens.begin())
                        .first -
                    c.tokens.begin());
        }
        const PrefixMatch match = world.turn(c);
        EXPECT_LE(match.cached, shared);
        EXPECT_GE(match.cached, std::min<int64_t>(shared, static_cast<int64_t>(c.tokens.size()) - 1) - 15);
        if (match.rest == PrefixMatch::Rest::differs) {
            EXPECT_EQ(match.first_difference, shared);
        }
        all.push_back(std::move(c));
    }
    EXPECT_EQ(world.cache->stats().evicted_pages, 0);
    world.expect_exact();
}

TEST(prefix_cache, salts_never_share) {
    std::mt19937 rng(4);
    World world(100);
    Conversation c = talk(rng, 0, 0, {40});
    world.turn(c);
    say(c, rng, 3);
    c.user = 1;
    const PrefixMatch match = world.turn(c);
    EXPECT_EQ(match.cached, 0);
    EXPECT_EQ(match.rest, PrefixMatch::Rest::nothing);
    // Fields do not run into each other.
    const PrefixSalt a{"o", "ab", "c"}, b{"o", "a", "bc"};
    SequenceState s(*world.kv);
    ASSERT_TRUE(world.feed(s, c.tokens, 7));
    world.cache->publish({a, c.tokens, {}}, s, PrefixCache::Mark::message);
    TokenIds longer = c.tokens;
    longer.push_back(1);
    EXPECT_EQ(world.cache->find({a, longer, {}}).cached, 43);
    EXPECT_EQ(world.cache->find({b, longer, {}}).cached, 0);
    EXPECT_EQ(world.cache->find({b, longer, {}}).known, 0);
}

TEST(prefix_cache, a_sequence_keeps_what_it_was_at_lengths_that_its_step_went_through) {
    std::mt19937 rng(6);
    const std::vector<int64_t> lengths = {1, 3, 4, 9, 12, 22, 23};  // inside pages, at their ends, before the window
    for (const bool continued : {false, true}) {
        World world(100);
        const Conversation c = talk(rng, 0, 1, {23});
        std::vector<std::unique_ptr<SequenceState>> running;
        running.push_back(std::make_unique<SequenceState>(*world.kv));
        ASSERT_TRUE(world.feed(*running[0], c.tokens, 0));
        const PrefixSalt salt = salt_of(0);
        for (const int64_t length : lengths) {
            ASSERT_TRUE(running[0]->can_truncate(length));
            EXPECT_TRUE(world.cache->publish({salt, c.tokens, {}}, *running[0], PrefixCache::Mark::message, length));
        }
        world.expect_exact(running);
        TokenIds longer = c.tokens;
        if (continued) {  // the tail page becomes another: what was kept stays
            for (int32_t i = 0; i < 20; ++i) longer.push_back(500 + i);
            ASSERT_TRUE(world.feed(*running[0], std::span(longer).subspan(23), 0));
            EXPECT_EQ(wrong_rows(*running[0], longer, 0), 0);
        }
        for (const int64_t length : lengths) {
            TokenIds other(c.tokens.begin(), c.tokens.begin() + length);
            for (int32_t i = 0; i < 11; ++i) other.push_back(1500 + i);
            SequenceState s(*world.kv);
            EXPECT_EQ(world.cache->attach({salt, other, {}}, s).cached, length);
            EXPECT_EQ(wrong_rows(s, other, 0), 0);
            ASSERT_TRUE(world.feed(s, std::span(other).subspan(static_cast<size_t>(length)), 0));
            EXPECT_EQ(wrong_rows(s, other, 0), 0);
            EXPECT_EQ(wrong_rows(*running[0], longer, 0), 0);
        }
        world.expect_exact(running);
        running.clear();
        EXPECT_TRUE(world.cache->make_room(100, false));  // nothing is held twice for ever
        world.expect_exact();
    }
}

TEST(prefix_cache, forks_share_pages_and_copy_the_last_one_on_write) {
    std::mt19937 rng(5);
    World world(100);
    const Conversation c = talk(rng, 0, 1, {42});
    std::vector<std::unique_ptr<SequenceState>> running;
    running.push_back(std::make_unique<SequenceState>(*world.kv));
    ASSERT_TRUE(world.run(c, *running[0]));
    for (int i = 0; i < 3; ++i) running.push_back(std::make_unique<SequenceState>(running[0]->fork()));
    world.expect_exact(running);
    const int32_t free = world.kv->pool().free_count();
    std::vector<TokenIds> tokens;
    for (int32_t i = 0; i < 4; ++i) {
        tokens.push_back(c.tokens);
        for (int32_t t = 0; t < 2; ++t) tokens.back().push_back(2000 + 10 * i + t);
        ASSERT_TRUE(world.feed(*running[static_cast<size_t>(i)], std::span(tokens.back()).subspan(42), 0));
    }
    EXPECT_EQ(free - world.kv->pool().free_count(), 4);  // the checkpoint's page stays as it was
    for (size_t i = 0; i < 4; ++i) EXPECT_EQ(wrong_rows(*running[i], tokens[i], 0), 0);
    world.expect_exact(running);
    running.clear();
    Conversation longer = c;
    say(longer, rng, 5);
    EXPECT_EQ(world.turn(longer).cached, 42);
}

TEST(prefix_cache, a_side_request_never_drives_out_a_live_session) {
    std::mt19937 rng(6);
    World world(60);
    Conversation live = talk(rng, 0, 1, {20, 60, 7});
    world.turn(live);
    for (int i = 0; i < 50; ++i) {
        world.turn(talk(rng, 0, 1, {190 - i}), true);  // at first more than what the live session leaves
        world.expect_exact();
    }
    EXPECT_GT(world.cache->stats().evicted_pages, 500);
    say(live, rng, 4);
    EXPECT_EQ(world.turn(live).cached, 87);
    // A main request of another session may, when nothing else is left.
    world.turn(talk(rng, 0, 2, {230}));
    say(live, rng, 4);
    EXPECT_LT(world.turn(live).cached, 91);
}

TEST(prefix_cache, side_checkpoints_never_drive_out_a_live_sessions) {
    std::mt19937 rng(7);
    World probe(60);
    Conversation live = talk(rng, 0, 1, {20, 10, 7});
    probe.turn(live);
    World world(400, {.checkpoint_every = 16, .state_budget = probe.cache->stats().state_bytes + 50});
    world.turn(live);
    for (int i = 0; i < 20; ++i) {
        Conversation side = live;
        say(side, rng, 25);
        world.turn(side, true);
        world.turn(talk(rng, 0, 1, {40}), true);
    }
    EXPECT_EQ(world.cache->stats().evicted_checkpoints, 0);
    EXPECT_GT(world.cache->stats().refused, 40);
    say(live, rng, 4);
    EXPECT_EQ(world.turn(live).cached, 37);
}

TEST(prefix_cache, an_ended_sessions_prefix_may_go) {
    std::mt19937 rng(8);
    World world(60);
    Conversation old = talk(rng, 0, 1, {20, 130});
    world.turn(old);
    SequenceState s(*world.kv);
    EXPECT_FALSE(world.feed(s, talk(rng, 0, 0, {120}).tokens, 0, true));
    s.truncate(0);
    world.cache->end_session(1);
    EXPECT_TRUE(world.feed(s, talk(rng, 0, 0, {120}).tokens, 0, true));
}

TEST(prefix_cache, pinned_checkpoints_outlive_live_ones) {
    std::mt19937 rng(9);
    World world(50);
    const Conversation first = talk(rng, 0, 1, {22, 100});
    world.turn(first);
    for (uint64_t i = 2; i < 10; ++i) {
        Conversation c = first;
        c.session = i;
        c.tokens.resize(22);
        c.ends = {22};
        say(c, rng, 120);
        EXPECT_GE(world.turn(c).cached, 22) << i;
    }
}

TEST(prefix_cache, what_was_evicted_is_named) {
    std::mt19937 rng(10);
    World world(50);
    Conversation c = talk(rng, 0, 1, {22, 100});
    world.turn(c);
    world.turn(talk(rng, 0, 2, {190}));
    say(c, rng, 5);
    const PrefixMatch match = world.turn(c);
    EXPECT_EQ(match.rest, PrefixMatch::Rest::evicted);
    EXPECT_EQ(match.first_difference, 122);
    EXPECT_NE(match.why().find("had to go"), std::string::npos);
}

TEST(prefix_cache, what_is_forgotten_frees_everything) {
    std::mt19937 rng(11);
    World world(50);
    world.turn(talk(rng, 0, 1, {22, 100}));
    EXPECT_GT(world.cache->stats().pages, 0);
    world.cache->forget();
    EXPECT_EQ(world.kv->pool().free_count(), 50);
    EXPECT_EQ(world.cache->stats().pages, 0);
    EXPECT_EQ(world.cache->stats().checkpoints, 0);
    EXPECT_EQ(world.cache->stats().state_bytes, 0);
    world.turn(talk(rng, 0, 1, {22, 100}));
    world.expect_exact();
}

TEST(prefix_cache, evicted_state_comes_back_from_either_tier_and_after_a_restart) {
    std::mt19937 rng(12);
    const Folder folder;
    Conversation c = talk(rng, 0, 1, {22, 81, 11});
    for (const bool host : {true, false}) {
        World world(50, {.checkpoint_every = 16}, host ? 1 << 20 : 0, folder.path + (host ? "/a" : "/b"), 1 << 20);
        world.turn(c);
        world.turn(talk(rng, 1, 2, {190}));  // drives all of it out
        Conversation longer = c;
        say(longer, rng, 9);
        const PrefixRequest request{salt_of(0), longer.tokens, longer.ends, 1};
        EXPECT_GT(world.cache->find(request).pages_to_load, 20);
        EXPECT_EQ(world.turn(longer).cached, 114);
        EXPECT_GT(world.cache->stats().loaded_pages, 20);
        world.expect_exact();
        world.cache->persist();
    }
    for (const std::string part : {"/a", "/b"}) {
        World world(50, {.checkpoint_every = 16}, 0, folder.path + part, 1 << 20);
        Conversation longer = c;
        say(longer, rng, 9);
        EXPECT_EQ(world.turn(longer).cached, 114);
    }
    // Another geometry under the same salt finds nothing.
    std::vector<StateSpec> wider = kBoth;
    wider[1].window = 7;
    World world(50, {.checkpoint_every = 16}, 0, folder.path + "/a", 1 << 20, 4, wider);
    EXPECT_EQ(world.turn(c).cached, 0);
}

TEST(prefix_cache, what_only_the_host_tier_holds_survives_a_restart_too) {
    std::mt19937 rng(21);
    const Folder folder;
    Conversation c = talk(rng, 0, 1, {22, 81, 11});
    {
        World world(50, {.checkpoint_every = 16}, 1 << 20, folder.path, 1 << 20);
        world.turn(c);
        world.turn(talk(rng, 1, 2, {190}));  // drives all of it into the host tier
        EXPECT_EQ(world.disk->count(), 0);
        world.cache->persist();
    }
    say(c, rng, 9);
    World world(50, {.checkpoint_every = 16}, 0, folder.path, 1 << 20);
    EXPECT_EQ(world.turn(c).cached, 114);
}

TEST(prefix_cache, loading_from_a_full_tier_does_not_lose_what_is_loaded) {
    std::mt19937 rng(22);
    int64_t needed = 0;
    for (const bool measure : {true, false}) {
        // Room below for one conversation: the other one's pages come down while this one's go up.
        World world(50, {.checkpoint_every = 16}, measure ? 1 << 20 : needed);
        std::mt19937 talks(23);
        Conversation a = talk(talks, 0, 1, {22, 81, 11}), b = talk(talks, 0, 2, {190});
        world.turn(a);
        world.turn(b);
        needed = world.host->bytes();
        say(a, talks, 9);
        EXPECT_EQ(world.turn(a).cached, 114) << needed;
        world.expect_exact();
    }
}

TEST(prefix_cache, a_small_tier_keeps_the_beginning_of_what_was_loaded_last) {
    std::mt19937 rng(24);
    World world(50, {.checkpoint_every = 16}, 1 << 20);
    Conversation c = talk(rng, 0, 1, {22, 81, 11});
    world.turn(c);
    world.turn(talk(rng, 0, 2, {190}));
    say(c, rng, 2);
    EXPECT_EQ(world.turn(c).cached, 114);
    // In the order in which the tier would drop them, pages of the conversation go from the last to the first.
    std::map<std::string, size_t> place;
    for (const Record& record : world.host->all())
        if (record.id.key.starts_with('P')) place.emplace(record.id.key, place.size());
    size_t before = place.size();
    for (size_t page = 4; page < 28; ++page) {  // the first ones stayed in memory
        const std::string tokens(reinterpret_cast<const char*>(&c.tokens[page * kPageRows]), 4 * kPageRows);
        const auto at =
            std::find_if(place.begin(), place.end(), [&](const auto& one) { return one.first.ends_with(tokens); });
        ASSERT_NE(at, place.end()) << page;
        EXPECT_LT(at->second, before) << page;
        before = at->second;
    }
}

TEST(prefix_cache, what_was_used_last_goes_last) {
    std::mt19937 rng(14);
    World world(50);
    Conversation a = talk(rng, 0, 0, {20, 40}), b = talk(rng, 0, 0, {20, 40});
    world.turn(a);
    world.turn(b);
    world.turn(a);
    world.turn(talk(rng, 0, 0, {20, 80}));
    say(a, rng, 3);
    say(b, rng, 3);
    EXPECT_EQ(world.cache->find({salt_of(0), a.tokens, a.ends}).cached, 60);
    EXPECT_LT(world.cache->find({salt_of(0), b.tokens, b.ends}).cached, 60);
}

TEST(prefix_cache, a_disk_too_small_for_everything_keeps_the_beginnings) {
    std::mt19937 rng(15);
    const Folder folder;
    Conversation c = talk(rng, 0, 1, {22, 140});
    {
        World world(60, {.checkpoint_every = 16}, 0, folder.path, 8000);
        world.turn(c);
        world.cache->persist();
        EXPECT_GT(world.disk->stats().evicted, 0);
    }
    World world(60, {.checkpoint_every = 16}, 0, folder.path, 8000);
    const PrefixMatch match = world.turn(c);
    EXPECT_GE(match.cached, 16);
    EXPECT_LT(match.cached, 150);
}

TEST(prefix_cache, without_paged_layers_checkpoints_are_all) {
    std::mt19937 rng(13);
    World world(0, {.checkpoint_every = 16, .state_budget = 1280}, 3000, "", 0, 4, {kBoth[1]});
    Conversation c = talk(rng, 0, 1, {22, 81, 11});
    world.turn(c);
    say(c, rng, 9);
    EXPECT_EQ(world.turn(c).cached, 114);
    for (int i = 0; i < 30; ++i) world.turn(talk(rng, 0, 0, {50}));
    // 20 checkpoints of 64 bytes fit the budget, each after at most 13 pages; the live session's 30.
    EXPECT_EQ(world.cache->stats().checkpoints, 20);
    EXPECT_LE(world.cache->stats().pages, 20 * 13 + 30);
}

}  // namespace
}  // namespace riptide
