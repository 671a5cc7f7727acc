// Spans of requests: what they hold, and what never.
#include "tests/server/traces_world.h"

namespace riptide::testing {
namespace {

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

}  // namespace
}  // namespace riptide::testing
