#include <fmt/format.h>

#include <map>

#include "base/error.h"
#include "cache/shared/place.h"
#include "tests/cache/fake_server.h"
#include "tests/cache/shared_world.h"

namespace riptide {
namespace {

using Status = SharedPlace::Status;
using Bytes = std::vector<std::byte>;
using Words = std::vector<std::string>;

constexpr size_t kRedisTestPart = size_t{4} << 20;

std::string redis_bulk(const std::string& text) { return fmt::format("${}\r\n{}\r\n", text.size(), text); }

/// As much of Redis as is asked for.
class FakeRedis : public FakeState {
  public:
    explicit FakeRedis(std::string password = "") : password_(std::move(password)) {}

    std::string address() const { return fmt::format("redis://127.0.0.1:{}", server.port()); }
    std::shared_ptr<SharedPlace> place() const { return open_shared_place(address(), 0); }

    std::map<std::string, std::string> values;  // with locked()
    std::vector<Words> asked;

  private:
    bool answer(FakeConnection& connection) {
        const std::string count = connection.line();
        Words words;
        for (int left = count.empty() ? 0 : std::stoi(count.substr(1)); left > 0; --left) {
            const std::string length = connection.line();
            if (length.empty()) return false;
            words.push_back(connection.bytes(std::stoull(length.substr(1))));
            connection.bytes(2);
        }
        if (connection.gone() || words.empty()) return false;
        locked([&] { asked.push_back(words); });
        return write(connection, words[0], [&] { return reply(words); });
    }
    std::string reply(const Words& words) {
        if (words[0] == "AUTH") return words.back() == password_ ? "+OK\r\n" : "-WRONGPASS invalid password\r\n";
        if (words[0] == "SELECT") return words[1] == "3" ? "+OK\r\n" : "-ERR DB index is out of range\r\n";
        const auto found = values.find(words[1]);
        if (words[0] == "GETRANGE")
            return redis_bulk(found == values.end() ? "" : found->second.substr(0, std::stoull(words[3]) + 1));
        if (words[0] == "EXPIRE") return ":1\r\n";
        if (words[0] == "DEL") return fmt::format(":{}\r\n", values.erase(words[1]));
        if (words[0] != "SET") return "-ERR unknown command\r\n";
        values[words[1]] = words[2];
        return "+OK\r\n";
    }

    const std::string password_;

