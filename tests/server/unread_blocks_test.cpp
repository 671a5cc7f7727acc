// Content that a text model cannot read, as clients keep it in the history: it is named in the prompt, and only what
// the user asks about now is refused.
#include "base/json.h"
#include "tests/server/http_client.h"

namespace riptide::testing {
namespace {

class ServerUnreadBlocks : public ServerTest {
  protected:
    void SetUp() override { start(); }

    std::string chat_prompt(const json::array& messages) {
        const Answer answer = post("/apply-template", {{"messages", messages}});
        EXPECT_EQ(answer.status, 200) << answer.body;
        return answer.status == 200 ? std::string(answer.object().at("prompt").as_string()) : "";
    }
    int64_t count(const json::array& messages) {
        const Answer answer = post("/v1/messages/count_tokens", {{"messages", messages}});
        EXPECT_EQ(answer.status, 200) << answer.body;
        return answer.status == 200 ? answer.object().at("input_tokens").to_number<int64_t>() : -1;
    }
    static json::object says(const char* role, json::value content) {
        return {{"role", role}, {"content", std::move(content)}};
    }
    static json::object result(json::value content) {
        return {{"type", "tool_result"}, {"tool_use_id", "t"}, {"content", std::move(content)}};
    }
    static bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }
};

const json::object kReference = {{"type", "tool_reference"}, {"tool_name", "WebFetch"}};
const json::object kImage = {{"type", "image"}, {"source", {{"type", "base64"}, {"data", ""}}}};
const json::object kPaper = {{"type", "document"},
                             {"title", "A paper"},
                             {"source", {{"type", "base64"}, {"media_type", "application/pdf"}, {"data", ""}}}};

TEST_F(ServerUnreadBlocks, a_result_of_a_tool_has_the_names_of_what_cannot_be_read) {
    const json::object call = {
        {"type", "tool_use"}, {"id", "t"}, {"name", "ToolSearch"}, {"input", {{"query", "select:WebFetch"}}}};
    const auto tokens = [&](json::value content) {
        return count({says("user", "hi"), says("assistant", {call}), says("user", {result(std::move(content))})});
    };
    EXPECT_EQ(tokens({kReference}), tokens("[tool_reference: WebFetch]"));
    EXPECT_EQ(tokens({kReference, {{"type", "text"}, {"text", "x"}}}), tokens("[tool_reference: WebFetch]\nx"));
    EXPECT_EQ(tokens({kImage}), tokens("[image]"));
    EXPECT_EQ(tokens({kPaper}), tokens("[document: A paper]"));
    EXPECT_EQ(tokens({{{"type", "not_yet_invented"}, {"name", "N"}}}), tokens("[not_yet_invented: N]"));
    const json::object found = {{"type", "search_result"},
                                {"title", "T"},
                                {"source", "S"},
                                {"content", {{{"type", "text"}, {"text", "words"}}}}};
    EXPECT_EQ(tokens({found}), tokens("title: T\nsource: S\nwords"));
}

TEST_F(ServerUnreadBlocks, the_history_has_the_names_of_what_cannot_be_read) {
    const auto tokens = [&](const char* role, json::value content) {
        json::array messages = {says("user", "hi"), says(role, std::move(content)), says("user", "go on")};
        return count(messages);
    };
    const json::object use = {
        {"type", "server_tool_use"}, {"id", "s"}, {"name", "web_search"}, {"input", json::object()}};
    const json::array pages = {{{"type", "web_search_result"}, {"title", "One"}, {"url", "https://a"}},
                               {{"type", "web_search_result"}, {"title", "Two"}, {"url", "https://b"}}};
    const json::object found = {{"type", "web_search_tool_result"}, {"tool_use_id", "s"}, {"content", pages}};
    EXPECT_EQ(tokens("assistant", {use, found, {{"type", "text"}, {"text", "Found."}}}),
              tokens("assistant", "[server_tool_use: web_search]\n[web_search_tool_result: One; Two]\nFound."));
    EXPECT_EQ(tokens("user", {kImage}), tokens("user", "[image]"));
    EXPECT_EQ(tokens("user", {kPaper}), tokens("user", "[document: A paper]"));
}

TEST_F(ServerUnreadBlocks, what_the_user_asks_about_now_is_refused_by_its_place) {
    const auto refusal = [&](const json::array& content) {
        const json::object body = {
            {"max_tokens", 2}, {"messages", {says("user", {kImage}), says("assistant", "?"), says("user", content)}}};
        const Answer answer = post("/v1/messages", body);
        EXPECT_EQ(answer.status, 400) << answer.body;
        return answer.body;
    };
    EXPECT_TRUE(has(refusal({kImage}), "messages[2].content[0].type: 'image' is not supported"));
    EXPECT_TRUE(has(refusal({{{"type", "text"}, {"text", "x"}}, kPaper}), "documents of type 'base64'"));
    EXPECT_TRUE(has(refusal({{{"type", "not_yet_invented"}}}), "'not_yet_invented' is not supported"));
    EXPECT_EQ(post("/v1/messages", {{"max_tokens", 2}, {"messages", {says("user", {kReference})}}}).status, 200);
}

TEST_F(ServerUnreadBlocks, a_chat_names_them_too) {
    const json::object image = {{"type", "image_url"}, {"image_url", {{"url", "data:image/png;base64,AAAA"}}}};
    const json::object file = {{"type", "file"}, {"file", {{"filename", "a.pdf"}, {"file_data", "AAAA"}}}};
    const json::object function = {{"name", "look"}, {"arguments", "{}"}};
    const json::object call = {{"id", "t"}, {"type", "function"}, {"function", function}};
    json::object calls = says("assistant", nullptr), shown = says("tool", {image});
    calls["tool_calls"] = json::array{call};
    shown["tool_call_id"] = "t";
    const std::string prompt =
        chat_prompt({says("user", {image, file}), says("assistant", "Hm."), says("user", "Look."), calls, shown});
    EXPECT_TRUE(has(prompt, "[image_url]\n[file: a.pdf]")) << prompt;
    EXPECT_TRUE(has(prompt.substr(prompt.find("Look.")), "[image_url]")) << prompt;
    EXPECT_FALSE(has(prompt, "AAAA"));
    const Answer refused = post("/v1/chat/completions", {{"messages", {says("user", "Hi"), says("user", {image})}}});
    EXPECT_EQ(refused.status, 400);
    EXPECT_EQ(refused.param(), "messages[1].content[0].type");
    const json::array items = {
        says("user", "Look."),
        {{"type", "function_call"}, {"call_id", "t"}, {"name", "look"}, {"arguments", "{}"}},
        {{"type", "function_call_output"}, {"call_id", "t"}, {"output", {{{"type", "input_image"}}}}}};
    EXPECT_EQ(post("/v1/responses", {{"input", items}, {"max_output_tokens", 2}}).status, 200);
}

TEST_F(ServerUnreadBlocks, any_conversation_is_counted_as_it_stands) {
    const json::object call = {{"type", "tool_use"}, {"id", "t"}, {"name", "read"}, {"input", json::object()}};
    const json::object thought = {{"type", "thinking"}, {"thinking", "t"}, {"signature", "s"}};
    const int64_t asked = count({says("user", "hi")});
    EXPECT_GT(count({says("user", "hi"), says("assistant", "Hello.\n")}), asked);
    EXPECT_GT(count({says("user", "hi"), says("assistant", {call})}), asked);
    json::object body = {
        {"messages", {says("user", "hi"), says("assistant", {thought, {{"type", "text"}, {"text", "Hello."}}})}},
        {"thinking", {{"type", "enabled"}, {"budget_tokens", 1024}}}};
    EXPECT_EQ(post("/v1/messages/count_tokens", body).status, 200);
    body["max_tokens"] = 2;
    EXPECT_EQ(post("/v1/messages", body).status, 400) << "an answer needs a place to go on";
    // What is counted is what stands in front of the next question.
    json::array turns;
    std::vector<int64_t> questions;
    for (int i = 0; i < 3; ++i) {
        turns.push_back(says("user", "hi"));
        const int64_t with = count(turns);
        turns.push_back(says("assistant", "Hello."));
        questions.push_back(with - (i == 0 ? 0 : count(json::array(turns.begin(), turns.end() - 2))));
    }
    EXPECT_EQ(questions[1], questions[2]);
}

}  // namespace
}  // namespace riptide::testing
