#include <fmt/format.h>

#include <map>

#include "base/error.h"
#include "base/sha256.h"
#include "cache/shared/place.h"
#include "tests/cache/fake_server.h"
#include "tests/cache/shared_world.h"

namespace riptide {
namespace {

using Status = SharedPlace::Status;
using Bytes = std::vector<std::byte>;

struct S3Asked {
    std::string method, path, body;
    std::map<std::string, std::string> headers;  // names in lower case
};

/// As much of S3 as is asked for; signatures are for tools/shared_cache_test.py to check.
class FakeS3 : public FakeState {
  public:
    std::string endpoint() const { return fmt::format("http://127.0.0.1:{}", server.port()); }
    std::shared_ptr<SharedPlace> place() const {
        return open_shared_place("s3://bucket/kv/one?endpoint=" + endpoint(), 0,
                                 {.s3_id = "ID", .s3_secret = "SECRET", .s3_token = "TO/K+=N"});
    }
    std::map<std::string, std::string> objects;  // with locked()
    std::vector<S3Asked> asked;

  private:
    bool answer(FakeConnection& connection) {
        S3Asked one;
        const std::string first = connection.line();
        one.method = first.substr(0, first.find(' '));
        one.path = first.substr(one.method.size() + (first.empty() ? 0 : 1), first.rfind(' ') - one.method.size() - 1);
        for (std::string line = connection.line(); !line.empty(); line = connection.line()) {
            std::string name = line.substr(0, line.find(':'));
            std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
            one.headers[name] = line.substr(std::min(line.size(), name.size() + 2));
        }
        if (connection.gone()) return false;
        if (one.headers.contains("expect")) connection.write("HTTP/1.1 100 Continue\r\n\r\n");
        if (one.headers.contains("content-length"))
            one.body = connection.bytes(std::stoull(one.headers["content-length"]));
        locked([&] { asked.push_back(one); });
        return write(connection, one.method, [&] { return reply(one); });
    }
    static std::string http(const std::string& status, int64_t length, const std::string& body = "") {
        return fmt::format("HTTP/1.1 {}\r\nContent-Length: {}\r\n\r\n{}", status, length, body);
    }
    std::string reply(const S3Asked& one) {
        const auto found = objects.find(one.path);
        if (one.method == "PUT") {
            objects[one.path] = one.body;
            return http("200 OK", 0);
        }
        if (found == objects.end())
            return one.method == "HEAD" ? http("404 Not Found", 9) : http("404 Not Found", 9, "NoSuchKey");
        if (one.method == "HEAD") return http("200 OK", std::ssize(found->second));
        if (one.method == "GET") return http("200 OK", std::ssize(found->second), found->second);
        objects.erase(one.path);
        return "HTTP/1.1 204 No Content\r\n\r\n";
    }

