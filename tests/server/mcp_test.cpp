// The way to servers of the Model Context Protocol: what passes, what does not, and that nobody else waits for it.
#include "server/api/mcp.h"
#include "tests/server/fake_server.h"

namespace riptide::testing {
namespace {

class FakeMcp : public FakeServer {
  public:
    /// Empty: it hangs.
    explicit FakeMcp(const std::string& reply, int times = 1) : FakeServer({reply}, times) {}
    std::string url() const { return "http://127.0.0.1:" + std::to_string(port()) + "/mcp?at=1"; }
};

const std::string kJson = "Content-Type: application/json\r\n";
const std::string kPing = R"({"jsonrpc":"2.0","id":1,"method":"ping"})";

class ServerMcp : public ServerTest {
  protected:
    void start_with(const std::string& url, std::chrono::milliseconds time = std::chrono::seconds(60)) {
        server::ServerOptions options = server_options();
        options.mcp.add("tools=" + url);
        options.mcp.limits.time = time;
        options.api_keys = {"sesame"};
        start(options);
    }
    Answer ask(const std::string& method, const std::string& headers, const std::string& name = "tools") {
        return Client(port()).ask(method, "/v1/mcp/" + name, method == "POST" ? kPing : "", headers);
    }
    Answer ping() { return ask("POST", kJson + "x-api-key: sesame\r\n"); }
    /// It is refused with this status and a sentence that names the server and holds `words`.
    void expect_fault(int status, const std::string& words) {
        const Answer answer = ping();
        EXPECT_EQ(answer.status, status) << answer.body;
        const std::string said(answer.object().at("error").at("message").as_string());
        EXPECT_TRUE(said.starts_with("the MCP server 'tools' ")) << said;
        EXPECT_NE(said.find(words), std::string::npos) << said;
    }
};

TEST_F(ServerMcp, the_protocols_headers_pass_and_no_others) {
    const std::string body = R"({"jsonrpc":"2.0","id":1,"result":{}})";
    FakeMcp mcp(reply_of("200 OK\r\nContent-Type: application/json\r\nMCP-Session-Id: s-2\r\nSet-Cookie: a=b", body));
    start_with(mcp.url());
    const Answer answer =
        ask("POST", kJson +
                        "Authorization: Bearer sesame\r\nCookie: c=d\r\nMcp-Session-Id: s-1\r\n"
                        "MCP-Protocol-Version: 2025-06-18\r\nAccept: application/json\r\nX-Other: e\r\n");
    EXPECT_EQ(answer.status, 200) << answer.body;
    EXPECT_EQ(answer.body, body);
    EXPECT_EQ(answer.headers.at("MCP-Session-Id"), "s-2");
    EXPECT_EQ(answer.headers.at("Content-Type"), "application/json");
    EXPECT_FALSE(answer.headers.contains("Set-Cookie"));
    const std::string seen = mcp.last();
    EXPECT_TRUE(seen.starts_with("POST /mcp?at=1 HTTP/1.1\r\n")) << seen;
    EXPECT_TRUE(seen.ends_with(kPing)) << seen;
    for (const char* there :
         {"mcp-session-id: s-1", "mcp-protocol-version: 2025-06-18", "accept: application/json", "127.0.0.1:"})
        EXPECT_NE(seen.find(there), std::string::npos) << there << " in " << seen;
    for (const char* absent : {"sesame", "ookie", "X-Other", "x-other", "uthorization"})
        EXPECT_EQ(seen.find(absent), std::string::npos) << absent << " in " << seen;
}

TEST_F(ServerMcp, events_pass_and_delete_ends_a_session) {
    const std::string events = "event: message\ndata: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n\n";
    FakeMcp mcp("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n" + events);
    start_with(mcp.url());
    const Answer answer = ping();
    EXPECT_EQ(answer.body, events);
    EXPECT_EQ(answer.headers.at("Content-Type"), "text/event-stream");
    EXPECT_EQ(ask("DELETE", "x-api-key: sesame\r\nMcp-Session-Id: s-1\r\n").status, 200);
    EXPECT_TRUE(mcp.last().starts_with("DELETE /mcp?at=1 ")) << mcp.last();
    const Answer get = ask("GET", "x-api-key: sesame\r\n");
    EXPECT_EQ(get.status, 405);
    EXPECT_EQ(get.headers.at("Allow"), "POST, DELETE");
    EXPECT_EQ(mcp.asked(), 2);
}

TEST_F(ServerMcp, what_a_server_does_wrong_is_a_sentence) {
    const std::vector<std::tuple<std::string, int, int, std::string>> cases = {
        {reply_of("401 Unauthorized"), 1, 502, "wants a login (status 401)"},
        {reply_of("403 Forbidden"), 1, 502, "wants a login (status 403)"},
        {reply_of("302 Found\r\nLocation: http://127.0.0.1:1/"), 1, 502, "sends to another address (status 302)"},
        {reply_of("404 Not Found", "no session"), 1, 404, "refuses with status 404: no session"},
        {reply_of("500 Mistake\r\nContent-Type: text/html", "<b>"), 1, 502, "refuses with status 500"},
        {reply_of("200 OK\r\nContent-Type: text/html", "<b>"), 1, 502, "answers with 'text/html'"},
        {"nonsense\r\n\r\n", 1, 502, "does not answer in HTTP"},
        {"HTTP/1.1 200 OK\r\nContent-Length: 52428800\r\n\r\n", 1, 502, "sends more than 8 MiB"},
    };
    for (const auto& [reply, times, status, words] : cases) {
        FakeMcp mcp(reply, times);
        start_with(mcp.url());
        expect_fault(status, words);
        EXPECT_EQ(mcp.asked(), 1) << words;
    }
    const std::string mib(1 << 20, ' ');
    FakeMcp endless("HTTP/1.1 200 OK\r\nX-A: a\r\n\r\n" + mib, 50);
    start_with(endless.url());
    expect_fault(502, "sends more than 8 MiB");
    start_with("http://127.0.0.1:1/");
    expect_fault(502, "cannot be reached");
    start_with("https://127.0.0.1:" + std::to_string(endless.port()) + "/");
    expect_fault(502, "has no TLS that can be trusted");
}

TEST_F(ServerMcp, one_that_hangs_stops_no_chat_and_ends_in_time) {
    FakeMcp mcp("");
    start_with(mcp.url(), std::chrono::milliseconds(300));
    expect_fault(502, "has not answered within 0.3 s");
    start_with(mcp.url());
    std::vector<std::unique_ptr<Client>> waiting;
    for (int i = 0; i < 12; ++i) {
        waiting.push_back(std::make_unique<Client>(port()));
        waiting.back()->send("POST", "/v1/mcp/tools", kPing, kJson + "x-api-key: sesame\r\n");
        if (i != 3) continue;
        ASSERT_TRUE(becomes([&] { return mcp.asked() == 5; }));  // 1 before, and all that may wait
    }
    const json::object chat = {{"messages", user_says("Hi")}, {"max_tokens", 2}};
    EXPECT_EQ(Client(port())
                  .ask("POST", "/v1/chat/completions", json::serialize(chat), kJson + "x-api-key: sesame\r\n")
                  .status,
              200);
    EXPECT_EQ(mcp.asked(), 5) << "more wait than may";
    // Who leaves makes room.
    for (int i = 0; i < 4; ++i) waiting[static_cast<size_t>(i)]->close();
    EXPECT_TRUE(becomes([&] { return mcp.asked() > 5; }));
}

TEST_F(ServerMcp, only_names_of_the_command_line_for_those_who_may_ask) {
    FakeMcp mcp(reply_of("202 Accepted"));
    start_with(mcp.url());
    const std::string key = "x-api-key: sesame\r\n";
    EXPECT_EQ(ping().status, 202);
    EXPECT_EQ(ask("POST", kJson + key + "Origin: https://evil.example\r\n").status, 403);
    EXPECT_EQ(ask("DELETE", key + "Origin: https://evil.example\r\n").status, 403);
    EXPECT_EQ(ask("POST", kJson + key + "Host: evil.example\r\n").status, 403);
    EXPECT_EQ(ask("POST", kJson).status, 401);
    EXPECT_EQ(ask("DELETE", "").status, 401);
    EXPECT_EQ(ask("POST", "Content-Type: text/plain\r\n" + key).status, 415);
    for (const std::string& name :
         {std::string("other"), std::string(), "http:%2F%2F127.0.0.1:" + std::to_string(mcp.port())})
        EXPECT_EQ(ask("POST", kJson + key, name).status, 404) << name;
    EXPECT_EQ(mcp.asked(), 1);
    const Answer props = Client(port()).ask("GET", "/props", "", key);
    EXPECT_EQ(json::serialize(props.object().at("mcp_servers")), R"(["tools"])");
    EXPECT_EQ(props.body.find("/mcp?at"), std::string::npos) << "an address may hold a secret";
}

TEST(McpServers, are_named_by_a_word_and_an_address) {
    server::McpServers servers;
    servers.add("a-1=https://host.example");
    servers.add("b=http://[::1]:8080?x=/y");
    EXPECT_EQ(servers.named.at("a-1").port, "443");
    EXPECT_EQ(servers.named.at("a-1").target, "/");
    EXPECT_EQ(servers.named.at("b").host, "::1");
    EXPECT_EQ(servers.named.at("b").port, "8080");
    EXPECT_EQ(servers.named.at("b").target, "/?x=/y");
    EXPECT_EQ(servers.named.at("b").authority, "[::1]:8080");
    for (const char* bad : {"", "x", "=http://h/", "a_b=http://h/", "a b=http://h/", "c=ftp://h/", "c=http://",
                            "c=http:///p", "c=http://u:p@h/", "c=http://h/ x", "c=http://h/#f", "c=http://h:99999/",
                            "c=http://h\r\nX: y/", "a-1=http://h/"})
        EXPECT_THROW(servers.add(bad), Error) << bad;
    EXPECT_EQ(servers.named.size(), 2u);
}

}  // namespace
}  // namespace riptide::testing
