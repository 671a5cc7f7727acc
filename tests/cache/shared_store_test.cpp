#include "tests/cache/shared_world.h"

#include <thread>

namespace riptide {
namespace {

using Clock = std::chrono::steady_clock;
using Mood = FakePlace::Mood;
using namespace std::chrono_literals;

TEST(shared_store, what_one_replica_puts_another_reads) {
    const StoreFolder folder;
    Replica a(open_shared_place(folder.path, 0)), b(open_shared_place(folder.path, 0));
    std::vector<uint32_t> all;
    int64_t bytes = 0;
    for (uint32_t i = 0; i < 200; ++i) {
        all.push_back(i);
        bytes += record(i).payload_bytes();
        EXPECT_TRUE(a.put(i));
    }
    ASSERT_TRUE(a.flush());
    EXPECT_EQ(b.found({5, 1000, 7}), "yny");
    EXPECT_EQ(b.read(all), std::string(200, 'y'));
    EXPECT_EQ(b.read({1000}), "n");
    EXPECT_EQ(b.read({}), "");
    EXPECT_EQ(b.store.lookup_seconds(), 0) << "of one lookup nobody tells";
    EXPECT_EQ(b.found({}), "");
    EXPECT_EQ(b.found({6}), "y");
    EXPECT_EQ(b.found({8}), "y");
    EXPECT_GT(b.store.read_rate(), 0);
    EXPECT_GT(b.store.lookup_seconds(), 0);
    const SharedStore::Stats wrote = a.store.stats(), read = b.store.stats();
    EXPECT_EQ(wrote.written, 200);
    EXPECT_EQ(wrote.bytes_written, bytes);
    EXPECT_EQ(read.bytes_read, bytes);
    EXPECT_EQ(read.hits, 200);
    EXPECT_EQ(read.misses, 1);
    EXPECT_EQ(wrote.errors + read.errors + read.rejected + read.gave_up, 0);
    EXPECT_TRUE(b.put(5));  // known to be there
    ASSERT_TRUE(b.flush());
    EXPECT_EQ(b.store.stats().written, 0);
    fs::remove_all(folder.path + "/" + sealed_name(fleet_key(), record(5).id.name).substr(0, 2));
    EXPECT_EQ(b.found({5}), "n");
    EXPECT_TRUE(b.put(5));  // no longer
    ASSERT_TRUE(b.flush());
    EXPECT_EQ(a.read({5}), "y");
}

TEST(shared_store, damage_is_a_miss_that_is_counted_and_erased_once) {
    const auto place = std::make_shared<FakePlace>();
    const auto piece = [&](uint32_t i) -> std::vector<std::byte>& {
        return place->pieces[sealed_name(fleet_key(), record(i).id.name)];
    };
    {
        Replica a(place), other(place, fleet_key(2));
        for (uint32_t i = 0; i < 12; ++i) a.put(i);
        other.put(12);
        ASSERT_TRUE(a.flush() && other.flush());
    }
    piece(1)[40] ^= std::byte{1};
    piece(2).back() ^= std::byte{128};
    piece(3)[4] = std::byte{2};  // version
    piece(4).pop_back();
    piece(5).clear();
    piece(6).push_back({});
    piece(8) = piece(7);
    std::fill(piece(10).begin(), piece(10).end(), std::byte{0});
    Replica b(place);
    const std::vector<uint32_t> rejected = {1, 2, 3, 10}, missing = {4, 5, 6, 8, 12};
    for (const uint32_t i : rejected) EXPECT_EQ(b.read({i}), "n") << i;
    for (const uint32_t i : missing) EXPECT_EQ(b.read({i}), "n") << i;
    EXPECT_EQ(b.read({0, 7, 9, 11}), "yyyy");
    EXPECT_EQ(b.store.stats().rejected, std::ssize(rejected));
    EXPECT_EQ(b.store.stats().misses, std::ssize(rejected) + std::ssize(missing));
    EXPECT_TRUE(b.until([&] { return place->locked([&] { return place->erased == std::ssize(rejected); }); }));
    EXPECT_TRUE(b.store.usable());
    // Written again by another, it is not asked for again by this one.
    Replica c(place);
    EXPECT_TRUE(c.put(1));
    ASSERT_TRUE(c.flush());
    const int gets = place->gets;
    EXPECT_EQ(b.found({1, 0}), "ny");
    EXPECT_EQ(b.read({1}), "n");
    EXPECT_EQ(place->gets, gets);
    EXPECT_EQ(c.read({1}), "y");
}

TEST(shared_store, a_flipped_bit_anywhere_is_never_data) {
    constexpr unsigned kSeed = 12;
    printf("seed %u\n", kSeed);
    std::mt19937 rng(kSeed);
    const auto place = std::make_shared<FakePlace>();
    auto replica = std::make_unique<Replica>(place);
    for (uint32_t i = 0; i < 20; ++i) replica->put(i);
    ASSERT_TRUE(replica->flush());
    const auto whole = place->pieces;
    for (int flip = 0; flip < 1000; ++flip) {
        if (flip % 100 == 0) replica = std::make_unique<Replica>(place);  // which knows of no rejected names
        const auto i = static_cast<uint32_t>(rng() % 20);
        const std::string name = sealed_name(fleet_key(), record(i).id.name);
        auto bytes = whole.at(name);
        bytes[rng() % bytes.size()] ^= std::byte{1} << rng() % 8;
        place->locked([&] { place->pieces[name] = bytes; });
        EXPECT_EQ(replica->read({i}), "n") << flip;
    }
}

TEST(shared_store, writes_in_order_up_to_a_bound_and_what_is_left_at_the_end) {
    const auto place = std::make_shared<FakePlace>();
    std::vector<std::string> expected;
    {
        Replica a(place);
        for (uint32_t i = 0; i < 50; ++i) {
            expected.push_back(sealed_name(fleet_key(), record(i).id.name));
            EXPECT_TRUE(a.put(i));
        }
    }
    EXPECT_EQ(place->order, expected);
    place->set(Mood::hangs);
    Replica a(place);
    const int64_t used = heap()->used();
    constexpr int64_t kQuarter = SharedStore::kMostPending / 4;
    const HostBytes block = heap()->take_for_host(kQuarter);
    for (uint32_t i = 0; i < 4; ++i) EXPECT_TRUE(a.store.put_later(record(100 + i).id.name, 0, {block}));
    EXPECT_EQ(a.store.pending_bytes(), SharedStore::kMostPending);
    EXPECT_FALSE(a.put(200));
    EXPECT_EQ(a.store.stats().dropped, 1);
    EXPECT_TRUE(a.until([&] { return place->hang() == 1; }));
    a.store.reap();
    EXPECT_EQ(block.use_count(), 4);  // what hangs keeps no block
    place->set(Mood::well);
    ASSERT_TRUE(a.flush());
    EXPECT_TRUE(a.put(200));
    ASSERT_TRUE(a.flush());
    a.store.reap();
    EXPECT_EQ(block.use_count(), 1);
    EXPECT_EQ(heap()->used(), used + kQuarter);
    EXPECT_EQ(std::ssize(place->order), 55);
}

TEST(shared_store, three_failures_turn_it_off_until_the_place_is_well) {
    const auto place = std::make_shared<FakePlace>();
    Replica a(place);
    a.put(1);
    ASSERT_TRUE(a.flush());
    for (const Mood mood : {Mood::fails, Mood::garbles}) {
        place->set(mood);
        EXPECT_EQ(a.found({1}), "failed");
        EXPECT_EQ(a.found({1}), "failed");
        EXPECT_TRUE(a.store.usable());
        place->set(Mood::well);
        EXPECT_EQ(a.found({1}), "y");  // not in a row
    }
    place->set(Mood::fails);
    EXPECT_EQ(a.found({1}), "failed");
    EXPECT_EQ(a.read({1}), "n");
    EXPECT_EQ(a.read({1}), "n");
    EXPECT_FALSE(a.store.usable());
    const int gets = place->gets;
    EXPECT_EQ(a.found({1}), "failed");  // at once
    EXPECT_EQ(a.read({1}), "n");
    EXPECT_FALSE(a.put(2));
    EXPECT_EQ(place->gets, gets);
    const int64_t errors = a.store.stats().errors;
    EXPECT_TRUE(a.until([&] { return a.store.stats().errors > errors + 2; }));  // it asks again and again
    EXPECT_FALSE(a.store.usable());
    place->set(Mood::well);
    EXPECT_TRUE(a.until([&] { return a.store.usable(); }));
    EXPECT_EQ(a.read({1}), "y");
    EXPECT_TRUE(a.put(2));
    EXPECT_TRUE(a.flush());
}

TEST(shared_store, a_full_place_is_still_read) {
    const auto place = std::make_shared<FakePlace>();
    Replica a(place);
    a.put(0);
    ASSERT_TRUE(a.flush());
    place->set(Mood::full);
    uint32_t i = 1;
    const auto more = [&] { return a.put(i++); };
    EXPECT_TRUE(a.until([&] { return !more(); }));  // after three that failed
    EXPECT_TRUE(a.store.usable());
    EXPECT_EQ(a.read({0}), "y");
    EXPECT_TRUE(a.flush());  // what waited was dropped
    place->set(Mood::well);
    const int64_t written = a.store.stats().written;
    EXPECT_TRUE(a.until([&] { return more() && a.store.stats().written > written; }));
}

TEST(shared_store, a_place_that_lies_gives_nothing) {
    const auto place = std::make_shared<FakePlace>();
    Replica a(place);
    place->set(Mood::lies);
    EXPECT_EQ(a.found({1, 2}), "yy");
    EXPECT_EQ(a.read({1, 2}).find('y'), std::string::npos);
    EXPECT_GE(a.store.stats().rejected, 1);
    EXPECT_TRUE(a.store.usable());
}

TEST(shared_store, nobody_waits_for_a_place_that_hangs) {
    const auto place = std::make_shared<FakePlace>();
    auto a = std::make_unique<Replica>(place);
    for (uint32_t i = 0; i < 20; ++i) a->put(i);
    ASSERT_TRUE(a->flush());
    a->store.reap();
    const int64_t used = heap()->used();
    const auto all_hang = [&](int threads) { return a->until([&] { return place->hang() == threads; }); };
    place->set(Mood::hangs);
    {
        // Two lookups and a load hang, the load in two threads.
        const auto first = a->look({1}), second = a->look({2});
        const auto load = a->load({0, 1, 2, 3});
        EXPECT_TRUE(all_hang(4));
        load->cancel = true;
        for (int i = 0; i < 3; ++i) {
            EXPECT_TRUE(a->store.usable());
            EXPECT_FALSE(first->done || second->done);
            a->store.give_up();
        }
        EXPECT_FALSE(a->store.usable());
        EXPECT_TRUE(load->done && load->failed);
        a->store.reap();
        EXPECT_EQ(load.use_count(), 1);  // its blocks are the owner's alone, whatever the threads do
    }
    EXPECT_EQ(a->found({1}), "failed");
    EXPECT_EQ(heap()->used(), used);
    place->set(Mood::well);  // now the answers come, for nobody
    EXPECT_TRUE(a->until([&] { return a->store.usable(); }));
    EXPECT_EQ(a->store.stats().gave_up, 3);
    EXPECT_EQ(a->read({0, 1, 2, 3}), "yyyy");

    place->set(Mood::hangs);
    const auto load = a->load({4, 5, 6, 7, 8});
    const auto lookup = a->look({1});
    EXPECT_TRUE(a->put(30));
    EXPECT_TRUE(all_hang(5));
    EXPECT_TRUE(a->put(31));
    const auto start = Clock::now();
    a = nullptr;
    EXPECT_LT(Clock::now() - start, 3s);  // it waits for one second
    EXPECT_TRUE(load->done && load->failed && lookup->done && lookup->failed);
    EXPECT_EQ(load.use_count(), 1);
    place->set(Mood::well);  // the threads end, without the store
    while (place.use_count() > 1) std::this_thread::yield();
    for (const SharedPiece& piece : load->pieces) EXPECT_FALSE(piece.there);
}

TEST(shared_store, answers_that_come_too_late_do_not_turn_it_off_and_silence_does) {
    const auto place = std::make_shared<FakePlace>();
    Replica a(place);
    for (int i = 0; i < 5; ++i) {
        a.store.give_up();
        a.store.give_up();
        EXPECT_EQ(a.found({1}), "n");  // in time
        EXPECT_TRUE(a.store.usable());
    }
    for (int i = 0; i < 5; ++i) {
        place->set(Mood::hangs);
        const auto lookup = a.look({1});
        EXPECT_TRUE(a.until([&] { return place->hang() == 1; }));
        a.store.give_up();
        std::this_thread::sleep_for(10ms);
        place->set(Mood::well);
        EXPECT_TRUE(a.until([&] { return lookup->done.load(); }));
        EXPECT_TRUE(a.store.usable()) << i;
    }
    EXPECT_GE(a.store.lookup_seconds(), 0.01) << "by which the owner may know";
    place->set(Mood::hangs);
    const auto lookup = a.look({1});
    for (int i = 0; i < 3; ++i) a.store.give_up();
    EXPECT_FALSE(a.store.usable());
    EXPECT_TRUE(lookup->done && lookup->failed);
    place->set(Mood::well);
    EXPECT_TRUE(a.until([&] { return a.store.usable(); }));  // the place answers its own question
    EXPECT_EQ(a.store.stats().gave_up, 18);
}

TEST(shared_store, what_may_have_been_lost_is_counted_and_no_longer_known) {
    const auto place = std::make_shared<FakePlace>();
    Replica a(place);
    a.put(0);
    ASSERT_TRUE(a.flush());
    EXPECT_EQ(a.store.losses(), 0);
    // A write that fails: when the next is well.
    place->set(Mood::full);
    a.put(1);
    ASSERT_TRUE(a.flush());
    EXPECT_EQ(a.store.losses(), 0) << "the place takes nothing yet";
    place->set(Mood::well);
    a.put(2);
    ASSERT_TRUE(a.flush());
    EXPECT_EQ(a.store.losses(), 1);
    EXPECT_TRUE(a.store.known(record(0).id.name));
    EXPECT_FALSE(a.store.known(record(1).id.name));
    // A place that was away.
    place->set(Mood::fails);
    for (int i = 0; i < 3; ++i) EXPECT_EQ(a.found({9}), "failed");
    EXPECT_FALSE(a.store.usable());
    EXPECT_EQ(a.store.losses(), 1);
    place->set(Mood::well);
    EXPECT_TRUE(a.until([&] { return a.store.usable(); }));
    EXPECT_EQ(a.store.losses(), 2);
    EXPECT_FALSE(a.store.known(record(0).id.name));
}

TEST(shared_store, what_lies_behind_a_record_that_is_missing_is_written_again) {
    const auto place = std::make_shared<FakePlace>();
    Replica a(place);
    for (uint32_t i = 0; i < 20; ++i) a.put(i);
    ASSERT_TRUE(a.flush());
    place->locked([&] { place->pieces.clear(); });
    std::vector<uint32_t> all(20);
    for (uint32_t i = 0; i < 20; ++i) all[i] = i;
    EXPECT_EQ(a.read(all), std::string(20, 'n'));
    for (uint32_t i = 0; i < 20; ++i) a.put(i);
    ASSERT_TRUE(a.flush());
    EXPECT_EQ(a.read(all), std::string(20, 'y'));
}

TEST(shared_store, crowds_of_loads_with_cancels_and_damage_give_right_bytes_or_none) {
    constexpr unsigned kSeed = 3;
    printf("seed %u\n", kSeed);
    std::mt19937 rng(kSeed);
    const auto place = std::make_shared<FakePlace>();
    Replica a(place);
    for (uint32_t i = 0; i < 40; ++i) a.put(i);
    ASSERT_TRUE(a.flush());
    a.store.reap();
    const int64_t used = heap()->used();
    int64_t came = 0;
    for (int round = 0; round < 100; ++round) {
        std::vector<std::pair<std::vector<uint32_t>, std::shared_ptr<SharedLoad>>> loads;
        for (int i = 0; i < 6; ++i) {
            std::vector<uint32_t> which;
            for (auto n = rng() % 12; n > 0; --n) which.push_back(static_cast<uint32_t>(rng() % 41));  // 40 is missing
            auto load = a.load(which);
            loads.emplace_back(std::move(which), std::move(load));
            a.look({3, 40});
            if (rng() % 3 == 0) loads[rng() % loads.size()].second->cancel = true;
            if (rng() % 4 == 0) a.store.reap();
        }
        for (const auto& [which, load] : loads) {
            EXPECT_TRUE(a.until([&, one = load.get()] {
                a.store.reap();
                return one->done.load();
            }));
            for (size_t i = 0; i < which.size(); ++i) {
                if (!load->pieces[i].there) continue;
                ++came;
                EXPECT_EQ(payload_of({.parts = load->pieces[i].parts}), payload_of(record(which[i])));
            }
        }
    }
    a.store.reap();
    EXPECT_EQ(heap()->used(), used);
    EXPECT_GT(came, 500);
}

}  // namespace
}  // namespace riptide
