#include <fmt/format.h>

#include "apps/events/kv_event_batch.h"
#include "apps/events/kv_events.h"
#include "base/error.h"
#include "server/access.h"
#include "tests/apps/kv_events_world.h"
#include "tests/cache/prefix_world.h"

namespace riptide::apps {
namespace {

std::string hex(const std::string& bytes) {
    std::string out;
    for (const char byte : bytes) out += fmt::format("{:02x}", static_cast<uint8_t>(byte));
    return out;
}

Digest digest(uint8_t first) {
    Digest out{};
    out[7] = first;
    return out;
}

// Read off the specification of MessagePack by hand.
TEST(KvEvents, batches_are_these_bytes) {
    const std::string front = "93cb3ff8000000000000";  // of three: 1.5, ...
    PageNews stored{.tier = CacheTier::device, .pages = {0x0102030405060708, 1}, .tokens = {1, 200, 70000, 300}};
    const std::string tag = "99ab426c6f636b53746f726564";  // of nine: BlockStored
    const std::string pages = "92cf0102030405060708cf0000000000000001";
    const std::string rest = "9401ccc8ce00011170cd012c02c0a3475055c0";  // tokens, 2 in a block, nil, GPU, nil
    EXPECT_EQ(hex(kv_event_batch({&stored, 1}, 1.5)), front + "91" + tag + pages + "c0" + rest + "c000");
    stored.isolation = server::salted("a key", "s");
    EXPECT_EQ(hex(kv_event_batch({&stored, 1}, 1.5)), front + "91" + tag + pages + "c0" + rest + "9291a173c000");
    stored.parent = 7;
    EXPECT_EQ(hex(kv_event_batch({&stored, 1}, 1.5)),
              front + "91" + tag + pages + "cf0000000000000007" + rest + "c000");
    const std::vector<PageNews> gone{{.kind = PageNews::Kind::removed, .tier = CacheTier::host, .pages = {UINT64_MAX}},
                                     {.kind = PageNews::Kind::removed, .tier = CacheTier::disk, .pages = {2}},
                                     {.kind = PageNews::Kind::cleared}};
    const std::string removed = "93ac426c6f636b52656d6f766564";  // of three: BlockRemoved
    EXPECT_EQ(hex(kv_event_batch(gone, 1.5)), front + "93" + removed + "91cfffffffffffffffffa3435055" + removed +
                                                  "91cf0000000000000002a44449534b" +
                                                  "91b0416c6c426c6f636b73436c6561726564" + "00");
}

TEST(KvEvents, as_maps_they_have_the_names_of_vllm) {
    PageNews stored{.tier = CacheTier::device, .pages = {7}, .tokens = {1, 2}};
    stored.isolation = server::salted("a key", "s");
    const std::vector<PageNews> news{stored,
                                     {.kind = PageNews::Kind::removed, .tier = CacheTier::host, .pages = {2}},
                                     {.kind = PageNews::Kind::cleared}};
    const auto text = [](const std::string& word) { return static_cast<char>(0xa0 | word.size()) + word; };
    const auto hash = [](char last) { return "\xcf" + std::string(7, '\0') + last; };
    const std::string one = "\x91", nil = "\xc0", type = text("type"), hashes = text("block_hashes");
    EXPECT_EQ(
        hex(kv_event_batch(news, 1.5, KvEventForm::map)),
        hex("\x93\xcb\x3f\xf8" + std::string(6, '\0') + "\x93" + "\x89" + type + text("BlockStored") + hashes + one +
            hash(7) + text("parent_block_hash") + nil + text("token_ids") + "\x92\x01\x02" + text("block_size") +
            "\x02" + text("lora_id") + nil + text("medium") + text("GPU") + text("lora_name") + nil +
            text("extra_keys") + one + one + text("s") + "\x83" + type + text("BlockRemoved") + hashes + one + hash(2) +
            text("medium") + text("CPU") + "\x81" + type + text("AllBlocksCleared") + std::string(1, '\0')));
}

TEST(KvEvents, a_salt_is_found_in_what_keeps_requests_apart) {
    EXPECT_EQ(server::salt_in(server::salted("", "x")), "x");
    EXPECT_EQ(server::salt_in(server::salted("key 12", "12 y")), "12 y");
    for (const char* none : {"", "key", "salted ", "salted 99 x", "salted 99999999999999999999 x"})
        EXPECT_EQ(server::salt_in(none), "") << none;
}

TEST(KvEvents, a_page_is_told_while_a_checkpoint_makes_it_usable) {
    CacheFeed feed;
    KvEventLog log(feed, {});
    Router router(2);
    const auto told = [&] {
        std::string text;
        for (const KvEventMessage& message : log.next(12.5)) router.hear(message);
        for (const auto& [hash, block] : router.blocks) {
            text += fmt::format("{}{}:", text.empty() ? "" : " ", hash);
            for (const std::string& medium : block.media) text += medium[0];
        }
        return text;
    };
    const Digest root = digest(9), a = digest(1), b = digest(2), c = digest(3), mark = digest(20);
    const std::vector<int32_t> tokens{5, 6};
    feed.page(CacheTier::device, a, root, tokens, true, "");
    feed.page(CacheTier::device, b, a, tokens, false, "");
    feed.page(CacheTier::device, c, b, tokens, false, "");
    EXPECT_EQ(told(), "");
    feed.checkpoint(CacheTier::device, mark, b);
    EXPECT_EQ(told(), "1:G 2:G");  // behind the checkpoint nothing goes on
    feed.checkpoint(CacheTier::disk, mark, b);
    feed.gone(CacheChange::Kind::checkpoint, CacheTier::device, mark);
    EXPECT_EQ(told(), "1:G 2:G");
    feed.page(CacheTier::host, b, a, tokens, false, "");
    feed.gone(CacheChange::Kind::page, CacheTier::device, b);
    EXPECT_EQ(told(), "1:G 2:C");
    feed.page(CacheTier::disk, b, a, tokens, false, "");
    feed.gone(CacheChange::Kind::page, CacheTier::host, b);
    EXPECT_EQ(told(), "");  // disks are not told of, and without b nobody comes by a
    feed.page(CacheTier::device, b, a, tokens, false, "");
    feed.page(CacheTier::host, a, root, tokens, true, "");
    EXPECT_EQ(told(), "1:CG 2:G");
    feed.gone(CacheChange::Kind::page, CacheTier::device, a);
    feed.gone(CacheChange::Kind::page, CacheTier::host, a);
    EXPECT_EQ(told(), "");
    feed.page(CacheTier::device, a, root, tokens, true, "");
    EXPECT_EQ(told(), "1:G 2:G");
    feed.cleared(CacheTier::device);
    EXPECT_EQ(told(), "");
}

TEST(KvEvents, what_is_lost_is_told_anew_and_memory_is_bounded) {
    CacheFeed feed(100);
    KvEventLog log(feed, {});
    Router router(2);
    const std::vector<int32_t> tokens{5, 6};
    const auto hear = [&] {
        for (const KvEventMessage& message : log.next(12.5)) router.hear(message);
    };
    const auto add = [&](int pages) {
        for (int i = 0; i < pages; ++i) {
            const Digest name = digest(static_cast<uint8_t>(i + 1));
            feed.page(CacheTier::device, name, digest(255), tokens, true, "");
            feed.checkpoint(CacheTier::device, name, name);
        }
    };
    add(50);
    hear();
    EXPECT_EQ(router.blocks.size(), 50U);
    add(51);  // one more than it holds
    EXPECT_FALSE(feed.wants_all());
    hear();
    EXPECT_TRUE(router.blocks.empty());
    EXPECT_TRUE(feed.wants_all());
    add(20);
    hear();
    EXPECT_TRUE(router.blocks.empty());  // without what was lost they mean nothing
    feed.begin_all();
    add(200);
    feed.end_all();
    add(50);  // everything was more than it holds, and leaves it as much room as before
    EXPECT_FALSE(feed.wants_all());
    hear();
    EXPECT_EQ(router.blocks.size(), 200U);
    EXPECT_EQ(feed.told.lost, 1);
    EXPECT_EQ(feed.told.epochs, 3);
}

TEST(KvEvents, a_build_or_an_address_that_cannot_is_refused_in_a_sentence) {
    const auto refusal = [](const std::string& endpoint, const std::string& replay) {
        try {
            const KvEvents events({.endpoint = endpoint, .replay = replay, .topic = "kv@a@b"},
                                  std::make_shared<CacheFeed>());
            return events.endpoint();
        } catch (const Error& error) {
            return std::string(error.what());
        }
    };
    if (!KvEvents::available()) {
        EXPECT_EQ(refusal("tcp://x", ""), "--kv-events tcp://x: this riptide was built without libzmq");
        return;
    }
    EXPECT_TRUE(refusal("tcp://127.0.0.1:*", "tcp://127.0.0.1:*").starts_with("tcp://127.0.0.1:"));
    EXPECT_EQ(refusal("5557", ""), "--kv-events 5557: expected tcp://ADDRESS:PORT or ipc://PATH");
    EXPECT_TRUE(refusal("tcp://127.0.0.1:x", "").starts_with("--kv-events tcp://127.0.0.1:x: cannot be bound: "));
    EXPECT_TRUE(refusal("tcp://127.0.0.1:*", "tcp://203.0.113.1:*").starts_with("--kv-events-replay tcp://203"));
}

/// Texts that share beginnings. Whatever is asked is the beginning of one of them, so all checkpoints lie on them.
std::vector<Conversation> scripts(std::mt19937& rng, int count) {
    std::vector<Conversation> all;
    for (int i = 0; i < count; ++i) {
        Conversation c{static_cast<int32_t>(rng() % 2), static_cast<uint64_t>(i + 1), {}, {}};
        if (i >= 8 && rng() % 4 != 0) {
            const Conversation& other = all[rng() % all.size()];
            c.tokens.assign(other.tokens.begin(), other.tokens.begin() + static_cast<ptrdiff_t>(rng() % 80));
            if (rng() % 4 != 0) c.user = other.user;
        }
        while (c.tokens.size() < 110) say(c, rng, 1 + static_cast<int64_t>(rng() % 25));
        all.push_back(std::move(c));
    }
    return all;
}

/// What the cache itself says: how often each path of whole pages can be gone on with, in all and from the device.
struct Listing {
    std::map<std::vector<int32_t>, int> usable, on_device;
    bool operator==(const Listing&) const = default;
};

Listing listing_of(const World& world, const std::vector<Conversation>& all) {
    std::map<int32_t, std::set<std::vector<int32_t>>> usable, on_device;  // by user
    for (const Conversation& c : all) {
        std::vector<int32_t> tokens = c.tokens;
        tokens.push_back(-1);  // the last one is never restored
        const PrefixSalt salt = salt_of(c.user);
        const PrefixMatch match = world.cache->find({salt, tokens, {}});
        const int32_t held = world.kv->pages_for(match.cached) - match.pages_to_load;
        for (int32_t page = 1; page <= match.cached / kPageRows; ++page) {
            const std::vector<int32_t> path(tokens.begin(), tokens.begin() + ptrdiff_t{page} * kPageRows);
            usable[c.user].insert(path);
            if (page <= held) on_device[c.user].insert(path);
        }
    }
    Listing out;
    for (const auto& [user, paths] : usable)
        for (const auto& path : paths) ++out.usable[path];
    for (const auto& [user, paths] : on_device)
        for (const auto& path : paths) ++out.on_device[path];
    return out;
}

Listing listing_of(const Router& router) {
    Listing out;
    for (const auto& [hash, block] : router.blocks) {
        ++out.usable[block.path];
        if (block.media.contains("GPU")) ++out.on_device[block.path];
    }
    return out;
}

/// Of the pages that the router knows, those in the tiers below are those that the tiers have.
void expect_tiers(const World& world, const Router& router) {
    std::set<uint64_t> host, disk;
    for (const Record& record : world.host->all())
        if (record.id.key[0] == 'P') host.insert(short_name(record.id.name));
    world.disk->list([&](const Digest& group, const std::string& key, bool) {
        if (key[0] == 'P') disk.insert(short_name(RecordKey::of(group, key).name));
    });
    for (const auto& [hash, block] : router.blocks) {
        EXPECT_EQ(block.media.contains("CPU"), host.contains(hash));
        EXPECT_EQ(block.media.contains("DISK"), disk.contains(hash));
    }
}

/// A server that is started again and again, one router that hears all of it, and others that come late.
struct Server {
    const Folder folder;
    std::unique_ptr<CacheFeed> feed;
    std::unique_ptr<World> world;
    std::unique_ptr<KvEventLog> log;
    Router router{kPageRows};
    int64_t lost = 0, epochs = 0;

