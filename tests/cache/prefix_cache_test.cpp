#include "cache/prefix_cache.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <random>
#include <set>

#include "cache/batch_builder.h"

namespace riptide {
namespace {

using Ints = std::vector<int32_t>;

const std::vector<StateSpec> kBoth{{StateSpec::Kind::paged, 2, 2, 0},
                                   {StateSpec::Kind::window, 1, 2, 5},
                                   {StateSpec::Kind::paged, 1, 2, 0}};
constexpr int32_t kPageRows = 4;

KvCacheOptions cache_options(int32_t pages, int32_t sequences = 4) {
    return {.k_dtype = DType::f32,
            .v_dtype = DType::f32,
            .page_rows = kPageRows,
            .pages = pages,
            .max_sequences = sequences,
            .max_step_rows = 16};
}

/// K and V of a token: what it is, where it stands, and for whom it was computed.
struct Row {
    float k[2], v[2];
    bool operator==(const Row&) const = default;
};
Row row_of(int32_t token, int64_t position, int32_t user, int64_t head) {
    return {{static_cast<float>(token), static_cast<float>(position)},
            {static_cast<float>(user), static_cast<float>(head)}};
}

void append(const KvCache& cache, const Batch& batch, int32_t user) {
    for (const KvView& view : cache.views())
        for (int64_t r = 0; r < batch.rows(); ++r) {
            const auto i = static_cast<size_t>(r);
            const int64_t slot = view.slot(batch, batch.row_sequence[i], batch.storage_index(r));
            for (int64_t h = 0; h < view.num_kv_heads; ++h) {
                const Row row = row_of(batch.tokens[i], batch.positions[i], user, h);
                std::memcpy(const_cast<char*>(view.k_row(slot, h)), row.k, sizeof row.k);
                std::memcpy(const_cast<char*>(view.v_row(slot, h)), row.v, sizeof row.v);
            }
        }
}

/// Number of rows, in all layers, that are not what computing the sequence directly gives.
int64_t wrong_rows(const SequenceState& s, std::span<const int32_t> tokens, int32_t user) {
    int64_t wrong = 0;
    for (const KvView& view : s.cache().views())
        for (int64_t i = view.window > 0 ? std::max<int64_t>(0, s.length() - (view.window - 1)) : 0; i < s.length();
             ++i) {
            const int64_t slot =
                view.window > 0
                    ? int64_t{s.slot()} * view.ring_rows + i % view.ring_rows
                    : int64_t{s.pages()[static_cast<size_t>(i / view.page_rows)]} * view.page_rows + i % view.page_rows;
            for (int64_t h = 0; h < view.num_kv_heads; ++h) {
                Row row;
                std::memcpy(row.k, view.k_row(slot, h), sizeof row.k);
                std::memcpy(row.v, view.v_row(slot, h), sizeof row.v);
                wrong += row != row_of(tokens[static_cast<size_t>(i)], i, user, h);
            }
        }
    return wrong;
}

struct Conversation {
    int32_t user = 0;
    uint64_t session = 0;
    Ints tokens;
    std::vector<int64_t> ends;
};

PrefixSalt salt_of(int32_t user) { return {"weights 1", "template", "user " + std::to_string(user)}; }

/// A cache with its tiers, and the work of an engine on it.
struct World {
    std::unique_ptr<KvCache> kv;
    std::unique_ptr<HostStore> host;
    std::unique_ptr<DiskStore> disk;
    std::unique_ptr<PrefixCache> cache;

    explicit World(int32_t pages, PrefixCacheOptions options = {.checkpoint_every = 16}, int64_t host_bytes = 0,
                   const std::string& folder = "", int64_t disk_bytes = 0, int32_t sequences = 4,
                   std::vector<StateSpec> specs = kBoth) {
        kv = std::make_unique<KvCache>(specs, cache_options(pages, sequences));
        if (host_bytes > 0) host = std::make_unique<HostStore>(host_bytes);
        if (disk_bytes > 0) disk = std::make_unique<DiskStore>(folder, disk_bytes);
        cache = std::make_unique<PrefixCache>(*kv, options, host.get(), disk.get());
    }

