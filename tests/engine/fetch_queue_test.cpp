// How long a request waits for what other replicas have: never longer than is worth it.
#include "engine/loop/fetch_queue.h"

#include <atomic>
#include <condition_variable>
#include <limits>
#include <thread>

#include "tests/cache/prefix_world.h"

namespace riptide::testing {
namespace {

/// Keeps pieces in memory, and answers when it is let.
class GatedPlace : public SharedPlace {
  public:
    std::vector<int64_t> sizes(std::span<const std::string> names) override {
        if (!pass(looks)) return {};
        ++answered;
        const std::lock_guard lock(mutex);
        most_names = std::max(most_names.load(), names.size());
        std::vector<int64_t> out;
        for (const std::string& name : names)
            out.push_back(pieces.contains(name) ? std::ssize(pieces.at(name)) : int64_t{-1});
        return out;
    }
    Status get(const std::string& name, std::span<std::byte> to) override {
        if (!pass(gets)) return Status::failed;
        const std::lock_guard lock(mutex);
        const auto found = pieces.find(name);
        if (lose_first.exchange(false)) return Status::missing;
        if (found == pieces.end() || found->second.size() != to.size()) return Status::missing;
        std::copy(found->second.begin(), found->second.end(), to.begin());
        return Status::done;
    }
    Status put(const std::string& name, std::span<const std::byte> bytes) override {
        const std::lock_guard lock(mutex);
        pieces[name] = {bytes.begin(), bytes.end()};
        return Status::done;
    }
    void erase(const std::string& name) override {
        const std::lock_guard lock(mutex);
        pieces.erase(name);
    }
    /// So many questions of each kind are answered; then none until there are more.
    void let(int64_t more_looks, int64_t more_gets) {
        const std::lock_guard lock(mutex);
        looks += more_looks;
        gets += more_gets;
        more.notify_all();
    }
    std::atomic<bool> lose_first = false;  // the next piece is missing
    std::atomic<size_t> most_names = 0;    // of one question
    std::atomic<int64_t> answered = 0;     // looks

  private:
    bool pass(int64_t& left) {
        std::unique_lock lock(mutex);
        if (!more.wait_for(lock, std::chrono::seconds(20), [&] { return left > 0; })) return false;
        --left;
        return true;
    }
    std::mutex mutex;
    std::condition_variable more;
    std::map<std::string, std::vector<std::byte>> pieces;
    int64_t looks = 0, gets = 0;
};

constexpr int64_t kMany = int64_t{1} << 40;

class FetchQueueTest : public ::testing::Test {
  protected:
    FetchQueueTest() {
        RT_ASSERT(place != nullptr);
        World first(400, {.checkpoint_every = 64}, 1 << 22);
        SharedStore store(place, key, [] {});
        first.cache->use_weights(weights_called(1));
        first.cache->use_shared(&store);
        std::mt19937 rng(51);
        talked = talk(rng, 0, 1, {100, 300, 200});
        first.turn(talked);
        EXPECT_TRUE(wait_until([&] { return !first.cache->share_some() && store.pending_bytes() == 0; }));
        first.cache->use_shared(nullptr);
        say(talked, rng, 20, 1000);
        world.cache->use_weights(weights_called(1));
        world.cache->use_shared(&shared);
        queue = std::make_unique<FetchQueue>(*world.cache, shared, [this](int64_t) { return reading; });
    }
    ~FetchQueueTest() override {
        place->let(kMany, kMany);
        queue->remove_all();
        world.cache->use_shared(nullptr);
    }