  public:
    FakeServer server{[this](FakeConnection& connection) { return answer(connection); }};
};

std::string s3_name(int i) { return fmt::format("{:064x}", i); }
std::string s3_path(int i) { return "/bucket/kv/one/" + s3_name(i); }
Bytes s3_piece(int i, size_t bytes) { return Bytes(bytes, static_cast<std::byte>(i)); }

Status s3_puts(SharedPlace& place, int i, size_t bytes = 1000) { return place.put(s3_name(i), s3_piece(i, bytes)); }
Status s3_gets(SharedPlace& place, int i, size_t bytes = 1000) {
    Bytes got(bytes);
    const Status status = place.get(s3_name(i), got);
    EXPECT_TRUE(status != Status::done || got == s3_piece(i, bytes)) << i;
    return status;
}
std::vector<int64_t> s3_sizes(SharedPlace& place, std::initializer_list<int> which) {
    std::vector<std::string> names;
    for (const int i : which) names.push_back(s3_name(i));
    return place.sizes(names);
}

class shared_s3 : public ::testing::Test {
  protected:
    void SetUp() override {
        ::setenv("no_proxy", "127.0.0.1", 1);
        try {
            FakeS3().place();
        } catch (const Error& error) {
            GTEST_SKIP() << "K/V in S3: built without libcurl";
        }
    }
};

TEST_F(shared_s3, a_piece_is_an_object_that_all_find) {
    FakeS3 s3;
    const auto one = s3.place(), two = s3.place();
    EXPECT_EQ(s3_gets(*one, 1), Status::missing);
    for (const size_t bytes : {size_t{3} << 20, size_t{0}, size_t{1000}}) {
        EXPECT_EQ(s3_puts(*one, 1, bytes), Status::done);
        EXPECT_EQ(s3_gets(*two, 1, bytes), Status::done);
    }
    for (const size_t bytes : {0, 999, 1001, 1 << 20}) EXPECT_EQ(s3_gets(*two, 1, bytes), Status::missing) << bytes;
    EXPECT_EQ(s3_sizes(*two, {0, 1, 2}), (std::vector<int64_t>{-1, 1000, -1}));
    EXPECT_EQ(s3_sizes(*two, {}), std::vector<int64_t>{});
    std::vector<std::string> many;
    for (int i = 0; i < 200; ++i) many.push_back(s3_name(i % 2));
    const std::vector<int64_t> sizes = two->sizes(many);
    ASSERT_EQ(sizes.size(), 200U);
    for (size_t i = 0; i < 200; ++i) EXPECT_EQ(sizes[i], i % 2 == 0 ? -1 : 1000) << i;
    EXPECT_LE(s3.server.connections(), 40) << "they are used again";
    two->erase(s3_name(1));
    EXPECT_EQ(s3_gets(*one, 1), Status::missing);
    EXPECT_EQ(one->problem() + two->problem(), "");
    for (const S3Asked& asked : s3.locked([&] { return s3.asked; })) {
        EXPECT_EQ(asked.headers.at("x-amz-content-sha256"),
                  to_hex(sha256(std::as_bytes(std::span(asked.body.data(), asked.body.size())))));
        EXPECT_EQ(asked.headers.at("x-amz-security-token"), "TO/K+=N");
        EXPECT_NE(asked.headers.at("authorization").find("/us-east-1/s3/aws4_request"), std::string::npos);
        EXPECT_TRUE(asked.path == s3_path(0) || asked.path == s3_path(1) || asked.path == s3_path(2)) << asked.path;
    }
}

TEST_F(shared_s3, what_a_server_refuses_fails_and_is_told_once_where_somebody_must_act) {
    FakeS3 s3;
    for (const auto& [status, word] :
         std::map<std::string, std::string>{{"403 Forbidden", "refuses what is asked (403)"},
                                            {"301 Moved", "is the bucket in region us-east-1?"},
                                            {"400 Bad Request", "AWS_SESSION_TOKEN"},
                                            {"500 Internal Server Error", ""},
                                            {"503 Slow Down", ""},
                                            {"206 Partial Content", ""}}) {
        const auto place = s3.place();
        s3.say("*", "HTTP/1.1 " + status + "\r\nContent-Length: 0\r\nLocation: http://127.0.0.1:1/\r\n\r\n");
        for (int i = 0; i < 2; ++i) {
            EXPECT_EQ(s3_gets(*place, 1), Status::failed) << status;
            EXPECT_EQ(s3_puts(*place, 1), Status::failed) << status;
            EXPECT_TRUE(s3_sizes(*place, {1, 2, 3}).empty()) << status;
            place->erase(s3_name(1));
        }
        const std::string problem = place->problem();
        EXPECT_EQ(problem.empty(), word.empty()) << problem;
        EXPECT_NE(problem.find(word), std::string::npos) << problem;
        EXPECT_EQ(problem.find("SECRET"), std::string::npos);
        EXPECT_EQ(place->problem(), "");
        s3.be_well();
        EXPECT_EQ(s3_puts(*place, 1), Status::done);
        EXPECT_EQ(s3_gets(*place, 1), Status::done);
    }
    s3.say("PUT", "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n");
    const auto place = s3.place();
    EXPECT_EQ(s3_puts(*place, 1), Status::failed);
    EXPECT_EQ(place->problem(), "s3://bucket/kv/one: there is no such bucket");
}

TEST_F(shared_s3, bodies_that_are_cut_too_long_or_never_come_are_no_pieces) {
    FakeS3 s3;
    const auto place = s3.place();
    const std::string ok = "HTTP/1.1 200 OK\r\n";
    for (const auto& [answer, expected] : std::vector<std::pair<std::string, Status>>{
             {"", Status::failed},
             {"no HTTP at all, Connection: close", Status::failed},
             {ok + "Content-Length: 1000\r\nConnection: close\r\n\r\nhalf", Status::failed},
             {ok + "Content-Length: 4\r\n\r\nhalf", Status::missing},
             {ok + "Connection: close\r\n\r\nhalf", Status::missing},
             {ok + "Connection: close\r\n\r\n" + std::string(1 << 20, 'x'), Status::missing},
             {ok + "Content-Length: 1001\r\n\r\n" + std::string(1001, 'x'), Status::missing},
             {ok + "Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n3\r\nabc\r\n", Status::failed}}) {
        s3.say("GET", answer);
        EXPECT_EQ(s3_gets(*place, 1), expected) << answer.substr(0, 90);
    }
    EXPECT_EQ(s3_puts(*place, 1), Status::done);
    s3.server.end_connections();
    s3.be_well();
    EXPECT_EQ(s3_gets(*place, 1), Status::done);
    for (const char* answer : {"hang", "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nhalf"}) {
        s3.say("*", answer);
        const auto start = std::chrono::steady_clock::now();
        EXPECT_EQ(s3_gets(*place, 1), Status::failed);
        EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(4));
    }
    s3.say("*", "hang");
    EXPECT_TRUE(s3_sizes(*place, {1, 2, 3}).empty());
    s3.server.end();
    EXPECT_EQ(s3_gets(*place, 1), Status::failed);
    const std::string problem = place->problem();
    EXPECT_NE((problem + place->problem()).find("cannot be used: Couldn't connect to server"), std::string::npos)
        << problem;
}

TEST_F(shared_s3, addresses_and_keys_are_checked) {
    const SharedAccess key{.s3_id = "ID", .s3_secret = "SECRET"};
    const auto error = [](const std::string& address, const SharedAccess& access) {
        try {
            open_shared_place(address, 0, access);
        } catch (const Error& what) {
            EXPECT_EQ(what.kind(), ErrorKind::usage) << address;
            return std::string(what.what());
        }
        return std::string();
    };
    for (const char* address : {"s3://b", "s3://b.c-d/", "s3://b/Kv/a_b~c.d-", "s3://b?region=eu-west-3",
                                "s3://b/p?endpoint=https%3A%2F%2Fhost&region=x-1", "s3://b?endpoint=http://h:1/"})
        EXPECT_EQ(error(address, key), "") << address;
    for (const char* address :
         {"s3://", "s3:///p", "s3://B", "s3://b/a b", "s3://b/%41", "s3://b//p", "s3://b/../p", "s3://b/p?",
          "s3://b/p?x=1", "s3://b?region=", "s3://b?region=A", "s3://b?endpoint=ftp://h", "s3://b?endpoint=http://",
          "s3://b?endpoint=http://h/p", "s3://b?endpoint=http://u:p@h", "s3:b"})
        EXPECT_NE(error(address, key), "") << address;
    for (const char* address : {"s3://u:hush@b", "s3://b?endpoint=http://u:hush@h", "s3://b?secret=hush",
                                "s3://b?endpoint=http%3A//u:hush%40h", "s3://u:p@hush@B?x=1", "s3:u:hush@b",
                                "s3://b?endpoint=u:hush@h:1", "s3://b?endpoint=hush@h:1"}) {
        EXPECT_NE(error(address, key), "") << address;
        EXPECT_EQ(error(address, key).find("hush"), std::string::npos) << error(address, key);
    }
    EXPECT_NE(error("s3://b", {}).find("AWS_ACCESS_KEY_ID"), std::string::npos);
    EXPECT_NE(error("s3://b", {.s3_id = "ID"}).find("AWS_SECRET_ACCESS_KEY"), std::string::npos);
    EXPECT_NE(error("s3://b", {.s3_id = "ID", .s3_secret = "S", .s3_endpoint = "h:1"}).find("h:1"), std::string::npos);
}

TEST_F(shared_s3, records_that_are_changed_or_exchanged_are_counted_misses) {
    FakeS3 s3;
    Replica a(s3.place()), b(s3.place());
    for (uint32_t i = 0; i < 6; ++i) EXPECT_TRUE(a.put(i));
    ASSERT_TRUE(a.flush());
    EXPECT_EQ(b.found({0, 5, 6}), "yyn");
    EXPECT_EQ(b.read({0, 1, 2, 3, 4, 5}), "yyyyyy");
    const auto path = [&](uint32_t i) { return "/bucket/kv/one/" + sealed_name(fleet_key(), record(i).id.name); };
    s3.locked([&] {
        s3.objects[path(0)].back() ^= 1;
        std::swap(s3.objects[path(1)], s3.objects[path(2)]);
        s3.objects[path(3)].pop_back();
    });
    for (const uint32_t i : {0, 1, 2, 3}) EXPECT_EQ(b.read({i}), "n") << i;
    EXPECT_EQ(b.store.stats().misses, 4);
    EXPECT_EQ(b.read({4}), "y");
}

}  // namespace
}  // namespace riptide
