// A server whose spans go to a collector of the test, and how they are read there.
#pragma once

#include <fmt/format.h>

#include <regex>
#include <set>

#include "server/traces/traces.h"
#include "tests/server/fake_server.h"

namespace riptide::testing {

inline const std::string kOk = reply_of("200 OK\r\nContent-Type: application/json", "{}");
inline const std::string kTrace = "0af7651916cd43dd8448eb211c80319c", kSpan = "b7ad6b7169203331";
inline const std::string kParent = "traceparent: 00-" + kTrace + "-" + kSpan + "-01\r\n";
inline const std::string kJsonType = "Content-Type: application/json\r\n";

/// The names of an object's members, in order.
inline std::string members(const json::value& object) {
    std::string out;
    for (const auto& member : object.as_object()) out += std::string(member.key()) + " ";
    return out;
}

inline std::string word(const json::object& span, const char* key) { return std::string(span.at(key).as_string()); }

/// A span's attributes: the key, and its value behind the name of its type ("intValue 12").
inline std::map<std::string, std::string> attributes_of(const json::object& span) {
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

inline std::pair<int64_t, int64_t> times_of(const json::object& span) {
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

}  // namespace riptide::testing
