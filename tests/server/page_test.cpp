// The page at "/": who is shown it, and what it may do.
#include "server/page/page.h"
#include "server/server.h"
#include "tests/server/http_client.h"

namespace riptide::testing {
namespace {

/// As gzip has it (RFC 1952).
uint32_t crc32_of(std::string_view bytes) {
    uint32_t crc = ~uint32_t{0};
    for (const char byte : bytes) {
        crc ^= static_cast<unsigned char>(byte);
        for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (0xedb88320 & (0 - (crc & 1)));
    }
    return ~crc;
}

constexpr const char* kBrowser = "Accept: text/html,application/xhtml+xml,*/*;q=0.8\r\n";

/// A server needs no engine to show the page.
class ServerPage : public ::testing::Test {
  protected:
    void start(server::ServerOptions options = server_options()) {
        server.reset();
        server = std::make_unique<server::Server>(std::move(options));
    }
    Answer ask(const std::string& headers, const std::string& path = "/", const std::string& method = "GET") {
        return Client(server->port()).ask(method, path, "", headers);
    }
    void SetUp() override { start(); }

    std::unique_ptr<server::Server> server;
};

TEST_F(ServerPage, is_for_browsers_and_others_get_the_word) {
    const Answer page = ask(kBrowser);
    EXPECT_EQ(page.status, 200);
    EXPECT_EQ(page.headers.at("Content-Type"), "text/html; charset=utf-8");
    EXPECT_EQ(page.headers.at("Vary"), "Accept, Accept-Encoding");
    EXPECT_EQ(page.body, server::page_text());
    EXPECT_TRUE(page.body.starts_with("<!doctype html>"));
    EXPECT_EQ(ask("Accept: application/xml , TEXT/HTML\r\n").body, page.body);
    for (const char* word : {"", "Accept: */*\r\n", "Accept: text/*\r\n", "Accept: text/html;q=0, */*\r\n",
                             "Accept: text/html; q=0.0\r\n", "Accept: text/htmlx\r\n", "Accept: ,;,\r\n"}) {
        const Answer answer = ask(word);
        EXPECT_EQ(answer.status, 200) << word;
        EXPECT_EQ(answer.body, "riptide\n") << word;
        EXPECT_EQ(answer.headers.at("Vary"), "Accept") << word;
    }
    EXPECT_EQ(ask(kBrowser, "/api/hello").body, "riptide\n");
    EXPECT_NE(ask(kBrowser, "/v1/models").body.find("being loaded"), std::string::npos);
    const Answer head = ask(kBrowser, "/", "HEAD");
    EXPECT_EQ(head.headers.at("Content-Length"), std::to_string(page.body.size()));
    EXPECT_EQ(ask(kBrowser, "/", "POST").status, 405);
}

TEST_F(ServerPage, may_load_nothing_and_is_framed_by_nobody) {
    const Answer page = ask(kBrowser);
    const std::string policy = page.headers.at("Content-Security-Policy");
    EXPECT_TRUE(policy.starts_with("default-src 'none'; script-src 'sha256-")) << policy;
    for (const char* part : {"; style-src 'sha256-", "; connect-src 'self';", "; img-src data:;", "; frame-ancestors 'none'",
                             "; base-uri 'none'", "; form-action 'none'"})
        EXPECT_NE(policy.find(part), std::string::npos) << policy;
    EXPECT_EQ(policy.find("unsafe"), std::string::npos) << policy;
    EXPECT_EQ(page.headers.at("X-Content-Type-Options"), "nosniff");
    EXPECT_EQ(page.headers.at("Referrer-Policy"), "no-referrer");
    const auto count = [&](const std::string& words) {
        size_t found = 0;
        for (size_t at = 0; (at = page.body.find(words, at)) != std::string::npos; ++at) ++found;
        return found;
    };
    EXPECT_EQ(count("<style>"), 1u);
    EXPECT_EQ(count("</style>"), 1u);
    EXPECT_EQ(count("<script type=\"module\">"), 1u);
    EXPECT_EQ(count("</script>"), 1u) << "the script would end where it should not";
    EXPECT_EQ(count("<link rel=\"stylesheet\""), 0u);
    EXPECT_EQ(count("src=\"http"), 0u);
}

TEST_F(ServerPage, is_compressed_for_who_takes_that) {
    const std::string browser = kBrowser;
    const Answer page = ask(browser + "Accept-Encoding: gzip, deflate, br\r\n");
    EXPECT_EQ(page.headers.at("Content-Encoding"), "gzip");
    EXPECT_TRUE(page.body.starts_with("\x1f\x8b"));
    EXPECT_LT(page.body.size(), 400'000u);
    EXPECT_LT(page.body.size(), server::page_text().size() / 2);
    const auto number = [&](size_t from_end) {
        uint32_t out = 0;
        for (size_t i = 0; i < 4; ++i)
            out |= uint32_t{static_cast<unsigned char>(page.body.at(page.body.size() - from_end + i))} << (8 * i);
        return out;
    };
    EXPECT_EQ(number(4), server::page_text().size()) << "what is compressed is another page";
    EXPECT_EQ(number(8), crc32_of(server::page_text())) << "what is compressed is another page";
    for (const char* other : {"Accept-Encoding: br\r\n", "Accept-Encoding: gzip;q=0\r\n", "Accept-Encoding: identity\r\n"}) {
        const Answer plain = ask(browser + other);
        EXPECT_FALSE(plain.headers.contains("Content-Encoding")) << other;
        EXPECT_EQ(plain.body, server::page_text()) << other;
    }
}

TEST_F(ServerPage, needs_no_key_but_a_name_of_ours) {
    server::ServerOptions options = server_options();
    options.api_keys = {"sesame"};
    start(options);
    const std::string browser = kBrowser;
    EXPECT_EQ(ask(browser).body, server::page_text());
    EXPECT_EQ(ask(browser).body.find("sesame"), std::string::npos);
    EXPECT_EQ(ask(browser, "/metrics").status, 401);
    EXPECT_EQ(ask(browser, "/v1/requests/x", "DELETE").status, 401);
    for (const char* foreign : {"Host: evil.example\r\n", "Origin: https://evil.example\r\n"}) {
        const Answer refused = ask(browser + foreign);
        EXPECT_EQ(refused.status, 403) << foreign;
        EXPECT_EQ(refused.headers.at("Content-Type"), "application/json") << foreign;
    }
}

TEST_F(ServerPage, can_be_turned_off) {
    server::ServerOptions options = server_options();
    options.page = false;
    start(options);
    const Answer answer = ask(kBrowser);
    EXPECT_EQ(answer.status, 200);
    EXPECT_EQ(answer.body, "riptide\n");
    EXPECT_EQ(answer.headers.at("Content-Type"), "text/plain");
    EXPECT_FALSE(answer.headers.contains("Vary"));
}

}  // namespace
}  // namespace riptide::testing
