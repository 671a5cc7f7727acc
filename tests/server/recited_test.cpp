// Answers that no small model gives, recited: calls with text inside, calls that are cut, calls of what nobody offered.
// What each API makes of them.
#include "base/json.h"
#include "engine/prompt/loaded_text.h"
#include "tests/clients/script_model.h"
#include "tests/server/http_client.h"

namespace riptide::testing {
namespace {

/// A server whose model says `answer`, whatever it is asked.
class ServerRecites : public ServerTest {
  protected:
    void recite(const std::string& answer, const std::string& reasoning = "") {
        server.reset();
        engine.reset();
        text_ = open_checkpoint(demo_path());
        tokenizer_.emplace(load_tokenizer(*text_));
        ScriptOptions script;
        script.context = 4096;
        script.lines = {{.reasoning = reasoning, .answer = answer}};
        EngineOptions options;
        options.threads = 1;
        options.k_dtype = options.v_dtype = DType::f32;
        options.kv_tokens = 4 * script.context;
        engine = std::make_unique<Engine>(std::make_unique<ScriptModel>(*tokenizer_, script), options, text_.get());
        server = std::make_unique<server::Server>(server_options());
        server->serve(*engine);
    }
    /// Tokens of an answer up to the end of `text`, with the newline that comes first.
    int64_t tokens(const std::string& text) const {
        return std::ssize(tokenizer_->encode("\n" + text, {.parse_special = true}));
    }

    static json::array openai_tools() {
        const json::object schema = {{"type", "object"}, {"properties", {{"kind", {{"type", "string"}}}}}};
        json::array out;
        for (const char* name : {"brew_tea", "stop"})
            out.push_back({{"type", "function"}, {"function", {{"name", name}, {"parameters", schema}}}});
        return out;
    }
    static json::object chat_body(int64_t most = 200) {
        return {{"messages", user_says("Tea.")}, {"tools", openai_tools()}, {"max_tokens", most}};
    }
    static json::object responses_body(int64_t most = 200) {
        json::array tools;
        for (const json::value& tool : openai_tools()) {
            json::object flat = tool.at("function").as_object();
            flat["type"] = "function";
            tools.push_back(flat);
        }
        return {{"input", "Tea."}, {"tools", tools}, {"max_output_tokens", most}, {"store", false}};
    }
    static json::object messages_body(int64_t most = 200) {
        json::array tools;
        for (const json::value& tool : openai_tools()) {
            const json::object& function = tool.at("function").as_object();
            tools.push_back({{"name", function.at("name")}, {"input_schema", function.at("parameters")}});
        }
        return {{"messages", user_says("Tea.")}, {"tools", tools}, {"max_tokens", most}};
    }

    static json::object streamed(json::object body) {
        body["stream"] = true;
        return body;
    }

    struct Block {
        std::string type, name, text;  // text: said, or the JSON of arguments
        bool operator==(const Block&) const = default;
    };
    friend void PrintTo(const Block& b, std::ostream* os) { *os << b.type << " " << b.name << ": " << b.text; }
    using Blocks = std::vector<Block>;
    static std::string string_at(const json::value& value, const char* key) {
        const json::value* found = value.as_object().if_contains(key);
        return found != nullptr ? std::string(found->as_string()) : "";
    }

