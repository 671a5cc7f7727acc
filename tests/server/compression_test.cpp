// Long prompts made shorter, over HTTP: the field `compress`, and what replies say of it.
#include "tests/server/http_client.h"

#include "base/json.h"

namespace riptide::testing {
namespace {

class ServerCompression : public ServerTest {
  protected:
    void start_with_scorer(CompressMode mode = CompressMode::automatic) {
        EngineOptions o = demo_options();
        o.scorer = {"fake", nullptr, [](const ScoreCall& call) {
                        std::vector<float> scores(call.tokens.size());
                        for (size_t i = 0; i < scores.size(); ++i) scores[i] = static_cast<float>(call.tokens[i] % 5);
                        return scores;
                    }};
        o.compression = {.mode = mode, .keep = 0.25, .least = 0, .above = 300};
        server::ServerOptions options = server_options();
        options.log.json = true;
        options.log.write = [this](const std::string& line) {
            const std::lock_guard lock(mutex);
            lines.push_back(line);
        };
        start(options, o);
    }
    static std::string filler() {
        std::string out;
        for (int i = 0; i < 40; ++i) out += fmt::format("Entry {}: the pump of hall {} ran for {} min.\n", i, i % 7, i);
        return out;
    }
    static json::object body() {
        return {{"messages", user_says(filler() + "What is 12 plus 30?")}, {"max_tokens", 4}, {"temperature", 0}};
    }
    json::object details(const json::object& asked) {
        const Answer answer = post("/v1/chat/completions", asked);
        EXPECT_EQ(answer.status, 200) << answer.body;
        return answer.object().at("usage").at("prompt_tokens_details").as_object();
    }
    std::mutex mutex;
    std::vector<std::string> lines;
};

TEST_F(ServerCompression, replies_say_how_long_the_prompt_was) {
    start_with_scorer();
    const json::object reply = post("/v1/chat/completions", body()).object();
    const json::object& usage = reply.at("usage").as_object();
    const auto original = usage.at("prompt_tokens_details").at("original_tokens").to_number<int64_t>();
    const auto prompt = usage.at("prompt_tokens").to_number<int64_t>();
    EXPECT_GT(original, 300);
    EXPECT_LE(prompt, original / 2);
    EXPECT_EQ(usage.at("prompt_tokens_details").at("scored_tokens").to_number<int64_t>(), original);
    EXPECT_GT(reply.at("timings").at("scoring_ms").to_number<double>(), 0);

    json::object streamed = body();
    streamed["stream"] = true;
    streamed["stream_options"] = {{"include_usage", true}};
    streamed["compress"] = {{"keep", 0.5}};
    const Joined joined = join(post("/v1/chat/completions", streamed).body);
    EXPECT_EQ(joined.usage.at("prompt_tokens_details").at("original_tokens").to_number<int64_t>(), original);
    EXPECT_GT(joined.usage.at("prompt_tokens").to_number<int64_t>(), prompt);

    const json::object message = post("/v1/messages", body()).object();
    EXPECT_EQ(message.at("usage").at("original_tokens").to_number<int64_t>(), original);
    const json::object response =
        post("/v1/responses", {{"input", filler()}, {"max_output_tokens", 4}, {"compress", "always"}}).object();
    EXPECT_GT(response.at("usage").at("input_tokens_details").at("original_tokens").to_number<int64_t>(), 300);

    EXPECT_EQ(get("/props").object().at("compression").at("scorer"), "fake");
    const std::string metrics = get("/metrics").body;
    EXPECT_NE(metrics.find("riptide_prompts_compressed_total 4"), std::string::npos) << metrics;
    const std::lock_guard lock(mutex);
    const json::value line = parse_json(lines.at(0), "the log");
    EXPECT_EQ(line.at("compression").at("original_tokens").to_number<int64_t>(), original);
}

TEST_F(ServerCompression, requests_say_what_they_want) {
    start_with_scorer();
    json::object asked = body();
    for (const json::value& off : {json::value("off"), json::value{{"mode", "off"}}, json::value{{"above", 5000}}}) {
        asked["compress"] = off;
        EXPECT_FALSE(details(asked).contains("original_tokens")) << json::serialize(off);
    }
    asked["compress"] = {{"keep_tokens", 200}};
    EXPECT_TRUE(details(asked).contains("original_tokens"));
    asked["compress"] = nullptr;
    EXPECT_TRUE(details(asked).contains("original_tokens"));
    json::object completion = {{"prompt", filler()}, {"max_tokens", 2}};
    EXPECT_TRUE(post("/v1/completions", completion)
                    .object()
                    .at("usage")
                    .at("prompt_tokens_details")
                    .as_object()
                    .contains("original_tokens"));
    completion["echo"] = true;
    EXPECT_FALSE(post("/v1/completions", completion)
                     .object()
                     .at("usage")
                     .at("prompt_tokens_details")
                     .as_object()
                     .contains("original_tokens"));
    completion["compress"] = "always";
    EXPECT_EQ(post("/v1/completions", completion).param(), "compress");
}

TEST_F(ServerCompression, replies_show_what_was_kept_if_asked) {
    start_with_scorer();
    json::object asked = body();
    EXPECT_FALSE(details(asked).contains("shown"));
    for (const char* positions : {"compact", "original"}) {
        asked["compress"] = {{"show", true}, {"positions", positions}};
        const std::string shown(details(asked).at("shown").as_string());
        EXPECT_NE(shown.find("[-"), shown.npos);
        EXPECT_NE(shown.find("What is 12 plus 30?"), shown.npos);
        std::string whole;  // without the marks it is the whole prompt
        for (size_t i = 0; i < shown.size(); ++i) {
            const std::string two = shown.substr(i, 2);
            if (two == "[-" || two == "-]") ++i;
            else whole += shown[i];
        }
        EXPECT_NE(whole.find(filler()), whole.npos);
    }
    asked["compress"] = "off";
    EXPECT_FALSE(details(asked).contains("original_tokens"));
}

TEST_F(ServerCompression, whoever_asks_for_exactness_gets_the_whole_prompt) {
    start_with_scorer();
    const auto whole = [&](const char* path, json::object asked) {
        const Answer answer = post(path, asked);
        EXPECT_EQ(answer.status, 200) << answer.body;
        return !answer.object().at("usage").at("prompt_tokens_details").as_object().contains("original_tokens");
    };
    EXPECT_FALSE(whole("/v1/chat/completions", body()));
    json::object asked = {{"prompt", filler()}, {"max_tokens", 2}};
    EXPECT_FALSE(whole("/v1/completions", asked));
    asked["logprobs"] = 2;
    EXPECT_FALSE(whole("/v1/completions", asked)) << "of the answer alone";
    asked["echo"] = true;  // with those of the prompt
    EXPECT_TRUE(whole("/v1/completions", asked));
    const json::object tokens = post("/tokenize", {{"content", filler()}}).object();
    EXPECT_TRUE(whole("/v1/completions", {{"prompt", tokens.at("tokens")}, {"max_tokens", 2}})) << "token ids";
    EXPECT_FALSE(
        whole("/v1/completions", {{"prompt", tokens.at("tokens")}, {"max_tokens", 2}, {"compress", "always"}}));
}

TEST_F(ServerCompression, what_cannot_be_honoured_is_refused_by_name) {
    start_with_scorer();
    const std::vector<std::pair<json::value, const char*>> bad = {
        {"sometimes", "compress"},           {5, "compress"},
        {{{"mode", "x"}}, "compress.mode"},  {{{"keep", 0}}, "compress.keep"},
        {{{"keep", 1.5}}, "compress.keep"},  {{{"keep", "a"}}, "compress.keep"},
        {{{"above", -1}}, "compress.above"}, {{{"keep_tokens", 0}}, "compress.keep_tokens"},
        {{{"positions", "x"}}, "compress.positions"}, {{{"show", 1}}, "compress.show"}};
    for (const auto& [value, field] : bad) {
        json::object asked = body();
        asked["compress"] = value;
        for (const char* path : {"/v1/chat/completions", "/v1/messages"}) {
            const Answer answer = post(path, asked);
            EXPECT_EQ(answer.status, 400) << json::serialize(value);
            EXPECT_NE(answer.body.find(field), std::string::npos) << answer.body;
        }
    }
    start();
    json::object asked = body();
    asked["compress"] = "always";
    const Answer answer = post("/v1/chat/completions", asked);
    EXPECT_EQ(answer.status, 400);
    EXPECT_EQ(answer.param(), "compress");
    asked["compress"] = "auto";
    EXPECT_EQ(post("/v1/chat/completions", asked).status, 200);
}

}  // namespace
}  // namespace riptide::testing
