// Replicas that share a place: what one computed another finds, whole or not at all.
#include <chrono>
#include <thread>

#include "tests/cache/prefix_world.h"
#include "tests/cache/shared_world.h"

namespace riptide {
namespace {

template <class Condition>
bool soon(const Condition& condition) {
    for (int i = 0; i < 20'000 && !condition(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return condition();
}

/// A cache beside a shared folder.
struct SharingWorld {
    World world;
    SharedStore shared;

    SharingWorld(const std::string& folder, int32_t pages = 60, uint8_t weights = 1,
                 std::vector<StateSpec> specs = kBoth, const SealKey& key = fleet_key())
        : SharingWorld(open_shared_place("dir:" + folder, 0), pages, weights, std::move(specs), key) {}
    explicit SharingWorld(std::shared_ptr<SharedPlace> place, int32_t pages = 60, uint8_t weights = 1,
                          std::vector<StateSpec> specs = kBoth, const SealKey& key = fleet_key())
        : world(pages, {.checkpoint_every = 16}, 1 << 20, "", 0, 4, std::move(specs)),
          shared(
              std::move(place), key, [] {}, std::chrono::milliseconds(20)) {
        world.cache->use_weights(weights_called(weights));
        world.cache->use_shared(&shared);
    }
    ~SharingWorld() { world.cache->use_shared(nullptr); }

    void share_all() {
        EXPECT_TRUE(soon([&] { return !world.cache->share_some() && shared.pending_bytes() == 0; }));
    }
    /// Fetches what is there of a prompt: tokens of it.
    int64_t fetch(const Conversation& c, bool forget_meanwhile = false) {
        const PrefixSalt salt = salt_of(c.user);
        const PrefixCache::Wanted wanted = world.cache->wanted({salt, c.tokens, c.ends, c.session}, c.ends);
        if (wanted.ends.empty()) return 0;
        const auto lookup = world.cache->lookup_of(wanted);
        shared.look(lookup);
        EXPECT_TRUE(soon([&] { return lookup->done.load(); }));
        EXPECT_EQ(lookup->names.size(), wanted.ends.size()) << "not of each page";
        for (size_t i = wanted.ends.size(); i > 0; --i) {
            const PrefixCache::Wanted::End& end = wanted.ends[i - 1];
            if (lookup->there[i - 1] == 0) continue;
            const auto load = world.cache->load_of(wanted, end);
            EXPECT_NE(load, nullptr);
            shared.load(load);
            EXPECT_TRUE(soon([&] { return load->done.load(); }));
            if (load->failed) return 0;
            if (forget_meanwhile) world.cache->use_weights(weights_called(9));
            world.cache->take(wanted, end, *load);
            return end.length - wanted.held;
        }
        return 0;
    }
};

class PrefixShare : public ::testing::TestWithParam<std::vector<StateSpec>> {};

// World::run checks every byte of what attach restores, and of what follows it.
TEST_P(PrefixShare, a_conversation_goes_on_at_another_replica) {
    std::mt19937 rng(41);
    const Folder folder;
    Conversation c = talk(rng, 0, 1, {22, 81, 11});
    SharingWorld a(folder.path, 60, 1, GetParam());
    a.world.turn(c);
    a.share_all();
    EXPECT_GT(a.shared.stats().written, 3);

    SharingWorld b(folder.path, 60, 1, GetParam());
    say(c, rng, 30, 1000);
    EXPECT_EQ(b.fetch(c), 22 + 81 + 11);
    EXPECT_EQ(b.world.turn(c).cached, 22 + 81 + 11);
    b.share_all();
    say(c, rng, 9, 1000);
    EXPECT_EQ(a.fetch(c), 30) << "back again: only what is new";
    EXPECT_EQ(a.world.turn(c).cached, 22 + 81 + 11 + 30);
    a.world.expect_exact();
    b.world.expect_exact();
}

INSTANTIATE_TEST_SUITE_P(All, PrefixShare,
                         ::testing::Values(kBoth, std::vector<StateSpec>{{StateSpec::Kind::paged, 2, 2, 0}},
                                           std::vector<StateSpec>{{StateSpec::Kind::window, 1, 2, 5}}));

TEST(prefix_share, who_has_other_weights_another_user_or_another_secret_finds_nothing) {
    std::mt19937 rng(42);
    const Folder folder;
    Conversation c = talk(rng, 0, 1, {22, 81, 11});
    SharingWorld a(folder.path);
    a.world.turn(c);
    a.share_all();
    say(c, rng, 5, 1000);
    EXPECT_EQ(SharingWorld(folder.path, 60, 2).fetch(c), 0) << "other weights";
    Conversation other = c;
    other.user = 1;
    EXPECT_EQ(SharingWorld(folder.path).fetch(other), 0);
    SharingWorld stranger(folder.path, 60, 1, kBoth, fleet_key(2));
    EXPECT_EQ(stranger.fetch(c), 0);
}

TEST(prefix_share, what_was_fetched_for_weights_that_have_gone_is_dropped) {
    std::mt19937 rng(43);
    const Folder folder;
    Conversation c = talk(rng, 0, 1, {22, 81, 11});
    SharingWorld a(folder.path);
    a.world.turn(c);
    a.share_all();
    say(c, rng, 5, 1000);
    SharingWorld b(folder.path);
    b.fetch(c, true);
    EXPECT_EQ(b.world.host->count(), 0);
    EXPECT_EQ(b.world.turn(c).cached, 0);
}

TEST(prefix_share, side_requests_and_what_is_evicted_before_it_is_written_leave_nothing) {
    std::mt19937 rng(44);
    const Folder folder;
    SharingWorld a(folder.path, 50);
    a.world.turn(talk(rng, 0, 1, {22, 81, 11}), true);
    a.share_all();
    EXPECT_EQ(a.shared.stats().written, 0);
    for (int i = 0; i < 20; ++i) a.world.turn(talk(rng, i, static_cast<uint64_t>(i + 2), {22, 81, 11}));
    a.share_all();  // of twenty conversations two fit the pool: the others went before anybody shared
    const int64_t written = a.shared.stats().written;
    EXPECT_GT(written, 0);
    EXPECT_LT(written, 4 * 31);
    a.world.expect_exact();
}

TEST(prefix_share, what_a_place_has_lost_is_written_again_with_the_next_turn) {
    std::mt19937 rng(46);
    const auto place = std::make_shared<FakePlace>();
    Conversation c = talk(rng, 0, 1, {22, 81, 11});
    SharingWorld a(place);
    a.world.turn(c);
    a.share_all();
    const size_t before = place->pieces.size();
    place->set(FakePlace::Mood::fails);
    EXPECT_TRUE(soon([&] {
        const auto lookup = std::make_shared<SharedLookup>();
        lookup->names = {Digest{}};
        a.shared.look(lookup);
        return !a.shared.usable();
    }));
    place->locked([&] { place->pieces.clear(); });
    place->set(FakePlace::Mood::well);
    EXPECT_TRUE(soon([&] { return a.shared.usable(); }));
    say(c, rng, 30, 1000);
    a.share_all();
    a.world.turn(c);
    a.share_all();
    EXPECT_GT(place->pieces.size(), before);
    SharingWorld b(place);
    say(c, rng, 5, 1000);
    EXPECT_EQ(b.fetch(c), 22 + 81 + 11 + 30);
    EXPECT_EQ(b.world.turn(c).cached, 22 + 81 + 11 + 30);
}

TEST(prefix_share, what_is_there_but_not_worth_fetching_is_not_written_again) {
    std::mt19937 rng(47);
    const auto place = std::make_shared<FakePlace>();
    Conversation c = talk(rng, 0, 1, {22, 81, 11});
    SharingWorld a(place), b(place);
    a.world.turn(c);
    a.share_all();
    EXPECT_GT(a.shared.stats().written, 25);
    say(c, rng, 5, 1000);
    const PrefixSalt salt = salt_of(c.user);
    const PrefixCache::Wanted wanted = b.world.cache->wanted({salt, c.tokens, c.ends, c.session}, c.ends);
    const auto lookup = b.world.cache->lookup_of(wanted);
    b.shared.look(lookup);
    EXPECT_TRUE(soon([&] { return lookup->done.load(); }));
    EXPECT_EQ(lookup->there, std::vector<char>(3, 1));
    b.world.cache->found(wanted, wanted.ends.back());
    EXPECT_EQ(b.world.turn(c).cached, 0);
    b.share_all();
    EXPECT_GE(b.shared.stats().written, 1);
    EXPECT_LE(b.shared.stats().written, 3) << "what is new";
}

// Files vanish as the folder's evictor takes them: any set of them.
TEST(prefix_share, holes_in_the_folder_make_misses_never_wrong_prefixes) {
    std::mt19937 rng(45);
    const Folder folder;
    Conversation c = talk(rng, 0, 1, {22, 81, 11, 64, 3});
    SharingWorld a(folder.path, 100);
    a.world.turn(c);
    a.share_all();
    say(c, rng, 5, 1000);
    int64_t shorter = 0, whole = 0;
    for (int round = 0; round < 40; ++round) {
        const Folder copy;
        std::filesystem::copy(folder.path, copy.path, std::filesystem::copy_options::recursive);
        std::vector<std::filesystem::path> files;
        for (const auto& entry : std::filesystem::recursive_directory_iterator(copy.path))
            if (entry.is_regular_file()) files.push_back(entry.path());
        std::sort(files.begin(), files.end());
        for (int i = 0; i < round % 4; ++i) std::filesystem::remove(files[rng() % files.size()]);
        SharingWorld b(copy.path, 100);
        const int64_t got = b.fetch(c);
        EXPECT_EQ(b.world.turn(c).cached, got);
        (got == c.ends[4] ? whole : shorter) += 1;
    }
    EXPECT_GE(whole, 10);
    EXPECT_GT(shorter, 5);
}

}  // namespace
}  // namespace riptide
