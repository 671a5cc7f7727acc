// Branches of a vocabulary that are taken as a whole: the same masks as token by token.
#include <filesystem>

#include "io/checkpoint.h"
#include "tests/source_dir.h"
#include "tests/text/constraint_world.h"
#include "text/dialects/response_format.h"

namespace riptide::testing {
namespace {

/// 151,936 tokens: Chinese characters by the thousand, pieces of characters, long runs of spaces.
const Tokenizer* large_vocabulary() {
    static const std::unique_ptr<const Tokenizer> tokenizer = [] {
        const std::string path = conformance_dir() + "/tokenizers/ggml-vocab-qwen2.gguf";
        if (!std::filesystem::exists(path)) return std::unique_ptr<const Tokenizer>();
        return std::make_unique<const Tokenizer>(Tokenizer::from_gguf(open_checkpoint(path)->metadata(), path));
    }();
    return tokenizer.get();
}

struct Walk {
    AnswerFormat format;
    const char* text;
};

AnswerFormat schema_of(const char* text) {
    return {.kind = AnswerFormat::Kind::json_schema, .schema = parse_json(text, "schema")};
}

TEST(StateRuns, masks_are_those_of_every_token_by_itself) {
    if (large_vocabulary() == nullptr) GTEST_SKIP() << "no vocabulary at " << conformance_dir();
    const Tokenizer& tokenizer = *large_vocabulary();
    const auto trie = std::make_shared<const TokenTrie>(tokenizer);
    constexpr int32_t kPart = 5;  // of the tokens at each place
    const auto regex = [](const char* text) { return AnswerFormat{.kind = AnswerFormat::Kind::regex, .text = text}; };
    const Walk walks[] = {
        {schema_of(R"({"type": "string"})"), "\"a b\\n\xE4\xB8\xAD\""},
        {schema_of(R"({"type": "string", "maxLength": 4})"), "\"ab\xE4\xB8\xAD"},
        {schema_of(R"({"type": "string", "minLength": 3, "maxLength": 70})"), "\"a bc d"},
        {schema_of(R"({"type": "string", "pattern": "^[^x]{2,}$"})"), "\"ab c"},
        {schema_of(R"({"type": "string", "pattern": "^\\p{L}+( \\p{L}+)*$", "maxLength": 9})"), "\"a b"},
        {schema_of(R"({"properties": {"name": {"type": "string"}, "names": {"type": "number"}}})"), "{\"nam"},
        {{.kind = AnswerFormat::Kind::json_object}, "{\"a\": [\"b"},
        {regex("[a-z ]*"), "ab c"},
        {regex("[a-z]{3}[^\\n]{0,40}"), "abcde"},
        {regex("([A-Z][a-z]* ){1,3}[0-9]+"), "Ab C 1"},
    };
    for (const Walk& walk : walks) {
        Grammar grammar;
        grammar.set_root(add_format(grammar, walk.format));
        for (const int64_t short_walk : {int64_t{0}, int64_t{4000}}) {
            ConstraintState state = Constraint::compile(grammar, trie, {.short_walk = short_walk})->start();
            const std::vector<int32_t> tokens = tokenizer.encode(walk.text);
            for (std::size_t at = 0; at <= tokens.size(); ++at) {
                const auto mask = state.mask();
                int64_t different = 0;
                for (auto id = static_cast<int32_t>(at % kPart); id < tokenizer.vocab_size(); id += kPart) {
                    ConstraintState copy = state;
                    different += copy.accept(id) != mask->has(id);
                }
                EXPECT_EQ(different, 0) << walk.text << ", token " << at << ", short walks of " << short_walk;
                if (at == tokens.size()) break;
                ASSERT_TRUE(state.accept(tokens[at])) << walk.text;
            }
        }
    }
}

}  // namespace
}  // namespace riptide::testing
