// Anthropic's API: the same answers in blocks, and history that comes back in blocks.
#include "base/file.h"
#include "base/json.h"
#include "tests/server/http_client.h"

namespace riptide::testing {
namespace {

/// What a reader of the stream puts together; holds the order of events to what clients expect.
json::object assemble(const std::string& body) {
    json::object message, first_usage;
    json::array blocks;
    std::string arguments;
    std::vector<std::string> order;
    for (size_t at = 0; at < body.size();) {
        const size_t line = body.find('\n', at), end = body.find("\n\n", at);
        if (end == std::string::npos) break;
        const std::string name = body.substr(at, line - at), data = body.substr(line + 1, end - line - 1);
        at = end + 2;
        EXPECT_TRUE(name.starts_with("event: ") && data.starts_with("data: ")) << name;
        const json::object event = parse_json(data.substr(6), "an event").as_object();
        const std::string type(event.at("type").as_string());
        EXPECT_EQ(name, "event: " + type);
        if (type == "ping") continue;
        order.push_back(type);
        if (type == "message_start") {
            message = event.at("message").as_object();
            first_usage = message.at("usage").as_object();
        }
        if (type == "content_block_start") {
            EXPECT_EQ(event.at("index").to_number<size_t>(), blocks.size());
            blocks.push_back(event.at("content_block"));
            arguments.clear();
        }
        if (type == "content_block_delta") {
            EXPECT_EQ(event.at("index").to_number<size_t>() + 1, blocks.size());
            const json::object& delta = event.at("delta").as_object();
            if (const json::value* part = delta.if_contains("partial_json"))
                arguments += std::string(part->as_string());
            for (const char* key : {"text", "thinking", "signature"})
                if (const json::value* part = delta.if_contains(key)) {
                    json::value& whole = blocks.back().as_object()[key];
                    whole = std::string(whole.as_string()) + std::string(part->as_string());
                }
        }
        if (type == "content_block_stop" && !arguments.empty())
            blocks.back().as_object()["input"] = parse_json(arguments, "arguments");
        if (type == "message_delta") {
            for (const auto& [key, value] : event.at("delta").as_object()) message[key] = value;
            message["usage"] = event.at("usage");
        }
    }
    EXPECT_GE(order.size(), 3u);
    if (order.size() < 3) return {};
    EXPECT_EQ(order.front(), "message_start");
    EXPECT_EQ(order[order.size() - 2], "message_delta");
    EXPECT_EQ(order.back(), "message_stop");
    message["content"] = blocks;
    message["first_usage"] = first_usage;
    return message;
}

class ServerMessages : public ServerTest {
  protected:
    void SetUp() override { start(); }

    /// The stream says what the whole reply says; the usage apart, for the second finds the first in the cache.
    json::object both_ways(json::object body) {
        const Answer answer = post("/v1/messages", body);
        EXPECT_EQ(answer.status, 200) << answer.body;
        json::object whole = answer.object();
        body["stream"] = true;
        json::object streamed =
            assemble(Client(port()).ask("POST", "/v1/v1/messages?beta=true", json::serialize(body)).body);
        const json::object& usage = streamed.at("usage").as_object();
        EXPECT_EQ(
            usage.at("input_tokens").to_number<int64_t>() + usage.at("cache_read_input_tokens").to_number<int64_t>(),
            whole.at("usage").at("input_tokens").to_number<int64_t>() +
                whole.at("usage").at("cache_read_input_tokens").to_number<int64_t>());
        json::object first = streamed.at("first_usage").as_object();  // the prompt is known from the start
        EXPECT_EQ(first.at("output_tokens").to_number<int64_t>(), 0);
        first["output_tokens"] = usage.at("output_tokens");
        EXPECT_EQ(json::value(first), json::value(usage));
        EXPECT_EQ(first.at("weights_version").to_number<int64_t>(), 1);
        streamed.erase("first_usage");
        const json::object kept = whole;
        for (json::object* each : {&whole, &streamed})
            for (const char* key : {"id", "usage"}) each->erase(key);
        for (json::object* each : {&whole, &streamed})  // calls are numbered apart in each answer
            for (json::value& block : each->at("content").as_array())
                if (block.at("type") == "tool_use") block.as_object().erase("id");
        EXPECT_EQ(json::value(whole), json::value(streamed));
        return kept;
    }

