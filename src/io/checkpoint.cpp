#include "io/checkpoint.h"

#include <filesystem>

#include "base/checked.h"
#include "io/content.h"
#include "io/gguf.h"
#include "io/safetensors.h"

namespace riptide {

int64_t Checkpoint::tensor_bytes() const {
    int64_t sum = 0;
    for (const TensorInfo& tensor : tensors()) sum = checked_add(sum, std::ssize(tensor.bytes), "tensor data");
    return sum;
}

std::unique_ptr<Checkpoint> open_checkpoint(const std::string& path) {
    std::error_code ignored;  // MappedFile reports whatever is wrong with the path
    if (std::filesystem::is_directory(path, ignored)) return SafetensorsModel::open(path);
    MappedFile file(path);
    if (looks_like_gguf(file.bytes())) return GgufFile::open(std::move(file));
    if (looks_like_safetensors(file.bytes())) return SafetensorsModel::open(std::move(file));
    // The content says neither: let the reader that the name asks for say what is wrong.
    if (path.ends_with(".gguf")) return GgufFile::open(std::move(file));
    if (path.ends_with(".safetensors")) return SafetensorsModel::open(std::move(file));
    RT_CHECK(!looks_like_pickle(file.bytes()),
             "{}: pickle checkpoints are never loaded: convert it to safetensors or GGUF", path);
    RT_CHECK(!path.ends_with(".safetensors.index.json") && !path.ends_with("config.json"),
             "{}: is one file of a model folder: open the folder instead", path);
    fail("{}: neither a GGUF nor a safetensors file: {}", path, describe_content(file.bytes()));
}

std::unique_ptr<Checkpoint> open_gguf_memory(std::span<const std::byte> image, const std::string& name) {
    return GgufFile::from_memory(image, name);
}

}  // namespace riptide
