// Whose trace spans are in, and that nobody waits for the collector.
#include <cmath>
#include <random>

#include "tests/server/traces_world.h"

namespace riptide::testing {
namespace {

using ServerTracesWay = ServerTraces;

TEST_F(ServerTracesWay, who_asks_says_whether_it_is_traced_else_the_share_does) {
    const std::string unsampled = "traceparent: 00-" + kTrace + "-" + kSpan + "-00\r\n";
    const auto spans = [&](bool follow, double share, const std::string& header) {
        FakeServer collector({kOk});
        server::ServerOptions options = traced(collector.port());
        options.traces.follow_parent = follow;
        options.traces.share = share;
        start(options);
        EXPECT_EQ(Client(port()).ask("POST", "/tokenize", R"({"prompt":"x"})", kJsonType + header).status, 200);
        return spans_at(collector).size();
    };
    EXPECT_EQ(spans(true, 0, kParent), 1u);
    EXPECT_EQ(spans(true, 1, unsampled), 0u);
    EXPECT_EQ(spans(true, 0, ""), 0u);
    EXPECT_EQ(spans(true, 1, ""), 1u);
    EXPECT_EQ(spans(false, 0, kParent), 0u);
    EXPECT_EQ(spans(false, 1, unsampled), 1u);
    int among = 0;
    for (int i = 0; i < 1000; ++i) among += server::in_share(server::new_trace().trace, 0.25);
    EXPECT_NEAR(among, 250, 6 * std::sqrt(1000 * 0.25 * 0.75));
    EXPECT_FALSE(server::in_share(std::string(32, 'f'), 0));
    EXPECT_TRUE(server::in_share(std::string(32, 'f'), 1));
}

/// The standard in other words: what a header means, if anything.
std::string meant_by(const std::string& text) {
    static const std::regex form("([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-[^]*)?");
    std::smatch m;
    if (!std::regex_match(text, m, form) || m[1] == "ff" || (m[1] == "00" && m[5].matched)) return "nothing";
    if (m[2] == std::string(32, '0') || m[3] == std::string(16, '0')) return "nothing";
    return fmt::format("{} {} {}", m[2].str(), m[3].str(), std::stoi(m[4], nullptr, 16) & 1);
}

std::string read_as(const std::string& text) {
    const auto context = server::trace_context({{"traceparent", text}});
    return context ? fmt::format("{} {} {}", context->trace, context->span, context->sampled ? 1 : 0) : "nothing";
}

TEST(TraceContext, is_read_as_the_standard_says) {
    const std::string ids = kTrace + "-" + kSpan;
    const std::vector<std::pair<std::string, bool>> cases = {
        {"00-" + ids + "-01", true},
        {"00-" + ids + "-00", true},
        {"00-" + ids + "-ff", true},
        {"01-" + ids + "-01", true},
        {"fe-" + ids + "-01-what", true},
        {"01-" + ids + "-01-", true},
        {"ff-" + ids + "-01", false},
        {"00-" + ids + "-01-what", false},
        {"01-" + ids + "-01what", false},
        {"00-" + ids + "-1", false},
        {"00-" + ids, false},
        {"", false},
        {"0-" + ids + "-01", false},
        {"00_" + ids + "-01", false},
        {"00-" + ids + "_01", false},
        {"00-" + ids + "-0g", false},
        {"0x-" + ids + "-01", false},
        {" 00-" + ids + "-01", false},
        {"00-" + std::string(32, '0') + "-" + kSpan + "-01", false},
        {"00-" + kTrace + "-" + std::string(16, '0') + "-01", false},
        {"00-" + std::string(32, 'A') + "-" + kSpan + "-01", false}};
    for (const auto& [text, fine] : cases) {
        EXPECT_EQ(read_as(text) != "nothing", fine) << text;
        EXPECT_EQ(read_as(text), meant_by(text)) << text;
    }
    EXPECT_FALSE(server::trace_context({}));
    const std::pair<std::string, std::string> one = {"traceparent", "00-" + ids + "-01"};
    EXPECT_FALSE(server::trace_context({one, one})) << "two are none";
}

TEST_F(ServerTracesWay, no_traceparent_breaks_a_request) {
    FakeServer collector({kOk});
    start(traced(collector.port()));
    std::mt19937 random(20261129);
    const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
    Client client(port());
    const std::string kBytes = "0123456789abcdef-gF \t\x80\xff,;=\"%";
    int continued = 0, traced_requests = 0;
    for (int i = 0; i < 1000; ++i) {
        std::string text = "00-" + kTrace + "-" + kSpan + "-01";
        for (std::size_t edits = below(4); edits > 0 && !text.empty(); --edits) {
            const std::size_t at = below(text.size());
            char byte = kBytes[below(kBytes.size())];
            if (below(4) == 0) byte = static_cast<char>(33 + below(94));
            if (below(3) == 0) text.insert(at, 1, byte);
            else if (below(3) == 0) text.erase(at, 1 + below(5));
            else text[at] = byte;
        }
        if (below(10) == 0) text = std::string(below(2000), static_cast<char>('0' + below(10)));
        const Answer answer =
            client.ask("POST", "/tokenize", R"({"prompt":"x"})", kJsonType + "traceparent: " + text + "\r\n");
        ASSERT_EQ(answer.status, 200) << i << ": " << text;
        const std::size_t begin = std::min(text.find_first_not_of(" \t"), text.size());
        const std::string meaning = meant_by(text.substr(begin, text.find_last_not_of(" \t") + 1 - begin));
        continued += meaning.ends_with(" 1");
        traced_requests += !meaning.ends_with(" 0");
    }
    EXPECT_GT(continued, 100);
    EXPECT_GT(traced_requests, continued + 100);
    int found = 0;
    const std::vector<json::object> spans = spans_at(collector);
    for (const json::object& span : spans) found += span.contains("parentSpanId");
    EXPECT_EQ(found, continued);
    EXPECT_EQ(std::ssize(spans), traced_requests);
}

TEST_F(ServerTracesWay, what_is_refused_for_now_is_sent_again) {
    FakeServer collector({reply_of("503 Later\r\nRetry-After: 1"), kOk});
    start(traced(collector.port()));
    EXPECT_EQ(chat().status, 200);
    EXPECT_TRUE(becomes([&] { return metric("riptide_trace_spans_sent_total") == 4; }));
    EXPECT_EQ(metric("riptide_trace_spans_dropped_total"), 0);
    ASSERT_EQ(collector.asked(), 2);
    EXPECT_EQ(collector.all()[0], collector.all()[1]);
}

TEST_F(ServerTracesWay, what_is_refused_for_good_is_counted_and_not_sent_again) {
    for (const char* status : {"400 Bad Request", "500 Mistake", "413 Too Large", "302 Found"}) {
        FakeServer collector({reply_of(status)});
        start(traced(collector.port()));
        EXPECT_EQ(chat().status, 200);
        EXPECT_TRUE(becomes([&] { return metric("riptide_trace_spans_dropped_total") == 4; }));
        EXPECT_EQ(metric("riptide_trace_spans_sent_total"), 0);
        EXPECT_EQ(collector.asked(), 1);
    }
}

/// The collector may take a minute; a request or an end that waited for it would.
TEST_F(ServerTracesWay, nobody_waits_for_a_collector_that_hangs_or_is_not_there) {
    constexpr std::chrono::seconds kMost(kThreadSanitizer ? 50 : 20), kEnd(10);
    FakeServer hangs({""}), later({reply_of("503 Later\r\nRetry-After: 30")});
    for (const int there : {hangs.port(), later.port(), 1}) {
        start(traced(there));
        const auto begin = std::chrono::steady_clock::now();
        for (int i = 0; i < 3; ++i) EXPECT_EQ(chat({{"stream", true}}).status, 200);
        if (there == hangs.port()) {
            EXPECT_TRUE(becomes([&] { return hangs.asked() > 0; })) << "it has its first batch, and keeps it";
            Client client(port());
            for (int i = 0; i < server::Traces::kQueue + 10; ++i)
                EXPECT_EQ(client.ask("POST", "/tokenize", R"({"prompt":"x"})").status, 200);
            EXPECT_GE(metric("riptide_trace_spans_dropped_total"), 10) << "the queue is full";
        }
        const auto end = std::chrono::steady_clock::now();
        EXPECT_LT(end - begin, kMost);
        server.reset();
        EXPECT_LT(std::chrono::steady_clock::now() - end, kEnd);
    }
}

TEST_F(ServerTracesWay, what_waits_for_company_is_sent_when_the_server_ends) {
    FakeServer collector({kOk});
    server::ServerOptions options = traced(collector.port());
    options.traces.delay = std::chrono::minutes(10);
    start(options);
    EXPECT_EQ(chat().status, 200);
    EXPECT_EQ(chat().status, 200);
    EXPECT_EQ(collector.asked(), 0);
    EXPECT_EQ(spans_at(collector).size(), 8u);
    EXPECT_EQ(collector.asked(), 1);
}

}  // namespace
}  // namespace riptide::testing
