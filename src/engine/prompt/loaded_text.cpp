#include "engine/prompt/loaded_text.h"

#include "base/error.h"
#include "base/json.h"

namespace riptide {

namespace {

const json::value* metadata_field(const Checkpoint& checkpoint, const char* key) {
    return checkpoint.metadata().if_contains(key);
}

bool is_gguf(const Checkpoint& checkpoint) { return checkpoint.format() == Checkpoint::Format::gguf; }

/// tokenizer.json; also of a GGUF whose text was replaced: io/replaced_text.h.
const json::object* tokenizer_json(const Checkpoint& checkpoint) {
    const json::value* found = metadata_field(checkpoint, "tokenizer");
    return found != nullptr ? found->if_object() : nullptr;
}

}  // namespace

bool has_tokenizer(const Checkpoint& checkpoint) {
    return tokenizer_json(checkpoint) != nullptr ||
           (is_gguf(checkpoint) && metadata_field(checkpoint, "tokenizer.ggml.tokens") != nullptr);
}

Tokenizer load_tokenizer(const Checkpoint& checkpoint) {
    RT_CHECK(has_tokenizer(checkpoint), "{}: no tokenizer (expected {}); give token ids with --tokens",
             checkpoint.path(), is_gguf(checkpoint) ? "tokenizer.ggml.tokens" : "tokenizer.json");
    if (tokenizer_json(checkpoint) == nullptr) return Tokenizer::from_gguf(checkpoint.metadata(), checkpoint.path());
    return Tokenizer::from_hf(*metadata_field(checkpoint, "tokenizer"), metadata_field(checkpoint, "tokenizer_config"),
                              checkpoint.path());
}

std::string chat_template_source(const Checkpoint& checkpoint) {
    for (const char* key : {"chat_template", "tokenizer.chat_template"}) {  // the first also of a GGUF, if replaced
        const json::value* source = metadata_field(checkpoint, key);
        if (source != nullptr && source->is_string()) return std::string(source->get_string());
    }
    return "";
}

std::optional<ChatTemplate> load_chat_template(const Checkpoint& checkpoint, const Tokenizer& tokenizer,
                                               const GenerationDefaults& makers) {
    const std::string source = chat_template_source(checkpoint);
    if (source.empty()) return std::nullopt;
    const auto text = [&](int32_t id) { return id < 0 ? "" : std::string(tokenizer.piece(id)); };
    return ChatTemplate(source, checkpoint.path() + ": chat template", text(tokenizer.bos()), text(tokenizer.eos()),
                        makers.template_kwargs);
}

std::vector<int32_t> stop_ids(const Checkpoint& checkpoint, const Tokenizer& tokenizer) {
    return tokenizer.stop_ids(generation_defaults(checkpoint).eos_ids);
}

}  // namespace riptide