    bool feed(SequenceState& s, std::span<const int32_t> tokens, int32_t user, bool side = false) {
        BatchBuilder builder;
        for (size_t begin = 0; begin < tokens.size(); begin += 8) {
            const auto part = tokens.subspan(begin, std::min<size_t>(8, tokens.size() - begin));
            const auto n = static_cast<int64_t>(part.size());
            if (!s.try_reserve(n) && !(cache->make_room(s.pages_needed(n), side) && s.try_reserve(n))) return false;
            const StepRows step{.sequence = &s, .tokens = part};
            append(*kv, builder.build({&step, 1}), user);
            s.commit_prefix(n);
        }
        return true;
    }

    /// Attaches, checks every byte, computes the rest, publishing at each boundary. False when it ran out of room.
    bool run(const Conversation& c, SequenceState& s, PrefixMatch* match = nullptr, bool side = false) {
        const PrefixSalt salt = salt_of(c.user);
        const PrefixRequest request{salt, c.tokens, c.ends, c.session, side};
        const PrefixMatch got = cache->attach(request, s);
        if (match != nullptr) *match = got;
        EXPECT_EQ(got.cached, s.length());
        EXPECT_LT(got.cached, static_cast<int64_t>(c.tokens.size()));
        EXPECT_EQ(wrong_rows(s, c.tokens, c.user), 0);
        const auto end = static_cast<int64_t>(c.tokens.size());
        while (s.length() < end) {
            const int64_t to = std::min(end, cache->next_boundary(s.length(), c.ends));
            if (!feed(s, std::span(c.tokens).subspan(static_cast<size_t>(s.length()),
                                                     static_cast<size_t>(to - s.length())), c.user, side))
                return false;
            const bool message = std::binary_search(c.ends.begin(), c.ends.end(), to);
            const bool system = message && to == c.ends[0];
            cache->publish(request, s, system ? PrefixCache::Mark::pinned
                                       : message || to == end ? PrefixCache::Mark::message
                                                              : PrefixCache::Mark::interval);
        }
        EXPECT_EQ(wrong_rows(s, c.tokens, c.user), 0);
        return true;
    }

    /// Runs it to the end and lets the sequence go.
    PrefixMatch turn(const Conversation& c, bool side = false) {
        SequenceState s(*kv);
        PrefixMatch match;
        run(c, s, &match, side);
        return match;
    }

