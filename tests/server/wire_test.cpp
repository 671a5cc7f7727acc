// What comes over the wire that no client should send, who leaves when, and what a wrong key can find out.
#include <algorithm>
#include <cmath>
#include <random>

#include "base/json.h"
#include "server/access.h"
#include "tests/sanitizers.h"
#include "tests/server/http_client.h"

namespace riptide::testing {
namespace {

using Milliseconds = std::chrono::milliseconds;
class ServerWire : public ServerTest {};

const std::string kHost = "Host: localhost\r\n";
const std::string kPost = "POST /v1/completions HTTP/1.1\r\n" + kHost + "Content-Type: application/json\r\n";
const std::string kBody = R"({"prompt": "x", "max_tokens": 1})";

std::string chunked(const std::string& coding, const std::string& chunks) {
    return kPost + "Transfer-Encoding: " + coding + "\r\n\r\n" + chunks;
}

TEST_F(ServerWire, a_chunked_body_may_come_byte_by_byte) {
    start(server_options());
    const std::string whole = fmt::format("{:x}\r\n{}\r\n0\r\n\r\n", kBody.size(), kBody);
    const std::string empty = "0\r\nA: b\r\n\r\n";  // the parser ends programs that give it "0", line end, A
    for (const auto& [body, status] : {std::pair{whole, 200}, {empty, 400}}) {
        Client client(port());
        for (const char c : chunked("chunked", body)) client.send(std::string(1, c));
        EXPECT_EQ(client.receive().status, status) << body;
    }
}

TEST_F(ServerWire, framing_that_two_readers_could_take_differently_is_refused) {
    server::ServerOptions options = server_options();
    options.http.header_time = options.http.body_time = Milliseconds(3000);
    start(options);
    const std::string good = fmt::format("{:x}\r\n{}\r\n0\r\n\r\n", kBody.size(), kBody);
    const std::vector<std::pair<std::string, std::string>> cases = {
        {"a coding behind chunked", chunked("chunked, x", good)},
        {"an unknown coding", chunked("x", good)},
        {"two codings", chunked("chunked\r\nTransfer-Encoding: chunked", good)},
        {"a chunk of -2", chunked("chunked", "-2\r\n{}\r\n0\r\n\r\n")},
        {"a chunk of 0x10", chunked("chunked", "0x10\r\n0123456789abcdef\r\n0\r\n\r\n")},
        {"a chunk beyond 2^64", chunked("chunked", "fffffffffffffffff\r\n{}\r\n0\r\n\r\n")},
        {"a chunk without its end", chunked("chunked", "2\r\n{}x\r\n0\r\n\r\n")},
        {"a length of +3", kPost + "Content-Length: +3\r\n\r\n{} "},
        {"a length of 0x3", kPost + "Content-Length: 0x3\r\n\r\n{} "},
        {"a length beyond 2^64", kPost + "Content-Length: 99999999999999999999999\r\n\r\n{}"},
        {"two lengths in one", kPost + "Content-Length: 2, 3\r\n\r\n{} "},
        {"one length twice", kPost + "Content-Length: 3\r\nContent-Length: 3\r\n\r\n{} "},
        {"one length twice in one", kPost + "Content-Length: 3, 3\r\n\r\n{} "},
        {"a length of nothing", kPost + "Content-Length:\r\n\r\n"},
        {"a length and a coding", kPost + "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n" + good},
        {"a coding and a length", kPost + "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n" + good},
        {"a coding of nothing behind chunked", chunked("chunked, identity", good)},
        {"a coding of nothing", chunked("identity", good)},
        {"a folded coding", chunked("\r\n chunked", good)},
        {"a coding folded by a tab", chunked("\r\n\tchunked", good)},
        {"a coding in HTTP/1.0",
         "POST /v1/completions HTTP/1.0\r\nContent-Type: application/json\r\n"
         "Transfer-Encoding: chunked\r\n\r\n" +
             good},
        {"two types", kPost + "Content-Type: text/plain\r\nContent-Length: 3\r\n\r\n{} "},
        {"a folded line", "GET /health HTTP/1.1\r\n" + kHost + "X: a\r\n b\r\n\r\n"},
        {"a folded line of nothing", "GET /health HTTP/1.1\r\n" + kHost + "X: a\r\n \r\n\r\n"},
        {"a space before the first line's name", "GET /health HTTP/1.1\r\n " + kHost + "\r\n"},
        {"LF within a line", "GET /health HTTP/1.1\r\n" + kHost + "X: a\nY: b\r\n\r\n"},
        {"a tab before the colon", "GET /health HTTP/1.1\r\n" + kHost + "X\t: a\r\n\r\n"},
        {"a target with a host", "GET http://localhost/health HTTP/1.1\r\n" + kHost + "\r\n"},
        {"a target with a user", "GET http://localhost@evil/health HTTP/1.1\r\n" + kHost + "\r\n"},
        {"NUL in a value", "GET /health HTTP/1.1\r\n" + kHost + std::string("X: a\0b\r\n\r\n", 10)},
        {"a space before the colon", "GET /health HTTP/1.1\r\n" + kHost + "X : a\r\n\r\n"},
        {"a name of nothing", "GET /health HTTP/1.1\r\n" + kHost + ": a\r\n\r\n"},
        {"lines that end in LF", "GET /health HTTP/1.1\nHost: localhost\n\n"},
        {"CR within a line", "GET /health HTTP/1.1\r\n" + kHost + "X: a\rY: b\r\n\r\n"},
        {"NUL in the target", std::string("GET /hea\0lth HTTP/1.1\r\n", 24) + kHost + "\r\n"},
        {"a space in the target", "GET /he alth HTTP/1.1\r\n" + kHost + "\r\n"},
        {"a target of *", "GET * HTTP/1.1\r\n" + kHost + "\r\n"},
        {"a target with an authority", "CONNECT localhost:80 HTTP/1.1\r\n" + kHost + "\r\n"},
        {"HTTP/0.9", "GET /health\r\n\r\n"},
        {"the preface of HTTP/2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"},
        {"a hello of TLS", std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11) + std::string(500, 'r')},
    };
    for (const auto& [what, bytes] : cases) {
        Client client(port());
        client.send(bytes);
        const int status = client.receive().status;
        EXPECT_TRUE(status == 400 || status == 505) << what << ": " << status;
        if (status < 400) continue;
        EXPECT_TRUE(client.closed()) << what << ": what follows could be read as another request";
    }
    // Allowed, and read as it stands.
    EXPECT_EQ(Client(port()).ask("GET", "/health", "", "X-Content-Length: 7\r\n").status, 200);
    EXPECT_EQ(Client(port()).ask("GET", "/health", "", "X: a%0d%0ab\r\n").status, 200);
    Client client(port());
    client.send(chunked("Chunked", good));
    EXPECT_EQ(client.receive().status, 200);
    expect_alive();
}

TEST_F(ServerWire, host_and_origin_are_a_name_and_a_port_and_nothing_beside) {
    start(server_options());
    const auto status_of_host = [&](const std::string& lines) {
        return Client(port()).ask("GET", "/health", "", lines).status;
    };
    for (const char* good : {"localhost", "LOCALHOST:80", "127.0.0.1:65535", "[::1]", "[::1]:8080"}) {
        EXPECT_EQ(status_of_host(fmt::format("Host: {}\r\n", good)), 200) << good;
        EXPECT_EQ(status_of_host(fmt::format("Origin: http://{}\r\n", good)), 200) << good;
    }
    for (const char* bad : {"[::1].evil",
                            "[::1]evil:80",
                            "[::1",
                            "[::1]]",
                            "[]",
                            "::1",
                            "[::1%25lo]",
                            "[::1%lo]",
                            "[localhost]",
                            "localhost:80@evil",
                            "user@localhost",
                            "user:pw@localhost",
                            "localhost:",
                            "localhost:http",
                            "localhost:-1",
                            "localhost:65536",
                            "localhost:080808",
                            "localhost:80:80",
                            "localhost, evil",
                            "localhost evil",
                            "localhost/",
                            "localhost#evil",
                            "localhost?evil",
                            "local%68ost",
                            "localhost\\evil",
                            ":80"}) {
        EXPECT_EQ(status_of_host(fmt::format("Host: {}\r\n", bad)), 400) << bad;
        EXPECT_EQ(status_of_host(fmt::format("Origin: http://{}\r\n", bad)), 403) << bad;
    }
    EXPECT_EQ(status_of_host("Host: localhost\r\nHost: localhost\r\n"), 400);
    EXPECT_EQ(status_of_host("Origin: http://localhost\r\nOrigin: http://evil\r\n"), 400);
    for (const char* bad :
         {"localhost", "http:localhost", "://localhost", "http://", "http://a http://localhost", "1://localhost"})
        EXPECT_EQ(status_of_host(fmt::format("Origin: {}\r\n", bad)), 403) << bad;
    EXPECT_EQ(status_of_host("Host: evil\r\n"), 403);
}

TEST_F(ServerWire, headers_have_limits_in_size_and_number) {
    start();
    std::string many;
    for (int i = 0; i < 101; ++i) many += fmt::format("X-{}: a\r\n", i);
    EXPECT_EQ(Client(port()).ask("GET", "/health", "", many).status, 431);
    Client endless(port());
    endless.send("GET /health HTTP/1.1\r\nX: ");
    int status = 0;
    try {
        for (int i = 0; i < 4096; ++i)
            endless.send(std::string(4096, 'a'));  // 16 MiB, of which the server takes little
    } catch (const boost::system::system_error&) {
    }
    try {
        status = endless.receive().status;
    } catch (const boost::system::system_error&) {
    }
    EXPECT_TRUE(status == 431 || status == 0) << status;
    expect_alive();
}

TEST_F(ServerWire, a_request_may_come_byte_by_byte_and_two_may_come_at_once) {
    start();
    const std::string request = kPost + fmt::format("Content-Length: {}\r\n\r\n{}", kBody.size(), kBody);
    Client slow(port());
    for (const char c : request) slow.send(std::string_view(&c, 1));
    const Answer answer = slow.receive();
    EXPECT_EQ(answer.status, 200);
    Client pipelined(port());
    pipelined.send(request + "GET /health HTTP/1.1\r\n" + kHost + "\r\n" + request);
    EXPECT_EQ(pipelined.receive().object().at("object"), "text_completion");
    EXPECT_EQ(pipelined.receive().status, 200);
    EXPECT_EQ(pipelined.receive().object().at("object"), "text_completion");
}

/// Microseconds, without the fifth that took longest: what the machine did beside.
struct Times {
    double mean = 0, variance_of_mean = 0;
    explicit Times(std::vector<double> us) {
        std::sort(us.begin(), us.end());
        us.resize(us.size() * 8 / 10);
        const auto count = static_cast<double>(us.size());
        for (const double t : us) mean += t / count;
        for (const double t : us) variance_of_mean += (t - mean) * (t - mean) / (count - 1) / count;
    }
};

/// The first of two takes longer: 1 if it does, -1 if the second does, 0 if they are the same but for noise.
int slower(const Times& a, const Times& b) {
    const double t = (a.mean - b.mean) / std::sqrt(a.variance_of_mean + b.variance_of_mean);
    if (std::abs(t) < 5 || std::abs(a.mean - b.mean) < 0.01 * a.mean) return 0;
    return t > 0 ? 1 : -1;
}

/// The same time, whatever of the key is right: 7,000 comparisons of each kind, in random order, on this thread; four
/// times, as a comparison that ends early (t = 70 and more, 2 to 3 % then) would end early each time.
TEST(ServerAccess, a_wrong_key_takes_as_long_as_any_other) {
    if (kAddressSanitizer || kThreadSanitizer) GTEST_SKIP() << "times are those of the program without sanitizers";
    const std::string key = "0123456789abcdef0123456789abcdef";
    const server::Access access({key}, "127.0.0.1", {}, {});
    const std::array<std::string, 3> wrong = {"X" + key.substr(1), key.substr(0, 31) + "X", std::string(32, 'X')};
    std::mt19937 random(5);
    constexpr int kRounds = 4;
    std::array<int, 3>
        sums{};  // of `slower`: the first and the second, the second and the third, the third and the first
    for (int round = 0; round < kRounds; ++round) {
        std::array<std::vector<double>, 3> us;
        for (int i = 0; i < 21000; ++i) {
            const size_t kind = random() % 3;
            server::HttpRequest request;
            request.headers = {{"authorization", "Bearer " + wrong[kind]}};
            const auto begun = std::chrono::steady_clock::now();
            EXPECT_THROW(access.check_key(request), server::ApiError);
            us[kind].push_back(
                std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begun).count());
        }
        const std::array<Times, 3> times = {Times(us[0]), Times(us[1]), Times(us[2])};
        for (size_t k = 0; k < 3; ++k) sums[k] += slower(times[k], times[(k + 1) % 3]);
    }
    for (size_t k = 0; k < 3; ++k) EXPECT_LT(std::abs(sums[k]), kRounds) << wrong[k] << " / " << wrong[(k + 1) % 3];
}

