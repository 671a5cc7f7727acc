// What records on disk are known by: the name of their weights, which may change, and the rule of the program.
#include <bit>

#include "tests/cache/disk_world.h"

namespace riptide {
namespace {

TEST(disk_store, records_named_by_an_older_rule_stay_until_room_is_wanted_and_go_first) {
    const StoreFolder folder;
    {
        DiskStore older(folder.path, 1 << 20, kRecordNaming - 1);
        for (uint32_t i = 0; i < 3; ++i) ASSERT_TRUE(older.put(record(i, 2, 1000)));
    }
    { ASSERT_TRUE(DiskStore(folder.path, 1 << 20).put(record(3, 0, 1000))); }
    const int64_t each = DiskStore(folder.path, 1 << 20).bytes() / 4;
    DiskStore store(folder.path, 4 * each + 100);  // room for these four
    EXPECT_EQ(store.count(), 4);
    EXPECT_EQ(store.stats().damaged, 0);
    for (uint32_t i = 4; i < 7; ++i) ASSERT_TRUE(store.put(record(i, 0, 1000)));
    EXPECT_TRUE(store.has(record(3, 0, 1000).id)) << "unused for longest among its own, and of the lowest rank";
    for (uint32_t i = 0; i < 3; ++i) EXPECT_FALSE(store.has(record(i, 2, 1000).id)) << i;
}

/// The format of files as the first rule's program wrote it, written down once more.
namespace first_rule {

uint64_t mix(uint64_t state, uint64_t word) {
    return std::rotl(state ^ (word * 0x9E3779B97F4A7C15U), 29) * 0xD6E8FEB86659FD93U;
}

uint64_t sum_of(const std::string& bytes, uint64_t seed) {
    uint64_t lanes[4] = {seed, seed ^ 0x9E3779B97F4A7C15U, seed ^ 0xD6E8FEB86659FD93U, ~seed};
    for (size_t i = 0; i < bytes.size(); i += 8) {
        uint64_t word = 0;
        std::memcpy(&word, bytes.data() + i, std::min<size_t>(8, bytes.size() - i));
        uint64_t& lane = lanes[i / 8 % 4];
        lane = mix(lane, word);
    }
    uint64_t sum = bytes.size();
    for (const uint64_t lane : lanes) sum = mix(sum, lane ^ (lane >> 32));
    return sum ^ (sum >> 31);
}

template <class T>
void append(std::string& to, T value) {
    to.append(reinterpret_cast<const char*>(&value), sizeof value);
}

void field(std::string& to, const std::string& text) {
    append(to, uint64_t{text.size()});
    to += text;
}

/// Writes a record of the weights called so into the folder; gives its file's name.
std::string write(const std::string& folder, const std::string& weights, int32_t rank, const std::string& payload) {
    std::string salt, key = "P";
    for (const std::string& text : {weights, std::string("template"), std::string(), std::string(32, 'g')})
        field(salt, text);
    field(key, salt);
    for (const int32_t token : {5, 6, 7, 8}) append(key, token);
    const Digest root = RecordKey::of({}, salt).name, name = RecordKey::of(root, key).name;
    std::string head;
    append(head, uint64_t{0x31444B5054504952});
    append(head, uint32_t{2});
    append(head, rank);
    append(head, int32_t{0});
    append(head, uint32_t{1});
    append(head, root);
    append(head, uint64_t{key.size()});
    append(head, uint64_t{payload.size()});
    append(head, mix(0x31444B5054504952, sum_of(payload, payload.size())));
    append(head, sum_of(key, sum_of(head, 0x31444B5054504952)));
    spit(fs::path(folder) / (to_hex(name) + ".record"), head + key + payload);
    return to_hex(name) + ".record";
}

}  // namespace first_rule

TEST(disk_store, a_folder_of_the_first_rules_program_is_whole_gives_no_hits_and_makes_room_first) {
    const StoreFolder folder;
    std::vector<std::string> old;
    for (const char* weights : {"laguna config cpu numerics 1 0123", "laguna config cpu numerics 1 4567"})
        old.push_back(first_rule::write(folder.path, weights, 2, std::string(1000, 'k')));
    const auto there = [&](const std::string& file) { return fs::exists(fs::path(folder.path) / file); };
    DiskStore store(folder.path, 4000);
    Digest weights;
    weights.fill(9);
    store.use_weights(weights);
    EXPECT_EQ(store.count(), 2) << "they were written as that program did";
    EXPECT_EQ(store.stats().damaged, 0);
    Digest later;
    later.fill(10);
    store.rename_weights(later);  // of what is held under the name, which is nothing
    store.flush();
    EXPECT_TRUE(there(old[0]) && there(old[1]));
    ASSERT_TRUE(store.put(record(2, 0, 1000)));
    EXPECT_TRUE(there(old[0]) && there(old[1])) << "there is room for three";
    ASSERT_TRUE(store.put(record(4, 0, 1000)));
    ASSERT_TRUE(store.put(record(6, 0, 1000)));
    EXPECT_FALSE(there(old[0]) || there(old[1])) << "though their rank was higher";
    for (const uint32_t i : {2U, 4U, 6U}) EXPECT_TRUE(held(store, record(i, 0, 1000))) << i;
    EXPECT_EQ(store.stats().evicted, 2);
}

TEST(disk_store, records_are_found_under_the_name_of_their_weights_alone) {
    const StoreFolder folder;
    Digest a, b, c;
    a.fill(1), b.fill(2), c.fill(3);
    {
        DiskStore store(folder.path, 1 << 20);
        store.use_weights(a);
        store.put_later(record(1));
        store.use_weights(b);
        EXPECT_FALSE(held(store, record(1)));
        EXPECT_TRUE(store.keys(record(1).id.group, "").empty());
        ASSERT_TRUE(store.put(record(2)));
        store.use_weights(a);
        EXPECT_TRUE(held(store, record(1)));
        EXPECT_FALSE(held(store, record(2)));
        EXPECT_EQ(store.keys(record(1).id.group, "rec"), std::vector<std::string>{record(1).id.key});
        store.put_later(record(3));
        store.rename_weights(c);  // the last is on its way to the disk
        for (const uint32_t i : {1U, 3U}) EXPECT_TRUE(held(store, record(i))) << i;
        EXPECT_FALSE(held(store, record(2)));
        EXPECT_EQ(store.stats().failed_writes + store.stats().damaged, 0);
    }
    DiskStore store(folder.path, 1 << 20);
    EXPECT_EQ(store.count(), 3);
    EXPECT_EQ(store.stats().damaged, 0) << "files are named as their records are";
    store.use_weights(a);
    for (uint32_t i = 1; i < 4; ++i) EXPECT_FALSE(held(store, record(i))) << i;
    store.use_weights(c);
    for (const uint32_t i : {1U, 3U}) EXPECT_TRUE(held(store, record(i))) << i;
    store.use_weights(b);
    ASSERT_TRUE(held(store, record(2)));
    ASSERT_TRUE(store.put(record(1)));
    store.rename_weights(c);  // which has one of them already
    for (uint32_t i = 1; i < 4; ++i) EXPECT_TRUE(held(store, record(i))) << i;
    EXPECT_EQ(store.count(), 3);
}

TEST(disk_store, a_file_that_is_gone_when_its_weights_get_another_name_is_a_miss) {
    const StoreFolder folder;
    DiskStore store(folder.path, 1 << 20);
    ASSERT_TRUE(store.put(record(1)));
    ASSERT_TRUE(store.put(record(2)));
    fs::remove(folder.files().at(0));
    Digest name;
    name.fill(1);
    store.rename_weights(name);
    store.flush();
    EXPECT_EQ(store.count(), 1);
    EXPECT_EQ(store.stats().failed_writes, 1);
    EXPECT_EQ(held(store, record(1)) + held(store, record(2)), 1);
}

}  // namespace
}  // namespace riptide
