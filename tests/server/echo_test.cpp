// What an echoed prompt says of its text.
#include "tests/server/http_client.h"

#include "base/json.h"

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
        const json::value& probabilities = choice.at("logprobs");
        if (probabilities.is_null()) continue;  // the end came by itself
        for (const json::value& value : probabilities.at("token_logprobs").as_array()) values.push_back(value);
    }
    EXPECT_EQ(text, whole.at("text").as_string());
    EXPECT_EQ(json::value(values), whole.at("logprobs").at("token_logprobs"));
}

TEST_F(ServerEcho, a_prompt_that_fills_the_context_is_scored_where_nothing_follows) {
    EngineOptions options = demo_options();
    options.context = options.kv_tokens = 256;
    start(server_options(), options);
    std::vector<int32_t> ids(256);
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(100 + i * 37 % 500);
    const auto scored = [&](size_t count, int64_t most, bool stream = false) {
        return post("/v1/completions", {{"prompt", json::value_from(std::vector(ids.begin(), ids.begin() + count))},
                                        {"max_tokens", most},
                                        {"logprobs", 1},
                                        {"echo", true},
                                        {"stream", stream}});
    };
    const json::object whole = scored(256, 0).object(), shorter = scored(200, 0).object();
    ASSERT_TRUE(whole.contains("choices")) << json::serialize(whole);
    EXPECT_EQ(whole.at("choices").at(0).at("finish_reason").as_string(), "length");
    EXPECT_EQ(whole.at("usage").at("prompt_tokens").to_number<int64_t>(), 256);
    EXPECT_EQ(whole.at("usage").at("completion_tokens").to_number<int64_t>(), 0);
    const json::array& all = whole.at("choices").at(0).at("logprobs").at("token_logprobs").as_array();
    const json::array& some = shorter.at("choices").at(0).at("logprobs").at("token_logprobs").as_array();
    ASSERT_EQ(all.size(), 256);
    ASSERT_EQ(some.size(), 200);
    EXPECT_TRUE(std::equal(some.begin(), some.end(), all.begin())) << "a row does not depend on its company";
    EXPECT_LT(all[255].as_double(), 0);
    const Answer streamed = scored(256, 0, true);
    EXPECT_EQ(streamed.status, 200);
    EXPECT_EQ(events_of(streamed.body).at(0).at("choices").at(0).at("logprobs").at("token_logprobs"), all);
    // One token of an answer has no room, and neither has one more of the prompt.
    EXPECT_EQ(scored(256, 1).status, 400);
    ids.push_back(100);
    const Answer longer = scored(257, 0);
    EXPECT_EQ(longer.status, 400);
    EXPECT_EQ(longer.object().at("error").at("code").as_string(), "context_length_exceeded");
    expect_alive();
}

TEST_F(ServerEcho, an_echo_alone_has_as_many_choices_as_are_asked_for) {
    EngineOptions options = demo_options();
    options.context = 256;
    start(server_options(), options);
    const std::vector<int32_t> ids(256, 100);
    const json::object reply =
        post("/v1/completions", {{"prompt", json::value_from(ids)}, {"max_tokens", 0}, {"n", 2}, {"echo", true}})
            .object();
    ASSERT_TRUE(reply.contains("choices")) << json::serialize(reply);
    ASSERT_EQ(reply.at("choices").as_array().size(), 2);
    for (const json::value& choice : reply.at("choices").as_array()) {
        EXPECT_EQ(choice.at("text").as_string(), engine->tokenizer()->decode(ids));
        EXPECT_EQ(choice.at("finish_reason").as_string(), "length");
    }
    // The engine counts an answer behind its last event.
    EXPECT_TRUE(becomes([&] { return engine->stats().finished == 2; }));
}

}  // namespace
}  // namespace riptide::testing
