// Answers that go on with a last message of the assistant (prefill), in each API that has them.
#include "tests/server/http_client.h"

#include "base/json.h"

namespace riptide::testing {
namespace {

class ServerGoesOn : public ServerTest {
  protected:
    void SetUp() override { start(); }

    static json::array begun(const std::string& question, const std::string& answer) {
        json::array out = user_says(question);
        out.push_back({{"role", "assistant"}, {"content", answer}});
        return out;
    }
    static json::object greedy(json::array messages) {
        return {{"messages", std::move(messages)}, {"max_tokens", 64}, {"temperature", 0}};
    }
    std::string chat_says(const json::object& body) {
        const Answer answer = post("/v1/chat/completions", body);
        EXPECT_EQ(answer.status, 200) << answer.body;
        return std::string(answer.object().at("choices").at(0).at("message").at("content").as_string());
    }
    std::string message_says(const json::object& body) {
        const Answer answer = post("/v1/messages", body);
        EXPECT_EQ(answer.status, 200) << answer.body;
        const json::array content = answer.object().at("content").as_array();
        return content.empty() ? "" : std::string(content.at(0).at("text").as_string());
    }
    std::string refusal(const char* path, const json::object& body) {
        const Answer answer = post(path, body);
        EXPECT_EQ(answer.status, 400) << answer.body;
        return answer.body;
    }
};

TEST_F(ServerGoesOn, an_answer_goes_on_from_any_of_its_tokens) {
    size_t tried = 0;
    for (const std::string question : {"Who are you?", "Tell me a story.", "What is 12 plus 30?"}) {
        Request direct = chat(question);
        direct.want_tokens = true;
        const std::string whole = ask(*engine, direct).text;
        ASSERT_GE(whole.size(), 2u);
        std::vector<int32_t> ids = engine->tokenizer()->encode(whole, {});
        for (size_t many = 0; many < ids.size(); ++many, ++tried) {
            const std::string head = engine->tokenizer()->decode(std::span(ids).first(many)),
                              tail = whole.substr(head.size());
            json::object asked = greedy(begun(question, head));
            asked["continue_final_message"] = true;
            EXPECT_EQ(chat_says(asked), tail) << '\'' << head << '\'';
            asked.erase("continue_final_message");
            asked["messages"].as_array().back().as_object()["prefix"] = true;
            EXPECT_EQ(chat_says(asked), tail) << '\'' << head << '\'';
            if (head.ends_with(' ') || head.ends_with('\n')) continue;
            EXPECT_EQ(message_says(greedy(begun(question, head))), tail) << '\'' << head << '\'';
        }
    }
    EXPECT_GE(tried, 20u);
}

TEST_F(ServerGoesOn, without_a_word_the_next_message_is_one_of_its_own) {
    const auto prompt = [&](const json::object& more) {
        json::object body = {{"messages", begun("Hi", "Hello")}};
        for (const auto& [key, value] : more) body[key] = value;
        return std::string(post("/apply-template", body).object().at("prompt").as_string());
    };
    EXPECT_TRUE(prompt({}).ends_with("Hello\n</assistant>\n<assistant>\n</think>")) << prompt({});
    const std::string on = prompt({{"continue_final_message", true}});
    EXPECT_TRUE(on.ends_with("<assistant>\n</think>\nHello")) << on;
    EXPECT_EQ(prompt({{"continue_final_message", true}, {"add_generation_prompt", false}}), on);
}

TEST_F(ServerGoesOn, what_cannot_go_on_is_refused_by_name) {
    const auto has = [](const std::string& text, const char* words) { return text.find(words) != std::string::npos; };
    json::object body = greedy(user_says("Hi"));
    body["continue_final_message"] = true;
    EXPECT_TRUE(has(refusal("/v1/chat/completions", body), "messages[0].role: an answer goes on with a message"));
    body["messages"] = begun("Hi", "Hel");
    body["add_generation_prompt"] = true;
    EXPECT_TRUE(has(refusal("/v1/chat/completions", body), "continue_final_message: with add_generation_prompt"));
    body.erase("add_generation_prompt");
    body["response_format"] = {{"type", "json_object"}};
    EXPECT_TRUE(has(refusal("/v1/chat/completions", body), "expected no response_format"));
    const json::object call = {{"name", "brew"}, {"arguments", "{}"}};
    json::array calls = begun("Hi", "");
    calls.back().as_object()["tool_calls"] = {{{"id", "1"}, {"type", "function"}, {"function", call}}};
    body = greedy(calls);
    body["continue_final_message"] = true;
    EXPECT_TRUE(has(refusal("/v1/chat/completions", body), "messages[1].tool_calls: no answer can go on with"));

    EXPECT_TRUE(has(refusal("/v1/messages", greedy(begun("Hi", "Hel "))), "ends with white space"));
    body = greedy(begun("Hi", "Hel"));
    body["thinking"] = {{"type", "enabled"}, {"budget_tokens", 1024}};
    EXPECT_TRUE(has(refusal("/v1/messages", body), "thinking: the last message is the assistant's"));
    body["thinking"] = {{"type", "disabled"}};
    EXPECT_EQ(post("/v1/messages", body).status, 200);
    const Answer counted = post("/v1/messages/count_tokens", {{"messages", begun("Hi", "Hel")}});
    EXPECT_EQ(counted.status, 200);
    expect_alive();
}

}  // namespace
}  // namespace riptide::testing
