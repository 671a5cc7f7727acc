// Ollama's API: the same answers in lines of JSON, options in its names, and routes of which it has more.
#include "base/file.h"
#include "base/json.h"
#include "tests/server/http_client.h"

namespace riptide::testing {
namespace {

json::array lines_of(const std::string& body) {
    json::array out;
    EXPECT_TRUE(body.ends_with('\n'));
    for (size_t at = 0, end = 0; (end = body.find('\n', at)) != std::string::npos; at = end + 1)
        out.push_back(parse_json(body.substr(at, end - at), "a line"));
    return out;
}

void append_text(json::object& whole, const json::object& part, const char* key) {
    const json::value* more = part.if_contains(key);
    if (more == nullptr) return;
    json::value& text = whole[key];
    text = (text.is_string() ? std::string(text.as_string()) : "") + std::string(more->as_string());
}

void append_list(json::object& whole, const json::object& part, const char* key) {
    const json::value* more = part.if_contains(key);
    if (more == nullptr) return;
    json::value& list = whole[key];
    if (!list.is_array()) list = json::array();
    for (const json::value& each : more->as_array()) list.as_array().push_back(each);
}

/// What a reader of the stream puts together.
json::object joined_lines(const std::string& body) {
    const json::array lines = lines_of(body);
    json::object whole, message;
    for (size_t i = 0; i < lines.size(); ++i) {
        const json::object& line = lines[i].as_object();
        EXPECT_EQ(line.at("done").as_bool(), i + 1 == lines.size()) << "the last line is done, and no other";
        for (const auto& [key, value] : line)
            if (key != "message" && key != "response" && key != "thinking" && key != "logprobs") whole[key] = value;
        append_text(whole, line, "response");
        append_text(whole, line, "thinking");
        append_list(whole, line, "logprobs");
        if (const json::value* more = line.if_contains("message")) {
            message["role"] = more->at("role");
            append_text(message, more->as_object(), "content");
            append_text(message, more->as_object(), "thinking");
            append_list(message, more->as_object(), "tool_calls");
        }
    }
    if (!message.empty()) whole["message"] = message;
    return whole;
}

json::array brewing_tools() {
    return parse_json(read_file(source_dir() + "/examples/tools.json", 1 << 20), "tools").as_array();
}

class ServerOllama : public ServerTest {
  protected:
    void SetUp() override { start(); }

    /// The stream, which is the default, says what the whole reply says.
    json::object both_ways(const std::string& path, json::object body) {
        const Answer streamed = post(path, body);
        EXPECT_EQ(streamed.status, 200) << streamed.body;
        EXPECT_EQ(streamed.headers.at("Content-Type"), "application/x-ndjson");
        body["stream"] = false;
        const Answer whole = post(path, body);
        EXPECT_EQ(whole.status, 200) << whole.body;
        EXPECT_EQ(whole.headers.at("Content-Type"), "application/json");
        json::object one = joined_lines(streamed.body), other = whole.object();
        for (json::object* each : {&one, &other})
            for (const char* key : {"created_at", "total_duration", "prompt_eval_duration", "eval_duration"})
                EXPECT_TRUE(each->erase(key) == 1 || each->at("done_reason") == "load") << key;
        EXPECT_EQ(json::value(one), json::value(other));
        return one;
    }

