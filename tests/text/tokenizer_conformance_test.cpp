// Token ids equal those of other software on released vocabularies.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/json.h"
#include "io/checkpoint.h"
#include "tests/source_dir.h"
#include "text/tokenizer/tokenizer.h"

namespace riptide {
namespace {

std::string read_all(const std::filesystem::path& path) {
    std::ifstream in(path, std::ios::binary);
    std::ostringstream out;
    out << in.rdbuf();
    return out.str();
}

class TokenizerConformance : public ::testing::TestWithParam<const char*> {
  protected:
    std::string stem() const { return conformance_dir() + "/tokenizers/ggml-vocab-" + GetParam(); }
};

TEST_P(TokenizerConformance, ids_equal_the_reference_and_decode_back) {
    if (!std::filesystem::exists(stem() + ".gguf")) GTEST_SKIP() << "no conformance data at " << stem() << ".gguf";
    const auto file = open_checkpoint(stem() + ".gguf");
    const auto start = std::chrono::steady_clock::now();
    const Tokenizer tokenizer = Tokenizer::from_gguf(file->metadata(), file->path());
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    RecordProperty("load_seconds", std::to_string(took.count()));
    const json::value cases = parse_json(read_all(stem() + ".cases.json"), stem());
    ASSERT_GE(cases.as_array().size(), 40u);
    for (const json::value& c : cases.as_array()) {
        const std::string text(c.at("text").as_string());
        const auto expected = json::value_to<std::vector<int32_t>>(c.at("ids"));
        EXPECT_EQ(tokenizer.encode(text), expected) << text;
        // These texts hold no added token, so reading them as trusted changes nothing.
        EXPECT_EQ(tokenizer.encode(text, {.parse_special = true}), expected) << text;
        EXPECT_EQ(tokenizer.decode(expected), text);
    }
}

INSTANTIATE_TEST_SUITE_P(released, TokenizerConformance,
                         ::testing::Values("gpt-2", "llama-bpe", "qwen2", "qwen35", "starcoder"),
                         [](const auto& param) {
                             std::string name = param.param;
                             std::replace(name.begin(), name.end(), '-', '_');
                             return name;
                         });

}  // namespace
}  // namespace riptide