TEST_F(ServerWire, clients_that_leave_at_any_time_leave_nothing_behind) {
    EngineOptions engine_options = demo_options();
    engine_options.max_running = 4;
    start(server_options(), engine_options);
    std::mt19937 random(9);
    for (int i = 0; i < 300; ++i) {
        std::vector<std::unique_ptr<Client>> clients;
        for (size_t n = 1 + random() % 6; n > 0; --n) {  // in the queue, in a prompt, in an answer, at its end
            clients.push_back(std::make_unique<Client>(port()));
            const json::object body = {{"prompt", std::string(random() % 600, 'z')},
                                       {"max_tokens", 1 + random() % 12},
                                       {"ignore_eos", true},
                                       {"stream", random() % 2 == 0}};
            clients.back()->send("POST", "/v1/completions", json::serialize(body));
        }
        if (random() % 2 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 5000));
        for (const auto& client : clients) {
            if (random() % 8 == 0) client->receive_header();
            client->close();
        }
    }
    EXPECT_TRUE(becomes([&] { return engine->stats().running == 0 && engine->stats().waiting == 0; }));
    expect_alive();
    EXPECT_TRUE(becomes([&] { return get("/metrics").body.find("riptide_connections 1\n") != std::string::npos; }));
    EXPECT_EQ(engine->stats().failed, 0);
    EXPECT_TRUE(becomes([&] {
        const EngineStats stats = engine->stats();
        return stats.submitted == stats.finished + stats.cancelled;
    })) << "each has ended once";
}

