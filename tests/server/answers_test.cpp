// What comes over HTTP is what the engine says, streamed or not, alone or in a crowd.
#include <set>

#include "base/file.h"
#include "base/json.h"
#include "tests/server/http_client.h"

namespace riptide::testing {
namespace {

json::array tea_tools() {
    return parse_json(read_file(source_dir() + "/examples/tools.json", 1 << 20), "tools.json").as_array();
}

class ServerAnswers : public ServerTest {
  protected:
    void SetUp() override { start(); }

    /// The same request, to the engine itself and over HTTP both ways.
    void expect_equal(const json::object& body, Request direct) {
        const Heard expected = ask(*engine, std::move(direct));
        ASSERT_TRUE(expected.done);
        const Answer whole = post("/v1/chat/completions", body);
        ASSERT_EQ(whole.status, 200) << whole.body;
        json::object streamed_body = body;
        streamed_body["stream"] = true;
        streamed_body["stream_options"] = {{"include_usage", true}};
        const Answer streamed = post("/v1/chat/completions", streamed_body);
        ASSERT_EQ(streamed.status, 200) << streamed.body;
        EXPECT_TRUE(streamed.headers.at("Content-Type").starts_with("text/event-stream"));
        const Joined joined = join(streamed.body);
        EXPECT_TRUE(joined.done);
        EXPECT_EQ(joined.text, expected.text);
        EXPECT_EQ(joined.reasoning, expected.reasoning);
        EXPECT_EQ(joined.calls, expected.calls);
        EXPECT_EQ(joined.arguments, expected.arguments);
        EXPECT_EQ(joined.usage.at("prompt_tokens").to_number<int64_t>(), expected.done->usage.prompt);
        EXPECT_EQ(joined.usage.at("completion_tokens").to_number<int64_t>(), expected.done->usage.completion);
        EXPECT_GT(joined.usage.at("prompt_tokens_details").at("cached_tokens").to_number<int64_t>(), 0);

        const json::object out = whole.object();
        const json::object& choice = out.at("choices").as_array().at(0).as_object();
        const json::object& message = choice.at("message").as_object();
        EXPECT_EQ(choice.at("finish_reason").as_string(), joined.finish_reason);
        EXPECT_EQ(message.at("content").is_null() ? "" : message.at("content").as_string(), expected.text);
        const json::value* reasoning = message.if_contains("reasoning_content");
        EXPECT_EQ(reasoning == nullptr ? "" : reasoning->as_string(), expected.reasoning);
        const json::value* calls = message.if_contains("tool_calls");
        ASSERT_EQ(calls == nullptr ? 0 : calls->as_array().size(), expected.calls.size());
        for (size_t i = 0; i < expected.calls.size(); ++i) {
            EXPECT_EQ(calls->as_array()[i].at("function").at("name").as_string(), expected.calls[i]);
            EXPECT_EQ(calls->as_array()[i].at("function").at("arguments").as_string(), expected.arguments[i]);
        }
    }
};

TEST_F(ServerAnswers, a_chat_is_what_the_engine_says) {
    for (const bool thinking : {false, true})
        for (const bool sampled : {false, true}) {
            Request direct = chat("What is 12 plus 30?");
            std::get<ChatPrompt>(direct.prompt).options.enable_thinking = thinking;
            json::object body = {{"messages", user_says("What is 12 plus 30?")},
                                 {"max_tokens", 64},
                                 {"temperature", 0},
                                 {"chat_template_kwargs", {{"enable_thinking", thinking}}}};
            if (sampled) {
                direct.sampling.temperature = 1.5;
                direct.sampling.top_k = 20;
                direct.sampling.seed = 11;
                body["temperature"] = 1.5;
                body["top_k"] = 20;
                body["seed"] = 11;
            } else {
                direct.sampling.top_k = 0;
            }
            expect_equal(body, direct);
        }
}

TEST_F(ServerAnswers, tool_calls_come_as_the_engine_makes_them_whole_or_cut) {
    const std::string question = "Please brew tea: kind darjeeling, cups 3.";
    for (const int64_t most : {64, 18}) {
        Request direct = chat(question, most);
        std::get<ChatPrompt>(direct.prompt).tools = tea_tools();
        const json::object body = {
            {"messages", user_says(question)}, {"tools", tea_tools()}, {"max_tokens", most}, {"temperature", 0}};
        expect_equal(body, direct);
        json::object streamed = body;
        streamed["stream"] = true;
        const Joined joined = join(post("/v1/chat/completions", streamed).body);
        ASSERT_EQ(joined.calls, std::vector<std::string>{"brew_tea"});
        EXPECT_EQ(joined.finish_reason, most == 64 ? "tool_calls" : "length");
        if (most == 64) {
            const json::object expected = {{"kind", "darjeeling"}, {"cups", 3}};
            EXPECT_EQ(parse_json(joined.arguments.at(0), "arguments"), expected);
        } else {
            EXPECT_THROW(parse_json(joined.arguments.at(0), "arguments"), Error) << "a call that is cut is none";
        }
    }
    json::object none = {
        {"messages", user_says(question)}, {"tools", tea_tools()}, {"tool_choice", "none"}, {"temperature", 0}};
    EXPECT_EQ(post("/v1/chat/completions", none).body.find("tool_calls"), std::string::npos);
}

TEST_F(ServerAnswers, several_answers_are_the_engines_answers) {
    Request direct = chat("Name a colour.", 12);
    direct.n = 3;
    direct.sampling.temperature = 1.2;
    direct.sampling.seed = 4;
    Listener listener;
    engine->submit(direct, listener.sink(0, 3));
    const json::object body = {{"messages", user_says("Name a colour.")},
                               {"max_tokens", 12},
                               {"n", 3},
                               {"temperature", 1.2},
                               {"top_k", 0},
                               {"seed", 4},
                               {"logprobs", true},
                               {"top_logprobs", 2}};
    const json::object whole = post("/v1/chat/completions", body).object();
    json::object streamed_body = body;
    streamed_body["stream"] = true;
    const std::string streamed = post("/v1/chat/completions", streamed_body).body;
    for (int a = 0; a < 3; ++a) {
        const Heard expected = listener.answer(0, a);
        const json::value& choice = whole.at("choices").as_array().at(static_cast<size_t>(a));
        EXPECT_EQ(choice.at("message").at("content").as_string(), expected.text);
        EXPECT_EQ(join(streamed, a).text, expected.text);
        const json::array& content = choice.at("logprobs").at("content").as_array();
        ASSERT_EQ(content.size(), expected.tokens.size());
        std::string bytes;
        for (const json::value& token : content) {
            EXPECT_EQ(token.at("top_logprobs").as_array().size(), 2u);
            for (const json::value& byte : token.at("bytes").as_array())
                bytes += static_cast<char>(byte.to_number<int>());
        }
        EXPECT_EQ(bytes, engine->tokenizer()->decode(expected.tokens));
        size_t entries = 0;  // of the stream
        for (const json::object& event : events_of(streamed))
            for (const json::value& c : event.at("choices").as_array())
                if (c.at("index") == a && c.at("logprobs").is_object())
                    entries += c.at("logprobs").at("content").as_array().size();
        EXPECT_EQ(entries, expected.tokens.size());
    }
}

TEST_F(ServerAnswers, text_completions_are_the_engines_from_text_and_from_ids) {
    const std::string prompt = "def add(a, b):\n";
    const std::vector<int32_t> ids = engine->tokenize(TextPrompt{prompt});
    Request direct = continuation(ids, 12);
    direct.sampling.ignore_eos = false;
    const Heard expected = ask(*engine, direct);
    const json::object base = {{"temperature", 0}, {"max_tokens", 12}};
    json::object body = base;
    body["prompt"] = json::array{prompt, json::value_from(ids)};
    body["n"] = 2;
    body["echo"] = true;
    const json::object whole = post("/v1/completions", body).object();
    ASSERT_EQ(whole.at("choices").as_array().size(), 4u);
    for (size_t i = 0; i < 4; ++i) {
        const json::value& choice = whole.at("choices").as_array()[i];
        EXPECT_EQ(choice.at("index").to_number<size_t>(), i);
        const std::string echoed = i < 2 ? prompt : engine->tokenizer()->decode(ids);
        EXPECT_EQ(choice.at("text").as_string(), echoed + expected.text);
    }
    EXPECT_EQ(whole.at("usage").at("completion_tokens").to_number<int64_t>(), 4 * expected.done->usage.completion);
    json::object streamed = base;
    streamed["prompt"] = prompt;
    streamed["stream"] = true;
    streamed["logprobs"] = 1;
    std::string text;
    size_t tokens = 0;
    bool done = false;
    for (const json::object& event : events_of(post("/v1/completions", streamed).body, &done)) {
        const json::value& choice = event.at("choices").as_array().at(0);
        text += std::string(choice.at("text").as_string());
        tokens += choice.at("logprobs").at("tokens").as_array().size();
    }
    EXPECT_TRUE(done);
    EXPECT_EQ(text, expected.text);
    EXPECT_EQ(tokens, expected.tokens.size());
}

TEST_F(ServerAnswers, an_echoed_prompt_has_the_engines_probabilities) {
    const std::vector<int32_t> ids = engine->tokenize(TextPrompt{"def add(a, b):\n    return a"});
    Request direct = continuation(ids, 2);
    direct.prompt_logprobs = true;
    direct.sampling.logprobs = 1;
    const Heard expected = ask(*engine, direct);
    for (const int64_t most : {0, 2}) {
        const json::object body = {{"prompt", json::value_from(ids)},
                                   {"max_tokens", most},
                                   {"temperature", 0},
                                   {"logprobs", 1},
                                   {"echo", true},
                                   {"ignore_eos", true}};
        const json::object reply = post("/v1/completions", body).object();
        const json::object& choice = reply.at("choices").at(0).as_object();
        const std::string echoed = engine->tokenizer()->decode(ids);
        EXPECT_EQ(choice.at("text").as_string(), most == 0 ? echoed : echoed + expected.text);
        const json::array& values = choice.at("logprobs").at("token_logprobs").as_array();
        ASSERT_EQ(values.size(), ids.size() + static_cast<size_t>(most));
        EXPECT_TRUE(values[0].is_null());
        for (size_t i = 1; i < ids.size(); ++i)
            EXPECT_EQ(static_cast<float>(values[i].as_double()), expected.scored[i].logprob);
        std::string spelled;
        for (size_t i = 0; i < values.size(); ++i) {
            EXPECT_EQ(choice.at("logprobs").at("text_offset").at(i).to_number<int64_t>(),
                      std::count_if(spelled.begin(), spelled.end(), [](char c) { return (c & 0xC0) != 0x80; }))
                << "in characters";
            spelled += std::string(choice.at("logprobs").at("tokens").at(i).as_string());
        }
        EXPECT_EQ(spelled, choice.at("text").as_string());
        EXPECT_EQ(reply.at("usage").at("completion_tokens").to_number<int64_t>(), most);
    }
}

TEST_F(ServerAnswers, a_streamed_echo_says_what_a_whole_one_says) {
    const std::string text = "def add(a, b):\n    return \"gr\u00fc\u00df\" + a";
    for (const int64_t most : {0, 3})
        for (const int64_t n : {1, 2}) {
            json::object body = {{"prompt", {text, "x ="}},
                                 {"max_tokens", most},
                                 {"n", n},
                                 {"temperature", 1},
                                 {"seed", 5},
                                 {"logprobs", 2},
                                 {"echo", true},
                                 {"ignore_eos", true}};
            const json::array whole = post("/v1/completions", body).object().at("choices").as_array();
            body["stream"] = true;
            bool done = false;
            std::map<int64_t, json::object> joined;
            for (const json::object& event : events_of(post("/v1/completions", body).body, &done))
                for (const json::value& choice : event.at("choices").as_array()) {
                    const json::object& piece = choice.as_object();
                    const auto [at, first] = joined.try_emplace(piece.at("index").to_number<int64_t>(), piece);
                    if (first) continue;
                    json::object& so_far = at->second;
                    so_far["text"] =
                        std::string(so_far["text"].as_string()) + std::string(piece.at("text").as_string());
                    so_far["finish_reason"] = piece.at("finish_reason");
                    for (auto& [name, list] : so_far["logprobs"].as_object())
                        for (const json::value& value : piece.at("logprobs").at(name).as_array())
                            list.as_array().push_back(value);
                }
            EXPECT_TRUE(done);
            ASSERT_EQ(joined.size(), whole.size());
            for (size_t i = 0; i < whole.size(); ++i)
                EXPECT_EQ(json::value(joined.at(static_cast<int64_t>(i))), whole[i]) << most << " tokens, n = " << n;
        }
}

TEST_F(ServerAnswers, thinking_stops_at_its_budget_in_every_dialect) {
    const auto thought = [&](const std::string& path, json::object body) {
        body["temperature"] = 0;
        const Answer answer = post(path, body);
        EXPECT_EQ(answer.status, 200) << answer.body;
        return answer.object();
    };
    const std::string question = "What is 12 plus 30?";
    json::object body = {{"messages", user_says(question)}, {"chat_template_kwargs", {{"enable_thinking", true}}}};
    const auto tokens = [&](const json::object& b) {
        return thought("/v1/chat/completions", b)
            .at("usage")
            .at("completion_tokens_details")
            .at("reasoning_tokens")
            .to_number<int64_t>();
    };
    const int64_t all = tokens(body);
    ASSERT_GT(all, 4);
    body["thinking_budget"] = 4;
    EXPECT_EQ(tokens(body), 4);
    body["reasoning_effort"] = "high";  // the number is more exact
    EXPECT_EQ(tokens(body), 4);
    body.erase("thinking_budget");
    EXPECT_EQ(tokens(body), all);
    const json::object message = thought("/v1/messages", {{"messages", user_says(question)},
                                                          {"max_tokens", 64},
                                                          {"thinking", {{"type", "enabled"}, {"budget_tokens", 4}}}});
    const json::object whole = thought(
        "/v1/messages", {{"messages", user_says(question)}, {"max_tokens", 64}, {"thinking", {{"type", "adaptive"}}}});
    EXPECT_LT(message.at("content").at(0).at("thinking").as_string().size(),
              whole.at("content").at(0).at("thinking").as_string().size());
    EXPECT_EQ(message.at("content").at(1).at("type").as_string(), "text");
    body["reasoning_effort"] = "plenty";
    EXPECT_EQ(post("/v1/chat/completions", body).param(), "reasoning_effort");
}

TEST_F(ServerAnswers, twenty_clients_at_once_get_what_each_gets_alone) {
    constexpr int kClients = 20;
    std::vector<std::string> alone(kClients), together(kClients);
    const auto body = [](int i) {
        return json::object{{"messages", user_says(fmt::format("What is {} plus {}?", i, 3 * i))},
                            {"max_tokens", 24},
                            {"seed", i},
                            {"temperature", 1},
                            {"stream", true}};
    };
    for (int i = 0; i < kClients; ++i)
        alone[static_cast<size_t>(i)] = join(post("/v1/chat/completions", body(i)).body).text;
    std::vector<std::thread> threads;
    for (int i = 0; i < kClients; ++i)
        threads.emplace_back([&, i] {
            together[static_cast<size_t>(i)] = join(Client(port()).post("/chat/completions", body(i)).body).text;
        });
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(alone, together);
}

TEST_F(ServerAnswers, no_two_tool_calls_have_the_same_id) {
    // Agents that keep results by id would hold the second call's result for a copy of the first's.
    start();
    const json::array question = user_says("Please brew tea: kind darjeeling, cups 3.");
    json::array flat;
    for (const json::value& tool : tea_tools()) {
        flat.push_back(tool.at("function"));
        flat.back().as_object()["type"] = "function";
    }
    json::array schemas;
    for (const json::value& tool : tea_tools())
        schemas.push_back(
            {{"name", tool.at("function").at("name")}, {"input_schema", tool.at("function").at("parameters")}});
    std::set<std::string> seen;
    for (int i = 0; i < 2; ++i) {
        const json::object chat =
            post("/v1/chat/completions",
                 {{"messages", question}, {"tools", tea_tools()}, {"max_tokens", 64}, {"temperature", 0}})
                .object();
        seen.emplace(chat.at("choices").at(0).at("message").at("tool_calls").at(0).at("id").as_string());
        const json::object message =
            post("/v1/messages", {{"messages", question}, {"tools", schemas}, {"max_tokens", 64}, {"temperature", 0}})
                .object();
        seen.emplace(message.at("content").as_array().back().at("id").as_string());
        const json::object response =
            post("/v1/responses", {{"input", question}, {"tools", flat}, {"max_output_tokens", 64}, {"temperature", 0}})
                .object();
        seen.emplace(response.at("output").as_array().back().at("call_id").as_string());
    }
    EXPECT_EQ(seen.size(), 6u);
}

TEST_F(ServerAnswers, history_is_understood_as_clients_write_it) {
    const auto rendered = [&](const json::object& body) {
        const Answer answer = post("/apply-template", body);
        EXPECT_EQ(answer.status, 200) << answer.body;
        return std::string(answer.object().at("prompt").as_string());
    };
    const auto with = [](json::object assistant) {
        assistant["role"] = "assistant";
        json::array messages = user_says("Hi");
        messages.push_back(std::move(assistant));
        messages.push_back({{"role", "user"}, {"content", "Go on"}});
        return json::object{{"messages", messages}};
    };
    const std::string plain = rendered(with({{"content", "Hello"}, {"reasoning", "greet"}}));
    EXPECT_NE(plain.find("greet"), std::string::npos);
    EXPECT_EQ(plain, rendered(with({{"content", "Hello"}, {"reasoning_content", "greet"}})));
    const json::array parts = {{{"type", "text"}, {"text", "Hello"}, {"cache_control", {{"type", "ephemeral"}}}}};
    EXPECT_EQ(plain, rendered(with({{"content", parts}, {"reasoning", "greet"}})));
    const json::object function = {{"name", "brew_tea"}, {"arguments", R"({"kind": "dar)"}};
    const json::array calls = {{{"id", "call_1"}, {"type", "function"}, {"function", function}}};
    EXPECT_NE(rendered(with({{"content", nullptr}, {"tool_calls", calls}})).find(R"({"kind": "dar)"),
              std::string::npos);
    json::object tools = with({{"content", "Hello"}});
    const std::string without = rendered(tools);
    tools["tools"] = {{{"type", "web_search"}}, {{"type", "namespace"}, {"name", "x"}}};
    EXPECT_EQ(rendered(tools), without) << "tools that are no functions are left out";
}

TEST_F(ServerAnswers, facts_about_model_and_tokens) {
    const json::object models = get("/v1/models").object();
    EXPECT_EQ(models.at("data").as_array().at(0).at("id").as_string(), "laguna-demo");
    EXPECT_EQ(models.at("data").as_array().at(0).at("context_length").to_number<int64_t>(), 1024);
    EXPECT_EQ(get("/v1/models/laguna-demo").status, 200);
    EXPECT_EQ(get("/v1/models/other").status, 404);
    EXPECT_EQ(get("/v1/models/laguna%2Ddemo").status, 200);
    EXPECT_NE(get("/v1/models/a%2fb%20%c3%a9%").body.find("'a/b \xC3\xA9%'"), std::string::npos);
    EXPECT_NE(get("/v1/models/%ff").body.find("'%ff'"), std::string::npos) << "no text";
    EXPECT_EQ(get("/props").object().at("context_length").to_number<int64_t>(), 1024);
    const json::object tokens = post("/tokenize", {{"content", "naïve <think>"}}).object();
    EXPECT_EQ(post("/detokenize", {{"tokens", tokens.at("tokens")}}).object().at("content").as_string(),
              "naïve <think>");
    Request direct = chat("Hi");
    EXPECT_EQ(post("/tokenize", {{"messages", user_says("Hi")}}).object().at("tokens"),
              json::value_from(engine->tokenize(direct.prompt)));
    EXPECT_EQ(post("/v1/completions", {{"prompt", "x"}, {"max_tokens", 3}, {"ignore_eos", true}}).status, 200);
    EXPECT_TRUE(becomes([&] { return engine->stats().answer_tokens == 3; }));
    const std::string page = get("/metrics").body;
    for (const char* line :
         {"riptide_ready 1\n", "riptide_answer_tokens_total 3\n",
          "riptide_http_replies_total{route=\"/v1/completions\",status=\"200\"} 1\n",
          "riptide_time_to_first_token_seconds_count 1\n", "riptide_answers_total{reason=\"length\"} 1\n"})
        EXPECT_NE(page.find(line), std::string::npos) << line << page;
}

}  // namespace
}  // namespace riptide::testing
