// OpenAI's Responses API: the same answers as items, in the order of events that clients insist on.
#include "base/file.h"
#include "base/json.h"
#include "tests/server/http_client.h"

namespace riptide::testing {
namespace {

/// Reads a stream as the OpenAI SDK does: what is filled must have been announced, numbers must rise, and the last
/// event must repeat what the deltas spelled. Returns the last event's response.
class EventReader {
  public:
    json::object read(const std::string& body) {
        for (size_t at = 0; at < body.size();) {
            const size_t line = body.find('\n', at), end = body.find("\n\n", at);
            if (end == std::string::npos) break;
            const std::string name = body.substr(at, line - at), data = body.substr(line + 1, end - line - 1);
            at = end + 2;
            EXPECT_TRUE(name.starts_with("event: ") && data.starts_with("data: ")) << name;
            take(name.substr(7), parse_json(data.substr(6), "an event").as_object());
        }
        EXPECT_TRUE(over_) << body;
        return last_;
    }
    std::vector<std::string> types;

  private:
    void take(const std::string& type, const json::object& event) {
        EXPECT_FALSE(over_) << "an event behind the last";
        EXPECT_EQ(event.at("type").as_string(), type);
        EXPECT_EQ(event.at("sequence_number").to_number<int64_t>(), next_number_++);
        EXPECT_EQ(types.empty(), type == "response.created");
        types.push_back(type);
        if (type == "response.created" || type == "response.in_progress") return;
        if (event.contains("response")) return end(type, event.at("response").as_object());
        const auto index = event.at("output_index").to_number<size_t>();
        if (type == "response.output_item.added") {
            EXPECT_EQ(index, items_.size()) << "an item before the one before it is done";
            EXPECT_FALSE(open_);
            item_ = event.at("item").as_object();
            EXPECT_EQ(item_.at("status").as_string(), "in_progress");
            open_ = true;
            return;
        }
        EXPECT_TRUE(open_ && index == items_.size()) << type;
        if (type == "response.output_item.done") return close(event.at("item").as_object());
        EXPECT_EQ(event.at("item_id"), item_.at("id"));
        fill(type, event);
    }
    void fill(const std::string& type, const json::object& event) {
        if (type == "response.content_part.added") return add_part("content", event.at("part"));
        if (type == "response.reasoning_summary_part.added") return add_part("summary", event.at("part"));
        const bool summary = type.starts_with("response.reasoning_summary");
        std::string& text = summary ? summary_ : text_;
        if (type.ends_with(".delta")) {
            if (item_.at("type") != "function_call") {
                EXPECT_EQ(item_.at(summary ? "summary" : "content").as_array().size(), 1u) << "a part not announced";
            }
            text += std::string(event.at("delta").as_string());
        } else if (type.ends_with("part.done")) {
            EXPECT_EQ(event.at("part").at("text").as_string(), text);
        } else if (type == "response.function_call_arguments.done") {
            EXPECT_EQ(event.at("arguments").as_string(), text);
        } else {
            EXPECT_TRUE(type.ends_with("text.done")) << type;
            EXPECT_EQ(event.at("text").as_string(), text);
        }
    }
    void add_part(const char* where, const json::value& part) {
        EXPECT_EQ(part.at("text").as_string(), "");
        item_[where].as_array().push_back(part);
    }
    void close(const json::object& item) {
        EXPECT_EQ(item.at("id"), item_.at("id"));
        if (item.at("type") == "function_call") {
            EXPECT_EQ(item.at("arguments").as_string(), text_);
        } else {
            EXPECT_EQ(item.at("content").at(0).at("text").as_string(), text_);
        }
        if (!summary_.empty()) {
            EXPECT_EQ(item.at("summary").at(0).at("text").as_string(), summary_);
        }
        items_.push_back(item);
        text_.clear();
        summary_.clear();
        open_ = false;
    }
    void end(const std::string& type, const json::object& response) {
        EXPECT_EQ(type, "response." + std::string(response.at("status").as_string()));
        EXPECT_EQ(response.at("output").as_array(), items_);
        over_ = true;
        last_ = response;
    }

    int64_t next_number_ = 0;
    bool over_ = false, open_ = false;
    json::object item_, last_;
    json::array items_;
    std::string text_, summary_;
};

class ServerResponses : public ServerTest {
  protected:
    void SetUp() override { start(); }