    template <class Condition>
    static bool wait_until(const Condition& condition) {
        for (int i = 0; i < 20'000 && !condition(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        return condition();
    }
    std::unique_ptr<Job> job(RequestId id = 1) const {
        auto job = std::make_unique<Job>();
        job->id = id;
        job->prompt.tokens = talked.tokens;
        job->prompt.message_ends = talked.ends;
        job->salt = salt_of(talked.user);
        return job;
    }
    bool add(RequestId id = 1, int64_t at = 0) {
        auto one = job(id);
        return queue->add(one, 1000, at);
    }
    /// Whether request 1 goes on by itself within a while, at this time of its clock.
    bool comes_back(int64_t at) {
        return wait_until([&] {
            for (auto& one : queue->take_ready(at)) back.push_back(std::move(one));
            return !back.empty();
        });
    }
    int64_t cached() const {
        const PrefixSalt salt = salt_of(talked.user);
        return world.cache->find({salt, talked.tokens, talked.ends}).cached;
    }

    const SealKey key = SealKey::of_secret(std::vector<std::byte>(32, std::byte{7}));
    std::shared_ptr<GatedPlace> place = std::make_shared<GatedPlace>();
    Conversation talked;
    World world{400, {.checkpoint_every = 64}, 1 << 22};
    SharedStore shared{place, key, [] {}};
    double reading = 1.0;  // seconds that the prompt takes to be read
    std::unique_ptr<FetchQueue> queue;
    std::vector<std::unique_ptr<Job>> back;
};

TEST_F(FetchQueueTest, what_another_replica_has_comes_before_the_request_goes_on) {
    ASSERT_TRUE(add());
    place->let(kMany, kMany);
    EXPECT_TRUE(comes_back(1000));
    EXPECT_EQ(queue->stats().fetched, 1);
    EXPECT_EQ(queue->stats().tokens, 600);
    EXPECT_EQ(cached(), 600);
    EXPECT_FALSE(add(2)) << "now it is here";
}

TEST_F(FetchQueueTest, a_place_that_is_silent_costs_a_twentieth_of_reading_and_after_three_times_nothing) {
    for (RequestId id = 1; id <= 3; ++id) {
        ASSERT_TRUE(add(id));
        EXPECT_EQ(queue->look_us(), 50'000);
        EXPECT_TRUE(queue->take_ready(49'999).empty());
        EXPECT_EQ(queue->take_ready(50'000).size(), 1U);
    }
    EXPECT_EQ(queue->stats().late, 3);
    EXPECT_FALSE(add(4)) << "not asked any more";
    EXPECT_EQ(cached(), 0);
}

TEST_F(FetchQueueTest, a_place_whose_answers_come_too_late_is_asked_for_long_prompts_only) {
    for (RequestId id = 1; id <= 3; ++id) {
        ASSERT_TRUE(add(id));
        std::this_thread::sleep_for(std::chrono::milliseconds(60));
        EXPECT_EQ(queue->take_ready(50'000).size(), 1U);
        const int64_t answers = place->answered.load();
        place->let(1, 0);
        EXPECT_TRUE(wait_until([&] { return place->answered.load() == answers + 1; }));
    }
    EXPECT_TRUE(wait_until([&] { return shared.lookup_seconds() > 0; }));
    EXPECT_EQ(queue->stats().late, 3);
    EXPECT_FALSE(add(4)) << "it would not answer in time";
    EXPECT_EQ(queue->stats().slower, 1);
    EXPECT_TRUE(shared.usable());
    reading = 1e4;
    EXPECT_TRUE(add(5));
}

TEST_F(FetchQueueTest, a_lookup_is_of_checkpoints_and_a_page_that_has_gone_ends_the_fetch) {
    ASSERT_TRUE(add());
    place->let(kMany, kMany);
    place->lose_first = true;
    EXPECT_TRUE(comes_back(0));
    EXPECT_LE(place->most_names, 64U);
    EXPECT_EQ(queue->stats().fetched, 0);
    EXPECT_EQ(shared.stats().misses, 1);
    EXPECT_EQ(cached(), 0);
    back.clear();
    ASSERT_TRUE(add());
    EXPECT_TRUE(comes_back(0));
    EXPECT_EQ(cached(), 600);
}

TEST_F(FetchQueueTest, a_fetch_that_broke_off_says_nothing_of_how_long_the_next_takes) {
    ASSERT_TRUE(add());
    place->let(kMany, 1);
    ASSERT_TRUE(wait_until([&] {
        EXPECT_TRUE(queue->take_ready(0).empty());
        return shared.stats().hits == 1;
    }));
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    place->lose_first = true;
    place->let(0, kMany);  // one record, and some of other readers, of 151 in 100 ms; then one is missing
    EXPECT_TRUE(comes_back(0));
    EXPECT_EQ(cached(), 0);
    back.clear();
    ASSERT_TRUE(add());
    EXPECT_TRUE(comes_back(0));
    EXPECT_EQ(cached(), 600);
    EXPECT_EQ(queue->stats().slower, 0);
}

TEST_F(FetchQueueTest, a_fetch_that_would_end_later_than_reading_is_given_up) {
    ASSERT_TRUE(add());
    place->let(1, 3);  // of 151 records
    ASSERT_TRUE(wait_until([&] {
        EXPECT_TRUE(queue->take_ready(0).empty());
        return shared.stats().hits >= 3;
    }));
    EXPECT_TRUE(queue->take_ready(49'000).empty());
    EXPECT_EQ(queue->take_ready(60'000).size(), 1U) << "3 of 151 after 60 ms: it would take 3 s";
    EXPECT_EQ(queue->stats().late, 1);
    EXPECT_EQ(queue->stats().fetched, 0);
    EXPECT_EQ(cached(), 0);
}

TEST_F(FetchQueueTest, what_takes_longer_to_fetch_than_to_read_is_left_there) {
    ASSERT_TRUE(add());
    place->let(kMany, kMany);
    ASSERT_TRUE(comes_back(0));
    ASSERT_GT(shared.read_rate(), 0);
    back.clear();
    world.cache->flush();
    EXPECT_EQ(shared.lookup_seconds(), 0) << "one late answer of a busy machine is no slow place";
    reading = 1e-9;
    ASSERT_TRUE(add());
    EXPECT_TRUE(comes_back(0));
    EXPECT_EQ(queue->stats().slower, 1);
    EXPECT_EQ(queue->stats().fetched, 1);
}

TEST_F(FetchQueueTest, requests_can_leave_and_their_deadlines_count) {
    ASSERT_TRUE(add(1));
    EXPECT_EQ(queue->remove(2), nullptr);
    EXPECT_NE(queue->remove(1), nullptr);
    EXPECT_EQ(queue->size(), 0);
    auto late = job(3);
    late->deadline_us = 7;
    ASSERT_TRUE(queue->add(late, 1000, 0));
    EXPECT_EQ(queue->look_us(), 7);
    EXPECT_EQ(queue->take_ready(7).size(), 1U);
    ASSERT_TRUE(add(4));
    place->let(3, 2);
    ASSERT_TRUE(wait_until([&] {
        EXPECT_TRUE(queue->take_ready(0).empty());
        return shared.stats().hits >= 2;
    }));
    EXPECT_NE(queue->remove(4), nullptr) << "while it is read";
    EXPECT_EQ(queue->look_us(), std::numeric_limits<int64_t>::max());
}

TEST_F(FetchQueueTest, of_several_that_want_the_same_one_fetches_it) {
    for (RequestId id = 1; id <= 4; ++id) ASSERT_TRUE(add(id));
    place->let(4, 0);
    ASSERT_TRUE(wait_until([&] { return place->answered == 4; }));
    for (int i = 0; i < 100; ++i) {  // all know what is there, and none has it yet
        EXPECT_TRUE(queue->take_ready(0).empty());
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    place->let(0, kMany);
    std::vector<std::unique_ptr<Job>> all;
    EXPECT_TRUE(wait_until([&] {
        for (auto& one : queue->take_ready(0)) all.push_back(std::move(one));
        return all.size() == 4;
    }));
    EXPECT_EQ(queue->stats().fetched, 4);
    EXPECT_EQ(shared.stats().hits, 151) << "each record once";
    EXPECT_EQ(cached(), 600);
}

TEST_F(FetchQueueTest, what_another_has_fetched_while_the_place_was_asked_is_not_fetched_again) {
    ASSERT_TRUE(add(1));
    ASSERT_TRUE(add(2));
    place->let(1, kMany);
    EXPECT_TRUE(comes_back(0));
    EXPECT_EQ(shared.stats().hits, 151);
    EXPECT_EQ(cached(), 600);
    place->let(1, 0);  // the other question is answered only now
    EXPECT_TRUE(wait_until([&] {
        for (auto& one : queue->take_ready(0)) back.push_back(std::move(one));
        return back.size() == 2;
    }));
    EXPECT_EQ(shared.stats().hits, 151) << "each record once";
    EXPECT_EQ(queue->stats().fetched, 1);
    EXPECT_EQ(cached(), 600);
}

TEST_F(FetchQueueTest, short_prompts_and_those_that_are_read_whole_do_not_ask) {
    auto whole = job();
    whole->prompt_logprobs = true;
    EXPECT_FALSE(queue->add(whole, 1000, 0));
    auto brief = job();
    brief->prompt.tokens.resize(200);
    brief->prompt.message_ends = {100, 200};
    EXPECT_FALSE(queue->add(brief, 1000, 0));
    EXPECT_NE(brief, nullptr);
}

}  // namespace
}  // namespace riptide::testing