TEST_F(ServerWire, what_is_no_good_as_http_is_refused_in_the_words_of_its_path) {
    const std::string fields = " HTTP/1.1\r\n" + kHost + "Content-Type: application/json\r\n";
    const auto refused = [&](const std::string& rest, int status) {
        for (const auto& [path, shape] : {std::pair{"/v1/completions", "openai"},
                                          {"/v1/messages", "anthropic"},
                                          {"/v1/messages/count_tokens", "anthropic"},
                                          {"/api/chat", "ollama"}}) {
            Client client(port());
            client.send("POST " + std::string(path) + rest);
            const Answer answer = client.receive();
            EXPECT_EQ(answer.status, status) << path << rest.substr(0, 120);
            const json::object body = answer.object();
            EXPECT_STREQ(body.at("error").is_string() ? "ollama"
                         : body.contains("type")      ? "anthropic"
                                                      : "openai",
                         shape)
                << answer.body;
        }
    };
    server::ServerOptions options = server_options();
    options.http.body_bytes = 1 << 20;
    start(options);
    refused(fields + "Content-Length: 1048577\r\n\r\n", 413);
    refused(fields + "Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400);
    refused(fields + "X: " + std::string(40000, 'a') + "\r\n\r\n", 431);
    refused(fields + kHost + "\r\n", 400);
    options.http.header_time = options.http.body_time = Milliseconds(50);
    start(options);
    refused(fields + "Content-Length: 9\r\n\r\n{", 408);
    refused(fields + "X: ", 408);
    expect_alive();
}

TEST_F(ServerWire, a_thousand_slow_clients_delay_nobody) {
    server::ServerOptions options = server_options();
    options.http.header_time = options.http.body_time = Milliseconds(1500);
    start(options);
    std::vector<std::unique_ptr<Client>> slow;
    for (int i = 0; i < 1000; ++i) {
        slow.push_back(std::make_unique<Client>(port()));
        slow.back()->send(i % 2 == 0 ? "GET /hea" : kPost + "Content-Length: 100\r\n\r\n{");
        if (i % 100 == 0) {
            const auto begun = std::chrono::steady_clock::now();
            EXPECT_EQ(get("/health").status, 200);
            EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(1));
        }
    }
    EXPECT_EQ(post("/v1/completions", {{"prompt", "x"}, {"max_tokens", 1}}).status, 200);
    for (const auto& client : slow) EXPECT_EQ(client->receive().status, 408);
    expect_alive();
}

