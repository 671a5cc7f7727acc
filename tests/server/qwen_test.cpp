// A model of another dialect behind the same server: the small Qwen3 fixture with a vocabulary of bytes and Qwen's
// markup, and a template in the dialect of Qwen3.5. Its words mean nothing; forms make it say what is needed.
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

#include "base/file.h"
#include "io/safetensors_writer.h"
#include "tensor/half.h"
#include "tests/server/http_client.h"
#include "tests/text/small_vocabulary.h"

namespace riptide::testing {
namespace {

namespace fs = std::filesystem;

void write_text(const fs::path& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

SmallVocabulary qwen_vocabulary() {
    SmallVocabulary v;
    v.specials = {{"<|endoftext|>"},       {"<|im_start|>"},   {"<|im_end|>"},     {"<tool_call>", false},
                  {"</tool_call>", false}, {"<think>", false}, {"</think>", false}};
    // No merges: what the model says under a mask then has one spelling in tokens.
    return v;
}

/// The fixture's layers, and its embedding with random rows behind for the longer vocabulary.
void write_weights(const fs::path& folder, int64_t vocab) {
    const auto fixture = open_checkpoint(source_dir() + "/tests/fixtures/qwen3_tied");
    std::mt19937 random(7);
    std::normal_distribution<float> normal(0.0F, 0.08F);
    SafetensorsWriter writer((folder / "model.safetensors").string());
    std::vector<std::vector<std::byte>> bytes;
    for (const TensorInfo& tensor : fixture->tensors()) {
        std::vector<int64_t> shape = tensor.shape;
        std::vector<std::byte>& data = bytes.emplace_back(tensor.bytes.begin(), tensor.bytes.end());
        if (tensor.name.find("embed_tokens") != std::string::npos) {
            ASSERT_EQ(tensor.dtype, DType::bf16);
            shape[0] = vocab;
            const auto old = static_cast<std::ptrdiff_t>(data.size() / 2);
            data.resize(static_cast<size_t>(vocab * shape[1]) * 2);
            for (std::ptrdiff_t i = old; i < vocab * shape[1]; ++i) {
                const uint16_t value = f32_to_bf16(normal(random));
                std::memcpy(data.data() + 2 * i, &value, 2);
            }
        }
        writer.add_tensor(tensor.name, tensor.dtype, shape);
    }
    for (const auto& data : bytes) writer.write(data);
    writer.finish();
}

std::string write_model() {
    const fs::path folder = fs::path(::testing::TempDir()) / "riptide-qwen-chat";
    fs::create_directories(folder);
    const SmallVocabulary vocabulary = qwen_vocabulary();
    const auto vocab = static_cast<int64_t>(vocabulary.tokens().size());
    write_weights(folder, vocab);
    const std::string fixture = source_dir() + "/tests/fixtures/qwen3_tied";
    json::value config = parse_json(read_file(fixture + "/config.json", 1 << 20), "config.json");
    config.as_object()["vocab_size"] = vocab;
    write_text(folder / "config.json", json::serialize(config));
    json::object tokenizer = vocabulary.hf();
    tokenizer["post_processor"] = nullptr;
    write_text(folder / "tokenizer.json", json::serialize(tokenizer));
    write_text(folder / "tokenizer_config.json", R"({"eos_token": "<|endoftext|>", "bos_token": null})");
    write_text(folder / "generation_config.json", R"({"eos_token_id": 0})");
    write_text(folder / "chat_template.jinja", read_file(source_dir() + "/tests/text/data/qwen_tags.jinja", 1 << 20));
    return folder.string();
}

json::array offered_tools() {
    return parse_json(R"([{"type": "function", "function": {"name": "point", "parameters": {"type": "object",
        "required": ["target", "minutes", "sure"], "additionalProperties": false, "properties": {
        "target": {"type": "string", "enum": ["sun", "the moon"]}, "minutes": {"type": "integer", "minimum": 0, "maximum": 90},
        "sure": {"type": "boolean"}}}}}])",
                      "tools")
        .as_array();
}

class ServerQwen : public ServerTest {
  protected:
    void SetUp() override { begin(server_options()); }
    void begin(server::ServerOptions options) {
        static const std::string path = write_model();
        server.reset();
        engine = Engine::open(path, demo_options());
        server = std::make_unique<server::Server>(std::move(options));
        server->serve(*engine);
    }
    static json::object body(uint64_t seed) {
        return {{"messages", user_says("Where to?")}, {"temperature", 1}, {"seed", seed}, {"max_tokens", 400}};
    }
    static json::object thinks(json::object asked, bool thinking) {
        asked["chat_template_kwargs"] = {{"enable_thinking", thinking}};
        asked["thinking_budget"] = 5;
        return asked;
    }
    json::object choice(const json::object& asked) {
        const Answer answer = post("/v1/chat/completions", asked);
        EXPECT_EQ(answer.status, 200) << answer.body;
        return answer.object().at("choices").at(0).as_object();
    }
};