    int64_t count(const json::object& body) {
        const Answer answer = post("/v1/messages/count_tokens", body);
        EXPECT_EQ(answer.status, 200) << answer.body;
        return answer.object().at("input_tokens").to_number<int64_t>();
    }
};

TEST_F(ServerMessages, thinking_and_text_are_blocks_of_what_the_engine_says) {
    Request direct = chat("What is 12 plus 30?");
    std::get<ChatPrompt>(direct.prompt).options.enable_thinking = true;
    const Heard expected = ask(*engine, direct);
    const json::object out = both_ways({{"messages", user_says("What is 12 plus 30?")},
                                        {"max_tokens", 64},
                                        {"temperature", 0},
                                        {"thinking", {{"type", "enabled"}, {"budget_tokens", 1024}}}});
    const json::array& content = out.at("content").as_array();
    ASSERT_EQ(content.size(), 2u);
    EXPECT_EQ(content[0].at("thinking").as_string(), expected.reasoning);
    EXPECT_FALSE(content[0].at("signature").as_string().empty());
    EXPECT_EQ(content[1].at("text").as_string(), expected.text);
    EXPECT_EQ(out.at("stop_reason").as_string(), "end_turn");
    EXPECT_EQ(out.at("usage").at("output_tokens").to_number<int64_t>(), expected.done->usage.completion);
}

TEST_F(ServerMessages, a_tool_is_called_and_its_result_comes_back) {
    json::array tools;
    const json::value openai_tools = parse_json(read_file(source_dir() + "/examples/tools.json", 1 << 20), "tools");
    for (const json::value& tool : openai_tools.as_array()) {
        json::object function = tool.at("function").as_object();
        function["input_schema"] = function.at("parameters");
        function.erase("parameters");
        tools.push_back(function);
    }
    tools.push_back({{"type", "web_search_20250305"}, {"name", "web_search"}});
    json::object body = {{"messages", user_says("Please brew tea: kind darjeeling, cups 3.")},
                         {"tools", tools},
                         {"max_tokens", 64},
                         {"temperature", 0}};
    const json::object out = both_ways(body);
    EXPECT_EQ(out.at("stop_reason").as_string(), "tool_use");
    const json::object call = out.at("content").as_array().at(0).as_object();
    const json::object input = {{"kind", "darjeeling"}, {"cups", 3}};
    EXPECT_EQ(call.at("name").as_string(), "brew_tea");
    EXPECT_EQ(call.at("input"), json::value(input));

    json::array& messages = body["messages"].as_array();
    messages.push_back({{"role", "assistant"}, {"content", out.at("content")}});
    const json::array text = {{{"type", "text"}, {"text", "Done."}}};
    const json::array result = {{{"type", "tool_result"}, {"tool_use_id", call.at("id")}, {"content", text}},
                                {{"type", "text"}, {"text", "Thanks"}}};
    messages.push_back({{"role", "user"}, {"content", result}});
    const Answer second = post("/v1/messages", body);
    ASSERT_EQ(second.status, 200) << second.body;
    EXPECT_GT(second.object().at("usage").at("cache_read_input_tokens").to_number<int64_t>(),
              out.at("usage").at("input_tokens").to_number<int64_t>())
        << "the first turn's answer too is found again";
    EXPECT_EQ(count(body), second.object().at("usage").at("cache_read_input_tokens").to_number<int64_t>() +
                               second.object().at("usage").at("input_tokens").to_number<int64_t>());

    // The same in OpenAI's words gives the same prompt.
    const json::object function = {{"name", "brew_tea"}, {"arguments", json::serialize(call.at("input"))}};
    const json::array calls = {{{"id", "x"}, {"type", "function"}, {"function", function}}};
    json::array same = user_says("Please brew tea: kind darjeeling, cups 3.");
    same.push_back({{"role", "assistant"}, {"content", nullptr}, {"tool_calls", calls}});
    same.push_back({{"role", "tool"}, {"tool_call_id", "x"}, {"content", "Done."}});
    same.push_back({{"role", "user"}, {"content", "Thanks"}});
    const json::object tokens = post("/tokenize", {{"messages", same}, {"tools", openai_tools}}).object();
    EXPECT_EQ(tokens.at("count").to_number<int64_t>(), count(body));
}

TEST_F(ServerMessages, a_strict_tool_is_called_as_its_schema_says) {
    const json::object schema = {{"type", "object"},
                                 {"properties", {{"code", {{"type", "string"}, {"pattern", "^[A-Z]{2}[0-9]{2}$"}}}}},
                                 {"required", {"code"}},
                                 {"additionalProperties", false}};
    const json::object body = {{"messages", user_says("Look up ab.")},
                               {"tools", {{{"name", "look_up"}, {"strict", true}, {"input_schema", schema}}}},
                               {"tool_choice", {{"type", "any"}}},
                               {"max_tokens", 200},
                               {"temperature", 0}};
    const json::array content = post("/v1/messages", body).object().at("content").as_array();
    const std::string code(content.back().at("input").at("code").as_string());
    ASSERT_EQ(code.size(), 4u) << code;
    EXPECT_TRUE(code[0] >= 'A' && code[0] <= 'Z' && code[3] >= '0' && code[3] <= '9') << code;
}

TEST_F(ServerMessages, what_changes_from_request_to_request_is_not_in_the_prompt) {
    const auto with = [](json::value system, json::value content) {
        return json::object{{"system", std::move(system)},
                            {"messages", {{{"role", "user"}, {"content", std::move(content)}}}}};
    };
    const json::array blocks = {{{"type", "text"}, {"text", "Hi"}, {"cache_control", {{"type", "ephemeral"}}}}};
    const json::array system = {{{"type", "text"}, {"text", "x-anthropic-billing-header: cc_version=2.1; cch=3f2a1;"}},
                                {{"type", "text"}, {"text", "Be brief."}}};
    const int64_t plain = count(with("Be brief.", "Hi"));
    EXPECT_EQ(count(with("Be brief.", blocks)), plain);
    EXPECT_EQ(count(with(system, blocks)), plain);
    json::object inline_system = with("Be brief.", "Hi");
    inline_system["messages"].as_array().push_back({{"role", "system"}, {"content", "Now in English."}});
    EXPECT_GT(count(inline_system), plain);
}

TEST_F(ServerMessages, documents_that_are_text_are_text) {
    const auto tokens = [&](const json::value& content) {
        return count({{"messages", {{{"role", "user"}, {"content", content}}}}});
    };
    const json::array parts = {{{"type", "text"}, {"text", "part"}}};
    const json::object data = {{"type", "text"}, {"media_type", "text/plain"}, {"data", "Ab\ncd"}};
    json::object document = {{"type", "document"}, {"source", data}};
    EXPECT_EQ(tokens({document}), tokens("Ab\ncd"));
    EXPECT_EQ(tokens({{{"type", "tool_result"}, {"tool_use_id", "x"}, {"content", {document}}}}),
              tokens({{{"type", "tool_result"}, {"tool_use_id", "x"}, {"content", "Ab\ncd"}}}));
    document["title"] = "T";
    document["context"] = "C";
    EXPECT_EQ(tokens({document}), tokens("title: T\ncontext: C\nAb\ncd"));
    document["source"] = {{"type", "content"}, {"content", parts}};
    EXPECT_EQ(tokens({document}), tokens("title: T\ncontext: C\npart"));
    document["source"] = {{"type", "base64"}, {"media_type", "application/pdf"}, {"data", ""}};
    const Answer refused =
        post("/v1/messages", {{"max_tokens", 3}, {"messages", {{{"role", "user"}, {"content", {document}}}}}});
    EXPECT_EQ(refused.status, 400);
    EXPECT_NE(refused.body.find("documents of type 'base64' are not supported"), std::string::npos) << refused.body;
}

TEST_F(ServerMessages, a_tool_without_a_name_is_counted_as_its_client_counts) {
    const json::array tools = {{{"type", "web_search_20250305"}, {"name", "web_search"}},
                               {{"input_schema", json::object()}}};
    const Answer refused = post(
        "/v1/messages", {{"max_tokens", 3}, {"tools", tools}, {"messages", {{{"role", "user"}, {"content", "x"}}}}});
    EXPECT_EQ(refused.status, 400);
    EXPECT_NE(refused.body.find("tools[1].name: missing"), std::string::npos) << refused.body;
}

TEST_F(ServerMessages, the_older_name_of_a_format_is_known) {
    const json::object schema = {{"type", "json_schema"}, {"schema", {{"const", "tea"}}}};
    for (const bool old : {false, true}) {
        json::object body = {{"messages", user_says("Hi")}, {"max_tokens", 20}};
        if (old) body["output_format"] = schema;
        else body["output_config"] = {{"format", schema}};
        EXPECT_EQ(both_ways(body).at("content").at(0).at("text").as_string(), "\"tea\"");
    }
}

TEST_F(ServerMessages, errors_have_anthropics_shape) {
    const auto expect_error = [&](const json::object& body, int status, const std::string& type) {
        const Answer answer = post("/v1/messages", body);
        EXPECT_EQ(answer.status, status) << answer.body;
        EXPECT_EQ(answer.object().at("type").as_string(), "error");
        EXPECT_EQ(answer.object().at("error").at("type").as_string(), type);
        return answer.body;
    };
    const std::string invalid = "invalid_request_error";
    expect_error({}, 400, invalid);
    expect_error({{"messages", user_says("Hi")}, {"max_tokens", 0}}, 400, invalid);
    expect_error({{"messages", user_says("Hi")}, {"tool_choice", {{"type", "any"}}}}, 400, invalid);
    expect_error({{"messages", {{{"role", "user"}, {"content", {{{"type", "image"}}}}}}}}, 400, invalid);
    expect_error({{"messages", {{{"role", "robot"}, {"content", "x"}}}}}, 400, invalid);
    const std::string text(8000, 'z');
    const std::string long_one = expect_error({{"messages", user_says(text)}, {"stream", true}}, 400, invalid);
    EXPECT_NE(long_one.find("prompt is too long: "), std::string::npos);
    EXPECT_NE(long_one.find(" tokens > 1024 maximum"), std::string::npos);
    const Answer not_there = Client(port()).ask("GET", "/v1/messages");
    EXPECT_EQ(not_there.status, 405);
    EXPECT_EQ(not_there.object().at("type").as_string(), "error");
    expect_alive();
}

}  // namespace
}  // namespace riptide::testing