    /// The blocks of a message, and of its stream: the arguments of a stream's calls are taken as they came.
    Blocks whole_message(const json::object& body) {
        const Answer answer = post("/v1/messages", body);
        EXPECT_EQ(answer.status, 200) << answer.body;
        Blocks out;
        last_ = answer.object();
        for (const json::value& block : last_.at("content").as_array()) {
            const bool call = block.at("type") == "tool_use";
            out.push_back({string_at(block, "type"), string_at(block, "name"),
                           call ? json::serialize(block.at("input")) : string_at(block, "text")});
        }
        return out;
    }
    Blocks streamed_message(const json::object& body) {
        const std::string bytes = post("/v1/messages", streamed(body)).body;
        Blocks out;
        int64_t open = -1;
        for (size_t at = bytes.find("data: "); at != std::string::npos; at = bytes.find("data: ", at + 1)) {
            const json::value event = parse_json(bytes.substr(at + 6, bytes.find('\n', at) - at - 6), "an event");
            const std::string type = string_at(event, "type");
            if (type == "message_delta") last_ = event.as_object();
            if (type == "content_block_start") {
                EXPECT_EQ(open, -1) << "a block begins inside another";
                open = event.at("index").to_number<int64_t>();
                EXPECT_EQ(open, std::ssize(out));
                out.push_back({string_at(event.at("content_block"), "type"),
                               string_at(event.at("content_block"), "name"),
                               string_at(event.at("content_block"), "text")});
            }
            if (type == "content_block_delta") {
                EXPECT_EQ(event.at("index").to_number<int64_t>(), open);
                const json::value& delta = event.at("delta");
                EXPECT_EQ(string_at(delta, "type"), out.back().type == "tool_use" ? "input_json_delta" : "text_delta");
                out.back().text += string_at(delta, "partial_json") + string_at(delta, "text");
            }
            if (type == "content_block_stop") {
                EXPECT_EQ(event.at("index").to_number<int64_t>(), open);
                open = -1;
            }
        }
        EXPECT_EQ(open, -1);
        return out;
    }
    /// The items of a response, and of its stream's deltas.
    Blocks whole_response(const json::object& body) {
        const Answer answer = post("/v1/responses", body);
        EXPECT_EQ(answer.status, 200) << answer.body;
        last_ = answer.object();
        Blocks out;
        for (const json::value& item : last_.at("output").as_array()) out.push_back(item_of(item));
        return out;
    }
    Blocks streamed_response(const json::object& body) {
        const std::string bytes = post("/v1/responses", streamed(body)).body;
        Blocks out, done;
        for (size_t at = bytes.find("data: "); at != std::string::npos; at = bytes.find("data: ", at + 1)) {
            const json::value event = parse_json(bytes.substr(at + 6, bytes.find('\n', at) - at - 6), "an event");
            const std::string type = string_at(event, "type");
            if (type == "response.output_item.added")
                out.push_back({string_at(event.at("item"), "type"), string_at(event.at("item"), "name"), ""});
            if (type.ends_with(".delta")) {
                EXPECT_EQ(event.at("output_index").to_number<int64_t>() + 1, std::ssize(out));
                out.back().text += string_at(event, "delta");
            }
            if (type == "response.output_item.done") done.push_back(item_of(event.at("item")));
        }
        EXPECT_EQ(out, done);
        return out;
    }
    static Block item_of(const json::value& item) {
        const bool call = item.at("type") == "function_call";
        return {string_at(item, "type"), string_at(item, "name"),
                call ? string_at(item, "arguments") : string_at(item.at("content").at(0), "text")};
    }

    json::object last_;  // the message or response; of a stream's message its last delta

  private:
    std::unique_ptr<Checkpoint> text_;
    std::optional<Tokenizer> tokenizer_;
};

std::string argument(const std::string& key, const std::string& value) {
    return "<arg_key>" + key + "</arg_key>\n<arg_value>" + value + "</arg_value>\n";
}

/// Text round calls and inside them.
const std::string kTalkative = "Now:\n<tool_call>brew_tea\nplease " + argument("kind", "green") +
                               "</tool_call>\n<tool_call>stop\n" + argument("kind", "all") +
                               "</tool_call>\n<tool_call>brew_tea\nand: " + argument("kind", "\"q\"") +
                               "</tool_call>\nBye";

TEST_F(ServerRecites, text_inside_a_call_comes_behind_it) {
    recite(kTalkative);
    Blocks expected = {{"text", "", "Now:"},
                       {"tool_use", "brew_tea", R"({"kind":"green"})"},
                       {"text", "", "please "},
                       {"tool_use", "stop", R"({"kind":"all"})"},
                       {"tool_use", "brew_tea", R"({"kind":"\"q\""})"},
                       {"text", "", "and: Bye"}};
    EXPECT_EQ(whole_message(messages_body()), expected);
    EXPECT_EQ(last_.at("stop_reason").as_string(), "tool_use");
    const auto spaced = [](Blocks blocks) {  // arguments as the parser writes them
        for (Block& block : blocks)
            if (!block.name.empty()) block.text.insert(block.text.find(':') + 1, " ");
        return blocks;
    };
    EXPECT_EQ(streamed_message(messages_body()), spaced(expected));
    for (Block& block : expected) block.type = block.name.empty() ? "message" : "function_call";
    EXPECT_EQ(whole_response(responses_body()), spaced(expected));
    EXPECT_EQ(last_.at("status").as_string(), "completed");
    EXPECT_EQ(streamed_response(responses_body()), spaced(expected));

