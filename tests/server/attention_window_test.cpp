// A window over full-attention layers, over HTTP: what replies say of it.
#include "tests/server/http_client.h"

#include "base/json.h"

namespace riptide::testing {
namespace {

class ServerWindow : public ServerTest {
  protected:
    /// usage of an answer, by any route.
    json::object usage(const char* route, json::object asked) {
        const Answer answer = post(route, asked);
        EXPECT_EQ(answer.status, 200) << answer.body;
        return answer.object().at("usage").as_object();
    }
};

TEST_F(ServerWindow, is_named_where_prompt_and_answer_are_longer) {
    EngineOptions o = demo_options();
    o.model.attention_window = 64;
    std::mutex mutex;
    std::vector<std::string> lines;
    server::ServerOptions options = server_options();
    options.log.json = true;
    options.log.write = [&](const std::string& line) {
        const std::lock_guard lock(mutex);
        lines.push_back(line);
    };
    start(options, o);
    std::string text;
    for (int i = 0; i < 20; ++i) text += fmt::format("Entry {}: the pump ran for {} min.\n", i, 3 * i);
    const json::object chat = {{"messages", user_says(text)}, {"max_tokens", 4}};
    EXPECT_EQ(usage("/v1/chat/completions", chat).at("prompt_tokens_details").at("attention_window"), 64);
    EXPECT_EQ(usage("/v1/messages", chat).at("attention_window"), 64);
    EXPECT_EQ(usage("/v1/responses", {{"input", text}, {"max_output_tokens", 4}})
                  .at("input_tokens_details")
                  .at("attention_window"),
              64);
    const json::object brief = usage("/v1/completions", {{"prompt", "12 plus"}, {"max_tokens", 4}});
    EXPECT_FALSE(brief.at("prompt_tokens_details").as_object().contains("attention_window"));
    EXPECT_EQ(get("/props").object().at("attention_window"), 64);
    const std::lock_guard lock(mutex);
    EXPECT_EQ(parse_json(lines.at(0), "the log").at("attention_window"), 64);
}

}  // namespace
}  // namespace riptide::testing
