// A model with the chat template or the tokenizer of other files; one whose template cannot be used still completes.
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/file.h"
#include "base/json.h"
#include "engine/prompt/loaded_text.h"
#include "io/replaced_text.h"
#include "tests/server/http_client.h"

namespace riptide::testing {
namespace {

class ServerReplacedText : public ServerTest {
  protected:
    void TearDown() override { std::filesystem::remove(file_); }
    std::string file_with(const std::string& text) {
        std::ofstream(file_) << text;
        return file_;
    }
    void start_with_template(const std::string& text) {
        server.reset();
        engine =
            std::make_unique<Engine>(replace_text(open_checkpoint(demo_path()), "", file_with(text)), demo_options());
        server = std::make_unique<server::Server>(server_options());
        server->serve(*engine);
    }
    json::object hello() const { return {{"messages", user_says("Hi")}, {"max_tokens", 3}}; }
    const std::string file_ = ::testing::TempDir() + fmt::format("riptide-template-{}.jinja", ::getpid());
};

TEST_F(ServerReplacedText, a_template_that_cannot_be_used_leaves_completions) {
    for (const auto& [text, why] :
         {std::pair("{% include 'chat_template.jinja' %}", "the tag 'include' is not supported"),
          {"{{ 1 + }}", "expected an expression"},
          {"{{ messages | nothing }}", "there is no filter 'nothing'"}}) {
        start_with_template(text);
        EXPECT_EQ(post("/v1/completions", {{"prompt", "x"}, {"max_tokens", 3}}).status, 200);
        EXPECT_EQ(post("/tokenize", {{"content", "x"}}).status, 200);
        for (const char* path : {"/v1/chat/completions", "/v1/messages", "/apply-template"}) {
            const Answer refused = post(path, hello());
            EXPECT_EQ(refused.status, 400) << path;
            EXPECT_NE(refused.body.find(why), std::string::npos) << path << refused.body;
        }
        EXPECT_FALSE(engine->info().chat);
        EXPECT_NE(engine->info().no_chat.find(why), std::string::npos) << engine->info().no_chat;
    }
}

TEST_F(ServerReplacedText, another_template_takes_the_place_of_the_models_own) {
    const std::string own = chat_template_source(*open_checkpoint(demo_path()));
    start_with_template(own + "{# another #}");
    const std::string prompt(post("/apply-template", hello()).object().at("prompt").as_string());
    EXPECT_EQ(post("/v1/chat/completions", hello()).status, 200);
    EXPECT_EQ(engine->info().no_chat, "");
    start_with_template("Note." + own);
    EXPECT_EQ(std::string(post("/apply-template", hello()).object().at("prompt").as_string()), "Note." + prompt);
}

TEST_F(ServerReplacedText, another_tokenizer_takes_the_place_of_the_models_own) {
    const std::string folder = source_dir() + "/tests/fixtures/tokenizer";
    const auto own = open_checkpoint(demo_path());
    const auto replaced = replace_text(open_checkpoint(demo_path()), folder, "");
    const json::value theirs = parse_json(read_file(folder + "/tokenizer.json", 1 << 24), "tokenizer.json");
    const Tokenizer expected = Tokenizer::from_hf(theirs, nullptr, folder);
    EXPECT_EQ(load_tokenizer(*replaced).fingerprint(), expected.fingerprint());
    EXPECT_NE(load_tokenizer(*own).fingerprint(), expected.fingerprint());
    EXPECT_EQ(chat_template_source(*replaced), chat_template_source(*own));
    EXPECT_EQ(replaced->tensors().size(), own->tensors().size());
    try {
        replace_text(open_checkpoint(demo_path()), ::testing::TempDir(), "");
        FAIL() << "there is no tokenizer in that folder";
    } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find("expected a folder with tokenizer.json"), std::string::npos);
    }
    EXPECT_THROW(replace_text(open_checkpoint(demo_path()), "", folder + "/none"), Error);
}

}  // namespace
}  // namespace riptide::testing
