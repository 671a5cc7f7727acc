// Safetensors checkpoints: one file, or a Hugging Face model folder (with or without model.safetensors.index.json).
// Layout of a file: u64 length of the header, little-endian | header, a JSON object
//   {"__metadata__": {string: string}, NAME: {"dtype": "BF16", "shape": [..], "data_offsets": [begin, end]}, ...}
// padded with spaces | data, which the tensors fill without gap or overlap; offsets count from the data's start.
// The format promises no alignment: a tensor's bytes may lie anywhere, though common writers pad the header to 8 bytes.
// Source: the safetensors format description and the checks of its reference reader (SafeTensors::read_metadata).
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "io/checkpoint.h"
#include "io/tensor_table.h"

namespace riptide {

/// One file's header, checked against the file's real size.
struct SafetensorsImage {
    json::object metadata;            // "__metadata__", strings
    std::vector<TensorInfo> tensors;  // in the order of the header
};

/// Reads a header (at most 100 MB). `file` names the source in messages and in TensorInfo. Touches no tensor data.
/// Throws Error naming the file and the tensor.
SafetensorsImage parse_safetensors(std::span<const std::byte> image, const std::string& file);

/// An open safetensors model. Immutable, so thread-safe to read.
/// metadata() has what the folder has of: "config", "generation_config", "tokenizer", "tokenizer_config" (objects),
/// "chat_template" (a string: chat_template.jinja, else chat_template.json, else the one in tokenizer_config.json, of
/// several the one named "default"), and "__metadata__" (of all files, the first file's value where they differ).
class SafetensorsModel final : public Checkpoint {
  public:
    /// A folder or a single .safetensors file, with the JSON files beside it.
    static std::unique_ptr<SafetensorsModel> open(const std::string& path);
    /// A single mapped file, with the JSON files beside it.
    static std::unique_ptr<SafetensorsModel> open(MappedFile file);
    /// `image` must outlive the result.
    static std::unique_ptr<SafetensorsModel> from_memory(std::span<const std::byte> image, const std::string& name);

    Format format() const override { return Format::safetensors; }
    const std::string& path() const override { return path_; }
    std::span<const TensorInfo> tensors() const override { return table_.all(); }
    const TensorInfo* find(std::string_view name) const override { return table_.find(name); }
    const json::object& metadata() const override { return metadata_; }
    void check_intact() const override;
    std::span<const MappedFile> files() const override { return files_; }

  private:
    explicit SafetensorsModel(std::string path) : path_(std::move(path)) {}
    void add_image(SafetensorsImage image, std::vector<TensorInfo>& tensors);

    std::string path_;
    std::vector<MappedFile> files_;
    TensorTable table_;
    json::object metadata_;
};

/// The JSON files of a Hugging Face model folder, as SafetensorsModel::metadata() describes them.
json::object load_hf_metadata(const std::string& folder);

/// The file names of a model folder's shards, sorted, checked for missing ones. If the folder has an index, `expected`
/// gets its weight map (tensor name to file name), else it stays empty.
std::vector<std::string> list_shards(const std::string& folder, json::object& expected);

}  // namespace riptide
