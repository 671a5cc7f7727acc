// What requests get that say nothing: request, command line, the model's file, what is built in, in this order, through
// every route that draws or renders.
#include "io/gguf_writer.h"
#include "base/json.h"
#include "tests/io/test_files.h"
#include "tests/server/http_client.h"
#include "tests/server/qwen_folder.h"

namespace riptide::testing {
namespace {

using Values = std::vector<double>;  // temperature, top_k, top_p, min_p, repetition_penalty

/// As Laguna XS-2.1: a template that does not think unless told to, and a file that tells it to.
std::string modest_template() {
    std::string source = qwen_template();
    const std::string old = "enable_thinking is defined and not enable_thinking";
    source.replace(source.find(old), old.size(), "not (enable_thinking | default(false))");
    return source;
}

/// The demo model with these keys.
std::vector<std::byte> demo_with(const std::function<void(GgufWriter&)>& fill) {
    const auto demo = GgufFile::open(demo_path());
    std::vector<std::byte> image;
    GgufWriter writer(image);
    writer.copy_metadata(*demo);
    fill(writer);
    for (const TensorInfo& tensor : demo->tensors()) writer.add_tensor(tensor.name, tensor.dtype, tensor.shape);
    for (const TensorInfo& tensor : demo->tensors()) writer.write_tensor(tensor.name, tensor.bytes);
    writer.finish();
    return image;
}

class ServerDefaults : public ServerTest {
  protected:
    ~ServerDefaults() override {  // before the image
        server.reset();
        engine.reset();
    }
    void begin_folder(const json::object& generation_config, const server::ServerOptions& options) {
        json::object config = generation_config;
        config["eos_token_id"] = 0;
        begin(open_checkpoint(write_qwen_folder(files_.file("model"), config, modest_template())), options);
    }
    void begin_gguf(const std::function<void(GgufWriter&)>& fill, const server::ServerOptions& options) {
        server.reset();
        engine.reset();
        image_ = demo_with(fill);
        begin(open_gguf_memory(image_, "demo.gguf"), options);
    }
    void begin(std::unique_ptr<Checkpoint> checkpoint, const server::ServerOptions& options) {
        server.reset();
        engine = std::make_unique<Engine>(std::move(checkpoint), demo_options());
        server = std::make_unique<server::Server>(options);
        server->serve(*engine);
    }
    static server::ServerOptions options() {
        server::ServerOptions o = server_options();
        o.defaults.sampling.temperature = 0.7;
        o.defaults.sampling.top_k = 20;
        return o;
    }
    Values in_force() {
        const json::object sampling = get("/props").object().at("default_sampling").as_object();
        Values out;
        for (const char* name : {"temperature", "top_k", "top_p", "min_p", "repetition_penalty"})
            out.push_back(sampling.at(name).to_number<double>());
        return out;
    }
    std::string source_of(const char* name) {
        return std::string(get("/props").object().at("default_sampling_from").at(name).as_string());
    }
    /// Temperature and top_p that a request draws with, as the reply tells.
    std::pair<double, double> drawn(json::object asked = {}) {
        asked["input"] = "Hi";
        asked["max_output_tokens"] = 1;
        const json::object reply = post("/v1/responses", asked).object();
        return {reply.at("temperature").to_number<double>(), reply.at("top_p").to_number<double>()};
    }
    std::string rendered(json::object asked = {}) {
        asked["messages"] = user_says("Hi");
        return std::string(post("/apply-template", asked).object().at("prompt").as_string());
    }
    bool thinks(const json::object& asked = {}) { return !rendered(asked).ends_with("</think>\n\n"); }
    /// Tokens of the prompt, as each route feeds or counts it.
    std::vector<int64_t> lengths() {
        const json::object chat = {{"messages", user_says("Hi")}, {"max_tokens", 1}};
        const auto sum = [&](const std::string& path, const json::object& asked,
                             std::initializer_list<const char*> places) {
            const Answer answer = post(path, asked);
            EXPECT_EQ(answer.status, 200) << answer.body;
            int64_t total = 0;
            for (const char* place : places)
                total += json::value(answer.object()).at_pointer(place).to_number<int64_t>();
            return total;
        };
        return {sum("/tokenize", chat, {"/count"}), sum("/v1/chat/completions", chat, {"/usage/prompt_tokens"}),
                sum("/v1/responses", {{"input", "Hi"}, {"max_output_tokens", 1}}, {"/usage/input_tokens"}),
                sum("/v1/messages/count_tokens", chat, {"/input_tokens"}),
                sum("/v1/messages", chat, {"/usage/input_tokens", "/usage/cache_read_input_tokens"})};
    }

