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

}  // namespace
}  // namespace riptide::testing
