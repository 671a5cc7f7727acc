// What an echoed prompt says of its text.
#include "tests/server/http_client.h"

namespace riptide::testing {
namespace {

class ServerEcho : public ServerTest {};

TEST_F(ServerEcho, offsets_of_an_echoed_text_do_not_count_what_stands_before_it) {
    start();
    const json::object reply =
        post("/v1/completions", {{"prompt", "ab cd"}, {"max_tokens", 0}, {"logprobs", 0}, {"echo", true}}).object();
    const json::object& choice = reply.at("choices").at(0).as_object();
    const std::string text(choice.at("text").as_string());
    EXPECT_EQ(text, "ab cd");
    const json::array& tokens = choice.at("logprobs").at("tokens").as_array();
    ASSERT_EQ(tokens[0].as_string(), engine->tokenizer()->piece(engine->tokenizer()->bos()));
    for (size_t i = 1; i < tokens.size(); ++i)
        EXPECT_EQ(text.find(std::string(tokens[i].as_string())),
                  choice.at("logprobs").at("text_offset").at(i).to_number<size_t>());
    EXPECT_EQ(reply.at("usage").at("completion_tokens").to_number<int64_t>(), 0);
}

TEST_F(ServerEcho, bytes_of_ids_that_are_no_text_do_not_break_the_reply) {
    start();
    const Tokenizer& tokenizer = *engine->tokenizer();
    json::array ids;
    for (int32_t id = 0; id < tokenizer.vocab_size() && ids.size() < 300; ++id)
        if (!tokenizer.is_added(id)) ids.push_back(id);  // single bytes among them
    for (const bool stream : {false, true}) {
        const Answer answer =
            post("/v1/completions", {{"prompt", ids}, {"max_tokens", 1}, {"echo", true}, {"stream", stream}});
        EXPECT_EQ(answer.status, 200);
        const json::object reply = stream ? events_of(answer.body).at(0) : answer.object();
        const std::string text(reply.at("choices").at(0).at("text").as_string());
        EXPECT_NE(text.find("\xEF\xBF\xBD"), std::string::npos) << text;
        EXPECT_NE(text.find("ab"), std::string::npos) << text;
    }
}

TEST_F(ServerEcho, a_stream_echoes_once_however_many_steps_read_the_prompt) {
    start();
    json::array ids;
    for (int64_t i = 0; i < 500; ++i) ids.push_back(100 + i * 37 % 500);
    json::object body = {{"prompt", ids}, {"max_tokens", 2}, {"logprobs", 1}, {"echo", true}, {"temperature", 0}};
    const json::object whole = post("/v1/completions", body).object().at("choices").at(0).as_object();
    body["stream"] = true;
    std::string text;
    json::array values;
    for (const json::object& event : events_of(post("/v1/completions", body).body)) {
        const json::value& choice = event.at("choices").at(0);
        text += choice.at("text").as_string();
        for (const json::value& value : choice.at("logprobs").at("token_logprobs").as_array()) values.push_back(value);
    }
    EXPECT_EQ(text, whole.at("text").as_string());
    EXPECT_EQ(json::value(values), whole.at("logprobs").at("token_logprobs"));
}

}  // namespace
}  // namespace riptide::testing
