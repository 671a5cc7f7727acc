#include "engine/loaded_text.h"

#include "base/error.h"

namespace riptide {

namespace {

const json::value* find(const Checkpoint& checkpoint, const char* key) {
    return checkpoint.metadata().if_contains(key);
}

bool is_gguf(const Checkpoint& checkpoint) { return checkpoint.format() == Checkpoint::Format::gguf; }

}  // namespace

bool has_tokenizer(const Checkpoint& checkpoint) {
    return find(checkpoint, is_gguf(checkpoint) ? "tokenizer.ggml.tokens" : "tokenizer") != nullptr;
}

Tokenizer load_tokenizer(const Checkpoint& checkpoint) {
    RT_CHECK(has_tokenizer(checkpoint), "{}: no tokenizer (expected {}); give token ids with --tokens",
             checkpoint.path(), is_gguf(checkpoint) ? "tokenizer.ggml.tokens" : "tokenizer.json");
    if (is_gguf(checkpoint)) return Tokenizer::from_gguf(checkpoint.metadata(), checkpoint.path());
    return Tokenizer::from_hf(*find(checkpoint, "tokenizer"), find(checkpoint, "tokenizer_config"), checkpoint.path());
}

std::string chat_template_source(const Checkpoint& checkpoint) {
    const json::value* source = find(checkpoint, is_gguf(checkpoint) ? "tokenizer.chat_template" : "chat_template");
    return source != nullptr && source->is_string() ? std::string(source->get_string()) : "";
}

std::vector<int32_t> stop_ids(const Checkpoint& checkpoint, const Tokenizer& tokenizer) {
    std::vector<int32_t> more;
    const json::value* config = find(checkpoint, "generation_config");
    const json::value* eos =
        config != nullptr && config->is_object() ? config->get_object().if_contains("eos_token_id") : nullptr;
    const auto add = [&](const json::value& id) {
        RT_CHECK(id.is_int64(), "{}: generation_config.json: eos_token_id is {}, expected an integer",
                 checkpoint.path(), json::serialize(id));
        more.push_back(static_cast<int32_t>(id.get_int64()));
    };
    if (eos != nullptr && eos->is_array())
        for (const json::value& id : eos->get_array()) add(id);
    else if (eos != nullptr && !eos->is_null()) add(*eos);
    return tokenizer.stop_ids(more);
}

}  // namespace riptide
