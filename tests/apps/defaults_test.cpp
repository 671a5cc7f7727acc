// What a model's makers publish, from the command line: run and chat use it, quantize keeps it.
#include <gtest/gtest.h>

#include "apps/commands/commands.h"
#include "base/json.h"
#include "engine/prompt/generation_defaults.h"
#include "tests/io/test_files.h"
#include "tests/server/qwen_folder.h"

namespace riptide::testing {
namespace {

class Defaults : public ::testing::Test {
  protected:
    std::string folder(const json::object& generation_config) const {
        return write_qwen_folder(files_.file("model"), generation_config);
    }
    /// Runs riptide on the CPU, and keeps what it says.
    void call(std::vector<std::string> arguments) {
        arguments.insert(arguments.begin(), "riptide");
        std::vector<const char*> pointers;
        for (const std::string& argument : arguments) pointers.push_back(argument.c_str());
        ::testing::internal::CaptureStdout();
        ::testing::internal::CaptureStderr();
        const int code = apps::riptide_main(static_cast<int>(pointers.size()), pointers.data());
        out_ = ::testing::internal::GetCapturedStdout();
        err_ = ::testing::internal::GetCapturedStderr();
        EXPECT_EQ(code, 0) << err_;
    }
    /// What `run` says about its sampling; "": nothing.
    std::string draws(const std::string& model, std::vector<std::string> flags = {}) {
        flags.insert(flags.begin(), {"run", model, "--prompt", "Hi", "-n", "1", "--device", "cpu", "--json"});
        call(flags);
        return err_.substr(0, err_.find('\n'));
    }
    /// Tokens of the prompt that `chat` makes.
    int64_t asked(const std::string& model, std::vector<std::string> flags = {}) {
        flags.insert(flags.begin(), {"chat", model, "-m", "Hi", "-n", "1", "--device", "cpu", "--json"});
        call(flags);
        return parse_json(out_, "chat").at("usage").at("prompt_tokens").to_number<int64_t>();
    }

    test::TempFolder files_;
    std::string out_, err_;
};

TEST_F(Defaults, run_draws_as_the_file_says_where_its_flags_do_not) {
    EXPECT_EQ(draws(folder({{"eos_token_id", 0}})), "") << "nothing new where the makers say nothing";
    const std::string model = folder({{"temperature", 1.0}, {"top_k", 30}});
    EXPECT_EQ(draws(model), "draws: temperature 1, top_k 30 (generation_config.json), top_p 1, min_p 0 (built in)");
    EXPECT_EQ(draws(model, {"--temperature", "0", "--min-p", "0.1"}),
              "draws: temperature 0 (command line), top_k 30 (generation_config.json), top_p 1 (built in), min_p 0.1 "
              "(command line)");
    EXPECT_EQ(draws(model, {"--temperature", "0", "--top-k", "0"}), "") << "nothing of theirs is left";
}

TEST_F(Defaults, chat_thinks_as_the_file_says_where_its_flags_do_not) {
    const std::string silent = folder({});
    const int64_t thinking = asked(silent, {"--think"}), plain = asked(silent);
    EXPECT_NE(thinking, plain);
    EXPECT_EQ(asked(silent, {"--no-think"}), plain);
    const std::string model = folder({{"default_chat_template_kwargs", {{"enable_thinking", true}}}});
    EXPECT_EQ(asked(model), thinking);
    EXPECT_EQ(asked(model, {"--think"}), thinking);
    EXPECT_EQ(asked(model, {"--no-think"}), plain);
    EXPECT_EQ(asked(folder({{"default_chat_template_kwargs", {{"enable_thinking", false}}}})), plain);
}

TEST_F(Defaults, quantize_keeps_the_values_of_a_folder) {
    const std::string model = folder({{"temperature", 0.6},
                                      {"top_p", 0.95},
                                      {"top_k", 20},
                                      {"min_p", 0.01},
                                      {"default_chat_template_kwargs", {{"enable_thinking", true}}}});
    call({"quantize", model, files_.file("model.gguf"), "--type", "bf16"});
    EXPECT_NE(err_.find(R"(default_chat_template_kwargs {"enable_thinking":true})"), std::string::npos)
        << "what it cannot keep it names";
    const SamplingChoice kept = generation_defaults(*open_checkpoint(files_.file("model.gguf"))).sampling;
    EXPECT_EQ(kept.temperature, 0.6);
    EXPECT_EQ(kept.top_p, 0.95);
    EXPECT_EQ(kept.top_k, 20);
    EXPECT_EQ(kept.min_p, 0.01);
    EXPECT_FALSE(kept.repetition_penalty);
    EXPECT_EQ(draws(files_.file("model.gguf")),
              "draws: temperature 0.6, top_k 20, top_p 0.95, min_p 0.01 (general.sampling)");
}

}  // namespace
}  // namespace riptide::testing