    ~Server() { stop(); }
    void stop() {
        world.reset();
        if (feed) lost += feed->told.lost, epochs += feed->told.epochs;
    }
    void start() {
        stop();
        feed = std::make_unique<CacheFeed>(700);
        const PrefixCacheOptions options{
            .checkpoint_every = 16, .state_budget = 6000, .live_sessions = 3, .feed = feed.get()};
        world = std::make_unique<World>(70, options, 8000, folder.path, 30000);
        log = std::make_unique<KvEventLog>(*feed, KvEventLogOptions{.disk = true, .most_messages = 60});
    }
    void hear() {
        for (const KvEventMessage& message : log->next(12.5)) router.hear(message);
    }
    void act(unsigned what, std::mt19937& rng, const std::vector<Conversation>& all) {
        Conversation c = all[rng() % all.size()];
        PrefixCache& cache = *world->cache;
        if (what < 80) {
            c.tokens.resize(1 + rng() % c.tokens.size());
            while (!c.ends.empty() && c.ends.back() > std::ssize(c.tokens)) c.ends.pop_back();
            world->turn(c, rng() % 8 == 0);
        } else if (what < 88) {
            cache.make_room(world->kv->pool().free_count() + 1 + static_cast<int32_t>(rng() % 20), rng() % 2 == 0);
        } else if (what < 95) {
            cache.end_session(c.session);
        } else if (what == 95) {
            cache.forget();
        } else if (what == 96) {
            cache.persist();
        } else if (const auto rare = rng() % 4; rare == 0) {
            cache.flush();
        } else if (rare == 1) {
            cache.use_weights(digest(static_cast<uint8_t>(rng() % 3)));
        } else if (rare == 2) {
            cache.rename_weights(digest(static_cast<uint8_t>(rng() % 3)));
        } else {
            log->renew();
        }
    }
};

TEST(KvEvents, a_router_knows_what_the_cache_can_go_on_with) {
    constexpr unsigned kSeed = 2026;
    constexpr int kOperations = kAddressSanitizer ? 2000 : 10000, kStarts = 4;
    printf("seed %u\n", kSeed);
    std::mt19937 rng(kSeed);
    const std::vector<Conversation> all = scripts(rng, 60);
    Server server;
    size_t most = 0;
    int on_disk = 0, in_host = 0;
    for (int i = 0; i < kOperations && !HasFailure(); ++i) {
        if (i % (kOperations / kStarts) == 0) server.start();
        server.act(rng() % 100, rng, all);
        if (rng() % 3 == 0) server.hear();
        if (i % 50 != 49) continue;
        SCOPED_TRACE("operation " + std::to_string(i));
        server.hear();
        if (server.feed->wants_all()) {  // the next request tells all
            EXPECT_TRUE(server.router.blocks.empty());
            server.world->turn(all[0]);
            server.hear();
        }
        const Listing cached = listing_of(*server.world, all);
        EXPECT_TRUE(listing_of(server.router) == cached);
        expect_tiers(*server.world, server.router);
        Router late(kPageRows);
        for (const KvEventMessage& message : server.log->kept()) late.hear(message);
        EXPECT_TRUE(late.blocks == server.router.blocks);
        most = std::max(most, cached.usable.size());
        for (const auto& [hash, block] : late.blocks) {
            on_disk += block.media.contains("DISK");
            in_host += block.media.contains("CPU");
        }
    }
    server.stop();
    printf("at most %zu pages at a time, lost %ld times, %ld epochs\n", most, server.lost, server.epochs);
    EXPECT_GT(most, 100U);
    EXPECT_GT(on_disk, kOperations / 10);
    EXPECT_GT(in_host, kOperations / 20);
    EXPECT_GT(server.lost, 0);
    EXPECT_GT(server.epochs, 10);
}

}  // namespace
}  // namespace riptide::apps