    const Joined chat = join(post("/v1/chat/completions", streamed(chat_body())).body);
    EXPECT_EQ(chat.text, "Now:please and: Bye");
    EXPECT_EQ(chat.calls, (std::vector<std::string>{"brew_tea", "stop", "brew_tea"}));
    EXPECT_EQ(chat.arguments,
              (std::vector<std::string>{R"({"kind": "green"})", R"({"kind": "all"})", R"({"kind": "\"q\""})"}));

    json::object one = messages_body();
    one["tool_choice"] = {{"type", "auto"}, {"disable_parallel_tool_use", true}};
    expected = {{"text", "", "Now:"}, {"tool_use", "brew_tea", R"({"kind":"green"})"}, {"text", "", "please and: Bye"}};
    EXPECT_EQ(whole_message(one), expected) << "what stood in calls that are left out is text, too";
    EXPECT_EQ(streamed_message(one), spaced(expected));
}

TEST_F(ServerRecites, nobody_can_execute_a_call_that_is_cut) {
    const std::string head = "<tool_call>stop\n</tool_call>\n<tool_call>brew_tea\n";
    recite(head + argument("kind", "darjeeling") + "</tool_call>");
    const std::pair<std::string, std::string> cuts[] = {
        {"", "{"},
        {"<arg_key>ki", "{"},
        {"<arg_key>kind</arg_key>\n<arg_value>darje", R"({"kind": "darje)"},
        {argument("kind", "darjeeling"), R"({"kind": "darjeeling)"},
    };
    for (const auto& [written, arguments] : cuts) {
        const int64_t most = tokens(head + written);
        const Blocks message = {{"tool_use", "stop", "{}"}, {"tool_use", "brew_tea", "{}"}};
        EXPECT_EQ(whole_message(messages_body(most)), message) << written;
        EXPECT_EQ(last_.at("stop_reason").as_string(), "max_tokens");
        EXPECT_EQ(streamed_message(messages_body(most)),
                  (Blocks{{"tool_use", "stop", "{}"}, {"tool_use", "brew_tea", arguments}}))
            << written;
        EXPECT_EQ(last_.at("delta").at("stop_reason").as_string(), "max_tokens");
        const Blocks items = {{"function_call", "stop", "{}"}, {"function_call", "brew_tea", arguments}};
        EXPECT_EQ(whole_response(responses_body(most)), items) << written;
        EXPECT_EQ(last_.at("status").as_string(), "incomplete");
        EXPECT_EQ(last_.at("output").at(0).at("status").as_string(), "completed");
        EXPECT_EQ(last_.at("output").at(1).at("status").as_string(), "incomplete");
        EXPECT_EQ(streamed_response(responses_body(most)), items) << written;
        const json::object chat = post("/v1/chat/completions", chat_body(most)).object();
        const json::value& choice = chat.at("choices").at(0);
        EXPECT_EQ(choice.at("finish_reason").as_string(), "length");
        EXPECT_EQ(choice.at("message").at("tool_calls").at(1).at("function").at("arguments").as_string(), arguments);
        EXPECT_EQ(join(post("/v1/chat/completions", streamed(chat_body(most))).body).arguments,
                  (std::vector<std::string>{"{}", arguments}));
    }
    const int64_t whole = tokens(head + argument("kind", "darjeeling") + "</tool_call>");
    EXPECT_EQ(whole_message(messages_body(whole)).back().text, R"({"kind":"darjeeling"})");
}

TEST_F(ServerRecites, a_call_that_is_cut_within_its_name_shows_no_markup) {
    for (const std::string said : {"Let me see.\n", ""}) {
        recite(said + "<tool_call>brew_tea\n" + argument("kind", "darjeeling") + "</tool_call>");
        const std::string text = said.substr(0, said.find('\n'));
        const Blocks message = text.empty() ? Blocks{} : Blocks{{"text", "", text}};
        const Blocks items = text.empty() ? Blocks{} : Blocks{{"message", "", text}};
        for (const int64_t most : {tokens(said + "<tool_call>"), tokens(said + "<tool_call>brew_tea")}) {
            EXPECT_EQ(whole_message(messages_body(most)), message);
            EXPECT_EQ(last_.at("stop_reason").as_string(), "max_tokens");
            EXPECT_EQ(streamed_message(messages_body(most)), message);
            EXPECT_EQ(last_.at("delta").at("stop_reason").as_string(), "max_tokens");
            EXPECT_EQ(whole_response(responses_body(most)), items);
            EXPECT_EQ(last_.at("status").as_string(), "incomplete");
            EXPECT_EQ(streamed_response(responses_body(most)), items);
            const json::value choice = post("/v1/chat/completions", chat_body(most)).object().at("choices").at(0);
            EXPECT_EQ(choice.at("finish_reason").as_string(), "length");
            EXPECT_EQ(choice.at("message").at("content").as_string(), text);
            EXPECT_FALSE(choice.at("message").as_object().contains("tool_calls"));
            const Joined chat = join(post("/v1/chat/completions", streamed(chat_body(most))).body);
            EXPECT_EQ(chat.text, text);
            EXPECT_EQ(chat.finish_reason, "length");
            EXPECT_TRUE(chat.calls.empty());
        }
    }
}

TEST_F(ServerRecites, a_call_whose_end_is_left_out_counts_if_the_turn_ends_there) {
    recite("<tool_call>brew_tea\n" + argument("kind", "green"));
    EXPECT_EQ(whole_message(messages_body()), (Blocks{{"tool_use", "brew_tea", R"({"kind":"green"})"}}));
    EXPECT_EQ(last_.at("stop_reason").as_string(), "tool_use");
}

TEST_F(ServerRecites, without_tools_a_call_is_text) {
    const std::string call = "<tool_call>brew_tea\n" + argument("kind", "green") + "</tool_call>";
    recite("So:\n" + call);
    const Blocks text = {{"text", "", "So:\n" + call}};
    const auto expect_text = [&](const json::object& messages, const json::object& responses,
                                 const json::object& chat) {
        EXPECT_EQ(whole_message(messages), text);
        EXPECT_EQ(last_.at("stop_reason").as_string(), "end_turn");
        EXPECT_EQ(streamed_message(messages), text);
        EXPECT_EQ(whole_response(responses), (Blocks{{"message", "", "So:\n" + call}}));
        const json::object whole = post("/v1/chat/completions", chat).object();
        const json::value& choice = whole.at("choices").at(0);
        EXPECT_EQ(choice.at("finish_reason").as_string(), "stop");
        EXPECT_EQ(choice.at("message").at("content").as_string(), "So:\n" + call);
        EXPECT_FALSE(choice.at("message").as_object().contains("tool_calls"));
        EXPECT_EQ(join(post("/v1/chat/completions", streamed(chat)).body).text, "So:\n" + call);
    };
    json::object messages = messages_body(), responses = responses_body(), chat = chat_body();
    messages["tool_choice"] = {{"type", "none"}};
    responses["tool_choice"] = chat["tool_choice"] = "none";
    expect_text(messages, responses, chat);
    for (json::object* body : {&messages, &responses, &chat}) {
        body->erase("tools");
        body->erase("tool_choice");
    }
    expect_text(messages, responses, chat);
}

}  // namespace
}  // namespace riptide::testing
