#include "io/replaced_text.h"

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "io/safetensors.h"

namespace riptide {

namespace {

constexpr int64_t kMaxTemplate = int64_t{4} << 20;

class ReplacedText final : public Checkpoint {
  public:
    ReplacedText(std::unique_ptr<Checkpoint> checkpoint, json::object metadata)
        : checkpoint_(std::move(checkpoint)), metadata_(std::move(metadata)) {}

    Format format() const override { return checkpoint_->format(); }
    const std::string& path() const override { return checkpoint_->path(); }
    std::span<const TensorInfo> tensors() const override { return checkpoint_->tensors(); }
    const TensorInfo* find(std::string_view name) const override { return checkpoint_->find(name); }
    const json::object& metadata() const override { return metadata_; }
    void check_intact() const override { checkpoint_->check_intact(); }
    std::span<const MappedFile> files() const override { return checkpoint_->files(); }
    std::string_view made() const override { return checkpoint_->made(); }

  private:
    std::unique_ptr<Checkpoint> checkpoint_;
    json::object metadata_;
};

}  // namespace

std::unique_ptr<Checkpoint> replace_text(std::unique_ptr<Checkpoint> checkpoint, const std::string& tokenizer,
                                         const std::string& chat_template) {
    if (tokenizer.empty() && chat_template.empty()) return checkpoint;
    json::object metadata = checkpoint->metadata();
    if (!tokenizer.empty()) {
        json::object found = load_hf_metadata(tokenizer);
        RT_CHECK(found.contains("tokenizer"), ErrorKind::no_input, "{}: expected a folder with tokenizer.json",
                 tokenizer);
        for (const char* key : {"tokenizer", "tokenizer_config"}) {
            metadata.erase(key);
            if (json::value* value = found.if_contains(key)) metadata[key] = std::move(*value);
        }
    }
    if (!chat_template.empty()) metadata["chat_template"] = read_file(chat_template, kMaxTemplate);
    return std::make_unique<ReplacedText>(std::move(checkpoint), std::move(metadata));
}

}  // namespace riptide