    std::string refusal(const std::string& path, const json::object& body, int status = 400) {
        const Answer answer = post(path, body);
        EXPECT_EQ(answer.status, status) << answer.body;
        const json::object reply = answer.object();
        const json::value* error = reply.if_contains("error");
        return error != nullptr && error->is_string() ? std::string(error->as_string()) : answer.body;
    }
};

TEST_F(ServerOllama, a_chat_is_what_the_engine_says) {
    Request direct = chat("What is 12 plus 30?");
    std::get<ChatPrompt>(direct.prompt).options.enable_thinking = true;
    const Heard expected = ask(*engine, direct);
    const json::object out = both_ways("/api/chat", {{"model", "any"},
                                                     {"messages", user_says("What is 12 plus 30?")},
                                                     {"think", true},
                                                     {"options", {{"num_predict", 64}, {"temperature", 0}}}});
    EXPECT_EQ(out.at("message").at("content").as_string(), expected.text);
    EXPECT_EQ(out.at("message").at("thinking").as_string(), expected.reasoning);
    EXPECT_EQ(out.at("done_reason").as_string(), "stop");
    EXPECT_EQ(out.at("eval_count").to_number<int64_t>(), expected.done->usage.completion);
    EXPECT_EQ(out.at("prompt_eval_count").to_number<int64_t>(), expected.done->usage.prompt);
}

TEST_F(ServerOllama, a_tool_call_comes_whole_and_its_result_comes_back) {
    json::object body = {{"messages", user_says("Please brew tea: kind darjeeling, cups 3.")},
                         {"tools", brewing_tools()},
                         {"options", {{"num_predict", 64}, {"temperature", 0}}}};
    const json::object out = both_ways("/api/chat", body);
    const json::object function = {{"name", "brew_tea"}, {"arguments", {{"kind", "darjeeling"}, {"cups", 3}}}};
    const json::array calls = {json::object{{"function", function}}};
    ASSERT_EQ(out.at("message").at("tool_calls"), json::value(calls));

    // The history in Ollama's words is the prompt that it is in OpenAI's.
    json::array& messages = body["messages"].as_array();
    messages.push_back(out.at("message"));
    messages.push_back({{"role", "tool"}, {"tool_name", "brew_tea"}, {"content", "Done."}});
    body["stream"] = false;
    const json::object second = post("/api/chat", body).object();
    json::array same = user_says("Please brew tea: kind darjeeling, cups 3.");
    const json::object call = {
        {"name", "brew_tea"}, {"arguments", json::serialize(function.at("arguments"))}};
    const json::array sent = {json::object{{"id", "x"}, {"type", "function"}, {"function", call}}};
    same.push_back({{"role", "assistant"}, {"content", ""}, {"tool_calls", sent}});
    same.push_back({{"role", "tool"}, {"tool_call_id", "x"}, {"content", "Done."}});
    const json::object tokens = post("/tokenize", {{"messages", same}, {"tools", brewing_tools()}}).object();
    EXPECT_EQ(second.at("prompt_eval_count"), tokens.at("count"));
}

TEST_F(ServerOllama, a_call_that_is_cut_is_left_out) {
    json::object body = {{"messages", user_says("Please brew tea: kind darjeeling, cups 3.")},
                         {"tools", brewing_tools()}};
    bool cut = false;
    for (int most = 1; most < 24; ++most) {
        body["options"] = {{"num_predict", most}, {"temperature", 0}};
        const json::object out = both_ways("/api/chat", body);
        const bool called = out.at("message").as_object().contains("tool_calls");
        cut = cut || (!called && out.at("done_reason") == "length");
        EXPECT_TRUE(called || out.at("done_reason") != "stop");
    }
    EXPECT_TRUE(cut);
}

TEST_F(ServerOllama, a_form_is_kept) {
    const json::object schema = {{"type", "object"},
                                 {"properties", {{"age", {{"type", "integer"}, {"minimum", 0}, {"maximum", 99}}}}},
                                 {"required", {"age"}},
                                 {"additionalProperties", false}};
    const json::object options = {{"num_predict", 60}, {"temperature", 0}};
    const auto asked = [&](const json::value& format) {
        return json::object{{"messages", user_says("How old?")}, {"format", format}, {"options", options}};
    };
    const json::object out = both_ways("/api/chat", asked(schema));
    const json::object answer = parse_json(out.at("message").at("content").as_string(), "the answer").as_object();
    EXPECT_EQ(answer.size(), 1u);
    EXPECT_TRUE(answer.at("age").is_int64());
    EXPECT_TRUE(std::string(both_ways("/api/chat", asked("json")).at("message").at("content").as_string())
                    .starts_with("{"));
    (void)both_ways("/api/chat", asked(""));
    EXPECT_TRUE(refusal("/api/chat", asked("yaml")).starts_with("format:"));
    EXPECT_TRUE(refusal("/api/chat", asked({{"type", "unheard of"}})).starts_with("format"));
}

TEST_F(ServerOllama, generate_is_a_chat_or_the_raw_text) {
    const json::object options = {{"num_predict", 16}, {"temperature", 0}};
    json::array messages = {json::object{{"role", "system"}, {"content", "Be brief."}}};
    messages.push_back({{"role", "user"}, {"content", "Hi"}});
    const json::object chatted = both_ways("/api/chat", {{"messages", messages}, {"options", options}});
    const json::object generated =
        both_ways("/api/generate", {{"prompt", "Hi"}, {"system", "Be brief."}, {"options", options}});
    EXPECT_EQ(generated.at("response"), chatted.at("message").at("content"));
    EXPECT_EQ(generated.at("prompt_eval_count"), chatted.at("prompt_eval_count"));

    const json::object raw =
        both_ways("/api/generate", {{"prompt", "def add(a, b):"}, {"raw", true}, {"options", options}});
    const json::object completed =
        post("/v1/completions", {{"prompt", "def add(a, b):"}, {"max_tokens", 16}, {"temperature", 0}}).object();
    EXPECT_EQ(raw.at("response"), completed.at("choices").at(0).at("text"));
    EXPECT_EQ(raw.at("done_reason").as_string(), "length");
}

TEST_F(ServerOllama, logprobs_are_those_of_the_chat_api) {
    const json::object ollama = both_ways("/api/chat", {{"messages", user_says("Hi")},
                                                        {"logprobs", true},
                                                        {"top_logprobs", 2},
                                                        {"options", {{"num_predict", 8}, {"temperature", 0}}}});
    const json::object openai = post("/v1/chat/completions", {{"messages", user_says("Hi")},
                                                              {"logprobs", true},
                                                              {"top_logprobs", 2},
                                                              {"max_tokens", 8},
                                                              {"temperature", 0}})
                                    .object();
    EXPECT_EQ(ollama.at("logprobs"), openai.at("choices").at(0).at("logprobs").at("content"));
}

TEST_F(ServerOllama, an_answer_goes_on_with_the_assistants_last_message) {
    json::array messages = user_says("Say something.");
    messages.push_back({{"role", "assistant"}, {"content", "Well,"}});
    const json::object out =
        both_ways("/api/chat", {{"messages", messages}, {"options", {{"num_predict", 8}, {"temperature", 0}}}});
    const json::object same = post("/v1/chat/completions", {{"messages", messages},
                                                            {"continue_final_message", true},
                                                            {"max_tokens", 8},
                                                            {"temperature", 0}})
                                  .object();
    EXPECT_EQ(out.at("message").at("content"), same.at("choices").at(0).at("message").at("content"));
}

TEST_F(ServerOllama, without_a_prompt_the_model_is_loaded) {
    for (const auto& [path, body] : {std::pair<std::string, json::object>{"/api/chat", {{"keep_alive", "5m"}}},
                                     {"/api/chat", {{"messages", json::array()}}},
                                     {"/api/generate", {{"keep_alive", -1}}},
                                     {"/api/generate", {{"prompt", ""}}}}) {
        const json::object out = both_ways(path, body);
        EXPECT_EQ(out.at("done_reason").as_string(), "load") << path;
    }
    EXPECT_EQ(engine->stats().submitted, 0);
}

TEST_F(ServerOllama, options_are_obeyed_refused_by_name_or_say_nothing_of_the_answer) {
    const auto asked = [](const json::object& options) {
        json::object all = {{"num_predict", 12}, {"temperature", 0}};
        for (const auto& [key, value] : options) all[key] = value;
        return json::object{{"messages", user_says("Hi")}, {"stream", false}, {"options", all}};
    };
    const json::object plain = post("/api/chat", asked({})).object();
    const json::object loading = {{"num_ctx", 1 << 20}, {"num_gpu", 99},  {"num_thread", 4}, {"num_batch", 512},
                                  {"use_mmap", true},   {"num_keep", 24}, {"mirostat", 0},   {"tfs_z", 1.0},
                                  {"typical_p", 1},     {"seed", -1},     {"repeat_last_n", 64}};
    EXPECT_EQ(post("/api/chat", asked(loading)).object().at("message"), plain.at("message"));
    const json::object penalty = {{"repeat_penalty", 1.5}};
    const json::object off = {{"repeat_penalty", 1.5}, {"repeat_last_n", 0}};
    const json::object ours = post("/v1/chat/completions", {{"messages", user_says("Hi")},
                                                            {"max_tokens", 12},
                                                            {"temperature", 0},
                                                            {"repetition_penalty", 1.5}})
                                  .object();
    EXPECT_EQ(post("/api/chat", asked(penalty)).object().at("message").at("content"),
              ours.at("choices").at(0).at("message").at("content"));
    EXPECT_EQ(post("/api/chat", asked(off)).object().at("message"), plain.at("message"));

    const json::object draws = {{"temperature", 1.5}, {"seed", 7}};
    EXPECT_EQ(post("/api/chat", asked(draws)).object().at("message"),
              post("/api/chat", asked(draws)).object().at("message"));
    const std::string text(plain.at("message").at("content").as_string());
    ASSERT_GT(text.size(), 2u);
    const json::object stopped = post("/api/chat", asked({{"stop", json::array{text.substr(1, 1)}}})).object();
    EXPECT_EQ(stopped.at("message").at("content").as_string(), text.substr(0, text.find(text[1])));

    const std::pair<const char*, json::value> refused[] = {
        {"mirostat", 2},      {"tfs_z", 0.5},        {"typical_p", 0.7}, {"temperature", "warm"},
        {"num_predict", 0.5}, {"repeat_last_n", -2}, {"stop", {1}},      {"top_k", "all"}};
    for (const auto& [name, value] : refused)
        EXPECT_TRUE(refusal("/api/chat", asked({{name, value}})).starts_with(fmt::format("options.{}", name))) << name;
    EXPECT_TRUE(refusal("/api/chat", asked({{"repeat_penalty", 1.5}, {"repeat_last_n", 64}}))
                    .starts_with("options.repeat_last_n"));
}

TEST_F(ServerOllama, what_cannot_be_read_is_refused_in_its_words) {
    const auto message = [](json::object one) { return json::object{{"messages", json::array{std::move(one)}}}; };
    const std::tuple<const char*, json::object, const char*> bad[] = {
        {"/api/chat", {{"messages", "Hi"}}, "messages:"},
        {"/api/chat", {{"messages", {1}}}, "messages[0]:"},
        {"/api/chat", message({{"content", "Hi"}}), "messages[0].role:"},
        {"/api/chat", message({{"role", "king"}, {"content", "Hi"}}), "messages[0].role:"},
        {"/api/chat", message({{"role", "user"}, {"content", 1}}), "messages[0].content:"},
        {"/api/chat", message({{"role", "user"}, {"content", ""}, {"images", {"aGk="}}}), "messages[0].images:"},
        {"/api/chat", message({{"role", "assistant"}, {"tool_calls", {1}}}), "messages[0].tool_calls[0]:"},
        {"/api/chat", {{"think", "somewhat"}}, "think:"},
        {"/api/chat", {{"think", 1}}, "think:"},
        {"/api/chat", {{"top_logprobs", 2}}, "top_logprobs:"},
        {"/api/chat", {{"stream", "yes"}}, "stream:"},
        {"/api/generate", {{"prompt", "a"}, {"suffix", "b"}}, "suffix:"},
        {"/api/generate", {{"prompt", "a"}, {"template", "b"}}, "template:"},
        {"/api/generate", {{"prompt", "a"}, {"context", {1, 2}}}, "context:"},
        {"/api/generate", {{"prompt", "a"}, {"images", {"aGk="}}}, "images:"},
        {"/api/generate", {{"prompt", "a"}, {"raw", true}, {"system", "b"}}, "system:"},
        {"/api/generate", {{"prompt", "a"}, {"raw", true}, {"think", true}}, "think:"},
        {"/api/show", {{"model", 1}}, "model:"},
    };
    for (const auto& [path, body, words] : bad)
        EXPECT_TRUE(refusal(path, body).starts_with(words)) << words << " " << refusal(path, body);
    std::string words;
    for (int i = 0; i < 2000; ++i) words += "word ";
    EXPECT_NE(refusal("/api/chat", {{"messages", user_says(words)}}).find("maximum context"), std::string::npos);
    expect_alive();
}

TEST_F(ServerOllama, the_model_is_shown) {
    for (const char* path : {"/api/tags", "/api/ps"}) {
        const json::array models = get(path).object().at("models").as_array();
        ASSERT_EQ(models.size(), 1u);
        EXPECT_EQ(models[0].at("model").as_string(), "laguna-demo");
        EXPECT_EQ(models[0].at("details").at("families").at(0), models[0].at("details").at("family"));
    }
    const json::object shown = post("/api/show", {{"model", "laguna-demo:latest"}}).object();
    const std::string kind(shown.at("model_info").at("general.architecture").as_string());
    EXPECT_EQ(shown.at("model_info").at(kind + ".context_length").to_number<int64_t>(), engine->info().context_length);
    const json::array capabilities = {"completion", "tools", "thinking"};
    EXPECT_EQ(shown.at("capabilities"), json::value(capabilities));
    EXPECT_TRUE(get("/api/version").object().at("version").is_string());
    EXPECT_EQ(Client(port()).ask("HEAD", "/", "", "").status, 200);
}

TEST_F(ServerOllama, a_strict_server_knows_its_model_by_either_name) {
    server::ServerOptions options = server_options();
    options.strict_model = true;
    start(options);
    const json::object one = {{"num_predict", 1}};
    for (const auto& [name, status] : {std::pair{"laguna-demo", 200}, {"laguna-demo:latest", 200}, {"llama3", 404}})
        for (const char* path : {"/api/chat", "/api/generate", "/api/show"}) {
            const json::object body = {
                {"model", name}, {"messages", user_says("Hi")}, {"prompt", "Hi"}, {"options", one}};
            EXPECT_EQ(post(path, body).status, status) << path << " " << name;
        }
    EXPECT_NE(refusal("/api/chat", {{"model", "llama3"}}, 404).find("llama3"), std::string::npos);
}

TEST_F(ServerOllama, what_this_server_does_not_do_says_what_does) {
    EXPECT_NE(refusal("/api/pull", {{"model", "x"}}, 403).find("riptide pull"), std::string::npos);
    for (const char* path : {"/api/push", "/api/create", "/api/copy"})
        EXPECT_NE(refusal(path, {{"model", "x"}}, 403).find("riptide"), std::string::npos);
    const Answer removed = Client(port()).ask("DELETE", "/api/delete", R"({"model":"x"})");
    EXPECT_EQ(removed.status, 403);
    EXPECT_NE(removed.body.find("riptide rm"), std::string::npos);
}

TEST_F(ServerOllama, nobody_else_may_ask) {
    const std::string json_type = "Content-Type: application/json\r\n";
    const auto ask = [&](const char* method, const char* path, const std::string& headers) {
        const bool get = std::string_view(method) == "GET";
        const Answer answer = Client(port()).ask(method, path, get ? "" : R"({"prompt":"Hi"})", headers);
        EXPECT_TRUE(answer.status < 400 || answer.object().at("error").is_string()) << path << answer.body;
        return answer.status;
    };
    const std::pair<const char*, const char*> routes[] = {
        {"POST", "/api/chat"},  {"POST", "/api/generate"}, {"POST", "/api/show"}, {"GET", "/api/tags"},
        {"GET", "/api/ps"},     {"GET", "/api/version"},   {"POST", "/api/pull"}, {"DELETE", "/api/delete"},
        {"POST", "/api/embed"}, {"POST", "/api/create"}};
    for (const auto& [method, path] : routes) {
        EXPECT_EQ(ask(method, path, json_type + "Origin: https://evil.example\r\n"), 403) << path;
        EXPECT_EQ(ask(method, path, json_type + "Host: evil.example\r\n"), 403) << path;
        EXPECT_EQ(ask("PUT", path, json_type), 405) << path;
    }
    for (const char* path : {"/api/chat", "/api/generate", "/api/show"})
        EXPECT_EQ(ask("POST", path, "Content-Type: text/plain\r\n"), 415) << path;
    server::ServerOptions options = server_options();
    options.api_keys = {"secret"};
    start(options);
    for (const auto& [method, path] : routes) EXPECT_EQ(ask(method, path, json_type), 401) << path;
    EXPECT_EQ(ask("POST", "/api/chat", json_type + "Authorization: Bearer secret\r\n"), 200);
}

TEST_F(ServerOllama, a_stream_that_is_ended_says_so) {
    json::object body = {{"prompt", "x"}, {"raw", true}, {"options", {{"num_predict", 1500}, {"ignore_eos", true}}}};
    Client client(port());
    client.send("POST", "/api/generate", json::serialize(body));
    EXPECT_EQ(client.receive_header().status, 200);
    client.receive_until([](const std::string& text) { return text.find('\n') != std::string::npos; });
    const json::array live = get("/v1/requests").object().at("data").as_array();
    ASSERT_EQ(live.size(), 1u);
    const std::string id(live[0].at("id").as_string());
    EXPECT_EQ(Client(port()).ask("DELETE", "/v1/requests/" + id, "", "").status, 200);
    const json::array lines = lines_of(client.receive_rest().body);
    EXPECT_TRUE(lines.at(lines.size() - 1).at("error").is_string());
    for (const json::value& line : lines)
        EXPECT_TRUE(line.as_object().contains("error") || !line.at("done").as_bool()) << "no normal end";
}

}  // namespace
}  // namespace riptide::testing
