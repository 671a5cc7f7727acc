// State of one set of weights at a time: others find nothing of it, and the same find it again by their name.
#include "tests/cache/prefix_world.h"

namespace riptide {
namespace {

/// Drives all of a conversation out of memory, and says how much of it is found after that.
int64_t found_below(World& world, std::mt19937& rng, const Conversation& c) {
    world.turn(talk(rng, 1, 2, {190}));
    return world.cache->find({salt_of(c.user), c.tokens, c.ends, c.session}).cached;
}

TEST(prefix_weights, other_weights_find_nothing_in_any_tier_and_the_same_find_the_disk_again) {
    std::mt19937 rng(31);
    const Folder folder;
    const Conversation c = talk(rng, 0, 1, {22, 81, 11});
    for (const int64_t host_bytes : {int64_t{0}, int64_t{1} << 20}) {
        World world(50, {.checkpoint_every = 16}, host_bytes, folder.path + (host_bytes > 0 ? "/a" : "/b"), 1 << 20);
        world.cache->use_weights(weights_called(1));
        world.turn(c);
        EXPECT_GT(found_below(world, rng, c), 100);
        world.cache->persist();
        world.turn(c);  // in memory, too
        world.cache->use_weights(weights_called(2));
        EXPECT_EQ(world.kv->pool().free_count(), 50);
        EXPECT_EQ(world.cache->find({salt_of(0), c.tokens, c.ends}).cached, 0);
        EXPECT_EQ(world.host ? world.host->count() : 0, 0);
        world.turn(c);
        world.cache->use_weights(weights_called(1));
        EXPECT_GT(world.cache->find({salt_of(0), c.tokens, c.ends}).cached, 100) << "of the first weights, on disk";
        world.turn(c);
        world.expect_exact();
    }
}

TEST(prefix_weights, weights_that_get_another_name_keep_what_they_have_in_every_tier_and_behind_a_restart) {
    std::mt19937 rng(32);
    const Folder folder;
    const Conversation c = talk(rng, 0, 1, {22, 81, 11});
    for (const bool restart : {false, true}) {
        const std::string path = folder.path + (restart ? "/a" : "/b");
        {
            World world(50, {.checkpoint_every = 16}, 0, path, 1 << 20);
            world.cache->use_weights(weights_called(1));
            world.turn(c);
            EXPECT_GT(found_below(world, rng, c), 100) << "on its way to the disk";
            if (!restart) world.cache->rename_weights(weights_called(2));
            EXPECT_GT(world.cache->find({salt_of(0), c.tokens, c.ends}).cached, 100);
            world.cache->persist();
        }
        World world(50, {.checkpoint_every = 16}, 0, path, 1 << 20);
        world.cache->use_weights(weights_called(1));
        if (restart) world.cache->rename_weights(weights_called(2));
        else EXPECT_EQ(world.cache->find({salt_of(0), c.tokens, c.ends}).cached, 0) << "the first name is nobody's now";
        world.cache->use_weights(weights_called(2));
        EXPECT_GT(world.turn(c).cached, 100);
        EXPECT_GT(world.cache->stats().loaded_pages, 20);
        EXPECT_EQ(world.disk->stats().damaged, 0);
        world.expect_exact();
    }
}

}  // namespace
}  // namespace riptide