TEST_F(ServerQwen, says_what_it_speaks) {
    const json::object props = get("/props").object();
    EXPECT_EQ(props.at("chat").at("dialect"), "qwen-tags");
    EXPECT_EQ(props.at("chat").at("thinking"), true);
    EXPECT_EQ(json::value_to<std::vector<int>>(props.at("stop_ids")), (std::vector<int>{0, 2}));
    const Answer rendered = post("/tokenize", {{"messages", user_says("Hi <think>")}});
    ASSERT_EQ(rendered.status, 200) << rendered.body;
    const auto ids = json::value_to<std::vector<int>>(rendered.object().at("tokens"));
    EXPECT_EQ(ids.front(), 1);
    EXPECT_EQ(std::count(ids.begin(), ids.end(), 5), 1) << "what the user spells is text";
}

TEST_F(ServerQwen, variables_of_the_template_come_from_the_server_and_the_request) {
    const auto prompt = [&](const json::value& kwargs) {
        json::object asked = {{"messages", user_says("a")}, {"chat_template_kwargs", kwargs}};
        asked["messages"].as_array().push_back(
            {{"role", "assistant"}, {"content", "b"}, {"reasoning_content", "because"}});
        asked["messages"].as_array().push_back({{"role", "user"}, {"content", "c"}});
        return std::string(post("/apply-template", asked).object().at("prompt").as_string());
    };
    EXPECT_EQ(prompt(json::object()).find("because"), std::string::npos);
    EXPECT_NE(prompt({{"preserve_thinking", true}}).find("because"), std::string::npos);
    server::ServerOptions options = server_options();
    options.defaults.template_kwargs["preserve_thinking"] = true;
    begin(options);
    EXPECT_NE(prompt(json::object()).find("because"), std::string::npos);
    EXPECT_EQ(prompt({{"preserve_thinking", false}}).find("because"), std::string::npos);
}

TEST_F(ServerQwen, reasoning_and_text_are_told_apart_streamed_or_not) {
    for (const bool thinking : {true, false})
        for (uint64_t seed = 0; seed < 3; ++seed) {
            json::object asked = thinks(body(seed), thinking);
            asked["regex"] = "\\n?(up|down)\\n?";
            const json::object message = choice(asked).at("message").as_object();
            const std::string text(message.at("content").as_string());
            EXPECT_TRUE(text.find("up") != std::string::npos || text.find("down") != std::string::npos) << text;
            EXPECT_LE(text.size(), 6U) << "no markup, and no newlines but the form's own";
            const json::value* reasoning = message.if_contains("reasoning_content");
            EXPECT_TRUE(thinking || reasoning == nullptr || reasoning->is_null());
            asked["stream"] = true;
            const Joined streamed = join(post("/v1/chat/completions", asked).body);
            EXPECT_EQ(streamed.text, text);
            EXPECT_EQ(streamed.reasoning, reasoning != nullptr && reasoning->is_string() ? reasoning->as_string() : "");
            EXPECT_EQ(streamed.finish_reason, "stop");
        }
}

TEST_F(ServerQwen, tools_are_called_and_the_next_turn_finds_the_answer_in_the_cache) {
    for (const bool thinking : {true, false}) {
        json::object asked = thinks(body(11), thinking);
        asked["tools"] = offered_tools();
        asked["tool_choice"] = "required";
        asked["parallel_tool_calls"] = false;
        const Answer answer = post("/v1/chat/completions", asked);
        ASSERT_EQ(answer.status, 200) << answer.body;
        const json::object first = answer.object().at("choices").at(0).as_object();
        EXPECT_EQ(first.at("finish_reason"), "tool_calls");
        const json::object message = first.at("message").as_object();
        const json::array& calls = message.at("tool_calls").as_array();
        ASSERT_EQ(calls.size(), 1U);
        EXPECT_EQ(calls[0].at("function").at("name"), "point");
        const json::object arguments =
            parse_json(calls[0].at("function").at("arguments").as_string(), "arguments").as_object();
        EXPECT_TRUE(arguments.at("target") == "sun" || arguments.at("target") == "the moon");
        EXPECT_TRUE(arguments.at("minutes").is_int64() && arguments.at("sure").is_bool());
        asked["stream"] = true;
        const Joined streamed = join(post("/v1/chat/completions", asked).body);
        EXPECT_EQ(streamed.calls, std::vector<std::string>{"point"});
        EXPECT_EQ(streamed.arguments,
                  std::vector<std::string>{std::string(calls[0].at("function").at("arguments").as_string())});
        asked.erase("stream");

        const auto tokens = [](const json::object& usage, const char* key) {
            return usage.at(key).to_number<int64_t>();
        };
        const json::object used = answer.object().at("usage").as_object();
        asked["messages"].as_array().push_back(message);
        asked["messages"].as_array().push_back(
            {{"role", "tool"}, {"tool_call_id", calls[0].at("id")}, {"content", "done"}});
        asked["tool_choice"] = "auto";
        asked["max_tokens"] = 1;
        const json::object next = post("/v1/chat/completions", asked).object();
        const int64_t cached = next.at("usage").at("prompt_tokens_details").at("cached_tokens").to_number<int64_t>();
        const int64_t said = tokens(used, "prompt_tokens") + tokens(used, "completion_tokens");
        EXPECT_GT(cached, said - demo_options().page_rows) << "it stands in the next prompt as the model wrote it";
        EXPECT_LT(cached, tokens(next.at("usage").as_object(), "prompt_tokens"));
    }
}

}  // namespace
}  // namespace riptide::testing