  private:
    test::TempFolder files_;
    std::vector<std::byte> image_;
};

TEST_F(ServerDefaults, sampling_of_a_folder_stands_between_the_command_line_and_what_is_built_in) {
    begin_folder({}, options());
    EXPECT_EQ(in_force(), (Values{0.7, 20, 1, 0, 1}));
    EXPECT_EQ(source_of("temperature"), "built in");
    EXPECT_EQ(drawn(), std::pair(0.7, 1.0));

    const json::object file = {{"temperature", 1.0}, {"top_p", 0.9}, {"top_k", 30}, {"repetition_penalty", 1.05}};
    begin_folder(file, options());
    EXPECT_EQ(in_force(), (Values{1, 30, 0.9, 0, 1.05}));
    EXPECT_EQ(source_of("temperature"), "generation_config.json");
    EXPECT_EQ(source_of("min_p"), "built in");
    EXPECT_TRUE(get("/props").object().at("default_sampling").at("top_k").is_int64());
    EXPECT_EQ(drawn(), std::pair(1.0, 0.9));
    EXPECT_EQ(drawn({{"temperature", 0.3}}), std::pair(0.3, 0.9));
    EXPECT_EQ(drawn({{"temperature", 0}, {"top_p", 0.5}}), std::pair(0.0, 0.5));

    server::ServerOptions flags = options();
    flags.sampling.temperature = 0.2;
    flags.sampling.repetition_penalty = 1;
    begin_folder(file, flags);
    EXPECT_EQ(in_force(), (Values{0.2, 30, 0.9, 0, 1}));
    EXPECT_EQ(source_of("temperature"), "command line");
    EXPECT_EQ(drawn(), std::pair(0.2, 0.9));
    EXPECT_EQ(drawn({{"temperature", 0.7}}), std::pair(0.7, 0.9));
}

TEST_F(ServerDefaults, sampling_of_a_gguf_stands_there_too) {
    const auto keys = [](GgufWriter& w) {
        w.set_f32("general.sampling.temp", 0.9F);
        w.set_f32("general.sampling.min_p", 0.1F);
        w.set_i32("general.sampling.top_k", 40);
    };
    begin_gguf(keys, options());
    EXPECT_EQ(in_force(), (Values{0.9, 40, 1, 0.1, 1}));
    EXPECT_EQ(source_of("top_k"), "general.sampling");
    EXPECT_EQ(drawn(), std::pair(0.9, 1.0));
    EXPECT_EQ(drawn({{"temperature", 0.4}}), std::pair(0.4, 1.0));
    server::ServerOptions flags = options();
    flags.sampling.temperature = 0;
    begin_gguf(keys, flags);
    EXPECT_EQ(in_force(), (Values{0, 40, 1, 0.1, 1}));
    EXPECT_EQ(get("/props").object().at("default_chat_template_kwargs"), json::object());
}

TEST_F(ServerDefaults, a_folder_that_does_not_sample_answers_alike_with_any_seed) {
    begin_folder({{"do_sample", false}}, options());
    const auto said = [&](json::object asked) {
        asked["prompt"] = "Hi";
        asked["max_tokens"] = 12;
        return post("/v1/completions", asked).object().at("choices").at(0).at("text");
    };
    EXPECT_EQ(said({{"seed", 1}}), said({{"seed", 2}}));
    EXPECT_EQ(said({{"seed", 1}}), said({{"temperature", 0}}));
    EXPECT_NE(said({{"seed", 1}, {"temperature", 2}}), said({{"seed", 2}, {"temperature", 2}}));
}

TEST_F(ServerDefaults, a_folder_makes_the_template_think_unless_the_command_line_or_the_request_says_otherwise) {
    const json::object off = {{"chat_template_kwargs", {{"enable_thinking", false}}}},
                       on = {{"chat_template_kwargs", {{"enable_thinking", true}}}};
    const auto expect_thinks = [&](bool by_default, const char* source) {
        EXPECT_EQ(thinks(), by_default);
        EXPECT_TRUE(thinks(on));
        EXPECT_FALSE(thinks(off));
        EXPECT_TRUE(thinks({{"reasoning_effort", "high"}}));
        EXPECT_FALSE(thinks({{"reasoning_effort", "none"}}));
        const json::object props = get("/props").object();
        const json::object& from = props.at("default_chat_template_kwargs_from").as_object();
        EXPECT_EQ(props.at("default_chat_template_kwargs").as_object().contains("enable_thinking"), source != nullptr);
        if (source != nullptr) {
            EXPECT_EQ(from.at("enable_thinking"), source);
        }
    };
    const json::object file = {{"default_chat_template_kwargs", {{"enable_thinking", true}}}};
    server::ServerOptions flags = options();
    begin_folder({}, flags);
    expect_thinks(false, nullptr);
    begin_folder(file, flags);
    expect_thinks(true, "generation_config.json");
    flags.defaults.thinking = false;
    begin_folder(file, flags);
    expect_thinks(false, "command line");
    flags.defaults.thinking = true;
    begin_folder({{"default_chat_template_kwargs", {{"enable_thinking", false}}}}, flags);
    expect_thinks(true, "command line");
}

TEST_F(ServerDefaults, every_route_renders_alike) {
    begin_folder({}, options());
    const std::vector<int64_t> plain = lengths();
    EXPECT_EQ(plain, std::vector<int64_t>(plain.size(), plain[0]));
    begin_folder({{"default_chat_template_kwargs", {{"enable_thinking", true}}}}, options());
    const std::vector<int64_t> thinking = lengths();
    EXPECT_EQ(thinking, std::vector<int64_t>(plain.size(), thinking[0]));
    EXPECT_NE(thinking[0], plain[0]);
    EXPECT_EQ(post("/v1/messages/count_tokens",
                   {{"messages", user_says("Hi")}, {"max_tokens", 1}, {"thinking", {{"type", "disabled"}}}})
                  .object()
                  .at("input_tokens")
                  .to_number<int64_t>(),
              plain[0]);
}

TEST_F(ServerDefaults, other_variables_of_the_template_have_the_same_order) {
    const auto keeps = [&](const json::object& kwargs) {
        json::object asked = {{"messages", user_says("a")}, {"chat_template_kwargs", kwargs}};
        asked["messages"].as_array().push_back(
            {{"role", "assistant"}, {"content", "b"}, {"reasoning_content", "because"}});
        asked["messages"].as_array().push_back({{"role", "user"}, {"content", "c"}});
        const json::object reply = post("/apply-template", asked).object();
        return reply.at("prompt").as_string().find("because") != std::string::npos;
    };
    const json::object file = {{"default_chat_template_kwargs", {{"preserve_thinking", true}}}};
    begin_folder(file, options());
    EXPECT_TRUE(keeps({}));
    EXPECT_FALSE(keeps({{"preserve_thinking", false}}));
    server::ServerOptions flags = options();
    flags.defaults.template_kwargs["preserve_thinking"] = false;
    begin_folder(file, flags);
    EXPECT_FALSE(keeps({}));
    EXPECT_TRUE(keeps({{"preserve_thinking", true}}));
}

}  // namespace
}  // namespace riptide::testing