    /// Every reference to every page is accounted for.
    void expect_exact(const std::vector<std::unique_ptr<SequenceState>>& running = {}) const {
        std::vector<int32_t> expected(cache->page_references().begin(), cache->page_references().end());
        for (const auto& s : running)
            for (const int32_t page : s->pages()) ++expected[static_cast<size_t>(page)];
        int32_t free = 0;
        for (int32_t page = 0; page < kv->pool().size(); ++page) {
            ASSERT_EQ(kv->pool().refcount(page), expected[static_cast<size_t>(page)]) << "page " << page;
            free += expected[static_cast<size_t>(page)] == 0;
        }
        ASSERT_EQ(kv->pool().free_count(), free);
    }
};

void say(Conversation& c, std::mt19937& rng, int64_t tokens, int32_t vocabulary = 3) {
    for (int64_t i = 0; i < tokens; ++i) c.tokens.push_back(static_cast<int32_t>(rng() % static_cast<unsigned>(vocabulary)));
    c.ends.push_back(static_cast<int64_t>(c.tokens.size()));
}

Conversation talk(std::mt19937& rng, int32_t user, uint64_t session, std::initializer_list<int64_t> messages,
                  int32_t vocabulary = 1000) {
    Conversation c{user, session, {}, {}};
    for (const int64_t n : messages) say(c, rng, n, vocabulary);
    return c;
}

struct Folder {
    std::string path;
    Folder() {
        std::string name = testing::TempDir() + "/riptide-prefix-XXXXXX";
        path = ::mkdtemp(name.data());
    }
    ~Folder() { std::filesystem::remove_all(path); }
};

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
                shared, std::mismatch(c.tokens.begin(), c.tokens.begin() + static_cast<ptrdiff_t>(n), old.tokens.begin())
                                .first - c.tokens.begin());
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
    const PrefixSalt a{"w", "ab", "c"}, b{"w", "a", "bc"};
    SequenceState s(*world.kv);
    ASSERT_TRUE(world.feed(s, c.tokens, 7));
    world.cache->publish({a, c.tokens, {}}, s, PrefixCache::Mark::message);
    Ints longer = c.tokens;
    longer.push_back(1);
    EXPECT_EQ(world.cache->find({a, longer, {}}).cached, 43);
    EXPECT_EQ(world.cache->find({b, longer, {}}).cached, 0);
    EXPECT_EQ(world.cache->find({b, longer, {}}).known, 0);
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
    std::vector<Ints> tokens;
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
        Conversation side = talk(rng, 0, 1, {150 - i});
        world.turn(side, true);
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
    World world(400, {.checkpoint_every = 16, .state_budget = probe.cache->stats().state_bytes + 300});
    world.turn(live);
    for (int i = 0; i < 20; ++i) {
        Conversation side = live;
        say(side, rng, 25);
        world.turn(side, true);
        world.turn(talk(rng, 0, 1, {40}), true);
    }
    EXPECT_GT(world.cache->stats().evicted_checkpoints + world.cache->stats().refused, 20);
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

TEST(prefix_cache, new_weights_find_nothing_and_old_ones_free_everything) {
    std::mt19937 rng(11);
    World world(50);
    world.turn(talk(rng, 0, 1, {22, 100}));
    world.cache->forget_weights("weights 2");
    EXPECT_GT(world.cache->stats().pages, 0);
    world.cache->forget_weights("weights 1");
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

TEST(prefix_cache, without_paged_layers_checkpoints_are_all) {
    std::mt19937 rng(13);
    World world(0, {.checkpoint_every = 16, .state_budget = 2000}, 3000, "", 0, 4, {kBoth[1]});
    Conversation c = talk(rng, 0, 1, {22, 81, 11});
    world.turn(c);
    say(c, rng, 9);
    EXPECT_EQ(world.turn(c).cached, 114);
    for (int i = 0; i < 30; ++i) world.turn(talk(rng, 0, 0, {50}));
    // 20 checkpoints fit the budget, each after at most 13 pages; the live session's 30.
    EXPECT_EQ(world.cache->stats().checkpoints, 20);
    EXPECT_LE(world.cache->stats().pages, 20 * 13 + 30);
}

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
    std::vector<Ints> running_tokens;
    std::vector<int32_t> running_user;
    int64_t hits = 0, loads = 0;
    for (int step = 0; step < steps && !testing::Test::HasFailure(); ++step) {
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
    world->cache->forget_weights("weights 1");
    EXPECT_EQ(world->kv->pool().free_count(), 70);
}

TEST(prefix_cache, no_sequence_ever_sees_anything_but_its_own_tokens) {
    constexpr unsigned kSeed = 2026;
    printf("seeds %u ..\n", kSeed);
    for (unsigned i = 0; i < 8 && !HasFailure(); ++i) {
        random_scenario(kSeed + 4 * i, 800, 0, 0, i % 4 != 3);
        random_scenario(kSeed + 4 * i + 1, 800, 12000, 0, i % 4 != 3);
        random_scenario(kSeed + 4 * i + 2, 300, 8000, 40000, i % 4 != 3);
        random_scenario(kSeed + 4 * i + 3, 300, 0, 40000, i % 4 != 3);
    }
}

TEST(prefix_cache, a_damaged_disk_tier_costs_hits_and_never_bytes) {
    constexpr unsigned kSeed = 31337;
    printf("seed %u\n", kSeed);
    std::mt19937 rng(kSeed);
    const Folder folder;
    Conversation c = talk(rng, 0, 1, {22, 81, 11});
    int64_t cached = 0;
    for (int i = 0; i < 200; ++i) {
        World world(50, {.checkpoint_every = 16}, 0, folder.path, 1 << 20);
        std::vector<std::filesystem::path> files;
        for (const auto& one : std::filesystem::directory_iterator(folder.path))
            if (one.path().extension() == ".record") files.push_back(one.path());
        for (int k = 0; k < 2 && !files.empty(); ++k) {
            const auto& file = files[rng() % files.size()];
            const auto size = std::filesystem::file_size(file);
            std::unique_ptr<std::FILE, int (*)(std::FILE*)> f(std::fopen(file.c_str(), "r+b"), std::fclose);
            std::fseek(f.get(), static_cast<long>(rng() % size), SEEK_SET);
            const int byte = std::fgetc(f.get());
            std::fseek(f.get(), -1, SEEK_CUR);
            std::fputc(byte ^ (1 << rng() % 8), f.get());
        }
        cached += world.turn(c).cached;  // checks every byte
        world.expect_exact();
        world.cache->persist();
    }
    EXPECT_GT(cached, 0);
    EXPECT_LT(cached, 199 * 103);
}

}  // namespace
}  // namespace riptide
