#include "tests/cache/prefix_world.h"

namespace riptide {
namespace {

/// Everything at once: users with the same few tokens, growing, edited and forked conversations, side requests,
/// sequences that run on while others come, little room, tiers, restarts.
void random_scenario(unsigned seed, int steps, int64_t host_bytes, int64_t disk_bytes, bool windows) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 rng(seed);
    const Folder folder;
    const PrefixCacheOptions options{.checkpoint_every = 16, .state_budget = 6000, .live_sessions = 3};
    std::vector<StateSpec> specs = kBoth;
    if (!windows) specs.erase(specs.begin() + 1);
    std::unique_ptr<World> world;
    std::vector<std::unique_ptr<SequenceState>> running;
    const auto start = [&] {
        running.clear();
        world.reset();
        world = std::make_unique<World>(70, options, host_bytes, folder.path, disk_bytes, 4, specs);
    };
    start();
    std::vector<Conversation> all;
    std::vector<TokenIds> running_tokens;
    std::vector<int32_t> running_user;
    int64_t hits = 0, loads = 0;
    for (int step = 0; step < steps && !::testing::Test::HasFailure(); ++step) {
        const auto what = rng() % 20;
        Conversation c;
        bool side = false;
        if (all.size() < 4 || what == 0) {
            c.user = static_cast<int32_t>(rng() % 3);
            c.session = step + 1;
            say(c, rng, 1 + static_cast<int64_t>(rng() % 40));
        } else {
            c = all[rng() % all.size()];
            if (what < 5) {  // a fork, or an edit anywhere
                c.tokens.resize(1 + rng() % c.tokens.size());
                while (!c.ends.empty() && c.ends.back() > static_cast<int64_t>(c.tokens.size())) c.ends.pop_back();
                if (what < 3) c.session = step + 1;
            } else if (what < 8) {
                side = true;
            } else if (what == 8) {
                c.user = static_cast<int32_t>(rng() % 3);  // the very same text from somebody else
            }
            say(c, rng, 1 + static_cast<int64_t>(rng() % 25));
        }
        if (c.tokens.size() > 150) continue;
        if (what == 9) world->cache->end_session(c.session);
        if (what == 10 && disk_bytes > 0 && rng() % 4 == 0) {
            loads += world->cache->stats().loaded_checkpoints;
            if (rng() % 2 == 0) world->cache->persist();
            start();
            running_tokens.clear();
            running_user.clear();
        }
        if (running.size() == 3 || (what == 11 && !running.empty())) {
            running.erase(running.begin());
            running_tokens.erase(running_tokens.begin());
            running_user.erase(running_user.begin());
        }
        const size_t shared = world->kv->pool().free_count() < 5 ? 0 : rng() % 3;
        auto s = std::make_unique<SequenceState>(*world->kv);
        PrefixMatch match;
        const bool finished = world->run(c, *s, &match, side);
        hits += match.cached > 0;
        if (finished && shared == 0) {
            running.push_back(std::move(s));
            running_tokens.push_back(c.tokens);
            running_user.push_back(c.user);
        }
        s.reset();
        for (size_t i = 0; i < running.size(); ++i) {
            // They go on with a few tokens of their own: shared pages must not change under anybody.
            const auto before = running_tokens[i].size();
            running_tokens[i].push_back(static_cast<int32_t>(rng() % 3));
            if (!world->feed(*running[i], std::span(running_tokens[i]).subspan(before), running_user[i]))
                running_tokens[i].pop_back();
            EXPECT_EQ(wrong_rows(*running[i], running_tokens[i], running_user[i]), 0);
        }
        world->expect_exact(running);
        EXPECT_LE(world->cache->stats().state_bytes, options.state_budget);
        if (finished) all.push_back(std::move(c));
        if (all.size() > 12) all.erase(all.begin() + static_cast<ptrdiff_t>(rng() % all.size()));
    }
    loads += world->cache->stats().loaded_checkpoints;
    EXPECT_GT(hits, steps / 4);
    EXPECT_GT(world->cache->stats().evicted_pages + loads, 0);
    EXPECT_EQ(world->cache->stats().damaged, 0);
    EXPECT_EQ(loads > 0, host_bytes + disk_bytes > 0);
    running.clear();
    world->cache->forget();
    EXPECT_EQ(world->kv->pool().free_count(), 70);
}

TEST(prefix_random, no_sequence_ever_sees_anything_but_its_own_tokens) {
    constexpr unsigned kSeed = 2026;
    printf("seeds %u ..\n", kSeed);
    const unsigned rounds = test_gpu() != nullptr ? 1 : 8;  // there each look at the K/V copies all of it
    for (unsigned i = 0; i < rounds && !HasFailure(); ++i) {
        random_scenario(kSeed + 4 * i, 800, 0, 0, i % 4 != 3);
        random_scenario(kSeed + 4 * i + 1, 800, 12000, 0, i % 4 != 3);
        random_scenario(kSeed + 4 * i + 2, 200, 8000, 40000, i % 4 != 3);
        random_scenario(kSeed + 4 * i + 3, 200, 0, 40000, i % 4 != 3);
    }
}

}  // namespace
}  // namespace riptide