  public:
    FakeServer server{[this](FakeConnection& connection) { return answer(connection); }};
};

std::string redis_name(int i) { return fmt::format("{:064x}", i); }

Bytes redis_piece(int i, size_t bytes) {
    std::mt19937_64 random(static_cast<uint64_t>(i));
    Bytes piece(bytes);
    for (std::byte& b : piece) b = static_cast<std::byte>(random());
    return piece;
}

Status redis_puts(SharedPlace& place, int i, size_t bytes = 1000) {
    return place.put(redis_name(i), redis_piece(i, bytes));
}

Status redis_gets(SharedPlace& place, int i, size_t bytes = 1000) {
    Bytes got(bytes);
    const Status status = place.get(redis_name(i), got);
    EXPECT_TRUE(status != Status::done || got == redis_piece(i, bytes)) << i;
    return status;
}

std::vector<int64_t> redis_sizes(SharedPlace& place, std::initializer_list<int> which) {
    std::vector<std::string> names;
    for (const int i : which) names.push_back(redis_name(i));
    return place.sizes(names);
}

class shared_redis : public ::testing::Test {
  protected:
    void SetUp() override {
        try {
            open_shared_place("redis://host", 0);
        } catch (const Error& error) {
            GTEST_SKIP() << "K/V in Redis: built without hiredis";
        }
    }
};

TEST_F(shared_redis, a_piece_is_found_by_all_for_a_day_from_its_last_use) {
    FakeRedis redis;
    const auto one = redis.place(), two = redis.place();
    EXPECT_EQ(redis_gets(*one, 1), Status::missing);
    EXPECT_EQ(redis_puts(*one, 1), Status::done);
    const Words set = redis.locked([&] { return redis.asked.back(); });
    ASSERT_EQ(set.size(), 5U);
    EXPECT_EQ(set[1], "rk1:" + redis_name(1));
    EXPECT_EQ(set[3] + set[4], "EX86400");
    EXPECT_EQ(redis_gets(*two, 1), Status::done);
    EXPECT_EQ(redis.locked([&] { return redis.asked.back(); }), (Words{"EXPIRE", "rk1:" + redis_name(1), "86400"}));
    for (const size_t bytes : {0, 999, 1001, 100'000}) EXPECT_EQ(redis_gets(*two, 1, bytes), Status::missing) << bytes;
    EXPECT_EQ(redis_sizes(*two, {0, 1, 2}), (std::vector<int64_t>{-1, 1000, -1}));
    EXPECT_EQ(redis_sizes(*two, {}), std::vector<int64_t>{});
    std::vector<std::string> many(2000, redis_name(1));
    EXPECT_EQ(two->sizes(many), std::vector<int64_t>(2000, 1000));
    two->erase(redis_name(1));
    EXPECT_EQ(redis_gets(*one, 1), Status::missing);
    EXPECT_EQ(redis.server.connections(), 2);
    EXPECT_EQ(one->problem() + two->problem(), "");
}

TEST_F(shared_redis, a_long_piece_lies_in_parts_of_one_writer) {
    FakeRedis redis;
    const auto place = redis.place();
    for (const size_t bytes : {kRedisTestPart - 1, kRedisTestPart, kRedisTestPart + 1, 2 * kRedisTestPart + 77}) {
        redis.locked([&] { redis.values.clear(); });
        EXPECT_EQ(redis_puts(*place, 1, bytes), Status::done);
        redis.locked([&] {
            EXPECT_EQ(redis.values.size(), (bytes + kRedisTestPart - 1) / kRedisTestPart);
            for (const auto& [key, value] : redis.values) EXPECT_LE(value.size(), kRedisTestPart + 32);
        });
        EXPECT_EQ(redis.locked([&] { return redis.asked.back()[1]; }), "rk1:" + redis_name(1)) << "last";
        EXPECT_EQ(redis_gets(*place, 1, bytes), Status::done);
        EXPECT_EQ(redis_sizes(*place, {1}), std::vector<int64_t>{static_cast<int64_t>(bytes)});
    }
    // Another writer's parts stay apart, and a part that is missing or cut is a miss.
    const auto other = redis.place();
    Bytes theirs = redis_piece(2, 2 * kRedisTestPart + 77), got(theirs.size());
    EXPECT_EQ(other->put(redis_name(1), theirs), Status::done);
    EXPECT_EQ(redis.locked([&] { return redis.values.size(); }), 5U);
    EXPECT_EQ(place->get(redis_name(1), got), Status::done);
    EXPECT_TRUE(got == theirs);
    const auto spoil = [&](const auto& how) {
        redis.locked([&] {
            for (auto& [key, value] : redis.values)
                if (key.ends_with(":2")) how(value);
        });
        return place->get(redis_name(1), got);
    };
    EXPECT_EQ(spoil([](std::string& value) { value.pop_back(); }), Status::missing);
    EXPECT_EQ(redis_sizes(*place, {1}), std::vector<int64_t>{-1}) << "nobody else looks for the rest in vain";
    EXPECT_EQ(other->put(redis_name(1), theirs), Status::done);
    EXPECT_EQ(spoil([](std::string& value) { value += std::string(1 << 20, 'x'); }), Status::missing);
    EXPECT_EQ(other->put(redis_name(1), theirs), Status::done);
    EXPECT_EQ(place->get(redis_name(1), got), Status::done);
    redis.locked([&] { std::erase_if(redis.values, [](const auto& one) { return one.first.ends_with(":1"); }); });
    EXPECT_EQ(place->get(redis_name(1), got), Status::missing);
}

TEST_F(shared_redis, values_that_are_no_pieces_are_missing) {
    FakeRedis redis;
    const auto place = redis.place();
    const std::string digits(16, '0');
    for (const std::string& value :
         {std::string(), std::string("x"), std::string(32, '0'), std::string(1032, 'g'), std::string(1032, 'f'),
          "-" + std::string(1031, '0'), digits + std::string(1016, 'G'), "00000000000003e9" + std::string(1016, '0'),
          "            03e8" + std::string(1016, '0')}) {
        redis.locked([&] { redis.values["rk1:" + redis_name(1)] = value; });
        EXPECT_EQ(redis_gets(*place, 1), Status::missing) << value.substr(0, 40);
    }
    redis.say("GETRANGE", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n");
    EXPECT_EQ(redis_gets(*place, 1), Status::missing);
    EXPECT_EQ(redis_sizes(*place, {1, 2}), (std::vector<int64_t>{-1, -1}));
    EXPECT_EQ(place->problem(), "");
}

TEST_F(shared_redis, what_a_server_refuses_fails_and_is_told_once_where_somebody_must_act) {
    FakeRedis redis;
    const std::string at = redis.address() + ": ";
    const std::pair<std::string, std::string> kRefusals[] = {
        {"-LOADING Redis is loading the dataset in memory\r\n", ""},
        {"-BUSY Redis is busy running a script\r\n", ""},
        {"-ERR something\r\n", ""},
        {"-NOAUTH Authentication required.\r\n", at + "wants a password"},
        {"-OOM command not allowed when used memory > 'maxmemory'.\r\n",
         at + "is full and keeps what it has: set maxmemory-policy allkeys-lru"},
        {"-READONLY You can't write against a read only replica.\r\n",
         at + "can only be read: it is a replica of another"},
        {"-DENIED Redis is running in protected mode because protected mode is enabled\r\n",
         at + "is in protected mode: give it a password (requirepass)"},
        {"-ERR max number of clients reached\r\n", at + "has as many clients as it takes (maxclients)"},
        {"-MOVED 3999 127.0.0.1:6381\r\n", at + "is a cluster, which is not supported"},
    };
    for (const auto& [answer, problem] : kRefusals) {
        const auto place = redis.place();
        redis.say("*", answer);
        for (int i = 0; i < 2; ++i) {
            EXPECT_EQ(redis_gets(*place, 1), Status::failed) << answer;
            EXPECT_EQ(redis_puts(*place, 1), Status::failed) << answer;
            EXPECT_TRUE(redis_sizes(*place, {1, 2, 3}).empty()) << answer;
            place->erase(redis_name(1));
        }
        EXPECT_EQ(place->problem(), problem);
        EXPECT_EQ(place->problem(), "");
        redis.be_well();
        EXPECT_EQ(redis_puts(*place, 1), Status::done);
        EXPECT_EQ(redis_gets(*place, 1), Status::done);
    }
    const auto replica = redis.place();  // one that can be read is
    for (const char* word : {"SET", "EXPIRE", "DEL"}) redis.say(word, "-READONLY You can't write\r\n");
    EXPECT_EQ(redis_gets(*replica, 1), Status::done);
    EXPECT_EQ(redis_puts(*replica, 2), Status::failed);
}

TEST_F(shared_redis, what_is_no_answer_fails_and_the_next_question_has_a_new_connection) {
    FakeRedis redis;
    const auto place = redis.place();
    const auto start = std::chrono::steady_clock::now();
    for (const std::string& answer :
         {std::string(), std::string("HTTP/1.1 400 Bad Request\r\n\r\n"), std::string("*2147483647\r\n"),
          std::string("*1\r\n$1\r\nx\r\n"), std::string("$99999999999999999999\r\n"), std::string("$-7\r\n"),
          std::string(":1\r\n"), std::string("+") + std::string(1 << 20, 'x'),
          "$2000000000\r\n" + std::string(1 << 20, 'x')}) {
        redis.say("*", answer);
        EXPECT_EQ(redis_gets(*place, 1), Status::failed) << answer.substr(0, 40);
        EXPECT_EQ(redis_puts(*place, 1), Status::failed) << answer.substr(0, 40);
        EXPECT_TRUE(redis_sizes(*place, {1, 2}).empty()) << answer.substr(0, 40);
        redis.be_well();
        EXPECT_EQ(redis_puts(*place, 1), Status::done) << answer.substr(0, 40);
        EXPECT_EQ(redis_gets(*place, 1), Status::done) << answer.substr(0, 40);
    }
    // An answer that nobody asked for, behind one in the same packet, is not the next one's.
    redis.say("EXPIRE", ":1\r\n$1000\r\n" + std::string(1000, 'x') + "\r\n");
    EXPECT_EQ(redis_gets(*place, 1), Status::done);
    redis.be_well();
    EXPECT_EQ(redis_sizes(*place, {1}), std::vector<int64_t>{1000});
    const int connections = redis.server.connections();
    for (const char* word : {"GETRANGE", "SET"}) redis.say(word, "-BUSY\r\n");
    EXPECT_EQ(redis_gets(*place, 1), Status::failed);
    EXPECT_EQ(redis_puts(*place, 1), Status::failed);
    redis.be_well();
    EXPECT_EQ(redis_gets(*place, 1), Status::done);
    EXPECT_EQ(redis.server.connections(), connections + 2) << "an error ends the connection";
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10))
        << "announced lengths are not believed";
    redis.server.end_connections();  // as when it is started anew
    EXPECT_EQ(redis_sizes(*place, {1}), std::vector<int64_t>{1000});
    redis.say("GETRANGE", "$1032\r\nhalf of it");
    redis.say("EXPIRE", "");
    EXPECT_EQ(redis_gets(*place, 1), Status::failed);
}

TEST_F(shared_redis, nothing_is_waited_for_longer_than_two_seconds_and_a_dead_server_is_told) {
    FakeRedis redis;
    const auto place = redis.place();
    redis.say("*", "hang");
    const auto start = std::chrono::steady_clock::now();
    EXPECT_TRUE(redis_sizes(*place, {1, 2, 3}).empty());
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(4));
    redis.be_well();
    EXPECT_EQ(redis_puts(*place, 1), Status::done);
    redis.server.end();
    EXPECT_EQ(redis_gets(*place, 1), Status::failed);
    EXPECT_EQ(place->problem(), redis.address() + ": cannot be reached: Connection refused");
    EXPECT_EQ(redis_puts(*place, 1), Status::failed);
    EXPECT_TRUE(redis_sizes(*place, {1}).empty());
    EXPECT_EQ(place->problem(), "");
}

TEST_F(shared_redis, a_password_opens_it_and_is_never_told) {
    FakeRedis redis("p@ss/w:rd");
    const std::string host = fmt::format("127.0.0.1:{}", redis.server.port());
    const auto open = [&](const std::string& address, const std::string& beside = "") {
        return open_shared_place(address, 0, {.redis_password = beside});
    };
    EXPECT_EQ(redis_puts(*open("redis://:p%40ss%2Fw:rd@" + host), 1), Status::done);
    EXPECT_EQ(redis_gets(*open("redis://me:p@ss/w:rd@" + host + "/3"), 1), Status::done);
    EXPECT_EQ(redis.locked([&] { return redis.asked[redis.asked.size() - 4]; }), (Words{"AUTH", "me", "p@ss/w:rd"}));
    EXPECT_EQ(redis_gets(*open("redis://" + host, "p@ss/w:rd"), 1), Status::done);
    EXPECT_EQ(redis_gets(*open("redis://me:@" + host, "p@ss/w:rd"), 1), Status::done);
    EXPECT_EQ(redis.locked([&] { return redis.asked[redis.asked.size() - 3]; }), (Words{"AUTH", "me", "p@ss/w:rd"}));
    const auto crowded = open("redis://:p%40ss%2Fw:rd@" + host + "/3");
    for (const char* word : {"AUTH", "SELECT"}) {
        redis.say(word, "-ERR max number of clients reached\r\n");
        EXPECT_EQ(redis_gets(*crowded, 1), Status::failed);
        redis.be_well();
    }
    EXPECT_EQ(crowded->problem(), "redis://" + host + "/3: has as many clients as it takes (maxclients)");
    EXPECT_EQ(crowded->problem(), "");
    const auto wrong = open("redis://:secret@" + host);
    EXPECT_EQ(redis_gets(*wrong, 1), Status::failed);
    EXPECT_EQ(redis_gets(*wrong, 1), Status::failed);
    EXPECT_EQ(wrong->problem(), "redis://" + host + ": does not take the password");
    EXPECT_EQ(wrong->problem(), "");
    const auto nowhere = open("redis://:p@ss/w:rd@" + host + "/4");
    EXPECT_EQ(redis_gets(*nowhere, 1), Status::failed);
    EXPECT_EQ(nowhere->problem(), "redis://" + host + "/4: has no database 4");
}

TEST_F(shared_redis, addresses_are_checked_and_their_passwords_are_not_in_errors) {
    const auto error = [](const std::string& address) {
        try {
            open_shared_place(address, 0);
        } catch (const Error& what) {
            EXPECT_EQ(what.kind(), ErrorKind::usage) << address;
            return std::string(what.what());
        }
        return std::string();
    };
    for (const char* address : {"redis://host", "redis://host:1", "redis://[::1]:6379/2", "redis://:pw@host/0",
                                "redis+unix:///run/redis.sock", "redis+unix://u:pw@/run/redis.sock"})
        EXPECT_EQ(error(address), "");
    for (const char* address :
         {"redis://", "redis://:6379", "redis://h:0", "redis://h:65536", "redis://h:x", "redis://h/x", "redis://h/1/2",
          "redis://u:secret@", "redis://u:secret@h:x", "redis://secret@h", "redis+unix://", "redis+unix://u:secret@h",
          "rediss://u:secret@h", "http://u:secret@h/", "http:u:secret@h", "redis:u:secret@h", "redis://h:x?secret",
          "redis://u:secret?x@h:x"}) {
        EXPECT_NE(error(address), "") << address;
        EXPECT_EQ(error(address).find("secret"), std::string::npos) << address;
    }
    EXPECT_NE(error("rediss://h").find("over TLS"), std::string::npos);
}

TEST_F(shared_redis, records_that_are_changed_exchanged_or_of_another_fleet_are_counted_misses) {
    FakeRedis redis;
    Replica a(redis.place()), b(redis.place());
    for (uint32_t i = 0; i < 8; ++i) EXPECT_TRUE(a.put(i));
    ASSERT_TRUE(a.flush());
    EXPECT_EQ(b.found({0, 7, 8}), "yyn");
    EXPECT_EQ(b.read({0, 1, 2, 3, 4, 5, 6, 7}), "yyyyyyyy");
    Replica stranger(redis.place(), fleet_key(2));
    EXPECT_EQ(stranger.found({0, 1, 2}), "nnn");
    const auto key = [&](uint32_t i) { return "rk1:" + sealed_name(fleet_key(), record(i).id.name); };
    redis.locked([&] {
        redis.values[key(0)].back() ^= 1;
        std::swap(redis.values[key(1)], redis.values[key(2)]);
        redis.values[key(3)].pop_back();
    });
    for (const uint32_t i : {0, 1, 2, 3}) EXPECT_EQ(b.read({i}), "n") << i;
    EXPECT_EQ(b.store.stats().misses, 4);
    EXPECT_GE(b.store.stats().rejected, 1);
    EXPECT_EQ(b.read({4}), "y");
    EXPECT_TRUE(b.store.usable());
}

TEST_F(shared_redis, what_somebody_must_see_to_reaches_the_owner_of_the_store) {
    FakeRedis redis;
    Replica a(redis.place());
    redis.say("*", "-NOAUTH Authentication required.\r\n");
    EXPECT_EQ(a.found({1}), "failed");
    EXPECT_EQ(a.store.problem(), redis.address() + ": wants a password");
    EXPECT_EQ(a.found({1}), "failed");
    EXPECT_EQ(a.store.problem(), "");
    redis.say("SET", "-OOM full\r\n");
    a.put(1);
    std::string problem;
    EXPECT_TRUE(a.until([&] {
        problem += a.store.problem();
        return !problem.empty();
    }));
    EXPECT_NE(problem.find("is full"), std::string::npos);
}

}  // namespace
}  // namespace riptide
