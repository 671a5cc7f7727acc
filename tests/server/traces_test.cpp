// Spans of requests: what they hold, whose trace they are in, and that nobody waits for the collector.
#include <fmt/format.h>

#include <random>
#include <regex>
#include <set>

#include "server/traces/traces.h"
#include "tests/server/fake_server.h"

namespace riptide::testing {
namespace {

const std::string kOk = reply_of("200 OK\r\nContent-Type: application/json", "{}");
const std::string kTrace = "0af7651916cd43dd8448eb211c80319c", kSpan = "b7ad6b7169203331";
const std::string kParent = "traceparent: 00-" + kTrace + "-" + kSpan + "-01\r\n";
const std::string kJsonType = "Content-Type: application/json\r\n";

/// The names of an object's members, in order.
std::string members(const json::value& object) {
    std::string out;
    for (const auto& member : object.as_object()) out += std::string(member.key()) + " ";
    return out;
}

std::string word(const json::object& span, const char* key) { return std::string(span.at(key).as_string()); }

/// A span's attributes: the key, and its value behind the name of its type ("intValue 12").
std::map<std::string, std::string> attributes_of(const json::object& span) {
    std::map<std::string, std::string> out;
    const json::value* attributes = span.if_contains("attributes");
    if (attributes == nullptr) return out;
    for (const json::value& each : attributes->as_array()) {
        EXPECT_EQ(members(each), "key value ");
        const json::object& value = each.at("value").as_object();
        EXPECT_EQ(value.size(), 1u);
        const auto& [type, held] = *value.begin();
        const std::string text = held.is_string() ? std::string(held.as_string()) : json::serialize(held);
        EXPECT_TRUE(type != "intValue" || (held.is_string() && std::regex_match(text, std::regex("-?[0-9]+")))) << text;
        const auto [at, fresh] = out.emplace(each.at("key").as_string(), std::string(type) + " " + text);
        EXPECT_TRUE(fresh) << at->first << " twice";
    }
    return out;
}

std::pair<int64_t, int64_t> times_of(const json::object& span) {
    for (const char* key : {"startTimeUnixNano", "endTimeUnixNano"})
        EXPECT_TRUE(std::regex_match(word(span, key), std::regex("[0-9]{19}"))) << word(span, key);
    return {std::stoll(word(span, "startTimeUnixNano")), std::stoll(word(span, "endTimeUnixNano"))};
}

class ServerTraces : public ServerTest {
  protected:
    static server::ServerOptions traced(int port) {
        server::ServerOptions options = server_options();
        options.traces.url = server::parse_url(fmt::format("http://127.0.0.1:{}/v1/traces", port), "a test");
        options.traces.headers = {{"x-collector-key", "open"}};
        options.traces.resource = {{"service.name", "a-test"}};
        options.traces.delay = std::chrono::milliseconds(1);
        options.traces.timeout = std::chrono::minutes(1);
        return options;
    }
    /// All spans that have been sent, when the server has ended; every body and span has the shape that it must have.
    std::vector<json::object> spans_at(FakeServer& collector) {
        server.reset();
        std::vector<json::object> out;
        for (const std::string& request : collector.all()) {
            EXPECT_TRUE(request.starts_with("POST /v1/traces HTTP/1.1\r\n")) << request.substr(0, 60);
            EXPECT_NE(request.find("\r\nContent-Type: application/json\r\n"), std::string::npos);
            EXPECT_NE(request.find("\r\nx-collector-key: open\r\n"), std::string::npos);
            const json::value body = parse_json(request.substr(request.find("\r\n\r\n") + 4), "spans");
            EXPECT_EQ(members(body), "resourceSpans ");
            const json::object& resource = body.at("resourceSpans").as_array().at(0).as_object();
            EXPECT_EQ(members(resource), "resource scopeSpans ");
            EXPECT_EQ(json::serialize(resource.at("resource")),
                      R"({"attributes":[{"key":"service.name","value":{"stringValue":"a-test"}}]})");
            const json::value& scope = resource.at("scopeSpans").as_array().at(0);
            EXPECT_EQ(members(scope), "scope spans ");
            EXPECT_EQ(word(scope.at("scope").as_object(), "name"), "riptide");
            for (const json::value& span : scope.at("spans").as_array()) out.push_back(checked(span.as_object()));
        }
        std::set<std::string> ids;
        for (const json::object& span : out) EXPECT_TRUE(ids.insert(word(span, "spanId")).second);
        return out;
    }
    static json::object checked(const json::object& span) {
        const bool server = span.at("kind") == 2;
        EXPECT_TRUE(server || span.at("kind") == 1);
        const std::string parent = span.contains("parentSpanId") ? "parentSpanId " : "";
        const std::string attributes = span.contains("attributes") ? "attributes " : "";
        EXPECT_EQ(members(span), "traceId spanId " + parent + "name kind startTimeUnixNano endTimeUnixNano " +
                                     attributes + (server ? "status " : ""));
        EXPECT_TRUE(std::regex_match(word(span, "traceId"), std::regex("[0-9a-f]{32}")));
        EXPECT_TRUE(std::regex_match(word(span, "spanId"), std::regex("[0-9a-f]{16}")));
        EXPECT_LE(times_of(span).first, times_of(span).second);
        return span;
    }
    /// The spans inside this one by their names; each lies in it, and begins where the one before has ended.
    static std::vector<std::string> parts_of(const json::object& parent, const std::vector<json::object>& spans) {
        std::vector<std::string> out;
        int64_t last = 0;
        const auto [begin, end] = times_of(parent);
        for (const json::object& span : spans) {
            if (!span.contains("parentSpanId") || word(span, "parentSpanId") != word(parent, "spanId")) continue;
            EXPECT_EQ(word(span, "traceId"), word(parent, "traceId"));
            EXPECT_EQ(span.at("kind"), 1);
            EXPECT_GE(times_of(span).first, begin);
            EXPECT_LE(times_of(span).second, end);
            if (word(span, "name") != "riptide.queue") {
                EXPECT_EQ(times_of(span).first, last);
            }
            last = times_of(span).second;
            out.push_back(word(span, "name"));
        }
        return out;
    }
    Answer chat(const json::object& more = {}, const std::string& headers = kJsonType) {
        json::object body = {{"messages", user_says("Say canarybird. What is 12 plus 30?")},
                             {"max_tokens", 20},
                             {"temperature", 0},
                             {"model", "asked-for"}};
        for (const auto& [key, value] : more) body[key] = value;
        return Client(port()).ask("POST", "/v1/chat/completions", json::serialize(body), headers);
    }
    double metric(const std::string& name) {
        const std::string page = get("/metrics").body;
        const std::size_t at = page.find("\n" + name + " ");
        return at == std::string::npos ? -1 : std::stod(page.substr(at + name.size() + 2));
    }
};

const std::vector<std::string> kParts = {"riptide.queue", "riptide.prefill", "riptide.decode"};

TEST_F(ServerTraces, a_request_is_a_span_of_its_clients_trace_and_its_parts_lie_inside) {
    FakeServer collector({kOk});
    start(traced(collector.port()));
    const Answer answer = chat({{"top_p", 0.5}, {"user", "canarybird"}}, kJsonType + kParent + "x-request-id: r-1\r\n");
    ASSERT_EQ(answer.status, 200);
    const json::object usage = answer.object().at("usage").as_object();
    const std::vector<json::object> spans = spans_at(collector);
    ASSERT_EQ(spans.size(), 4u);
    const json::object& top = spans[0];
    EXPECT_EQ(word(top, "traceId"), kTrace);
    EXPECT_EQ(word(top, "parentSpanId"), kSpan);
    EXPECT_EQ(word(top, "name"), "chat laguna-demo");
    EXPECT_EQ(top.at("kind"), 2);
    EXPECT_EQ(json::serialize(top.at("status")), "{}");
    EXPECT_EQ(parts_of(top, spans), kParts);
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    EXPECT_LE(std::abs(times_of(top).first - std::chrono::nanoseconds(now).count()), 600'000'000'000) << "not today";

    std::map<std::string, std::string> found = attributes_of(top);
    const auto count = [&](const char* key) { return "intValue " + json::serialize(usage.at(key)); };
    const std::map<std::string, std::string> wanted = {
        {"http.request.method", "stringValue POST"},
        {"http.route", "stringValue /v1/chat/completions"},
        {"http.response.status_code", "intValue 200"},
        {"gen_ai.operation.name", "stringValue chat"},
        {"gen_ai.provider.name", "stringValue riptide"},
        {"gen_ai.request.model", "stringValue asked-for"},
        {"gen_ai.request.id", "stringValue r-1"},
        {"gen_ai.request.temperature", "doubleValue 0E0"},
        {"gen_ai.request.top_p", "doubleValue 5E-1"},
        {"gen_ai.request.top_k", "intValue 0"},
        {"gen_ai.request.frequency_penalty", "doubleValue 0E0"},
        {"gen_ai.request.presence_penalty", "doubleValue 0E0"},
        {"gen_ai.request.max_tokens", "intValue 20"},
        {"gen_ai.response.model", "stringValue laguna-demo"},
        {"gen_ai.response.id", "stringValue " + word(answer.object(), "id")},
        {"gen_ai.usage.input_tokens", count("prompt_tokens")},
        {"gen_ai.usage.output_tokens", count("completion_tokens")},
        {"gen_ai.usage.cache_read.input_tokens", "intValue 0"},
        {"gen_ai.response.finish_reasons", R"(arrayValue {"values":[{"stringValue":"stop_id"}]})"},
    };
    double seconds = 0;
    for (const char* name : {"e2e", "time_in_queue", "time_to_first_token", "time_in_model_prefill",
                             "time_in_model_decode", "time_in_model_inference"}) {
        const std::string key = std::string("gen_ai.latency.") + name, value = found[key];
        EXPECT_TRUE(value.starts_with("doubleValue ")) << key << ": " << value;
        seconds = std::stod(value.substr(value.find(' ')));
        EXPECT_TRUE(seconds >= 0 && seconds < 1000) << key << ": " << value;
        found.erase(key);
    }
    EXPECT_EQ(found, wanted);
}

TEST_F(ServerTraces, no_word_of_a_prompt_an_answer_or_a_key_is_sent) {
    FakeServer collector({kOk});
    server::ServerOptions options = traced(collector.port());
    options.api_keys = {"sesame-key"};
    start(options);
    const std::string headers = kJsonType + "Authorization: Bearer sesame-key\r\nUser-Agent: canarybird\r\n";
    const auto ask = [&](const std::string& path, const json::object& body) {
        return Client(port()).ask("POST", path + "?canarybird", json::serialize(body), headers);
    };
    const json::array says = user_says("canarybird: what is 12 plus 30?");
    const json::array tools = {json::object{
        {"type", "function"},
        {"function", json::object{{"name", "canarybird"}, {"parameters", json::object{{"type", "object"}}}}}}};
    const json::object tooled = {{"messages", says}, {"tools", tools}, {"max_tokens", 40}};
    EXPECT_EQ(ask("/v1/chat/completions", tooled).status, 200);
    const Answer answer = ask("/v1/chat/completions", {{"messages", says}, {"temperature", 0}, {"max_tokens", 40}});
    const std::string said(answer.object().at("choices").at(0).at("message").at("content").as_string());
    EXPECT_GT(said.size(), 8u) << said;
    const json::object stop = {{"messages", says}, {"max_tokens", 5}, {"stop", "canarybird"}, {"stream", true}};
    EXPECT_EQ(ask("/v1/chat/completions", stop).status, 200);
    EXPECT_EQ(ask("/v1/messages", {{"messages", says}, {"max_tokens", 5}, {"system", "canarybird"}}).status, 200);
    EXPECT_EQ(ask("/v1/responses", {{"input", says}, {"max_output_tokens", 5}}).status, 200);
    EXPECT_EQ(ask("/api/generate", {{"prompt", "canarybird"}, {"stream", false}}).status, 200);
    EXPECT_EQ(ask("/tokenize", {{"prompt", "canarybird"}}).status, 200);
    EXPECT_EQ(
        ask("/v1/chat/completions", {{"messages", says}, {"canarybird", 1}, {"temperature", "canarybird"}}).status,
        400);
    EXPECT_EQ(ask("/v1/completions", {{"prompt", "canarybird"}, {"regex", "canarybird("}}).status, 400);
    EXPECT_GE(spans_at(collector).size(), 6u * 4 + 3);
    for (const std::string& request : collector.all())
        for (const std::string& secret : {std::string("canarybird"), std::string("sesame"), said})
            EXPECT_EQ(request.find(secret), std::string::npos) << request;
}

TEST_F(ServerTraces, every_answer_has_its_parts_and_refusals_have_none) {
    FakeServer collector({kOk});
    start(traced(collector.port()));
    EXPECT_EQ(chat({{"n", 2}, {"stream", true}}).status, 200);
    EXPECT_EQ(post("/v1/completions", {{"prompt", {"one two", "three"}}, {"max_tokens", 3}}).status, 200);
    EXPECT_EQ(chat({{"temperature", "warm"}}).status, 400);
    EXPECT_EQ(post("/tokenize", {{"prompt", "x"}}).status, 200);
    EXPECT_EQ(get("/v1/models").status, 200);
    const std::vector<json::object> spans = spans_at(collector);
    std::vector<json::object> tops;
    for (const json::object& span : spans)
        if (span.at("kind") == 2) tops.push_back(span);
    ASSERT_EQ(tops.size(), 4u) << "what the header alone answers is no span";
    std::vector<std::string> twice = kParts;
    twice.insert(twice.end(), kParts.begin(), kParts.end());
    for (const std::size_t i : {0, 1}) EXPECT_EQ(parts_of(tops[i], spans), twice);
    for (const std::size_t i : {2, 3}) EXPECT_TRUE(parts_of(tops[i], spans).empty());
    EXPECT_EQ(attributes_of(tops[0])["gen_ai.request.choice.count"], "intValue 2");
    EXPECT_EQ(word(tops[1], "name"), "text_completion laguna-demo");
    EXPECT_EQ(attributes_of(tops[1])["gen_ai.usage.output_tokens"], "intValue 6");
    EXPECT_EQ(word(tops[2], "name"), "POST /v1/chat/completions");
    EXPECT_EQ(attributes_of(tops[2])["error.type"], "stringValue 400");
    EXPECT_EQ(json::serialize(tops[2].at("status")), "{}") << "a client's mistake is none of the server's";
    EXPECT_EQ(word(tops[3], "name"), "POST /tokenize");
    EXPECT_FALSE(tops[3].contains("parentSpanId"));
    EXPECT_EQ(std::set<std::string>({word(tops[0], "traceId"), word(tops[1], "traceId"), word(tops[2], "traceId"),
                                     word(tops[3], "traceId")})
                  .size(),
              4u);
    std::map<std::string, int> answers;
    for (const json::object& span : spans)
        if (word(span, "name") == "riptide.decode") ++answers[attributes_of(span)["riptide.answer"]];
    EXPECT_EQ(answers, (std::map<std::string, int>{{"intValue 0", 2}, {"intValue 1", 2}}));
}

TEST_F(ServerTraces, clients_that_leave_and_answers_that_fail_are_told_apart) {
    FakeServer collector({kOk});
    start(traced(collector.port()));
    {
        Client leaves(port());
        leaves.send("POST", "/v1/completions", R"({"prompt":"x","max_tokens":900,"ignore_eos":true,"stream":true})");
        leaves.receive_header();
        leaves.receive_until([](const std::string& body) { return body.size() > 200; });
    }
    EXPECT_TRUE(becomes([&] { return engine->stats().running == 0 && engine->stats().cancelled > 0; }));
    EXPECT_EQ(
        post("/v1/completions", {{"prompt", "x"}, {"max_tokens", 900}, {"ignore_eos", true}, {"timeout", 0.05}}).status,
        503);
    const std::vector<json::object> spans = spans_at(collector);
    ASSERT_EQ(spans.size(), 2u);
    EXPECT_EQ(attributes_of(spans[0])["error.type"], "stringValue client_gone");
    EXPECT_EQ(json::serialize(spans[0].at("status")), "{}");
    EXPECT_FALSE(attributes_of(spans[0]).contains("http.response.status_code"));
    EXPECT_EQ(attributes_of(spans[1])["error.type"], "stringValue 503");
    EXPECT_EQ(attributes_of(spans[1])["http.response.status_code"], "intValue 503");
    EXPECT_EQ(json::serialize(spans[1].at("status")), R"({"code":2})");
}

TEST_F(ServerTraces, what_a_lower_tier_gives_is_a_part_of_its_own) {
    FakeServer collector({kOk});
    EngineOptions small = demo_options();
    small.context = small.kv_tokens = 512;
    start(traced(collector.port()), small);
    for (const int word : {100, 200, 300, 100}) {
        const json::array prompt = json::value_from(std::vector<int32_t>(450, word)).as_array();
        EXPECT_EQ(post("/v1/completions", {{"prompt", prompt}, {"max_tokens", 2}}).status, 200);
    }
    const std::vector<json::object> spans = spans_at(collector);
    ASSERT_EQ(spans.size(), 4u * 4 + 1);
    EXPECT_EQ(parts_of(spans[8], spans), kParts);
    EXPECT_EQ(parts_of(spans[12], spans),
              (std::vector<std::string>{"riptide.queue", "riptide.fetch", "riptide.prefill", "riptide.decode"}));
    EXPECT_NE(attributes_of(spans[12])["gen_ai.usage.cache_read.input_tokens"], "intValue 0");
}

TEST_F(ServerTraces, who_asks_says_whether_it_is_traced_else_the_share_does) {
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

TEST_F(ServerTraces, no_traceparent_breaks_a_request) {
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

TEST_F(ServerTraces, what_is_refused_for_now_is_sent_again) {
    FakeServer collector({reply_of("503 Later\r\nRetry-After: 1"), kOk});
    start(traced(collector.port()));
    EXPECT_EQ(chat().status, 200);
    EXPECT_TRUE(becomes([&] { return metric("riptide_trace_spans_sent_total") == 4; }));
    EXPECT_EQ(metric("riptide_trace_spans_dropped_total"), 0);
    ASSERT_EQ(collector.asked(), 2);
    EXPECT_EQ(collector.all()[0], collector.all()[1]);
}

TEST_F(ServerTraces, what_is_refused_for_good_is_counted_and_not_sent_again) {
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
TEST_F(ServerTraces, nobody_waits_for_a_collector_that_hangs_or_is_not_there) {
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

TEST_F(ServerTraces, what_waits_for_company_is_sent_when_the_server_ends) {
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