/// Every pair of options, with drafts ahead, in a crowd: the same bytes as from an engine that never drafts.
TEST_F(ServerWire, drafts_change_no_answer_whatever_is_asked_of_it) {
    const json::object schema = {{"type", "object"},
                                 {"properties", {{"colour", {{"enum", {"red", "green"}}}}}},
                                 {"required", {"colour"}},
                                 {"additionalProperties", false}};
    const std::vector<std::pair<std::string, json::value>> options = {
        {"temperature", 0},
        {"temperature", 1.3},
        {"top_k", 3},
        {"top_p", 0.5},
        {"min_p", 0.2},
        {"repetition_penalty", 1.5},
        {"frequency_penalty", 2},
        {"presence_penalty", -2},
        {"logit_bias", json::object{{"300", 5}, {"301", -100}}},
        {"n", 2},
        {"stop", json::array{"e"}},
        {"logprobs", true},
        {"thinking_budget", 2},
        {"response_format", {{"type", "json_schema"}, {"json_schema", {{"name", "c"}, {"schema", schema}}}}},
        {"regex", "[a-f ]{3,9}"},
        {"max_tokens", 1},
    };
    std::vector<json::object> bodies;
    for (size_t a = 0; a < options.size(); ++a)
        for (size_t b = a + 1; b < options.size(); ++b) {
            if (options[a].first == "response_format" && options[b].first == "regex") continue;  // one form only
            json::object body = {{"messages", user_says("Count: one two three one two three one two")},
                                 {"max_tokens", 10},
                                 {"seed", a * 100 + b},
                                 {"chat_template_kwargs", {{"enable_thinking", (a + b) % 2 == 0}}}};
            body[options[a].first] = options[a].second;
            body[options[b].first] = options[b].second;
            bodies.push_back(std::move(body));
        }
    const auto answers = [&] {
        std::vector<std::string> out(bodies.size());
        std::atomic<size_t> next = 0;
        std::vector<std::thread> clients;
        for (int c = 0; c < 6; ++c)
            clients.emplace_back([&] {
                Client client(port());
                for (size_t i = next++; i < bodies.size(); i = next++) {
                    json::object reply = client.post("/v1/chat/completions", bodies[i]).object();
                    ASSERT_TRUE(reply.contains("choices")) << json::serialize(reply) << json::serialize(bodies[i]);
                    for (json::value& choice : reply.at("choices").as_array())
                        if (auto* calls = choice.at("message").as_object().if_contains("tool_calls"))
                            for (json::value& call : calls->as_array()) call.as_object().erase("id");
                    out[i] = json::serialize(reply.at("choices"));
                }
            });
        for (std::thread& client : clients) client.join();
        return out;
    };
    start();
    const std::vector<std::string> plain = answers();
    int64_t drafted = 0;
    for (const int tree : {0, 6}) {
        EngineOptions drafting = demo_options();
        drafting.speculation.drafter = "ngram";
        drafting.speculation.width = 4;
        drafting.speculation.adaptive = false;
        drafting.speculation.tree = tree;
        start(server_options(), drafting);
        const std::vector<std::string> with_drafts = answers();
        for (size_t i = 0; i < bodies.size(); ++i) EXPECT_EQ(with_drafts[i], plain[i]) << json::serialize(bodies[i]);
        EXPECT_EQ(engine->stats().failed, 0);
        drafted += engine->stats().drafted_rows;
    }
    EXPECT_GT(drafted, 0);
}

}  // namespace
}  // namespace riptide::testing
