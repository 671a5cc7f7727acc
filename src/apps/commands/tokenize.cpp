// riptide tokenize: the ids of a text, and what they spell.
#include <cstdio>
#include <iostream>
#include <iterator>
#include <memory>

#include "apps/commands/commands.h"
#include "apps/flags/flags.h"
#include "apps/support/demo_model.h"
#include "apps/support/terminal.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "engine/prompt/loaded_text.h"

namespace riptide::apps {

namespace {

struct TokenizeFlags {
    std::string model, file, text;
    bool add_special = false, parse_special = false, as_json = false;
};

constexpr int64_t kMaxTokenizedText = int64_t{256} << 20;

std::string text_of(const TokenizeFlags& options) {
    RT_CHECK(options.file.empty() || options.text.empty(), ErrorKind::usage, "--text and --string exclude each other");
    if (!options.text.empty()) return options.text;
    if (!options.file.empty() && options.file != "-") return read_file(options.file, kMaxTokenizedText);
    return {std::istreambuf_iterator<char>(std::cin), {}};
}

int tokenize(const TokenizeFlags& options) {
    const auto checkpoint = open_model_or_demo(options.model);
    const Tokenizer tokenizer = load_tokenizer(*checkpoint);
    EncodeOptions encode;
    encode.add_special = options.add_special;
    encode.parse_special = options.parse_special;
    const std::vector<int32_t> ids = tokenizer.encode(text_of(options), encode);
    if (options.as_json) {
        tell("{}\n", json::serialize(json::object{{"tokens", json::value_from(ids)}}));
        return 0;
    }
    for (int32_t id : ids) tell("{:>7}  {}\n", id, json::serialize(json::string(tokenizer.piece(id))));
    tell("{} tokens\n", ids.size());
    return 0;
}

}  // namespace

void add_tokenize(Command& app, Action& action) {
    Command* cmd = app.add_subcommand("tokenize", "Print the token ids of a text");
    auto options = std::make_shared<TokenizeFlags>();
    cmd->add_option("MODEL", options->model,
                    "GGUF (vocabulary alone will do) or safetensors folder; left out: the demo model");
    cmd->add_option("--text", options->file, "File with the text; - or nothing: standard input");
    cmd->add_option("--string", options->text, "The text itself");
    cmd->add_flag("--add-special", options->add_special, "Add the ids round the text that the model asks for (BOS)");
    cmd->add_flag("--parse-special", options->parse_special, "Read <think> and the like as control tokens");
    cmd->add_flag("--json", options->as_json, "Print {\"tokens\": [...]}");
    cmd->footer(
        "Examples:\n  riptide tokenize --string 'hello world'\n"
        "  riptide tokenize model.gguf --text prompt.txt --json");
    cmd->callback([options, &action] { action = [options] { return tokenize(*options); }; });
}

}  // namespace riptide::apps
