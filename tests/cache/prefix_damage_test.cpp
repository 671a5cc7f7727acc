// The disk tier killed and damaged under a whole prefix cache. K/V rows of the fake engine are their token, position
// and user, and every row of every restored sequence is compared: a wrong row here would be a wrong token there.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "tests/cache/prefix_world.h"

namespace riptide {
namespace {

constexpr int64_t kDiskBytes = 60000;  // less than all conversations take: files come and go

/// Conversations that share beginnings, of two users.
std::vector<Conversation> conversations() {
    std::mt19937 rng(606);
    std::vector<Conversation> all;
    for (int32_t i = 0; i < 12; ++i) {
        Conversation c = i < 4 ? talk(rng, i % 2, 0, {22}, 3) : all[static_cast<size_t>(i % 4)];
        c.session = static_cast<uint64_t>(i + 1);
        for (int k = 0; k < 3; ++k) say(c, rng, 1 + static_cast<int64_t>(rng() % 40));
        all.push_back(std::move(c));
    }
    return all;
}

[[noreturn]] void converse_until_killed(const std::string& folder, unsigned seed, int progress) {
    std::mt19937 rng(seed);
    const std::vector<Conversation> all = conversations();
    for (;;) {
        World world(70, {.checkpoint_every = 16}, rng() % 2 == 0 ? 6000 : 0, folder, kDiskBytes);
        for (int turn = 0; turn < 6; ++turn) {
            world.turn(all[rng() % all.size()]);
            if (rng() % 2 == 0) world.cache->persist();
            if (::testing::Test::HasFailure()) ::_exit(1);
            if (::write(progress, "", 1) != 1) ::_exit(2);
        }
    }
}

TEST(prefix_damage, kills_at_random_instants_cost_hits_and_never_a_wrong_row_nor_a_start) {
    RT_CPU_ONLY("a forked process cannot use the GPU");
    constexpr unsigned kSeed = 8080;
    printf("seed %u\n", kSeed);
    std::mt19937 rng(kSeed);
    const Folder folder;
    const std::vector<Conversation> all = conversations();
    const unsigned kills = full_counts() ? 1000 : 60;
    int64_t tokens = 0, cached = 0, in_the_middle = 0;
    for (unsigned kill = 0; kill < kills && !HasFailure(); ++kill) {
        int pipe[2];
        ASSERT_EQ(::pipe(pipe), 0);
        const pid_t child = ::fork();
        ASSERT_GE(child, 0);
        if (child == 0) {
            ::close(pipe[0]);
            converse_until_killed(folder.path, kSeed + kill, pipe[1]);
        }
        ::close(pipe[1]);
        char byte = 0;
        for (auto turns = rng() % 8; turns > 0 && ::read(pipe[0], &byte, 1) == 1; --turns) {
        }
        const auto instant = std::chrono::steady_clock::now() + std::chrono::microseconds(rng() % 4000);
        while (std::chrono::steady_clock::now() < instant) std::this_thread::yield();
        ::kill(child, SIGKILL);
        int status = 0;
        ASSERT_EQ(::waitpid(child, &status, 0), child);
        EXPECT_TRUE(WIFSIGNALED(status)) << "the child ended by itself with " << WEXITSTATUS(status);
        ::close(pipe[0]);
        for (const auto& one : std::filesystem::directory_iterator(folder.path))
            in_the_middle += one.path().filename().string().starts_with("writing-");
        World world(200, {.checkpoint_every = 16}, 0, folder.path, kDiskBytes);
        EXPECT_EQ(world.disk->problem(), "") << kill;
        EXPECT_EQ(world.disk->stats().damaged, 0) << kill;
        const Conversation& c = all[rng() % all.size()];
        cached += world.turn(c).cached;  // checks every row
        tokens += static_cast<int64_t>(c.tokens.size());
        EXPECT_EQ(world.cache->stats().damaged, 0) << kill;
    }
    printf("%u kills, %lld in the middle of a file; %lld of %lld tokens came back, all right\n", kills,
           static_cast<long long>(in_the_middle), static_cast<long long>(cached), static_cast<long long>(tokens));
    EXPECT_GT(cached, tokens / 4);
    EXPECT_LT(cached, tokens);
}

TEST(prefix_damage, flipped_bits_cost_hits_and_never_a_wrong_row_nor_a_start) {
    constexpr unsigned kSeed = 31337;
    printf("seed %u\n", kSeed);
    std::mt19937 rng(kSeed);
    const Folder folder;
    const std::vector<Conversation> all = conversations();
    const int flips = full_counts() ? 10000 : 400;
    int64_t tokens = 0, cached = 0, damaged = 0;
    for (int flip = 0; flip < flips && !HasFailure();) {
        World world(200, {.checkpoint_every = 16}, 0, folder.path, kDiskBytes);
        EXPECT_EQ(world.disk->problem(), "") << flip;
        // Some after the start, which reads headers only.
        std::vector<std::filesystem::path> files;
        for (const auto& one : std::filesystem::directory_iterator(folder.path))
            if (one.path().extension() == ".record") files.push_back(one.path());
        for (int k = 0; k < 2 && !files.empty(); ++k, ++flip) {
            const auto& file = files[rng() % files.size()];
            const auto size = std::filesystem::file_size(file);
            const std::unique_ptr<std::FILE, int (*)(std::FILE*)> f(std::fopen(file.c_str(), "r+b"), std::fclose);
            std::fseek(f.get(), static_cast<long>(rng() % size), SEEK_SET);
            const int byte = std::fgetc(f.get());
            std::fseek(f.get(), -1, SEEK_CUR);
            std::fputc(byte ^ (1 << rng() % 8), f.get());
        }
        if (flip % 4 == 0) {  // the others before it
            world.cache.reset();
            world.disk.reset();
            world.disk = std::make_unique<DiskStore>(folder.path, kDiskBytes);
            EXPECT_EQ(world.disk->problem(), "") << flip;
            world.cache = std::make_unique<PrefixCache>(*world.kv, PrefixCacheOptions{.checkpoint_every = 16}, nullptr,
                                                        world.disk.get());
        }
        const Conversation& c = all[rng() % all.size()];
        cached += world.turn(c).cached;  // checks every row
        tokens += static_cast<int64_t>(c.tokens.size());
        world.expect_exact();
        damaged += world.disk->stats().damaged;
        world.cache->persist();
    }
    printf("%d flips, %lld seen; %lld of %lld tokens came back, all right\n", flips, static_cast<long long>(damaged),
           static_cast<long long>(cached), static_cast<long long>(tokens));
    EXPECT_GT(damaged, flips / 8);
    EXPECT_GT(cached, tokens / 4);
    EXPECT_LT(cached, tokens);
}

}  // namespace
}  // namespace riptide
