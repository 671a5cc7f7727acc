// A model of another dialect behind the same server: the small Qwen3 fixture with a vocabulary of bytes and Qwen's
// markup, and a template in the dialect of Qwen3.5. Its words mean nothing; forms make it say what is needed.
#include "tests/server/http_client.h"
#include "base/json.h"
#include "tests/server/qwen_folder.h"

namespace riptide::testing {
namespace {

json::array point_tool() {
    return parse_json(R"([{"type": "function", "function": {"name": "point", "parameters": {"type": "object",
        "required": ["target", "minutes", "sure"], "additionalProperties": false, "properties": {
        "target": {"type": "string", "enum": ["sun", "the moon"]}, "minutes": {"type": "integer", "minimum": 0, "maximum": 90},
        "sure": {"type": "boolean"}}}}}])",
                      "tools")
        .as_array();
}

class ServerQwen : public ServerTest {
  protected:
    void SetUp() override { begin(server_options()); }
    void begin(server::ServerOptions options) {
        static const std::string path =
            write_qwen_folder(::testing::TempDir() + "riptide-qwen-chat", {{"eos_token_id", 0}});
        server.reset();
        engine = Engine::open(path, demo_options());
        server = std::make_unique<server::Server>(std::move(options));
        server->serve(*engine);
    }
    static json::object body(uint64_t seed) {
        return {{"messages", user_says("Where to?")}, {"temperature", 1}, {"seed", seed}, {"max_tokens", 400}};
    }
    static json::object thinks(json::object asked, bool thinking) {
        asked["chat_template_kwargs"] = {{"enable_thinking", thinking}};
        asked["thinking_budget"] = 5;
        return asked;
    }
    json::object choice(const json::object& asked) {
        const Answer answer = post("/v1/chat/completions", asked);
        EXPECT_EQ(answer.status, 200) << answer.body;
        return answer.object().at("choices").at(0).as_object();
    }
};

TEST_F(ServerQwen, says_what_it_speaks) {
    const json::object props = get("/props").object();
    EXPECT_EQ(props.at("chat").at("dialect"), "qwen-tags");
    EXPECT_EQ(props.at("chat").at("thinking"), true);
    EXPECT_EQ(json::value_to<std::vector<int>>(props.at("stop_ids")), (std::vector<int>{0, 2}));
    const Answer rendered = post("/tokenize", {{"messages", user_says("Hi <think>")}});
    ASSERT_EQ(rendered.status, 200) << rendered.body;
    const auto ids = json::value_to<std::vector<int>>(rendered.object().at("tokens"));
    EXPECT_EQ(ids.front(), 1);
    EXPECT_EQ(std::count(ids.begin(), ids.end(), 5), 1) << "what the user spells is text";
}

TEST_F(ServerQwen, variables_of_the_template_come_from_the_server_and_the_request) {
    const auto prompt = [&](const json::value& kwargs) {
        json::object asked = {{"messages", user_says("a")}, {"chat_template_kwargs", kwargs}};
        asked["messages"].as_array().push_back(
            {{"role", "assistant"}, {"content", "b"}, {"reasoning_content", "because"}});
        asked["messages"].as_array().push_back({{"role", "user"}, {"content", "c"}});
        return std::string(post("/apply-template", asked).object().at("prompt").as_string());
    };
    EXPECT_EQ(prompt(json::object()).find("because"), std::string::npos);
    EXPECT_NE(prompt({{"preserve_thinking", true}}).find("because"), std::string::npos);
    server::ServerOptions options = server_options();
    options.defaults.template_kwargs["preserve_thinking"] = true;
    begin(options);
    EXPECT_NE(prompt(json::object()).find("because"), std::string::npos);
    EXPECT_EQ(prompt({{"preserve_thinking", false}}).find("because"), std::string::npos);
}

TEST_F(ServerQwen, reasoning_and_text_are_told_apart_streamed_or_not) {
    for (const bool thinking : {true, false})
        for (uint64_t seed = 0; seed < 3; ++seed) {
            json::object asked = thinks(body(seed), thinking);
            asked["regex"] = "\\n?(up|down)\\n?";
            const json::object message = choice(asked).at("message").as_object();
            const std::string text(message.at("content").as_string());
            EXPECT_TRUE(text.find("up") != std::string::npos || text.find("down") != std::string::npos) << text;
            EXPECT_LE(text.size(), 6U) << "no markup, and no newlines but the form's own";
            const json::value* reasoning = message.if_contains("reasoning_content");
            EXPECT_TRUE(thinking || reasoning == nullptr || reasoning->is_null());
            asked["stream"] = true;
            const Joined streamed = join(post("/v1/chat/completions", asked).body);
            EXPECT_EQ(streamed.text, text);
            EXPECT_EQ(streamed.reasoning, reasoning != nullptr && reasoning->is_string() ? reasoning->as_string() : "");
            EXPECT_EQ(streamed.finish_reason, "stop");
        }
}

TEST_F(ServerQwen, tools_are_called_and_the_next_turn_finds_the_answer_in_the_cache) {
    for (const bool thinking : {true, false}) {
        json::object asked = thinks(body(11), thinking);
        asked["tools"] = point_tool();
        asked["tool_choice"] = "required";
        asked["parallel_tool_calls"] = false;
        const Answer answer = post("/v1/chat/completions", asked);
        ASSERT_EQ(answer.status, 200) << answer.body;
        const json::object first = answer.object().at("choices").at(0).as_object();
        EXPECT_EQ(first.at("finish_reason"), "tool_calls");
        const json::object message = first.at("message").as_object();
        const json::array& calls = message.at("tool_calls").as_array();
        ASSERT_EQ(calls.size(), 1U);
        EXPECT_EQ(calls[0].at("function").at("name"), "point");
        const json::object arguments =
            parse_json(calls[0].at("function").at("arguments").as_string(), "arguments").as_object();
        EXPECT_TRUE(arguments.at("target") == "sun" || arguments.at("target") == "the moon");
        EXPECT_TRUE(arguments.at("minutes").is_int64() && arguments.at("sure").is_bool());
        asked["stream"] = true;
        const Joined streamed = join(post("/v1/chat/completions", asked).body);
        EXPECT_EQ(streamed.calls, std::vector<std::string>{"point"});
        EXPECT_EQ(streamed.arguments,
                  std::vector<std::string>{std::string(calls[0].at("function").at("arguments").as_string())});
        asked.erase("stream");

        const auto tokens = [](const json::object& usage, const char* key) {
            return usage.at(key).to_number<int64_t>();
        };
        const json::object used = answer.object().at("usage").as_object();
        asked["messages"].as_array().push_back(message);
        asked["messages"].as_array().push_back(
            {{"role", "tool"}, {"tool_call_id", calls[0].at("id")}, {"content", "done"}});
        asked["tool_choice"] = "auto";
        asked["max_tokens"] = 1;
        const json::object next = post("/v1/chat/completions", asked).object();
        const int64_t cached = next.at("usage").at("prompt_tokens_details").at("cached_tokens").to_number<int64_t>();
        const int64_t said = tokens(used, "prompt_tokens") + tokens(used, "completion_tokens");
        EXPECT_GT(cached, said - demo_options().page_rows) << "it stands in the next prompt as the model wrote it";
        EXPECT_LT(cached, tokens(next.at("usage").as_object(), "prompt_tokens"));
    }
}

}  // namespace
}  // namespace riptide::testing