    json::object ask(const json::object& body) {
        const Answer answer = post("/v1/responses", body);
        EXPECT_EQ(answer.status, 200) << answer.body;
        return answer.status == 200 ? answer.object() : json::object();
    }
    json::object stream(json::object body) {
        body["stream"] = true;
        const Answer answer = post("/v1/responses", body);
        EXPECT_EQ(answer.status, 200) << answer.body;
        return EventReader().read(answer.body);
    }
    /// Streamed and whole, but for what is random or a matter of the cache.
    json::object both_ways(const json::object& body) {
        json::object whole = ask(body), streamed = stream(body);
        const json::object kept = whole;
        for (json::object* each : {&whole, &streamed}) {
            for (const char* key : {"id", "created_at"}) each->erase(key);
            each->at("usage").as_object().erase("input_tokens_details");
            for (json::value& item : each->at("output").as_array())
                for (const char* key : {"id", "call_id"}) item.as_object().erase(key);
        }
        EXPECT_EQ(json::value(whole), json::value(streamed));
        return kept;
    }
    static std::string text_of(const json::object& response) {
        std::string out;
        for (const json::value& item : response.at("output").as_array())
            if (item.at("type") == "message") out += std::string(item.at("content").at(0).at("text").as_string());
        return out;
    }
    /// brew_tea as this API writes it.
    static json::array tea_tools() {
        json::array out;
        const std::string text = read_file(source_dir() + "/examples/tools.json", 1 << 20);
        const json::value tools = parse_json(text, "tools.json");
        for (const json::value& tool : tools.as_array()) {
            json::object flat = tool.at("function").as_object();
            flat["type"] = "function";
            out.push_back(flat);
        }
        return out;
    }
};

const std::string kSum = "What is 12 plus 30?";

TEST_F(ServerResponses, reasoning_and_text_are_items_of_what_the_engine_says) {
    Request direct = chat(kSum);
    std::get<ChatPrompt>(direct.prompt).options.enable_thinking = true;
    const Heard expected = testing::ask(*engine, direct);
    ASSERT_FALSE(expected.reasoning.empty());
    json::object body = {{"input", kSum},
                         {"temperature", 0},
                         {"max_output_tokens", 64},
                         {"reasoning", {{"effort", "high"}, {"summary", "auto"}}},
                         {"include", {"reasoning.encrypted_content"}}};
    const json::object out = both_ways(body);
    ASSERT_EQ(out.at("output").as_array().size(), 2u);
    const json::object& thought = out.at("output").at(0).as_object();
    EXPECT_EQ(thought.at("type").as_string(), "reasoning");
    EXPECT_EQ(thought.at("content").at(0).at("text").as_string(), expected.reasoning);
    EXPECT_EQ(thought.at("summary").at(0).at("text").as_string(), expected.reasoning);
    EXPECT_EQ(text_of(out), expected.text);
    const json::object& usage = out.at("usage").as_object();
    EXPECT_EQ(usage.at("input_tokens").to_number<int64_t>(), expected.done->usage.prompt);
    EXPECT_EQ(usage.at("output_tokens").to_number<int64_t>(), expected.done->usage.completion);
    EXPECT_GT(usage.at("input_tokens_details").at("cached_tokens").to_number<int64_t>(), 0);
    const auto thinking = usage.at("output_tokens_details").at("reasoning_tokens").to_number<int64_t>();
    EXPECT_EQ(thinking, expected.done->usage.reasoning);
    EXPECT_GT(thinking, 0);
    body.erase("include");
    body["reasoning"] = {{"effort", "high"}};
    const json::object plain = both_ways(body);
    EXPECT_TRUE(plain.at("output").at(0).at("summary").as_array().empty());
    EXPECT_FALSE(plain.at("output").at(0).as_object().contains("encrypted_content"));
    body["reasoning"] = {{"effort", "none"}};
    EXPECT_EQ(both_ways(body).at("output").as_array().size(), 1u) << "no thinking";
}

TEST_F(ServerResponses, an_answer_that_is_cut_is_incomplete) {
    const json::object out =
        both_ways({{"input", kSum}, {"temperature", 0}, {"max_output_tokens", 2}, {"reasoning", {{"effort", "none"}}}});
    EXPECT_EQ(out.at("status").as_string(), "incomplete");
    EXPECT_EQ(out.at("incomplete_details").at("reason").as_string(), "max_output_tokens");
    EXPECT_EQ(out.at("output").at(0).at("status").as_string(), "incomplete");
}

TEST_F(ServerResponses, a_tool_is_called_and_its_result_is_read) {
    json::array tools = tea_tools();
    tools.push_back(json::object{{"type", "web_search"}});
    json::object body = {{"input", "Please brew tea: kind darjeeling, cups 3."},
                         {"tools", tools},
                         {"temperature", 0},
                         {"max_output_tokens", 64},
                         {"reasoning", {{"effort", "none"}}}};
    const json::object out = both_ways(body);
    EXPECT_EQ(out.at("status").as_string(), "completed");
    const json::object call = out.at("output").as_array().back().as_object();
    EXPECT_EQ(call.at("type").as_string(), "function_call");
    EXPECT_EQ(call.at("name").as_string(), "brew_tea");
    const json::object arguments = {{"kind", "darjeeling"}, {"cups", 3}};
    EXPECT_EQ(parse_json(call.at("arguments").as_string(), "arguments"), arguments);
    body["tools"] = json::array{json::object{{"type", "namespace"}, {"name", "kitchen"}, {"tools", tea_tools()}}};
    EXPECT_EQ(both_ways(body).at("output").as_array().back().at("namespace").as_string(), "kitchen");
    for (json::array second :
         {tea_tools(), json::array{{{"type", "namespace"}, {"name", "x"}, {"tools", tea_tools()}}}}) {
        json::object clash = body;
        for (json::value& tool : second) clash["tools"].as_array().push_back(tool);
        const Answer refused = post("/v1/responses", clash);
        EXPECT_EQ(refused.status, 400);
        EXPECT_NE(refused.body.find("two are called 'point_telescope'"), std::string::npos) << refused.body;
    }
    body["max_output_tokens"] = 18;
    const json::object cut = both_ways(body);
    EXPECT_EQ(cut.at("status").as_string(), "incomplete");
    EXPECT_EQ(cut.at("output").as_array().back().at("status").as_string(), "incomplete");
    EXPECT_THROW(parse_json(cut.at("output").as_array().back().at("arguments").as_string(), "arguments"), Error);
}

TEST_F(ServerResponses, the_next_turn_finds_the_last_one_in_the_cache_however_it_is_sent) {
    const json::object base = {{"tools", tea_tools()}, {"temperature", 0}, {"max_output_tokens", 64}};
    json::object first = base;
    first["input"] = user_says("Please brew tea: kind darjeeling, cups 3.");
    const json::object answer = ask(first);
    const json::array& output = answer.at("output").as_array();
    const json::value call_id = output.back().at("call_id");
    const json::object result = {{"type", "function_call_output"}, {"call_id", call_id}, {"output", "ready"}};

    json::array whole = user_says("Please brew tea: kind darjeeling, cups 3."), by_reference = whole;
    for (const json::value& item : output) {
        whole.push_back(item);
        by_reference.push_back({{"type", "item_reference"}, {"id", item.at("id")}});
    }
    whole.push_back(result);
    by_reference.push_back(result);
    std::vector<json::object> bodies(3, base);
    bodies[0]["input"] = whole;
    bodies[1]["input"] = by_reference;
    bodies[2]["input"] = json::array{result};
    bodies[2]["previous_response_id"] = answer.at("id");
    std::vector<std::string> texts;
    for (const json::object& body : bodies) {
        const json::object next = ask(body);
        texts.push_back(text_of(next));
        const json::object& usage = next.at("usage").as_object();
        const auto before = answer.at("usage").at("total_tokens").to_number<int64_t>();
        EXPECT_GE(usage.at("input_tokens_details").at("cached_tokens").to_number<int64_t>(), before - 2);
        EXPECT_GT(usage.at("input_tokens").to_number<int64_t>(), before);
    }
    EXPECT_EQ(texts[0], texts[1]);
    EXPECT_EQ(texts[0], texts[2]);
    bodies[2]["store"] = false;
    const json::object unstored = ask(bodies[2]);
    EXPECT_EQ(unstored.at("store"), false);
    bodies[2]["previous_response_id"] = unstored.at("id");
    const Answer refused = post("/v1/responses", bodies[2]);
    EXPECT_EQ(refused.status, 400);
    EXPECT_EQ(refused.object().at("error").at("code").as_string(), "previous_response_not_found");
}

TEST_F(ServerResponses, a_bad_field_is_counted_in_the_requests_own_input) {
    json::object body = {{"input", {{{"role", "user"}, {"content", "Hi"}}, {{"role", "user"}, {"content", "there"}}}},
                         {"max_output_tokens", 2}};
    body["previous_response_id"] = ask(body).at("id");
    const json::object robot = {{"role", "robot"}, {"content", "x"}};
    const json::object image = {{"role", "user"}, {"content", {{{"type", "input_image"}}}}};
    const json::object bare = {{"role", "user"}};
    const json::object user = {{"role", "user"}, {"content", "a"}};
    const std::vector<std::pair<json::array, std::string>> cases = {
        {{robot}, "input[0].role"},
        {{user, robot}, "input[1].role"},
        {{user, image}, "input[1].content[0].type"},
        {{user, bare}, "input[1].content"},
        {{user, user, 5}, "input[2]"},
    };
    for (const auto& [input, param] : cases) {
        body["input"] = input;
        const Answer answer = post("/v1/responses", body);
        EXPECT_EQ(answer.status, 400) << answer.body;
        if (answer.status != 400) continue;
        EXPECT_EQ(answer.param(), param) << answer.body;
        const std::string message(answer.object().at("error").at("message").as_string());
        EXPECT_TRUE(message.starts_with(param + ": ")) << message;
    }
    expect_alive();
}

TEST_F(ServerResponses, what_another_key_has_stored_is_not_found) {
    server::ServerOptions options = server_options();
    options.api_keys = {"first-key", "second-key"};
    start(options);
    const auto with = [&](const char* key, const json::object& body) {
        return Client(port()).ask("POST", "/v1/responses", json::serialize(body),
                                  fmt::format("Content-Type: application/json\r\nx-api-key: {}\r\n", key));
    };
    const Answer first = with("first-key", {{"input", "Hi"}, {"max_output_tokens", 4}});
    ASSERT_EQ(first.status, 200);
    const json::object next = {
        {"input", "Go on"}, {"max_output_tokens", 4}, {"previous_response_id", first.object().at("id")}};
    EXPECT_EQ(with("second-key", next).status, 400);
    EXPECT_EQ(with("first-key", next).status, 200);
}

TEST_F(ServerResponses, reasoning_comes_back_under_every_name) {
    const auto prompt_size = [&](const json::value& reasoning) {
        json::array input = user_says(kSum);
        if (!reasoning.is_null()) input.push_back(reasoning);
        const json::object said = {{"type", "output_text"}, {"text", "42"}, {"annotations", json::array()}};
        input.push_back({{"type", "message"}, {"role", "assistant"}, {"content", json::array{said}}});
        input.push_back({{"role", "user"}, {"content", "Sure?"}});
        return ask({{"input", input}, {"max_output_tokens", 1}}).at("usage").at("input_tokens").to_number<int64_t>();
    };
    const std::string text = "twelve and thirty";
    const json::array summary = {{{"type", "summary_text"}, {"text", text}}};
    const json::array content = {{{"type", "reasoning_text"}, {"text", text}}};
    const int64_t size =
        prompt_size(json::object{{"type", "reasoning"}, {"summary", json::array()}, {"content", content}});
    EXPECT_GT(size, prompt_size(nullptr));
    EXPECT_EQ(size, prompt_size(json::object{{"type", "reasoning"}, {"summary", summary}}));
    EXPECT_EQ(size, prompt_size(json::object{
                        {"type", "reasoning"}, {"summary", json::array()}, {"encrypted_content", "riptide:" + text}}));
    EXPECT_EQ(prompt_size(nullptr), prompt_size(json::object{{"type", "web_search_call"}, {"id", "ws_1"}}));
}

TEST_F(ServerResponses, a_bad_field_is_named_as_the_client_wrote_it) {
    const json::object user = {{"role", "user"}, {"content", "a"}}, bare = {{"type", "input_text"}};
    const json::object web = {{"type", "web_search"}};
    const auto said = [](const char* text) {
        return json::object{{"type", "reasoning"}, {"content", {{{"type", "reasoning_text"}, {"text", text}}}}};
    };
    const std::vector<std::pair<json::object, std::string>> cases = {
        {{}, "input"},
        {{{"input", json::array()}}, "input"},
        {{{"input", 5}}, "input"},
        {{{"input", {{{"type", "web_search_call"}}}}}, "input"},
        {{{"input", json::array{5}}}, "input[0]"},
        {{{"input", {{{"role", "user"}}}}}, "input[0].content"},
        {{{"input", {{{"role", "user"}, {"content", "a"}}, {{"role", "robot"}, {"content", "x"}}}}}, "input[1].role"},
        {{{"input", {{{"role", "user"}, {"content", {{{"type", "input_image"}}}}}}}}, "input[0].content[0].type"},
        {{{"input", {{{"type", "item_reference"}, {"id", "msg_1"}}}}}, "input[0].id"},
        {{{"input", {{{"type", "function_call_output"}, {"call_id", "x"}}}}}, "input[0].output"},
        {{{"input", {{{"type", "function_call"}, {"call_id", "x"}, {"arguments", "{}"}}}}}, "input[0].name"},
        {{{"input", {user, {{"type", "function_call"}, {"name", ""}}}}}, "input[1].name"},
        {{{"input", {said("thinks"), {{"role", "assistant"}, {"content", {bare}}}}}}, "input[1].content[0].text"},
        {{{"input", {user, {{"type", "function_call_output"}, {"output", {bare}}}}}}, "input[1].output[0].text"},
        {{{"instructions", "Be brief."}, {"input", {user, {{"role", "user"}, {"content", 5}}}}}, "input[1].content"},
        {{{"input", "x"}, {"tools", {web, {{"type", "function"}}}}}, "tools[1].name"},
        {{{"input", "x"}, {"tools", {web, 5}}}, "tools[1]"},
        {{{"input", "x"}, {"tools", {web, {{"type", "namespace"}, {"tools", {{{"type", "function"}}}}}}}},
         "tools[1].tools[0].name"},
        {{{"input", "x"}, {"tools", {web, {{"type", "function"}, {"function", json::object()}}}}},
         "tools[1].function.name"},
        {{{"input", "x"}, {"max_output_tokens", 0}}, "max_output_tokens"},
        {{{"input", "x"}, {"temperature", -1}}, "temperature"},
        {{{"input", "x"}, {"reasoning", {{"effort", "lots"}}}}, "reasoning.effort"},
        {{{"input", "x"}, {"previous_response_id", "resp_1"}}, "previous_response_id"},
        {{{"input", "x"}, {"background", true}}, "background"},
        {{{"input", "x"}, {"top_logprobs", 3}}, "top_logprobs"},
        {{{"input", "x"}, {"conversation", "conv_1"}}, "conversation"},
    };
    Client client(port());
    for (const auto& [body, param] : cases) {
        const Answer answer = client.post("/v1/responses", body);
        EXPECT_EQ(answer.status, 400) << json::serialize(body) << answer.body;
        if (answer.status == 400) {
            EXPECT_EQ(answer.param(), param) << json::serialize(body) << answer.body;
            const std::string message(answer.object().at("error").at("message").as_string());
            EXPECT_FALSE(message.starts_with("messages")) << message;
        }
    }
    const Answer big = client.post("/v1/responses", {{"input", std::string(8000, 'z')}});
    EXPECT_EQ(big.status, 400);
    EXPECT_EQ(big.object().at("error").at("code").as_string(), "context_length_exceeded");
    expect_alive();
}

TEST_F(ServerResponses, silence_is_filled_with_events_and_a_broken_answer_fails) {
    server::ServerOptions options = server_options();
    options.http.heartbeat_time = std::chrono::milliseconds(20);
    start(options);
    engine->pause();
    Client client(port());
    client.send("POST", "/v1/responses", json::serialize(json::object{{"input", "Hi"}, {"stream", true}}));
    EXPECT_EQ(client.receive_header().status, 200);
    const auto beats = [](const std::string& body) {
        size_t count = 0;
        for (size_t at = 0; (at = body.find("event: response.in_progress\n", at)) != std::string::npos; ++at) ++count;
        return count;
    };
    client.receive_until([&](const std::string& body) { return beats(body) >= 4; });
    server->drain(std::chrono::milliseconds(1));
    const json::object last = EventReader().read(client.receive_rest().body);
    EXPECT_EQ(last.at("status").as_string(), "failed");
    EXPECT_EQ(last.at("error").at("code").as_string(), "server_is_overloaded");
    server.reset();
    engine->resume();
}

}  // namespace
}  // namespace riptide::testing
